"""A run log that passes everything on: tests override what is to go wrong, or to be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from antwort import Identity
from antwort.engine.settings import BackgroundSettings
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import (
    ClaimedRun,
    EventRecord,
    Lease,
    Load,
    NewRun,
    Outline,
    Renewed,
    RunEnding,
    RunLog,
    Traits,
    WorkerInfo,
    run_log_for,
)


class ForwardingLog(RunLog):
    """The log of a store. `nudge` wakes whoever waits for work or for cancels."""

    def __init__(self, store: ResponseStore, **options: Any) -> None:
        """The options are those of `BackgroundSettings`."""
        log = run_log_for(store, BackgroundSettings(**options))
        assert log is not None
        self.inner = log
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        self._nudged.set()
        self._nudged = asyncio.Event()

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    async def join(self, worker: WorkerInfo) -> None:
        await self.inner.join(worker)

    async def leave(self, worker: str) -> None:
        await self.inner.leave(worker)

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        return await self.inner.renew(worker, leases)

    async def owner(self, identity: Identity, response_id: str) -> WorkerInfo | None:
        return await self.inner.owner(identity, response_id)

    async def submit(self, run: NewRun) -> None:
        await self.inner.submit(run)

    async def adopt(self, worker: str, identity: Identity, response_id: str) -> Lease:
        return await self.inner.adopt(worker, identity, response_id)

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        return await self.inner.claim(worker, count)

    async def take(self, worker: str, identity: Identity, response_id: str) -> ClaimedRun | None:
        return await self.inner.take(worker, identity, response_id)

    async def is_busy(self, identity: Identity, conversation_id: str) -> bool:
        return await self.inner.is_busy(identity, conversation_id)

    async def records(self, lease: Lease) -> Sequence[EventRecord]:
        return await self.inner.records(lease)

    async def append(self, lease: Lease, record: EventRecord) -> None:
        await self.inner.append(lease, record)

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        await self.inner.finish(lease, ending, record)

    async def give_up(self, lease: Lease, ending: RunEnding) -> None:
        await self.inner.give_up(lease, ending)

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        await self.inner.release(lease, is_lost=is_lost)

    async def cancel(self, identity: Identity, response_id: str) -> bool:
        return await self.inner.cancel(identity, response_id)

    async def read(
        self, identity: Identity, response_id: str, after: int = -1, *, follow: bool = False
    ) -> AsyncGenerator[list[EventRecord], None]:
        async with aclosing(self.inner.read(identity, response_id, after, follow=follow)) as reading:
            async for records in reading:
                yield records

    async def sent(self, identity: Identity, response_id: str) -> int:
        return await self.inner.sent(identity, response_id)

    async def outline(self, identity: Identity, response_id: str) -> Outline | None:
        return await self.inner.outline(identity, response_id)

    async def wait_for_work(self, seconds: float) -> None:
        await self._nudged_or(self.inner.wait_for_work(seconds))

    async def wait_for_cancels(self, seconds: float) -> None:
        await self._nudged_or(self.inner.wait_for_cancels(seconds))

    async def _nudged_or(self, waiting: Any) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._nudged.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            for task in tasks:
                task.cancel()

    async def load(self) -> Load:
        return await self.inner.load()

    async def sweep(self) -> int:
        return await self.inner.sweep()

    async def close(self) -> None:
        await self.inner.close()
