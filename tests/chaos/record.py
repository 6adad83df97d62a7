"""What is on record of each run, marks included: read from its home when no server runs any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from antwort.api.events import RunEvent
from antwort.identity import ANONYMOUS
from antwort.storage.postgres import PostgresDatabase
from antwort.storage.sql_run_log import SqlRunLog
from antwort.storage.sqlite import SqliteDatabase


async def logs(folder: Path, dsn: str | None, ids: Sequence[str]) -> dict[str, list[RunEvent]]:
    """By the ids of the responses; none of those that no log is kept of."""
    database = SqliteDatabase(folder / "antwort.db") if dsn is None else PostgresDatabase(dsn)
    await database.open()
    log = SqlRunLog(database)
    try:
        return {each: await _events(log, each) for each in ids if await log.has_log(ANONYMOUS, each)}
    finally:
        await log.close()
        await database.close()


async def _events(log: SqlRunLog, response_id: str) -> list[RunEvent]:
    async with aclosing(log.read(ANONYMOUS, response_id)) as batches:
        return [event async for records in batches for record in records for event in record.events]
