"""Settle the approvals that a request decides against the store: no call runs twice, no decision is changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputItem, ItemReference, McpApprovalRequest, McpApprovalResponse, McpCall, OutputItem
from antwort.api.requests import CreateRequest
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.status import EXTENDS_CONVERSATION, FINAL, ResponseStatus
from antwort.engine.history.approvals import contradiction, decisions_in, superseded
from antwort.engine.history.calls import (
    CallIndex,
    CallView,
    call_id_of,
    calls_in,
    canonical_arguments,
    is_request_id,
    is_same_value,
    requested_call,
)
from antwort.engine.history.deduplication import WAITS
from antwort.engine.history.refusals import CHANGED, DENIED, NO_APPROVAL, NOT_RUN, OUTCOME_UNKNOWN
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.history.turns import last_turn_steps
from antwort.engine.plan import History, Leftover, Plan
from antwort.engine.prompt.tool_names import model_name
from antwort.errors import InvalidField, ToolServerUnavailable
from antwort.event_loop import in_turns
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Decision, Link, ResponseStore, as_of
from antwort.tools.routing import Toolbox

_log = logging.getLogger("antwort.engine")

_UNKNOWN_DIGEST = "unknown"
"""The digest of a tool that was not seen: it matches none, so the approval is asked for again."""
_CHANGED_CALL = (
    "the call that is to be decided about is not the one that was made: its arguments, its name or its server were "
    "changed. Send the request as it was made, or put it back into the conversation."
)
_UNPROVEN = (
    "this server did not ask for the approval of this call, the call was changed since, or the key that proves it is "
    "gone. Send the 'mcp_approval_request' as it was given out, or ask for the call again."
)
_OTHER_CALL = (
    "the call of this 'approval_request_id' was made with another server, name or arguments. Send the call as it was "
    "made, or leave it away."
)


# ---- what the store has ----


class StoredApprovals(msgspec.Struct, frozen=True):
    """The stored approvals that a request or its history refers to."""

    approvals: Mapping[str, Approval] = {}
    ends: Mapping[str, ResponseStatus] = {}
    """The statuses of the responses that got the decisions; those that are not stored are missing."""
    askers: Mapping[str, Link] = {}
    """The responses under whose tools calls were made that are to be run, by the ids of the approval requests, where
    that is not the response in the chain that asks."""
    looked_up: frozenset[str] = frozenset()
    own: str | None = None
    """The id of the response that acts on the decisions, where it is stored already."""


async def find_approvals(
    items: Sequence[InputItem],
    calls: CallIndex,
    chain: Sequence[Link],
    store: ResponseStore,
    identity: Identity,
    is_live: Callable[[str], bool],
    own: str | None = None,
) -> StoredApprovals:
    """Read the approvals of the `items`, which the request sends or its conversation holds, and of the chain; `calls`
    are those of the chain and the conversation. This comes before any results are read: what runs now may have ended
    by then, and what has ended by now is stored.
    """
    earlier = [item for link in chain for item in (*link.input, *link.output)]
    decisions = decisions_in((*earlier, *items))
    # Those whose calls have no result, and that were decided about since the model last wrote something, or in earlier
    # responses, or not at all.
    asked = {item.id for item in (*earlier, *items) if isinstance(item, McpApprovalRequest)} - decisions.keys()
    asked |= decisions_in((*earlier, *(await in_turns(last_turn_steps(items))))).keys()
    held = await in_turns(CallIndex.steps(items))
    settled = calls.answered | held.answered
    open_ids = {each for each in asked if requested_call(each) not in settled}
    referred = (item.id for item in items if isinstance(item, ItemReference) and is_request_id(item.id))
    named = (each for view in held.views if (each := _approval_of(view)) is not None)
    ids = dict.fromkeys((*open_ids, *referred, *named))
    found = await store.find_approvals(identity, [*ids]) if ids else {}
    open_ones = [approval for approval in found.values() if approval.id in open_ids]
    ends: dict[str, ResponseStatus] = {link.response.id: link.response.status for link in chain}
    for by in {by for approval in open_ones if (by := approval.decided_by) is not None} - {*ends, own}:
        if is_live(by):
            ends[by] = "in_progress"
        elif (response := await store.get(identity, by)) is not None:
            ends[by] = response.status
    return StoredApprovals(found, ends, await _askers(open_ones, chain, store, identity), frozenset(ids), own)


async def find_more_approvals(
    history: History, stored: StoredApprovals, store: ResponseStore, identity: Identity
) -> StoredApprovals:
    """Add the approvals that only a compaction mentions. Their calls' results were read before."""
    wanted = {asked for left in history.leftovers if (asked := left.call.approval_request_id) is not None}
    wanted -= stored.looked_up
    more = await store.find_approvals(identity, [*wanted]) if wanted else {}
    return replace(stored, approvals={**stored.approvals, **more}) if more else stored


def _approval_of(view: CallView) -> str | None:
    """Return the id of the approval request that an item is, decides about, or shows the unrun call of."""
    if view.part == "decision":
        return view.request_id
    request_id = view.request_id if view.result is None else None
    return request_id if request_id is not None and is_request_id(request_id) else None


async def _askers(
    approvals: Iterable[Approval], chain: Sequence[Link], store: ResponseStore, identity: Identity
) -> Mapping[str, Link]:
    """Read the responses outside of the chain that made the calls: their tools are those that were approved."""
    links = {link.response.id: link for link in chain}
    wanted: dict[str, str] = {}
    for each in approvals:
        if each.response_id in links and each.replaces is None:
            continue
        made = each
        while made.replaces is not None:  # a response that only asked again may have no tools of its own
            found = await store.find_approvals(identity, [made.replaces])
            if made.replaces not in found:
                break
            made = found[made.replaces]
        wanted[each.id] = made.response_id
    for response_id in dict.fromkeys(wanted.values()):
        if response_id not in links:
            link = await store.link(identity, response_id, with_input=False)
            if link is not None:
                links[response_id] = link
    return {each: links[response_id] for each, response_id in wanted.items() if response_id in links}


def check_unchanged(items: Sequence[InputItem], stored: StoredApprovals) -> None:
    """Raise `InvalidField` for a request or a call that differs from the stored one."""
    for i, item in enumerate(items):
        if isinstance(item, McpApprovalRequest | McpCall):
            approval = stored.approvals.get(_approval_of(CallView.of(item)) or "")
            if approval is not None and not _is_meant(item, approval):
                problem = WAITS if isinstance(item, McpApprovalRequest) else _OTHER_CALL
                raise InvalidField(f"input[{i}].arguments", problem)


def _is_meant(call: McpApprovalRequest | McpCall, approval: Approval) -> bool:
    is_same_tool = (call.server_label, call.name) == (approval.server_label, approval.name)
    return is_same_tool and is_same_value(call.arguments, approval.arguments)


# ---- decisions ----


def settle_approvals(
    history: History, request: CreateRequest, stored: StoredApprovals, sealed: SealedItems, now: int, seconds: int
) -> History:
    """Return the history with the verdict on each call that was to be approved, and the decisions to store with that.
    Approvals that a response asked for which was not stored come from the client, and are stored with them, to be given
    within so many `seconds`.

    Raises `InvalidField` when the request approves what has expired, differs from what is stored, or was never asked
    for here, and `Conflict` when the decision was another one before, or another response acts on it right now.
    """
    if not stored.approvals and all(left.call.approval_request_id is None for left in history.leftovers):
        return history
    settlement = _Settlement(stored, request, sealed, now, now + seconds)
    leftovers = tuple(settlement.settle(left) for left in history.leftovers)
    for left in leftovers:
        if left.asks_again:
            text = "A tool has changed since a call of it was asked about: the approval is asked for again."
            server, tool = left.call.server_label, left.call.item.name
            note(_log, logging.WARNING, text, event="approval_outdated", server=server, tool=tool)
    for decision in decisions_in(request.input).values():
        settlement.add_decision(decision)
    placeholders = {**history.placeholders, **settlement.placeholders(history)}
    return replace(
        history,
        leftovers=leftovers,
        placeholders=placeholders,
        decisions=tuple(settlement.decisions.values()),
        unstored_approvals=tuple(settlement.unstored),
    )


class _Settlement:
    """What one request decides: collects the decisions to store."""

    def __init__(
        self, stored: StoredApprovals, request: CreateRequest, sealed: SealedItems, now: int, expires_at: int
    ) -> None:
        self.decisions: dict[str, Decision] = {}
        self.unstored: list[Approval] = []
        self._stored, self._sealed, self._now, self._expires_at = stored, sealed, now, expires_at
        self._given = decisions_in(request.input)
        self._places = {
            item.approval_request_id: f"input[{i}].approval_request_id"
            for i, item in enumerate(request.input)
            if isinstance(item, McpApprovalResponse)
        }
        self._history_param = "previous_response_id" if request.conversation is None else "conversation"

    def settle(self, left: Leftover) -> Leftover:
        """Return the call as it is stored, whichever way it came, and the reason if it is refused. A decision from
        before this request raises nothing.
        """
        call, request_id = left.call.item, left.call.approval_request_id
        if request_id is None or not isinstance(call, McpCall):
            return left
        approval = self._stored.approvals.get(request_id)
        if approval is None:
            arguments = canonical_arguments(call.arguments)  # that is what the id proves
            self._add_unstored(request_id, call, arguments)
            return replace(left, call=replace(left.call, arguments=arguments))
        place = self._places.get(approval.id)
        if not _is_meant(call, approval):
            raise InvalidField(place or self._history_param, _CHANGED_CALL)
        if left.refusal is not None:
            return left
        approval = as_of(approval, self._now)
        if approval.status in ("denied", "expired"):
            if place is not None:
                raise _expired(place) if approval.status == "expired" else contradiction(place, is_approved=False)
            return replace(left, refusal=NO_APPROVAL)
        if approval.status == "outdated" and self._was_asked_again(approval):
            is_known = any(each.replaces == approval.id for each in self._stored.approvals.values())
            if place is not None and not is_known:
                raise superseded(place, approval.decided_by)
            return replace(left, refusal=CHANGED)
        as_asked = replace(left.call, arguments=approval.arguments)
        # Whether the tool is another one than the client was asked about.
        is_comparable = bool(approval.tool_digest) and left.silence is None
        has_changed = is_comparable and _digest_of(left.toolbox, left.call.name) != approval.tool_digest
        if approval.status == "outdated" or has_changed:
            self.decisions[approval.id] = Decision(id=approval.id, status="outdated", after=approval.decided_by)
            return replace(left, call=as_asked, refusal=CHANGED, asks_again=True)
        self.decisions[approval.id] = Decision(id=approval.id, status="approved", after=approval.decided_by)
        return replace(left, call=as_asked)

    def _add_unstored(self, request_id: str, call: McpCall, arguments: str) -> None:
        """Take an approval that is not stored, because the response that asked for it was not."""
        if not self._sealed.is_own_request(request_id, call.server_label, call.name, call.arguments):
            raise InvalidField(self._places.get(request_id, self._history_param), _UNPROVEN, code="unknown_approval")
        if (decision := self._given.get(request_id)) is None:
            return
        self.unstored.append(
            Approval(
                id=request_id,
                created_at=self._now,
                expires_at=self._expires_at,
                response_id="",
                server_label=call.server_label,
                name=call.name,
                arguments=arguments,
            )
        )
        self.decisions[request_id] = Decision(id=request_id, status="approved" if decision.approve else "denied")

    def _was_asked_again(self, approval: Approval) -> bool:
        """Whether the response that was to ask again has done so, or may still do so."""
        if approval.decided_by is not None and approval.decided_by == self._stored.own:
            return False
        # A response that was deleted, or not stored, has no known end.
        return self._stored.ends.get(approval.decided_by or "") not in ("failed", "cancelled", "incomplete")

    def add_decision(self, decision: McpApprovalResponse) -> None:
        """Add a decision of the request, even if there is no call to run for it."""
        approval = self._stored.approvals.get(decision.approval_request_id)
        if approval is None or approval.id in self.decisions:
            return
        place = self._places[approval.id]
        if approval.status == "outdated":
            if not decision.approve:  # the question that counts is another one by now
                raise superseded(place, approval.decided_by)
            return
        if approval.status != "pending":
            if (approval.status == "approved") is not decision.approve:
                raise contradiction(place, is_approved=approval.status == "approved")
            return
        if decision.approve and as_of(approval, self._now).status == "expired":
            raise _expired(place)
        self.decisions[approval.id] = Decision(id=approval.id, status="approved" if decision.approve else "denied")

    def placeholders(self, history: History) -> Mapping[str, str]:
        """Return what the model reads of calls that were decided about elsewhere, by their ids."""
        items = [item for stretch in history.stretches for item in stretch]
        decisions, begun = decisions_in(items), {view.call_id for view in calls_in(items) if view.is_mcp_call}
        found: dict[str, str] = {}
        for item in items:
            approval = self._stored.approvals.get(item.id) if isinstance(item, McpApprovalRequest) else None
            if approval is None or item.id in decisions or approval.status == "pending":
                continue
            call_id, end = requested_call(item.id), self._stored.ends.get(approval.decided_by or "")
            if approval.status == "denied":
                found[call_id] = DENIED
            elif approval.status == "outdated":
                found[call_id] = CHANGED
            else:
                is_lost = call_id in begun or end is None or end == "failed" or end not in FINAL
                found[call_id] = OUTCOME_UNKNOWN if is_lost else NOT_RUN
        return found


def _expired(place: str) -> InvalidField:
    problem = "the time to approve the call is over. It can only be denied, or asked for anew."
    return InvalidField(place, problem, code="approval_expired")


def _digest_of(toolbox: Toolbox, name: str) -> str:
    tool = toolbox.tools.get(name)
    return _UNKNOWN_DIGEST if tool is None else tool.digest


def check_reachable(plan: Plan) -> None:
    """Raise `ToolServerUnavailable` if an approved call cannot be run: nothing is begun, and no decision stored."""
    for left in plan.history.leftovers:
        if left.silence is not None and left.refusal is None:
            raise ToolServerUnavailable(left.silence)


# ---- new approvals ----


def asked_for(plan: Plan, response: Response) -> list[Approval]:
    """Return the approvals that an ended response asks for. A turn that adds nothing to its conversation asks for none:
    the client could not answer.
    """
    if McpApprovalRequest not in map(type, response.output):
        return []
    if plan.request.conversation is not None and response.status not in EXTENDS_CONVERSATION:
        return []
    items = [item for item in response.output if isinstance(item, McpApprovalRequest) and item.status == "completed"]
    now, found = int(plan.clock()), list[Approval]()
    # Where calls are asked about again, those are all that the response asks for.
    for item, again in zip(items, asked_again(response.output, plan) or repeat(None), strict=False):
        toolbox = plan.toolbox if again is None else again.toolbox
        name = model_name(toolbox, item.server_label, item.name)
        found.append(
            Approval(
                id=item.id,
                created_at=now,
                expires_at=now + max(1, int(plan.settings.approval_time)),
                response_id=response.id,
                server_label=item.server_label,
                name=item.name,
                arguments=item.arguments,
                tool_digest=_UNKNOWN_DIGEST if item.id in plan.asked_elsewhere else _digest_of(toolbox, name),
                replaces=None if again is None else again.call.approval_request_id,
            )
        )
    return found


def asked_again(output: Iterable[OutputItem], plan: Plan) -> list[Leftover]:
    """Return the earlier calls that the client is asked about once more, in the place of an inference: those that the
    output shows as not run for that reason. A run that was picked up may have run one before its tool changed.
    """
    left = {each.call.call_id: each for each in plan.history.leftovers if each.asks_again}
    if not left:
        return []
    shown = [call_id_of(item) for item in output if isinstance(item, McpCall) and item.error_text == CHANGED]
    return [left[call_id] for call_id in shown if call_id in left]
