"""How long nobody tries to reach a server that could not be reached. Pure."""

from __future__ import annotations

_FIRST = 0.5
_LONGEST = 30.0


class Pauses:
    """The first failure is followed by none: whoever asks next tries at once. Then they double, up to half a minute.

    A server that lets itself be reached has not worked yet: only an answer takes it back to the beginning. So one that
    ends after each handshake is not started over and over.
    """

    def __init__(self, first: float = _FIRST, longest: float = _LONGEST, at_once: int = 1) -> None:
        """`at_once`: failures after which there is no pause."""
        self._first, self._longest, self._at_once = first, longest, at_once
        self._failures = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        self._failures += 1
        self._until = now + self._length()

    def worked(self) -> None:
        self._failures = 0
        self._until = 0.0

    def left(self, now: float) -> float:
        """Seconds until the next attempt; 0: now."""
        return max(0.0, self._until - now)

    def _length(self) -> float:
        doublings = self._failures - self._at_once - 1
        return 0.0 if doublings < 0 else min(self._longest, self._first * 2.0 ** min(doublings, 30))
