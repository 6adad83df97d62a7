"""Convert a tree of text to settings: each value by the type of its setting, with all faults collected."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    StrType,
    StructType,
    Type,
    VarTupleType,
)

from antwort.config.files import Node, Source, expanded
from antwort.config.problems import Problem, missing_space, plausible
from antwort.config.schema import all_leaves, fields, in_words, is_optional, leaves, without_none
from antwort.config.secrets import Secret, can_be_sent, is_token, may_be_secret, read_secret_file
from antwort.suggestions import did_you_mean, nearest

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9][0-9_]*", re.ASCII)
_PLAIN_KEY = re.compile(r"[\w-]+")
_MAY_BE_SECRET = ("sha256", "url", "key")
_MAX_SHOWN_CHARS = 40
_A_SECRET = "must be text, {env: NAME} or {file: PATH}"  # noqa: S105 - it says what one is


INVALID: Final = object()
"""Stands for a value that could not be read; the problem is in the list already."""


class _InvalidValue(Exception):
    """A fault of a value: the end of a sentence that begins with its path."""


class Converter:
    """Converts one tree, and goes on after a fault, so that all are reported at once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []
        self.origins: dict[str, str] = {}
        """Of every value that was given, by its path."""
        self.has_secrets_in_file = False

    def convert(self, node: Node, kind: Type, path: str) -> object:
        """Return the value, or `INVALID`."""
        if node.value is None and is_optional(kind):
            self.origins[path] = node.source.name
            return None
        kind = without_none(kind)
        if isinstance(kind, StructType):
            return self._struct(node, kind, path)
        self.origins[path] = node.source.name
        try:
            match kind:
                case VarTupleType():
                    items = [] if node.value is None else node.value
                    if not isinstance(items, list):
                        raise _mismatch(node, kind)
                    found = tuple(
                        [self.convert(item, kind.item_type, f"{path}[{at}]") for at, item in enumerate(items)]
                    )
                    return INVALID if INVALID in found else found
                case DictType():
                    entries = {} if node.value is None else node.value
                    if not isinstance(entries, dict):
                        raise _mismatch(node, kind)
                    values = {key: self._entry(key, entry, kind.value_type, path) for key, entry in entries.items()}
                    return INVALID if INVALID in values.values() else values
                case CustomType():
                    return self._secret(node, path)
                case _:
                    return _scalar(node, kind, path)
        except _InvalidValue as exc:
            return self._report(path, str(exc), node.source)

    def _report(self, path: str, what: str, source: Source, hint: str = "") -> object:
        self.problems.append(Problem(path, what, hint, source.name))
        return INVALID

    def _struct(self, node: Node, kind: StructType, path: str) -> object:
        given = {} if node.value is None else node.value
        if not isinstance(given, dict):
            return self._report(path, str(_mismatch(node, kind)), node.source)
        if path.endswith("]"):
            self.origins[path] = node.source.name
        prefix, known = f"{path}." if path else "", fields(kind)
        for key, entry in given.items():
            if key not in known:
                hint, head = missing_space(key) or _hint_for_key(key, prefix, known), plausible(key)
                if head:
                    self._report(prefix + (head if head == key else f"{head}…"), "is not a setting", entry.source, hint)
                else:
                    self._report(path or "the top", "has a key that is not a setting", entry.source, hint)
        values = {key: self.convert(given[key], known[key].type, prefix + key) for key in known if key in given}
        missing = [name for name, field in known.items() if field.required and name not in values]
        for name in missing:
            self._report(prefix + name, "is missing", node.source)
        if missing or INVALID in values.values():
            return INVALID
        try:
            made: object = kind.cls(**values)
        except ValueError as exc:  # a rule of the type itself
            return self._report(path, f"is not right: {exc}", node.source)
        return made

    def _entry(self, key: str, node: Node, kind: Type, path: str) -> object:
        """A key without a value may be both of them, run together."""
        if node.value is None and (hint := missing_space(key)):
            head = plausible(key)
            return self._report(f"{path}.{head}…" if head else path, "has no value", node.source, hint)
        is_shown = is_token(key) or not isinstance(kind, CustomType)
        return self.convert(node, kind, below(path, key if is_shown else plausible(key)))

    def _secret(self, node: Node, path: str) -> Secret:
        """No message repeats the value."""
        if isinstance(node.value, dict):
            text, origin = self._referred(node, node.value)
        elif isinstance(node.value, str):
            text, origin = node.value.strip(), node.source.name
            self.has_secrets_in_file |= node.source.rank == 0
        else:
            raise _InvalidValue(f"{_A_SECRET}, not {_kind_in_words(node)}")
        if not text:
            raise _InvalidValue("is empty; leave it out where there is none")
        if not can_be_sent(text):
            raise _InvalidValue("cannot be sent: it must be one line of printable ASCII")
        self.origins[path] = node.source.name
        return Secret(text, origin)

    def _referred(self, node: Node, entries: Mapping[str, Node]) -> tuple[str, str]:
        """Return the secret that `{env: NAME}` or `{file: PATH}` refers to, and its origin."""
        match [(key, entry.value) for key, entry in entries.items()]:
            case [("env" | "file" as place, str(name))] if may_be_secret(name):
                what = "name of a variable" if place == "env" else "path of a file"
                raise _InvalidValue(
                    f"must be the {what} where it says `{place}`, and what is there looks like a key itself"
                )
            case [("env", str(name))] if name:
                text = self._environment.get(name, "").strip()
                if not text:
                    raise _InvalidValue(f"is to come from the variable {name}, which is not set")
                return text, name
            case [("file", str(name))] if name:
                try:
                    file = Path(node.source.folder) / expanded(name)
                    return read_secret_file(file), str(file)
                except ValueError as exc:
                    raise _InvalidValue(str(exc)) from exc
            case _:
                raise _InvalidValue(_A_SECRET)


def below(path: str, key: str) -> str:
    """Return the path of an entry of a map, whose keys may hold anything."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{key!r}]"


# ---- single values ----


def _mismatch(node: Node, kind: Type) -> _InvalidValue:
    return _InvalidValue(f"must be {in_words(kind)}, not {_kind_in_words(node)}")


def _kind_in_words(node: Node) -> str:
    match node.value:
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case str():
            return "text"
        case _:
            return "nothing"


def _scalar(node: Node, kind: Type, path: str) -> object:
    text, what = node.value, f"must be {in_words(kind)}"
    if not isinstance(text, str):
        raise _InvalidValue(
            what if text is not None and path.endswith(_MAY_BE_SECRET) else f"{what}, not {_kind_in_words(node)}"
        )
    word = text.strip().lower()
    match kind:
        case BoolType() if word in _BOOLEANS:
            return _BOOLEANS[word]
        case IntType() | FloatType() if (number := _number(text, kind)) is not None:
            return number
        case LiteralType() if word in kind.values:  # none of them has a capital letter
            return word
        case StrType() if word and (kind.pattern is None or re.fullmatch(kind.pattern, text)):
            return text
    if not word:
        raise _InvalidValue(f"{what}, not empty")
    if isinstance(kind, StrType) or path.endswith(_MAY_BE_SECRET):
        raise _InvalidValue(what)
    raise _InvalidValue(f"{what}, not {text if len(text) <= _MAX_SHOWN_CHARS else f'{text[:_MAX_SHOWN_CHARS]}…'!r}")


def _number(text: str, kind: IntType | FloatType) -> float | None:
    """Return the number, if it is one and within the bounds."""
    try:
        if isinstance(kind, FloatType):
            value = float(text)
        elif _INTEGER.fullmatch(text.strip()):
            value = int(text)
        else:
            return None
    except ValueError:
        return None
    is_within = (
        math.isfinite(value)
        and (kind.gt is None or value > kind.gt)
        and (kind.ge is None or value >= kind.ge)
        and (kind.lt is None or value < kind.lt)
        and (kind.le is None or value <= kind.le)
    )
    return value if is_within else None


# ---- suggestions ----

_VERY_CLOSE = 0.75


def _hint_for_key(key: str, prefix: str, siblings: Collection[str]) -> str:
    """Return a hint for a key that is not a setting below `prefix`, which ends in a dot or is empty."""
    if "." in key and key in leaves():
        table, _, last = key.rpartition(".")
        return f"write {last} on a line of its own below {table}"
    if close := nearest(key, siblings, cutoff=_VERY_CLOSE):
        return did_you_mean([prefix + close[0]])
    elsewhere: dict[str, dict[str, None]] = {}  # the paths of all settings and tables, by their last names
    for leaf in all_leaves():
        path = ""
        for name in leaf.path.split("."):
            path = f"{path}.{name}" if path else name
            elsewhere.setdefault(name.removesuffix("[]"), {})[path.removesuffix("[]")] = None
    if key in elsewhere:
        return did_you_mean(elsewhere[key])
    if close := nearest(key, siblings):
        return did_you_mean([prefix + close[0]])
    return did_you_mean([path for name in nearest(key, elsewhere, cutoff=_VERY_CLOSE) for path in elsewhere[name]])
