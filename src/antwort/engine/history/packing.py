"""A response of a chain as JSON, and back."""

from __future__ import annotations

import msgspec

from antwort.api.additional_tools import is_additional
from antwort.api.events import Span
from antwort.api.items import Compaction, InputItem, KnownItem, OpaqueItem
from antwort.api.requests import less_input
from antwort.api.responses import Response
from antwort.api.wire import Plain, encode
from antwort.storage.base import Link

_OWN = 600
"""Bytes, about, that it takes to hold one, whatever is in it."""


class _Input(msgspec.Struct, omit_defaults=True):
    """One of both."""

    item: KnownItem | None = None
    opaque: Plain | None = None


class Packed(msgspec.Struct, frozen=True):
    response_id: str
    response: bytes
    request: bytes
    input: bytes
    turn_ends: tuple[int, ...]
    abandoned: tuple[Span, ...]
    is_compacted: bool
    """Whether it has a compaction."""
    is_declaring: bool
    """Whether its input declares tools in items."""

    @property
    def size(self) -> int:
        """Bytes."""
        return _OWN + len(self.response) + len(self.request) + len(self.input)

    def unpacked(self) -> Link:
        return Link(
            response=_read_response.decode(self.response),
            request=self.request,
            input=tuple(map(_item, _read_input.decode(self.input))),
            turn_ends=self.turn_ends,
            abandoned=self.abandoned,
        )


_read_response = msgspec.json.Decoder(Response)
_read_input = msgspec.json.Decoder(list[_Input])


def packed(link: Link) -> Packed:
    return Packed(
        link.response.id,
        _tight(encode(link.response)),
        less_input(link.request),
        _tight(encode([_input(item) for item in link.input])),
        link.turn_ends,
        link.abandoned,
        is_compacted=any(isinstance(item, Compaction) for item in (*link.input, *link.output)),
        is_declaring=any(map(is_additional, link.input)),
    )


def _tight(data: bytes) -> bytes:
    """What the encoder gives out has room to grow, up to half of its size."""
    return bytes(memoryview(data))


def _input(item: InputItem) -> _Input:
    return _Input(opaque=dict(item.fields)) if isinstance(item, OpaqueItem) else _Input(item=item)


def _item(kept: _Input) -> InputItem:
    if kept.opaque is not None:
        return OpaqueItem(kept.opaque["type"], kept.opaque["id"], kept.opaque)
    assert kept.item is not None, "one of both is there"
    return kept.item
