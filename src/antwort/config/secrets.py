"""Values that must not be seen: given as they are, or by the name of a variable or a file."""

from __future__ import annotations


class Secret:
    """A value that is never shown by accident. `origin` says where it came from, and may be shown."""

    __slots__ = ("_value", "origin")

    def __init__(self, value: str, origin: str = "") -> None:
        self._value = value
        self.origin = origin

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)
