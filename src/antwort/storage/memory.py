"""The store in the memory of this process: for tests, and for programs that need no record."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from antwort.api.events import Mark, Span, TurnAbandoned, TurnEnded
from antwort.api.items import Compaction, InputItem, McpApprovalRequest
from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.responses import Response
from antwort.api.status import FINAL, transition
from antwort.api.wire import UNSET, encode, replace
from antwort.errors import ApprovalInUse, ConversationNotFound, KeyInUse, ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage.base import (
    ITEM_BYTES,
    WRITING_TOOLS_PER_TENANT,
    ApprovalPage,
    Bound,
    CallClaim,
    CallRecord,
    CallResult,
    Claim,
    Claimed,
    Decision,
    Entry,
    HistoryTooLarge,
    ItemPage,
    Link,
    NewResponse,
    PackedLog,
    Page,
    ResponsePage,
    Wanted,
    as_of,
)
from antwort.storage.memory_conversations import Key, MemoryConversations, StoredConversation, key_of
from antwort.storage.rows import shown_item, to_body
from antwort.storage.rules import (
    WritingTools,
    approval_size,
    check_beginning,
    check_ending,
    check_running,
    cycle,
    declaring_links,
    failed,
    first_within,
    select_page,
)


@dataclass(slots=True, eq=False)
class StoredResponse:
    key: Key
    parent: StoredResponse | None
    response: Response
    request: bytes
    input: tuple[InputItem, ...]
    shown: tuple[InputItem, ...]
    """The input as it is shown to clients."""
    turn_ends: tuple[int, ...] = ()
    abandoned: tuple[Span, ...] = ()
    children: int = 0
    is_deleted: bool = False
    claim: Key | None = None
    """Tenant, owner and key of the claim that it was begun with."""
    log: PackedLog | None = None
    """The packed log of its events."""
    input_size: int = 0
    """Bytes of the input, counted as a `Bound` does."""
    output_size: int | None = None
    """Bytes of the response; None: not counted yet."""

    @property
    def size(self) -> int:
        if self.output_size is None:
            body = len(to_body(self.response))
            self.output_size = body + sum(len(encode(item)) + ITEM_BYTES for item in self.response.output)
        return self.input_size + self.output_size

    @property
    def is_compacted(self) -> bool:
        return any(isinstance(item, Compaction) for item in (*self.input, *self.response.output))

    def update(self, response: Response, marks: Sequence[tuple[int, Mark]]) -> None:
        self.response, self.output_size = response, None
        self.turn_ends = tuple(end for end, mark in marks if isinstance(mark, TurnEnded))
        self.abandoned = tuple((mark.start, end) for end, mark in marks if isinstance(mark, TurnAbandoned))

    def to_link(self) -> Link:
        return Link(
            response=self.response,
            request=self.request,
            input=self.input,
            turn_ends=self.turn_ends,
            abandoned=self.abandoned,
        )


class MemoryStore(MemoryConversations):
    """Beyond `max_responses`, a new response drops the oldest that has ended and that no other follows.

    So a chain is dropped from its end, never from its middle, and a store full of running responses grows past the
    bound rather than lose one.
    """

    def __init__(self, max_responses: int = 10_000, max_entries: int = 100_000) -> None:
        super().__init__(max_entries)
        self._max_responses = max_responses
        self._responses: dict[Key, StoredResponse] = {}
        self._items: dict[Key, list[tuple[StoredResponse, InputItem]]] = {}
        """By tenant, owner and the id of the item, the newest last."""
        self._droppable: OrderedDict[Key, None] = OrderedDict()
        """Responses that have ended and that none follows, the oldest first."""
        self._claims: dict[Key, tuple[Claim, StoredResponse]] = {}
        """By tenant, owner and idempotency key. A claim is dropped with its response at the latest."""
        self._approvals: dict[Key, Approval] = {}
        """The oldest first. Each is dropped with its response or conversation."""
        self._calls: dict[Key, CallRecord] = {}
        """By tenant, owner and call id."""
        self._calls_of: defaultdict[Key, list[Key]] = defaultdict(list)
        """By the key of the response or conversation that they are dropped with."""
        self._writing_tools: dict[tuple[str, str], WritingTools] = {}
        """By tenant and server."""
        self.is_durable: Callable[[Key], bool] = lambda _: False
        """Whether the response with that key has a durable run."""

    async def check(self) -> None:
        """There is nothing that could fail."""

    async def close(self) -> None:
        """There is nothing to release."""

    # ---- writing responses ----

    async def begin(self, new: NewResponse) -> None:
        response, identity = new.response, new.identity
        check_beginning(response.status)
        key = key_of(identity, response.id)
        if key in self._responses:
            raise StoreFault("A response with this id exists already.")
        if new.claim is not None and await self.claimed(identity, new.claim.key, new.claim.now) is not None:
            raise KeyInUse
        self._check_decisions(identity, new.decisions)
        parent = None
        if response.previous_response_id is not None:
            parent = self._find(identity, response.previous_response_id)
            if parent is None:
                raise ResponseNotFound(response.previous_response_id, param="previous_response_id")
            parent.children += 1
            self._droppable.pop(parent.key, None)
        response = replace(response, output=()) if response.output else response
        shown = tuple(map(shown_item, new.input, new.raw_input))
        self._responses[key] = stored = StoredResponse(key, parent, response, new.request, new.input, shown)
        stored.input_size = sum(map(len, new.raw_input)) + ITEM_BYTES * len(new.raw_input)
        self._index(stored, new.input)
        if new.claim is not None:
            stored.claim = key_of(identity, new.claim.key)
            self._claims[stored.claim] = new.claim, stored
        self._add_approvals(identity, new.approvals)
        self._apply_decisions(identity, response.id, new.decisions)
        while len(self._responses) > self._max_responses and self._droppable:
            self._drop_response(self._responses[next(iter(self._droppable))])

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        found = self._claims.get(key_of(identity, key))
        if found is None:
            return None
        claim, stored = found
        if stored.is_deleted or claim.expires_at <= now:
            return None
        return Claimed(request_hash=claim.request_hash, response_id=stored.response.id)

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        found = self._claims.get(key_of(identity, key))
        if found is not None and found[1].response.id == response_id:
            del self._claims[key_of(identity, key)]

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        stored = self._find(identity, response.id)
        if stored is None:
            raise ResponseNotFound(response.id)
        check_ending(stored.response.status, response.status)
        recorded = len(stored.response.output)
        stored.update(response, marks)
        stored.log = log
        self._index(stored, response.output[recorded:])
        self._add_approvals(identity, approvals)
        if not stored.children:
            self._droppable[stored.key] = None
        if response.conversation is not UNSET:
            self._add_entries(identity, response.conversation.id, entries)

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        stored = self._find(identity, response.id)
        if stored is None:
            raise ResponseNotFound(response.id)
        check_running(stored.response.status)
        stored.update(response, marks)
        self._index(stored, response.output[items_from:])

    async def delete(self, identity: Identity, response_id: str) -> bool:
        stored = self._find(identity, response_id)
        if stored is None:
            return False
        self._drop_approvals_of(stored)
        if stored.children:
            stored.is_deleted = True
        else:
            self._drop_response(stored)
        return True

    async def fail_running(self, message: str) -> int:
        found = self._responses.values()
        running = [each for each in found if each.response.status not in FINAL and not self.is_durable(each.key)]
        for stored in running:
            stored.response = failed(stored.response, message)
            if not stored.children:
                self._droppable[stored.key] = None
        return len(running)

    def set_in_progress(self, identity: Identity, response_id: str) -> None:
        """Set a queued response `in_progress`."""
        stored = self._find(identity, response_id)
        if stored is not None and stored.response.status == "queued":
            stored.response = replace(stored.response, status=transition("queued", "in_progress"))

    # ---- reading responses ----

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        stored = self._find(identity, response_id)
        return None if stored is None else stored.response

    def log_of(self, identity: Identity, response_id: str) -> PackedLog | None:
        """Return the log that `finish` was given."""
        stored = self._find(identity, response_id)
        return None if stored is None else stored.log

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        stored = self._find(identity, response_id)
        found: dict[Key, StoredResponse] = {}
        while stored is not None:
            if stored.key in found:
                raise cycle()
            found[stored.key] = stored
            stored = stored.parent
        chain = [*reversed(found.values())]
        declaring: Iterable[Link] = ()
        if bound is not None and sum(each.size for each in chain) > bound.most:
            first = first_within([(each.size, each.is_compacted) for each in chain], bound)
            if isinstance(first, HistoryTooLarge):
                raise first
            if bound.cut == "oldest":
                declaring = declaring_links(each.to_link() for each in chain[:first])
            chain = chain[first:]
        return (*declaring, *(each.to_link() for each in chain))

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        stored = self._find(identity, response_id)
        if stored is None:
            return None
        return stored.to_link() if with_input else replace(stored.to_link(), input=())

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        stored = self._find(identity, response_id)
        if stored is None:
            return None
        by_id = [(item.id, shown) for item, shown in zip(stored.input, stored.shown, strict=True)]
        found, has_more = select_page(by_id, page, itemgetter(0))
        return ItemPage(items=tuple(shown for _, shown in found), has_more=has_more)

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Look at all responses, whose number is bounded."""
        found = [
            each.response for each in self._responses.values() if _is_of(identity, each.key) and not each.is_deleted
        ]
        found.sort(key=attrgetter("created_at"))
        responses, has_more = select_page(
            found, page, attrgetter("id"), fits=wanted.fits, size_of=lambda response: len(encode(response))
        )
        return ResponsePage(responses=responses, has_more=has_more)

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        newest = {item_id: self._newest(identity, item_id) for item_id in ids}
        found = {item_id: item for item_id, item in newest.items() if item is not None}
        if bound is not None and (size := sum(len(encode(item)) + ITEM_BYTES for item in found.values())) > bound.most:
            raise HistoryTooLarge(size, size)
        return found

    def _find(self, identity: Identity, response_id: str) -> StoredResponse | None:
        stored = self._responses.get(key_of(identity, response_id))
        return None if stored is None or stored.is_deleted else stored

    def _newest(self, identity: Identity, item_id: str) -> InputItem | None:
        for stored, item in reversed(self._items.get(key_of(identity, item_id), ())):
            if not stored.is_deleted:
                return item
        return self._newest_entry(identity, item_id)

    # ---- the index of items, and what is dropped ----

    def _index(self, stored: StoredResponse, items: Sequence[InputItem]) -> None:
        tenant, owner, _ = stored.key
        for item in items:
            self._items.setdefault((tenant, owner, item.id), []).append((stored, item))

    def _unindex(self, stored: StoredResponse) -> None:
        tenant, owner, _ = stored.key
        for item_id in {item.id for item in (*stored.input, *stored.response.output)}:
            key = tenant, owner, item_id
            if rest := [entry for entry in self._items[key] if entry[0] is not stored]:
                self._items[key] = rest
            else:
                del self._items[key]

    def _drop_response(self, stored: StoredResponse | None) -> None:
        """Drop a response that none follows, and the deleted ones before it that no other response follows."""
        while stored is not None:
            del self._responses[stored.key]
            self._droppable.pop(stored.key, None)
            self._unindex(stored)
            if stored.claim is not None and self._claims.get(stored.claim, (None, None))[1] is stored:
                del self._claims[stored.claim]  # unless another response has claimed the key by now
            self._drop_approvals_of(stored)
            self._drop_calls(stored.key)
            parent, stored = stored.parent, None
            if parent is not None:
                parent.children -= 1
                if not parent.children and parent.is_deleted:
                    stored = parent
                elif not parent.children and parent.response.status in FINAL:
                    self._droppable[parent.key] = None
                    self._droppable.move_to_end(parent.key, last=False)

    def _drop_conversation(self, key: Key) -> StoredConversation:
        stored = super()._drop_conversation(key)
        self._drop_approvals(key, stored.approvals)
        self._drop_calls(key)
        return stored

    def _drop_approvals_of(self, stored: StoredResponse) -> None:
        """Drop the approvals that the response asked for, and those that were first stored with it."""
        tenant, owner, _ = stored.key
        ids = {item.id for item in stored.response.output if isinstance(item, McpApprovalRequest)}
        for item in stored.input:
            known = self._approvals.get((tenant, owner, item.id)) if isinstance(item, McpApprovalRequest) else None
            if known is not None and known.response_id == stored.response.id:
                ids.add(item.id)
        self._drop_approvals(stored.key, ids)

    def _drop_approvals(self, of: Key, ids: Iterable[str]) -> None:
        for approval_id in ids:
            self._approvals.pop((of[0], of[1], approval_id), None)

    def _drop_calls(self, of: Key) -> None:
        for key in self._calls_of.pop(of, ()):
            self._calls.pop(key, None)

    # ---- approvals ----

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        found = {each: self._approvals.get(key_of(identity, each)) for each in ids}
        return {each: approval for each, approval in found.items() if approval is not None}

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        """Look at all approvals, whose number is bounded as that of responses."""
        approvals, has_more = select_page(
            [approval for key, approval in self._approvals.items() if _is_of(identity, key)],
            page,
            attrgetter("id"),
            fits=lambda approval: status in (None, as_of(approval, now).status),
            size_of=approval_size,
        )
        return ApprovalPage(approvals=approvals, has_more=has_more)

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        self._check_decisions(identity, decisions)
        self._apply_decisions(identity, response_id, decisions)

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        added = self._add_entries(identity, conversation_id, entries)
        stored = self._conversations.get(key_of(identity, conversation_id))
        if added is not None and stored is not None:
            self._add_approvals(identity, approvals)
            stored.approvals += [approval.id for approval in approvals]
        return added

    def _check_decisions(self, identity: Identity, decisions: Sequence[Decision]) -> None:
        """Raise before anything is written."""
        for each in decisions:
            known = self._approvals.get(key_of(identity, each.id))
            if known is None:
                continue
            becomes_outdated = each.status == "outdated" and known.status == "approved"
            may_change = known.status in ("pending", each.status) or becomes_outdated
            if known.decided_by != each.after or not may_change:
                raise ApprovalInUse

    def _apply_decisions(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        for each in decisions:
            key = key_of(identity, each.id)
            if (known := self._approvals.get(key)) is not None:
                self._approvals[key] = replace(known, status=each.status, decided_by=response_id)

    def _add_approvals(self, identity: Identity, approvals: Sequence[Approval]) -> None:
        for approval in approvals:
            self._approvals.setdefault(key_of(identity, approval.id), approval)
            replaced = key_of(identity, approval.replaces or "")
            if (known := self._approvals.get(replaced)) is not None and known.status == "approved":
                self._approvals[replaced] = replace(known, status="outdated")

    # ---- tool calls ----

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        if claim.response_id is not None:
            if key_of(identity, claim.response_id) not in self._responses:
                raise ResponseNotFound(claim.response_id)
        elif key_of(identity, claim.conversation_id or "") not in self._conversations:
            raise ConversationNotFound(claim.conversation_id or "")
        key = key_of(identity, claim.call_id)
        known = self._calls.get(key)
        if known is not None and not (known.result is None and known.settled_by == claim.instead_of):
            return known
        self._calls[key] = CallRecord(claim.settled_by, claim.result)
        if known is None:
            for anchor in filter(None, (claim.response_id, claim.conversation_id)):
                self._calls_of[key_of(identity, anchor)].append(key)
        return None

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        if self._calls.get(key_of(identity, call_id)) == CallRecord(settled_by, None):
            self._calls[key_of(identity, call_id)] = CallRecord(settled_by, result)

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        if self._calls.get(key_of(identity, call_id)) == CallRecord(settled_by, None):
            del self._calls[key_of(identity, call_id)]

    async def call_record(self, identity: Identity, call_id: str) -> CallRecord | None:
        return self._calls.get(key_of(identity, call_id))

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        tools = self._writing_tools.get((tenant, server), WritingTools())
        if not tools.has(names, now):
            tools = self._writing_tools[tenant, server] = tools.with_names(names, now)
            of_tenant = [(key, each) for key, each in self._writing_tools.items() if key[0] == tenant]
            total = sum(len(each.names) for _, each in of_tenant)
            for key, each in sorted(of_tenant, key=lambda pair: pair[1].seen_at):
                if total <= WRITING_TOOLS_PER_TENANT:
                    break
                if key[1] != server:
                    total -= len(each.names)
                    del self._writing_tools[key]
        return tools.counted()


def _is_of(identity: Identity, key: Key) -> bool:
    return key[:2] == (identity.tenant, identity.owner)
