"""A process is killed with -9 in the middle of a tool call, and the next one goes on from its file."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from antwort.engine.history.refusals import PROCESS_LOST
from antwort.identity import ANONYMOUS
from engine_kit import server_calls, text_of
from killed_program import open_engine
from takeover_kit import check_log, records_of

PROGRAM = Path(__file__).resolve().parents[1] / "killed_program.py"


async def kill_while(folder: Path, tool: str, way: str) -> str:
    """The id of the response that was being made when the process died, in a call of that tool."""
    (folder / f"{tool}.waits").touch()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(folder), way, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        lines = {(await process.stdout.readline()).decode().strip() for _ in range(2)}
    finally:
        process.kill()
        await process.wait()
    (folder / f"{tool}.waits").unlink()
    [response_id] = lines - {"waits"}
    return response_id


@pytest.mark.proves("MISTAKE-31", "RULING-15")
@pytest.mark.parametrize("way", ["background", "foreground"])
@pytest.mark.parametrize(("tool", "times"), [("look", 2), ("mark", 2), ("sell", 1)])
async def test_a_run_goes_on_after_kill_9_and_only_what_is_harmless_is_run_again(
    tmp_path: Path, tool: str, times: int, way: str
) -> None:
    response_id = await kill_while(tmp_path, tool, way)
    async with await open_engine(tmp_path) as engine:
        assert engine.runs is not None
        records = await records_of(engine.runs, response_id, follow=True)
        response = await engine.retrieve(ANONYMOUS, response_id)
        check_log(records, response)
    assert response.status == "completed"
    assert text_of(response) == "I begin.All is done."
    ran = Counter((tmp_path / "calls").read_text().split("\n")[:-1])
    calls = {item.call_id: item for item in server_calls(response)}
    assert len(ran) == len(calls) == 4
    again = {line.split()[0] for line, count in ran.items() if count > 1}
    assert "sell" not in again
    assert (tool in again) is (times > 1)
    [sold] = [item for item in calls.values() if item.name == "sell"]
    assert (sold.error_text == PROCESS_LOST) is (tool == "sell")
