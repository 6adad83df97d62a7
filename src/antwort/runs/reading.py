"""Reading the log of a run: operations on a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antwort.api.payload import LARGE, PIECE
from antwort.db.base import Connection
from antwort.identity import Identity
from antwort.runs import statements as sql
from antwort.runs.base import Lease, Load, Outline, Record
from antwort.runs.codec import behind, is_last, to_events
from antwort.runs.dialects import now
from antwort.runs.packed import LargeRecords
from antwort.runs.packing import unpacked
from antwort.runs.writing import named, opening_of
from antwort.storage.rows import name_of, to_response

AT_ONCE = 256
"""Records that are read in one go."""
ALL = 2**31 - 1


class Look(NamedTuple):
    """What is there, from some place of the log on."""

    key: int
    records: list[Record]
    at: int
    """The place behind them."""
    is_over: bool
    """There is nothing behind them, and there never will be."""
    is_full: bool = False
    """There may be more behind them already."""
    is_packed: bool = False
    """They are pieces of a packed log, which has other places."""
    whole: Sequence[Record] = ()
    """The records as they were read. Others share them as long as this is held."""


class From(NamedTuple):
    """Where it is read on."""

    after: int
    """Behind the event of this number."""
    at: int | None = None
    """At this place of the log, if that is known."""
    is_packed: bool = False
    """Whether it is a place of a packed log."""


def look(
    connection: Connection, identity: Identity, response_id: str, start: From, shared: LargeRecords
) -> Look | None:
    """About so much as is read in one piece. None: no log is kept."""
    row = connection.execute(sql.LOG, name_of(identity, response_id)).fetchone()
    if row is None:
        return None
    key, is_packed, is_open, is_kept = row
    if not is_open and not is_kept:
        return None
    at = start.at if start.is_packed == bool(is_packed) else None
    if at is None:
        at = _place(connection, key, start.after)
    if is_packed:
        record = _piece(connection, key, at, response_id, shared)
        is_over = record is None or is_last(record)
        whole = [] if record is None else [record]
        found = behind(whole, start.after)
        return Look(key, found, at + 1, is_over, is_full=not is_over, is_packed=True, whole=whole)
    sizes = connection.execute(sql.SIZES, {"key": key, "at": at, "limit": AT_ONCE}).fetchall()
    count = _fitting([size for (size,) in sizes])
    if count == 1 and sizes[0][0] > LARGE:
        whole = [_large(connection, key, at, response_id, shared)]
    else:
        whole = records(connection, key, at, count)
    behind_them = whole[-1].at + 1 if whole else at
    is_over = is_last(whole[-1]) if whole else bool(is_kept)
    is_full = count < len(sizes) or count == AT_ONCE
    return Look(key, behind(whole, start.after), behind_them, is_over, is_full=is_full, whole=whole)


def _piece(connection: Connection, key: int, at: int, response_id: str, shared: LargeRecords) -> Record | None:
    """Of a packed log: the first stands with the log, and the others where its records were."""
    name = (response_id, -1 - at)  # which is no place of a record
    if (record := shared.get(name)) is not None:
        return record
    if at == 0:
        row = connection.execute(sql.PACKED, {"key": key}).fetchone()
    else:
        row = connection.execute(sql.RECORDS, {"key": key, "at": at, "limit": 1}).fetchone()
    if row is None:
        return None
    place, first, raw = row
    shared[name] = record = Record(place, first, unpacked(raw, lambda: opening_of(connection, key)))
    return record


def _fitting(sizes: Sequence[int]) -> int:
    """How many records of these sizes make a piece. A large one is a piece of its own."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and (total > PIECE or size > LARGE or sizes[0] > LARGE):
            return count
    return len(sizes)


def _large(connection: Connection, key: int, at: int, response_id: str, shared: LargeRecords) -> Record:
    record = shared.get((response_id, at))
    if record is None:
        (record,) = records(connection, key, at, 1)
        shared[response_id, at] = record
    return record


def sent(connection: Connection, identity: Identity, response_id: str) -> int:
    row = connection.execute(sql.SENT, name_of(identity, response_id)).fetchone()
    if row is None:
        return 0
    key, behind_last = row
    if behind_last is None and (packed := _piece(connection, key, 0, response_id, {})) is not None:
        return packed.next  # it is all there is
    return behind_last or 0


def outline(connection: Connection, identity: Identity, response_id: str) -> Outline | None:
    row = connection.execute(sql.OUTLINE, name_of(identity, response_id)).fetchone()
    return None if row is None else Outline(response=to_response(row[0]), has_log=bool(row[1]))


def _place(connection: Connection, key: int, after: int) -> int:
    """Of the record that holds the event with that number."""
    row = connection.execute(sql.PLACE, {"key": key, "after": after}).fetchone()
    return 0 if row is None else int(row[0])


def records(connection: Connection, key: int, at: int = 0, limit: int = AT_ONCE) -> list[Record]:
    rows = connection.execute(sql.RECORDS, {"key": key, "at": at, "limit": limit}).fetchall()
    return [Record(place, first, to_events(raw)) for place, first, raw in rows]


def whole(connection: Connection, lease: Lease) -> list[Record] | None:
    """None: another has the run."""
    if connection.execute(sql.HOLD, named(lease)).fetchone() is None:
        return None
    return records(connection, lease.key, limit=ALL)


def has_log(connection: Connection, identity: Identity, response_id: str) -> bool:
    row = connection.execute(sql.HAS_LOG, name_of(identity, response_id)).fetchone()
    return row is not None


def is_busy(connection: Connection, identity: Identity, conversation_id: str) -> bool:
    values = {"tenant": identity.tenant, "owner": identity.owner, "conversation_id": conversation_id}
    return connection.execute(sql.IS_BUSY, values).fetchone() is not None


def load(connection: Connection) -> Load:
    count, held, first = connection.execute(sql.LOAD).fetchone()
    oldest = 0.0 if first is None else max(now(connection) - first, 0.0)
    return Load(queued=count - held, running=held, oldest=oldest)
