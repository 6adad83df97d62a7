"""An answer that must call a tool, held until it is seen that it does. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.responses import Usage
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta


class Awaited:
    """Reads one answer, whose first call tells. Thoughts are let out at once: they commit to nothing.

    `allowed`: the only tools that will do; None: any. `is_trusted`: nothing is held, and only the call looked for.
    """

    def __init__(self, allowed: frozenset[str] | None, *, is_trusted: bool = False) -> None:
        self._allowed, self._is_open = allowed, is_trusted
        self._is_settled = False
        self.has_called = False
        """The first call came, and is one of those that will do."""
        self.held: list[Delta] = []

    @property
    def is_kept(self) -> bool:
        """Whether the answer stands: it was let out."""
        return self._is_open

    def read(self, batch: list[Delta]) -> list[Delta]:
        """What of it may go out."""
        if not self._is_settled:
            self._look(batch)
        if self._is_open:
            held, self.held = self.held, []
            return held + batch if held else batch
        self.held += [delta for delta in batch if not isinstance(delta, ReasoningDelta)]
        return [delta for delta in batch if isinstance(delta, ReasoningDelta)]

    def _look(self, batch: Sequence[Delta]) -> None:
        for delta in batch:
            if isinstance(delta, CallDelta) and delta.name:
                self._is_settled = True
                self.has_called = self._allowed is None or delta.name in self._allowed
                self._is_open = self._is_open or self.has_called
                return
            if isinstance(delta, RefusalDelta) or (isinstance(delta, Finished) and delta.finish == "content_filter"):
                self._is_open = True  # it says why it will not


def ending(answer: Sequence[Delta]) -> Finished | None:
    return next((delta for delta in answer if isinstance(delta, Finished)), None)


def costing(batch: list[Delta], before: Usage | None) -> list[Delta]:
    """The batch, its cost with that of what was asked `before`."""
    if before is None or not isinstance(last := batch[-1] if batch else None, Finished):
        return batch
    return [*batch[:-1], Finished(last.finish, before if last.usage is None else before + last.usage, is_sum=True)]
