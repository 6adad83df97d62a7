"""Which part of a history is read, and in which pieces; which part of a list is a page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from antwort.api.items import is_additional
from antwort.api.wire import encode, replace
from antwort.storage.base import LARGEST_PAGE, Bound, HistoryTooLarge, Link, Page

T = TypeVar("T")

PIECE_BYTES = 2**22
"""Bytes of a history that one operation on a database reads, about: others wait for the reader, too."""
DECLARED_BYTES = 2**22
"""Size up to which declared tools are read beside a history that is cut: the newest of them."""


def first_within(sizes: Sequence[tuple[int, bool]], bound: Bound | None) -> int:
    """Return the index of the first part of a history that is read. `sizes` has, for each part from the oldest on, its
    bytes and whether it has a compaction. Raises `HistoryTooLarge`.
    """
    total = sum(size for size, _ in sizes)
    if bound is None or total <= bound.most:
        return 0
    recent = 0
    for index in reversed(range(len(sizes))):
        size, is_compacted = sizes[index]
        if recent + size > bound.most and bound.cut == "oldest":
            if not recent:
                raise HistoryTooLarge(total, size)
            return index + 1
        recent += size
        if is_compacted:
            if recent <= bound.most and bound.cut != "never":
                return index
            break
    raise HistoryTooLarge(total, recent)


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
