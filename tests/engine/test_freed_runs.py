"""What a run held is freed when it ends, not when the garbage collector comes by: many may end at once."""

from __future__ import annotations

import subprocess
import sys

LEFT = """
import asyncio, gc
from antwort import Engine
from antwort.api.responses import Response
from antwort.testing import ScriptedProvider, answer, say

async def main() -> None:
    async with Engine(ScriptedProvider(*[answer(say("Hello"), asyncio.Event())] * 2)) as engine:
        for _ in range(2):  # what the first one makes stays
            events = engine.respond(input="Hi", store=False)
            async for event in events:
                if type(event).__name__ == "OutputTextDelta":
                    break
            del event
            gc.collect()
            gc.disable()
            await events.aclose()
            del events
            for _ in range(20):
                await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        print(len([found for found in gc.garbage if isinstance(found, Response)]))

asyncio.run(main())
"""


def test_what_a_response_said_is_freed_when_its_reader_leaves() -> None:
    told = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0"]
