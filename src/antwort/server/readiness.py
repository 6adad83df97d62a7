"""Check whether the server is ready, once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from time import monotonic
from typing import TypeAlias

Verdict: TypeAlias = Mapping[str, str]
"""Each part that must be there, with `ok` or what is wrong with it."""

LEAVING: Verdict = {"server": "It is stopping."}

SHARED = 1.0
"""Seconds that a verdict holds: anybody may ask, and a check costs the store a commit and a backend a request."""


class Readiness:
    def __init__(self, look: Callable[[], Awaitable[Verdict]], clock: Callable[[], float] = monotonic) -> None:
        self._look, self._clock = look, clock
        self._verdict: Verdict | None = None
        self._at = 0.0
        self._looking: asyncio.Task[Verdict] | None = None
        self._is_leaving = False

    def leave(self) -> None:
        """Report that the server is not ready, from now on."""
        self._is_leaving = True

    async def verdict(self) -> Verdict:
        if self._is_leaving:
            return LEAVING
        if self._verdict is not None and self._clock() - self._at < SHARED:
            return self._verdict
        if self._looking is None:
            # It works for all who ask, so that what it logs is under no one's request id.
            self._looking = asyncio.create_task(self._find_out(), context=Context())
        return await asyncio.shield(self._looking)  # whoever leaves does not take it from the others

    async def _find_out(self) -> Verdict:
        try:
            self._verdict = await self._look()
            self._at = self._clock()
            return self._verdict
        finally:
            self._looking = None
