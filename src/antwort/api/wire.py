"""The base class of protocol types, and how values become JSON and back.

An optional field that is not set is `UNSET` and left out. A field that the standard requires, and that may be empty, is
`None` and written as null. A list is never null.
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
    # For the type checker: subclasses are frozen and keyword-only too, as msgspec makes them.
    @dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
    class WireMeta(msgspec.StructMeta): ...
else:
    WireMeta = msgspec.StructMeta


class Wire(msgspec.Struct, metaclass=WireMeta, frozen=True, kw_only=True):
    """The base class of protocol types. Values are frozen; `replace` makes the next version."""


def _unfold(value: object) -> Mapping[str, Any]:
    """Return the fields of an opaque item or tool, as which it is written."""
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
    """Return a decoder for untrusted JSON. It uses Python's `float`, which takes less than 1 µs for any number: msgspec
    takes up to 11 µs for one such as 1.2345678901234567e-300, and does not yield meanwhile.
    """
    return msgspec.json.Decoder(to, float_hook=_float)


_decode_plain = json_decoder(dict[str, Any])
decode_any: Callable[[bytes | str], Any] = msgspec.json.Decoder(float_hook=_float).decode


def decode(data: bytes | str, to: type[T]) -> T:
    return msgspec.json.decode(data, type=to)


def decode_object(data: bytes | str) -> Plain:
    return _decode_plain.decode(data)


def to_plain(value: object) -> Any:
    """Return `value` as plain values, equal to what decoding its JSON gives."""
    return decode_any(encode(value))


def shown_plain(value: object) -> Any:
    """Return `value` as plain values to be encoded; texts are not copied."""
    return _listed(msgspec.to_builtins(value, enc_hook=_unfold))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value
