"""What was said before, and the calls in it that are still to be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    OpaqueItem,
)
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, replace
from antwort.engine.budgets import most_calls
from antwort.engine.credentials import Credentials, Parent
from antwort.engine.decisions import NO_APPROVAL, check_decisions, decided, denial
from antwort.engine.foreign import foreign_call
from antwort.engine.latest import last_turn
from antwort.engine.memory import Memories, MemoryLost, Said, since_compaction
from antwort.engine.pairs import as_call, call_id_of, is_bare, is_ours, is_run, requested_call
from antwort.engine.plan import History, Leftover, OpenCall
from antwort.engine.recent import Records
from antwort.engine.steps import OVER_LIMIT, results_in
from antwort.engine.stops import NO_MORE
from antwort.engine.toolbox import Shelf, model_name, rebuild_toolbox
from antwort.errors import Conflict, ConversationNotFound, InvalidField, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Route, Toolbox, find_executor, route


async def load_chain(
    request: CreateRequest, records: Records, store: ResponseStore, identity: Identity
) -> tuple[Link, ...]:
    """The earlier responses, oldest first."""
    parent = request.previous_response_id
    if parent is None:
        return ()
    chain = await records.chain(identity, parent)
    if not chain:
        raise ResponseNotFound(parent, param="previous_response_id")
    if chain[-1].response.status in ("queued", "in_progress"):
        problem = f"The response {parent!r} is still running."
        raise Conflict(problem, param="previous_response_id", code="response_in_progress")
    await _check_alone(chain[-1], store, identity)
    return chain


async def _check_alone(link: Link, store: ResponseStore, identity: Identity) -> None:
    """A turn of a conversation says less than the conversation does. Where that is gone, it is all there is."""
    turn_of = link.response.conversation
    if turn_of and await store.conversation(identity, turn_of.id) is not None:
        problem = f"the response is a turn of a conversation. Go on with 'conversation': {turn_of.id!r} instead."
        raise InvalidField("previous_response_id", problem)


async def load_said(request: CreateRequest, store: ResponseStore, identity: Identity) -> tuple[InputItem, ...]:
    """The items of the conversation, oldest first."""
    if request.conversation is None:
        return ()
    said = await store.said(identity, request.conversation)
    if said is None:
        raise ConversationNotFound(request.conversation, param="conversation")
    return said


async def assemble(
    request: CreateRequest,
    chain: Sequence[Link],
    toolbox: Toolbox,
    shelf: Shelf,
    credentials: Credentials,
    said: tuple[InputItem, ...] = (),
    memories: Memories | None = None,
) -> History:
    """All that was said before and the new input, and the calls in it that are ours to run first.

    What was `said` in a conversation counts as put together by clients: they may have changed it at will. Of what was
    compacted, what is sealed counts, and not what stands before it.
    """
    history = _gathered(request, chain, said)
    counted = _counted(history, memories, request)
    _check_outputs(request.input, counted.stretches[:-1], counted.skipped)
    check_decisions(request.input, (item for each in counted.stretches[:-1] for item in each), counted.skipped)
    shown = [item for stretch in counted.stretches for item in stretch]
    answered, decisions = results_in(shown), decided(shown)
    own = tuple(shown) if counted.is_compacted else (*said, *request.input)
    begun = _begun(item for link in chain for item in (*link.input, *link.output)) | _begun(own)
    leftovers: list[Leftover] = []
    for link in chain:
        asked = (item for item in link.input if isinstance(item, McpApprovalRequest))
        left_open = [item for item in (*asked, *link.output) if not counted.is_compacted or item in shown]
        if calls := _unanswered(left_open, answered | begun, shelf, decisions):
            parent = credentials.made_under(link, request)
            then = msgspec.structs.replace(shelf, model=link.response.model)
            tools = await rebuild_toolbox(parent.request, then)
            left = most_calls(parent.request, shelf.settings) - _calls_run(link)
            leftovers += _leftovers(calls, parent, tools, left, decisions)
    # A client that keeps its history itself sends the open calls in the input: they were made under its own tools. So
    # are those of a conversation, as far as anybody knows.
    left = most_calls(request, shelf.settings)
    leftovers += _leftovers(_open_in(own, answered | begun, shelf), Parent(request), toolbox, left, decisions)
    # A client's ids may repeat; whoever runs a call answers for all that go by its id.
    first = {left.call.call_id: left for left in reversed(leftovers)}
    return replace(history, leftovers=tuple(reversed(first.values())))


def _gathered(request: CreateRequest, chain: Sequence[Link], said: tuple[InputItem, ...]) -> History:
    stretches: list[tuple[InputItem, ...]] = []
    inputs: list[int] = []
    for link in chain:
        inputs.append(len(stretches))
        stretches += _stretches(link)
    kept = [len(stretches)] if said else []
    stretches += [said, request.input] if said else [request.input]
    inputs += [*kept, len(stretches) - 1]
    return History(tuple(stretches), (), frozenset(inputs), frozenset(kept))


def _counted(history: History, memories: Memories | None, request: CreateRequest) -> Said:
    try:
        return since_compaction(history.stretches, history.inputs, memories, history.kept)
    except MemoryLost as lost:
        place = "previous_response_id" if request.conversation is None else "conversation"
        if lost.stretch == len(history.stretches) - 1:
            place = f"input[{lost.place}].encrypted_content"
        raise InvalidField(place, _LOST, code="invalid_encrypted_content") from lost


_LOST = (
    "it was compacted, and what was kept of it cannot be opened: it was changed, is somebody else's, or the key that "
    "sealed it is gone."
)


def _stretches(link: Link) -> Iterable[tuple[InputItem, ...]]:
    """The input, then each turn's items; results stand at the head of the stretch that follows their turn."""
    yield link.input
    start = 0
    for end in (*link.turn_ends, len(link.output)):
        if end > start:
            yield _without_abandoned(link.output[start:end], is_last=end == len(link.output))
        start = end


def _without_abandoned(items: Sequence[InputItem], *, is_last: bool) -> tuple[InputItem, ...]:
    """An incomplete item that others follow was closed by a takeover, and said again behind it."""
    kept = [item for item in items[:-1] if getattr(item, "status", None) != "incomplete"]
    last = items[-1]
    if is_last or getattr(last, "status", None) != "incomplete":
        kept.append(last)
    return tuple(kept)


def _check_outputs(items: Sequence[InputItem], earlier: Sequence[Sequence[InputItem]], first: int = 0) -> None:
    """An output must answer a call that the conversation knows, that is the client's, and that has no result yet. Of
    the items, those from the `first` on count.
    """
    items, skipped = items[first:], first
    if not any(isinstance(item, FunctionCallOutput | CustomToolCallOutput) for item in items):
        return
    before = [item for stretch in earlier for item in stretch]
    asked = Counter(call_id for item in (*before, *items) if (call_id := _asked(item)) is not None)
    answered = Counter(item.call_id for item in before if isinstance(item, FunctionCallOutput | CustomToolCallOutput))
    ours = {call_id_of(item) for item in (*before, *items) if isinstance(item, McpCall)}
    for i, item in enumerate(items):
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            answered[item.call_id] += 1
            if problem := _wrong_output(item.call_id, asked, answered, ours):
                raise InvalidField(f"input[{skipped + i}].call_id", problem[1], code=problem[0])


def _wrong_output(
    call_id: str, asked: Counter[str], answered: Counter[str], ours: Container[str]
) -> tuple[str, str] | None:
    if call_id in ours:
        return "not_a_client_call", f"the call {call_id!r} is not the client's to answer."
    if call_id not in asked:
        return "unknown_call_id", f"no call with id {call_id!r} in this conversation."
    if answered[call_id] > asked[call_id]:
        return "duplicate_output", f"the call {call_id!r} has a result already."
    return None


def _asked(item: InputItem) -> str | None:
    if isinstance(item, FunctionCall | CustomToolCall):
        return item.call_id
    # A kind of call that this version does not know still has its outputs.
    call = foreign_call(item) if isinstance(item, OpaqueItem) else None
    return None if call is None else call.call_id


# ---- calls that were left open ----


def _unanswered(
    items: Sequence[InputItem], answered: Container[str], shelf: Shelf, decisions: Container[str]
) -> list[OpenCall]:
    """The finished calls without a result that could be ours to run, or to refuse where the client has denied them. One
    under our own label was refused when it was made, also where the client leaves that out.
    """
    calls: list[OpenCall] = []
    for item in items:
        match item:
            case FunctionCall(status="completed") if _is_local(item, shelf):
                call = OpenCall(item.call_id, item.name, item.arguments, None, item)
            case McpCall(status="completed") if is_bare(item) and item.server_label != HOUSE_LABEL:
                call = OpenCall(call_id_of(item), item.name, item.arguments, None, item)
            case McpApprovalRequest(status="completed") if item.id in decisions:
                call = OpenCall(requested_call(item.id), item.name, item.arguments, None, as_call(item))
            case _:
                continue
        if call.call_id not in answered:
            calls.append(call)
    return calls


def _open_in(items: Sequence[InputItem], answered: Container[str], shelf: Shelf) -> list[OpenCall]:
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


def _begun(items: Iterable[InputItem]) -> frozenset[str]:
    """The calls of which it shows that they were run, whatever that came to: none of them is run again."""
    return frozenset(call_id_of(item) for item in items if isinstance(item, McpCall) and is_run(item))


def _is_local(call: FunctionCall, shelf: Shelf) -> bool:
    """Whether somebody here would run a function of that name: if not, nobody needs to be asked about it."""
    namespace = None if call.namespace is UNSET else call.namespace
    definition = ToolDefinition(name=call.name, kind=ToolKind.FUNCTION, namespace=namespace)
    return find_executor(definition, shelf.executors) is not None


def _leftovers(
    calls: Sequence[OpenCall],
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
        decision, problem = _decision(call, decisions), None
        match route(call.name, toolbox):
            case _ if decision is not None and not decision.approve:
                problem = denial(decision)
            case Route.SERVER if decision is None and toolbox.tools[call.name].needs_approval:
                problem = NO_APPROVAL
            case Route.SERVER:
                left -= 1
                problem = OVER_LIMIT if left < 0 else None
            case Route.UNKNOWN | Route.CLIENT if isinstance(call.item, McpCall) and request.choice_mode != "none":
                problem = _gone(call.item, parent)
            case _:
                continue
        found.append(Leftover(call, toolbox, is_parallel, problem))
    return found


def _decision(call: OpenCall, decisions: Mapping[str, McpApprovalResponse]) -> McpApprovalResponse | None:
    asked = call.item.approval_request_id if isinstance(call.item, McpCall) else UNSET
    return None if asked is UNSET else decisions.get(asked)


def _gone(call: McpCall, parent: Parent) -> str:
    if call.server_label in parent.locked:
        return f"The address and the credentials of the server {call.server_label!r} are lost; declare it again."
    return f"The tool {call.name!r} is not available any more."


def _calls_run(link: Link) -> int:
    """How many calls that response has run itself."""
    return sum(
        item.output not in (OVER_LIMIT, NO_MORE)
        if isinstance(item, FunctionCallOutput)
        else isinstance(item, McpCall)
        and item.server_label != HOUSE_LABEL
        and (item.output is not UNSET or item.error_text not in (None, OVER_LIMIT, NO_MORE))
        for item in link.output
    )


def _with_model_name(call: OpenCall, toolbox: Toolbox) -> OpenCall:
    """A server's call shows under the server's own name for the tool; routing goes by what the model calls it."""
    if not isinstance(call.item, McpCall):
        return call
    name = model_name(toolbox, call.item.server_label, call.name)
    return OpenCall(call.call_id, name, call.arguments, None, call.item)
