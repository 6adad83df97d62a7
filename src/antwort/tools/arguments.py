"""Whether the arguments that a model wrote fit what the tool asks for."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

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

_light: OrderedDict[int, tuple[dict[str, Any], bytes, int]] = OrderedDict()
"""Foreign schemas, and what is checked of them. Each is held on to, so that no other can have its place in memory."""


async def find_problem(arguments: str, schema: dict[str, Any] | None, *, is_foreign: bool = False) -> str | None:
    """What is wrong with `arguments`, in words the model can use, or None.

    A schema that is broken, or that points to another document, asks for nothing: nothing is ever fetched. Of one that
    `is_foreign`, written by a stranger, only what is no work counts.
    """
    try:
        value = msgspec.json.decode(arguments)
    except NOT_JSON as error:
        return f"The arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return "The arguments must be a JSON object."
    if not schema:
        return None
    problems = _foreign_problems(schema, arguments, value) if is_foreign else await _problems(schema, value)
    return f"The arguments do not fit: {'; '.join(problems)}" if problems else None


async def _problems(schema: dict[str, Any], value: object) -> tuple[str, ...]:
    try:
        key = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return ()
    # References can make the work grow. In a thread others have their turns beside it, but not while the schema is
    # compiled, nor within one step of the check: so this is for schemas of the operator's own functions alone.
    aside = _has_references(key)
    return await run_in_thread(partial(_check, key, value), "antwort-arguments") if aside else _check(key, value)


def _foreign_problems(schema: dict[str, Any], arguments: str, value: object) -> tuple[str, ...]:
    """On the event loop: it is bounded by the size of both, and that is bounded."""
    known = _light.get(id(schema))
    if known is None:
        key, nodes = _lightened(schema)
        if key is None:
            return ()  # and it is not held on to: it may be of any size
        known = _light[id(schema)] = (schema, key, nodes)
        if len(_light) > _MOST_LIGHT:
            _light.popitem(last=False)
    _, key, nodes = known
    if nodes * _parts(arguments) > _MOST_WORK:
        return ()
    return _check(key, value)


def _lightened(schema: dict[str, Any]) -> tuple[bytes | None, int]:
    try:
        light, nodes = lightened(schema)
        return msgspec.json.encode(light), nodes
    except (TooLarge, TypeError, ValueError, RecursionError):
        return None, 0


def _parts(arguments: str) -> int:
    """At least as many values as there are in it."""
    return 1 + arguments.count(",") + arguments.count("[") + arguments.count("{")


@functools.lru_cache(maxsize=256)
def _has_references(schema: bytes) -> bool:
    return any(reference in schema for reference in _REFERENCES)


def _check(schema: bytes, value: object) -> tuple[str, ...]:
    validator = _validator(schema)
    if validator is None or validator.is_valid(value):  # to say what is wrong takes longer
        return ()
    return tuple(_describe(error) for error in itertools.islice(validator.iter_errors(value), _MOST_PROBLEMS))


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
