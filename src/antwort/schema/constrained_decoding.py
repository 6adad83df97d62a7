"""Convert tool schemas to the subset of JSON Schema that constrained decoders enforce.

Such decoders are llama.cpp's grammars, and xgrammar in vLLM and SGLang. Keywords that they do not know are left out, so
a converted schema may accept arguments that the tool's own schema rejects: the arguments of a call are validated
against the tool's own. Where nothing was left out, all that the converted schema accepts, the tool's accepts too.
Descriptions are left out, references become definitions of the document, and an object that names properties takes no
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from antwort.api.wire import Plain
from antwort.schema.keywords import (
    PYTHON_TYPES,
    common_values,
    declared_types,
    distinct,
    implied_types,
    item_schemas,
    length_range,
    list_of,
    numeric_range,
    plain_pattern,
    range_keywords,
)
from antwort.schema.references import merge_all_of, resolve

ANY_DECODED_VALUE: Plain = {"type": ["object", "array", "string", "number", "boolean", "null"]}
"""Accepts any value. Written out: llama.cpp takes an empty schema for an object."""
NO_ARGUMENTS: Plain = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
_ANY_ARGUMENTS: Plain = {**NO_ARGUMENTS, "additionalProperties": True}

_CONSTRAINTS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf", "allOf"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("pattern", "format", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
"""Keywords that constrained decoding can enforce."""
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_MAX_DEPTH = 24
_MAX_NODES, _MIN_NODES = 10_000, 256
"""In all schemas of a document together, and what each may have in any case. Beyond that every value is accepted:
schemas are untrusted, and references can make a small one large without bound.
"""
_MAX_LENGTH, _MAX_ITEMS, _MAX_INTEGER = 1000, 256, 10**15
"""Greater bounds are left out: grammars are written out, and numbers have 64 bits there."""
_DEFINITIONS = "#/$defs/"


class DecoderSchemas:
    """Convert the schemas of one document, and collect the definitions that they refer to.

    The bound on nodes is split among the schemas, so that a large one takes no room from the others.
    """

    def __init__(self, count: int = 1) -> None:
        self._max_nodes = max(_MAX_NODES // max(count, 1), _MIN_NODES)
        self._names: dict[tuple[int, str], str] = {}
        """The names of definitions by the schema, which `_converters` holds, and the reference."""
        self._converters: list[_Converter] = []
        self._pending: deque[tuple[str, object, _Converter]] = deque()

    def arguments(self, schema: Plain) -> Plain:
        """Convert the schema of a tool's arguments: only objects are accepted."""
        converter = self._converter(schema)
        converted = _objects_only(converter.node(_inlined(schema, schema), 0, is_arguments=True))
        return NO_ARGUMENTS if converted is None else converted

    def value(self, schema: Plain) -> Plain:
        converted = self._converter(schema).node(schema, 0)
        return ANY_DECODED_VALUE if converted is None else converted

    def definitions(self) -> Plain:
        """Return what the converted schemas refer to, for `$defs` of the document. To be called once, after them."""
        made: Plain = {}
        while self._pending:
            name, schema, converter = self._pending.popleft()
            converted = converter.node(schema, 0)
            made[name] = ANY_DECODED_VALUE if converted is None else converted
        return _without_left_recursion(made)

    def _converter(self, schema: Plain) -> _Converter:
        self._converters.append(_Converter(schema, self._max_nodes, self._define))
        return self._converters[-1]

    def _define(self, pointer: str, target: object, converter: _Converter) -> str:
        """Return the name of the definition that a reference leads to. It is converted later."""
        key = id(converter.root), pointer
        if key not in self._names:
            self._names[key] = f"def{len(self._names) + 1}"
            self._pending.append((self._names[key], target, converter))
        return self._names[key]


class _Converter:
    """Convert one schema. `define` takes a reference, its target and this, and returns the name of a definition.

    `is_arguments` says that arguments are described, which must be an object.
    """

    def __init__(self, root: Plain, max_nodes: int, define: Callable[[str, object, _Converter], str]) -> None:
        self.root = root
        self._nodes_left, self._define = max_nodes, define

    # ---- any schema: None where no value fits ----

    def node(self, schema: object, depth: int, *, is_arguments: bool = False) -> Plain | None:
        if schema is False:
            return None
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return ANY_DECODED_VALUE
        self._nodes_left -= 1
        if self._nodes_left < 0:
            return ANY_DECODED_VALUE
        if "allOf" in schema or ("$ref" in schema and not _CONSTRAINTS.isdisjoint(schema)):
            schema = merge_all_of(schema, self.root)
            properties = schema.get("properties")
            self._nodes_left -= len(properties) if isinstance(properties, dict) else 0  # to copy them was work, too
        if isinstance(reference := schema.get("$ref"), str):
            pointer, target = resolve(reference, self.root)
            if target is None:
                return ANY_DECODED_VALUE
            return {"$ref": f"{_DEFINITIONS}{self._define(pointer, target, self)}"}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(keyword), list) and choices:
                rest = {key: value for key, value in schema.items() if key != keyword}
                if not _CONSTRAINTS.isdisjoint(rest):
                    choices = [{"allOf": [rest, choice]} for choice in choices]
                return self._any_of(choices, depth, is_arguments=is_arguments)
        if "const" in schema or isinstance(schema.get("enum"), list):
            return _enumeration(schema)
        types = declared_types(schema) or implied_types(schema)[:1]
        if len(types) > 1:
            return self._any_of([{**schema, "type": name} for name in types], depth, is_arguments=is_arguments)
        match types[0] if types else None:
            case "object":
                return self._object(schema, depth + 1, is_arguments=is_arguments)
            case "array":
                return self._array(schema, depth + 1)
            case "string":
                return _string(schema)
            case "integer":
                return {"type": "integer", **numeric_range(schema, _MAX_INTEGER, is_integer=True)}
            case None:
                return NO_ARGUMENTS if is_arguments else ANY_DECODED_VALUE
            case name:
                return {"type": name}

    def _any_of(self, choices: Sequence[object], depth: int, *, is_arguments: bool) -> Plain | None:
        if is_arguments:
            choices = [_inlined(choice, self.root) for choice in choices]
        nodes = (self.node(choice, depth + 1, is_arguments=is_arguments) for choice in choices)
        converted = distinct(each for each in nodes if each is not None)
        if len(converted) > 1:
            return {"anyOf": converted}
        return converted[0] if converted else None

    # ---- objects and arrays ----

    def _object(self, schema: Plain, depth: int, *, is_arguments: bool) -> Plain | None:
        given, additional = schema.get("properties"), schema.get("additionalProperties")
        properties: Plain = dict(given) if isinstance(given, dict) else {}
        required = [name for name in list_of(schema.get("required")) if isinstance(name, str)]
        if additional is not False:  # else the schema contradicts itself, and the properties it lists count
            properties |= {name: additional for name in required if name not in properties}
        converted = {name: self.node(each, depth) for name, each in properties.items()}
        if any(converted.get(name, ANY_DECODED_VALUE) is None for name in required):
            return None
        kept = {name: each for name, each in converted.items() if each is not None}
        needed = set(required)
        return {
            "type": "object",
            "properties": kept,
            "required": [name for name in kept if name in needed],
            "additionalProperties": self._additional(schema, depth, is_arguments=is_arguments),
        }

    def _additional(self, schema: Plain, depth: int, *, is_arguments: bool) -> Plain | bool:
        """Close an object that names properties and leaves this open: its author means these."""
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            converted = self.node(additional, depth)
            return False if converted is None else True if converted == ANY_DECODED_VALUE else converted
        if isinstance(additional, bool):
            return additional
        return not schema.get("properties") and (not is_arguments or "patternProperties" in schema)

    def _array(self, schema: Plain, depth: int) -> Plain | None:
        minimum, maximum = length_range(schema, "minItems", "maxItems", _MAX_ITEMS)
        if maximum == 0:
            return {"const": []}
        first, rest = item_schemas(schema)
        if first:
            length = max(len(first), minimum or 0)
            length = length if maximum is None else min(length, maximum)
            items = [self.node(each, depth) for each in [*first, *[rest] * (length - len(first))][:length]]
            if None in items:
                return None
            return {"type": "array", "prefixItems": items, "minItems": length, "maxItems": length}
        item = self.node(rest, depth)
        if item is None:
            return None if minimum else {"const": []}
        return {"type": "array", "items": item, **range_keywords("minItems", minimum or None, "maxItems", maximum)}


def _inlined(schema: object, root: Plain) -> object:
    """Return the target of a reference, where it matters whether that is an object."""
    if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        return resolve(reference, root)[1] if _CONSTRAINTS.isdisjoint(schema) else merge_all_of(schema, root)
    return schema


def _objects_only(converted: Plain | None) -> Plain | None:
    if converted is None or converted.get("type") == "object":
        return converted
    if converted == ANY_DECODED_VALUE:
        return _ANY_ARGUMENTS
    objects = [each for choice in converted.get("anyOf", ()) if (each := _objects_only(choice)) is not None]
    return {"anyOf": objects} if len(objects) > 1 else objects[0] if objects else None


# ---- values without parts ----


def _enumeration(schema: Plain) -> Plain | None:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if "type" in schema and (types := declared_types(schema) or implied_types(schema)[:1]):
        values = [value for value in values if any(_has_type(value, name) for name in types)]
    if "const" in schema and isinstance(allowed := schema.get("enum"), list):
        values = common_values(values, allowed)
    if not values:
        return None
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


def _has_type(value: object, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, PYTHON_TYPES[name])


def _string(schema: Plain) -> Plain:
    """Keep one constraint: of several, decoders take only the first, and not the same one."""
    if isinstance(pattern := schema.get("pattern"), str) and (plain := plain_pattern(pattern)) is not None:
        return {"type": "string", "pattern": plain}
    if isinstance(name := schema.get("format"), str) and name in _FORMATS:
        return {"type": "string", "format": name}
    minimum, maximum = length_range(schema, "minLength", "maxLength", _MAX_LENGTH)
    return {"type": "string", **range_keywords("minLength", minimum or None, "maxLength", maximum)}


# ---- left recursion ----


def _without_left_recursion(definitions: Plain) -> Plain:
    """Remove the alternatives that lead back to their own definition: a grammar of them would never begin.

    What fits such an alternative fits another one, too. A definition without any other accepts any value.
    """
    loops = set(_loops(definitions))
    if not loops:
        return definitions
    made: Plain = {}
    for name, schema in definitions.items():
        kept = _without(schema, {target for start, target in loops if start == name})
        made[name] = ANY_DECODED_VALUE if kept is None else kept
    return made


def _loops(definitions: Plain) -> Iterator[tuple[str, str]]:
    """Yield the references, from name to name, that close a cycle. Not recursive: a chain may be long."""
    done: set[str] = set()
    for start in definitions:
        path: dict[str, Iterator[str]] = {} if start in done else {start: _first_references(definitions[start])}
        while path:
            name, targets = next(reversed(path.items()))
            target = next(targets, None)
            if target is None:
                done.add(name)
                del path[name]
            elif target in path:
                yield name, target
            elif target not in done and target in definitions:
                path[target] = _first_references(definitions[target])


def _first_references(schema: Plain) -> Iterator[str]:
    """Yield the definitions that a value may begin with."""
    if isinstance(reference := schema.get("$ref"), str):
        yield reference.removeprefix(_DEFINITIONS)
    for choice in schema.get("anyOf", ()):
        yield from _first_references(choice)


def _without(schema: Plain, names: set[str]) -> Plain | None:
    if isinstance(reference := schema.get("$ref"), str):
        return None if reference.removeprefix(_DEFINITIONS) in names else schema
    if not names or "anyOf" not in schema:
        return schema
    kept = [each for choice in schema["anyOf"] if (each := _without(choice, names)) is not None]
    return {"anyOf": kept} if kept else None
