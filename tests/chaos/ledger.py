"""What the tools of the chaos suite have done, in their own words: a file with a line for each beginning and each end.

A line is on the disk before the tool goes on, so that nothing is missing whoever dies. What the model was asked stands
in a file of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec


class Line(msgspec.Struct, frozen=True, array_like=True):
    what: Literal["begun", "ended", "cancelled"]
    run: str
    """Never given twice: the same for the beginning and the end. The tool's answer names it."""
    kind: str
    place: str
    key: str
    """The idempotency key that came with the call."""
    server: str
    """Which server process it came from."""
    at: float
    """Seconds since 1970."""


class Inference(msgspec.Struct, frozen=True, array_like=True):
    """A request to the model."""

    story: int
    results: dict[str, str]
    """The calls whose results it was shown, by their places."""
    at: float
    """When it came, in seconds since 1970."""


class Ledger:
    """The writing side."""

    def __init__(self, file: Path) -> None:
        self._number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: Line | Inference) -> None:
        os.write(self._number, msgspec.json.encode(line) + b"\n")
        os.fdatasync(self._number)


def line_of(what: Literal["begun", "ended", "cancelled"], like: Line) -> Line:
    return msgspec.structs.replace(like, what=what, at=time.time())


class Execution(msgspec.Struct, kw_only=True):
    """A call as the tool has seen it."""

    run: str
    kind: str
    place: str
    key: str
    server: str
    begun: float
    ended: float | None = None
    """None: it was broken off."""


def executions(lines: Iterable[Line]) -> list[Execution]:
    """In the order that they began."""
    found: dict[str, Execution] = {}
    for line in lines:
        if line.what == "begun":
            found[line.run] = Execution(
                run=line.run, kind=line.kind, place=line.place, key=line.key, server=line.server, begun=line.at
            )
        elif line.what == "ended":
            found[line.run].ended = line.at
    return list(found.values())


def read(file: Path) -> list[Execution]:
    return executions(msgspec.json.decode(line, type=Line) for line in file.read_bytes().splitlines())


def read_inferences(file: Path) -> list[Inference]:
    return [msgspec.json.decode(line, type=Inference) for line in file.read_bytes().splitlines()]
