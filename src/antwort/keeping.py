"""Where a server keeps its records, as the settings say: in a PostgreSQL database, in the data folder, or in memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.errors import AntwortError
from antwort.storage.run_log import RunLog
from antwort.vault import CannotOpen, Vault

if TYPE_CHECKING:
    from antwort.storage.sql_store import SqlStore

_NO_DRIVER = "A `database` needs a driver for PostgreSQL: pip install 'antwort[postgres]'."
_OTHER_KEY = (
    "What is kept in the database is sealed with another key than the one of this process. Set encryption.keys to the "
    "same in all processes that share the database. To change them, set them to the old and the new one everywhere, "
    "then to the new and the old one, then to the new one."
)
_PURPOSE = "database"


class Records(NamedTuple):
    store: SqlStore
    runs: RunLog
    """Over the same records. Close it before the store."""


async def open_records(settings: Settings) -> Records:
    """Raises `CannotStart` when they cannot be had."""
    from antwort.storage.run_log import run_log_for

    store: SqlStore
    if settings.memory:
        from antwort.storage.memory import MemoryStore

        store = MemoryStore()
    elif settings.database is not None:
        store = await _open_postgres(settings.database.reveal())
    else:
        store = await _open_sqlite(settings)
    runs = run_log_for(store, settings.background)
    assert runs is not None, "the store is one of ours"
    return Records(store, runs)


async def check_seal(records: Records, vault: Vault) -> None:
    """Whoever shares a database has the same key: or else one cannot go on with what another has begun.

    A text that was sealed stands there. Whoever cannot open it is refused; the first that comes, and whoever has a new
    key before the one that it is sealed with, seals it anew. Raises `CannotStart`.
    """
    from antwort.storage.sql_store import find_seal, put_seal

    database = records.store.database
    if database.dialect != "postgresql":
        return
    seal = partial(vault.seal, _PURPOSE, "", b"")
    found = await database.write(find_seal)
    if found is None:
        found = await database.write(partial(put_seal, token=seal(), replaces=None))
    try:
        vault.open(_PURPOSE, "", found)
    except CannotOpen:
        raise CannotStart(_OTHER_KEY) from None
    if not vault.is_newest(found):
        await database.write(partial(put_seal, token=seal(), replaces=found))


async def _open_sqlite(settings: Settings) -> SqlStore:
    from antwort.storage.database import UNKNOWN_FAULT
    from antwort.storage.sqlite import SqliteStore

    folder = settings.data_folder()
    try:
        return await SqliteStore.open(folder / "antwort.db")
    except AntwortError as exc:
        fix = "" if settings.data is not None else " Say --data DIR for another one."
        reason = exc.__cause__.strerror if isinstance(exc.__cause__, OSError) else None
        problem = f"{reason}." if reason and exc.message == UNKNOWN_FAULT else exc.message  # the system's own words
        raise CannotStart(f"The data folder {str(folder)!r} cannot be used: {problem}{fix}") from exc


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
