"""What every store decides alike: which status may be written, and which part of a list is a page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from antwort.api.approvals import Approval
from antwort.api.events import Mark, Span, TurnAbandoned, TurnEnded
from antwort.api.responses import Response, ResponseError
from antwort.api.status import FINAL, IllegalTransition, ResponseStatus, transition
from antwort.api.wire import encode, replace
from antwort.errors import InvalidField
from antwort.storage.base import (
    LARGEST_PAGE,
    ApprovalPage,
    Page,
    ResponsePage,
    Wanted,
)

_LONGEST = 100
"""As much of a client's own text as is worth repeating to it."""


def check_beginning(status: ResponseStatus) -> None:
    if status in FINAL:
        raise IllegalTransition(f"a response cannot begin as {status}")


def check_running(status: ResponseStatus) -> None:
    if status != "in_progress":
        raise IllegalTransition(f"a response that is {status} does not go on")


def check_ending(old: ResponseStatus, new: ResponseStatus) -> None:
    """An outcome is written once: unlike a transition, staying in a final status is not allowed here."""
    if old in FINAL or new not in FINAL:
        raise IllegalTransition(f"a response cannot end as {new} from {old}")
    transition(old, new)


def failed(response: Response, message: str) -> Response:
    """The response of a run that nobody will go on with. A queued one has to start before it can fail."""
    status = response.status if response.status != "queued" else transition(response.status, "in_progress")
    error = ResponseError(code="server_error", message=message)
    return replace(response, status=transition(status, "failed"), error=error, completed_at=None)


def turn_ends(marks: Iterable[tuple[int, Mark]]) -> tuple[int, ...]:
    return tuple(count for count, mark in marks if isinstance(mark, TurnEnded))


def abandoned(marks: Iterable[tuple[int, Mark]]) -> tuple[Span, ...]:
    return tuple((mark.start, count) for count, mark in marks if isinstance(mark, TurnAbandoned))


def cycle() -> InvalidField:
    return InvalidField("previous_response_id", "the chain of responses before it comes back to itself.")


def in_pieces(sizes: Sequence[int], most: int) -> Iterator[range]:
    """The places, parted so that no piece has more than so many bytes, unless it is one place."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield range(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def select(ids: Sequence[str], page: Page) -> tuple[range, bool]:
    """The places in `ids` that are on the page, in its order, and whether there are more beyond."""
    window = _between(ids, page)
    chosen = window[: page.limit] if starts_at_front(page) else window[-page.limit :]
    return chosen, len(window) > len(chosen)


def select_responses(responses: Sequence[Response], page: Page, wanted: Wanted) -> ResponsePage:
    """The page out of all that there are, the oldest first."""
    places = _between([response.id for response in responses], page)
    window = [responses[place] for place in places if wanted.fits(responses[place])]
    forwards = starts_at_front(page)
    chosen = (window if forwards else window[::-1])[: page.limit]
    chosen = chosen[: within_size(len(encode(response)) for response in chosen)]
    return ResponsePage(responses=tuple(chosen if forwards else reversed(chosen)), has_more=len(window) > len(chosen))


def select_approvals(approvals: Sequence[Approval], page: Page, fits: Callable[[Approval], bool]) -> ApprovalPage:
    """The page out of all that there are, the oldest first."""
    places = _between([approval.id for approval in approvals], page)
    window = [approvals[place] for place in places if fits(approvals[place])]
    forwards = starts_at_front(page)
    chosen = (window if forwards else window[::-1])[: page.limit]
    chosen = chosen[: within_size(map(size_of, chosen))]
    return ApprovalPage(approvals=tuple(chosen if forwards else reversed(chosen)), has_more=len(window) > len(chosen))


def size_of(approval: Approval) -> int:
    return len(approval.arguments.encode())


def within_size(sizes: Iterable[int]) -> int:
    """How many from the first on a page may hold."""
    count = total = 0
    for size in sizes:
        count, total = count + 1, total + size
        if total >= LARGEST_PAGE:
            break
    return count


def starts_at_front(page: Page) -> bool:
    """With `before` alone it is the page that ends there; otherwise the page starts at the first, or at `after`."""
    return page.before is None or page.after is not None


def no_such(param: str, cursor: str) -> InvalidField:
    return InvalidField(param, f"there is nothing with id {cursor[:_LONGEST]!r} in this list.")


def _between(ids: Sequence[str], page: Page) -> range:
    """The places from `after` to `before`, in the order of the page.

    An id may stand in a list twice: then `after` means its last place, so that paging moves on.
    """
    places = range(len(ids)) if page.order == "asc" else range(len(ids) - 1, -1, -1)
    start, end = 0, len(places)
    if page.after is not None:
        start = _places(ids, places, page.after, "after")[-1] + 1
    if page.before is not None:
        end = _places(ids, places, page.before, "before")[0]
    return places[start:end]


def _places(ids: Sequence[str], places: range, cursor: str, param: str) -> list[int]:
    if found := [at for at, place in enumerate(places) if ids[place] == cursor]:
        return found
    raise no_such(param, cursor)
