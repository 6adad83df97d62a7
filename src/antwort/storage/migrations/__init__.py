"""The schema, and the way from any earlier one to it.

A new revision is a file in `versions/` and a new last entry in `REVISIONS`. Alembic takes a good part of a second to
import: a database that stands at `HEAD` never sees it.
"""

from __future__ import annotations

import asyncio
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from antwort.errors import StoreFault
from antwort.storage.database import Connection, Database, Dialect

if TYPE_CHECKING:
    from antwort.storage.postgres import PostgresDatabase
    from antwort.storage.sqlite import SqliteDatabase

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
"""All revisions, oldest first."""
HEAD = REVISIONS[-1]

_PLACES: dict[Dialect, str] = {"sqlite": "data folder", "postgresql": "database"}
_IS_THERE = """
    SELECT 1 /*sqlite*/ FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'
             /*pg: WHERE to_regclass('alembic_version') IS NOT NULL */
"""
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


def _create_if_empty(connection: Connection) -> str | None:
    """Make the tables unless there are some, and return the revision: another process may have been faster."""
    if connection.execute(_IS_THERE).fetchone() is None:
        create_tables(connection)
    return _revision(connection)


def create_tables(connection: Connection) -> None:
    """Make the tables of `HEAD` in an empty SQLite database. The migrations make the same, more slowly."""
    for statement in _statements():
        connection.execute(statement)
    connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))


@cache
def _statements() -> list[str]:
    script = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    return script.split(";\n")


def _revision(connection: Connection) -> str | None:
    if connection.execute(_IS_THERE).fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def upgrade(place: Path | Database, revision: str = HEAD) -> None:
    """Upgrade a database, or the SQLite file at a path: all of it or nothing. One that breaks off changes no data."""
    from alembic import command
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    if isinstance(place, Path) or place.dialect == "sqlite":
        from antwort.storage.sqlite import connect, store_fault

        path = place if isinstance(place, Path) else cast("SqliteDatabase", place).path
        dialect: Dialect = "sqlite"
        engine = create_engine("sqlite://", creator=partial(connect, path), poolclass=NullPool)
        begin = "BEGIN IMMEDIATE"  # the driver begins no transaction for a change of schema by itself
    else:
        from antwort.storage.postgres import store_fault

        dialect, creator = "postgresql", cast("PostgresDatabase", place).connect_for_migration
        engine = create_engine("postgresql+psycopg://", creator=creator, poolclass=NullPool)
        begin = f"SELECT pg_advisory_xact_lock({_LOCK})"
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            # Another process may have been faster, and may be newer.
            _check(MigrationContext.configure(connection).get_current_revision(), dialect)
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except DBAPIError as exc:
        raise store_fault(exc.orig if isinstance(exc.orig, Exception) else exc) from exc
    finally:
        engine.dispose()
