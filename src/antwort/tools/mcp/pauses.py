"""How long nobody tries to reach a server that could not be reached, and how fast one is heard. Pure."""

from __future__ import annotations

_FIRST = 0.5
_LONGEST = 30.0


class Pauses:
    """The first failure is followed by none: whoever asks next tries at once. Then they double, up to half a minute.

    A server that lets itself be reached has not worked yet: only an answer takes it back to the beginning. So one that
    ends after each handshake is not started over and over.
    """

    def __init__(self) -> None:
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
        return 0.0 if self._failures < 2 else min(_LONGEST, _FIRST * 2.0 ** min(self._failures - 2, 30))


class Pace:
    """How fast a server is heard that says things by itself: many at once, and then so many in a second."""

    def __init__(self, at_once: int = 2_000, in_a_second: int = 500) -> None:
        self._at_once = at_once / in_a_second
        self._each = 1.0 / in_a_second
        self._due = float("-inf")

    def wait(self, now: float, many: int = 1) -> float:
        """Seconds before the next one is heard, or the next `many`."""
        self._due = max(self._due, now - self._at_once) + self._each * many
        return max(0.0, self._due - now)
