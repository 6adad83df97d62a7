"""The schema, and the way from any earlier one to it.

A new revision is a file in `versions/` and a new last entry in `REVISIONS`. Alembic takes a good part of a second to
import: a database that stands at `HEAD` never sees it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.db import Connection as Link
from antwort.db.sqlite import BUSY_SECONDS, SqliteDatabase, store_fault
from antwort.errors import StoreFault

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection, Engine

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""All revisions, oldest first."""
HEAD = REVISIONS[-1]


async def migrate(database: SqliteDatabase) -> None:
    """Bring the open `database` to `HEAD`. Raises `StoreFault` when a newer version of antwort has written it."""
    revision = await database.read(_revision)
    if revision == HEAD:
        return
    if revision is not None and revision not in REVISIONS:
        raise StoreFault("The data folder was written by a newer version of antwort.")
    await asyncio.to_thread(upgrade, database.path)


def _revision(connection: Link) -> str | None:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if connection.execute(query).fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def upgrade(path: Path, revision: str = HEAD) -> None:
    from alembic import command

    _in_transaction(path, lambda connection: command.upgrade(config(connection), revision))


def downgrade(path: Path, revision: str) -> None:
    from alembic import command

    _in_transaction(path, lambda connection: command.downgrade(config(connection), revision))


def _in_transaction(path: Path, change: Callable[[Connection], None]) -> None:
    """All of it or nothing: an upgrade that breaks off leaves the data as it was."""
    from sqlalchemy.exc import DBAPIError

    engine = _engine(path)
    try:
        with engine.begin() as connection:
            change(connection)
    except DBAPIError as exc:
        raise store_fault(exc.orig if isinstance(exc.orig, sqlite3.Error) else exc) from exc
    finally:
        engine.dispose()


def _engine(path: Path) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    # The driver begins no transaction for a change of schema by itself.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def config(connection: Connection) -> Config:
    """What `env.py` reads, without a file."""
    from alembic.config import Config

    place = str(Path(__file__).parent).replace("%", "%%")
    config = Config()
    config.set_main_option("script_location", place)
    config.attributes["connection"] = connection
    return config
