"""Bound the size of schemas from untrusted clients and servers before they are read."""

from __future__ import annotations

from typing import Any

_MAX_VALUES, _MAX_CHARACTERS = 4_000, 128 * 1024
"""Of a schema that is read at all. Schemas that people write have a tenth of that."""
_CHARACTERS_PER_VALUE = 64
"""Characters that take as much memory as one value."""


def measure(schema: object, max_values: int = _MAX_VALUES, max_characters: int = _MAX_CHARACTERS) -> int | None:
    """Return the memory a schema takes, counted in values, or None where it exceeds the bounds.

    A schema with an integer beyond 64 bits exceeds them too: some validators fail on it. The work is bounded, however
    large the schema is.
    """
    characters = max_characters
    waiting: list[Any] = [schema]
    values = 1
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            characters -= len(value)
        elif isinstance(value, dict | list):
            values += len(value)
            if values > max_values:
                return None
            if isinstance(value, dict):
                characters -= sum(len(name) for name in value if isinstance(name, str))
                value = value.values()
            waiting += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            return None
        if characters < 0:
            return None
    return values + (max_characters - characters) // _CHARACTERS_PER_VALUE
