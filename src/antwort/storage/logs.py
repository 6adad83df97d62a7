"""The log of a run that has ended, in one piece beside its response. What is in it only `runs` knows."""

from __future__ import annotations

import asyncio
import zlib

from antwort.db import Connection
from antwort.errors import StoreFault
from antwort.storage import statements as sql

_LEVEL = 3
"""Of compression: text that a model wrote gets little smaller by more."""
_SMALL = 8192
"""To compress as many bytes takes no longer than to ask another thread to do it."""


async def compressed(log: bytes) -> bytes:
    """Before it is written: neither the writer nor the event loop waits for a large one."""
    if len(log) <= _SMALL:
        return zlib.compress(log, _LEVEL)
    return await asyncio.to_thread(zlib.compress, log, _LEVEL)


def keep_in(connection: Connection, response_key: int, log: bytes, ended_at: int) -> None:
    """A log that is `compressed`. One that is there already stays."""
    connection.execute(sql.INSERT_LOG, (response_key, ended_at, log))


def read(connection: Connection, response_key: int) -> bytes | None:
    row = connection.execute(sql.LOG, (response_key,)).fetchone()
    if row is None:
        return None
    try:
        return zlib.decompress(row[0])
    except (zlib.error, TypeError) as exc:
        raise StoreFault("A stored log cannot be read.") from exc
