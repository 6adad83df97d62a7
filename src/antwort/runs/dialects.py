"""The few things that PostgreSQL is told and SQLite, with one writer, need not be."""

from __future__ import annotations

import time

from antwort.storage.database import Connection

CHANNEL = "antwort_runs"

_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
_NOTIFY = "SELECT pg_notify(:channel, :payload)"


def now(connection: Connection) -> float:
    """Seconds since 1970, by one clock for all processes."""
    if connection.dialect == "sqlite":
        return time.time()
    return float(connection.execute(_CLOCK).fetchone()[0])


def holding(connection: Connection, statement: str) -> str:
    """What it finds stays as it is until the transaction has ended; it waits for others that change it."""
    return statement if connection.dialect == "sqlite" else f"{statement} FOR UPDATE"


def grabbing(connection: Connection, statement: str, table: str) -> str:
    """The same, and rows that others hold are passed over."""
    return statement if connection.dialect == "sqlite" else f"{statement} FOR UPDATE OF {table} SKIP LOCKED"


def marking(connection: Connection, statement: str) -> str:
    """As `grabbing`, for a change that nobody's fence depends on: whoever appends to the run is not in the way."""
    return statement if connection.dialect == "sqlite" else f"{statement} FOR NO KEY UPDATE SKIP LOCKED"


def notify(connection: Connection, *payloads: str) -> None:
    """Wake the other processes, once this is committed. SQLite has none."""
    if connection.dialect == "sqlite":
        return
    for payload in payloads:
        connection.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})
