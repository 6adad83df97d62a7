"""Where a server keeps its records, as the settings say: in a PostgreSQL database, in the data folder, or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.errors import AntwortError
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from antwort.vault import CannotOpen, Vault

if TYPE_CHECKING:
    from antwort.db import Database

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
        return _over(await _open_postgres(settings.database.reveal()), settings)
    return _over(await _open_sqlite(settings), settings)


async def check_seal(records: Records, vault: Vault) -> None:
    """Whoever shares a database has the same key: or else one cannot go on with what another has begun.

    A text that was sealed stands there. Whoever cannot open it is refused; the first that comes, and whoever has a new
    key before the one that it is sealed with, seals it anew. Raises `CannotStart`.
    """
    if records.database is None or records.database.dialect != "postgresql":
        return
    from antwort.storage.seals import find_seal, put_seal

    found = await records.database.write(find_seal)
    if found is None:
        found = await records.database.write(put_seal(vault.seal(_PURPOSE, "", b""), None))
    try:
        vault.open(_PURPOSE, "", found)
    except CannotOpen:
        raise CannotStart(_OTHER_KEY) from None
    if not vault.is_newest(found):
        await records.database.write(put_seal(vault.seal(_PURPOSE, "", b""), found))


def _in_memory(settings: Settings) -> Records:
    from antwort.storage.memory import MemoryStore

    store = MemoryStore()
    return Records(store, _run_log_for(store, settings))


def _over(database: Database, settings: Settings) -> Records:
    from antwort.storage.sql import SqlStore

    store = SqlStore(database)
    return Records(store, _run_log_for(store, settings), database)


def _run_log_for(store: ResponseStore, settings: Settings) -> RunLog:
    from antwort.storage.run_log_factory import run_log_for

    runs = run_log_for(store, settings.background)
    assert runs is not None, "the store is one of ours"
    return runs


async def _open_sqlite(settings: Settings) -> Database:
    from antwort.db.sqlite import SqliteDatabase

    folder = settings.data_folder()
    try:
        return await _opened(SqliteDatabase(folder / "antwort.db"))
    except AntwortError as exc:
        fix = "" if settings.data is not None else " Say --data DIR for another one."
        raise CannotStart(f"The data folder {str(folder)!r} cannot be used: {_problem(exc)}{fix}") from exc


async def _open_postgres(dsn: str) -> Database:
    """Of what the server, or the way to it, says, the first line is told: it names no password."""
    try:
        from antwort.db.postgres import PostgresDatabase
    except ImportError as exc:
        raise CannotStart(_NO_DRIVER) from exc
    try:
        return await _opened(PostgresDatabase(dsn))
    except AntwortError as exc:
        reason = next(iter(str(exc.__cause__ or "").splitlines()), "")
        raise CannotStart(f"The database cannot be used: {reason or exc.message}") from exc


async def _opened(database: Database) -> Database:
    from antwort.storage.migrations import migrate

    await database.open()
    try:
        await migrate(database)
    except BaseException:
        await database.close()
        raise
    return database


def _problem(fault: AntwortError) -> str:
    """The fault's own words, or the system's where it has none of its own."""
    from antwort.db.base import NO_WORDS

    reason = fault.__cause__.strerror if isinstance(fault.__cause__, OSError) else None
    return f"{reason}." if reason and fault.message == NO_WORDS else fault.message
