"""Housekeeping: what a dead worker left, logs that can be packed, logs that are too old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from antwort.errors import Damaged
from antwort.runs import statements as sql
from antwort.runs.dialects import grabbing, now
from antwort.runs.packing import packed
from antwort.runs.reading import ALL, records
from antwort.runs.writing import fail
from antwort.storage.base import PackedLog
from antwort.storage.database import Connection, Database
from antwort.storage.run_log import Record
from antwort.storage.sql_responses import rest_of_log

_LOG = logging.getLogger("antwort.runs")

LOST = "The process that made this response is gone."

_ROWS = 200
_LOGS = 50
"""In one transaction: others have to write, too."""
_BYTES = 8 * 1024 * 1024
"""Of logs that are in memory at once, unless one alone is larger."""
_MOST_WARNINGS = 1000
_LEASES = 10
"""So many times the time of a lease, and a dead worker is forgotten."""


async def sweep(database: Database, lease: float, keep_log: float, warned: set[int]) -> int:
    """How many responses failed. `warned`: the keys of logs that were told to be damaged before."""
    count = 0
    while found := await database.write(fail_left):
        count += found
        if found < _ROWS:
            break
    await pack_logs(database, warned)
    while await database.write(partial(prune, keep_log=keep_log)) == _LOGS:
        pass
    await database.write(partial(forget_dead, lease=lease))
    return count


def fail_left(connection: Connection) -> int:
    """End what dead workers made in the foreground; some of it."""
    values = {"now": now(connection), "limit": _ROWS}
    rows = connection.execute(grabbing(connection, sql.LEFT_RUNNING, "responses"), values).fetchall()
    for key, body in rows:
        fail(connection, key, body, LOST)
    return len(rows)


class Loose(NamedTuple):
    """Logs of runs that have ended that are still in pieces; some of them."""

    last: int
    """The key up to which these are all."""
    logs: dict[int, list[Record]]
    damaged: list[tuple[int, str]]
    """Keys and ids of those that cannot be read. They stay as they are until they are too old."""


async def pack_logs(database: Database, warned: set[int]) -> None:
    """Read, packed and written apart: nobody waits for the compression, or for more than one log."""
    last = -1
    while (loose := await database.read(partial(read_loose, after=last))) is not None:
        for key, of_run in loose.logs.items():
            pieces = await asyncio.to_thread(packed, of_run)
            await database.write(partial(write_packed, key=key, pieces=pieces))
        _warn(loose.damaged, warned)
        last = loose.last


def _warn(damaged: Sequence[tuple[int, str]], warned: set[int]) -> None:
    """Once of each: they are found again and again."""
    for key, response_id in damaged:
        if key not in warned and len(warned) < _MOST_WARNINGS:
            warned.add(key)
            _LOG.warning("the log of %s cannot be read: it stays unpacked until it is too old", response_id)


def read_loose(connection: Connection, after: int) -> Loose | None:
    """Those behind that key, as far as they are of no great size together; None: there are none."""
    found = Loose(after, {}, [])
    size = 0
    for key, response_id, length in connection.execute(sql.LOOSE, {"after": after, "limit": _LOGS}).fetchall():
        size += length
        if size > _BYTES and found.last != after:
            break
        found = found._replace(last=key)
        try:
            found.logs[key] = records(connection, key, limit=ALL)
        except Damaged:
            found.damaged.append((key, response_id))
    return None if found.last == after else found


def write_packed(connection: Connection, key: int, pieces: PackedLog) -> None:
    """The first piece stands with the log, and the others where its records were."""
    if connection.execute(sql.PACK, {"key": key, "log": pieces[0].data}).rowcount:
        connection.execute(sql.DROP_RECORDS, (key,))
        connection.executemany(sql.INSERT_RECORD, rest_of_log(key, pieces))


def prune(connection: Connection, keep_log: float) -> int:
    """How many logs went."""
    values = {"old": int(now(connection) - keep_log), "limit": _LOGS}
    gone = connection.execute(sql.PRUNE, values).fetchall()
    for of_run in gone:
        connection.execute(sql.DROP_RECORDS, of_run)
    return len(gone)


def forget_dead(connection: Connection, lease: float) -> None:
    connection.execute(sql.FORGET_DEAD, {"long_ago": now(connection) - _LEASES * lease})
