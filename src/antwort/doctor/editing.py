"""A backend's settings put into the text of a configuration file; all else in it stays as it is, comments too. Pure.

The places to change are found by where YAML's own parser sees the values. What comes out is parsed again: unless it
holds just what was there and what was put in, nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from antwort.config.shown import written

Fields: TypeAlias = Mapping[str, Any]
"""Settings by their names; a table within them is a mapping again."""

_BREAK = re.compile(r"\r\n|\n|\r")
_STEP = "  "
_ODD = "it is written in a way that cannot be changed safely"
_Kind = TypeVar("_Kind", MappingNode, SequenceNode)


class CannotEdit(Exception):
    """The text is of a shape that is not changed here; the message says which."""


class Edit(NamedTuple):
    """`text` in the place of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def edited(text: str, name: str, fields: Fields, fresh: Fields) -> str:
    """The text with `fields` in the entry of the backend `name`, or else with a `fresh` entry. Raises `CannotEdit`."""
    page = _Page(text)
    new = _applied(text, page.edits(name, fields, fresh))
    if _plain(new) != _expected(_plain(text), name, fields, fresh):
        raise CannotEdit(_ODD)
    return new


def as_lines(fields: Fields, indent: str = "") -> list[str]:
    """As they stand in a file."""
    lines: list[str] = []
    for key, value in fields.items():
        if isinstance(value, Mapping) and key == "capabilities":
            lines += [f"{indent}{key}:", *as_lines(value, indent + _STEP)]
        else:
            lines.append(f"{indent}{key}: {written(value)}")
    return lines


def entry_lines(fields: Fields, indent: str = _STEP) -> list[str]:
    """As an entry of a list."""
    first, *rest = as_lines(fields, indent + _STEP)
    return [f"{indent}- {first.lstrip()}", *rest]


def _applied(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


# ---- what is to come out ----


def _plain(text: str) -> Any:
    try:
        return yaml.safe_load(text.removeprefix("\ufeff"))
    except yaml.YAMLError:
        return _NOT_YAML


_NOT_YAML = object()


def _expected(plain: Any, name: str, fields: Fields, fresh: Fields) -> Any:
    tree = dict(plain or {})
    backends = list(tree.get("backends") or [])
    at = next((at for at, entry in enumerate(backends) if isinstance(entry, dict) and entry.get("name") == name), None)
    if at is None:
        backends.append(_laid_over({}, fresh))
    else:
        backends[at] = _laid_over(backends[at], fields)
    return tree | {"backends": backends}


def _laid_over(table: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    result = dict(table)
    for key, value in fields.items():
        result[key] = _laid_over(result.get(key) or {}, value) if isinstance(value, Mapping) else value
    return result


# ---- where it goes ----


class _Page:
    """A text, and where things stand in it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._break = "\r\n" if "\r\n" in text else "\n"
        self._starts = [0, *(found.end() for found in _BREAK.finditer(text))]
        self._root = _root(text)

    def edits(self, name: str, fields: Fields, fresh: Fields) -> list[Edit]:
        if self._root is None:
            return [self._at_end(["backends:", *entry_lines(fresh)])]
        root = _block(self._root, MappingNode, "the file")
        backends = _value(root, "backends")
        if backends is None:
            return [self._at_end(["", *_indented(["backends:", *entry_lines(fresh)], root.start_mark.column)])]
        if _is_empty(backends):
            return self._instead(backends, entry_lines(fresh))
        entries = _block(backends, SequenceNode, "the list of backends")
        entry = next((node for node in entries.value if _named(node) == name), None)
        if entry is None:
            return [self._after(entries, entry_lines(fresh, " " * entries.start_mark.column))]
        return list(self._put(_block(entry, MappingNode, f"the entry of {name}"), fields))

    def _put(self, table: MappingNode, fields: Fields) -> Iterator[Edit]:
        missing: dict[str, Any] = {}
        for key, value in fields.items():
            node = _value(table, key)
            if node is None:
                missing[key] = value
            elif isinstance(value, Mapping):
                yield from self._put_table(table, node, value)
            elif isinstance(node, ScalarNode):
                yield Edit(node.start_mark.index, node.end_mark.index, _spaced(node, written(value)))
            else:
                raise CannotEdit(f"what stands at `{key}` is no single value")
        if missing:
            yield self._add(table, missing)

    def _put_table(self, above: MappingNode, node: Node, fields: Fields) -> Iterator[Edit]:
        if isinstance(node, MappingNode) and node.value:
            yield from self._put(node, fields)
        elif _is_empty(node):
            yield from self._instead(node, as_lines(fields, " " * above.start_mark.column + _STEP))
        else:
            raise CannotEdit("what stands at `capabilities` is no table")

    def _add(self, table: MappingNode, fields: Fields) -> Edit:
        if not _is_flow(table):
            return self._after(table, as_lines(fields, " " * table.start_mark.column))
        inner = ", ".join(f"{key}: {written(value)}" for key, value in fields.items())
        last = table.value[-1][1].end_mark.index
        return Edit(last, last, f", {inner}")

    def _instead(self, node: Node, lines: Sequence[str]) -> list[Edit]:
        """In the place of nothing, `~`, `[]` or `{}`: below the key, so that a comment behind it stays."""
        gone = Edit(node.start_mark.index, node.end_mark.index, "")
        return [gone, self._below(node.end_mark.line, lines)]

    def _after(self, node: Node, lines: Sequence[str]) -> Edit:
        return self._below(_last_line(node), lines)

    def _below(self, line: int, lines: Sequence[str]) -> Edit:
        if line + 1 >= len(self._starts):
            return self._at_end(lines)
        at = self._starts[line + 1]
        return Edit(at, at, self._joined(lines))

    def _at_end(self, lines: Sequence[str]) -> Edit:
        at = len(self._text)
        is_open = bool(self._text) and not self._text.endswith(("\n", "\r"))
        return Edit(at, at, (self._break if is_open else "") + self._joined(lines))

    def _joined(self, lines: Sequence[str]) -> str:
        return "".join(f"{line}{self._break}" for line in lines)


def _root(text: str) -> Node | None:
    """What the parser says of a text that it does not take quotes it, with the keys that are in it."""
    try:
        root: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        raise CannotEdit(_ODD) from None
    return root


def _indented(lines: Sequence[str], column: int) -> list[str]:
    return [f"{' ' * column}{line}" for line in lines]


def _block(node: Node, kind: type[_Kind], what: str) -> _Kind:
    """The node, if it is of this kind and written in lines of its own."""
    if not isinstance(node, kind) or _is_flow(node):
        raise CannotEdit(f"{what} is written in braces or brackets")
    return node


def _is_flow(node: Node) -> bool:
    return isinstance(node, CollectionNode) and bool(node.flow_style)


def _is_empty(node: Node) -> bool:
    return not node.value or (isinstance(node, ScalarNode) and node.tag.endswith(":null"))


def _value(table: MappingNode, key: str) -> Node | None:
    return next((value for name, value in table.value if name.value == key), None)


def _named(node: Node) -> str | None:
    name = _value(node, "name") if isinstance(node, MappingNode) else None
    return str(name.value) if name is not None else None


def _spaced(node: ScalarNode, text: str) -> str:
    """A value that was not there has no space before it."""
    return f" {text}" if node.start_mark.index == node.end_mark.index else text


def _last_line(node: Node) -> int:
    """The line that the last of its values ends in; the mark of a block stands where the next thing begins."""
    if isinstance(node, CollectionNode) and node.value and not _is_flow(node):
        last = node.value[-1]
        return _last_line(last[1] if isinstance(node, MappingNode) else last)
    end = node.end_mark
    return int(end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line)
