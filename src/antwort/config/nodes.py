"""What an operator gave, before it is known what it means: texts, lists and tables that know where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from antwort.config.secrets import Secret

NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TEXT = 40
_QUOTES = ("'", '"')
_NAMES = re.compile(r"""(?:^|(?<=\.))("[^"]*"|'[^']*'|[^.]*)(?:$|(?=\.))""")


class Origin(NamedTuple):
    """A place that a value came from, such as `antwort.yaml:12`, `ANTWORT_SERVER_PORT` or `--port`."""

    name: str
    folder: str = ""
    """What relative paths in the value start from."""
    is_file: bool = False


class Text(NamedTuple):
    """A single value. What it is read as depends on the setting, not on quotes."""

    text: str
    origin: Origin
    quoted: bool = False


class Items(NamedTuple):
    items: tuple[Node, ...]
    origin: Origin


class Table(NamedTuple):
    entries: Mapping[str, Node]
    origin: Origin
    is_part: bool = False
    """Of a table that was set by the paths of its entries: it leaves the other entries as they are."""


Node: TypeAlias = Text | Items | Table


def is_nothing(node: Node) -> bool:
    return isinstance(node, Text) and not node.quoted and node.text in NOTHING


def kind_in_words(node: Node) -> str:
    """What kind of thing was given."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a mapping"
    return "nothing" if is_nothing(node) else "text"


def in_words(node: Node) -> str:
    """What was given, to show in an error. Not to be asked of what may be a secret."""
    if not isinstance(node, Text) or is_nothing(node):
        return kind_in_words(node)
    return repr(node.text if len(node.text) <= _PLAIN_TEXT else f"{node.text[:_PLAIN_TEXT]}…")


def node_of(value: object, origin: Origin) -> Node:
    """A plain Python value, as a program gives it."""
    if isinstance(value, Mapping):
        return Table({str(key): node_of(entry, origin) for key, entry in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Items(tuple(node_of(entry, origin) for entry in value), origin)
    if value is None:
        return Text("", origin)
    if isinstance(value, Secret):
        return Text(value.reveal(), origin, quoted=True)
    if isinstance(value, bool):
        return Text(str(value).lower(), origin)
    return Text(str(value), origin, quoted=isinstance(value, str))


def split(path: str) -> list[str]:
    """The names in a path such as `server.port`. A name with a dot in it stands in quotes: `routing.aliases."a.b"`."""
    return [name[1:-1] if len(name) > 1 and name[0] == name[-1] in _QUOTES else name for name in _NAMES.findall(path)]


def put(entries: dict[str, Node], names: Sequence[str], node: Node) -> None:
    """Put `node` at a path, making the tables on the way."""
    first, *rest = names
    if not rest:
        entries[first] = node
        return
    there = entries.get(first)
    below = dict(there.entries) if isinstance(there, Table) else {}
    put(below, rest, node)
    entries[first] = Table(below, node.origin, there.is_part if isinstance(there, Table) else True)


def variables_in(node: Node) -> Iterator[str]:
    """The names of those that secrets are to be taken from, by `{env: NAME}`."""
    if isinstance(node, Items):
        for item in node.items:
            yield from variables_in(item)
    elif isinstance(node, Table):
        for key, entry in node.entries.items():
            if key == "env" and isinstance(entry, Text):
                yield entry.text
            else:
                yield from variables_in(entry)
