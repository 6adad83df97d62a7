"""What a server was asked, in the order that it happened. Nothing here needs the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

What: TypeAlias = Literal["opened", "listed", "called", "answered", "failed", "cancelled"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. `number` tells calls of the same tool apart; it is the same when one ends."""

    what: What
    tool: str | None = None
    number: int = 0
    arguments: dict[str, Any] = {}
    session: str | None = None
    version: str | None = None
    """The version of the protocol that was spoken."""


class Record:
    """Keeps entries, and writes them to a file, a line of JSON each, as they come."""

    def __init__(self, file: Path | None = None) -> None:
        self.entries: list[Entry] = []
        self._file = file
        self._changed = asyncio.Event()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self._file is not None:
            with self._file.open("ab") as out:
                out.write(msgspec.json.encode(entry) + b"\n")
        self._changed.set()
        self._changed = asyncio.Event()

    def count(self, what: What, tool: str | None = None) -> int:
        return sum(entry.what == what and (tool is None or entry.tool == tool) for entry in self.entries)

    async def until(self, claim: Callable[[], bool], within: float = 10.0) -> None:
        """Wait for something that an entry makes true. Raises `TimeoutError` when that many seconds have passed."""
        async with asyncio.timeout(within):
            while not claim():
                await self._changed.wait()

    async def until_seen(self, what: What, tool: str | None = None, times: int = 1) -> None:
        await self.until(lambda: self.count(what, tool) >= times)


def read_record(file: Path) -> list[Entry]:
    """What another process has written so far; a last line that is half there is left out."""
    if not file.exists():
        return []
    whole = file.read_bytes().rpartition(b"\n")[0]
    return [msgspec.json.decode(line, type=Entry) for line in whole.splitlines()]
