"""Files of the operator: where they are, YAML as a tree in which every value knows its line, and replacing a file."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from antwort.config.problems import CannotStart, plausible

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    _YamlNode: TypeAlias = ScalarNode | SequenceNode | MappingNode

FILE_VARIABLE = "ANTWORT_CONFIG"
FILE_NAME = "antwort.yaml"
_MAX_FILE_BYTES = 2**20
_MAX_VALUES = 100_000
_MAX_DEPTH = 32
_KNOWN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp"))
_MERGE = "tag:yaml.org,2002:merge"
_NULLS = ("", "~", "null", "Null", "NULL")


# ---- paths ----


def expanded(path: str) -> str:
    """Return the path with a home folder in place of a leading `~`. Raises `ValueError` with the reason."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as exc:
        raise ValueError(f"begins with {path.partition('/')[0]!r}, and no such home folder is known") from exc


def own_folder(of: Literal["config", "data"]) -> Path | None:
    """Return the user's own folder for the application; None for a user without a home."""
    import platformdirs

    find = platformdirs.user_config_path if of == "config" else platformdirs.user_data_path
    try:
        folder = find("antwort", appauthor=False)
    except RuntimeError:
        return None
    return None if str(folder).startswith("~") else folder


def find_file(named: str | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file that is named, or else the first of `places` that exists. Raises `CannotStart`."""
    named = named if named is not None else environment.get(FILE_VARIABLE) or None
    if named is not None:
        try:
            return Path(expanded(named))
        except ValueError as exc:
            raise CannotStart(f"The configuration file {named!r} cannot be read: its name {exc}.") from exc
    for place in places():
        with contextlib.suppress(OSError):  # a folder of somebody else
            if place.exists():
                return place
    return None


def places() -> tuple[Path, ...]:
    """Return where a file is looked for that is not named."""
    own = own_folder("config")
    return (Path(FILE_NAME), *(() if own is None else (own / FILE_NAME,)))


def others_can_read(file: Path) -> bool:
    """Return whether other users can read the file; False where files have no such rights."""
    try:
        return os.name == "posix" and file.is_file() and bool(file.stat().st_mode & 0o044)
    except OSError:
        return False


# ---- a tree of values ----


class Source(NamedTuple):
    """Where a value comes from, such as `antwort.yaml:12`, `ANTWORT_SERVER_PORT` or `--port`."""

    name: str
    rank: int = 0
    """Of the layer: the file is 0, and higher ones override it."""
    folder: str = ""
    """Where relative paths in the value start."""


class Node(NamedTuple):
    """A value before its setting decides what it is read as: text, nothing, a list or a table."""

    value: str | None | list[Node] | dict[str, Node]
    source: Source
    is_part: bool = False
    """Of a table that was set by the paths of its entries: it leaves the other entries as they are."""


def text_node(text: str, source: Source) -> Node:
    """Return a node for text without quotes, which may stand for nothing."""
    return Node(None if text in _NULLS else text, source)


def read_file(file: Path, rank: int) -> Node:
    """Return the table in a file. Raises `CannotStart`, with the file and, where it is known, the line."""
    source = Source(str(file), rank, str(file.parent))
    try:
        node = parse_yaml(_read_text(file), source, has_lines=True)
    except NotYaml as exc:
        place = str(file) if exc.line is None else f"{file}:{exc.line}"
        raise CannotStart(f"{place} is not valid: {exc.problem}.") from exc
    if node.value is None:
        return Node({}, source)
    if not isinstance(node.value, dict):
        raise CannotStart(f"{file} must hold settings, such as `default_model: qwen3`.")
    return node


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise CannotStart(f"The configuration file {str(file)!r} cannot be read: {exc.strerror}.") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise CannotStart(f"The configuration file {str(file)!r} is larger than {_MAX_FILE_BYTES} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise CannotStart(f"{file}:{line} is not valid: it is not UTF-8 text.") from exc


# ---- YAML ----


class NotYaml(Exception):
    """The text cannot be read; `problem` says why, and `line` where, from 1 on, if that is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


def parse_yaml(text: str, source: Source, *, has_lines: bool = False) -> Node:
    """Return the one document in the text. Raises `NotYaml`. With `has_lines`, sources have the lines of keys."""
    if not text.strip():
        return Node(None, source)
    import yaml  # slow to import, and needed only with a file, or with a list in a variable

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as exc:
        line = None if exc.problem_mark is None else exc.problem_mark.line + 1
        raise NotYaml(_in_words(exc.problem or "", text, line), line) from None
    except yaml.YAMLError:
        raise NotYaml("it holds a character that YAML does not allow") from None
    return Node(None, source) if root is None else _Document(source, has_lines).node(root)


_BRACKETS = "a bracket is not closed, or a comma is missing; write [a, b] or {a: 1, b: 2}"
_FAULTS = {
    "found another document": "there is a second document in it; leave out the line `---`, and what comes after it",
    "mapping values are not allowed": "a colon stands where none can; put text with `: ` in it into quotes",
    "expected <block end>": "the indentation does not fit the lines above; indent alike what belongs together",
    "could not find expected ':'": "a colon is missing after a key, or a space after the colon",
    "expected node content": _BRACKETS,
    "expected ',' or": _BRACKETS,
    "unexpected end of stream": "a quote is not closed; write it at the end of the text",
    "undefined alias": "a `*` begins a reference to something that is not there; put text that begins so into quotes",
    "cannot start any token": "a character stands where none of its kind can; put text that begins with it into quotes",
}


def _in_words(problem: str, text: str, line: int | None) -> str:
    """Return the fault and its fix. The parser's own message may quote the text."""
    lines = text.splitlines()
    there = lines[line - 1] if line is not None and line <= len(lines) else ""
    if "\t" in there[: len(there) - len(there.lstrip())]:
        return "indent with spaces: there is a tab"
    unknown = "it cannot be understood; put text with special characters into quotes"
    return next((words for part, words in _FAULTS.items() if part in problem), unknown)


class _Document:
    """Turns the nodes of the YAML parser into ours, without resolving types."""

    def __init__(self, source: Source, has_lines: bool) -> None:
        self._source, self._has_lines = source, has_lines
        self._values = 0

    def node(self, given: _YamlNode, line: int | None = None, depth: int = 0) -> Node:
        """`line` is that of the value's key."""
        line = given.start_mark.line + 1 if line is None else line
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:  # an alias may stand for itself, or for very many
            raise NotYaml("it is nested too deeply, or holds too much", line)
        source = self._source._replace(name=f"{self._source.name}:{line}") if self._has_lines else self._source
        if given.id == "sequence":
            return Node([self.node(item, None, depth + 1) for item in given.value], source)
        if given.id == "mapping":
            return Node(self._entries(given, depth), source)
        if given.tag not in _KNOWN_TAGS:
            raise NotYaml("a tag means nothing here; put text that begins with `!` into quotes", line)
        is_quoted = bool(getattr(given, "style", None))
        return Node(given.value, source) if is_quoted else text_node(given.value, source)

    def _entries(self, given: _YamlNode, depth: int) -> dict[str, Node]:
        """Return the entries of a table. Its own override those that a `<<` brings."""
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in given.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise NotYaml("a key must be a single value", line)
            if key.tag == _MERGE:
                for entries in self._merged(value, line, depth):
                    merged = {**entries, **merged}
            elif key.value in own:
                raise NotYaml(f"the key {plausible(key.value)!r} stands there twice", line)
            else:
                own[key.value] = self.node(value, line, depth + 1)
        return {**merged, **own}

    def _merged(self, value: _YamlNode, line: int, depth: int) -> Iterator[dict[str, Node]]:
        node = self.node(value, line, depth + 1)
        for table in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(table.value, dict):
                raise NotYaml("`<<` takes a mapping, or a list of them", line)
            yield table.value


# ---- replacing a file ----


def replace_file(file: Path, text: str, *, mode: int, check: Callable[[Path], None] = lambda _: None) -> None:
    """Replace a file as a whole, so that no reader finds half of it. Owner and rights stay, and a link stays a link;
    `mode` is for a file that is new.

    `check` sees the new file before it takes the place of the old one, and may raise. Raises `OSError`, also for a
    read-only file.
    """
    data, place = text.encode(), Path(os.path.realpath(file))
    before = place.stat() if place.exists() else None
    if before is not None and (not before.st_mode & 0o222 or not os.access(place, os.W_OK)):  # root may write all
        raise PermissionError(errno.EACCES, "it is read-only")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".new", dir=place.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
        check(new)
        _set_rights(new, before, mode)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def copy_of(file: Path, to: Path) -> None:
    """Copy the bytes, owner and rights of a file to a new one. Raises `OSError`."""
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(file.read_bytes())
    _set_rights(to, file.stat(), 0o600)


def _set_rights(new: Path, like: os.stat_result | None, mode: int) -> None:
    if like is not None:
        mode = like.st_mode & 0o7777
        with contextlib.suppress(PermissionError):  # only root can give a file away
            os.chown(new, like.st_uid, like.st_gid)
    new.chmod(mode)
