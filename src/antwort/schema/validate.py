"""Validate the arguments that a model wrote against the schema of the tool.

A validator can be kept busy for minutes: by patterns, by references that double at each step, by lists without end. So
an untrusted schema is reduced first: references are inlined up to a bound, and keywords whose cost is not bounded by
their size are left out. The reduced schema never accepts less. The author of the schema validates the rest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

import jsonschema_rs
import msgspec

from antwort.api.wire import Plain
from antwort.caching import Cache
from antwort.schema.keywords import measure
from antwort.schema.references import resolve

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The exceptions of decoding a text that is not JSON, or is nested too deeply."""
_NOT_ENCODABLE = (TypeError, ValueError, RecursionError)

_MAX_PROBLEMS = 3
_MAX_PROBLEM_CHARACTERS = 200
_MAX_WORK = 1_000_000
"""Nodes of a reduced schema times values in the arguments: some tens of milliseconds. Beyond, nothing is checked."""
_REFERENCES = (b'"$ref":', b'"$dynamicRef":', b'"$recursiveRef":')

_decode = msgspec.json.Decoder().decode


def decode_object(arguments: str) -> dict[str, Any] | str:
    """Return the JSON object in the text, or what is wrong with the text, in words that the model can use."""
    try:
        value = _decode(arguments)
    except NOT_JSON as error:
        return f"The arguments are not valid JSON: {error}"
    return value if isinstance(value, dict) else "The arguments must be a JSON object."


def find_problem(value: dict[str, Any], schema: Plain) -> str | None:
    """Return what is wrong with the arguments of a call, in words that the model can use, or None.

    For schemas of the operator's own functions: the time is not bounded where the schema has references. A schema that
    is broken or points to another document accepts everything: nothing is ever fetched.
    """
    try:
        validator = _validator(msgspec.json.encode(schema))
    except _NOT_ENCODABLE:
        return None
    return None if validator is None or validator.is_valid(value) else _problems(validator, value)


def has_references(schema: Plain) -> bool:
    """Return whether the time to validate against the schema may grow beyond its size."""
    try:
        encoded = msgspec.json.encode(schema)
    except _NOT_ENCODABLE:
        return False
    return any(reference in encoded for reference in _REFERENCES)


def find_problem_bounded(value: dict[str, Any], schema: Plain, arguments: str) -> str | None:
    """Do the same for an untrusted schema, in a time that the size of both bounds, so that the event loop can do it.
    `arguments` is the text that the value was decoded from.
    """
    _, validator, nodes = _reduced_cache.get(id(schema)) or _reduce_cached(schema)
    if validator is None or (nodes * len(arguments) >= _MAX_WORK and nodes * _max_values(arguments) > _MAX_WORK):
        return None
    return None if validator.is_valid(value) else _problems(validator, value)


def _max_values(arguments: str) -> int:
    """Return an upper bound of the number of values in the text."""
    return 1 + arguments.count(",") + arguments.count("[") + arguments.count("{")


# ---- validators ----

_Reduced: TypeAlias = tuple[Plain, jsonschema_rs.Validator | None, int]
_reduced_cache = Cache[int, _Reduced](256)
"""Validators of reduced schemas by the identity of the given ones, which are referenced so that none is reused."""


def _reduce_cached(schema: Plain) -> _Reduced:
    try:
        reduced, nodes = _reduce(schema)
        key = msgspec.json.encode(reduced)
    except (_TooLarge, *_NOT_ENCODABLE):
        return schema, None, 0  # not cached: it may be of any size
    entry = schema, _validator(key), nodes
    _reduced_cache.put(id(schema), entry)
    return entry


@functools.lru_cache(maxsize=256)
def _validator(schema: bytes) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_fetch_nothing)
    except ValueError:
        return None


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")


# ---- problems in words ----


def _problems(validator: jsonschema_rs.Validator, value: object) -> str:
    """Describe what is wrong with an invalid value, which takes longer than to find that it is invalid."""
    problems = map(_describe, itertools.islice(validator.iter_errors(value), _MAX_PROBLEMS))
    return f"The arguments do not fit: {'; '.join(problems)}"


def _describe(error: jsonschema_rs.ValidationError) -> str:
    """Name the place and what was expected there."""
    reasons = [_shorten(cause.message) for cause in _causes(error)] or [_shorten(error.message)]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    return f"{path.removeprefix('.')}: {' or '.join(reasons)}" if path else " or ".join(reasons)


def _causes(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """Yield the first error of each alternative, where the schema has alternatives."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        yield from (branch[0] for branch in kind.context[:_MAX_PROBLEMS] if branch)


def _shorten(message: str) -> str:
    """Keep both ends of a long message: what was expected follows the value."""
    if len(message) <= _MAX_PROBLEM_CHARACTERS:
        return message
    return f"{message[: _MAX_PROBLEM_CHARACTERS // 2]} … {message[-_MAX_PROBLEM_CHARACTERS // 2 :]}"


# ---- reduced schemas ----

_MAX_NODES, _MAX_DEPTH = 1_000, 24
_MAX_LIST_VALUES = 256
_VALUE_KEYWORDS = frozenset(
    (
        *("type", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    )
)
_LIST_KEYWORDS = ("enum", "required")
_SCHEMA_KEYWORDS = ("items", "additionalItems", "additionalProperties", "propertyNames")
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")


class _TooLarge(Exception):
    """The schema exceeds the bounds: nothing is checked."""


def _reduce(schema: Plain) -> tuple[Plain, int]:
    """Return the reduced schema and how many nodes it has. Raises `_TooLarge`."""
    if measure(schema) is None:
        raise _TooLarge
    reducer = _Reducer(schema)
    reduced = reducer.node(schema, ("#",), 0)
    if not isinstance(reduced, dict):
        raise _TooLarge
    if isinstance(version := schema.get("$schema"), str):
        reduced["$schema"] = version
    return reduced, reducer.nodes


class _Reducer:
    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self.nodes = 0

    def node(self, schema: object, path: tuple[str, ...], depth: int) -> Plain | bool:
        self._count(1)
        if schema is False:
            return False
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or (depth and "$id" in schema):
            return {}
        if "$ref" in schema:
            return self._target(schema["$ref"], path, depth)
        made: Plain = {keyword: value for keyword, value in schema.items() if keyword in _VALUE_KEYWORDS}
        for keyword in _LIST_KEYWORDS:
            if isinstance(values := schema.get(keyword), list) and len(values) <= _MAX_LIST_VALUES:
                self._count(len(values))
                made[keyword] = values
        return made | self._inner(schema, path, depth + 1)

    def _count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > _MAX_NODES:
            raise _TooLarge

    def _target(self, reference: object, path: tuple[str, ...], depth: int) -> Plain | bool:
        """Inline a reference, once on each path. Keywords beside it are left out."""
        pointer, target = resolve(reference, self._root) if isinstance(reference, str) else ("", None)
        return {} if pointer in path or target is None else self.node(target, (*path, pointer), depth + 1)

    def _inner(self, schema: Plain, path: tuple[str, ...], depth: int) -> Plain:
        made: Plain = {}
        if isinstance(properties := schema.get("properties"), dict):
            made["properties"] = {name: self.node(each, path, depth) for name, each in properties.items()}
        for keyword in _SCHEMA_KEYWORDS:
            if keyword in schema and not isinstance(schema[keyword], list):
                made[keyword] = self.node(schema[keyword], path, depth)
        for keyword in _SCHEMA_LIST_KEYWORDS:
            if isinstance(schemas := schema.get(keyword), list) and schemas:
                made[keyword] = [self.node(each, path, depth) for each in schemas]
        if "patternProperties" in schema:  # patterns decide which properties are additional
            made.pop("additionalProperties", None)
        if "oneOf" in made:  # reduced alternatives accept more, so that several may fit
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": made.pop("oneOf")}]
        return made
