"""The log of a run that has ended, in one piece beside its response. What is in it only `runs` knows."""

from __future__ import annotations

import zlib

from antwort.db import Connection
from antwort.errors import StoreFault
from antwort.storage import statements as sql

_LEVEL = 3
"""Of compression: text that a model wrote gets little smaller by more."""


def keep_in(connection: Connection, response_key: int, log: bytes, ended_at: int) -> None:
    """Compressed here, on the thread of the database. One that is there already stays."""
    connection.execute(sql.INSERT_LOG, (response_key, ended_at, zlib.compress(log, _LEVEL)))


def read(connection: Connection, response_key: int) -> bytes | None:
    row = connection.execute(sql.LOG, (response_key,)).fetchone()
    if row is None:
        return None
    try:
        return zlib.decompress(row[0])
    except (zlib.error, TypeError) as exc:
        raise StoreFault("A stored log cannot be read.") from exc
