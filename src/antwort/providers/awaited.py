"""Hold back an answer that must call a tool until its first call. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.responses import Usage
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta


class Awaited:
    """Buffers one answer until its first call. The reasoning of a `first` answer is passed on at once: it stands in
    any case.

    `allowed`: the only tools that will do; None: any. A refusal releases a first answer, too.
    """

    def __init__(self, allowed: frozenset[str] | None, *, is_first: bool = True) -> None:
        self._allowed, self._is_first = allowed, is_first
        self._is_settled = False
        self.is_released = False
        """Whether the answer goes out: the first call came and is an allowed one, or the model refused."""
        self.held: list[Delta] = []

    def read(self, batch: list[Delta]) -> list[Delta]:
        """Return what of the answer may go out now."""
        if not self._is_settled:
            self._look(batch)
        if self.is_released:
            held, self.held = self.held, []
            return held + batch if held else batch
        passed: list[Delta] = [delta for delta in batch if self._is_first and isinstance(delta, ReasoningDelta)]
        self.held += [delta for delta in batch if not (self._is_first and isinstance(delta, ReasoningDelta))]
        return passed

    def _look(self, batch: Sequence[Delta]) -> None:
        for delta in batch:
            if isinstance(delta, CallDelta) and delta.name:
                self._is_settled = True
                self.is_released = self.is_released or self._allowed is None or delta.name in self._allowed
                return
            is_refusal = isinstance(delta, RefusalDelta) or _is_filtered(delta)
            self.is_released = self.is_released or (is_refusal and self._is_first)


def _is_filtered(delta: Delta) -> bool:
    return isinstance(delta, Finished) and delta.finish == "content_filter"


def ending(answer: Sequence[Delta]) -> Finished | None:
    return next((delta for delta in answer if isinstance(delta, Finished)), None)


def costing(batch: list[Delta], before: Usage | None) -> list[Delta]:
    """The batch, its cost with that of what was asked `before`."""
    if before is None or not isinstance(last := batch[-1] if batch else None, Finished):
        return batch
    return [*batch[:-1], Finished(last.finish, before if last.usage is None else before + last.usage, is_sum=True)]
