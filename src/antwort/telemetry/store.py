"""store -> store: the same contract, and every operation is timed."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from antwort.api.events import Mark
from antwort.api.items import InputItem
from antwort.api.responses import Response
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import Claimed, ItemPage, Link, NewResponse, Page, ResponsePage, ResponseStore, Wanted
from antwort.telemetry.metrics import Metrics

T = TypeVar("T")


class MeasuredStore:
    """A store that fails counts as an error; one that says "not found" or "not so" has done its work."""

    def __init__(self, store: ResponseStore, metrics: Metrics) -> None:
        self._store, self._times = store, metrics.store_time

    async def _timed(self, operation: str, work: Awaitable[T]) -> T:
        began = perf_counter()
        outcome = "ok"
        try:
            return await work
        except StoreFault:
            outcome = "error"
            raise
        finally:
            self._times.add((operation, outcome), perf_counter() - began)

    async def begin(self, new: NewResponse) -> None:
        await self._timed("begin", self._store.begin(new))

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        return await self._timed("claimed", self._store.claimed(identity, key, now))

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        await self._timed("release", self._store.release(identity, key, response_id))

    async def finish(self, identity: Identity, response: Response, marks: Sequence[tuple[int, Mark]]) -> None:
        await self._timed("finish", self._store.finish(identity, response, marks))

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        return await self._timed("get", self._store.get(identity, response_id))

    async def delete(self, identity: Identity, response_id: str) -> bool:
        return await self._timed("delete", self._store.delete(identity, response_id))

    async def chain(self, identity: Identity, response_id: str) -> tuple[Link, ...]:
        return await self._timed("chain", self._store.chain(identity, response_id))

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        return await self._timed("input_items", self._store.input_items(identity, response_id, page))

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        return await self._timed("responses", self._store.responses(identity, page, wanted))

    async def items(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, InputItem]:
        return await self._timed("items", self._store.items(identity, ids))

    async def fail_running(self, message: str) -> int:
        return await self._timed("fail_running", self._store.fail_running(message))

    async def check(self) -> None:
        await self._timed("check", self._store.check())

    async def close(self) -> None:
        await self._store.close()
