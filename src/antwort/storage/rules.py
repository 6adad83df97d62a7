"""Rules that all stores apply: which status may follow which, and which tools of a server are writing. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from antwort.api.responses import Response, ResponseError
from antwort.api.status import FINAL, IllegalTransition, ResponseStatus, transition
from antwort.api.wire import replace
from antwort.errors import InvalidField
from antwort.storage.base import SEEN_AGAIN_SECONDS, WRITING_TOOLS_PER_SERVER

ALL_TOOLS = ""
"""Stands for every tool of a server. No tool has this name."""


def check_beginning(status: ResponseStatus) -> None:
    if status in FINAL:
        raise IllegalTransition(f"a response cannot begin as {status}")


def check_running(status: ResponseStatus) -> None:
    if status != "in_progress":
        raise IllegalTransition(f"a response that is {status} does not go on")


def check_ending(old: ResponseStatus, new: ResponseStatus) -> None:
    """Raise unless `new` is an outcome and `old` is not: an outcome is written once."""
    if old in FINAL or new not in FINAL:
        raise IllegalTransition(f"a response cannot end as {new} from {old}")
    transition(old, new)


def failed(response: Response, message: str) -> Response:
    """Return the response of a run that will not be continued. A queued one has to start before it can fail."""
    status = response.status if response.status != "queued" else transition(response.status, "in_progress")
    error = ResponseError(code="server_error", message=message)
    return replace(response, status=transition(status, "failed"), error=error, completed_at=None)


def cycle() -> InvalidField:
    return InvalidField("previous_response_id", "the chain of responses before it comes back to itself.")


class WritingTools(NamedTuple):
    """The tools that a server has listed as writing, and when it was listed last."""

    names: frozenset[str] = frozenset()
    seen_at: int = 0

    def has(self, names: Collection[str], now: int) -> bool:
        """Return whether there is nothing new to write."""
        is_old = bool(self.names) and now - self.seen_at >= SEEN_AGAIN_SECONDS
        return not is_old and (ALL_TOOLS in self.names or self.names.issuperset(names))

    def with_names(self, names: Collection[str], now: int) -> WritingTools:
        more = self.names.union(names)
        if ALL_TOOLS in self.names or len(more) > WRITING_TOOLS_PER_SERVER:
            more = frozenset({ALL_TOOLS})
        return WritingTools(more, now)

    def counted(self) -> frozenset[str] | None:
        """Return the names; None when every tool counts as writing."""
        return None if ALL_TOOLS in self.names else self.names
