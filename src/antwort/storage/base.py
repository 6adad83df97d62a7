"""The contract of a store. Everything is found within the identity's tenant and owner only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.api.conversations import Conversation
from antwort.api.events import Mark, Span, is_within
from antwort.api.items import InputItem, OutputItem, ResultPart
from antwort.api.responses import Metadata, Response
from antwort.api.status import ResponseStatus
from antwort.identity import Identity


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The key that a request came with, to stand for its response from `now` on. Times are seconds since 1970."""

    key: str
    request_hash: bytes
    now: int
    expires_at: int


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """What a key stands for."""

    request_hash: bytes
    response_id: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the client has decided about a call that waits for its approval."""

    id: str
    """Of the approval."""
    status: Literal["approved", "denied", "outdated"]
    """`outdated`: approved, and not run, because the tool had changed since."""
    after: str | None = None
    """The response that was told so before, as far as is known, and does not act on it any more."""


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call as the model reads it."""

    output: str | tuple[ResultPart, ...]
    is_error: bool = False


class CallClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The right of one response to settle a call that an earlier response left open: to run it, or to decline it."""

    call_id: str
    settled_by: str
    """The response that settles the call."""
    response_id: str | None = None
    """The response whose record holds the claim: the one that asked for the call. The claim is deleted with it."""
    conversation_id: str | None = None
    """The conversation whose record holds the claim, if no response does."""
    result: CallResult | None = None
    """The result, if it is known without running the call."""
    instead_of: str | None = None
    """A response that claimed the call before, ended without recording a result, and loses its claim to this one."""


class CallRecord(msgspec.Struct, frozen=True):
    """A claimed call."""

    settled_by: str
    result: CallResult | None
    """None while the call runs, and for good if the process that ran it died."""


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before the first inference."""

    identity: Identity
    response: Response
    request: bytes
    """The request as it came."""
    input: tuple[InputItem, ...]
    raw_input: tuple[bytes, ...]
    """The JSON of each input item as it came; `input[i].id` is the id it goes by."""
    claim: Claim | None = None
    approvals: tuple[Approval, ...] = ()
    """Those among the decided ones that are not on record: they are kept with this response."""
    decisions: tuple[Decision, ...] = ()
    """What its request decides, and the response acts on."""
    worker: str | None = None
    """The process that makes it in the foreground, by its name; None for one that no process stands for."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is added to a conversation."""

    item: InputItem
    """`item.id` is the id it goes by there, unless another one has that already: then it gets a new one."""
    raw: bytes
    """Its JSON: as it came, or as it was sent."""
    direction: Literal["input", "output"] = "input"
    """Whether it is read as a client's, or as one of ours."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One response of a chain, with all that a later inference needs of it."""

    response: Response
    request: bytes
    input: tuple[InputItem, ...]
    turn_ends: tuple[int, ...]
    """For each turn, how many output items there were when its inference ended."""
    abandoned: tuple[Span, ...] = ()
    """Where in the output stands what was said in inferences that were made anew: no later one needs that."""

    @property
    def output(self) -> tuple[OutputItem, ...]:
        return self.response.output

    def said(self, start: int = 0, end: int | None = None) -> tuple[OutputItem, ...]:
        """Of the output, or of a part of it, what was not abandoned."""
        items = self.output[start:end]
        if not self.abandoned:
            return items
        return tuple(item for at, item in enumerate(items, start) if not is_within(self.abandoned, at))


ITEM_BYTES = 512
"""What an item of a history counts for beside its JSON: small ones take more room in memory than on record."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a history may be read at once."""

    most: int
    """Bytes: the JSON of the items and of the responses, and `ITEM_BYTES` for each item."""
    cut: Literal["never", "compacted", "oldest"] = "never"
    """What is left out of a longer one: nothing, what stands before its last compaction, or whatever is oldest. What is
    newest is read, whole responses of a chain, or whole items of a conversation; one at least. Before them stand the
    `additional_tools` items of what was left out as the oldest, up to `DECLARED_BYTES`: their tools are still declared.
    """


class HistoryTooLarge(Exception):
    """A history has more bytes than may be read. Nothing of it was read."""

    def __init__(self, size: int, recent: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size
        """Bytes of all of it, counted as a `Bound` does."""
        self.recent = recent
        """Of that, from the last compaction on."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list. `after` and `before` are ids of what is listed, and count in the direction of `order`.

    With `before` alone it is the part that ends just before that one.
    """

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None

    @property
    def is_forward(self) -> bool:
        """Whether the page starts at the front of the list, or at `after`; otherwise it ends at `before`."""
        return self.before is None or self.after is not None


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[InputItem, ...]
    has_more: bool


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which responses of a list."""

    model: str | None = None
    """None: of any model."""
    statuses: tuple[ResponseStatus, ...] = ()
    """Empty: in any status."""

    def fits(self, response: Response) -> bool:
        return self.model in (None, response.model) and (not self.statuses or response.status in self.statuses)


EVERYTHING = Wanted()


LARGEST_PAGE = 8 * 2**20
"""Bytes of responses on a page, about: the one that goes over is its last. So no list holds up the others for long."""


class ResponsePage(msgspec.Struct, frozen=True, kw_only=True):
    responses: tuple[Response, ...]
    has_more: bool


class ApprovalPage(msgspec.Struct, frozen=True, kw_only=True):
    approvals: tuple[Approval, ...]
    has_more: bool


WRITING_TOOLS_PER_SERVER = 500
"""Names on record for one server. Beyond that, all of its tools count as writing: so no server can push out its own."""
WRITING_TOOLS_PER_TENANT = 20_000
"""Names on record for one tenant. Beyond that, the servers that were listed least recently are forgotten."""
SEEN_AGAIN_SECONDS = 86_400
"""How old the time may be at which a server was listed, before it is written anew."""


def as_of(approval: Approval, now: int) -> Approval:
    """As it stands at that time: one that nobody has decided expires, and no store writes that down."""
    is_late = approval.status == "pending" and approval.expires_at <= now
    return msgspec.structs.replace(approval, status="expired") if is_late else approval


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the log of a response that has ended, as `runs` packs it: what is in it only that knows."""

    first: int
    """The number of its first event."""
    next: int
    """And of the one behind its last."""
    data: bytes


PackedLog: TypeAlias = Sequence[LogPiece]


class ResponseStore(Protocol):
    """Methods raise `StoreFault` when the record cannot be read or written, and nothing else of their own.

    A deleted response is not found by anything but the chains of its descendants.
    """

    async def begin(self, new: NewResponse) -> None:
        """Commit the row, the input items, the claim and the decisions, `in_progress`, before the first inference: all
        or nothing.

        Raises `ResponseNotFound` naming `previous_response_id` when that response is gone by now, and `KeyInUse` when
        the key of the claim stands for another response: one that is there, by a claim that has not expired; and what
        `decide` raises.
        """
        ...

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        """What the key stands for; nothing when its claim has expired, or its response is gone."""
        ...

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        """The key does not stand for this response any more; for another one it still may."""
        ...

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        """Commit the outcome and the output items. `marks` are the run's own events, each with the number of output
        items there were when it happened. Returns only when the commit is done.

        `entries` are added to the conversation that the response names, in this order and with nothing between them,
        by the same commit; where that conversation is gone by now, they are not. `approvals` are those that it asks
        for; they go when it is deleted. `log` is all that its stream has said, as `runs` packs it; it goes then, too.

        Raises `IllegalTransition` when the row is final already, `ResponseNotFound` when it is gone: a response
        deleted while it ran stays deleted.
        """
        ...

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        """Commit what a running response has produced so far: output items that will not change, and marks. The first
        `items_from` items are on record already. Raises as `finish` does when the row is final or gone.
        """
        ...

    async def get(self, identity: Identity, response_id: str) -> Response | None: ...

    async def delete(self, identity: Identity, response_id: str) -> bool:
        """Whether it was there. Its items stay for its descendants, hidden from everything else."""
        ...

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        """The response and its ancestors, oldest first; empty when it is not found. A few queries, however many links.

        Their sizes are known before any is read. Raises `HistoryTooLarge` when the chain is beyond the bound, and
        `InvalidField` naming `previous_response_id` when it has a cycle. The request of a link may be without its
        input, which is there as items.
        """
        ...

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        """The response alone; None when it is not found. Its request is as it came, unless it is read without its
        input.
        """
        ...

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        """The items the request of that response brought; None when the response is not found.

        Raises `InvalidField` naming `after` or `before` when that id is not one of them.
        """
        ...

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Those that fit, in the order of their creation: by `created_at`, then as they were begun. There may be fewer
        than the page has room for, and yet more to come: a page of `LARGEST_PAGE` ends, and a record that cannot be
        read is left out.

        `after` and `before` may be any that the identity has, also one that does not fit, or not any more. Raises
        `InvalidField` naming the one that is not there.
        """
        ...

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        """The newest item under each id, across responses, as far as found; what no response has, across
        conversations. Raises `HistoryTooLarge` when they are beyond the bound, whatever that says of cuts.
        """
        ...

    # ---- approvals ----

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        """Those that are there, as they are written: `as_of` tells which have expired."""
        ...

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        """In the order in which they were asked for, as they are written; with a status, those that have it `now`.
        There may be fewer than the page has room for, and yet more to come.

        `after` and `before` may be any that the identity has. Raises `InvalidField` naming the one that is not there.
        """
        ...

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        """What `begin` does with the decisions of a response, for one that is not kept: all or nothing. What is not
        there is passed over. Raises `Conflict` where another response was told a decision since, or another one. What
        was approved may still become outdated.
        """
        ...

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        """Record the tools that a server lists as writing, and return all that were ever recorded for it; None when
        every tool of it counts as writing, because there were more than `WRITING_TOOLS_PER_SERVER`.

        Names are never removed one by one. Beyond `WRITING_TOOLS_PER_TENANT`, whole servers go, the least recently
        listed first, and never the one that is noted.
        """
        ...

    # ---- calls that a later response settles ----

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        """Record the claim before the call is run or declined. None: the claim holds. Otherwise the call is settled by
        another response, or by the same one before, and this is its record.

        Raises `ResponseNotFound` or `ConversationNotFound` where the one that holds the claim is gone.
        """
        ...

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        """Take back a claim of this response whose call has not begun. One with a result stands."""
        ...

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        """Record the result of a call that this response has claimed. The first result counts."""
        ...

    async def call_record(self, identity: Identity, call_id: str) -> CallRecord | None: ...

    # ---- conversations ----

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None: ...

    async def conversation(self, identity: Identity, conversation_id: str) -> Conversation | None: ...

    async def describe_conversation(
        self, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        """It with this metadata in the place of what it had; None when it is not found."""
        ...

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        """Whether it was there. Its items go with it; responses that were its turns stay."""
        ...

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        """All its items, oldest first; None when it is not found. Raises `HistoryTooLarge` when they are beyond the
        bound.
        """
        ...

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        """None when it is not found. Raises `InvalidField` naming `after` or `before` when that id is not one of its
        items.
        """
        ...

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None: ...

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        """Add them at the end, in this order and with nothing between them; the items with the ids they have got. None
        when the conversation is not found. `approvals` are those that they ask for, of a response that is not kept;
        they go when the conversation is deleted.
        """
        ...

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        """Whether it was there."""
        ...

    async def fail_running(self, message: str) -> int:
        """End the rows that a dead process left `queued` or `in_progress` as `failed`; how many there were. Those that
        a durable run stands for are left alone, and those of workers that live.
        """
        ...

    async def check(self) -> None:
        """Raise `StoreFault` unless the store can be read and written."""
        ...

    async def close(self) -> None: ...
