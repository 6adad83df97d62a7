"""Read the log of a run from a database, piece by piece: about as much at once as a reader is given.

The log of a run that has ended is packed later. It has other records then, with the same events under the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import NamedTuple

from antwort.api.items import OutputItem
from antwort.api.payload import LARGE, PIECE
from antwort.storage import run_log_statements as sql
from antwort.storage.database import Connection
from antwort.storage.log_codec import decode_events, decompress, with_output
from antwort.storage.rows import RowValues, to_output
from antwort.storage.run_log import Record
from antwort.storage.sql_responses import OUTPUT

_MAX_RECORDS = 256
"""In one piece."""
_ALL = 2**31 - 1


class StoredPiece(NamedTuple):
    """Consecutive records of a log."""

    key: int
    records: Sequence[Record]
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
    shared: MutableMapping[tuple[str, int], Record],
) -> StoredPiece | None:
    """Return the piece behind the last one or, without it, the one with the event behind the number `after`; None when
    there is no log. Large records are looked up in `shared` and added there.
    """
    row = connection.execute(sql.LOG, name).fetchone()
    if row is None:
        return None
    key, is_packed, is_open, has_ended = row
    if not is_open and not has_ended:
        return None
    is_known = last is not None and last.is_packed == bool(is_packed)
    at = last.end if last is not None and is_known else _find_place(connection, key, after)

    def share(place: int, read: Callable[[], Record | None]) -> list[Record]:
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


def read_records(connection: Connection, key: int, at: int = 0, limit: int = _ALL) -> list[Record]:
    """Return the records as they are stored: the output of the response is not in them. Raises `Damaged`."""
    rows = connection.execute(sql.RECORDS, {"key": key, "at": at, "limit": limit}).fetchall()
    return [Record(place, first, decode_events(raw)) for place, first, raw in rows]


def read_packed(connection: Connection, key: int, at: int) -> Record | None:
    """Return a piece of a packed log as one record. The first is in the row of the log; the others replace its
    records.
    """
    if at == 0:
        row = connection.execute(sql.PACKED, {"key": key}).fetchone()
    else:
        row = connection.execute(sql.RECORDS, {"key": key, "at": at, "limit": 1}).fetchone()
    if row is None:
        return None
    place, first, raw = row

    def opening() -> bytes:
        return bytes(connection.execute(sql.PACKED, {"key": key}).fetchone()[2])

    return _with_output(connection, key, [Record(place, first, decompress(raw, opening))])[0]


def _with_output(connection: Connection, key: int, records: list[Record]) -> list[Record]:
    """Return the records with the output of the response, without which the last record of a run is stored."""
    if not records or not records[-1].is_last:
        return records

    def output() -> list[OutputItem]:
        return [to_output(raw) for (raw,) in connection.execute(OUTPUT, (key,))]

    *others, last = records
    return [*others, Record(last.at, last.first, with_output(last.events, output))]


def _find_place(connection: Connection, key: int, after: int) -> int:
    """Return the index of the record that holds the event with that number."""
    if after < 0:  # SQLite would read the whole log to find that there is none
        return 0
    row = connection.execute(sql.PLACE, {"key": key, "after": after}).fetchone()
    return 0 if row is None else int(row[0])


def _measure(connection: Connection, key: int, at: int, *, has_ended: bool) -> tuple[list[int], bool]:
    """Return the sizes of the records of one piece from `at` on, and whether there may be more. A large record is a
    piece of its own. SQLite reads a record to tell its size, so none is measured behind the first that does not fit.
    """
    sizes: list[int] = []
    total = 0
    for (size,) in connection.execute(sql.SIZES, {"key": key, "at": at, "limit": _MAX_RECORDS}):
        total += size
        if sizes and (total > PIECE or size > LARGE or sizes[0] > LARGE):
            return sizes, True
        sizes.append(size)
    if len(sizes) == _MAX_RECORDS:
        return sizes, True
    if has_ended and sizes:  # the last record is read with the output
        output = connection.execute(sql.OUTPUT_SIZE, {"key": key}).fetchone()[0]
        if len(sizes) > 1 and (total + output > PIECE or sizes[-1] + output > LARGE):
            return sizes[:-1], True
        sizes[-1] += output
    return sizes, False
