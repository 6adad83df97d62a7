"""What is on record of each run, marks included: read from its home when no server runs any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from antwort import SqliteStore
from antwort.api.events import RunEvent
from antwort.engine.settings import BackgroundSettings
from antwort.identity import ANONYMOUS
from antwort.storage.postgres import PostgresStore
from antwort.storage.run_log import RunLog, run_log_for


async def logs(folder: Path, dsn: str | None, ids: Sequence[str]) -> dict[str, list[RunEvent]]:
    """By the ids of the responses; none of those that no log is kept of."""
    store = await (SqliteStore.open(folder / "antwort.db") if dsn is None else PostgresStore.open(dsn))
    log = run_log_for(store, BackgroundSettings())
    assert log is not None
    try:
        return {each: await _events(log, each) for each in ids if await _is_logged(log, each)}
    finally:
        await log.close()
        await store.close()


async def _is_logged(log: RunLog, response_id: str) -> bool:
    outline = await log.outline(ANONYMOUS, response_id)
    return outline is not None and outline.has_log


async def _events(log: RunLog, response_id: str) -> list[RunEvent]:
    async with aclosing(log.read(ANONYMOUS, response_id)) as batches:
        return [event async for records in batches for record in records for event in record.events]
