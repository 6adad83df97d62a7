"""Whether the arguments that a model wrote fit what the tool asks for."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn, TypeAlias

import jsonschema_rs
import msgspec

from antwort.tools.schemas.light import TooLarge, lightened
from antwort.tools.threads import run_in_thread

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What reading JSON can raise when the text is none, or is nested beyond reason."""

_MOST_PROBLEMS = 3
_LONGEST_PROBLEM = 200
_MOST_LIGHT = 256
_MOST_WORK = 1_000_000
"""Parts of a foreign schema times values in the arguments, above which nobody here looks: some tens of milliseconds."""
_REFERENCES = (b'"$ref":', b'"$dynamicRef":', b'"$recursiveRef":')

_decode = msgspec.json.Decoder().decode
_Light: TypeAlias = tuple[dict[str, Any], jsonschema_rs.Validator | None, int]

_light: OrderedDict[int, _Light] = OrderedDict()
"""Foreign schemas, and what is checked of them. Each is held on to, so that no other can have its place in memory."""


async def find_problem(arguments: str, schema: dict[str, Any] | None, *, is_foreign: bool = False) -> str | None:
    """What is wrong with `arguments`, in words the model can use, or None.

    A schema that is broken, or that points to another document, asks for nothing: nothing is ever fetched. Of one that
    `is_foreign`, written by a stranger, only what is no work counts.
    """
    if is_foreign or not schema:
        return problem_at_once(arguments, schema)
    value = _read(arguments)
    return value if isinstance(value, str) else await _problem(schema, value)


def problem_at_once(arguments: str, schema: dict[str, Any] | None) -> str | None:
    """The same of a stranger's schema. On the event loop: it is bounded by the size of both, and that is bounded."""
    value = _read(arguments)
    if isinstance(value, str):
        return value
    if not schema:
        return None
    _, validator, nodes = _light.get(id(schema)) or _lightened(schema)
    if validator is None or (nodes * len(arguments) >= _MOST_WORK and nodes * _parts(arguments) > _MOST_WORK):
        return None
    return None if validator.is_valid(value) else _problems(validator, value)


def _read(arguments: str) -> dict[str, Any] | str:
    """What they say, or what is wrong with them."""
    try:
        value = _decode(arguments)
    except NOT_JSON as error:
        return f"The arguments are not valid JSON: {error}"
    return value if isinstance(value, dict) else "The arguments must be a JSON object."


async def _problem(schema: dict[str, Any], value: object) -> str | None:
    try:
        key = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return None
    # References can make the work grow. In a thread others have their turns beside it, but not while the schema is
    # compiled, nor within one step of the check: so this is for schemas of the operator's own functions alone.
    check = partial(_check_by, key, value)
    return await run_in_thread(check, "antwort-arguments") if _has_references(key) else check()


def _lightened(schema: dict[str, Any]) -> _Light:
    try:
        light, nodes = lightened(schema)
        key = msgspec.json.encode(light)
    except (TooLarge, TypeError, ValueError, RecursionError):
        return schema, None, 0  # it is not held on to: it may be of any size
    known = _light[id(schema)] = (schema, _validator(key), nodes)
    if len(_light) > _MOST_LIGHT:
        _light.popitem(last=False)
    return known


def _parts(arguments: str) -> int:
    """At least as many values as there are in it."""
    return 1 + arguments.count(",") + arguments.count("[") + arguments.count("{")


@functools.lru_cache(maxsize=256)
def _has_references(schema: bytes) -> bool:
    return any(reference in schema for reference in _REFERENCES)


def _check_by(schema: bytes, value: object) -> str | None:
    return _check(_validator(schema), value)


def _check(validator: jsonschema_rs.Validator | None, value: object) -> str | None:
    return None if validator is None or validator.is_valid(value) else _problems(validator, value)


def _problems(validator: jsonschema_rs.Validator, value: object) -> str:
    """What is wrong with a value that is not valid: to say it takes longer than to see it."""
    problems = map(_describe, itertools.islice(validator.iter_errors(value), _MOST_PROBLEMS))
    return f"The arguments do not fit: {'; '.join(problems)}"


@functools.lru_cache(maxsize=256)
def _validator(schema: bytes) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_fetch_nothing)
    except ValueError:
        return None


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")


def _describe(error: jsonschema_rs.ValidationError) -> str:
    """Where, and what was expected there; of a long value both ends, since the expectation follows it."""
    reasons = [_shorten(cause.message) for cause in _causes(error)] or [_shorten(error.message)]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    return f"{path.removeprefix('.')}: {' or '.join(reasons)}" if path else " or ".join(reasons)


def _causes(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """The first thing that each alternative missed, where the schema has alternatives."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        yield from (branch[0] for branch in kind.context[:_MOST_PROBLEMS] if branch)


def _shorten(message: str) -> str:
    if len(message) <= _LONGEST_PROBLEM:
        return message
    return f"{message[: _LONGEST_PROBLEM // 2]} … {message[-_LONGEST_PROBLEM // 2 :]}"
