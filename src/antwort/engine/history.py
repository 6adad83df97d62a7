"""What was said before: `previous_response_id` and `item_reference` become items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpCall,
    OpaqueItem,
)
from antwort.api.requests import CreateRequest, Limits, parse_request
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.plan import History, Leftover, OpenCall, build_toolbox, model_name
from antwort.engine.settings import EngineSettings
from antwort.engine.steps import call_id_of, results_in
from antwort.errors import Conflict, InvalidField, ItemNotFound, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore
from antwort.tools.base import ToolExecutor
from antwort.tools.routing import Route, Toolbox, route

_UNBOUNDED = Limits(input_items=2**31, part_bytes=2**40, tools=2**31, metadata_keys=2**31)


async def resolve_references(request: CreateRequest, store: ResponseStore, identity: Identity) -> CreateRequest:
    """The request with the items that its references stand for; they are stored as if they had been sent whole."""
    wanted = {item.id: i for i, item in enumerate(request.input) if isinstance(item, ItemReference)}
    if not wanted:
        return request
    found = await store.items(identity, list(wanted))
    for item_id, i in wanted.items():
        if item_id not in found:
            raise ItemNotFound(item_id, param=f"input[{i}].id")
    items = tuple(found[item.id] if isinstance(item, ItemReference) else item for item in request.input)
    raw = tuple(
        encode(found[item.id]) if isinstance(item, ItemReference) else raw
        for item, raw in zip(request.input, request.raw_input, strict=True)
    )
    return replace(request, input=items, raw_input=raw)


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


async def assemble(
    request: CreateRequest,
    chain: Sequence[Link],
    executors: Sequence[ToolExecutor],
    identity: Identity,
    settings: EngineSettings,
) -> History:
    stretches = [stretch for link in chain for stretch in _stretches(link)]
    stretches.append(request.input)
    _check_call_ids(request.input, stretches[:-1])
    answered = results_in(item for stretch in stretches for item in stretch)
    leftovers = [
        left
        for link in chain
        if (calls := _unanswered(link, answered))
        for left in await _leftovers(link, calls, executors, identity, settings)
    ]
    return History(tuple(stretches), tuple(leftovers))


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


def _check_call_ids(items: Sequence[InputItem], earlier: Iterable[Sequence[InputItem]]) -> None:
    """An output must answer a call that the conversation knows."""
    if not any(isinstance(item, FunctionCallOutput | CustomToolCallOutput) for item in items):
        return
    known = {call_id for stretch in (*earlier, items) for item in stretch if (call_id := _asked(item)) is not None}
    for i, item in enumerate(items):
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput) and item.call_id not in known:
            problem = f"no call with id {item.call_id!r} in this conversation."
            raise InvalidField(f"input[{i}].call_id", problem, code="unknown_call_id")


def _asked(item: InputItem) -> str | None:
    if isinstance(item, FunctionCall | CustomToolCall):
        return item.call_id
    if isinstance(item, OpaqueItem):  # a kind of call that this version does not know still has its outputs
        call_id = item.fields.get("call_id")
        return call_id if isinstance(call_id, str) else None
    return call_id_of(item) if isinstance(item, McpCall) else None


def _unanswered(link: Link, answered: frozenset[str]) -> list[OpenCall]:
    calls: list[OpenCall] = []
    for item in link.output:
        match item:
            case FunctionCall(status="completed"):
                call = OpenCall(item.call_id, item.name, item.arguments, None, item)
            case McpCall(status="completed") if item.output is UNSET and item.error is UNSET:
                call = OpenCall(call_id_of(item), item.name, item.arguments, None, item)
            case _:
                continue
        if call.call_id not in answered:
            calls.append(call)
    return calls


async def _leftovers(
    link: Link,
    calls: Sequence[OpenCall],
    executors: Sequence[ToolExecutor],
    identity: Identity,
    settings: EngineSettings,
) -> list[Leftover]:
    """Those that were the server's to run, by the tools and the policy of the response that asked for them."""
    request = parse_request(link.request, _UNBOUNDED)
    toolbox, _ = await build_toolbox(request, executors, identity, settings)
    named = ((_with_model_name(call, toolbox), toolbox) for call in calls)
    return [Leftover(call, box) for call, box in named if route(call.name, box) is Route.SERVER]


def _with_model_name(call: OpenCall, toolbox: Toolbox) -> OpenCall:
    """A server's call shows under the server's own name for the tool; routing goes by what the model calls it."""
    if not isinstance(call.item, McpCall):
        return call
    name = model_name(toolbox, call.item.server_label, call.name)
    return OpenCall(call.call_id, name, call.arguments, None, call.item)
