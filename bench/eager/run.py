"""What it gains to start a call while the model still writes.

python -m eager.run

A provider stands in for a model that writes slowly, and each tool takes a second or what its argument says. Each case
is run with `loop.eager` and without; the time is that of the turn with the calls, from its first word to its last
result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from antwort import Engine, EngineSettings, Toolset
from antwort.api.events import McpCallCompleted, OutputItemAdded
from antwort.api.items import McpCall
from antwort.api.responses import Model
from antwort.providers.base import CallDelta, Capabilities, ChatRequest, Delta, Finished, TextDelta

_WRITING = 0.5
"""Seconds that the model takes to write a call."""
_PIECES = 10
_WORDS = "I look all of this up at once, and tell you then what I have found. "


class SlowModel:
    """Writes the calls of a case, and words behind them where it has any; then it says that it is done."""

    def __init__(self, seconds: Sequence[float], words: str, tool: str) -> None:
        self._seconds, self._words, self._tool = seconds, words, tool

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        if any(message.role == "tool" for message in request.messages):
            yield [TextDelta("Done."), Finished("stop", None)]
            return
        for at, seconds in enumerate(self._seconds):
            async for piece in _slowly(json.dumps({"seconds": seconds, "note": "x" * 40})):
                yield [CallDelta(at, "" if piece[0] else self._tool, piece[1])]
        async for _, text in _slowly(self._words):
            yield [TextDelta(text)]
        yield [Finished("tool_calls", None)]

    async def models(self) -> Sequence[Model]:
        return ()

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - the contract's
        return Capabilities()

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def _slowly(text: str) -> AsyncGenerator[tuple[int, str], None]:
    size = -(-len(text) // _PIECES)
    for at in range(0, len(text), size or 1):
        await asyncio.sleep(_WRITING / _PIECES)
        yield at, text[at : at + size]


tools = Toolset("tools")


@tools.tool
async def look(seconds: float, note: str = "") -> str:  # noqa: ARG001 - it makes the call longer to write
    """Look something up."""
    await asyncio.sleep(seconds)
    return f"{seconds:g} s"


@tools.tool(parallel=False)
async def look_alone(seconds: float, note: str = "") -> str:  # noqa: ARG001 - as above
    """Look something up where only one may look at a time."""
    await asyncio.sleep(seconds)
    return f"{seconds:g} s"


class Case(NamedTuple):
    name: str
    seconds: tuple[float, ...]
    words: str = ""
    tool: str = "look"


CASES = (
    Case("three calls of 1 s", (1, 1, 1)),
    Case("the same, and words behind them", (1, 1, 1), _WORDS),
    Case("calls of 2 s, 1 s and 0.5 s", (2, 1, 0.5)),
    Case("three calls of 1 s that must not overlap", (1, 1, 1), "", "look_alone"),
)


async def measure(case: Case, *, eager: bool) -> tuple[float, list[str]]:
    """Seconds of the turn with the calls, and the results in the order of the output."""
    model = SlowModel(case.seconds, case.words, case.tool)
    engine = Engine(model, executors=[tools], settings=EngineSettings(eager=eager))
    began = ended = time.perf_counter()
    order: list[str] = []
    declared = {"type": "mcp", "server_label": "tools"}
    async for event in engine.respond({"model": "slow", "input": "Look.", "tools": [declared], "store": False}):
        if isinstance(event, OutputItemAdded) and isinstance(event.item, McpCall):
            order.append(event.item.id)
        if isinstance(event, McpCallCompleted):
            ended = time.perf_counter()
    await engine.close()
    return ended - began, order


async def main() -> int:
    print("| turn | writing, s | without, s | eager, s | gained, s |")
    print("|---|---|---|---|---|")
    for case in CASES:
        without, _ = await measure(case, eager=False)
        eager, calls = await measure(case, eager=True)
        assert len(calls) == len(case.seconds), "every call shows once"
        writing = _WRITING * (len(case.seconds) + bool(case.words))
        print(f"| {case.name} | {writing:.1f} | {without:.2f} | {eager:.2f} | {without - eager:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
