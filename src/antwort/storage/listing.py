"""One page of the responses in a database: from a place in the index, never by counting from the start.

The index goes by status first, so that a rare one is found among many others at once; a list of several statuses, or
of all, is put together from one short list of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, get_args

from antwort.api.responses import Response
from antwort.api.status import ResponseStatus
from antwort.db import Connection
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import LARGEST_PAGE, Page, ResponsePage, Wanted
from antwort.storage.rows import to_response
from antwort.storage.rules import no_such, starts_at_front

Values: TypeAlias = dict[str, str | int]

_ALL: tuple[ResponseStatus, ...] = get_args(ResponseStatus)


class Listed(NamedTuple):
    page: ResponsePage
    damaged: tuple[str, ...] = ()
    """The ids of those that stand there and could not be read."""


def list_responses(connection: Connection, identity: Identity, page: Page, wanted: Wanted) -> Listed:
    """A page from its end is read backwards."""
    forwards = starts_at_front(page)
    places = _places(connection, identity, page, wanted, is_rising=(page.order == "asc") == forwards)
    chosen: list[Response] = []
    damaged: list[str] = []
    size = 0
    has_more = False
    for key in places:
        has_more = len(chosen) == page.limit or size >= LARGEST_PAGE
        if has_more:
            break
        response_id, body, output = _row(connection, key)
        try:
            chosen.append(to_response(body, output))
        except StoreFault:
            damaged.append(response_id)
        else:
            size += len(body) + sum(map(len, output))
    responses = tuple(chosen if forwards else reversed(chosen))
    return Listed(ResponsePage(responses=responses, has_more=has_more), tuple(damaged))


def _places(
    connection: Connection, identity: Identity, page: Page, wanted: Wanted, *, is_rising: bool
) -> Iterator[int]:
    """The keys of all that fit, in order. As many are looked up at once as a page needs, and one more."""
    values: Values = {"tenant": identity.tenant, "owner": identity.owner, "limit": page.limit + 1}
    terms = _bounds(connection, page, values)
    if wanted.model is not None:
        terms.append("model = :model")
        values["model"] = wanted.model
    beyond = f"(created_at, key) {'>' if is_rising else '<'} (:last_at, :last_key)"
    found: list[tuple[int, int]] = []
    while True:
        query = sql.LISTED.format(terms="".join(f" AND {term}" for term in terms), order="ASC" if is_rising else "DESC")
        found.clear()
        for status in wanted.statuses or _ALL:
            found += connection.execute(query, values | {"status": status})
        found.sort(reverse=not is_rising)
        yield from (key for _, key in found[: page.limit + 1])
        if len(found) <= page.limit:
            return
        values |= {"last_at": found[page.limit][0], "last_key": found[page.limit][1]}
        terms = [*(term for term in terms if term != beyond), beyond]


def _bounds(connection: Connection, page: Page, values: Values) -> list[str]:
    """The places of `after` and `before`, as terms. What the rows hold is compared: an id says nothing of its place."""
    terms = []
    for param, cursor, beyond in (("after", page.after, ">"), ("before", page.before, "<")):
        if cursor is None:
            continue
        row = connection.execute(sql.PLACE, values | {"id": cursor}).fetchone()
        if row is None:
            raise no_such(param, cursor)
        values |= {f"{param}_at": row[0], f"{param}_key": row[1]}
        sign = beyond if page.order == "asc" else {">": "<", "<": ">"}[beyond]
        terms.append(f"(created_at, key) {sign} (:{param}_at, :{param}_key)")
    return terms


def _row(connection: Connection, key: int) -> tuple[str, bytes, list[bytes]]:
    """The id, the body and the output of a response."""
    response_id, body = connection.execute(sql.BODY_AT, (key,)).fetchone()
    return response_id, body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))]
