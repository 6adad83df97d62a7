"""How a call of a tool is put in words. Pure."""

from __future__ import annotations

import msgspec

from antwort.chat.scrub import in_one_line, scrub, shortened

_LONGEST_ARGUMENTS, _LONGEST_VALUE = 240, 80
_MOST_LINES, _LONGEST_LINE = 6, 400


def arguments_shown(arguments: str) -> str:
    """`expression: "17 * 23"` for an object; as they stand where they are none, such as those half written."""
    try:
        values = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return in_one_line(arguments, _LONGEST_ARGUMENTS)
    if not isinstance(values, dict):
        return in_one_line(arguments, _LONGEST_ARGUMENTS)
    shown = ", ".join(f"{name}: {_value(value)}" for name, value in values.items())
    return in_one_line(shown, _LONGEST_ARGUMENTS)


def whole_arguments(arguments: str) -> list[str]:
    """All of them, each `name: value` by itself; as they stand where they are no object. A value is in JSON, on one
    line: nothing in it can pass for anything else that is shown.
    """
    try:
        values = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return [scrub(arguments)]
    if not isinstance(values, dict):
        return [scrub(arguments)]
    return [scrub(f"{_name(name)}: {msgspec.json.encode(value).decode()}") for name, value in values.items()]


def _name(name: str) -> str:
    """As it is where it is a plain one."""
    return name if name.isidentifier() else msgspec.json.encode(name).decode()


def _value(value: object) -> str:
    return in_one_line(msgspec.json.encode(value).decode(), _LONGEST_VALUE)


def result_shown(result: str) -> str:
    """The first lines of it, and how many more there are."""
    lines = scrub(result).strip("\n").split("\n")
    kept = [shortened(line, _LONGEST_LINE) for line in lines[:_MOST_LINES]]
    more = len(lines) - len(kept)
    return "\n".join([*kept, f"… {more} more {'line' if more == 1 else 'lines'}"] if more else kept)


def seconds_shown(seconds: float) -> str:
    """`4 ms`, `1.3 s`, `2 min 05 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"
