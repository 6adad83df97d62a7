"""store -> store: the same contract, and every operation is timed."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from antwort.api.events import Mark
from antwort.api.items import InputItem
from antwort.api.resources import Approval, ApprovalStatus, Conversation
from antwort.api.responses import Metadata, Response
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import (
    ApprovalPage,
    Bound,
    CallClaim,
    CallRecord,
    CallResult,
    Claimed,
    Decision,
    Entry,
    ItemPage,
    Link,
    NewResponse,
    PackedLog,
    Page,
    ResponsePage,
    ResponseStore,
    Wanted,
)
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

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        await self._timed("finish", self._store.finish(identity, response, marks, entries, approvals, log))

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        await self._timed("record_turn", self._store.record_turn(identity, response, marks, items_from))

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        return await self._timed("get", self._store.get(identity, response_id))

    async def delete(self, identity: Identity, response_id: str) -> bool:
        return await self._timed("delete", self._store.delete(identity, response_id))

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        return await self._timed("chain", self._store.chain(identity, response_id, bound))

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        return await self._timed("link", self._store.link(identity, response_id, with_input=with_input))

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        return await self._timed("input_items", self._store.input_items(identity, response_id, page))

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        return await self._timed("responses", self._store.responses(identity, page, wanted))

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        return await self._timed("items", self._store.items(identity, ids, bound))

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        return await self._timed("find_approvals", self._store.find_approvals(identity, ids))

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        return await self._timed("approvals", self._store.approvals(identity, page, status, now))

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        await self._timed("decide", self._store.decide(identity, response_id, decisions))

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        return await self._timed("claim_call", self._store.claim_call(identity, claim))

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        await self._timed("finish_call", self._store.finish_call(identity, call_id, settled_by, result))

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        await self._timed("release_call", self._store.release_call(identity, call_id, settled_by))

    async def call_record(self, identity: Identity, call_id: str) -> CallRecord | None:
        return await self._timed("call_record", self._store.call_record(identity, call_id))

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        work = self._store.note_writing_tools(tenant, server, names, now)
        return await self._timed("note_writing_tools", work)

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None:
        await self._timed("begin_conversation", self._store.begin_conversation(identity, conversation, entries))

    async def conversation(self, identity: Identity, conversation_id: str) -> Conversation | None:
        return await self._timed("conversation", self._store.conversation(identity, conversation_id))

    async def describe_conversation(
        self, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        work = self._store.describe_conversation(identity, conversation_id, metadata)
        return await self._timed("describe_conversation", work)

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        return await self._timed("delete_conversation", self._store.delete_conversation(identity, conversation_id))

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        return await self._timed("said", self._store.said(identity, conversation_id, bound))

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        work = self._store.conversation_items(identity, conversation_id, page)
        return await self._timed("conversation_items", work)

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None:
        work = self._store.conversation_item(identity, conversation_id, item_id)
        return await self._timed("conversation_item", work)

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        work = self._store.add_entries(identity, conversation_id, entries, approvals)
        return await self._timed("add_entries", work)

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        return await self._timed("delete_entry", self._store.delete_entry(identity, conversation_id, item_id))

    async def fail_running(self, message: str) -> int:
        return await self._timed("fail_running", self._store.fail_running(message))

    async def check(self) -> None:
        await self._timed("check", self._store.check())

    async def close(self) -> None:
        await self._store.close()
