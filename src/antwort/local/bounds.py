"""What a schema may ask of llama.cpp. Pure.

It holds the model to a schema by trying, at every token, all that may come next. With very many alternatives a token
takes minutes, in which it hears nobody, and answers nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antwort.api.wire import UNSET
from antwort.errors import InvalidField
from antwort.providers.base import ChatRequest

LARGEST = 1 << 16
"""Bytes of a schema."""
MOST_CHOICES = 500
"""Values of its enums, and members of its unions, all together: half a second for a token, on a slow machine."""
_UNIONS = ("enum", "anyOf", "oneOf")


def check_schemas(request: ChatRequest) -> None:
    """Raises `InvalidField` where the model would be lost in them."""
    if request.response_format is not UNSET:
        _check(request.response_format, "text.format", "the schema, with those of the tools,")
    if request.tools is not UNSET:
        _check([tool.function.parameters or {} for tool in request.tools], "tools", "the schemas")


def _check(schema: object, param: str, what: str) -> None:
    if len(msgspec.json.encode(schema)) > LARGEST:
        raise InvalidField(param, f"{what} cannot be longer than {LARGEST} bytes for the model on this machine.")
    if _choices(schema) > MOST_CHOICES:
        problem = f"{what} cannot have more than {MOST_CHOICES} enum values and members of unions"
        raise InvalidField(param, f"{problem} for the model on this machine.")


def _choices(schema: object) -> int:
    found, left = 0, [schema]
    while left:
        match left.pop():
            case dict() as node:
                found += sum(_length(node.get(word)) for word in _UNIONS)
                left.extend(node.values())
            case list() | tuple() as nodes:
                left.extend(nodes)
    return found


def _length(members: Any) -> int:
    return len(members) if isinstance(members, Sequence) and not isinstance(members, str) else 0
