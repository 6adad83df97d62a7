"""One page of the responses in a SQLite file: from a place in the index, never by counting from the start.

The index goes by status first, so that a rare one is found among many others at once; a list of several statuses, or
of all, is put together from one short list of each.
"""

from __future__ import annotations

import sqlite3
from typing import TypeAlias, get_args

from antwort.api.responses import Response
from antwort.api.status import ResponseStatus
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import Page, ResponsePage, Wanted
from antwort.storage.rows import to_response
from antwort.storage.rules import no_such, starts_at_front

Values: TypeAlias = dict[str, str | int]
Place: TypeAlias = tuple[int, int]
"""When a response was created, and its key."""

_ALL: tuple[ResponseStatus, ...] = get_args(ResponseStatus)


def list_responses(connection: sqlite3.Connection, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
    """One more is looked for than is shown, to know whether there are more; a page from its end is read backwards."""
    values: Values = {"tenant": identity.tenant, "owner": identity.owner, "limit": page.limit + 1}
    terms = _bounds(connection, page, values)
    if wanted.model is not None:
        terms.append("model = :model")
        values["model"] = wanted.model
    forwards = starts_at_front(page)
    is_rising = (page.order == "asc") == forwards
    query = sql.LISTED.format(terms="".join(f" AND {term}" for term in terms), order="ASC" if is_rising else "DESC")
    places: list[Place] = []
    for status in wanted.statuses or _ALL:
        places += connection.execute(query, values | {"status": status})
    places.sort(reverse=not is_rising)
    chosen = [_response(connection, key) for _, key in places[: page.limit]]
    return ResponsePage(responses=tuple(chosen if forwards else reversed(chosen)), has_more=len(places) > page.limit)


def _bounds(connection: sqlite3.Connection, page: Page, values: Values) -> list[str]:
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


def _response(connection: sqlite3.Connection, key: int) -> Response:
    (body,) = connection.execute(sql.BODY_AT, (key,)).fetchone()
    return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])
