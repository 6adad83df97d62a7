"""Whether the arguments that a model wrote fit what the tool asks for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from antwort.tools.threads import run_in_thread

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What reading JSON can raise when the text is none, or is nested beyond reason."""

_MOST_PROBLEMS = 3
_LONGEST_PROBLEM = 200
_REFERENCES = (b'"$ref":', b'"$dynamicRef":', b'"$recursiveRef":')


async def find_problem(arguments: str, schema: dict[str, Any] | None) -> str | None:
    """What is wrong with `arguments`, in words the model can use, or None.

    A schema that is broken, or that points to another document, asks for nothing: nothing is ever fetched.
    """
    try:
        value = msgspec.json.decode(arguments)
    except NOT_JSON as error:
        return f"The arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return "The arguments must be a JSON object."
    if not schema:
        return None
    try:
        key = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):
        return None
    # References can make the work grow without bound; away from the event loop, only this call waits for it.
    aside = _has_references(key)
    problems = await run_in_thread(partial(_check, key, value), "antwort-arguments") if aside else _check(key, value)
    return f"The arguments do not fit: {'; '.join(problems)}" if problems else None


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
