"""Progress of what takes long."""

from __future__ import annotations

import asyncio
import io

import pytest

from antwort.cli.output import with_progress
from jumping_time import jumping_time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def answer(after: asyncio.Event) -> str:
    await after.wait()
    return "done"


async def test_on_a_terminal_a_line_counts_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out, over = Terminal(), asyncio.Event()
    monkeypatch.setattr("sys.stdout", out)
    asyncio.get_running_loop().call_later(0.01, over.set)
    assert await with_progress(answer(over), "loading m") == "done"
    assert out.getvalue() == "loading m ... 0 s\r" + " " * len("loading m ... 0 s") + "\r"


async def test_what_is_soon_over_is_not_spoken_of_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    over = asyncio.Event()
    over.set()
    assert await with_progress(answer(over), "loading m") == "done"
    assert capsys.readouterr().out == ""


@jumping_time
async def test_what_takes_long_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(25, over.set)
    assert await with_progress(answer(over), "loading m") == "done"
    assert capsys.readouterr().out.splitlines() == [f"loading m ... {seconds} s" for seconds in (1, 11, 21)]


async def test_who_stops_waiting_stops_the_work_and_leaves_a_clean_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out, ended = Terminal(), asyncio.Event()
    monkeypatch.setattr("sys.stdout", out)

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(with_progress(work(), "loading m"))
    while not out.getvalue():  # noqa: ASYNC110 - a terminal has no event to wait for
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()
    assert out.getvalue().endswith(" \r")


async def test_what_goes_wrong_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)

    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await with_progress(work(), "loading m")
