"""Convert values to rows and back, for any database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

import msgspec

from antwort.api.decoding import UNLIMITED
from antwort.api.events import CallEnded, Compacted, Mark, Span, TurnAbandoned, TurnEnded
from antwort.api.item_parsing import read_item
from antwort.api.items import InputItem, KnownItem, OpaqueItem, OutputItem
from antwort.api.requests import less_input
from antwort.api.responses import Metadata, Response
from antwort.api.tool_parsing import KEY
from antwort.api.wire import decode_any, encode, replace, to_plain
from antwort.errors import Damaged, InvalidField
from antwort.identity import Identity
from antwort.storage.base import ITEM_BYTES, Entry, NewResponse
from antwort.storage.database import Value

T = TypeVar("T")

SCHEMA_VERSION = 1
"""The form of the JSON in a row, stored with it."""

_decode_output: msgspec.json.Decoder[OutputItem] = msgspec.json.Decoder(OutputItem)
_decode_body = msgspec.json.Decoder(Response)
_decode_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_abandoned = msgspec.json.Decoder(TurnAbandoned)
_decode_metadata: msgspec.json.Decoder[Metadata] = msgspec.json.Decoder(Metadata)

INVALID = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""Other JSON than was written, bytes that are not UTF-8, a value that is not JSON."""

RowValues: TypeAlias = dict[str, Value]
Direction: TypeAlias = Literal["input", "output"]
ItemRow: TypeAlias = tuple[str, Direction, int, str, bytes]
"""id, direction, position, type, JSON."""
MarkRow: TypeAlias = tuple[int, str, bytes, int]
"""number, kind, JSON, items_end."""


def name_of(identity: Identity, response_id: str) -> RowValues:
    """Return the columns by which a response or a conversation is found."""
    return {"tenant": identity.tenant, "owner": identity.owner, "id": response_id}


def to_body(response: Response) -> bytes:
    """Return the JSON of the response without its output: items have rows of their own."""
    return encode(replace(response, output=()))


def input_rows(new: NewResponse) -> list[ItemRow]:
    pairs = zip(new.input, new.raw_input, strict=True)
    return [(item.id, "input", at, type_of(item), raw) for at, (item, raw) in enumerate(pairs)]


def output_rows(output: Sequence[OutputItem], first: int = 0) -> list[ItemRow]:
    return [(item.id, "output", at, type_of(item), encode(item)) for at, item in enumerate(output[first:], first)]


def mark_rows(marks: Sequence[tuple[int, Mark]]) -> list[MarkRow]:
    return [(number, _KINDS[type(mark)], encode(mark), items_end) for number, (items_end, mark) in enumerate(marks)]


_KINDS: dict[type[Mark], str] = {
    TurnEnded: "turn",
    CallEnded: "call",
    Compacted: "compacted",
    TurnAbandoned: "abandoned",
}


def type_of(item: InputItem) -> str:
    return item.type if isinstance(item, OpaqueItem) else str(item.__struct_config__.tag)


def renamed(item: InputItem, item_id: str) -> InputItem:
    """Return the item with this id."""
    if item.id == item_id:
        return item
    return OpaqueItem(item.type, item_id, item.fields) if isinstance(item, OpaqueItem) else replace(item, id=item_id)


# ---- rows to values: all raise `Damaged` ----


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except INVALID as exc:
        raise Damaged from exc


def to_response(body: bytes, output: Sequence[bytes] = ()) -> Response:
    response = decode(_decode_body, body)
    return replace(response, output=tuple(map(to_output, output))) if output else response


def size_of(raw: bytes) -> int:
    """Return what an item takes in memory, about."""
    if not isinstance(raw, bytes):
        raise Damaged
    return len(raw) + ITEM_BYTES


def to_output(raw: bytes) -> OutputItem:
    return decode(_decode_output, raw)


def to_span(mark: bytes, items_end: int) -> Span:
    """Return the range of output items of an abandoned turn."""
    return decode(_decode_abandoned, mark).start, items_end


def to_metadata(raw: bytes) -> Metadata:
    return decode(_decode_metadata, raw)


def without_input(request: bytes) -> bytes:
    """Return the JSON of a request without its input, which is stored as items."""
    try:
        return less_input(request)
    except INVALID as exc:
        raise Damaged from exc


def to_item(item_id: str, direction: Direction, raw: bytes) -> InputItem:
    """Return the item as it was when it was stored: what a client sent is parsed as it was then."""
    try:
        if direction == "output":
            return renamed(_decode_output.decode(raw), item_id)
        return read_item(decode_any(raw), "item", UNLIMITED, item_id=item_id)
    except (*INVALID, InvalidField) as exc:
        raise Damaged from exc


def shown_item(item: InputItem, raw: bytes) -> InputItem:
    """Return an item that a client sent as it is shown to it: with the fields that are not known here as they came, and
    without what is sealed in it.
    """
    if isinstance(item, OpaqueItem):
        if KEY not in item.fields:
            return item
        return OpaqueItem(item.type, item.id, {name: value for name, value in item.fields.items() if name != KEY})
    sent = _decode_fields.decode(raw)
    unknown = sent.keys() - _KNOWN_FIELDS[type(item)]
    if not unknown:
        return item
    rest = {name: decode_any(value) for name, value in sent.items() if name in unknown}
    return OpaqueItem(type_of(item), item.id, {**to_plain(item), **rest})


_KNOWN_FIELDS: dict[type, frozenset[str]] = {
    item: frozenset({"type", *item.__struct_encode_fields__}) for item in get_args(KnownItem)
}


def added_item(entry: Entry, item_id: str) -> InputItem:
    """Return an entry of a conversation as it is shown, with the id that it got."""
    item = renamed(entry.item, item_id)
    return item if entry.direction == "output" else shown_item(item, entry.raw)


def to_shown(item_id: str, direction: Direction, raw: bytes) -> InputItem:
    """Return the item of a row as it is shown."""
    item = to_item(item_id, direction, raw)
    return item if direction == "output" else shown_item(item, raw)
