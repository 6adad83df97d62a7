"""Reading the log of a run: operations on a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antwort.api.items import OutputItem
from antwort.api.payload import LARGE, PIECE
from antwort.identity import Identity
from antwort.runs import statements as sql
from antwort.runs.codec import behind, is_last, to_events, with_output
from antwort.runs.dialects import now
from antwort.runs.packed import LargeRecords
from antwort.runs.packing import unpacked
from antwort.runs.writing import named, opening_of
from antwort.storage import sql_responses as stored
from antwort.storage.database import Connection
from antwort.storage.rows import name_of, to_output, to_response
from antwort.storage.run_log import Lease, Load, Outline, Record

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
    sizes, is_full = _sizes(connection, key, at, has_ended=bool(is_kept))
    count = len(sizes)
    if count == 1 and sizes[0] > LARGE:
        whole = [_large(connection, key, at, response_id, shared)]
    else:
        whole = _complete(connection, key, records(connection, key, at, count))
    behind_them = whole[-1].at + 1 if whole else at
    is_over = is_last(whole[-1]) if whole else bool(is_kept)
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
    piece = Record(place, first, unpacked(raw, lambda: opening_of(connection, key)))
    (shared[name],) = (record,) = _complete(connection, key, [piece])
    return record


def _complete(connection: Connection, key: int, found: list[Record]) -> list[Record]:
    """With the output that the end of a run is stored without."""
    if not (found and is_last(found[-1])):
        return found
    *others, last = found

    def output() -> list[OutputItem]:
        return [to_output(raw) for (raw,) in connection.execute(stored.OUTPUT, (key,))]

    return [*others, Record(last.at, last.first, with_output(last.events, output))]


def _sizes(connection: Connection, key: int, at: int, *, has_ended: bool) -> tuple[list[int], bool]:
    """Of the records from that place on that make a piece, and whether there may be more. A large one is a piece of its
    own. SQLite reads a record to tell its size: none is looked at beyond the first that does not fit.
    """
    sizes: list[int] = []
    total = 0
    for (size,) in connection.execute(sql.SIZES, {"key": key, "at": at, "limit": AT_ONCE}):
        total += size
        if sizes and (total > PIECE or size > LARGE or sizes[0] > LARGE):
            return sizes, True
        sizes.append(size)
    if not has_ended or not sizes or len(sizes) == AT_ONCE:
        return sizes, len(sizes) == AT_ONCE
    output = connection.execute(sql.OUTPUT_SIZE, {"key": key}).fetchone()[0]  # the last one is read with it
    if len(sizes) > 1 and (total + output > PIECE or sizes[-1] + output > LARGE):
        return sizes[:-1], True
    return [*sizes[:-1], sizes[-1] + output], False


def _large(connection: Connection, key: int, at: int, response_id: str, shared: LargeRecords) -> Record:
    record = shared.get((response_id, at))
    if record is None:
        (record,) = _complete(connection, key, records(connection, key, at, 1))
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
    if after < 0:  # SQLite would read the whole log to find that there is none
        return 0
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
