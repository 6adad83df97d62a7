"""Large responses in several transactions, so that short ones of others go between.

SQLite has one writer: 50 MB in one transaction keep all others waiting for a third of a second. Items are written
first, and what makes them count comes last: until then, a beginning is hidden, and an end only adds to the output of a
response that is under way. PostgreSQL has many writers and needs none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from weakref import WeakKeyDictionary

from antwort.db import Database
from antwort.errors import StoreFault
from antwort.storage import writing
from antwort.storage.rows import ItemRow
from antwort.storage.writing import Beginning

PIECE_BYTES = 4 * 1024 * 1024
"""Of items in one transaction, unless a single one is larger."""


_locks: WeakKeyDictionary[Database, asyncio.Lock] = WeakKeyDictionary()
"""One piece of one response is written at a time: the writer puts all that waits into one transaction."""


@asynccontextmanager
async def staged(database: Database, new: Beginning) -> AsyncIterator[Beginning]:
    """What is left to write of a beginning, and shows it. When that raises, nothing of it stays."""
    pieces = early_pieces(database, new.items)
    if not pieces:
        yield new
        return
    lock = _locks.setdefault(database, asyncio.Lock())
    try:
        for items in pieces:
            async with lock:
                await database.write(partial(writing.stage_input, values=new.values, items=items))
        async with lock:
            yield new._replace(items=new.items[sum(map(len, pieces)) :], is_staged=True)
    except BaseException:
        with suppress(StoreFault):  # what is left then goes when the file is opened again
            await database.write(partial(writing.drop_staged, values=new.values))
        raise


@asynccontextmanager
async def staged_output(
    database: Database, output: Sequence[ItemRow], stage: Callable[[list[ItemRow]], Awaitable[None]]
) -> AsyncIterator[None]:
    """Write all but the last piece of an output by `stage`. The caller writes the rest."""
    pieces = early_pieces(database, output)
    if not pieces:
        yield
        return
    lock = _locks.setdefault(database, asyncio.Lock())
    for items in pieces:
        async with lock:
            await stage(items)
    async with lock:
        yield


def early_pieces(database: Database, items: Sequence[ItemRow]) -> list[list[ItemRow]]:
    """All but the last piece of what is best not written at once."""
    if database.dialect != "sqlite":
        return []
    pieces: list[list[ItemRow]] = [[]]
    size = 0
    for item in items:
        size += len(item[-1])
        if size > PIECE_BYTES and pieces[-1]:
            pieces.append([])
            size = len(item[-1])
        pieces[-1].append(item)
    return pieces[:-1]
