"""The tools that the server has while clients are tried against it."""

from __future__ import annotations

import asyncio

from antwort import ToolContext, Toolset

workshop = Toolset("workshop", instructions="The workshop adds, fails, and takes its time.")


@workshop.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@workshop.tool
def fail(reason: str = "the saw is broken") -> str:
    """Fail, always."""
    raise RuntimeError(reason)


@workshop.tool
async def slow(context: ToolContext, seconds: float = 3.0) -> str:
    """Work for a while without a word."""
    del context
    await asyncio.sleep(seconds)
    return f"worked for {seconds:g} s"
