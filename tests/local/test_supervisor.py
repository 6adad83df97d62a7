"""A model's process is kept alive."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from antwort.local.process import ModelProcess
from antwort.local.server_options import CannotRun
from antwort.local.supervisor import RESTART_DELAYS, STABLE_SECONDS, Supervisor, is_alive
from antwort.providers.errors import NotReady
from local_kit import ADDRESS, BROKEN, GOOD, SLOW, Lives, begin

PATIENCE = 20.0


class Naps:
    """Pauses that are over at once, but for the last that is allowed: it lasts until it is told to end."""

    def __init__(self, most: int = 100) -> None:
        self.taken: list[float] = []
        self.most = most
        self.all_taken, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        if len(self.taken) >= self.most:
            self.all_taken.set()
            await self.over.wait()


@asynccontextmanager
async def supervised(
    begin: Callable[[], Awaitable[ModelProcess]],
    naps: Naps | None = None,
    *,
    ready: float = PATIENCE,
    clock: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor("m", begin, load_seconds=ready, sleep=naps or Naps(), clock=clock)
    try:
        async with asyncio.timeout(PATIENCE):
            yield supervisor
    finally:
        await supervisor.close()


async def test_it_is_started_when_somebody_asks_and_once_for_all() -> None:
    lives = Lives(GOOD)
    async with supervised(lives) as supervisor:
        assert (lives.begun, supervisor.pid) == ([], None)
        found = await asyncio.gather(*(supervisor.process(PATIENCE) for _ in range(5)))
        assert found == lives.begun * 5
        assert len(lives.begun) == 1
        assert supervisor.pid == lives.begun[0].pid
    assert lives.begun[0].has_ended


async def test_who_asks_while_it_loads_waits_and_is_told_to_come_back() -> None:
    lives = Lives(SLOW)
    async with supervised(lives) as supervisor:
        with pytest.raises(NotReady, match="still being loaded") as caught:
            await supervisor.process(0.01)
        assert caught.value.retry_after == 2.0
    assert all(each.has_ended for each in lives.begun)


async def test_one_that_is_killed_is_started_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    lives = Lives(GOOD)
    naps = Naps(most=3)
    async with supervised(lives, naps) as supervisor:
        first = await supervisor.process(PATIENCE)
        os.kill(first.pid, signal.SIGKILL)
        await first.ended()
        assert await supervisor.process(PATIENCE) is lives.begun[1]
        assert naps.taken == [0.0]
    assert "the model m has stopped: its process was ended by SIGKILL; the next start is now" in caplog.messages


async def test_one_that_keeps_dying_is_left_alone_for_longer_and_longer() -> None:
    lives = Lives(("ready=http://127.0.0.1:9", "exit=1"))
    naps = Naps(most=9)
    async with supervised(lives, naps) as supervisor:
        supervisor.start()
        await naps.all_taken.wait()
        assert naps.taken == [*RESTART_DELAYS, 30.0, 30.0]
        with pytest.raises(NotReady, match=r"has stopped \(its process ended with status 1\) and is started") as caught:
            await supervisor.process(0.01)
        assert caught.value.retry_after == 32.0


async def test_a_long_life_makes_good_for_the_short_ones_before_it() -> None:
    now = 0.0
    lives, naps = Lives(("ready=http://127.0.0.1:9", "exit=1")), Naps(most=5)

    async def begin() -> ModelProcess:
        nonlocal now
        now += STABLE_SECONDS if len(lives.begun) == 2 else 0.0  # the third one's life is a long one
        return await lives()

    async with supervised(begin, naps, clock=lambda: now) as supervisor:
        supervisor.start()
        await naps.all_taken.wait()
    assert naps.taken == [0.0, 1.0, 0.0, 0.0, 1.0]


async def test_one_whose_first_start_fails_says_why_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lives = Lives(BROKEN, GOOD)
    naps = Naps(most=1)
    async with supervised(lives, naps) as supervisor:
        with pytest.raises(CannotRun, match=r"^gguf_init: failed to read header$"):
            await supervisor.first_start()
        await naps.all_taken.wait()
        assert naps.taken == [1.0]
        naps.over.set()
        assert await supervisor.process(PATIENCE) is lives.begun[1]
    assert caplog.messages == [
        "the model m cannot be loaded: its process ended with status 3; the next start is in 1 seconds",
        "llama.cpp: 0.00.002 E gguf_init: failed to read header",
        "llama.cpp: E more",
    ]


async def test_who_waits_for_a_start_that_fails_is_told_at_once_and_nothing_of_the_log() -> None:
    async with supervised(Lives(BROKEN), Naps(most=1)) as supervisor:
        with pytest.raises(NotReady) as caught:
            await supervisor.process(PATIENCE)
    assert caught.value.message == (
        "The model cannot be loaded (its process ended with status 3); the server's log says more."
    )


async def test_one_that_takes_too_long_to_load_is_ended() -> None:
    lives = Lives(SLOW)
    async with supervised(lives, Naps(most=1), ready=0.05) as supervisor:
        with pytest.raises(CannotRun, match=r"not ready after 0\.05 seconds, which local\.ready allows"):
            await supervisor.first_start()
    assert lives.begun[0].has_ended


async def test_a_process_that_cannot_even_be_started_is_no_different() -> None:
    async def begin() -> ModelProcess:
        raise FileNotFoundError(2, "No such file or directory")

    async with supervised(begin, Naps(most=1)) as supervisor:
        with pytest.raises(CannotRun, match="its process cannot be started: No such file or directory"):
            await supervisor.first_start()


async def test_one_that_hangs_is_ended_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[tuple[int, bool]] = []
    said = [True, False, False, True, False, False, False]

    async def look(process: ModelProcess) -> bool:
        if not said:
            await asyncio.Event().wait()
        looks.append((process.pid, said.pop(0)))
        return looks[-1][1]

    lives, rests = Lives((f"ready={ADDRESS}", "deaf"), GOOD), Naps()
    supervisor = Supervisor(
        "m", lives, load_seconds=PATIENCE, check=look, check_sleep=rests, sleep=Naps(), clock=lambda: 0.0
    )
    try:
        async with asyncio.timeout(PATIENCE):
            first = await supervisor.process(PATIENCE)
            os.kill(first.pid, signal.SIGSTOP)
            await first.ended()
            assert await supervisor.process(PATIENCE) is lives.begun[1]
    finally:
        await supervisor.close()
    assert (len(looks), {pid for pid, _ in looks}, set(rests.taken)) == (7, {first.pid}, {5.0})
    assert (
        "the model m has stopped: it has not answered 3 looks in a row, 5 seconds apart; the next start is now"
        in caplog.messages
    )


async def test_a_process_answers_when_it_says_anything_at_all_in_time() -> None:
    silence = asyncio.Event()
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        if not silence.is_set():
            writer.write(b"HTTP/1.1 503 Loading\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        process = await begin(f"ready=http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "wait")
        await process.ready()
        assert await is_alive(process)
        silence.set()
        assert not await is_alive(process, 0.05)
    assert not await is_alive(process)
    assert heard == [b"GET /health HTTP/1.0\r\n\r\n"] * 2
    await process.stop()


async def test_who_is_told_of_a_failed_start_is_told_when_the_next_one_is() -> None:
    naps = Naps(most=3)
    async with supervised(Lives(BROKEN), naps) as supervisor:
        with pytest.raises(NotReady) as caught:
            await supervisor.process(PATIENCE)
        assert caught.value.retry_after == 3.0, "the pause of a second, and then some time to load"


async def test_what_is_closed_stays_closed() -> None:
    lives = Lives(GOOD)
    async with supervised(lives) as supervisor:
        await supervisor.first_start()
        await supervisor.close()
        with pytest.raises(NotReady, match="has been stopped"):
            await supervisor.process(PATIENCE)
    unused = Supervisor("m", Lives(GOOD), load_seconds=1.0)
    await unused.close()
    with pytest.raises(CannotRun, match="has been stopped"):
        await unused.first_start()
