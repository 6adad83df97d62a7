"""How large a schema is, found out without reading more of it than is taken. Pure."""

from __future__ import annotations

from typing import Any

MOST_NODES, MOST_TEXT = 4_000, 128 * 1024
"""Values in a schema that is read at all, and characters in it. Those that people write have a tenth of that."""


_PER_NODE = 64
"""Characters that take as much memory as a value."""


def is_reasonable(schema: object, most_nodes: int = MOST_NODES, most_text: int = MOST_TEXT) -> bool:
    """Whether it is plain JSON of a size that somebody may have meant. The work is bounded, however large it is."""
    return measured(schema, most_nodes, most_text) is not None


def measured(schema: object, most_nodes: int = MOST_NODES, most_text: int = MOST_TEXT) -> int | None:
    """How much there is to keep of it, in values; None where it is not reasonable."""
    text = most_text
    waiting: list[Any] = [schema]
    nodes = 1
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            text -= len(value)
        elif isinstance(value, dict | list):
            nodes += len(value)
            if nodes > most_nodes:
                return None
            if isinstance(value, dict):
                text -= sum(len(name) for name in value if isinstance(name, str))
                value = value.values()
            waiting += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            return None  # nobody's bound, and there are validators that choke on it
        if text < 0:
            return None
    return nodes + (most_text - text) // _PER_NODE
