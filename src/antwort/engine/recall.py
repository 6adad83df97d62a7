"""What the store knows of the items that a request sends: references stand for items, and clients send a server's calls
back without what they came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

import msgspec

from antwort.api.items import InputItem, ItemReference, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.pairs import call_id_of, run_of, shown_id
from antwort.errors import ItemNotFound
from antwort.identity import Identity
from antwort.storage.base import ResponseStore


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
    runs = [*_missing_runs(items, found)]
    return replace(request, input=(*items, *runs), raw_input=(*raw, *(encode(run) for run in runs)))


def is_known_by_id(item: InputItem) -> TypeGuard[ItemReference | McpCall]:
    """Whether the store may know more of it than was sent."""
    return isinstance(item, ItemReference) or (isinstance(item, McpCall) and is_bare(item))


def is_bare(call: McpCall) -> bool:
    return call.output is UNSET and call.error is UNSET


def _ids_of(item: ItemReference | McpCall) -> Iterator[str]:
    yield item.id
    if (run := _run_of(item)) is not None:
        yield run


def _run_of(item: ItemReference | McpCall) -> str | None:
    return run_of(item.id if isinstance(item, ItemReference) else shown_id(call_id_of(item)))


def _recalled(item: InputItem, found: Mapping[str, InputItem]) -> InputItem:
    """The item as it is on record. A call that contradicts the record is none of ours, whatever id it carries."""
    if isinstance(item, ItemReference):
        return found.get(item.id, item)
    if not is_known_by_id(item):
        return item
    records = [found[item_id] for item_id in _ids_of(item) if item_id in found]
    if not all(_is_same(item, record) for record in records):
        return replace(item, call_id=UNSET)
    kept = found.get(item.id)
    return kept if isinstance(kept, McpCall) else item


def _missing_runs(items: Sequence[InputItem], found: Mapping[str, InputItem]) -> Iterable[InputItem]:
    sent = {item.id for item in items}
    for item in items:
        run = found.get(_run_of(item) or "") if isinstance(item, McpCall) and is_bare(item) else None
        if run is not None and run.id not in sent and _is_same(item, run):
            sent.add(run.id)
            yield run


def _is_same(item: InputItem, record: InputItem) -> bool:
    """Whether both ask the same of the same tool. Clients read the arguments and write them anew."""
    if not isinstance(item, McpCall) or not isinstance(record, McpCall):
        return False
    if (item.server_label, item.name) != (record.server_label, record.name):
        return False
    return item.arguments == record.arguments or _value(item.arguments) == _value(record.arguments)


def _value(arguments: str) -> object:
    try:
        return msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
