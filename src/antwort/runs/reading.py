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
from antwort.runs.writing import named
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
    packed: int | None = None
    """The log is packed, and has so many bytes: it is read by `piece`."""
    whole: Sequence[Record] = ()
    """The records as they were read. Who reads a large one shares it with others as long as this is held."""


def look(
    connection: Connection,
    identity: Identity,
    response_id: str,
    after: int,
    at: int | None,
    shared: LargeRecords,
) -> Look | None:
    """From the place `at` on, or from where the event behind `after` is. None: no log is kept."""
    row = connection.execute(sql.LOG, name_of(identity, response_id)).fetchone()
    if row is None:
        return None
    key, packed, is_open, is_kept = row
    if packed is not None:
        return Look(key, [], 0, is_over=True, packed=packed)
    if not is_open and not is_kept:
        return None
    start = _place(connection, key, after) if at is None else at
    sizes = connection.execute(sql.SIZES, {"key": key, "at": start, "limit": AT_ONCE}).fetchall()
    count = _fitting([size for (size,) in sizes])
    if sizes and sizes[0][0] > LARGE:
        whole = [_large(connection, key, start, response_id, shared)]
    else:
        whole = records(connection, key, start, count)
    behind_them = whole[-1].at + 1 if whole else start
    is_over = is_last(whole[-1]) if whole else bool(is_kept)
    return Look(
        key, behind(whole, after), behind_them, is_over, is_full=count < len(sizes) or count == AT_ONCE, whole=whole
    )


def _fitting(sizes: Sequence[int]) -> int:
    """How many records of these sizes make a piece. A large one is a piece of its own."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and (total > PIECE or size > LARGE):
            return count
    return len(sizes)


def _large(connection: Connection, key: int, at: int, response_id: str, shared: LargeRecords) -> Record:
    record = shared.get((response_id, at))
    if record is None:
        (record,) = records(connection, key, at, 1)
        shared[response_id, at] = record
    return record


def piece(connection: Connection, key: int, start: int, size: int) -> bytes:
    """A slice of a packed log; nothing: it is not kept any more."""
    row = connection.execute(sql.PIECE, {"key": key, "start": start + 1, "size": size}).fetchone()
    return b"" if row is None else bytes(row[0])


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
