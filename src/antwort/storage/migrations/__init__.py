"""The schema, and the way from any earlier one to it.

A new revision is a file in `versions/` and a new last entry in `REVISIONS`. Alembic takes a good part of a second to
import: a database that stands at `HEAD` never sees it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from antwort.errors import StoreFault
from antwort.storage.database import Connection as Link
from antwort.storage.database import Database, Dialect

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection, Engine

    from antwort.storage.postgres import PostgresDatabase
    from antwort.storage.sqlite import SqliteDatabase

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
"""All revisions, oldest first."""
HEAD = REVISIONS[-1]

_PLACES: dict[Dialect, str] = {"sqlite": "data folder", "postgresql": "database"}
_IS_THERE: dict[Dialect, str] = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'",
    "postgresql": "SELECT 1 WHERE to_regclass('alembic_version') IS NOT NULL",
}
_LOCK = 0x616E7477  # of antwort alone, among all who may use the server


async def migrate(database: Database) -> None:
    """Bring the open `database` to `HEAD`. Raises `StoreFault` when a newer version of antwort has written it.

    Several processes may do so at once: one does it, and the others wait.
    """
    revision = await database.read(_revision)
    if revision == HEAD:
        return
    if revision is None and database.dialect == "sqlite":
        revision = await database.write(_create_if_empty)
        if revision == HEAD:
            return
    _check(revision, database.dialect)
    await asyncio.to_thread(upgrade, database)


def _check(revision: str | None, dialect: Dialect) -> None:
    if revision is not None and revision not in REVISIONS:
        raise StoreFault(f"The {_PLACES[dialect]} was written by a newer version of antwort.")


def _create_if_empty(connection: Link) -> str | None:
    """Make the tables unless there are some, and return the revision: another process may have been faster, and a
    database that was migrated back to its beginning is upgraded.
    """
    if connection.execute(_IS_THERE[connection.dialect]).fetchone() is None:
        create_tables(connection)
    return _revision(connection)


def create_tables(connection: Link) -> None:
    """Make the tables of `HEAD` in an empty SQLite database. The migrations make the same, more slowly."""
    for statement in _statements():
        connection.execute(statement)
    connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))


@cache
def _statements() -> list[str]:
    script = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    return script.split(";\n")


def _revision(connection: Link) -> str | None:
    if connection.execute(_IS_THERE[connection.dialect]).fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def upgrade(place: Path | Database, revision: str = HEAD) -> None:
    """`place`: a database, or the file of one."""
    from alembic import command

    _in_transaction(place, lambda connection: command.upgrade(config(connection), revision))


def downgrade(place: Path | Database, revision: str) -> None:
    from alembic import command

    _in_transaction(place, lambda connection: command.downgrade(config(connection), revision))


def _in_transaction(place: Path | Database, change: Callable[[Connection], None]) -> None:
    """All of it or nothing: an upgrade that breaks off leaves the data as it was."""
    if isinstance(place, Path) or place.dialect == "sqlite":
        _in_sqlite(place if isinstance(place, Path) else cast("SqliteDatabase", place).path, change)
    else:
        _in_postgres(cast("PostgresDatabase", place), change)


def _in_sqlite(path: Path, change: Callable[[Connection], None]) -> None:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    from antwort.storage.sqlite import BUSY_SECONDS, store_fault

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    # The driver begins no transaction for a change of schema by itself.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    _run(engine, change, store_fault)


def _in_postgres(database: PostgresDatabase, change: Callable[[Connection], None]) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    from antwort.storage.postgres import store_fault

    def alone(connection: Connection) -> None:
        """Whoever was faster may have done it, or more than is known here."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        if connection.exec_driver_sql(_IS_THERE["postgresql"]).fetchone() is not None:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            _check(found, "postgresql")
        change(connection)

    engine = create_engine("postgresql+psycopg://", creator=database.connect_for_migration, poolclass=NullPool)
    _run(engine, alone, store_fault)


def _run(engine: Engine, change: Callable[[Connection], None], fault: Callable[[Exception], StoreFault]) -> None:
    from sqlalchemy.exc import DBAPIError

    try:
        with engine.begin() as connection:
            change(connection)
    except DBAPIError as exc:
        raise fault(exc.orig if isinstance(exc.orig, Exception) else exc) from exc
    finally:
        engine.dispose()


def config(connection: Connection) -> Config:
    """What `env.py` reads, without a file."""
    from alembic.config import Config

    place = str(Path(__file__).parent).replace("%", "%%")
    config = Config()
    config.set_main_option("script_location", place)
    config.attributes["connection"] = connection
    return config
