"""A JSON Schema of `antwort.yaml`, for editors."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
)

from antwort.config.descriptions import description
from antwort.config.shape import default_of, is_optional, root, without_none

Schema = dict[str, Any]
_SECRET: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {"env": {"type": "string", "description": "The variable that holds it."}},
            "required": ["env"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"file": {"type": "string", "description": "The file that holds it."}},
            "required": ["file"],
            "additionalProperties": False,
        },
    ]
}


def schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "antwort.yaml",
        **_struct(root()),
    }


def _struct(struct: StructType) -> Schema:
    made: Schema = {
        "type": "object",
        "properties": {field.name: _field(field, struct.cls) for field in struct.fields},
        "additionalProperties": False,
    }
    if required := [field.name for field in struct.fields if field.required]:
        made["required"] = required
    return made


def _field(field: Field, owner: type) -> Schema:
    made: Schema = {}
    if text := description(owner, field.name):
        made["description"] = text
    if not field.required and not isinstance(field.type, StructType) and (default := default_of(field)) is not UNSET:
        made["default"] = msgspec.to_builtins(default)
    return {**made, **_schema(field.type)}


def _schema(kind: Type) -> Schema:
    if isinstance(kind, UnionType):
        assert is_optional(kind)
        return {"anyOf": [_schema(without_none(kind)), {"type": "null"}]}
    match kind:
        case StructType():
            return _struct(kind)
        case VarTupleType():
            return {"type": "array", "items": _schema(kind.item_type)}
        case DictType():
            return {"type": "object", "additionalProperties": _schema(kind.value_type)}
        case CustomType():
            return _SECRET
        case _:
            return _scalar(kind)


def _scalar(kind: Type) -> Schema:
    match kind:
        case BoolType():
            return {"type": "boolean"}
        case LiteralType():
            return {"enum": list(kind.values)}
        case IntType() | FloatType():
            return {"type": "integer" if isinstance(kind, IntType) else "number", **_bounds(kind)}
        case StrType(pattern=pattern) if pattern is not None:
            return {"type": "string", "pattern": pattern}
        case _:
            return {"type": "string", "minLength": 1}


def _bounds(kind: IntType | FloatType) -> Schema:
    limits = {
        "minimum": kind.ge,
        "exclusiveMinimum": kind.gt,
        "maximum": kind.le,
        "exclusiveMaximum": kind.lt,
    }
    return {name: bound for name, bound in limits.items() if bound is not None}
