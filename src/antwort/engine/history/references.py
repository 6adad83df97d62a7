"""What the store knows of the items that a request sends: references stand for items, and clients send a server's calls
back without what they came to.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from antwort.api.items import InputItem, ItemReference, McpApprovalRequest, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.history.calls import (
    call_id_of,
    call_shown_by,
    is_bare,
    is_run,
    is_same,
    results_in,
    run_id_of,
    shown_id,
    unanswered_server_call,
)
from antwort.engine.history.decisions import CHANGED
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.recent_responses import Records
from antwort.errors import ItemNotFound
from antwort.identity import Identity
from antwort.storage.base import Link


async def resolve_references(
    request: CreateRequest, records: Records, identity: Identity, reader: HistoryReader, known: Container[int] = ()
) -> CreateRequest:
    """The request with the items that its references stand for; they are stored as if they had been sent whole. Those
    in the places of what is `known` (engine/history/deduplication.py) stay as they are: it is not said twice.

    Some clients send a server's call back without its result, which the store has under the same id, or under the id
    of its run: such a run is put behind the input.
    """
    unknown = [item for at, item in enumerate(request.input) if at not in known and is_known_by_id(item)]
    answered = results_in(request.input) if unknown else ()
    wanted = [item_id for item in unknown for item_id in _ids_of(item, answered)]
    if not wanted:
        return request
    ids = [*dict.fromkeys(wanted)]
    found = await reader.read(lambda bound: records.items(identity, ids, bound), "input")
    for i, item in enumerate(request.input):
        if i not in known and isinstance(item, ItemReference) and item.id not in found:
            raise ItemNotFound(item.id, param=f"input[{i}].id")
    items = [item if at in known else _recalled(item, found) for at, item in enumerate(request.input)]
    recalled = {id(item): item for item, given in zip(items, request.input, strict=True) if item is not given}
    written = {at: encode(item) for at, item in recalled.items()}  # each once, however often it is referred to
    raw = [written.get(id(item), raw) for item, raw in zip(items, request.raw_input, strict=True)]
    reader.check(sum(len(raw[at]) for at, item in enumerate(items) if id(item) in written), "input")
    request = replace(request, input=tuple(items), raw_input=tuple(raw))
    return _with_runs(request, _missing_runs(items, items, found))


def without_references(request: CreateRequest) -> CreateRequest:
    """The request less the references that stay as they are: what they stand for is there already."""
    if not any(isinstance(item, ItemReference) for item in request.input):
        return request
    pairs = zip(request.input, request.raw_input, strict=True)
    kept = [(item, raw) for item, raw in pairs if not isinstance(item, ItemReference)]
    return replace(request, input=tuple(item for item, _ in kept), raw_input=tuple(raw for _, raw in kept))


async def recall_runs(
    request: CreateRequest,
    chain: Sequence[Link],
    records: Records,
    identity: Identity,
    reader: HistoryReader,
    conversation: Sequence[InputItem] = (),
) -> CreateRequest:
    """The request with what the open calls of the chain, or of the conversation, came to where it was continued before:
    by the same request that was sent once more, say, or after an error. Also a run that was only begun is put behind
    the input.
    """
    outputs = (item for link in chain for item in link.output)
    asked = [call for item in (*outputs, *conversation) if (call := unanswered_server_call(item)) is not None]
    if not asked:
        return request
    earlier = (item for link in chain for item in (*link.input, *link.output))
    said = [*earlier, *conversation, *request.input]
    answered = results_in(said)
    calls = [item for item in asked if call_id_of(item) not in answered]
    wanted = [run for item in calls if (run := _run_of(item)) is not None]
    if not wanted:
        return request
    ids = [*dict.fromkeys(wanted)]
    found = await reader.read(lambda bound: records.items(identity, ids, bound), "input")
    begun = {item.id for item in said if is_run(item)}
    # What was begun in the chain may have come to something elsewhere.
    fresh = {at: run for at, run in found.items() if at not in begun or results_in([run])}
    return _with_runs(request, _missing_runs(calls, (), fresh))


def _with_runs(request: CreateRequest, runs: Iterable[InputItem]) -> CreateRequest:
    runs = [*runs]
    raw = [encode(run) for run in runs]
    return replace(request, input=(*request.input, *runs), raw_input=(*request.raw_input, *raw)) if runs else request


def is_known_by_id(item: InputItem) -> TypeGuard[ItemReference | McpCall | McpApprovalRequest]:
    """Whether the store may know more of it than was sent."""
    return isinstance(item, ItemReference | McpApprovalRequest) or (isinstance(item, McpCall) and is_bare(item))


def _ids_of(item: ItemReference | McpCall | McpApprovalRequest, answered: Container[str] = ()) -> Iterator[str]:
    """Where the store may have it. A client that drops the id of the item may still send that of the call. Of a request
    for an approval only the run is wanted. The run of a call that the input has a result of is not.
    """
    if not isinstance(item, McpApprovalRequest):
        yield item.id
    if isinstance(item, McpCall) and (shown := shown_id(call_id_of(item))) != item.id:
        yield shown
    call_id = call_id_of(item) if isinstance(item, McpCall) else call_shown_by(item.id)
    if call_id not in answered and (run := _run_of(item)) is not None:
        yield run


def _run_of(item: ItemReference | McpCall | McpApprovalRequest) -> str | None:
    return run_id_of(shown_id(call_id_of(item)) if isinstance(item, McpCall) else item.id)


def _recalled(item: InputItem, found: Mapping[str, InputItem]) -> InputItem:
    """The item as it is on record. A call that contradicts the record is none of ours, whatever id it carries."""
    if isinstance(item, ItemReference):
        return found.get(item.id, item)
    if not isinstance(item, McpCall) or not is_bare(item):
        return item
    records = [found[item_id] for item_id in _ids_of(item) if item_id in found]
    if not all(is_same(item, record) for record in records):
        return replace(item, call_id=UNSET)
    places = (item.id,) if is_run(item) else (item.id, shown_id(call_id_of(item)))
    asked = (found.get(item_id) for item_id in places)
    return next((record for record in asked if isinstance(record, McpCall)), item)


def _is_asked_again(run: InputItem) -> bool:
    """Whether it only says that the call is asked about again: what came of that is on record with the new question."""
    return isinstance(run, McpCall) and run.error_text == CHANGED


def _missing_runs(
    items: Sequence[InputItem], known: Iterable[InputItem], found: Mapping[str, InputItem]
) -> Iterable[InputItem]:
    sent = {item.id for item in known}
    for item in items:
        if isinstance(item, ItemReference) or not is_known_by_id(item):
            continue
        run = found.get(_run_of(item) or "")
        if run is not None and run.id not in sent and is_same(item, run) and not _is_asked_again(run):
            sent.add(run.id)
            yield run
