"""The records of runs in a database: a queue that appends them, and functions that read them piece by piece.

The log of a run that has ended is packed later. It has other records then, with the same events under the same numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from antwort.api.items import OutputItem
from antwort.api.payload import LARGE, PIECE
from antwort.errors import StoreFault
from antwort.storage.base import PackedLog
from antwort.storage.database import Connection, Database
from antwort.storage.event_codec import (
    compress,
    decode_events,
    decompress,
    encode_events,
    pack,
    with_output,
    without_output,
)
from antwort.storage.notifications import Notifications
from antwort.storage.rows import RowValues, to_output
from antwort.storage.run_log import EventRecord, Lease, Unavailable
from antwort.storage.sql_responses import INSERT_RECORD, OUTPUT, TRANSACTION_BYTES, UpdateRows, has_output, rest_of_log

_MAX_RECORDS = 256
"""In one piece."""
_ALL = 2**31 - 1

# ---- statements ----

# A run is held by its key, its id and its fence: another process may reuse the key of a deleted response.
HELD_BY = "SELECT 1 FROM runs WHERE response_key = :key AND id = :id AND fence = :fence"
_APPEND = """
    INSERT INTO run_events (response_key, at, first, next, events)
    SELECT response_key, :at, :first, :next, :events FROM runs WHERE response_key = :key AND id = :id AND fence = :fence
    ON CONFLICT DO NOTHING
"""
# PostgreSQL only: all waiting appends in one statement. The lock is what makes the fence hold: a claim skips a row that
# is locked here, and an append behind a claim sees its fence. Cancels do not need this lock, and all take it in one
# order, so that there are no deadlocks. The statement returns the appends whose fence held, new or repeated.
_APPEND_ALL = """
    WITH given AS (
        SELECT * FROM unnest(CAST(:keys AS bigint[]), CAST(:ids AS text[]), CAST(:fences AS bigint[]),
                             CAST(:ats AS integer[]), CAST(:firsts AS integer[]), CAST(:nexts AS integer[]),
                             CAST(:events AS bytea[]))
                      WITH ORDINALITY AS given (key, id, fence, at, first, next, events, place)
    ),
    held AS (
        SELECT given.* FROM given
        JOIN runs ON runs.response_key = given.key AND runs.id = given.id AND runs.fence = given.fence
        ORDER BY runs.response_key
        FOR KEY SHARE OF runs
    ),
    written AS (
        INSERT INTO run_events (response_key, at, first, next, events)
        SELECT key, at, first, next, events FROM held
        ON CONFLICT DO NOTHING
    )
    SELECT place - 1 FROM held
"""
# A record of a run that has ended.
_ENDED_RECORD = """
    SELECT events FROM run_events
    WHERE response_key = :key AND at = :at AND NOT EXISTS (SELECT 1 FROM runs WHERE response_key = :key)
"""
_LAST_RECORD = "SELECT at, first, events FROM run_events WHERE response_key = :key ORDER BY at DESC LIMIT 1"
_LOG = """
    SELECT responses.key, CASE WHEN run_logs.log IS NULL THEN 0 ELSE 1 END,
           CASE WHEN runs.response_key IS NULL THEN 0 ELSE 1 END,
           CASE WHEN run_logs.response_key IS NULL THEN 0 ELSE 1 END
    FROM responses
    LEFT JOIN runs ON runs.response_key = responses.key
    LEFT JOIN run_logs ON run_logs.response_key = responses.key
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.deleted_at IS NULL
"""
SENT = """
    SELECT key, (SELECT next FROM run_events WHERE response_key = responses.key ORDER BY at DESC LIMIT 1)
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
_SIZES = """
    SELECT length(events) FROM run_events WHERE response_key = :key AND at >= :at ORDER BY at LIMIT :limit
"""
_OUTPUT_SIZE = """
    SELECT coalesce(sum(length(raw)), 0) FROM items WHERE response_key = :key AND direction = 'output'
"""
_PLACE = """
    SELECT at FROM run_events WHERE response_key = :key AND first <= :after ORDER BY at DESC LIMIT 1
"""
_RECORDS = """
    SELECT at, first, events FROM run_events WHERE response_key = :key AND at >= :at ORDER BY at LIMIT :limit
"""
# The first piece of a packed log; the others are in the place of its records.
_PACKED = "SELECT 0, 0, log FROM run_logs WHERE response_key = :key AND log IS NOT NULL"
_UNPACKED = """
    SELECT run_logs.response_key, responses.id
    FROM run_logs JOIN responses ON responses.key = run_logs.response_key
    WHERE run_logs.log IS NULL AND run_logs.response_key > :after
    ORDER BY run_logs.response_key LIMIT :limit
"""
_IS_UNPACKED = "SELECT 1 FROM run_logs WHERE response_key = :key AND log IS NULL"
# The response may have been deleted while its log was packed.
_PACK = """
    UPDATE run_logs SET log = :log
    WHERE response_key = :key AND log IS NULL AND EXISTS (SELECT 1 FROM responses WHERE key = :key AND id = :id)
"""
DELETE_RECORDS = "DELETE FROM run_events WHERE response_key = ?"
DELETE_OLD_LOGS = """
    DELETE FROM run_logs
    WHERE response_key IN (SELECT response_key FROM run_logs WHERE ended_at <= :old LIMIT :limit)
    RETURNING response_key
"""

# ---- writing ----


class Append(NamedTuple):
    """A record to be written under the fence of a lease."""

    key: int
    id: str
    fence: int
    at: int
    first: int
    next: int
    events: bytes


class AppendQueue:
    """The appends of one process, to any runs. Those that come while a transaction is under way go with the next one.

    No transaction has more than `TRANSACTION_BYTES`, unless a single append has.
    """

    def __init__(self, database: Database, notifications: Notifications) -> None:
        self._database, self._notifications = database, notifications
        self._waiting: list[tuple[Append, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, lease: Lease, record: EventRecord) -> bool:
        """Return whether the lease held, and the record is written, now or before."""
        append = Append(lease.key, lease.run_id, lease.fence, *to_row(record))
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((append, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return await done

    async def close(self) -> None:
        """Wait until all that was accepted is written."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._waiting:
                sizes = accumulate(len(append.events) for append, _ in self._waiting)
                count = max(1, sum(size <= TRANSACTION_BYTES for size in sizes))
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._write(sorted(batch, key=lambda waiting: (waiting[0].key, waiting[0].at)))
        finally:
            self._task = None

    async def _write(self, batch: Sequence[tuple[Append, asyncio.Future[bool]]]) -> None:
        held, error = set[int](), None
        try:
            held = await self._database.write(partial(self._insert, appends=[append for append, _ in batch]))
        except Exception as exc:  # every waiter must get it
            error = exc
        for place, (_, done) in enumerate(batch):
            if done.done():  # the waiter was cancelled
                continue
            if error is None:
                done.set_result(place in held)
            else:
                done.set_exception(Unavailable.because_of(error) if isinstance(error, StoreFault) else error)

    def _insert(self, connection: Connection, appends: Sequence[Append]) -> set[int]:
        """Return the places of those whose fence held."""
        if connection.dialect == "sqlite":
            held = set[int]()
            for place, append in enumerate(appends):
                values = append._asdict()
                is_new = connection.execute(_APPEND, values).rowcount > 0
                if is_new or connection.execute(HELD_BY, values).fetchone() is not None:
                    held.add(place)
            return held
        columns = zip(*appends, strict=True)
        names = ("keys", "ids", "fences", "ats", "firsts", "nexts", "events")
        lists = {name: list(column) for name, column in zip(names, columns, strict=True)}
        held = {place for (place,) in connection.execute(_APPEND_ALL, lists)}
        self._notifications.send_events(connection, [appends[place].id for place in held])
        return held


def to_row(record: EventRecord) -> tuple[int, int, int, bytes]:
    return (record.at, record.first, record.next, encode_events(record.events))


def has_ended_with(connection: Connection, key: int, last: EventRecord, update: UpdateRows) -> bool:
    """Return whether the run ended with this record: then an earlier `finish` was committed, and its answer lost."""
    packed = connection.execute(_PACKED, {"key": key}).fetchone()
    if packed is None:
        row = connection.execute(_ENDED_RECORD, {"key": key, "at": last.at}).fetchone()
        has_ended = row is not None and bytes(row[0]) == encode_events(last.events)
    else:  # the records are others: compare the last event and its number
        at, first, raw = connection.execute(_LAST_RECORD, {"key": key}).fetchone() or packed
        piece = EventRecord(at, first, decompress(raw, lambda: bytes(packed[2])))
        has_ended = (
            piece.next == last.next
            and without_output(piece.events)[-1] == decode_events(encode_events(last.events))[-1]
        )
    return has_ended and has_output(connection, key, update)


# ---- reading: about as much at once as a reader is given ----


class StoredPiece(NamedTuple):
    """Consecutive records of a log."""

    key: int
    records: Sequence[EventRecord]
    end: int
    """The index of the next record."""
    is_last: bool
    """Whether the log ends with this piece."""
    has_more: bool = False
    """Whether there may be a next piece already."""
    is_packed: bool = False
    """Whether the records are those of a packed log: indexes count these."""


def read_piece(
    connection: Connection,
    name: RowValues,
    after: int,
    last: StoredPiece | None,
    shared: MutableMapping[tuple[str, int], EventRecord],
) -> StoredPiece | None:
    """Return the piece behind the last one or, without it, the one with the event behind the number `after`; None when
    there is no log. Large records are looked up in `shared` and added there.
    """
    row = connection.execute(_LOG, name).fetchone()
    if row is None:
        return None
    key, is_packed, is_open, has_ended = row
    if not is_open and not has_ended:
        return None
    is_known = last is not None and last.is_packed == bool(is_packed)
    at = last.end if last is not None and is_known else _find_place(connection, key, after)

    def share(place: int, read: Callable[[], EventRecord | None]) -> list[EventRecord]:
        record = shared.get((str(name["id"]), place))
        if record is None:
            if (record := read()) is None:
                return []
            shared[str(name["id"]), place] = record
        return [record]

    if is_packed:
        records = share(-1 - at, lambda: read_packed(connection, key, at))  # never the index of an unpacked record
        is_last = not records or records[0].is_last
        return StoredPiece(key, records, at + 1, is_last, has_more=not is_last, is_packed=True)
    sizes, has_more = _measure(connection, key, at, has_ended=bool(has_ended))
    if len(sizes) == 1 and sizes[0] > LARGE:
        records = share(at, lambda: _with_output(connection, key, read_records(connection, key, at, 1))[0])
    else:
        records = _with_output(connection, key, read_records(connection, key, at, len(sizes)))
    is_last = records[-1].is_last if records else bool(has_ended)
    return StoredPiece(key, records, at + len(records), is_last, has_more=has_more)


def read_records(connection: Connection, key: int, at: int = 0, limit: int = _ALL) -> list[EventRecord]:
    """Return the records as they are stored: the output of the response is not in them. Raises `Damaged`."""
    rows = connection.execute(_RECORDS, {"key": key, "at": at, "limit": limit}).fetchall()
    return [EventRecord(place, first, decode_events(raw)) for place, first, raw in rows]


def read_packed(connection: Connection, key: int, at: int) -> EventRecord | None:
    """Return a piece of a packed log as one record. The first is in the row of the log; the others replace its
    records.
    """
    if at == 0:
        row = connection.execute(_PACKED, {"key": key}).fetchone()
    else:
        row = connection.execute(_RECORDS, {"key": key, "at": at, "limit": 1}).fetchone()
    if row is None:
        return None
    place, first, raw = row

    def opening() -> bytes:
        return bytes(connection.execute(_PACKED, {"key": key}).fetchone()[2])

    return _with_output(connection, key, [EventRecord(place, first, decompress(raw, opening))])[0]


def _with_output(connection: Connection, key: int, records: list[EventRecord]) -> list[EventRecord]:
    """Return the records with the output of the response, without which the last record of a run is stored."""
    if not records or not records[-1].is_last:
        return records

    def output() -> list[OutputItem]:
        return [to_output(raw) for (raw,) in connection.execute(OUTPUT, (key,))]

    *others, last = records
    return [*others, EventRecord(last.at, last.first, with_output(last.events, output))]


def _find_place(connection: Connection, key: int, after: int) -> int:
    """Return the index of the record that holds the event with that number."""
    if after < 0:  # SQLite would read the whole log to find that there is none
        return 0
    row = connection.execute(_PLACE, {"key": key, "after": after}).fetchone()
    return 0 if row is None else int(row[0])


def _measure(connection: Connection, key: int, at: int, *, has_ended: bool) -> tuple[list[int], bool]:
    """Return the sizes of the records of one piece from `at` on, and whether there may be more. A large record is a
    piece of its own. SQLite reads a record to tell its size, so none is measured behind the first that does not fit.
    """
    sizes: list[int] = []
    total = 0
    for (size,) in connection.execute(_SIZES, {"key": key, "at": at, "limit": _MAX_RECORDS}):
        total += size
        if sizes and (total > PIECE or size > LARGE or sizes[0] > LARGE):
            return sizes, True
        sizes.append(size)
    if len(sizes) == _MAX_RECORDS:
        return sizes, True
    if has_ended and sizes:  # the last record is read with the output
        output = connection.execute(_OUTPUT_SIZE, {"key": key}).fetchone()[0]
        if len(sizes) > 1 and (total + output > PIECE or sizes[-1] + output > LARGE):
            return sizes[:-1], True
        sizes[-1] += output
    return sizes, False


# ---- packing the log of a run that has ended ----


def find_unpacked(connection: Connection, after: int, limit: int) -> list[tuple[int, str]]:
    """Return the keys behind `after`, and the ids, of logs that are to be packed."""
    return connection.execute(_UNPACKED, {"after": after, "limit": limit}).fetchall()


def read_unpacked(connection: Connection, key: int, at: int) -> list[EventRecord] | None:
    """Return a piece of the records from `at` on, an empty one at the end; None where another process has packed the
    log: its records are pieces of the packed log.
    """
    if connection.execute(_IS_UNPACKED, {"key": key}).fetchone() is None:
        return None
    sizes, _ = _measure(connection, key, at, has_ended=False)
    return read_records(connection, key, at, len(sizes))


def pack_and_compress(records: Sequence[EventRecord]) -> PackedLog:
    return compress(pack(record.events for record in records))


def write_packed(connection: Connection, key: int, response_id: str, pieces: PackedLog) -> None:
    """Write the first piece to the row of the log, and the others to the place of its records."""
    if connection.execute(_PACK, {"key": key, "id": response_id, "log": pieces[0].data}).rowcount:
        connection.execute(DELETE_RECORDS, (key,))
        connection.executemany(INSERT_RECORD, rest_of_log(key, pieces))
