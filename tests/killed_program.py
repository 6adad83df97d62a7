"""A process that makes a response in a file, to be killed: `python killed_program.py FOLDER WAY`. The way is
`background`, or `foreground`: then a client reads it that does not end it when it leaves.

Its tools write down that they were asked, and wait for ever where a file of their name with `.waits` stands.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from antwort import Engine, SqliteStore
from antwort.identity import ANONYMOUS
from antwort.testing import answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import ask
from takeover_kit import DEPOT, Depot, Story

STORY = Story(
    answer(say("I begin."), call("look", n=1), call("mark", n=2)),
    answer(call("sell", n=3), call("look", n=4)),
    answer(say("All is done.")),
)


class Noted(Depot):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__()

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        with (self._folder / "calls").open("a") as file:
            file.write(f"{call.name} {context.idempotency_key}\n")
            file.flush()
            os.fsync(file.fileno())
        if (self._folder / f"{call.name}.waits").exists():
            say_so("waits")
            await asyncio.Event().wait()
        return f"{call.name} done"


def say_so(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def open_engine(folder: Path) -> Engine:
    return Engine(STORY, store=await SqliteStore.open(folder / "antwort.db"), executors=[Noted(folder)])


async def main(folder: Path, way: str) -> None:
    async with await open_engine(folder) as engine:
        request = ask(background=way == "background", stream=True, tools=[DEPOT])
        run = await engine.start(request, ANONYMOUS, on_disconnect="continue")
        say_so(run.response_id)
        while await run.read():
            pass
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
