"""A rule of the grammar, and the error of a stream that breaks one."""

from __future__ import annotations

import msgspec


class GrammarError(AssertionError):
    """A stream that breaks a rule. `number` and `event` are None where the fault is no single event's."""

    def __init__(self, number: int | None, event: str | None, rule: str) -> None:
        where = "the stream" if number is None else f"event {number}"
        super().__init__(f"{where} ({event}): {rule}" if event else f"{where}: {rule}")
        self.number, self.event, self.rule = number, event, rule


class Broken(Exception):
    """A rule was broken. The sentence says which; whoever feeds knows the event and its number."""


def require(claim: bool, rule: str) -> None:
    if not claim:
        raise Broken(rule)


def tag_of(value: msgspec.Struct | type[msgspec.Struct]) -> str:
    """The `type` of an item, a part or an event."""
    return str(value.__struct_config__.tag)
