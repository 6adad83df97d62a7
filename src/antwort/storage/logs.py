"""The log of a run that has ended, beside its response. What is in it only `runs` knows."""

from __future__ import annotations

import asyncio
import zlib

from msgspec.structs import replace

from antwort.db import Connection
from antwort.storage import statements as sql
from antwort.storage.base import LogPiece, PackedLog

_LEVEL = 3
"""Of compression: text that a model wrote gets little smaller by more."""
_SMALL = 8192
"""To compress as many bytes takes no longer than to ask another thread to do it."""


async def compressed(log: PackedLog) -> list[LogPiece]:
    """Before it is written: neither the writer nor the event loop waits for a large one."""
    if len(log) == 1 and len(log[0].data) <= _SMALL:
        return _compressed(log)
    return await asyncio.to_thread(_compressed, log)


def _compressed(log: PackedLog) -> list[LogPiece]:
    return [replace(piece, data=zlib.compress(piece.data, _LEVEL)) for piece in log]


def keep_in(connection: Connection, response_key: int, log: PackedLog, ended_at: int) -> None:
    """A log that is `compressed`. One that is there already stays."""
    is_new = connection.execute(sql.INSERT_LOG, (response_key, ended_at, log[0].data)).rowcount
    if is_new and len(log) > 1:
        connection.executemany(sql.INSERT_LOG_PIECE, rest_of_log(response_key, log))


def rest_of_log(response_key: int, log: PackedLog) -> list[tuple[int, int, int, int, bytes]]:
    """Rows for all but the first piece, which stands with the log itself: most have no other."""
    return [(response_key, at, piece.first, piece.next, piece.data) for at, piece in enumerate(log) if at]
