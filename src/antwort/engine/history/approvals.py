"""What is on record of the approvals that a request decides: nothing that was approved is run twice, and nothing that
was decided is decided otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

import msgspec

from antwort.api.items import InputItem, ItemReference, McpApprovalRequest, McpApprovalResponse, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.status import EXTENDS_CONVERSATION, FINAL, ResponseStatus
from antwort.api.wire import UNSET
from antwort.engine.history.approval_ids import ApprovalIds, canonical_arguments
from antwort.engine.history.calls import call_id_of, is_bare, is_request_id, is_same_value, requested_call, results_in
from antwort.engine.history.decisions import (
    CHANGED,
    DENIED,
    LOST,
    NO_APPROVAL,
    NOT_RUN,
    contradiction,
    decided,
    superseded,
)
from antwort.engine.history.deduplication import WAITS
from antwort.engine.history.latest import last_turn
from antwort.engine.loop.steps import asked_again
from antwort.engine.plan import History, Leftover, Plan
from antwort.engine.prompt.toolbox import model_name
from antwort.errors import InvalidField, ToolServerUnavailable
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Decision, Link, ResponseStore, as_of
from antwort.tools.routing import Toolbox

_log = logging.getLogger("antwort.engine")


class OnRecord(msgspec.Struct, frozen=True):
    """The approvals that count in a conversation, as far as a store has them."""

    approvals: Mapping[str, Approval] = {}
    ends: Mapping[str, ResponseStatus] = {}
    """How the responses stand that were told the decisions; those that are kept nowhere are not there."""
    askers: Mapping[str, Link] = {}
    """The responses under whose tools calls were made that are to be run, by the ids of the approval requests, where
    that is not the response in the chain that asks."""
    asked: frozenset[str] = frozenset()
    """The ids that were looked for."""
    own: str | None = None
    """The response that is to act on them, where it is on record already: what it was told, nobody else was."""


async def look_up(
    items: Sequence[InputItem],
    chain: Sequence[Link],
    store: ResponseStore,
    identity: Identity,
    is_live: Callable[[str], bool],
    own: str | None = None,
) -> OnRecord:
    """Asked before anything is read of what the approved calls came to: what runs now may have ended by then, and what
    has ended by now is on record.
    """
    in_question = _in_question(items, [item for link in chain for item in (*link.input, *link.output)])
    ids = dict.fromkeys((*in_question, *(each for item in items if (each := _request_in(item)) is not None)))
    found = await store.find_approvals(identity, [*ids]) if ids else {}
    open_ones = [approval for approval in found.values() if approval.id in in_question]
    ends: dict[str, ResponseStatus] = {link.response.id: link.response.status for link in chain}
    for by in {by for approval in open_ones if (by := approval.decided_by) is not None} - {*ends, own}:
        if is_live(by):
            ends[by] = "in_progress"
        elif (response := await store.get(identity, by)) is not None:
            ends[by] = response.status
    return OnRecord(found, ends, await _askers(open_ones, chain, store, identity), frozenset(ids), own)


def _in_question(items: Sequence[InputItem], earlier: Sequence[InputItem]) -> frozenset[str]:
    """The ids of the requests for approvals that stand in question: nothing shows what came of them, and they were
    decided about since the model last said something, or in the `earlier` responses, or not at all.
    """
    said = (*earlier, *items)
    settled, given = results_in(said), decided(said)
    asked = [item.id for item in said if isinstance(item, McpApprovalRequest) and item.id not in given]
    asked += decided((*earlier, *last_turn(items)))
    return frozenset(each for each in asked if requested_call(each) not in settled)


def _request_in(item: InputItem) -> str | None:
    """The id of the request for an approval that the item is, or stands for, or decides about, or whose call it shows
    without a result.
    """
    if isinstance(item, McpApprovalResponse):
        return item.approval_request_id
    if isinstance(item, McpCall):
        asked = item.approval_request_id
        return asked if asked is not UNSET and is_bare(item) and is_request_id(asked) else None
    return item.id if isinstance(item, McpApprovalRequest | ItemReference) and is_request_id(item.id) else None


async def look_again(history: History, record: OnRecord, store: ResponseStore, identity: Identity) -> OnRecord:
    """The same with what was said in a compaction alone. That is read too late to tell what a call came to which was
    approved before.
    """
    wanted = {asked for left in history.leftovers if (asked := left.asked_as) is not None} - record.asked
    more = await store.find_approvals(identity, [*wanted]) if wanted else {}
    return msgspec.structs.replace(record, approvals={**record.approvals, **more}) if more else record


async def _askers(
    approvals: Iterable[Approval], chain: Sequence[Link], store: ResponseStore, identity: Identity
) -> Mapping[str, Link]:
    """Those of a conversation, or of a client that sends all again, and those whose call was asked about again: their
    tools are those that were meant.
    """
    links = {link.response.id: link for link in chain}
    wanted = {
        each.id: await _maker(each, store, identity)
        for each in approvals
        if each.response_id not in links or each.replaces is not None
    }
    for response_id in dict.fromkeys(wanted.values()):
        if response_id not in links:
            found = await store.link(identity, response_id, with_input=False)
            if found is not None:
                links[response_id] = found
    return {each: links[response_id] for each, response_id in wanted.items() if response_id in links}


async def _maker(approval: Approval, store: ResponseStore, identity: Identity) -> str:
    """The response that made the call: one that asks again may have no tools of its own."""
    while approval.replaces is not None:
        first = (await store.find_approvals(identity, [approval.replaces])).get(approval.replaces)
        if first is None:
            break
        approval = first
    return approval.response_id


def check_unchanged(items: Sequence[InputItem], record: OnRecord) -> None:
    """Nobody approves another call than the one that was made, nor is another one taken for it."""
    for i, item in enumerate(items):
        if isinstance(item, McpApprovalRequest | McpCall):
            approval = record.approvals.get(_request_in(item) or "")
            if approval is not None and not _is_meant(item, approval):
                raise InvalidField(f"input[{i}].arguments", WAITS if isinstance(item, McpApprovalRequest) else _OTHER)


def _is_meant(call: McpApprovalRequest | McpCall, approval: Approval) -> bool:
    is_same_tool = (call.server_label, call.name) == (approval.server_label, approval.name)
    return is_same_tool and is_same_value(call.arguments, approval.arguments)


class ApprovalTerms(msgspec.Struct, frozen=True):
    """What approvals are recognised by, and how long they stand."""

    ids: ApprovalIds
    now: int
    seconds: int
    """How long an approval can be given."""


def weighed(
    history: History, request: CreateRequest, record: OnRecord, terms: ApprovalTerms
) -> tuple[History, tuple[Decision, ...], tuple[Approval, ...]]:
    """The history with what is still to be run of it and what is known of the rest, the decisions that are to be put on
    record with that, and the approvals among them that are not on record yet: requests of responses that were not
    stored, which the client brings back.

    Raises `InvalidField` when the request approves what has expired, is not what is on record, or was never asked for
    here, and `Conflict` when the decision was another one before, or another response acts on it right now.
    """
    if not record.approvals and all(left.asked_as is None for left in history.leftovers):
        return history, (), ()
    judge = _Judge(record, request, terms)
    leftovers = tuple(judge.answer(left) for left in history.leftovers)
    for left in leftovers:
        if left.asks_again and isinstance(call := left.call.item, McpCall):
            text = "A tool has changed since a call of it was asked about: the approval is asked for again."
            note(_log, logging.WARNING, text, event="approval_outdated", server=call.server_label, tool=call.name)
    for decision in decided(request.input).values():
        judge.note(decision)
    fates = {**history.fates, **judge.fates(history)}
    history = msgspec.structs.replace(history, leftovers=leftovers, fates=fates)
    return history, tuple(judge.decisions.values()), tuple(judge.brought)


class _Judge:
    def __init__(self, record: OnRecord, request: CreateRequest, terms: ApprovalTerms) -> None:
        self._record, self._terms, self._now = record, terms, terms.now
        self._given = decided(request.input)
        self.brought: list[Approval] = []
        self._places = {
            item.approval_request_id: f"input[{i}].approval_request_id"
            for i, item in enumerate(request.input)
            if isinstance(item, McpApprovalResponse)
        }
        self._otherwise = "previous_response_id" if request.conversation is None else "conversation"
        self.decisions: dict[str, Decision] = {}

    def answer(self, left: Leftover) -> Leftover:
        """The call as it is to be answered: as it is on record, whichever way it came. What was decided before this
        request was made raises nothing else.
        """
        call = left.call.item
        if left.asked_as is None or not isinstance(call, McpCall):
            return left
        approval = self._record.approvals.get(left.asked_as)
        if approval is None:
            arguments = canonical_arguments(call.arguments)  # that is what the id proves
            self._bring(left.asked_as, call, arguments)
            return msgspec.structs.replace(left, call=msgspec.structs.replace(left.call, arguments=arguments))
        place = self._places.get(approval.id)
        if not _is_meant(call, approval):
            raise InvalidField(place or self._otherwise, _CHANGED)
        if left.refusal is not None:
            return left
        approval = as_of(approval, self._now)
        if approval.status in ("denied", "expired"):
            if place is not None:
                raise _late(place) if approval.status == "expired" else contradiction(place, is_approved=False)
            return msgspec.structs.replace(left, refusal=NO_APPROVAL)
        if approval.status == "outdated" and self._was_asked_again(approval):
            is_known = any(each.replaces == approval.id for each in self._record.approvals.values())
            if place is not None and not is_known:
                raise superseded(place, approval.decided_by)
            return msgspec.structs.replace(left, refusal=CHANGED)
        as_asked = msgspec.structs.replace(left.call, arguments=approval.arguments)
        if approval.status == "outdated" or _has_changed(left, approval):
            self.decisions[approval.id] = Decision(id=approval.id, status="outdated", after=approval.decided_by)
            return msgspec.structs.replace(left, call=as_asked, refusal=CHANGED, asks_again=True)
        self.decisions[approval.id] = Decision(id=approval.id, status="approved", after=approval.decided_by)
        return msgspec.structs.replace(left, call=as_asked)

    def _bring(self, request_id: str, call: McpCall, arguments: str) -> None:
        """Take an approval that is not on record, because the response that asked for it was not stored."""
        if not self._terms.ids.is_ours(request_id, call.server_label, call.name, call.arguments):
            raise InvalidField(self._places.get(request_id, self._otherwise), _INVENTED, code="unknown_approval")
        if (decision := self._given.get(request_id)) is None:
            return
        self.brought.append(
            Approval(
                id=request_id,
                created_at=self._now,
                expires_at=self._now + self._terms.seconds,
                response_id="",
                server_label=call.server_label,
                name=call.name,
                arguments=arguments,
            )
        )
        self.decisions[request_id] = Decision(id=request_id, status="approved" if decision.approve else "denied")

    def _was_asked_again(self, approval: Approval) -> bool:
        """Whether the response that was to ask again has done so, or may still do so."""
        if approval.decided_by is not None and approval.decided_by == self._record.own:
            return False
        end = self._record.ends.get(
            approval.decided_by or ""
        )  # of one that was deleted, or not stored, nothing is known
        return end not in ("failed", "cancelled", "incomplete")

    def note(self, decision: McpApprovalResponse) -> None:
        """A decision of the request, whatever there is to be done about it."""
        approval = self._record.approvals.get(decision.approval_request_id)
        if approval is None or approval.id in self.decisions:
            return
        if approval.status == "outdated":
            if not decision.approve:  # the question that counts is another one by now
                raise superseded(self._places[approval.id], approval.decided_by)
            return
        if approval.status != "pending":
            if (approval.status == "approved") is not decision.approve:
                raise contradiction(self._places[approval.id], is_approved=approval.status == "approved")
            return
        if decision.approve and as_of(approval, self._now).status == "expired":
            raise _late(self._places[approval.id])
        self.decisions[approval.id] = Decision(id=approval.id, status="approved" if decision.approve else "denied")

    # ---- what was decided elsewhere ----

    def fates(self, history: History) -> Mapping[str, str]:
        """What is known of the calls that nobody has decided about in what was said, by their ids."""
        said = [item for stretch in history.stretches for item in stretch]
        given, begun = decided(said), {call_id_of(item) for item in said if isinstance(item, McpCall)}
        requests = (item.id for item in said if isinstance(item, McpApprovalRequest) and item.id not in given)
        found = ((requested_call(each), self._record.approvals.get(each)) for each in requests)
        return {
            call_id: self._fate(approval, has_begun=call_id in begun)
            for call_id, approval in found
            if approval is not None and approval.status != "pending"
        }

    def _fate(self, approval: Approval, *, has_begun: bool) -> str:
        """What the model is told of such a call, where nothing shows what it came to."""
        if approval.status == "denied":
            return DENIED
        if approval.status == "outdated":
            return CHANGED
        end = self._record.ends.get(approval.decided_by or "")
        return LOST if has_begun or end is None or end == "failed" or end not in FINAL else NOT_RUN


_CHANGED = (
    "the call that is to be decided about is not the one that was made: its arguments, its name or its server were "
    "changed. Send the request as it was made, or put it back into the conversation."
)


_INVENTED = (
    "this server did not ask for the approval of this call, the call was changed since, or the key that proves it is "
    "gone. Send the 'mcp_approval_request' as it was given out, or ask for the call again."
)


_OTHER = (
    "the call of this 'approval_request_id' was made with another server, name or arguments. Send the call as it was "
    "made, or leave it away."
)


def check_reachable(plan: Plan) -> None:
    """Nothing is begun, and so nothing decided, while what was approved cannot be run."""
    for left in plan.leftovers:
        if left.silence is not None and left.refusal is None:
            raise ToolServerUnavailable(left.silence)


def _late(place: str) -> InvalidField:
    problem = "the time to approve the call is over. It can only be denied, or asked for anew."
    return InvalidField(place, problem, code="approval_expired")


_UNKNOWN = "unknown"
"""The digest of a tool that nobody has seen: it fits none, so that the question is asked again."""


def _has_changed(left: Leftover, approval: Approval) -> bool:
    """Whether the tool is not the one any more that the client was asked about."""
    if not approval.tool_digest or left.silence is not None:
        return False
    return _digest_of(left.toolbox, left.call.name) != approval.tool_digest


def _digest_of(toolbox: Toolbox, name: str) -> str:
    tool = toolbox.tools.get(name)
    return _UNKNOWN if tool is None else tool.digest


def asked_for(plan: Plan, response: Response) -> list[Approval]:
    """What the response as it ended asks the client to approve. A turn that adds nothing to its conversation asks for
    nothing: nobody could answer.
    """
    if plan.request.conversation is not None and response.status not in EXTENDS_CONVERSATION:
        return []
    items = [item for item in response.output if isinstance(item, McpApprovalRequest) and item.status == "completed"]
    again = asked_again(response.output, plan) or repeat(None)
    return [_approval(item, left, plan, response) for item, left in zip(items, again, strict=False)]


def _approval(item: McpApprovalRequest, again: Leftover | None, plan: Plan, response: Response) -> Approval:
    """`again` is the call that was asked about before."""
    now = int(plan.clock())
    toolbox = plan.toolbox if again is None else again.toolbox
    name = model_name(toolbox, item.server_label, item.name)
    return Approval(
        id=item.id,
        created_at=now,
        expires_at=now + max(1, int(plan.settings.approval_time)),
        response_id=response.id,
        server_label=item.server_label,
        name=item.name,
        arguments=item.arguments,
        tool_digest=_UNKNOWN if item.id in plan.asked_elsewhere else _digest_of(toolbox, name),
        replaces=None if again is None else again.asked_as,
    )
