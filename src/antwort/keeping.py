"""Where a server keeps its records, as the settings say: in a PostgreSQL database, in the data folder, or in memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.errors import AntwortError
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from antwort.vault import CannotOpen, Vault

if TYPE_CHECKING:
    from antwort.storage.database import Database
    from antwort.storage.sql_store import SqlStore

_NO_DRIVER = "A `database` needs a driver for PostgreSQL: pip install 'antwort[postgres]'."
_OTHER_KEY = (
    "What is kept in the database is sealed with another key than the one of this process. Set encryption.keys to the "
    "same in all processes that share the database. To change them, set them to the old and the new one everywhere, "
    "then to the new and the old one, then to the new one."
)
_PURPOSE = "database"


class Records(NamedTuple):
    store: ResponseStore
    runs: RunLog
    """Over the same records. Close it before the store."""
    database: Database | None = None
    """The one that both are in; None for those in memory."""


async def open_records(settings: Settings) -> Records:
    """Raises `CannotStart` when they cannot be had."""
    if settings.memory:
        return _in_memory(settings)
    if settings.database is not None:
        return _in_database(await _open_postgres(settings.database.reveal()), settings)
    return _in_database(await _open_sqlite(settings), settings)


async def check_seal(records: Records, vault: Vault) -> None:
    """Whoever shares a database has the same key: or else one cannot go on with what another has begun.

    A text that was sealed stands there. Whoever cannot open it is refused; the first that comes, and whoever has a new
    key before the one that it is sealed with, seals it anew. Raises `CannotStart`.
    """
    if records.database is None or records.database.dialect != "postgresql":
        return
    from antwort.storage.sql_store import find_seal, put_seal

    found = await records.database.write(find_seal)
    if found is None:
        found = await records.database.write(partial(put_seal, token=vault.seal(_PURPOSE, "", b""), replaces=None))
    try:
        vault.open(_PURPOSE, "", found)
    except CannotOpen:
        raise CannotStart(_OTHER_KEY) from None
    if not vault.is_newest(found):
        await records.database.write(partial(put_seal, token=vault.seal(_PURPOSE, "", b""), replaces=found))


def _in_memory(settings: Settings) -> Records:
    from antwort.storage.memory import MemoryStore

    store = MemoryStore()
    return Records(store, _run_log_for(store, settings))


def _in_database(store: SqlStore, settings: Settings) -> Records:
    return Records(store, _run_log_for(store, settings), store.database)


def _run_log_for(store: ResponseStore, settings: Settings) -> RunLog:
    from antwort.storage.run_log import run_log_for

    runs = run_log_for(store, settings.background)
    assert runs is not None, "the store is one of ours"
    return runs


async def _open_sqlite(settings: Settings) -> SqlStore:
    from antwort.storage.sqlite import SqliteStore

    folder = settings.data_folder()
    try:
        return await SqliteStore.open(folder / "antwort.db")
    except AntwortError as exc:
        fix = "" if settings.data is not None else " Say --data DIR for another one."
        raise CannotStart(f"The data folder {str(folder)!r} cannot be used: {_problem(exc)}{fix}") from exc


async def _open_postgres(dsn: str) -> SqlStore:
    """The message has the first line of what the driver says, which names no password."""
    try:
        from antwort.storage.postgres import PostgresStore
    except ImportError as exc:
        raise CannotStart(_NO_DRIVER) from exc
    try:
        return await PostgresStore.open(dsn)
    except AntwortError as exc:
        reason = next(iter(str(exc.__cause__ or "").splitlines()), "")
        raise CannotStart(f"The database cannot be used: {reason or exc.message}") from exc


def _problem(fault: AntwortError) -> str:
    """The fault's own words, or the system's where it has none of its own."""
    from antwort.storage.database import UNKNOWN_FAULT

    reason = fault.__cause__.strerror if isinstance(fault.__cause__, OSError) else None
    return f"{reason}." if reason and fault.message == UNKNOWN_FAULT else fault.message
