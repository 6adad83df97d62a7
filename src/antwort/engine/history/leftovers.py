"""Calls of earlier responses that are run first: those of a paused turn, and those that the client has approved."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Literal

import msgspec

from antwort.api.additional_tools import declared_steps, name_of
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
)
from antwort.api.requests import CreateRequest
from antwort.api.steps import at_once
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction_item import Memories
from antwort.engine.history.calls import (
    PendingCall,
    as_call,
    call_id_of,
    is_bare,
    is_made_here,
    is_ours,
    is_run,
    pending_call,
    requested_call,
    results_in,
)
from antwort.engine.history.credentials import Credentials, Parent, brought_again
from antwort.engine.history.decisions import CHANGED, LOST, NO_APPROVAL, decided, denial
from antwort.engine.history.latest import last_turn, turns_of
from antwort.engine.loop.budgets import most_calls
from antwort.engine.loop.result_events import NOT_BEGUN
from antwort.engine.loop.steps import OVER_LIMIT
from antwort.engine.loop.stops import NO_MORE
from antwort.engine.plan import Leftover
from antwort.engine.prompt.additional_tools import UNBOUNDED, declared_before
from antwort.engine.prompt.toolbox import Shelf, model_name, rebuild_toolbox
from antwort.storage.base import CallClaim, CallResult, Link
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Route, Toolbox, may_claim_function, route

DECLINED = "The call was not run: the client did not continue the turn."
NOT_YET = "The call has not been run yet: the client has not continued the turn."


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What open calls are looked for in."""

    chain: Sequence[Link]
    shown: Sequence[InputItem]
    """All that counts of what was said."""
    own: Sequence[InputItem]
    """What clients have put together of it."""
    is_compacted: bool = False
    memories: Memories | None = None
    askers: Mapping[str, Link] = {}
    """The responses under whose tools calls were made, by the ids of the approval requests; for others it is the
    response in the chain that asks."""


async def find_leftovers(
    past: Past, request: CreateRequest, toolbox: Toolbox, shelf: Shelf, credentials: Credentials
) -> tuple[tuple[Leftover, ...], Mapping[str, str]]:
    """The calls to settle, in the order in which they were asked for, each with the tools and the policy it was asked
    for under; and what the model reads of those that stay open, by call id.
    """
    decisions, begun = decided(past.shown), _begun(past)
    follow_up = _FollowUp(request, toolbox, results_in(past.shown))
    settled = results_in(past.shown) | (begun - {requested_call(asked) for asked in decisions})
    found: list[Leftover] = []
    for link in past.chain:
        asked = (item for item in link.input if isinstance(item, McpApprovalRequest))
        left_open = [item for item in (*asked, *link.said()) if not past.is_compacted or item in past.shown]
        calls = _unanswered(left_open, settled, shelf, decisions)
        of_link: list[Leftover] = []
        for maker, asked_for in _by_maker(calls, past.askers, link):
            parent = _parent_of(maker, past, request, credentials)
            of_link += await _made_under(maker, parent, asked_for, shelf, decisions)
        found += follow_up.weigh(of_link, link.said(), request.input)
    own = _open_in(past.own, settled, shelf)
    for maker, made in _by_maker(own, past.askers):
        parent = _parent_of(maker, past, request, credentials)
        found += await _made_under(maker, parent, made, shelf, decisions)
    # A client that keeps its history itself sends the open calls in the input: they were made under its own tools. So
    # are those of a conversation, as far as anybody knows.
    unknown = [call for call in own if _request_of(call) not in past.askers]
    if labels := _approved_at(unknown, decisions):
        toolbox = await rebuild_toolbox(request, msgspec.structs.replace(shelf, fresh=labels))
    of_own = _leftovers(own, Parent(request), toolbox, most_calls(request, shelf.settings), decisions)
    turn = last_turn(past.own)
    found += follow_up.weigh(of_own, turn, turn)
    if request.conversation is not None:  # it shows what each of its calls came to: what has no result is open
        for earlier in turns_of(past.own[: len(past.own) - len(turn)]):
            calls = [call for call in _open_in(earlier, settled, shelf) if is_made_here(call.call_id)]
            of_turn = _leftovers(calls, Parent(request), toolbox, most_calls(request, shelf.settings), {})
            found += follow_up.weigh(of_turn, earlier, request.input)
    # A client's ids may repeat; whoever runs a call answers for all that go by its id.
    first = {left.call.call_id: left for left in reversed(found)}
    return tuple(_once(left, begun) for left in reversed(first.values())), follow_up.waiting


class _FollowUp:
    """Decides what a request means for the server's calls of a turn that was paused or cut."""

    def __init__(self, request: CreateRequest, toolbox: Toolbox, answered: Container[str]) -> None:
        self._answered = answered
        self._forbids = request.choice_mode == "none"
        self._allowed = toolbox.allowed
        self.waiting: dict[str, str] = {}
        """What the model reads of the calls that stay open, by call id."""

    def weigh(self, made: Sequence[Leftover], turn: Sequence[InputItem], new: Sequence[InputItem]) -> list[Leftover]:
        """The calls that this request settles: it runs them, or declines them for good. `turn` are the items that hold
        the turn's calls, `new` those in which the client may continue it. Approvals are decided by themselves.
        """
        verdict = self._verdict({left.call.call_id for left in made}, turn, new)
        settled: list[Leftover] = []
        for left in made:
            name = left.call.name
            if left.asked_as is not None:
                settled.append(left)
            elif verdict == "decline" or self._forbids or (self._allowed is not None and name not in self._allowed):
                settled.append(msgspec.structs.replace(left, refusal=DECLINED, is_declined=True))
            elif verdict == "run":
                settled.append(left)
            else:
                self.waiting[left.call.call_id] = NOT_YET
        return settled

    def _verdict(
        self, server_calls: Collection[str], turn: Sequence[InputItem], new: Sequence[InputItem]
    ) -> Literal["run", "decline", "wait"]:
        calls = [item for item in turn if isinstance(item, FunctionCall | CustomToolCall)]
        calls = [item for item in calls if item.status != "incomplete"]
        client_calls = {item.call_id for item in calls} - {*server_calls}
        approvals = {item.id for item in turn if isinstance(item, McpApprovalRequest)}
        results = {item.call_id for item in new if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
        decisions = {item.approval_request_id for item in new if isinstance(item, McpApprovalResponse)}
        is_missing = any(call_id not in self._answered for call_id in client_calls)
        if not approvals.isdisjoint(decisions):
            return "run"
        if not results.isdisjoint(client_calls | {*server_calls}):
            return "wait" if is_missing else "run"
        if any(isinstance(item, Message) and item.role != "assistant" for item in new):
            return "decline"
        return "wait" if is_missing or approvals else "run"


def answered_by_client(chain: Sequence[Link], new: Sequence[InputItem], shelf: Shelf) -> tuple[CallClaim, ...]:
    """Claims on the server's open calls of stored responses that results among the `new` items answer."""
    results = {item.call_id: item for item in new if isinstance(item, FunctionCallOutput)}
    if not results:
        return ()
    found: list[CallClaim] = []
    for link in chain:
        if link.response.store:
            for call in _unanswered(link.said(), results_in(link.output), shelf, ()):
                if (given := results.get(call.call_id)) is not None:
                    result = CallResult(given.output, is_error=given.is_error is True)
                    found.append(
                        CallClaim(call_id=call.call_id, settled_by="", response_id=link.response.id, result=result)
                    )
    return tuple(found)


def _by_maker(
    calls: Sequence[PendingCall], askers: Mapping[str, Link], otherwise: Link | None = None
) -> list[tuple[Link, list[PendingCall]]]:
    """The calls by the responses under whose tools they were made; those of nobody are left out."""
    found: dict[str, tuple[Link, list[PendingCall]]] = {}
    for call in calls:
        if (link := askers.get(_request_of(call) or "", otherwise)) is not None:
            found.setdefault(link.response.id, (link, []))[1].append(call)
    return [*found.values()]


def _once(left: Leftover, begun: Container[str]) -> Leftover:
    """What was begun and came to nothing that anybody knows is not begun again."""
    if left.call.call_id not in begun or left.refusal is not None:
        return left
    return msgspec.structs.replace(left, refusal=LOST)


def _parent_of(link: Link, past: Past, request: CreateRequest, credentials: Credentials) -> Parent:
    """The request of the response, with the tools that items had declared by then. Where that was not in the chain of
    this `request`, those of the conversation count that it continues.
    """
    parent = credentials.made_under(link, request)
    at = next((at for at, each in enumerate(past.chain) if each.response.id == link.response.id), None)
    links = [link] if at is None else past.chain[: at + 1]
    items = [item for each in links for item in (*each.input, *each.output)]
    declared = declared_before(items, credentials, past.memories, "previous_response_id")
    found = at_once(declared_steps(declared, UNBOUNDED))
    newer = [each.tool for each in request.declarations]
    additional = [replace(each, tool=brought_again(each.tool, newer)) for each in found]
    if at is None:
        names = {name_of(each.tool) for each in found}
        additional += [each for each in request.additional if name_of(each.tool) not in names]
    locked = parent.locked.union(*(each.locked for each in declared))
    return Parent(replace(parent.request, additional=tuple(additional)), locked)


async def _made_under(
    link: Link,
    parent: Parent,
    calls: Sequence[PendingCall],
    shelf: Shelf,
    decisions: Mapping[str, McpApprovalResponse],
) -> list[Leftover]:
    asked = msgspec.structs.replace(shelf, model=link.response.model, fresh=_approved_at(calls, decisions))
    tools = await rebuild_toolbox(parent.request, asked)
    left = most_calls(parent.request, shelf.settings) - _calls_run(link)
    asked_by = link.response.id if link.response.store else None
    return [
        msgspec.structs.replace(each, asked_by=asked_by) for each in _leftovers(calls, parent, tools, left, decisions)
    ]


def _approved_at(calls: Sequence[PendingCall], decisions: Mapping[str, McpApprovalResponse]) -> frozenset[str]:
    """The labels of the servers at which approved calls are to be run: their tools may have changed since."""
    approved = {each for each, decision in decisions.items() if decision.approve}
    calls = [call for call in calls if _request_of(call) in approved]
    return frozenset(call.item.server_label for call in calls if isinstance(call.item, McpCall))


def _unanswered(
    items: Sequence[InputItem], answered: Container[str], shelf: Shelf, decisions: Container[str]
) -> list[PendingCall]:
    """The finished calls without a result that could be ours to run, or to refuse where the client has denied them. One
    under our own label was refused when it was made, also where the client leaves that out.
    """
    calls: list[PendingCall] = []
    for item in items:
        match item:
            case FunctionCall(status="completed") if _is_local(item, shelf):
                call = pending_call(item)
            case McpCall(status="completed") if is_bare(item) and item.server_label != HOUSE_LABEL:
                call = pending_call(item)
            case McpApprovalRequest(status="completed") if item.id in decisions:
                call = pending_call(as_call(item))
            case _:
                continue
        if call.call_id not in answered:
            calls.append(call)
    return calls


def _open_in(items: Sequence[InputItem], answered: Container[str], shelf: Shelf) -> list[PendingCall]:
    """Those of an input. Clients leave out what they were shown, so a server's call is open only where that is certain:
    turns pause at all, it carries an id of ours, nothing shows that it was run, and the model has said nothing since.
    What was to be approved is so where the model has said nothing since the decision.
    """
    may_pause = shelf.settings.mixed_turns == "pause"
    turn = last_turn(items)
    requests = [item for item in items[: len(items) - len(turn)] if isinstance(item, McpApprovalRequest)]
    calls = _unanswered([*requests, *turn], answered, shelf, decided(turn))
    return [call for call in calls if not isinstance(call.item, McpCall) or _is_open(call.item, may_pause=may_pause)]


def _is_open(item: McpCall, *, may_pause: bool) -> bool:
    return item.approval_request_id is not UNSET or (may_pause and is_ours(item))


def _begun(past: Past) -> frozenset[str]:
    """The calls of which it shows that they were run, whatever that came to: none of them is run again."""
    items = (item for link in past.chain for item in (*link.input, *link.output))
    runs = (item for item in (*items, *past.own) if isinstance(item, McpCall) and is_run(item))
    return frozenset(map(call_id_of, runs))


def _is_local(call: FunctionCall, shelf: Shelf) -> bool:
    """Whether somebody here might run a function of that name: if not, nobody needs to be asked about it."""
    namespace = None if call.namespace is UNSET else call.namespace
    definition = ToolDefinition(name=call.name, kind=ToolKind.FUNCTION, namespace=namespace)
    return may_claim_function(definition, shelf.executors)


def _leftovers(
    calls: Sequence[PendingCall],
    parent: Parent,
    toolbox: Toolbox,
    left: int,
    decisions: Mapping[str, McpApprovalResponse],
) -> list[Leftover]:
    """Those that are the server's to run, by the tools and the policy of the request they were made under. Those that
    were denied are answered, whatever else holds. Of the others so many as are `left` are run.
    """
    request, is_parallel = parent.request, parent.request.parallel_tool_calls is not False
    found: list[Leftover] = []
    for call in (_with_model_name(call, toolbox) for call in calls):
        decision, problem, silence = decisions.get(_request_of(call) or ""), None, None
        match route(call.name, toolbox):
            case _ if decision is not None and not decision.approve:
                problem = denial(decision)
            case Route.SERVER if decision is None and toolbox.tools[call.name].needs_approval:
                problem = NO_APPROVAL
            case Route.SERVER:
                left -= 1
                problem = OVER_LIMIT if left < 0 else None
            case Route.UNKNOWN | Route.CLIENT if isinstance(call.item, McpCall) and request.choice_mode != "none":
                silence = toolbox.silent.get(call.item.server_label)
                if silence is None or decision is None:
                    problem, silence = silence or _gone(call.item, parent), None
            case _:
                continue
        found.append(Leftover(call, toolbox, is_parallel, problem, silence))
    return found


def _request_of(call: PendingCall) -> str | None:
    """The id of the request for its approval."""
    asked = call.item.approval_request_id if isinstance(call.item, McpCall) else UNSET
    return None if asked is UNSET else asked


def _gone(call: McpCall, parent: Parent) -> str:
    if call.server_label in parent.locked:
        return f"The address and the credentials of the server {call.server_label!r} are lost; declare it again."
    return f"The tool {call.name!r} is not available any more."


def _calls_run(link: Link) -> int:
    """How many calls that response has run itself."""
    denials = {denial(given) for given in decided(link.input).values() if not given.approve}
    return sum(_is_counted(item, denials) for item in link.output)


def _is_counted(item: InputItem, denials: Container[str]) -> bool:
    if isinstance(item, FunctionCallOutput):
        return item.output not in _UNRUN
    if not isinstance(item, McpCall) or item.server_label == HOUSE_LABEL or is_bare(item):
        return False
    return item.output is not None or (item.error_text not in _UNRUN and item.error_text not in denials)


_UNRUN = (OVER_LIMIT, NO_MORE, NO_APPROVAL, LOST, NOT_BEGUN, DECLINED, CHANGED)
"""What calls are answered with that are not run."""


def _with_model_name(call: PendingCall, toolbox: Toolbox) -> PendingCall:
    """A server's call shows under the server's own name for the tool; routing goes by what the model calls it."""
    if not isinstance(call.item, McpCall):
        return call
    name = model_name(toolbox, call.item.server_label, call.name)
    return pending_call(call.item, name)
