"""YAML as nodes: every value knows its line. What a value is read as is decided later, by the setting it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from antwort.config.nodes import Items, Node, Origin, Table, Text
from antwort.config.problems import CannotStart
from antwort.config.repeating import plausible

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    _YamlNode: TypeAlias = ScalarNode | SequenceNode | MappingNode

_MOST_VALUES = 100_000
_DEEPEST = 32
_KNOWN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp"))
_MERGE = "tag:yaml.org,2002:merge"


class NotYaml(CannotStart):
    """The text cannot be read; `problem` says why, and `line` where, from 1 on, if that is known."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


def parse(text: str, name: str, *, folder: str = "", is_file: bool = False) -> Node | None:
    """The one document in the text, or None where there is nothing in it. Raises `NotYaml`.

    The origin of a value is `name` and, in a file, the line of its key.
    """
    if not text.strip():
        return None
    import yaml  # only those who have a file, or a list in a variable, wait for it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as exc:
        line = None if exc.problem_mark is None else exc.problem_mark.line + 1
        raise NotYaml(_in_words(exc.problem or "", text, line), line) from None
    except yaml.YAMLError:
        raise NotYaml("it holds a character that YAML does not allow", None) from None
    return None if root is None else _Document(name, folder, is_file).node(root)


_OPEN = "a bracket is not closed, or a comma is missing; write [a, b] or {a: 1, b: 2}"
_FAULTS = {
    "found another document": "there is a second document in it; leave out the line `---`, and what comes after it",
    "mapping values are not allowed": "a colon stands where none can; put text with `: ` in it into quotes",
    "expected <block end>": "the indentation does not fit the lines above; indent alike what belongs together",
    "could not find expected ':'": "a colon is missing after a key, or a space after the colon",
    "expected node content": _OPEN,
    "expected ',' or": _OPEN,
    "unexpected end of stream": "a quote is not closed; write it at the end of the text",
    "undefined alias": "a `*` begins a reference to something that is not there; put text that begins so into quotes",
    "cannot start any token": "a character stands where none of its kind can; put text that begins with it into quotes",
}
_TAB = "indent with spaces: there is a tab"
_UNKNOWN = "it cannot be understood; put text with special characters into quotes"


def _in_words(problem: str, text: str, line: int | None) -> str:
    """What is wrong, and the fix. The parser's own words may repeat what stands there, and are half sentences."""
    lines = text.splitlines()
    there = lines[line - 1] if line is not None and line <= len(lines) else ""
    if "\t" in there[: len(there) - len(there.lstrip())]:
        return _TAB
    return next((words for part, words in _FAULTS.items() if part in problem), _UNKNOWN)


class _Document:
    """One document on its way from YAML's nodes to ours."""

    def __init__(self, name: str, folder: str, is_file: bool) -> None:
        self._name, self._folder, self._is_file = name, folder, is_file
        self._values = 0

    def node(self, given: _YamlNode, line: int | None = None, depth: int = 0) -> Node:
        """`line` is that of the value's key."""
        line = given.start_mark.line + 1 if line is None else line
        self._values += 1
        if depth > _DEEPEST or self._values > _MOST_VALUES:  # an alias may stand for itself, or for very many
            raise NotYaml("it is nested too deeply, or holds too much", line)
        if given.id == "scalar":
            return self._text(given, line)
        if given.id == "sequence":
            return Items(tuple(self.node(item, None, depth + 1) for item in given.value), self._origin(line))
        return Table(self._entries(given, depth), self._origin(line))

    def _origin(self, line: int) -> Origin:
        name = f"{self._name}:{line}" if self._is_file else self._name
        return Origin(name, self._folder, self._is_file)

    def _text(self, given: _YamlNode, line: int) -> Text:
        if given.tag not in _KNOWN_TAGS:
            raise NotYaml("a tag means nothing here; put text that begins with `!` into quotes", line)
        return Text(given.value, self._origin(line), quoted=bool(getattr(given, "style", None)))

    def _entries(self, given: _YamlNode, depth: int) -> dict[str, Node]:
        """What a `<<` brings yields to what stands beside it."""
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in given.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise NotYaml("a key must be a single value", line)
            if key.tag == _MERGE:
                for table in self._merged(value, line, depth):
                    merged = {**table.entries, **merged}
            elif key.value in own:
                raise NotYaml(f"the key {plausible(key.value)!r} stands there twice", line)
            else:
                own[key.value] = self.node(value, line, depth + 1)
        return {**merged, **own}

    def _merged(self, value: _YamlNode, line: int, depth: int) -> Iterator[Table]:
        node = self.node(value, line, depth + 1)
        for table in node.items if isinstance(node, Items) else (node,):
            if not isinstance(table, Table):
                raise NotYaml("`<<` takes a mapping, or a list of them", line)
            yield table
