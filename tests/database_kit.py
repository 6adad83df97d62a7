"""A table of notes, in any database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from antwort.storage.database import Connection, Database

TABLE = "CREATE TABLE notes (place /*sqlite*/ INTEGER /*pg: BIGSERIAL */ PRIMARY KEY, note TEXT UNIQUE)"
INSERT = "INSERT INTO notes (note) VALUES (?)"


async def make_table(database: Database) -> None:
    await database.write(lambda connection: connection.execute(TABLE))


def note(text: str) -> Callable[[Connection], None]:
    def insert(connection: Connection) -> None:
        connection.execute(INSERT, (text,))

    return insert


def read_notes(connection: Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT note FROM notes ORDER BY place")]


@asynccontextmanager
async def held(database: Database) -> AsyncGenerator[None, None]:
    """The writer is busy inside, so that all that is queued becomes one transaction afterwards."""
    entered, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(30)

    holding = asyncio.ensure_future(database.write(hold))
    await entered.wait()
    try:
        yield
        await asyncio.sleep(0)  # lets tasks that were just made put their operations into the queue
    finally:
        release.set()
    await holding


async def together(database: Database, *operations: Callable[[Connection], None]) -> list[type[object]]:
    """What became of operations that stood in the queue together: `NoneType`, or the type of the error."""
    async with held(database):
        tasks = [asyncio.ensure_future(database.write(operation)) for operation in operations]
    await asyncio.wait(tasks)
    return [type(task.exception()) for task in tasks]


async def trace(
    database: Database, told: Callable[[str], None] | None, connection: Literal["read", "write"] = "read"
) -> None:
    """Let the reader, or the writer, of a SQLite file tell of each statement."""

    def begin(each: Connection) -> None:
        assert isinstance(each, sqlite3.Connection)
        each.set_trace_callback(told)

    await (database.read(begin) if connection == "read" else database.write(begin))


async def query_plans(database: Database, calls: Awaitable[object]) -> list[str]:
    """How SQLite runs each statement of these calls: the steps of its plan, one in a line."""
    seen: list[str] = []
    await trace(database, seen.append, "read")
    await trace(database, seen.append, "write")
    await calls
    await trace(database, None, "read")
    await trace(database, None, "write")
    statements = [each for each in map(str.strip, seen) if each.startswith(("SELECT", "WITH", "UPDATE", "DELETE"))]

    def explain(connection: Connection) -> list[str]:
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {statement}") for statement in statements]
        return ["\n".join(str(step[3]) for step in plan) for plan in plans]

    return await database.write(explain)


def impatient_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections to SQLite files that are opened from now on give up on a locked file after 10 ms."""
    connect = sqlite3.connect

    def impatient(path: Path, *_: float, timeout: float = 0.01, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(path, min(timeout, 0.01), **options)
        return made

    monkeypatch.setattr(sqlite3, "connect", impatient)
