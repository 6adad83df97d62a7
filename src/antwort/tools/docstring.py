"""Parse what a docstring says about a function and its parameters, in Google's style or Sphinx's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

import msgspec

_ARGS = re.compile(r"(?:args|arguments|parameters)\s*:\s*$", re.IGNORECASE)
_SECTION = re.compile(r"[A-Z][\w ]*:\s*$")
_ENTRY = re.compile(r"(?P<indent>\s+)(?P<name>\w+)\s*(?:\(.*?\))?\s*:(?P<text>.*)")
_FIELD = re.compile(r":param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:(?P<text>.*)")


class Documented(msgspec.Struct, frozen=True):
    """Descriptions found; `summary` is the first paragraph, on one line."""

    summary: str | None
    parameters: dict[str, str]


def read_docstring(function: object) -> Documented:
    lines = (inspect.getdoc(function) or "").splitlines()
    entries: dict[str, list[str]] = {}
    for name, text in (*_google_pieces(lines), *_sphinx_pieces(lines)):
        entries.setdefault(name, []).append(text)
    described = {name: " ".join(filter(None, pieces)) for name, pieces in entries.items()}
    return Documented(_summary(lines), {name: text for name, text in described.items() if text})


def _summary(lines: Iterable[str]) -> str | None:
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or line.startswith(":") or _SECTION.match(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph) or None


def _google_pieces(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each line about a parameter under an `Args:` heading."""
    within, indent, name = False, "", ""
    for line in lines:
        if line.strip() and not line[0].isspace():
            within, indent, name = _ARGS.match(line) is not None, "", ""
        elif within and line.strip():
            entry = _ENTRY.match(line)
            if entry and (not indent or entry["indent"] == indent):
                indent, name = entry["indent"], entry["name"]
                yield name, entry["text"].strip()
            elif name and line.startswith(indent + " "):
                yield name, line.strip()


def _sphinx_pieces(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each line about a parameter in and below a `:param x:` field."""
    name = ""
    for line in lines:
        if field := _FIELD.match(line):
            name = field["name"]
            yield name, field["text"].strip()
        elif name and line[:1].isspace() and line.strip():
            yield name, line.strip()
        else:
            name = ""
