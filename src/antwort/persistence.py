"""Open what a server persists: its store and run log, in PostgreSQL, in the data folder or in memory, and its vault."""

from __future__ import annotations

import logging
import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from antwort.config.problems import CannotStart
from antwort.config.secrets import read_secret_file
from antwort.config.settings import Settings
from antwort.crypto import CannotOpen, Vault, create_key_file
from antwort.errors import AntwortError
from antwort.notes import note
from antwort.storage.run_log import RunLog

if TYPE_CHECKING:
    from antwort.storage.sql_store import SqlStore

_log = logging.getLogger("antwort.sealing")

KEY_FILE = "seal.key"
_FIX = (
    "Bring it back from a copy, or delete it to have a new one made; what was sealed with the old key then cannot be "
    "opened any more."
)
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
    """Open the store and the run log. Raises `CannotStart`."""
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
    """Check that all processes that share a database have the same key: they continue each other's runs.

    The database holds a sealed text. A process that cannot open it raises `CannotStart`; the first process writes it,
    and one whose first key is newer than the key of the text seals it anew.
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


# ---- the vault ----


def make_vault(settings: Settings) -> Vault:
    """Return the vault, with the keys of the settings, a key file in the data folder, or a temporary key. Raises
    `CannotStart` if the key file cannot be read or created. Without a database, the data folder exists already.
    """
    if settings.encryption.keys:
        return Vault([key.reveal() for key in settings.encryption.keys])
    if settings.memory:
        return Vault.ephemeral()
    file = settings.data_folder() / KEY_FILE
    if settings.database is None:
        return Vault([key_in(file)])
    set_keys = "With a database, encryption.keys can be set instead, the same in all processes."
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Vault([key_in(file)])
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}. {set_keys}") from exc
    except CannotStart as exc:
        raise CannotStart(f"{exc} {set_keys}") from exc


def key_in(file: Path) -> str:
    """Return the key in the file, and create it if it does not exist. Concurrent processes get the same key."""
    try:
        if not os.path.lexists(file):
            create_key_file(file)
        if os.name != "nt" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            message = "others can read the key that reasoning is sealed with: chmod 600"
            note(_log, logging.WARNING, message, file=str(file))
        key = read_secret_file(file)
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}.") from exc
    except ValueError as exc:
        raise CannotStart(f"The key to seal with {exc}. {_FIX}") from exc
    if not re.fullmatch("[A-Za-z0-9_-]{43}", key):  # 32 random bytes in base64
        raise CannotStart(f"The key file {str(file)!r} does not hold a key. {_FIX}")
    return key
