"""Load what a request continues, and put its history together with the calls in it that are still to be run."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from antwort.api.decoding import UNLIMITED, Steps, at_once
from antwort.api.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
)
from antwort.api.requests import CreateRequest
from antwort.api.tool_parsing import declared_steps, name_of
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.compaction_item import EffectiveHistory, Memories, MemoryLost, since_compaction
from antwort.engine.history.approvals import decisions_in
from antwort.engine.history.calls import (
    CALL_TYPES,
    ITEMS_PER_STEP,
    CallIndex,
    CallView,
    PendingCall,
    as_call,
    calls_in,
    is_made_here,
    requested_call,
    result_of,
    results_in,
)
from antwort.engine.history.deduplication import referring, repeated_steps
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.refusals import (
    CHANGED,
    DECLINED,
    NO_APPROVAL,
    NO_MORE,
    NOT_BEGUN,
    NOT_YET,
    OUTCOME_UNKNOWN,
    OVER_LIMIT,
    denial,
)
from antwort.engine.history.sealed_items import Parent, SealedItems, with_newer_credentials
from antwort.engine.history.turns import last_turn_steps, turn_steps, uninterrupted_steps
from antwort.engine.plan import History, Leftover, budget_of
from antwort.engine.prompt.declared_tools import declared_in
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.tool_names import model_name
from antwort.engine.prompt.toolbox import rebuild_toolbox
from antwort.errors import Conflict, ConversationNotFound, InvalidField, ResponseNotFound
from antwort.event_loop import Pace, in_turns
from antwort.identity import Identity
from antwort.storage.base import CallClaim, CallResult, Link, ResponseStore
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Route, Toolbox, may_claim_function, route

_NOT_RUN = (OVER_LIMIT, NO_MORE, NO_APPROVAL, OUTCOME_UNKNOWN, NOT_BEGUN, DECLINED, CHANGED)
"""Results of calls that are not run."""
_ASKING = (FunctionCall, McpCall, McpApprovalRequest)
"""Items that ask for a call which this server may run."""


class EarlierItems(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a request, to find its open calls in."""

    chain: Sequence[Link]
    items: Sequence[InputItem]
    """All items that count: of a compacted history those since the compaction."""
    own: Sequence[InputItem]
    """Those of them that clients have put together."""
    answered: frozenset[str]
    """The ids of the calls that have a result among them."""
    begun: frozenset[str]
    """The ids of the calls whose run is shown, in the chain or by a client."""
    is_compacted: bool = False
    askers: Mapping[str, Link] = {}
    """The responses under whose tools calls were made, by the ids of the approval requests; for others it is the
    response in the chain that asks."""


class EarlierCalls:
    """Find the open calls that are the server's to run, and decide what the request means for each."""

    def __init__(
        self,
        earlier: EarlierItems,
        request: CreateRequest,
        toolbox: Toolbox,
        discovery: Discovery,
        sealed: SealedItems,
    ) -> None:
        self._waiting: dict[str, str] = {}
        """What the model reads of the calls that stay open, by call id."""
        self._earlier, self._request, self._toolbox = earlier, request, toolbox
        self._discovery, self._sealed = discovery, sealed
        self._decisions = decisions_in(earlier.items)
        self._settled = earlier.answered | (earlier.begun - {requested_call(asked) for asked in self._decisions})

    async def find(self) -> tuple[tuple[Leftover, ...], Mapping[str, str]]:
        """Return the calls to settle, in the order in which they were asked for, each with the tools and the policy it
        was asked for under; and what the model reads of those that stay open, by call id.
        """
        earlier, request, toolbox = self._earlier, self._request, self._toolbox
        found: list[Leftover] = []
        pace = Pace()
        left = set[bytes]()
        """What a compaction has left of the items that ask for calls: an item is too rich to be hashed."""
        for at, item in enumerate(earlier.items if earlier.is_compacted else ()):
            if at % ITEMS_PER_STEP == 0:
                await pace.pause()
            if isinstance(item, _ASKING):
                left.add(encode(item))
        for link in earlier.chain:
            await pace.pause()
            requests = (item for item in link.input if isinstance(item, McpApprovalRequest))
            items = [item for item in (*requests, *link.said()) if isinstance(item, _ASKING)]
            if earlier.is_compacted:
                items = [item for item in items if encode(item) in left]
            calls = _unanswered(items, self._settled, self._discovery, self._decisions)
            found += self._weighed(await self._made_by(calls, link), link.said(), request.input)
        await pace.pause()
        turn = await in_turns(last_turn_steps(earlier.own))
        own = self._open_in(earlier.own, turn)
        found += await self._made_by(own, None)
        # A client that keeps its history itself sends the open calls in the input: they were made under its own tools.
        # So are those of a conversation, as far as is known.
        unknown = [call for call in own if call.approval_request_id not in earlier.askers]
        if labels := self._approved_labels(unknown):
            toolbox = await rebuild_toolbox(request, replace(self._discovery, fresh=labels))
        parent, most = Parent(request), budget_of(request, self._discovery.settings).calls
        of_own = _leftovers(own, parent, toolbox, most, self._decisions)
        found += self._weighed(of_own, turn, turn)
        if request.conversation is not None:  # it shows the result of each of its calls: a call without one is open
            for before in await in_turns(turn_steps(earlier.own[: len(earlier.own) - len(turn)])):
                await pace.pause()
                latest = await in_turns(last_turn_steps(before))
                calls = [call for call in self._open_in(before, latest) if is_made_here(call.call_id)]
                of_turn = _leftovers(calls, parent, toolbox, most, {})
                found += self._weighed(of_turn, before, request.input)
        # A client's call ids may repeat: the call that is run answers all that have its id.
        first = {left.call.call_id: left for left in reversed(found)}
        # A call that was begun and has no known result is not begun again.
        settled = [
            replace(left, refusal=OUTCOME_UNKNOWN)
            if left.call.call_id in earlier.begun and left.refusal is None
            else left
            for left in reversed(first.values())
        ]
        return tuple(settled), self._waiting

    # ---- what the request means for them ----

    def _weighed(self, made: Sequence[Leftover], turn: Sequence[InputItem], new: Sequence[InputItem]) -> list[Leftover]:
        """Return the calls that the request settles: it runs them, or declines them for good. `turn` are the items that
        hold the turn's calls, `new` those in which the client may continue it. Approvals are decided by themselves.
        """
        if not made:
            return []
        verdict = self._verdict({left.call.call_id for left in made}, turn, new)
        is_declined = verdict == "decline" or self._request.choice_mode == "none"
        settled, allowed = list[Leftover](), self._toolbox.allowed
        for left in made:
            if left.call.approval_request_id is not None:
                settled.append(left)
            elif is_declined or (allowed is not None and left.call.name not in allowed):
                settled.append(replace(left, refusal=DECLINED, is_declined=True))
            elif verdict == "run":
                settled.append(left)
            else:
                self._waiting[left.call.call_id] = NOT_YET
        return settled

    def _verdict(
        self, server_calls: Collection[str], turn: Sequence[InputItem], new: Sequence[InputItem]
    ) -> Literal["run", "decline", "wait"]:
        called, given = calls_in(turn), calls_in(new)
        client_calls = {each.call_id for each in called if each.owner == "function" and each.is_open} - {*server_calls}
        requests = {each.item.id for each in called if each.part == "request"}
        results = {each.call_id for each in given if each.owner == "function" and each.part == "result"}
        decisions = {each.request_id for each in given if each.part == "decision"}
        is_missing = any(call_id not in self._earlier.answered for call_id in client_calls)
        if not requests.isdisjoint(decisions):
            return "run"
        if not results.isdisjoint(client_calls | {*server_calls}):
            return "wait" if is_missing else "run"
        if any(isinstance(item, Message) and item.role != "assistant" for item in new):
            return "decline"
        return "wait" if is_missing or requests else "run"

    # ---- the tools that they were made under ----

    async def _made_by(self, calls: Sequence[PendingCall], link: Link | None) -> list[Leftover]:
        """Return the calls with the tools of the responses that made them: the askers, or else the `link`."""
        by_response: dict[str, tuple[Link, list[PendingCall]]] = {}
        for call in calls:
            if (maker := self._earlier.askers.get(call.approval_request_id or "", link)) is not None:
                by_response.setdefault(maker.response.id, (maker, []))[1].append(call)
        found: list[Leftover] = []
        for maker, made in by_response.values():
            parent = self._parent_of(maker)
            fresh = self._approved_labels(made)
            toolbox = await rebuild_toolbox(
                parent.request, replace(self._discovery, model=maker.response.model, fresh=fresh)
            )
            left = budget_of(parent.request, self._discovery.settings).calls - _calls_run(maker)
            asked_by = maker.response.id if maker.response.store else None
            of_maker = _leftovers(made, parent, toolbox, left, self._decisions)
            found += [replace(each, asked_by=asked_by) for each in of_maker]
        return found

    def _parent_of(self, link: Link) -> Parent:
        """Return the request of the response, with the tools that items had declared by then. Where that was not in the
        chain of this request, those of the conversation count that it continues.
        """
        chain, request = self._earlier.chain, self._request
        parent = at_once(self._sealed.parent_steps(link, request))
        at = next((at for at, each in enumerate(chain) if each.response.id == link.response.id), None)
        links = [link] if at is None else chain[: at + 1]
        items = [item for each in links for item in (*each.input, *each.output)]
        declared = [*declared_in(items, self._sealed, "previous_response_id")]
        found = at_once(declared_steps(declared, UNLIMITED.tools))
        newer = [each.tool for each in request.declarations]
        additional = [replace(each, tool=with_newer_credentials(each.tool, newer)) for each in found]
        if at is None:
            names = {name_of(each.tool) for each in found}
            additional += [each for each in request.additional if name_of(each.tool) not in names]
        locked = parent.locked.union(*(each.locked for each in declared))
        return Parent(replace(parent.request, additional=tuple(additional)), locked)

    def _approved_labels(self, calls: Sequence[PendingCall]) -> frozenset[str]:
        """Return the labels of the servers at which approved calls are to be run: their tools may have changed."""
        approved = {each for each, decision in self._decisions.items() if decision.approve}
        labels = (call.server_label for call in calls if call.approval_request_id in approved)
        return frozenset(label for label in labels if label is not None)

    def _open_in(self, items: Sequence[InputItem], turn: Sequence[InputItem]) -> list[PendingCall]:
        """Return the open calls of an input, whose last items are the model's last `turn`. Clients leave out what they
        were shown, so a server's call is open only where that is certain: turns pause at all, it carries an id of ours,
        nothing shows that it was run, and the model has written nothing since. A call that was to be approved is open
        where the model has written nothing since the decision.
        """
        requests = [item for item in items[: len(items) - len(turn)] if isinstance(item, McpApprovalRequest)]
        calls = _unanswered([*requests, *turn], self._settled, self._discovery, decisions_in(turn))
        may_pause = self._discovery.settings.mixed_turns == "pause"
        found: list[PendingCall] = []
        for call in calls:
            view = CallView.of(call.item)
            if view.owner == "function" or view.request_id is not None or (may_pause and view.has_our_id):
                found.append(call)
        return found


def answered_by_client(chain: Sequence[Link], new: Sequence[InputItem], discovery: Discovery) -> tuple[CallClaim, ...]:
    """Return claims on the server's open calls of stored responses that results among the `new` items answer."""
    results = {item.call_id: item for item in new if isinstance(item, FunctionCallOutput)}
    if not results:
        return ()
    found: list[CallClaim] = []
    for link in chain:
        if link.response.store:
            for call in _unanswered(link.said(), results_in(link.output), discovery, ()):
                if (given := results.get(call.call_id)) is not None:
                    result = CallResult(given.output, is_error=given.is_error is True)
                    found.append(
                        CallClaim(call_id=call.call_id, settled_by="", response_id=link.response.id, result=result)
                    )
    return tuple(found)


def _unanswered(
    items: Sequence[InputItem], answered: Container[str], discovery: Discovery, decisions: Container[str]
) -> list[PendingCall]:
    """Return the finished calls without a result that could be ours to run, or to refuse where the client has denied
    them. One under our own label was refused when it was made, also where the client leaves that out.
    """
    calls: list[PendingCall] = []
    for item in items:
        match item:
            case FunctionCall(status="completed") if _is_local(item, discovery):
                call = PendingCall.of(item)
            case McpCall(status="completed") if result_of(item) is None and item.server_label != HOUSE_LABEL:
                call = PendingCall.of(item)
            case McpApprovalRequest(status="completed") if item.id in decisions:
                call = PendingCall.of(as_call(item))
            case _:
                continue
        if call.call_id not in answered:
            calls.append(call)
    return calls


def _is_local(call: FunctionCall, discovery: Discovery) -> bool:
    """Whether an executor here might run a function of that name."""
    namespace = None if call.namespace is UNSET else call.namespace
    definition = ToolDefinition(name=call.name, kind=ToolKind.FUNCTION, namespace=namespace)
    return may_claim_function(definition, discovery.executors)


def _leftovers(
    calls: Sequence[PendingCall],
    parent: Parent,
    toolbox: Toolbox,
    left: int,
    decisions: Mapping[str, McpApprovalResponse],
) -> list[Leftover]:
    """Return the calls that are the server's to run, by the tools and the policy of the request they were made under.
    Denied calls are answered in any case. Of the others, so many as are `left` are run.
    """
    request, is_parallel = parent.request, parent.request.parallel_tool_calls is not False
    found: list[Leftover] = []
    for each in calls:
        # A server's call shows the server's own name for the tool; routing goes by the model's.
        label = each.server_label
        call = each if label is None else replace(each, name=model_name(toolbox, label, each.name))
        decision, problem, silence = decisions.get(call.approval_request_id or ""), None, None
        match route(call.name, toolbox):
            case _ if decision is not None and not decision.approve:
                problem = denial(decision)
            case Route.SERVER if decision is None and toolbox.tools[call.name].needs_approval:
                problem = NO_APPROVAL
            case Route.SERVER:
                left -= 1
                problem = OVER_LIMIT if left < 0 else None
            case Route.UNKNOWN | Route.CLIENT if label is not None and request.choice_mode != "none":
                silence = toolbox.silent.get(label)
                if silence is None or decision is None:
                    problem, silence = silence or _gone(label, call.item.name, parent), None
            case _:
                continue
        found.append(Leftover(call, toolbox, is_parallel, problem, silence))
    return found


def _gone(label: str, name: str, parent: Parent) -> str:
    if label in parent.locked:
        return f"The address and the credentials of the server {label!r} are lost; declare it again."
    return f"The tool {name!r} is not available any more."


def _calls_run(link: Link) -> int:
    """Count the calls that the response has run itself."""
    denials = [denial(given) for given in decisions_in(link.input).values() if not given.approve]
    refusals = {*_NOT_RUN, *denials}
    count = 0
    for item in link.output:
        match item:
            case FunctionCallOutput():
                count += item.output not in _NOT_RUN
            case McpCall() if item.server_label != HOUSE_LABEL and result_of(item) is not None:
                count += item.output is not None or item.error_text not in refusals
    return count


_MESSAGE_ONLY = frozenset({Message})
_MEMORY_LOST = (
    "it was compacted, and what was kept of it cannot be opened: it was changed, is somebody else's, or the key that "
    "sealed it is gone."
)


def is_all_new(request: CreateRequest) -> bool:
    """Return whether the request continues nothing and refers to nothing: there is nothing to look up or to run."""
    is_first = request.previous_response_id is None and request.conversation is None
    return is_first and _MESSAGE_ONLY.issuperset(map(type, request.input))


# ---- loading ----


async def load_chain(
    request: CreateRequest, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[Link, ...]:
    """Return the response that the request continues and its ancestors, oldest first."""
    parent = request.previous_response_id
    if parent is None:
        return ()
    chain = await reader.chain(parent)
    if not chain:
        raise ResponseNotFound(parent, param="previous_response_id")
    last = chain[-1].response
    if last.status in ("queued", "in_progress"):
        problem = f"The response {parent!r} is still running."
        raise Conflict(problem, param="previous_response_id", code="response_in_progress")
    # A turn of a conversation holds less than the conversation. Where that was deleted, the turn is all there is.
    if last.conversation and await store.conversation(identity, last.conversation.id) is not None:
        instead = f"Go on with 'conversation': {last.conversation.id!r} instead."
        raise InvalidField("previous_response_id", f"the response is a turn of a conversation. {instead}")
    return chain


async def load_conversation(
    request: CreateRequest, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[InputItem, ...]:
    """Return the items of the conversation that the request continues, oldest first."""
    conversation = request.conversation
    if conversation is None:
        return ()
    items = await reader.read(lambda bound: store.said(identity, conversation, bound), "conversation")
    if items is None:
        raise ConversationNotFound(conversation, param="conversation")
    return items


# ---- putting it together ----


def unrepeated_steps(
    request: CreateRequest,
    chain: Sequence[Link],
    conversation: tuple[InputItem, ...],
    memories: Memories,
) -> Steps[CreateRequest]:
    """Return the request with references in the place of results and decisions that were sent before, in pieces.

    Raises `InvalidField` or `Conflict` for those that contradict what is there, or that answer no call.
    """
    if CALL_TYPES.isdisjoint(map(type, request.input)):
        return request
    counted = _since_compaction(_stretches(request, chain, conversation), memories, request)
    earlier = [item for stretch in counted.stretches[:-1] for item in stretch]
    return referring(request, (yield from repeated_steps(request.input, earlier, counted.skipped)))


async def assemble(
    request: CreateRequest,
    chain: Sequence[Link],
    toolbox: Toolbox,
    discovery: Discovery,
    sealed: SealedItems,
    conversation: tuple[InputItem, ...],
    askers: Mapping[str, Link],
) -> History:
    """Return the history with the new input, and the calls in it that are ours to run first.

    The items of a `conversation` count as put together by clients, who may change it at will. Of a compacted history,
    what is sealed counts, and not what stands before it. `askers` are the responses under whose tools calls were made
    that wait for approval, by the ids of the requests, where the chain does not tell.
    """
    history = _stretches(request, chain, conversation)
    history = replace(history, stretches=(*history.stretches[:-1], sealed.opened(request.input)))
    counted = _since_compaction(history, sealed.memories, request)
    ordered = await in_turns(uninterrupted_steps(counted.stretches, counted.inputs))
    items = [item for stretch in ordered for item in stretch]
    inputs = ordered[-2 if conversation else -1 :]
    own = items if counted.is_compacted else [item for stretch in inputs for item in stretch]
    chain_items = [item for link in chain for item in (*link.input, *link.output)]
    shown = await in_turns(CallIndex.steps([*chain_items, *own]))
    earlier = EarlierItems(
        chain=chain,
        items=items,
        own=own,
        answered=(await in_turns(CallIndex.steps(items))).answered,
        begun=frozenset(view.call_id for view in shown.views if view.part == "run"),
        is_compacted=counted.is_compacted,
        askers=askers,
    )
    leftovers, placeholders = await EarlierCalls(earlier, request, toolbox, discovery, sealed).find()
    answered = answered_by_client(chain, request.input, discovery)
    return replace(history, leftovers=leftovers, answered=answered, placeholders=placeholders)


def _stretches(request: CreateRequest, chain: Sequence[Link], conversation: tuple[InputItem, ...]) -> History:
    """Return each input, and each turn's items; results stand at the head of the stretch that follows their turn."""
    stretches: list[tuple[InputItem, ...]] = []
    inputs: list[int] = []
    for link in chain:
        inputs.append(len(stretches))
        stretches.append(link.input)
        ends = (0, *link.turn_ends, len(link.output))
        stretches += [items for span in pairwise(ends) if (items := link.said(*span))]
    kept = [len(stretches)] if conversation else []
    stretches += [conversation, request.input] if conversation else [request.input]
    inputs += [*kept, len(stretches) - 1]
    return History(tuple(stretches), (), frozenset(inputs), frozenset(kept))


def _since_compaction(history: History, memories: Memories, request: CreateRequest) -> EffectiveHistory:
    try:
        return since_compaction(history.stretches, history.inputs, memories, history.kept)
    except MemoryLost as lost:
        place = "previous_response_id" if request.conversation is None else "conversation"
        if lost.stretch == len(history.stretches) - 1:
            place = f"input[{lost.place}].encrypted_content"
        raise InvalidField(place, _MEMORY_LOST, code="invalid_encrypted_content") from lost
