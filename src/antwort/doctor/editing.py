"""Put the settings of a backend into the text of a configuration file, and leave all else in it as it is. Pure.

Lines are inserted where the YAML parser sees the values. A library that writes files anew, such as ruamel.yaml, is no
help here: it puts new keys below the comment of the next section, and changes indentation, spaces and line ends. The
result is parsed again: unless it holds exactly what was there and what was put in, nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from antwort.config.shown import written

Fields: TypeAlias = Mapping[str, Any]
"""Settings by their names; a table within them is a mapping again."""

_BREAK = re.compile(r"\r\n|\n|\r")
_INDENT = "  "
_ODD = "it is written in a way that cannot be changed safely"


class CannotEdit(Exception):
    """The text has a form that is not changed here; the message says which."""


class _Edit(NamedTuple):
    """`text` replaces what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def edited(text: str, name: str, fields: Fields, fresh: Fields) -> str:
    """Return the text with `fields` in the entry of the backend `name`, or else with a `fresh` entry. Raises
    `CannotEdit`.
    """
    try:
        root: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        new = text
        for edit in sorted(_edits(text, root, name, fields, fresh), reverse=True):
            new = new[: edit.start] + edit.text + new[edit.end :]
        before, after = (yaml.safe_load(each.removeprefix("\ufeff")) for each in (text, new))
    except (yaml.YAMLError, RecursionError):  # the parser's message would quote the text
        raise CannotEdit(_ODD) from None
    backends = list((before or {}).get("backends") or [])
    at = next((at for at, entry in enumerate(backends) if isinstance(entry, dict) and entry.get("name") == name), None)
    if at is None:
        backends.append(_merged({}, fresh))
    else:
        backends[at] = _merged(backends[at], fields)
    if after != {**(before or {}), "backends": backends}:
        raise CannotEdit(_ODD)
    return new


def _merged(table: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    merged = dict(table)
    for key, value in fields.items():
        merged[key] = _merged(merged.get(key) or {}, value) if isinstance(value, Mapping) else value
    return merged


def as_lines(fields: Fields, indent: str = "") -> list[str]:
    """Return the lines of a table in the file."""
    lines: list[str] = []
    for key, value in fields.items():
        if isinstance(value, Mapping) and key == "capabilities":
            lines += [f"{indent}{key}:", *as_lines(value, indent + _INDENT)]
        else:
            lines.append(f"{indent}{key}: {written(value)}")
    return lines


def entry_lines(fields: Fields, indent: str = _INDENT) -> list[str]:
    """Return the lines of an entry of a list."""
    first, *rest = as_lines(fields, indent + _INDENT)
    return [f"{indent}- {first.lstrip()}", *rest]


# ---- where it goes ----


def _edits(text: str, root: Node | None, name: str, fields: Fields, fresh: Fields) -> Iterator[_Edit]:
    whole = ["backends:", *entry_lines(fresh)]
    if root is None:
        yield _below(text, len(text), whole)
        return
    if not isinstance(root, MappingNode) or root.flow_style:
        raise CannotEdit("the file is written in braces or brackets")
    backends = _value(root, "backends")
    if backends is None:
        yield _below(text, len(text), ["", *(" " * root.start_mark.column + line for line in whole)])
        return
    if _is_empty(backends):
        yield from _replaced(text, backends, entry_lines(fresh))
        return
    if not isinstance(backends, SequenceNode) or backends.flow_style:
        raise CannotEdit("the list of backends is written in braces or brackets")
    for entry in backends.value:
        named = _value(entry, "name") if isinstance(entry, MappingNode) else None
        if named is not None and named.value == name:
            if entry.flow_style:
                raise CannotEdit(f"the entry of {name} is written in braces or brackets")
            yield from _put(text, entry, fields)
            return
    yield _below(text, _end(backends), entry_lines(fresh, " " * backends.start_mark.column))


def _put(text: str, table: MappingNode, fields: Fields) -> Iterator[_Edit]:
    missing: dict[str, Any] = {}
    for key, value in fields.items():
        node = _value(table, key)
        if node is None:
            missing[key] = value
        elif not isinstance(value, Mapping):
            if not isinstance(node, ScalarNode):
                raise CannotEdit(f"what stands at `{key}` is no single value")
            start, end = node.start_mark.index, node.end_mark.index
            yield _Edit(start, end, f"{' ' if start == end else ''}{written(value)}")
        elif isinstance(node, MappingNode) and node.value:
            yield from _put(text, node, value)
        elif _is_empty(node):
            yield from _replaced(text, node, as_lines(value, " " * table.start_mark.column + _INDENT))
        else:
            raise CannotEdit(f"what stands at `{key}` is no table")
    if missing and table.flow_style:
        end = table.value[-1][1].end_mark.index
        yield _Edit(end, end, "".join(f", {key}: {written(value)}" for key, value in missing.items()))
    elif missing:
        yield _below(text, _end(table), as_lines(missing, " " * table.start_mark.column))


def _replaced(text: str, node: Node, lines: Sequence[str]) -> Iterator[_Edit]:
    """Replace nothing, `~`, `[]` or `{}` by lines below the key, so that a comment behind it stays."""
    yield _Edit(node.start_mark.index, node.end_mark.index, "")
    yield _below(text, node.end_mark.index, lines)


def _below(text: str, index: int, lines: Sequence[str]) -> _Edit:
    """Insert lines after the line in which the value ends that ends at `index`."""
    line_break = "\r\n" if "\r\n" in text else "\n"
    block = "".join(f"{line}{line_break}" for line in lines)
    if not index or text[index - 1] not in "\r\n":  # else it is a text of several lines, or the end
        found = _BREAK.search(text, index)
        index = found.end() if found else len(text)
    if index == len(text) and text and text[-1] not in "\r\n":
        block = line_break + block
    return _Edit(index, index, block)


def _end(node: Node) -> int:
    """Return where the last value in a node ends: a block itself ends where the next thing begins."""
    if isinstance(node, MappingNode | SequenceNode) and node.value and not node.flow_style:
        return _end(node.value[-1][1] if isinstance(node, MappingNode) else node.value[-1])
    return int(node.end_mark.index)


def _is_empty(node: Node) -> bool:
    return not node.value or (isinstance(node, ScalarNode) and node.tag.endswith(":null"))


def _value(table: MappingNode, key: str) -> Node | None:
    return next((value for name, value in table.value if name.value == key), None)
