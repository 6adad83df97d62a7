"""Writing what must not be written twice, where the answer to a commit may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from antwort.db import Connection, Database, Operation
from antwort.errors import StoreFault

T = TypeVar("T")

_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the tries to find out whether something was written."""


async def write_once(database: Database, operation: Operation[T], is_done: Callable[[Connection, T], bool]) -> T:
    """What `operation` finds, once it is committed. Where nobody knows whether it was, that is looked up, for some
    time, and it is written if it was not.

    `is_done` is given what the operation found in the transaction in question. That one may still be under way: a row
    that both hold lets it come to its end first.
    """
    found: list[T] = []

    def write(connection: Connection) -> T:
        found[:] = [operation(connection)]
        return found[0]

    def look(connection: Connection) -> T:
        return found[0] if found and is_done(connection, found[0]) else write(connection)

    try:
        return await database.write(write)
    except StoreFault as fault:
        if not fault.is_ambiguous:
            raise
    pauses = iter(_PAUSES)
    while True:
        try:
            return await database.write(look)
        except StoreFault:
            if (pause := next(pauses, None)) is None:
                raise
            await asyncio.sleep(pause)
