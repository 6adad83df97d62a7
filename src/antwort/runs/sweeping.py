"""Housekeeping: what a dead worker left, logs that can be packed, logs that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from antwort.api.status import IllegalTransition
from antwort.db.base import Connection, Database
from antwort.errors import StoreFault
from antwort.runs import statements as sql
from antwort.runs.base import Record
from antwort.runs.dialects import grabbing, now
from antwort.runs.packing import packed
from antwort.runs.reading import ALL, records
from antwort.storage.rows import to_body, to_response
from antwort.storage.rules import failed

LOST = "The process that made this response is gone."

_ROWS = 200
_LOGS = 50
"""In one transaction: others have to write, too."""
_LEASES = 10
"""So many times the time of a lease, and a dead worker is forgotten."""


async def sweep(database: Database, lease: float, keep_log: float) -> int:
    """How many responses failed."""
    count = 0
    while found := await database.write(fail_left):
        count += found
        if found < _ROWS:
            break
    await pack_logs(database)
    while await database.write(partial(prune, keep_log=keep_log)) == _LOGS:
        pass
    await database.write(partial(forget_dead, lease=lease))
    return count


def fail_left(connection: Connection) -> int:
    """End what dead workers made in the foreground; some of it."""
    values = {"now": now(connection), "limit": _ROWS}
    rows = connection.execute(grabbing(connection, sql.LEFT_RUNNING, "responses"), values).fetchall()
    for key, body in rows:
        try:
            response = failed(to_response(body), LOST)
        except (StoreFault, IllegalTransition):
            connection.execute(sql.FAIL_RESPONSE, (key,))
        else:
            connection.execute(sql.UPDATE_RESPONSE, (response.status, response.completed_at, to_body(response), key))
    return len(rows)


async def pack_logs(database: Database) -> None:
    """Read, packed and written apart: nobody waits for the compression."""
    while loose := await database.read(read_loose):
        logs = await asyncio.to_thread(_pack, loose)
        await database.write(partial(write_packed, logs=logs))
        if len(loose) < _LOGS:
            return


def _pack(loose: Mapping[int, list[Record]]) -> dict[int, bytes]:
    return {key: packed(of_run) for key, of_run in loose.items()}


def read_loose(connection: Connection) -> dict[int, list[Record]]:
    """Logs of runs that have ended that are still in pieces."""
    keys = connection.execute(sql.LOOSE, {"limit": _LOGS}).fetchall()
    return {key: records(connection, key, limit=ALL) for (key,) in keys}


def write_packed(connection: Connection, logs: Mapping[int, bytes]) -> None:
    for key, log in logs.items():
        if connection.execute(sql.PACK, {"key": key, "log": log}).rowcount:
            connection.execute(sql.DROP_RECORDS, (key,))


def prune(connection: Connection, keep_log: float) -> int:
    """How many logs went."""
    values = {"old": int(now(connection) - keep_log), "limit": _LOGS}
    gone = connection.execute(sql.PRUNE, values).fetchall()
    for of_run in gone:
        connection.execute(sql.DROP_RECORDS, of_run)
    return len(gone)


def forget_dead(connection: Connection, lease: float) -> None:
    connection.execute(sql.FORGET_DEAD, {"long_ago": now(connection) - _LEASES * lease})
