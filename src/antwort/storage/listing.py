"""One page of the responses in a SQLite file: from a place in the index, never by counting from the start."""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

from antwort.api.responses import Response
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import Page, ResponsePage, Wanted
from antwort.storage.rows import to_response
from antwort.storage.rules import no_such, starts_at_front

Values: TypeAlias = dict[str, str | int]


def list_responses(connection: sqlite3.Connection, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
    """One more is read than is shown, to know whether there are more; a page from its end is read backwards."""
    values: Values = {"tenant": identity.tenant, "owner": identity.owner, "limit": page.limit + 1}
    terms = _bounds(connection, page, values) + _fits(wanted, values)
    forwards = starts_at_front(page)
    order = "ASC" if (page.order == "asc") == forwards else "DESC"
    query = sql.LISTED.format(terms="".join(f" AND {term}" for term in terms), order=order)
    rows = connection.execute(query, values).fetchall()
    chosen = [_response(connection, *row) for row in rows[: page.limit]]
    return ResponsePage(responses=tuple(chosen if forwards else reversed(chosen)), has_more=len(rows) > page.limit)


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


def _fits(wanted: Wanted, values: Values) -> list[str]:
    terms = []
    if wanted.model is not None:
        terms.append("model = :model")
        values["model"] = wanted.model
    if wanted.statuses:
        names = {f"status_{at}": status for at, status in enumerate(wanted.statuses)}
        terms.append(f"status IN ({', '.join(f':{name}' for name in names)})")
        values |= names
    return terms


def _response(connection: sqlite3.Connection, key: int, body: bytes) -> Response:
    return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])
