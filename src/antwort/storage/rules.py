"""Rules that all stores apply. Pure.

They say which status may follow which, which part of a list is a page, which part of a history is within a bound and in
which pieces it is read, and which tools of a server are writing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from antwort.api.items import is_additional
from antwort.api.resources import Approval
from antwort.api.responses import Response, ResponseError
from antwort.api.status import FINAL, IllegalTransition, ResponseStatus, transition
from antwort.api.wire import encode, replace
from antwort.errors import InvalidField
from antwort.storage.base import (
    LARGEST_PAGE,
    SEEN_AGAIN_SECONDS,
    WRITING_TOOLS_PER_SERVER,
    Bound,
    HistoryTooLarge,
    Link,
    Page,
)

T = TypeVar("T")

PIECE_BYTES = 2**22
"""Bytes of a history that one operation on a database reads, about: others wait for the reader, too."""
DECLARED_BYTES = 2**22
"""Size up to which declared tools are read beside a history that is cut: the newest of them."""
_LONGEST_QUOTE = 100
"""Characters of an id that an error repeats to the client."""
ALL_TOOLS = ""
"""Stands for every tool of a server. No tool has this name."""


# ---- status ----


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


# ---- histories ----


def first_within(sizes: Sequence[tuple[int, bool]], bound: Bound | None) -> int | HistoryTooLarge:
    """Return the index of the first part of a history that is read, or why none is. `sizes` has, for each part from the
    oldest on, its bytes and whether it has a compaction.
    """
    total = sum(size for size, _ in sizes)
    if bound is None or total <= bound.most:
        return 0
    recent = 0
    for index in reversed(range(len(sizes))):
        size, is_compacted = sizes[index]
        if recent + size > bound.most and bound.cut == "oldest":
            return index + 1 if recent else HistoryTooLarge(total, size)
        recent += size
        if is_compacted:
            if recent <= bound.most and bound.cut != "never":
                return index
            break
    return HistoryTooLarge(total, recent)


def newest_within(sizes: Sequence[int], limit: int) -> int:
    """Return the index from which on all sizes together are at most `limit`."""
    first = len(sizes)
    while first and sizes[first - 1] <= limit:
        first -= 1
        limit -= sizes[first]
    return first


def in_pieces(sizes: Sequence[int], limit: int) -> Iterator[range]:
    """Yield ranges of indices, each of at most `limit` bytes unless it is a single index."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            yield range(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def declaring_links(links: Iterable[Link]) -> list[Link]:
    """Return the newest links that declare tools in items, up to `DECLARED_BYTES`, with nothing but those items."""
    declaring: list[Link] = []
    for link in links:
        if items := tuple(filter(is_additional, link.input)):
            response = replace(link.response, output=())
            declaring.append(Link(response=response, request=link.request, input=items, turn_ends=()))
    return declaring[newest_within([len(encode(link.input)) for link in declaring], DECLARED_BYTES) :]


# ---- pages ----


def no_such(param: str, cursor: str) -> InvalidField:
    return InvalidField(param, f"there is nothing with id {cursor[:_LONGEST_QUOTE]!r} in this list.")


def take_page(found: Iterable[T], page: Page, size_of: Callable[[T], int] = lambda _: 0) -> tuple[tuple[T, ...], bool]:
    """Return what of `found` is on the page, in its order, and whether there is more. `found` starts at the front of
    the page, or at its end if it is read from there.
    """
    chosen: list[T] = []
    size = 0
    has_more = False
    for each in found:
        if has_more := len(chosen) == page.limit or size >= LARGEST_PAGE:
            break
        chosen.append(each)
        size += size_of(each)
    return tuple(chosen if page.is_forward else reversed(chosen)), has_more


def select_page(
    found: Sequence[T],
    page: Page,
    id_of: Callable[[T], str],
    *,
    fits: Callable[[T], bool] = lambda _: True,
    size_of: Callable[[T], int] = lambda _: 0,
) -> tuple[tuple[T, ...], bool]:
    """Return the page out of a whole list, which has the oldest first, and whether there is more."""
    ordered = found if page.order == "asc" else found[::-1]
    ids = [id_of(each) for each in ordered]

    def places(param: str, cursor: str) -> list[int]:
        if indices := [index for index, each in enumerate(ids) if each == cursor]:
            return indices
        raise no_such(param, cursor)

    # An id may stand in a list twice: then `after` means its last place, so that paging moves on.
    start = 0 if page.after is None else places("after", page.after)[-1] + 1
    end = len(ids) if page.before is None else places("before", page.before)[0]
    window = [each for each in ordered[start:end] if fits(each)]
    return take_page(window if page.is_forward else reversed(window), page, size_of)


def approval_size(approval: Approval) -> int:
    return len(approval.arguments.encode())


# ---- writing tools ----


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
