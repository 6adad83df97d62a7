"""What the store knows of the items that a request sends: references stand for items, and clients send a server's calls
back without what they came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from antwort.api.items import InputItem, ItemReference, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.pairs import call_id_of, is_bare, is_run, is_same, run_of, shown_id
from antwort.engine.steps import results_in
from antwort.errors import ItemNotFound
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore


async def resolve_references(request: CreateRequest, store: ResponseStore, identity: Identity) -> CreateRequest:
    """The request with the items that its references stand for; they are stored as if they had been sent whole.

    Some clients send a server's call back without its result, which the store has under the same id, or under the id
    of its run: such a run is put behind the input.
    """
    wanted = [item_id for item in request.input if is_known_by_id(item) for item_id in _ids_of(item)]
    if not wanted:
        return request
    found = await store.items(identity, [*dict.fromkeys(wanted)])
    for i, item in enumerate(request.input):
        if isinstance(item, ItemReference) and item.id not in found:
            raise ItemNotFound(item.id, param=f"input[{i}].id")
    items = [_recalled(item, found) for item in request.input]
    raw = [
        raw if item is given else encode(item)
        for item, given, raw in zip(items, request.input, request.raw_input, strict=True)
    ]
    request = replace(request, input=tuple(items), raw_input=tuple(raw))
    return _with_runs(request, _missing_runs(items, items, found))


async def recall_runs(
    request: CreateRequest, chain: Sequence[Link], store: ResponseStore, identity: Identity
) -> CreateRequest:
    """The request with what the open calls of the chain came to where it was continued before: by the same request
    that was sent once more, say, or after an error. Also a run that was only begun is put behind the input.
    """
    asked = [item for link in chain for item in link.output if _is_asked(item)]
    if not asked:
        return request
    said = [item for link in chain for item in (*link.input, *link.output)] + [*request.input]
    answered = results_in(said)
    calls = [item for item in asked if call_id_of(item) not in answered]
    wanted = [run for item in calls if (run := _run_of(item)) is not None]
    if not wanted:
        return request
    found = await store.items(identity, [*dict.fromkeys(wanted)])
    begun = {item.id for item in said if is_run(item)}
    # What was begun in the chain may have come to something elsewhere.
    fresh = {at: run for at, run in found.items() if at not in begun or results_in([run])}
    return _with_runs(request, _missing_runs(calls, (), fresh))


def _is_asked(item: InputItem) -> TypeGuard[McpCall]:
    return isinstance(item, McpCall) and item.status == "completed" and is_bare(item)


def _with_runs(request: CreateRequest, runs: Iterable[InputItem]) -> CreateRequest:
    runs = [*runs]
    raw = [encode(run) for run in runs]
    return replace(request, input=(*request.input, *runs), raw_input=(*request.raw_input, *raw)) if runs else request


def is_known_by_id(item: InputItem) -> TypeGuard[ItemReference | McpCall]:
    """Whether the store may know more of it than was sent."""
    return isinstance(item, ItemReference) or (isinstance(item, McpCall) and is_bare(item))


def _ids_of(item: ItemReference | McpCall) -> Iterator[str]:
    """Where the store may have it. A client that drops the id of the item may still send that of the call."""
    yield item.id
    if isinstance(item, McpCall) and (shown := shown_id(call_id_of(item))) != item.id:
        yield shown
    if (run := _run_of(item)) is not None:
        yield run


def _run_of(item: ItemReference | McpCall) -> str | None:
    return run_of(item.id if isinstance(item, ItemReference) else shown_id(call_id_of(item)))


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


def _missing_runs(
    items: Sequence[InputItem], known: Iterable[InputItem], found: Mapping[str, InputItem]
) -> Iterable[InputItem]:
    sent = {item.id for item in known}
    for item in items:
        run = found.get(_run_of(item) or "") if isinstance(item, McpCall) and is_bare(item) else None
        if run is not None and run.id not in sent and is_same(item, run):
            sent.add(run.id)
            yield run
