"""The base of everything that travels, and how it is written.

Three ways for a field to be absent, kept apart on purpose: an optional field that is not set is `UNSET` and left
out; a field the standard requires but allows to be empty is `None` and written as null; a list is never null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

__all__ = [
    "UNSET",
    "Plain",
    "UnsetType",
    "Wire",
    "decode",
    "decode_any",
    "decode_object",
    "encode",
    "json_decoder",
    "replace",
    "shown_plain",
    "to_plain",
]

T = TypeVar("T")

Plain = dict[str, Any]
"""A JSON object as plain values."""


if TYPE_CHECKING:
    # What msgspec does at run time, told to the type checker: subclasses are frozen and keyword-only too.
    @dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
    class WireMeta(msgspec.StructMeta): ...
else:
    WireMeta = msgspec.StructMeta


class Wire(msgspec.Struct, metaclass=WireMeta, frozen=True, kw_only=True):
    """A value of the protocol. Nobody assigns to a field; `replace` makes the next version."""


def _unfold(value: object) -> Mapping[str, Any]:
    """Opaque items and tools are written as the fields they came with."""
    fields = getattr(value, "fields", None)
    if not isinstance(fields, Mapping):
        raise NotImplementedError(f"{type(value).__name__} has no JSON form")
    return fields


_encoder = msgspec.json.Encoder(enc_hook=_unfold)
encode = _encoder.encode


def _float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("Number out of range")
    return number


def json_decoder(to: type[T]) -> msgspec.json.Decoder[T]:
    """Decode JSON of others. msgspec takes up to 11 µs for one number such as 1.2345678901234567e-300, during which
    nobody else has a turn; Python's own `float` takes less than one.
    """
    return msgspec.json.Decoder(to, float_hook=_float)


_decode_plain = json_decoder(dict[str, Any])
decode_any: Callable[[bytes | str], Any] = msgspec.json.Decoder(float_hook=_float).decode


def decode(data: bytes | str, to: type[T]) -> T:
    return msgspec.json.decode(data, type=to)


def decode_object(data: bytes | str) -> Plain:
    return _decode_plain.decode(data)


def to_plain(value: object) -> Any:
    """`value` as it reads off the wire: what is kept and read again then equals what was made here."""
    return decode_any(encode(value))


def shown_plain(value: object) -> Any:
    """As `to_plain`, for what is only written: texts are not copied."""
    return _listed(msgspec.to_builtins(value, enc_hook=_unfold))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value
