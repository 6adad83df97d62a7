"""Convert values of clients to types, and turn the converter's errors into an `InvalidField` that names the place."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from antwort.errors import InvalidField

_AT = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_ANY_KEY = "[...]"
_LONGEST_KEY = 64  # of what is repeated
_LONGEST_PROBLEM = 200
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def convert(value: object, to: Any, path: str) -> Any:
    """Convert `value` to the type `to`. Raises an `InvalidField` that names the place under `path`."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as exc:
        inner, problem = _problem(exc)
        where = f"{path}{_with_key(inner, value)}"
        code = "missing_required_parameter" if "missing required field" in problem else None
        raise InvalidField(where.removeprefix("."), f"{problem}.", code=code) from exc


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without fields that are null, which is how some clients write what they leave out."""
    if None not in value.values():
        return value.copy()
    return {key: entry for key, entry in value.items() if entry is not None}


def without_inner_nulls(value: Any) -> Any:
    """Remove fields that are null at every depth; nulls in a list stay."""
    if isinstance(value, dict):
        return {key: without_inner_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_inner_nulls(entry) for entry in value] if isinstance(value, list) else value


def kind_of(value: object) -> str:
    """Return the kind of a value in words for the person who sent it."""
    return _KINDS.get(type(value), "null")


def described(exc: Exception) -> str:
    return _problem(exc)[1]


def _problem(exc: Exception) -> tuple[str, str]:
    """Return the path inside the converted value, and what is wrong there."""
    text = str(exc)
    path = ""
    if (match := _AT.search(text)) is not None:
        path, text = match["path"], text[: match.start()]
    if (match := _MISSING.fullmatch(text)) is not None:
        return f"{path}.{match['name']}", "missing required field"
    if len(text) > _LONGEST_PROBLEM:  # it repeats what was sent
        text = f"{text[:_LONGEST_PROBLEM]}..."
    return path, text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _with_key(path: str, value: Any) -> str:
    """Replace the placeholder for a key by the key at fault: the converter does not name it. All such mappings hold
    short texts.
    """
    before, marker, after = path.partition(_ANY_KEY)
    if not marker:
        return path
    for step in _STEP.finditer(before):
        value = value[step["name"] if step["index"] is None else int(step["index"])]
    faulty = (key for key, entry in value.items() if not isinstance(entry, str) or len(entry) > 512)
    key = next(faulty, None)
    return path if key is None else f"{before}.{key[:_LONGEST_KEY]}{after}"
