"""Wake-ups within a process. They are hints: whoever is woken looks for itself, and looks now and then anyway."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from antwort.api.payload import PIECE, payload
from antwort.storage.run_log import Record

_MOST = 256
"""Records that wait for a slow reader; what goes beyond it, or beyond the text of a piece, it reads from the log."""


class Hint:
    """There may be something to do. It stays until somebody goes to look."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def set_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.set)

    def clear(self) -> None:
        """Before one looks, so that what comes meanwhile is not missed."""
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether it came within that time."""
        if not self._event.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        return self._event.is_set()


class Tail:
    """What one reader hears of a run: that there is more and, from those who write it in this process, what it is."""

    __slots__ = ("_heard", "_key", "_size", "hint")

    def __init__(self, key: int) -> None:
        self._key = key
        self.hint = Hint()
        self._heard: deque[Record] = deque(maxlen=_MOST)
        self._size = 0

    def hear(self, key: int | None, record: Record | None, size: int = 0) -> None:
        """`size`: characters, about, that the record holds."""
        if record is not None and key == self._key:
            self._size += size
            if self._size > PIECE:
                self._heard.clear()
                self._size = size
            if size <= PIECE:
                self._heard.append(record)
        self.hint.set()

    def take(self, at: int) -> list[Record]:
        """What was heard from that place of the log on, without gaps."""
        found: list[Record] = []
        self._size = 0  # what is left is little, or will be dropped before it is much
        while self._heard and self._heard[0].at <= at + len(found):
            if (record := self._heard.popleft()).at == at + len(found):
                found.append(record)
        return found


class Tails:
    """Those who read along. What is written goes to those who read the run of that id and key, and to no others."""

    def __init__(self) -> None:
        self._tails: dict[str, list[Tail]] = {}

    @contextmanager
    def follow(self, run_id: str, key: int) -> Iterator[Tail]:
        tail = Tail(key)
        self._tails.setdefault(run_id, []).append(tail)
        try:
            yield tail
        finally:
            rest = [other for other in self._tails[run_id] if other is not tail]
            if rest:
                self._tails[run_id] = rest
            else:
                del self._tails[run_id]

    def tell(self, run_id: str, key: int | None = None, record: Record | None = None) -> None:
        tails = self._tails.get(run_id, ())
        size = sum(map(payload, record.events)) if tails and record is not None else 0
        for tail in tails:
            tail.hear(key, record, size)

    def tell_some(self, ids: Sequence[str]) -> None:
        for run_id in ids:
            self.tell(run_id)

    def tell_all(self) -> None:
        self.tell_some([*self._tails])
