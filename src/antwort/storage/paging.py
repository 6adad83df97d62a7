"""Pages of lists: what fits on one, and where in an index it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from antwort.api.approvals import Approval
from antwort.errors import InvalidField
from antwort.storage.base import LARGEST_PAGE, Page
from antwort.storage.database import Connection, Value

T = TypeVar("T")

_LONGEST_QUOTE = 100
"""Characters of an id that an error repeats to the client."""


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


def sql_order(page: Page) -> str:
    """Return the direction in which rows are read: a page that ends at `before` is read backwards."""
    return "ASC" if (page.order == "asc") == page.is_forward else "DESC"


def page_terms(connection: Connection, page: Page, columns: Sequence[str], place: str, values: dict[str, Value]) -> str:
    """Return the conditions for rows between `after` and `before`, by places in an index: a page is never found by
    counting from the start. `place` selects the columns of the row whose id is `:cursor`; what it finds is added to
    `values`.
    """
    terms = ""
    for param, cursor, is_beyond in (("after", page.after, True), ("before", page.before, False)):
        if cursor is None:
            continue
        is_greater = (page.order == "asc") == is_beyond
        # An id may stand in a list twice: then `after` means its last place, so that paging moves on.
        query = place.format(last_first="DESC" if is_greater else "ASC")
        row = connection.execute(query, {**values, "cursor": cursor}).fetchone()
        if row is None:
            raise no_such(param, cursor)
        names = [f"{param}_{column}" for column in columns]
        values |= zip(names, row, strict=True)
        terms += f" AND ({', '.join(columns)}) {'>' if is_greater else '<'} ({', '.join(f':{each}' for each in names)})"
    return terms
