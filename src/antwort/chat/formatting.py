"""Prepare text of models and tools for display: nothing in it may control the terminal. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters: cursor movements, bells, escape sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # line breaks and marks that terminals treat differently
    "\U000e0000-\U000e007f"  # invisible letters
    "\ud800-\udfff]"  # halves of characters, which cannot be encoded
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL_PICTURES = 0x2400
_TAB_WIDTH = 4
_ARGUMENTS_LENGTH, _VALUE_LENGTH = 240, 80
_RESULT_LINES, _RESULT_LINE_LENGTH = 6, 400


def sanitize(text: str) -> str:
    """Replace everything that could control a terminal by a visible sign. Lines end with LF, and tabs become spaces."""
    return _UNSAFE.sub(_sign, text.replace("\r\n", "\n").expandtabs(_TAB_WIDTH))


def sanitize_for_file(text: str) -> str:
    """Replace control characters only: for files and other programs, tabs and directions of writing stay."""
    return _CONTROLS.sub(_sign, text.replace("\r\n", "\n"))


def one_line(text: str, length: int = 200) -> str:
    """Return the text on one line of at most `length` characters, sanitized."""
    return shorten(" ".join(sanitize(text[: length * 4]).split()), length)


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == 0x7F else "\ufffd"


# ---- calls ----


def format_arguments(arguments: str) -> str:
    """Format an object as `expression: "17 * 23"`. Other arguments, such as incomplete ones, stay as they are."""
    if (values := _object(arguments)) is not None:
        shown = (f"{name}: {one_line(_json(value), _VALUE_LENGTH)}" for name, value in values.items())
        arguments = ", ".join(shown)
    return one_line(arguments, _ARGUMENTS_LENGTH)


def full_arguments(arguments: str) -> list[str]:
    """Return each argument as `name: value` on a line of its own. Values are JSON: none can look like another line."""
    if (values := _object(arguments)) is None:
        return [sanitize(arguments)]
    return [
        sanitize(f"{name if name.isidentifier() else _json(name)}: {_json(value)}") for name, value in values.items()
    ]


def format_result(result: str) -> str:
    """Return the first lines, and how many more there are."""
    lines = sanitize(result).strip("\n").split("\n")
    shown = [shorten(line, _RESULT_LINE_LENGTH) for line in lines[:_RESULT_LINES]]
    more = len(lines) - len(shown)
    return "\n".join([*shown, f"… {more} more {'line' if more == 1 else 'lines'}"] if more else shown)


def format_seconds(seconds: float) -> str:
    """Format a duration as `4 ms`, `1.3 s` or `2 min 05 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        values = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
