"""The shape of a row of `operations.py`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antwort.api.wire import Plain

JSON = "application/json"
READ = (500, 503)
"""How what looks something up can end."""
LISTED = ("limit", "order", "after", "before")


class Answered(msgspec.Struct, frozen=True):
    """A way to end well."""

    about: str
    content: Mapping[str, str]
    """By media type, the schema of the answer; empty: plain text."""
    headers: tuple[str, ...] = ()


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """What programs call it by: its `operationId`."""
    tag: str
    summary: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    """By their names among `parts.PARAMETERS`."""
    body: str = ""
    """The schema of the body; empty: it has none."""
    examples: Mapping[str, Plain] = msgspec.field(default_factory=dict)
    """Bodies to begin with, by what they show."""
    answers: Mapping[int, Answered]
    errors: tuple[int, ...] = ()
    """The statuses of its errors, besides those that every request can end in."""
    is_open: bool = False
    """Whether it asks nobody for a key."""


def as_json(about: str, schema: str) -> dict[int, Answered]:
    return {200: Answered(about, {JSON: schema})}
