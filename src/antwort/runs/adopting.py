"""Runs of the foreground that become durable: an operation on a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from antwort.api.status import FINAL
from antwort.identity import Identity
from antwort.runs import notices
from antwort.runs import statements as sql
from antwort.runs.claiming import counts_alone
from antwort.runs.codec import from_identity
from antwort.runs.dialects import notify, now
from antwort.runs.writing import Row, conversation_of
from antwort.storage.database import Connection, Value, Values
from antwort.storage.rows import name_of, to_response
from antwort.storage.run_log import Lease


class Terms(NamedTuple):
    """What it takes to go on where it is."""

    has_room: bool | None
    """Whether the worker has a place for it; None: it needs none."""
    per_owner: int | None
    queue: int


class Adopted(NamedTuple):
    worker: str
    identity: Identity
    response_id: str
    rows: Sequence[Row]


Verdict: TypeAlias = Lease | int | Literal["gone", "waits", "busy"]
"""`gone`: it has ended, or another has it. `busy`: another process counts places right now. A number: as many wait as
may."""


def adopt(connection: Connection, new: Adopted, terms: Terms, sender: str) -> Verdict:
    name = name_of(new.identity, new.response_id)
    row = connection.execute(sql.TO_ADOPT, name).fetchone()
    if row is None:
        return "gone"
    key, status, maker, created_at, cancelled_at, body, holder, fence = row
    if fence is not None:  # it was adopted before: the commit had been made, and nobody heard of it
        return _written(connection, new, key, fence) if holder == new.worker else "gone"
    if status in FINAL or maker not in (None, new.worker):
        return "gone"
    place = _place(connection, name, terms)
    if place == "busy" or isinstance(place, int):
        return place
    values: Values = {
        **name,
        "key": key,
        "worker": new.worker if place == "held" else None,
        "identity": from_identity(new.identity),
        "begun_at": float(created_at),
        "is_cancelled": cancelled_at is not None,
        "conversation_id": conversation_of(to_response(body)),
    }
    connection.execute(sql.INSERT_ADOPTED, values)
    lease = _written(connection, new, key, 1)
    if place == "held":
        return lease
    notify(connection, notices.work(sender))
    return "waits"


def _written(connection: Connection, new: Adopted, key: int, fence: int) -> Lease:
    connection.executemany(sql.INSERT_RECORD, [(key, *of_record) for of_record in new.rows])
    return Lease(new.response_id, fence, new.worker, key)


def _place(connection: Connection, name: Mapping[str, Value], terms: Terms) -> int | Literal["held", "waits", "busy"]:
    if terms.has_room is None or (terms.has_room and terms.per_owner is None):
        return "held"
    if terms.has_room and terms.per_owner is not None:
        if not counts_alone(connection):
            return "busy"
        under_way = connection.execute(sql.UNDER_WAY, {**name, "now": now(connection)}).fetchone()[0]
        if int(under_way) < terms.per_owner:
            return "held"
    waiting = int(connection.execute(sql.WAITING).fetchone()[0])
    return waiting if waiting >= terms.queue else "waits"
