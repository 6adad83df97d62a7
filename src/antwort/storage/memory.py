"""Responses in the memory of this process: for tests, for programs that need no record, for trying things out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from antwort.api.approvals import Approval
from antwort.api.events import Mark, Span
from antwort.api.items import Compaction, InputItem, McpApprovalRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL, transition
from antwort.api.wire import UNSET, encode, replace
from antwort.errors import ConversationNotFound, KeyInUse, ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage.base import (
    ITEM_BYTES,
    Bound,
    CallClaim,
    CallRecord,
    Claim,
    Claimed,
    Entry,
    Excess,
    HistoryTooLarge,
    ItemPage,
    Link,
    NewResponse,
    PackedLog,
    Page,
    ResponsePage,
    Wanted,
    declaring_links,
    first_within,
)
from antwort.storage.memory_approvals import MemoryApprovals
from antwort.storage.memory_calls import MemoryCalls
from antwort.storage.memory_conversations import Key, MemoryConversations
from antwort.storage.rows import shown_item, to_body
from antwort.storage.rules import (
    abandoned,
    check_beginning,
    check_ending,
    check_running,
    cycle,
    failed,
    select,
    select_responses,
    turn_ends,
)
from antwort.storage.writing_tools import MemoryWritingTools


@dataclass(slots=True, eq=False)
class _Row:
    key: Key
    parent: Key | None
    response: Response
    request: bytes
    input: tuple[InputItem, ...]
    shown: tuple[InputItem, ...]
    """The input as it is given back."""
    turn_ends: tuple[int, ...] = ()
    abandoned: tuple[Span, ...] = ()
    children: int = 0
    is_deleted: bool = False
    claim: Key | None = None
    """Tenant, owner and key of the claim that it was begun with."""
    log: PackedLog | None = None
    """What its stream has said, as it was packed."""
    input_size: int = 0
    """Bytes of the input, counted as a `Bound` does."""
    said_size: int | None = None
    """Of the response; None: not counted yet."""

    @property
    def size(self) -> int:
        if self.said_size is None:
            body = len(to_body(self.response))
            self.said_size = body + sum(len(encode(item)) + ITEM_BYTES for item in self.response.output)
        return self.input_size + self.said_size

    @property
    def is_compacted(self) -> bool:
        return any(isinstance(item, Compaction) for item in (*self.input, *self.response.output))

    def to_link(self) -> Link:
        return Link(
            response=self.response,
            request=self.request,
            input=self.input,
            turn_ends=self.turn_ends,
            abandoned=self.abandoned,
        )


class MemoryStore(MemoryConversations, MemoryApprovals, MemoryCalls, MemoryWritingTools):
    """Beyond `max_responses`, a new response drives out the oldest that is finished and that no other follows.

    So a chain goes from its end, never from its middle, and a store full of running responses grows past the bound
    rather than lose one.
    """

    def __init__(self, max_responses: int = 10_000, max_entries: int = 100_000) -> None:
        MemoryConversations.__init__(self, max_entries)
        MemoryApprovals.__init__(self)
        MemoryCalls.__init__(self)
        MemoryWritingTools.__init__(self)
        self._max_responses = max_responses
        self._rows: dict[Key, _Row] = {}
        self._items: dict[Key, list[tuple[_Row, InputItem]]] = {}
        self._loose: OrderedDict[Key, None] = OrderedDict()
        """Finished and followed by none, the oldest first."""
        self._claims: dict[Key, tuple[Claim, _Row]] = {}
        """Each goes with its row at the latest."""
        self.is_durable: Callable[[Key], bool] = lambda _: False
        """Whether a durable run stands for the response with that name."""

    async def begin(self, new: NewResponse) -> None:
        response, identity = new.response, new.identity
        check_beginning(response.status)
        key = identity.tenant, identity.owner, response.id
        if key in self._rows:
            raise StoreFault("A response with this id exists already.")
        if new.claim is not None and self._claimed(identity, new.claim.key, new.claim.now) is not None:
            raise KeyInUse
        self._check(identity, new.decisions)
        parent = self._follow(identity, response.previous_response_id)
        response = replace(response, output=()) if response.output else response
        shown = tuple(map(shown_item, new.input, new.raw_input))
        self._rows[key] = row = _Row(key, parent, response, new.request, new.input, shown)
        row.input_size = sum(map(len, new.raw_input)) + ITEM_BYTES * len(new.raw_input)
        self._index(row, new.input)
        if new.claim is not None:
            self._claim(row, new.claim)
        self._keep(identity, new.approvals)
        self._decide(identity, response.id, new.decisions)
        while len(self._rows) > self._max_responses and self._loose:
            self._remove(next(iter(self._loose)))

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        return self._claimed(identity, key, now)

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        name = identity.tenant, identity.owner, key
        found = self._claims.get(name)
        if found is not None and found[1].response.id == response_id:
            del self._claims[name]

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        row = self._find(identity, response.id)
        if row is None:
            raise ResponseNotFound(response.id)
        check_ending(row.response.status, response.status)
        recorded = len(row.response.output)
        row.response, row.turn_ends, row.abandoned, row.log = response, turn_ends(marks), abandoned(marks), log
        row.said_size = None
        self._index(row, response.output[recorded:])
        self._keep(identity, approvals)
        if not row.children:
            self._loose[row.key] = None
        if response.conversation is not UNSET:
            self._add(identity, response.conversation.id, entries)

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        row = self._find(identity, response.id)
        if row is None:
            raise ResponseNotFound(response.id)
        check_running(row.response.status)
        row.response, row.turn_ends, row.abandoned = response, turn_ends(marks), abandoned(marks)
        row.said_size = None
        self._index(row, response.output[items_from:])

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        if claim.response_id is not None:
            if (identity.tenant, identity.owner, claim.response_id) not in self._rows:
                raise ResponseNotFound(claim.response_id)
        elif claim.conversation_id is None or self._look_up(identity, claim.conversation_id) is None:
            raise ConversationNotFound(claim.conversation_id or "")
        return self._claim_call(identity, claim)

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        added = self._add(identity, conversation_id, entries)
        if added is not None and (told := self._look_up(identity, conversation_id)) is not None:
            self._keep(identity, approvals)
            told.asked += [approval.id for approval in approvals]
        return added

    def set_in_progress(self, identity: Identity, response_id: str) -> None:
        """A queued response is made from now on."""
        row = self._find(identity, response_id)
        if row is not None and row.response.status == "queued":
            row.response = replace(row.response, status=transition("queued", "in_progress"))

    def log_of(self, identity: Identity, response_id: str) -> PackedLog | None:
        """What `finish` was given of the response."""
        row = self._find(identity, response_id)
        return None if row is None else row.log

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        row = self._find(identity, response_id)
        return None if row is None else row.response

    async def delete(self, identity: Identity, response_id: str) -> bool:
        row = self._find(identity, response_id)
        if row is None:
            return False
        self._forget_approvals(row)
        if row.children:
            row.is_deleted = True
        else:
            self._remove(row.key)
        return True

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        row = self._find(identity, response_id)
        rows: dict[Key, _Row] = {}
        while row is not None:
            if row.key in rows:
                raise cycle()
            rows[row.key] = row
            row = self._rows[row.parent] if row.parent is not None else None
        chain = [*reversed(rows.values())]
        if bound is not None and sum(row.size for row in chain) > bound.most:
            first = first_within([(row.size, row.is_compacted) for row in chain], bound)
            if isinstance(first, Excess):
                raise HistoryTooLarge(*first)
            left_out, chain = chain[:first], chain[first:]
            if bound.cut == "oldest":
                declaring = declaring_links(row.to_link() for row in left_out)
                return (*declaring, *(row.to_link() for row in chain))
        return tuple(row.to_link() for row in chain)

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        row = self._find(identity, response_id)
        if row is None:
            return None
        return row.to_link() if with_input else replace(row.to_link(), input=())

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        row = self._find(identity, response_id)
        if row is None:
            return None
        places, has_more = select([item.id for item in row.input], page)
        return ItemPage(items=tuple(row.shown[place] for place in places), has_more=has_more)

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Goes through all there are, which is bounded."""
        whose = identity.tenant, identity.owner
        found = [row.response for row in self._rows.values() if row.key[:2] == whose and not row.is_deleted]
        return select_responses(sorted(found, key=attrgetter("created_at")), page, wanted)

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        newest = {item_id: self._newest(identity, item_id) for item_id in ids}
        found = {item_id: item for item_id, item in newest.items() if item is not None}
        if bound is not None and (size := sum(len(encode(item)) + ITEM_BYTES for item in found.values())) > bound.most:
            raise HistoryTooLarge(size, size)
        return found

    async def fail_running(self, message: str) -> int:
        rows = self._rows.values()
        running = [row for row in rows if row.response.status not in FINAL and not self.is_durable(row.key)]
        for row in running:
            row.response = failed(row.response, message)
            if not row.children:
                self._loose[row.key] = None
        return len(running)

    async def check(self) -> None:
        """There is nothing that could fail."""

    async def close(self) -> None:
        """Nothing is held but memory."""

    def _find(self, identity: Identity, response_id: str) -> _Row | None:
        row = self._rows.get((identity.tenant, identity.owner, response_id))
        return None if row is None or row.is_deleted else row

    def _newest(self, identity: Identity, item_id: str) -> InputItem | None:
        for row, item in reversed(self._items.get((identity.tenant, identity.owner, item_id), ())):
            if not row.is_deleted:
                return item
        return self._newest_entry(identity, item_id)

    def _follow(self, identity: Identity, response_id: str | None) -> Key | None:
        """The key of the parent, which has one more child from now on."""
        if response_id is None:
            return None
        parent = self._find(identity, response_id)
        if parent is None:
            raise ResponseNotFound(response_id, param="previous_response_id")
        parent.children += 1
        self._loose.pop(parent.key, None)
        return parent.key

    def _claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        found = self._claims.get((identity.tenant, identity.owner, key))
        if found is None:
            return None
        claim, row = found
        if row.is_deleted or claim.expires_at <= now:
            return None
        return Claimed(request_hash=claim.request_hash, response_id=row.response.id)

    def _claim(self, row: _Row, claim: Claim) -> None:
        row.claim = row.key[0], row.key[1], claim.key
        self._claims[row.claim] = claim, row

    def _unclaim(self, row: _Row) -> None:
        """Unless another has the key by now."""
        if row.claim is not None and (found := self._claims.get(row.claim)) is not None and found[1] is row:
            del self._claims[row.claim]

    def _forget_approvals(self, row: _Row) -> None:
        tenant, owner, _ = row.key
        asked = {item.id for item in row.response.output if isinstance(item, McpApprovalRequest)}
        brought = {item.id for item in row.input if isinstance(item, McpApprovalRequest)}
        kept = (self._approvals.get((tenant, owner, each)) for each in brought)
        asked |= {each.id for each in kept if each is not None and each.response_id == row.response.id}
        self._drop_approvals(tenant, owner, [*asked])

    def _forget(self, key: Key) -> bool:
        """A conversation. The approvals that its turns ask for go with those of them that are kept, else with it."""
        told = self._told.get(key)
        if told is not None:
            self._drop_approvals(key[0], key[1], told.asked)
            self._drop_calls(key)
        return super()._forget(key)

    def _index(self, row: _Row, items: Sequence[InputItem]) -> None:
        tenant, owner, _ = row.key
        for item in items:
            self._items.setdefault((tenant, owner, item.id), []).append((row, item))

    def _unindex(self, row: _Row) -> None:
        tenant, owner, _ = row.key
        for item_id in {item.id for item in (*row.input, *row.response.output)}:
            key = tenant, owner, item_id
            if rest := [entry for entry in self._items[key] if entry[0] is not row]:
                self._items[key] = rest
            else:
                del self._items[key]

    def _remove(self, key: Key) -> None:
        """Take out a row that none follows, and the deleted rows before it that were kept for it alone."""
        gone: Key | None = key
        while gone is not None:
            row = self._rows.pop(gone)
            self._loose.pop(gone, None)
            self._unindex(row)
            self._unclaim(row)
            self._forget_approvals(row)
            self._drop_calls(row.key)
            gone = None if row.parent is None else self._release(self._rows[row.parent])

    def _release(self, parent: _Row) -> Key | None:
        """One child less. The key of the parent when it has to go too."""
        parent.children -= 1
        if parent.children:
            return None
        if parent.is_deleted:
            return parent.key
        if parent.response.status in FINAL:
            self._loose[parent.key] = None
            self._loose.move_to_end(parent.key, last=False)
        return None
