"""What is said so far, and what of it is sent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from antwort.chat.answer import Answer, Called

Item: TypeAlias = dict[str, object] | msgspec.Raw

_FORGOTTEN = frozenset({"previous_response_not_found", "response_not_found"})


@dataclass(slots=True, frozen=True)
class Decided:
    """A call that waited to be approved, and what was said to it."""

    call: Called
    is_approved: bool


Asked: TypeAlias = str | Sequence[Decided]
"""What somebody says: words, or what becomes of calls."""


def in_words(asked: Asked) -> str:
    if isinstance(asked, str):
        return asked
    return "\n".join(f"{'approved' if each.is_approved else 'denied'}: {each.call.title}" for each in asked)


def _items(asked: Asked) -> list[Item]:
    if isinstance(asked, str):
        return [{"type": "message", "role": "user", "content": asked}]
    kind = "mcp_approval_response"
    return [{"type": kind, "approval_request_id": each.call.approval, "approve": each.is_approved} for each in asked]


@dataclass(slots=True)
class Conversation:
    """`previous` is the last response that came to its end: what failed or was cancelled is not gone on from."""

    model: str | None = None
    labels: list[str] = field(default_factory=list)
    """The toolsets that the model may use."""
    system: str = ""
    turns: list[tuple[str, Answer]] = field(default_factory=list)
    """All that was asked, with its answer, for the transcript."""
    _previous: str | None = None
    _items: list[Item] = field(default_factory=list)
    _is_kept: bool = True
    """Whether the server keeps what was said; otherwise all of it is sent each time."""

    def request(self, asked: Asked) -> dict[str, object]:
        said = _items(asked)
        body: dict[str, object] = {"stream": True, "input": said}
        if self.model:
            body["model"] = self.model
        if self.system:
            body["instructions"] = self.system
        if self.labels:
            body["tools"] = [_offered(label) for label in self.labels]
        if self._previous and self._is_kept:
            body["previous_response_id"] = self._previous
        elif self._items:
            body["input"] = [*self._items, *said]
        return body

    def note(self, asked: Asked, answer: Answer) -> None:
        """The turn is over. It counts for what follows if it came to its end."""
        self.turns.append((in_words(asked), answer))
        if answer.status in ("completed", "incomplete"):
            self._items += [*_items(asked), *answer.output]
            self._previous = answer.response_id or None
            self._is_kept = self._is_kept and self._previous is not None

    def forgotten(self, code: str, param: str) -> bool:
        """Whether an error says that the server has lost what was said before; from then on all of it is sent."""
        is_lost = self._is_kept and self._previous is not None
        is_lost = is_lost and (code in _FORGOTTEN or param == "previous_response_id")
        self._is_kept = self._is_kept and not is_lost
        return is_lost

    def begin_anew(self) -> None:
        self.turns, self._items, self._previous, self._is_kept = [], [], None, True

    def switch(self, label: str, *, on: bool) -> None:
        if on and label not in self.labels:
            self.labels.append(label)
        elif not on and label in self.labels:
            self.labels.remove(label)


def _offered(label: str) -> dict[str, object]:
    return {"type": "mcp", "server_label": label, "require_approval": "never"}
