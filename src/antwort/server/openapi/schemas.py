"""Structs as JSON Schemas, and the small steps that schemas are made over with."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET
from msgspec.inspect import DictType, StructType, Type, UnionType, VarTupleType

from antwort.api.items import OpaqueItem
from antwort.api.tools import OpaqueTool
from antwort.api.wire import Plain, Wire

Schemas = dict[str, Plain]
"""Schemas by their names."""

PLACE = "#/components/schemas/"
NULL: Plain = {"type": "null"}
TEXT: Plain = {"type": "string"}
OBJECT: Plain = {"type": "object", "additionalProperties": True}
"""Whatever it holds. Generators of code take an object that says nothing of its fields for an empty one."""


def ref(name: str) -> Plain:
    return {"$ref": f"{PLACE}{name}"}


def any_of(*schemas: Plain, **more: Any) -> Plain:
    return {"anyOf": list(schemas), **more}


def array(items: Plain, **more: Any) -> Plain:
    return {"type": "array", "items": items, **more}


def or_null(schema: Plain) -> Plain:
    """The schema, and null."""
    choices = schema.get("anyOf", [schema])
    if NULL in choices:
        return schema
    about: Plain = {key: schema[key] for key in ("description", "default") if key in schema}
    plain = [{key: value for key, value in choice.items() if key not in about} for choice in choices]
    return {"anyOf": [*plain, NULL], **about}


def other_than(known: Iterable[str], description: str, required: Sequence[str] = ("type",)) -> Plain:
    """An object of a type that is none of these: whatever it holds."""
    kind = {"type": "string", "minLength": 1, "not": {"enum": sorted(known)}}
    return {**OBJECT, "description": description, "properties": {"type": kind}, "required": list(required)}


def members(union: Any) -> tuple[type[msgspec.Struct], ...]:
    """The structs of a union of them, or of one alone."""
    return tuple(each for each in get_args(union) or (union,) if issubclass(each, msgspec.Struct))


def tag_of(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def union_of(structs: Iterable[type[msgspec.Struct]], suffix: str = "", **more: Any) -> Plain:
    """One of several, told apart by their types."""
    names = {tag_of(struct): f"{struct.__name__}{suffix}" for struct in structs}
    mapping = {tag: f"{PLACE}{name}" for tag, name in names.items()}
    told_apart = {"propertyName": "type", "mapping": mapping}
    return {"oneOf": [ref(name) for name in names.values()], "discriminator": told_apart, **more}


def components(structs: Iterable[type[msgspec.Struct]], change: Callable[[Plain, type], Plain]) -> Schemas:
    """The structs, and all that they hold, as schemas; each `change`d for the direction it travels in."""
    wanted = [_with_stand_ins(struct) for struct in structs]
    _, made = msgspec.json.schema_components(wanted, ref_template=PLACE + "{name}")
    found: dict[str, type] = {}
    for info in msgspec.inspect.multi_type_info(wanted):
        found.update(_structs(info, found))
    own = {name: schema for name, schema in made.items() if found[name] not in _STAND_INS.values()}
    return {name: change(_tidied(schema), found[name]) for name, schema in own.items()}


class OtherItem(Wire, tag="any other item"):
    """Stands for `OpaqueItem`, which is no struct, where the schema of a struct is made."""


class OtherTool(Wire, tag="any other tool"):
    """Stands for `OpaqueTool`."""


_STAND_INS: dict[object, type[Wire]] = {OpaqueItem: OtherItem, OpaqueTool: OtherTool}
_STAND_IN_TAGS = frozenset(struct.__struct_config__.tag for struct in _STAND_INS.values())


def _with_stand_ins(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct, or one like it in which what is opaque has a type that a schema can be made of."""
    fields = [(field, _stood_in(field.type)) for field in msgspec.structs.fields(struct)]
    if all(field.type == stood_in for field, stood_in in fields):
        return struct
    made = [
        (field.name, kind) if field.required else (field.name, kind, msgspec.field(default=field.default))
        for field, kind in fields
    ]
    tag = struct.__struct_config__.tag
    about = {"__doc__": struct.__doc__}
    return msgspec.defstruct(struct.__name__, made, tag=tag, kw_only=True, frozen=True, namespace=about)


def _stood_in(kind: Any) -> Any:
    if kind in _STAND_INS:
        return _STAND_INS[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if not inner or origin is Literal:
        return kind
    changed = tuple(map(_stood_in, inner))
    if changed == inner:
        return kind
    return reduce(or_, changed) if origin in (Union, types.UnionType) else origin[changed]


def _structs(info: Type, seen: dict[str, type]) -> Iterator[tuple[str, type]]:
    match info:
        case StructType() if info.cls.__name__ not in seen:
            seen[info.cls.__name__] = info.cls
            yield info.cls.__name__, info.cls
            for field in info.fields:
                yield from _structs(field.type, seen)
        case UnionType():
            for each in info.types:
                yield from _structs(each, seen)
        case VarTupleType():
            yield from _structs(info.item_type, seen)
        case DictType():
            yield from _structs(info.value_type, seen)


def _tidied(value: Any, depth: int = 0) -> Any:
    """Without the title, which is its name; and without a word on telling types apart where any type may be."""
    match value:
        case dict():
            drop = {"title"} if not depth else {"discriminator"} if _tells_stand_ins(value) else set()
            tidy = {key: _tidied(entry, depth + 1) for key, entry in value.items() if key not in drop}
            return {**OBJECT, **tidy} if value.get("type") == "object" and "properties" not in value else tidy
        case list():
            return [_tidied(entry, depth + 1) for entry in value]
    return value


def _tells_stand_ins(schema: Plain) -> bool:
    told = schema.get("discriminator")
    return isinstance(told, dict) and not _STAND_IN_TAGS.isdisjoint(told.get("mapping", ()))


def as_written(schema: Plain, struct: type) -> Plain:
    """As the server writes it: every field is there but those that can be left out, and nothing else is."""
    optional = {field.encode_name for field in msgspec.structs.fields(struct) if field.default is UNSET}
    properties = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in schema["properties"].items()
    }
    required = [name for name in properties if name not in optional]
    return {**schema, "properties": properties, "required": required, "additionalProperties": False}


def with_fields(schema: Plain, /, required: Sequence[str] | None = None, **fields: Plain) -> Plain:
    """The schema with some of its fields said otherwise."""
    changed = {**schema, "properties": {**schema["properties"], **fields}}
    return changed if required is None else {**changed, "required": list(required)}


def renamed(value: Any, suffix: str) -> Any:
    """Every reference in `value` points to the schema of that name with `suffix`."""
    match value:
        case dict():
            return {key: renamed(entry, suffix) for key, entry in value.items()}
        case list():
            return [renamed(entry, suffix) for entry in value]
        case str() if value.startswith(PLACE):
            return f"{value}{suffix}"
    return value


def reached(schemas: Schemas, start: Any) -> Schemas:
    """Those of the schemas that `start` refers to, and that those refer to, by name."""
    found: set[str] = set()
    new = set(referred(start))
    while new:
        found |= new
        new = {name for each in new for name in referred(schemas[each])} - found
    return {name: schemas[name] for name in sorted(found)}


def referred(value: Any, place: str = PLACE) -> Iterator[str]:
    """The names of what `value` refers to in this place, as often as it does."""
    match value:
        case dict():
            for entry in value.values():
                yield from referred(entry, place)
        case list():
            for entry in value:
                yield from referred(entry, place)
        case str() if value.startswith(place):
            yield value.removeprefix(place)
