"""What the store in memory does with large responses is done in pieces: other tasks run between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from antwort.storage.base import NewResponse
from antwort.storage.database import Database, Operation
from antwort.storage.memory import MemoryStore
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import ONE, begun, everything, finish, new_run, said
from storage_cases import ME, STOPPED, asked, ended, message

T = TypeVar("T")
MEGABYTE = 2**20
PIECES = 24
"""Each piece holds one item of three megabytes: two are more than an operation takes."""


def large() -> NewResponse:
    items = [{"role": "user", "content": "x" * 3 * MEGABYTE} for _ in range(PIECES)]
    return asked(items, response_id="large")


async def turns_during(work: Awaitable[object]) -> int:
    """Return how many turns another task gets while the work is done."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    await work
    counter.cancel()
    return turns


async def test_a_large_response_is_written_in_pieces() -> None:
    store, new = MemoryStore(), large()
    assert await turns_during(store.begin(new)) >= PIECES - 1
    response = ended(new, *[message("y" * 3 * MEGABYTE) for _ in range(PIECES)])
    assert await turns_during(store.finish(ME, response, STOPPED)) >= PIECES - 1
    assert await store.get(ME, "large") == response


async def test_a_large_response_is_read_in_pieces() -> None:
    store, new = MemoryStore(), large()
    await store.begin(new)
    await store.finish(ME, ended(new), STOPPED)
    assert await turns_during(store.chain(ME, "large")) >= PIECES - 1
    assert await turns_during(store.link(ME, "large")) >= PIECES - 1
    link = await store.link(ME, "large")
    assert link is not None
    assert link.input == new.input
    assert [each.input for each in await store.chain(ME, "large")] == [new.input]


class Counting(Database):
    """A database over another one that counts the operations that read."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database, self.dialect, self.durability = database, database.dialect, database.durability
        self.reads = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, operation: Operation[T]) -> T:
        return await self._database.write(operation)

    async def read(self, operation: Operation[T]) -> T:
        self.reads += 1
        return await self._database.read(operation)


async def test_a_large_log_is_read_in_pieces_to_be_packed() -> None:
    database = Counting(MemoryStore().database)
    log = SqlRunLog(database)
    await log.join(ONE)
    claimed = await begun(log, new_run("resp_1"))
    for at in range(1, PIECES + 1):
        await log.append(claimed.lease, said(at, at + 1, "x" * MEGABYTE))
    await finish(log, claimed, PIECES + 1, PIECES + 2)
    before = [event for record in await everything(log, "resp_1") for event in record.events]
    database.reads = 0
    await log.sweep()
    assert database.reads >= PIECES
    assert [event for record in await everything(log, "resp_1") for event in record.events] == before
    await log.close()
