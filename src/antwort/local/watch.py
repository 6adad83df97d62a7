"""A look at the model's process from time to time: one that hangs is not seen by waiting for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from antwort.local.process import ModelProcess

Look: TypeAlias = Callable[[ModelProcess], Awaitable[bool]]
"""Whether the process answers."""

EVERY = 5.0
"""Seconds between two looks."""
PATIENCE = 5.0
"""Seconds that an answer may take. It has threads of its own, and needs nothing of what the model is busy with."""
MISSES = 3
"""Looks in a row without an answer, after which it is taken for dead."""


async def until_silent(process: ModelProcess, look: Look, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Return when it has not answered for so long that it will not any more."""
    misses = 0
    while misses < MISSES:
        await sleep(EVERY)
        misses = 0 if await look(process) else misses + 1


async def answers(process: ModelProcess, patience: float = PATIENCE) -> bool:
    """Ask llama.cpp whether it is well. What it says does not matter, only that it speaks."""
    at = urlsplit(process.address)
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return bool(await reader.readline())
            finally:
                writer.close()
    except (OSError, ValueError):  # a TimeoutError is an OSError; a ValueError is for a line without an end
        return False
