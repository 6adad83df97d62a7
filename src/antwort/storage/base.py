"""The contract of a store of responses, conversations and approvals. An identity finds only what its tenant and owner
have.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from antwort.api.events import Mark, Span, is_within
from antwort.api.items import InputItem, OutputItem, ResultPart
from antwort.api.resources import Approval, ApprovalStatus, Conversation
from antwort.api.responses import Metadata, Response
from antwort.api.status import ResponseStatus
from antwort.identity import Identity


class KeyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The idempotency key of a request, which stands for its response from `now` on. Times are seconds since 1970."""

    key: str
    request_hash: bytes
    now: int
    expires_at: int


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The request and the response that an idempotency key stands for."""

    request_hash: bytes
    response_id: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The client's decision about a call that waits for its approval."""

    id: str
    """The id of the approval."""
    status: Literal["approved", "denied", "outdated"]
    """`outdated`: approved and not run, because the tool has changed since."""
    after: str | None = None
    """The response that had the decision before, as far as is known, and no longer acts on it."""


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call as the model sees it."""

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
    """None while the call runs, and for ever if its process died."""


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response before its first inference."""

    identity: Identity
    response: Response
    request: bytes
    """The request as it was received."""
    input: tuple[InputItem, ...]
    raw_input: tuple[bytes, ...]
    """The JSON of each input item as it was received. Its id is `input[i].id`."""
    claim: KeyClaim | None = None
    approvals: tuple[Approval, ...] = ()
    """Decided approvals that are not stored yet: they are stored with this response."""
    decisions: tuple[Decision, ...] = ()
    """The decisions of its request, which the response acts on."""
    worker: str | None = None
    """The name of the process that runs it in the foreground; None if there is none."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is added to a conversation."""

    item: InputItem
    """`item.id` is its id there, unless another item has that id: then it gets a new one."""
    raw: bytes
    """Its JSON, as it was received or sent."""
    direction: Literal["input", "output"] = "input"
    """Whether it is parsed as an item of a client, or as one of ours."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A response of a chain, with everything that a later inference needs of it."""

    response: Response
    request: bytes
    input: tuple[InputItem, ...]
    turn_ends: tuple[int, ...]
    """For each turn, the number of output items when its inference ended."""
    abandoned: tuple[Span, ...] = ()
    """Ranges of the output that inferences wrote which were repeated: no later inference needs them."""

    @property
    def output(self) -> tuple[OutputItem, ...]:
        return self.response.output

    def said(self, start: int = 0, end: int | None = None) -> tuple[OutputItem, ...]:
        """Return the output, or a part of it, without what was abandoned."""
        items = self.output[start:end]
        if not self.abandoned:
            return items
        return tuple(item for at, item in enumerate(items, start) if not is_within(self.abandoned, at))


ITEM_BYTES = 512
"""What an item of a history counts beside its JSON: small items take more memory than storage."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a history may be read."""

    most: int
    """Bytes: the JSON of the items and of the responses, and `ITEM_BYTES` for each item."""
    cut: Literal["never", "compacted", "oldest"] = "never"
    """What is left out of a longer history: nothing, what is before its last compaction, or the oldest. The newest is
    read, in whole responses of a chain or whole items of a conversation; one at least. Before it come the
    `additional_tools` items of the oldest that was left out, up to `DECLARED_BYTES`: their tools are still declared.
    """


class HistoryTooLarge(Exception):
    """A history has more bytes than may be read, and was not read."""

    def __init__(self, size: int, recent: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size
        """Bytes of the whole history, counted as a `Bound` does."""
        self.recent = recent
        """Bytes from the last compaction on."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list. `after` and `before` are ids in the list, and count in the direction of `order`. With `before`
    alone, it is the part that ends just before that id.
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
    """A filter of responses."""

    model: str | None = None
    """None: any model."""
    statuses: tuple[ResponseStatus, ...] = ()
    """Empty: any status."""

    def fits(self, response: Response) -> bool:
        return self.model in (None, response.model) and (not self.statuses or response.status in self.statuses)


EVERYTHING = Wanted()


LARGEST_PAGE = 8 * 2**20
"""Bytes of a page, about: the one that exceeds it is the last. So no list delays other requests for long."""


class ResponsePage(msgspec.Struct, frozen=True, kw_only=True):
    responses: tuple[Response, ...]
    has_more: bool


class ApprovalPage(msgspec.Struct, frozen=True, kw_only=True):
    approvals: tuple[Approval, ...]
    has_more: bool


WRITING_TOOLS_PER_SERVER = 500
"""Names stored for one server. Beyond that, all its tools count as writing: no server can push out its own names."""
WRITING_TOOLS_PER_TENANT = 20_000
"""Names stored for one tenant. Beyond that, the servers are dropped that were listed least recently."""
SEEN_AGAIN_SECONDS = 86_400
"""How old the stored time of a server's last listing may be."""


def as_of(approval: Approval, now: int) -> Approval:
    """Return the approval as it is at that time: an undecided one expires, and no store writes that down."""
    is_late = approval.status == "pending" and approval.expires_at <= now
    return msgspec.structs.replace(approval, status="expired") if is_late else approval


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the event log of a response that has ended. Only the run log knows its format."""

    first: int
    """The number of its first event."""
    next: int
    """The number of the event after its last."""
    data: bytes


PackedLog: TypeAlias = Sequence[LogPiece]


class ResponseStore(Protocol):
    """All methods raise `StoreFault` when the record cannot be read or written.

    A deleted response is found only by the chains of its descendants.
    """

    async def begin(self, new: NewResponse) -> None:
        """Commit the response, its input items, its claim and its decisions before the first inference: all or nothing.

        Raises `ResponseNotFound` for `previous_response_id` when that response is gone by now, `KeyInUse` when a claim
        that has not expired holds the key for another response, and what `decide` raises.
        """
        ...

    async def claimed(self, identity: Identity, key: str, now: int) -> KeyHolder | None:
        """Return what the key stands for; None when its claim has expired, or its response is gone."""
        ...

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        """Delete the claim of this response on the key, not that of another one."""
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
        """Commit the outcome and the output items. `marks` are the run's internal events, each with the number of
        output items at that time.

        The same commit adds `entries` to the conversation of the response, in this order and with nothing between them,
        unless that conversation is gone by now. `approvals` are those that the response asks for; `log` is the packed
        log of its events. Both are deleted with it.

        Raises `IllegalTransition` when the response has ended already, and `ResponseNotFound` when it is gone: a
        response that was deleted while it ran stays deleted.
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
        `items_from` items are stored already. Raises what `finish` raises.
        """
        ...

    async def get(self, identity: Identity, response_id: str) -> Response | None: ...

    async def delete(self, identity: Identity, response_id: str) -> bool:
        """Return whether it was there. Its items stay for its descendants, hidden from everything else."""
        ...

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        """Return the response and its ancestors, oldest first; nothing when it is not found. The number of queries does
        not depend on the number of links. The request of a link may be without its input, which it has as items.

        Raises `HistoryTooLarge` when the chain exceeds the bound, before any of it is read, and `InvalidField` for
        `previous_response_id` when it has a cycle.
        """
        ...

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        """Return the response alone; None when it is not found. Its request is as it was received, unless it is read
        without its input.
        """
        ...

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        """Return the input items of the response; None when it is not found. Raises `InvalidField` for `after` or
        `before` when that id is not one of them.
        """
        ...

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Return responses in the order of their creation: by `created_at`, then as they were begun. A page may have
        fewer than its limit though more follow: it ends at `LARGEST_PAGE`, and leaves out a record that cannot be read.

        `after` and `before` may be any response of the identity, even one that is not wanted. Raises `InvalidField` for
        one that is not there.
        """
        ...

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        """Return the newest item under each id that is found: in a response, or else in a conversation. Raises
        `HistoryTooLarge` when they exceed the bound, whatever its `cut`.
        """
        ...

    # ---- approvals ----

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        """Return those that are there, as they are stored: `as_of` tells which have expired."""
        ...

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        """Return approvals in the order in which they were asked for, as they are stored; with a status, those that
        have it `now`. A page may have fewer than its limit though more follow.

        `after` and `before` may be any approval of the identity. Raises `InvalidField` for one that is not there.
        """
        ...

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        """Store the decisions of a response that is not stored itself: all or nothing. Approvals that are not there are
        skipped. Raises `ApprovalInUse` where another response has the decision, or it was decided otherwise. An
        approved call may still become outdated.
        """
        ...

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        """Store the tools that a server lists as writing, and return all that were ever stored for it; None when every
        tool of it counts as writing, because there were more than `WRITING_TOOLS_PER_SERVER`.

        Names are never removed one by one. Beyond `WRITING_TOOLS_PER_TENANT`, whole servers are dropped, the least
        recently listed first, and never the one that is noted.
        """
        ...

    # ---- calls that a later response settles ----

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        """Store the claim before the call is run or declined, and return None; or return the record of an older claim,
        by another response or the same one.

        Raises `ResponseNotFound` or `ConversationNotFound` when the one that holds the claim is gone.
        """
        ...

    async def release_call(self, identity: Identity, call_id: str, settled_by: str) -> None:
        """Delete a claim of this response whose call has not begun. One with a result stays."""
        ...

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        """Store the result of a call that this response has claimed. The first result counts."""
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
        """Replace its metadata, and return it; None when it is not found."""
        ...

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        """Return whether it was there. Its items are deleted with it; responses that were its turns stay."""
        ...

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        """Return all its items, oldest first; None when it is not found. Raises `HistoryTooLarge` when they exceed the
        bound.
        """
        ...

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        """Return some of its items; None when it is not found. Raises `InvalidField` for `after` or `before` when that
        id is not one of its items.
        """
        ...

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None: ...

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        """Add items at the end, in this order and with nothing between them, and return them with the ids that they
        got; None when the conversation is not found. `approvals` are those that they ask for, of a response that is not
        stored; they are deleted with the conversation.
        """
        ...

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        """Return whether it was there."""
        ...

    async def fail_running(self, message: str) -> int:
        """Fail the responses that a dead process left `queued` or `in_progress`, and return how many there were. Those
        with a durable run, and those of living workers, are left alone.
        """
        ...

    async def check(self) -> None:
        """Raise `StoreFault` unless the store can be read and written."""
        ...

    async def close(self) -> None: ...


_OLD_NAMES: dict[str, type] = {"Claim": KeyClaim, "Claimed": KeyHolder}


def __getattr__(name: str) -> type:
    """Return a type by its former name."""
    if (renamed := _OLD_NAMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"antwort.storage.base.{name} is now {renamed.__name__}.", DeprecationWarning, stacklevel=2)
    return renamed
