"""The transitions between statuses. Every status is checked here before it is written."""

from __future__ import annotations

from typing import Literal, TypeAlias

ResponseStatus: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled", "requires_action"
]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
CallStatus: TypeAlias = Literal["in_progress", "calling", "completed", "incomplete", "failed"]

FINAL: frozenset[ResponseStatus] = frozenset({"completed", "incomplete", "failed", "cancelled", "requires_action"})
EXTENDS_CONVERSATION: frozenset[ResponseStatus] = frozenset({"completed", "requires_action", "incomplete"})
"""Statuses of responses that are added to their conversation."""
_NEXT: dict[ResponseStatus, frozenset[ResponseStatus]] = {
    "queued": frozenset({"in_progress", "cancelled"}),
    "in_progress": FINAL,
}
_ITEM_FINAL = frozenset({"completed", "incomplete", "failed"})


class IllegalTransition(AssertionError):
    """A defect in our code, which no request should cause."""


def transition(old: ResponseStatus, new: ResponseStatus) -> ResponseStatus:
    """Return `new`. Raises `IllegalTransition` if a response must not change to it from `old`."""
    if old != new and new not in _NEXT.get(old, ()):
        raise IllegalTransition(f"a response cannot go from {old} to {new}")
    return new


def close(old: CallStatus, new: CallStatus) -> CallStatus:
    """Return `new`. Raises `IllegalTransition` if an item in `old` must not end as it: finished items never change."""
    if old in _ITEM_FINAL or new not in _ITEM_FINAL:
        raise IllegalTransition(f"an item cannot go from {old} to {new}")
    return new
