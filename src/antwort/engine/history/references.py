"""Items of a request that stand for others: references, results that name an item, and servers' calls without a result.

The store knows what a reference stands for, and the result of a server's call that a client sends back without it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from antwort.api.decoding import Steps
from antwort.api.items import CustomToolCallOutput, FunctionCallOutput, InputItem, ItemReference, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.history.calls import (
    CallIndex,
    CallView,
    call_id_of,
    call_shown_by,
    calls_in,
    is_same,
    map_steps,
    result_of,
    results_in,
    run_id_of,
    shown_id,
    unanswered_server_call,
)
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.refusals import CHANGED
from antwort.errors import ItemNotFound
from antwort.event_loop import in_turns
from antwort.ids import new_id
from antwort.storage.base import Link

# ---- items by their ids ----


def is_known_by_id(item: InputItem) -> bool:
    """Return whether the store may know more of the item than was sent: what a reference stands for, or the result of a
    server's call.
    """
    if isinstance(item, ItemReference):
        return True
    view = CallView.of(item)
    return view is not None and view.owner == "server" and view.part != "decision" and view.result is None


async def resolve_references(
    request: CreateRequest,
    chain: Sequence[Link],
    conversation: Sequence[InputItem],
    calls: CallIndex,
    reader: HistoryReader,
    known: Container[int] = (),
) -> CreateRequest:
    """Return the request with the items that its references stand for, as if they had been sent whole. Those in the
    `known` places (engine/history/deduplication.py) stay as they are. `calls` are those of the chain and conversation.

    A server's call that comes back without its result gets it from the store, where it has the id of the item, or of
    the run: a run is added behind the input. So are the runs of open calls of the chain, or of the conversation:
    another follow-up may have run them, such as the same request that was sent once more, or one after an error. A run
    that has only begun is added, too.
    """
    may_be_stored = await in_turns(map_steps(is_known_by_id, request.input))
    unknown = [item for at, item in enumerate(request.input) if at not in known and may_be_stored[at]]
    outputs = (item for link in chain for item in link.output)
    answered = (await in_turns(CallIndex.steps(request.input))).answered
    settled = answered | calls.answered
    asked = [
        call
        for item in (*outputs, *conversation)
        if (call := unanswered_server_call(item)) is not None and call_id_of(call) not in settled
    ]
    if not unknown and not asked:
        return request
    wanted = [item_id for item in unknown for item_id in _ids_of(item, answered)]
    wanted += [run for call in asked if (run := _run_of(call)) is not None]
    if not wanted:
        return request
    found = await reader.items(wanted)
    for i, item in enumerate(request.input):
        if i not in known and isinstance(item, ItemReference) and item.id not in found:
            raise ItemNotFound(item.id, param=f"input[{i}].id")
    items = [item if at in known else _resolved(item, found) for at, item in enumerate(request.input)]
    resolved = {id(item): item for item, given in zip(items, request.input, strict=True) if item is not given}
    encoded = {at: encode(item) for at, item in resolved.items()}  # each once, however often it is referred to
    raw = [encoded.get(id(item), raw) for item, raw in zip(items, request.raw_input, strict=True)]
    reader.check(sum(len(raw[at]) for at, item in enumerate(items) if id(item) in encoded), "input")
    items += _missing_runs(items, items, found)
    if asked:
        answered |= results_in(items)
        begun = {view.item.id for view in (*calls.views, *calls_in(items)) if view.part == "run"}
        # A run that has only begun in the chain may have a result elsewhere.
        fresh = {at: run for at, run in found.items() if at not in begun or result_of(run) is not None}
        items += _missing_runs([call for call in asked if call_id_of(call) not in answered], (), fresh)
    raw += map(encode, items[len(raw) :])
    return replace(request, input=tuple(items), raw_input=tuple(raw))


def without_references(request: CreateRequest) -> CreateRequest:
    """Return the request without its references, when what they stand for is in the history already."""
    if not any(isinstance(item, ItemReference) for item in request.input):
        return request
    pairs = zip(request.input, request.raw_input, strict=True)
    left = [(item, raw) for item, raw in pairs if not isinstance(item, ItemReference)]
    return replace(request, input=tuple(item for item, _ in left), raw_input=tuple(raw for _, raw in left))


def _ids_of(item: InputItem, answered: Container[str] = ()) -> Iterator[str]:
    """Return the ids under which the store may have the item, or the run of its call unless that is `answered`.

    A client that drops the id of the item may still send that of the call.
    """
    view = CallView.of(item)
    if view is None or view.part != "request":
        yield item.id
    if view is not None and view.is_mcp_call and (shown := shown_id(view.call_id)) != item.id:
        yield shown
    call_id = call_shown_by(item.id) if view is None else view.call_id
    if call_id not in answered and (run := _run_of(item)) is not None:
        yield run


def _run_of(item: InputItem) -> str | None:
    """Return the id of the item that shows the run of a call, from an item that asks for it or refers to one."""
    view = CallView.of(item)
    return run_id_of(item.id if view is None else shown_id(view.call_id))


def _resolved(item: InputItem, found: Mapping[str, InputItem]) -> InputItem:
    """Return the stored item. A call that contradicts it is not ours, whatever id it carries."""
    if isinstance(item, ItemReference):
        return found.get(item.id, item)
    if not isinstance(item, McpCall) or not is_known_by_id(item):
        return item
    if not all(is_same(item, found[item_id]) for item_id in _ids_of(item) if item_id in found):
        return replace(item, call_id=UNSET)
    view = CallView.of(item)
    ids = (item.id,) if view.part == "run" else (item.id, shown_id(view.call_id))
    return next((found[each] for each in ids if isinstance(found.get(each), McpCall)), item)


def _missing_runs(
    items: Sequence[InputItem], present: Iterable[InputItem], found: Mapping[str, InputItem]
) -> list[InputItem]:
    sent = {item.id for item in present}
    runs: list[InputItem] = []
    for item in items:
        run = None if isinstance(item, ItemReference) or not is_known_by_id(item) else found.get(_run_of(item) or "")
        # A run that was refused because its tool has changed is stored with the new request for approval.
        if isinstance(run, McpCall) and run.error_text == CHANGED:
            continue
        if run is not None and run.id not in sent and is_same(item, run):
            sent.add(run.id)
            runs.append(run)
    return runs


# ---- results for the calls of servers ----


def results_by_call_id_steps(request: CreateRequest, earlier: CallIndex) -> Steps[CreateRequest]:
    """Return the request with its input as `call_id_steps` gives it."""
    items = yield from call_id_steps(request.input, earlier)
    yield
    sent = [*zip(items, request.input, request.raw_input, strict=True)]
    if all(item is given for item, given, _ in sent):
        return request
    raw = tuple(raw if item is given else encode(item) for item, given, raw in sent)
    return replace(request, input=items, raw_input=raw)


def call_id_steps(items: Sequence[InputItem], earlier: CallIndex) -> Steps[tuple[InputItem, ...]]:
    """Return the items with each client's result for a server's call as an output that carries the `call_id`, in
    pieces.

    A client may name such a call by its `call_id` or by the `id` of the `mcp_call` item, or send that item back with an
    output. Everything behind this point sees one form.
    """
    views = yield from map_steps(CallView.of, items)
    if not any(
        view is not None and ((view.owner == "function" and view.part == "result") or view.is_mcp_call)
        for view in views
    ):
        return tuple(items)
    call_ids = _call_ids_by_item(items, [*earlier.views, *filter(None, views)])
    yield
    asked: dict[str, InputItem] = {
        view.call_id: view.item for view in earlier.views if view.is_mcp_call and view.result is None
    }
    answered = {*earlier.answered}
    found: list[InputItem] = []
    for item, view in zip(items, views, strict=True):
        result = item
        if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            call_id = call_ids.get(item.call_id, item.call_id)
            result = item if call_id == item.call_id else replace(item, call_id=call_id)
            answered.add(call_id)
        elif view is not None and view.is_mcp_call:
            if view.result is None:
                asked.setdefault(view.call_id, item)
            else:
                known = asked.get(view.call_id) if view.part == "call" and view.call_id not in answered else None
                if known is not None and is_same(item, known):
                    result = _as_output(view)
                answered.add(view.call_id)
        found.append(result)
    return tuple(found)


def _call_ids_by_item(items: Iterable[InputItem], views: Iterable[CallView]) -> dict[str, str]:
    """Return the call ids of servers' calls by the ids of the items that show them: `items` refer to such, `views` do
    all others.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for item in items:
        if isinstance(item, ItemReference) and (call_id := call_shown_by(item.id)) is not None:
            found[item.id] = call_id
    for view in views:
        if view.owner == "server" and view.part != "decision":
            found[view.item.id] = view.call_id
        elif view.owner == "function" and view.part == "call":
            taken.add(view.call_id)
    return {item_id: call_id for item_id, call_id in found.items() if item_id not in taken}


def _as_output(view: CallView) -> FunctionCallOutput:
    assert view.result is not None, "an open call is not an answer"
    is_error = UNSET if getattr(view.item, "error", None) is None else True
    return FunctionCallOutput(id=new_id("fco"), call_id=view.call_id, output=view.result, is_error=is_error)
