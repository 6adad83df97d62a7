"""What stands in a row, from the values and back. Nothing here knows which database it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from antwort.api.events import CallEnded, Compacted, Mark, Span, TurnAbandoned, TurnEnded
from antwort.api.items import InputItem, KnownItem, OpaqueItem, OutputItem
from antwort.api.limits import Limits
from antwort.api.logins import KEY
from antwort.api.requests import less_input, read_item
from antwort.api.responses import Metadata, Response
from antwort.api.wire import decode_any, encode, replace, to_plain
from antwort.errors import Damaged, InvalidField
from antwort.identity import Identity
from antwort.storage.base import Entry, NewResponse

SCHEMA_VERSION = 1
"""The form of the JSON in a row, kept with it: a later form can tell the earlier ones."""

_UNLIMITED = Limits(input_items=2**62, part_bytes=2**62, tools=2**62, servers=2**62, metadata_keys=2**62)
_decode_output: msgspec.json.Decoder[OutputItem] = msgspec.json.Decoder(OutputItem)
_decode_body = msgspec.json.Decoder(Response)
_decode_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_abandoned = msgspec.json.Decoder(TurnAbandoned)
_decode_metadata: msgspec.json.Decoder[Metadata] = msgspec.json.Decoder(Metadata)

_DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""Other JSON than was written, bytes that are not UTF-8, a value that is no JSON at all."""

Values: TypeAlias = dict[str, str | int | bytes | None]
Direction: TypeAlias = Literal["input", "output"]
ItemRow: TypeAlias = tuple[str, Direction, int, str, bytes]
"""id, direction, position, type, JSON."""
MarkRow: TypeAlias = tuple[int, str, bytes, int]
"""number, kind, JSON, items_end."""


def name_of(identity: Identity, response_id: str) -> Values:
    """What a response, or a conversation, is found by."""
    return {"tenant": identity.tenant, "owner": identity.owner, "id": response_id}


def to_body(response: Response) -> bytes:
    """The response without its output: items have rows of their own."""
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
    """The item under the id it goes by."""
    if item.id == item_id:
        return item
    return OpaqueItem(item.type, item_id, item.fields) if isinstance(item, OpaqueItem) else replace(item, id=item_id)


# ---- back ----


def to_response(body: bytes, output: Sequence[bytes] = ()) -> Response:
    try:
        response = _decode_body.decode(body)
    except _DAMAGED as exc:
        raise Damaged from exc
    return replace(response, output=tuple(map(to_output, output))) if output else response


def to_output(raw: bytes) -> OutputItem:
    try:
        return _decode_output.decode(raw)
    except _DAMAGED as exc:
        raise Damaged from exc


def without_input(request: bytes) -> bytes:
    """A request less its input, which is there as items."""
    try:
        return less_input(request)
    except _DAMAGED as exc:
        raise Damaged from exc


def to_item(item_id: str, direction: Direction, raw: bytes) -> InputItem:
    """The item as it was when it was stored: what a client sent is read as it was read then."""
    try:
        if direction == "output":
            return renamed(_decode_output.decode(raw), item_id)
        return read_item(decode_any(raw), "item", _UNLIMITED, item_id=item_id)
    except (*_DAMAGED, InvalidField) as exc:
        raise Damaged from exc


def shown_item(item: InputItem, raw: bytes) -> InputItem:
    """An item that a client sent as it is given back: the fields that are not known here are as they came, and what is
    sealed in it is left out.
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
    """An entry of a conversation as it is given back under the id that it goes by."""
    item = renamed(entry.item, item_id)
    return item if entry.direction == "output" else shown_item(item, entry.raw)


def to_shown(item_id: str, direction: Direction, raw: bytes) -> InputItem:
    """The item of a row as it is given back."""
    item = to_item(item_id, direction, raw)
    return item if direction == "output" else shown_item(item, raw)


def to_span(mark: bytes, items_end: int) -> Span:
    """The places of what was said in an inference that was made anew."""
    try:
        return _decode_abandoned.decode(mark).start, items_end
    except _DAMAGED as exc:
        raise Damaged from exc


def to_metadata(raw: bytes) -> Metadata:
    try:
        return _decode_metadata.decode(raw)
    except _DAMAGED as exc:
        raise Damaged from exc
