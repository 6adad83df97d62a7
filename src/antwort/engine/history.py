"""What was said before: `previous_response_id` and `item_reference` become items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeGuard

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpCall,
    Message,
    OpaqueItem,
)
from antwort.api.requests import CreateRequest, Limits, parse_request
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.foreign import foreign_call
from antwort.engine.plan import History, Leftover, OpenCall
from antwort.engine.steps import OVER_LIMIT, call_id_of, results_in
from antwort.engine.toolbox import Shelf, model_name, rebuild_toolbox
from antwort.errors import Conflict, InvalidField, ItemNotFound, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Route, Toolbox, find_executor, route

_UNBOUNDED = Limits(input_items=2**31, part_bytes=2**40, tools=2**31, metadata_keys=2**31)


async def resolve_references(request: CreateRequest, store: ResponseStore, identity: Identity) -> CreateRequest:
    """The request with the items that its references stand for; they are stored as if they had been sent whole.

    Some clients send a server's call back without its result, which the store has under the same id.
    """
    wanted = [item.id for item in request.input if is_known_by_id(item)]
    if not wanted:
        return request
    found = await store.items(identity, [*dict.fromkeys(wanted)])
    for i, item in enumerate(request.input):
        if isinstance(item, ItemReference) and item.id not in found:
            raise ItemNotFound(item.id, param=f"input[{i}].id")
    items = tuple(_recalled(item, found) for item in request.input)
    raw = tuple(
        raw if item is given else encode(item)
        for item, given, raw in zip(items, request.input, request.raw_input, strict=True)
    )
    return replace(request, input=items, raw_input=raw)


def is_known_by_id(item: InputItem) -> TypeGuard[ItemReference | McpCall]:
    """Whether the store may know more of it than was sent."""
    return isinstance(item, ItemReference) or (isinstance(item, McpCall) and _is_bare(item))


def _is_bare(call: McpCall) -> bool:
    return call.output is UNSET and call.error is UNSET


def _recalled(item: InputItem, found: Mapping[str, InputItem]) -> InputItem:
    if not is_known_by_id(item):
        return item
    kept = found.get(item.id, item)
    return kept if isinstance(item, ItemReference) or isinstance(kept, McpCall) else item


async def load_chain(request: CreateRequest, store: ResponseStore, identity: Identity) -> tuple[Link, ...]:
    """The earlier responses, oldest first."""
    parent = request.previous_response_id
    if parent is None:
        return ()
    chain = await store.chain(identity, parent)
    if not chain:
        raise ResponseNotFound(parent, param="previous_response_id")
    if chain[-1].response.status in ("queued", "in_progress"):
        problem = f"The response {parent!r} is still running."
        raise Conflict(problem, param="previous_response_id", code="response_in_progress")
    return chain


async def assemble(request: CreateRequest, chain: Sequence[Link], toolbox: Toolbox, shelf: Shelf) -> History:
    """All that was said before and the new input, and the calls in it that are ours to run first."""
    stretches = [stretch for link in chain for stretch in _stretches(link)]
    _check_outputs(request.input, stretches)
    stretches.append(request.input)
    answered = results_in(item for stretch in stretches for item in stretch)
    leftovers: list[Leftover] = []
    for link in chain:
        if calls := _unanswered(link.output, answered, shelf):
            parent = parse_request(link.request, _UNBOUNDED)
            leftovers += _leftovers(calls, parent, await rebuild_toolbox(parent, shelf), _calls_run(link))
    # A client that keeps its history itself sends the open calls in the input: they were made under its own tools.
    leftovers += _leftovers(_unanswered(_since_words(request.input), answered, shelf), request, toolbox, 0)
    # A client's ids may repeat; whoever runs a call answers for all that go by its id.
    first = {left.call.call_id: left for left in reversed(leftovers)}
    return History(tuple(stretches), tuple(reversed(first.values())))


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


def _check_outputs(items: Sequence[InputItem], earlier: Sequence[Sequence[InputItem]]) -> None:
    """An output must answer a call that the conversation knows, that is the client's, and that has no result yet."""
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
                raise InvalidField(f"input[{i}].call_id", problem[1], code=problem[0])


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


def _unanswered(items: Sequence[InputItem], answered: Container[str], shelf: Shelf) -> list[OpenCall]:
    """The finished calls without a result that could be ours to run."""
    calls: list[OpenCall] = []
    for item in items:
        match item:
            case FunctionCall(status="completed") if _is_local(item, shelf):
                call = OpenCall(item.call_id, item.name, item.arguments, None, item)
            case McpCall(status="completed") if _is_bare(item):
                call = OpenCall(call_id_of(item), item.name, item.arguments, None, item)
            case _:
                continue
        if call.call_id not in answered:
            calls.append(call)
    return calls


def _since_words(items: Sequence[InputItem]) -> Sequence[InputItem]:
    """The items after the last turn that ended in words: whatever was called before has had its result, even where
    the client does not send it.
    """
    for i in reversed(range(len(items))):
        item = items[i]
        follows = items[i + 1] if i + 1 < len(items) else None
        is_end = follows is None or (isinstance(follows, Message) and follows.role != "assistant")
        if is_end and isinstance(item, Message) and item.role == "assistant":
            return items[i + 1 :]
    return items


def _is_local(call: FunctionCall, shelf: Shelf) -> bool:
    """Whether somebody here would run a function of that name: if not, nobody needs to be asked about it."""
    namespace = None if call.namespace is UNSET else call.namespace
    definition = ToolDefinition(name=call.name, kind=ToolKind.FUNCTION, namespace=namespace)
    return find_executor(definition, shelf.executors) is not None


def _leftovers(calls: Sequence[OpenCall], request: CreateRequest, toolbox: Toolbox, spent: int) -> list[Leftover]:
    """Those that are the server's to run, by the tools and the policy of the request they were made under."""
    left = None if request.max_tool_calls is None else request.max_tool_calls - spent
    is_parallel = request.parallel_tool_calls is not False
    found: list[Leftover] = []
    for call in (_with_model_name(call, toolbox) for call in calls):
        problem = None
        match route(call.name, toolbox):
            case Route.SERVER:
                if left is not None:
                    left -= 1
                    problem = OVER_LIMIT if left < 0 else None
            case Route.UNKNOWN | Route.CLIENT if isinstance(call.item, McpCall) and request.choice_mode != "none":
                problem = f"The tool {call.item.name!r} is not available any more."
            case _:
                continue
        found.append(Leftover(call, toolbox, is_parallel, problem))
    return found


def _calls_run(link: Link) -> int:
    """How many calls that response has run itself."""
    return sum(
        item.output != OVER_LIMIT
        if isinstance(item, FunctionCallOutput)
        else isinstance(item, McpCall)
        and item.server_label != HOUSE_LABEL
        and (item.output is not UNSET or item.error_text not in (None, OVER_LIMIT))
        for item in link.output
    )


def _with_model_name(call: OpenCall, toolbox: Toolbox) -> OpenCall:
    """A server's call shows under the server's own name for the tool; routing goes by what the model calls it."""
    if not isinstance(call.item, McpCall):
        return call
    name = model_name(toolbox, call.item.server_label, call.name)
    return OpenCall(call.call_id, name, call.arguments, None, call.item)
