"""Nodes become settings: each is read as its setting's type wants it, and what is wrong is told with path and place."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
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

from antwort.config.hints import hint_for_key
from antwort.config.names import is_token
from antwort.config.nodes import Items, Node, Origin, Table, Text, in_words, is_nothing, kind_in_words
from antwort.config.paths import expanded
from antwort.config.problems import Problem
from antwort.config.repeating import plausible, slip
from antwort.config.secrets import Secret, can_be_sent, may_be_secret, read_secret_file
from antwort.config.shape import fields, is_optional, within, without_none
from antwort.config.shape import in_words as wanted

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WHOLE = re.compile(r"[+-]?[0-9][0-9_]*", re.ASCII)
_PLAIN_KEY = re.compile(r"[\w-]+")
_MAY_BE_SECRET = ("sha256", "url", "key")


class _Faulty:
    """Stands for what could not be read; the problem is written down already."""


FAULTY: Final = _Faulty()


class _Wrong(Exception):
    """What is wrong with a value: how the sentence goes on after its path."""


class Reading:
    """One reading of the settings: it goes on after a problem, so that all are told at once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []
        self.origins: dict[str, str] = {}
        """Of every value that was given, by its path."""
        self.has_secrets_in_file = False

    def read(self, node: Node, kind: Type, path: str) -> object:
        """The value, or `FAULTY`."""
        if is_nothing(node) and is_optional(kind):
            self.origins[path] = node.origin.name
            return None
        kind = without_none(kind)
        if isinstance(kind, StructType):
            return self._struct(node, kind, path)
        self.origins[path] = node.origin.name
        try:
            return self._value(node, kind, path)
        except _Wrong as wrong:
            return self._fault(path, str(wrong), node.origin)

    def _fault(self, path: str, what: str, origin: Origin, hint: str = "") -> _Faulty:
        self.problems.append(Problem(path, what, hint, origin.name))
        return FAULTY

    # ---- tables, lists and maps ----

    def _struct(self, node: Node, kind: StructType, path: str) -> object:
        if is_nothing(node):
            node = Table({}, node.origin)
        if not isinstance(node, Table):
            return self._fault(path, f"must be {wanted(kind)}, not {kind_in_words(node)}", node.origin)
        if path.endswith("]"):
            self.origins[path] = node.origin.name
        prefix = f"{path}." if path else ""
        known = fields(kind)
        for key in [key for key in node.entries if key not in known]:
            self._unknown(key, prefix, known, node.entries[key].origin)
        values = {
            key: self.read(node.entries[key], known[key].type, prefix + key) for key in known if key in node.entries
        }
        missing = [name for name, field in known.items() if field.required and name not in values]
        for name in missing:
            self._fault(prefix + name, "is missing", node.origin)
        return FAULTY if missing or FAULTY in values.values() else self._made(kind, values, path, node.origin)

    def _unknown(self, key: str, prefix: str, known: Collection[str], origin: Origin) -> None:
        head = plausible(key)
        hint = slip(key) or hint_for_key(key, prefix, known)
        if not head:
            self._fault(prefix.rstrip(".") or "the top", "has a key that is not a setting", origin, hint)
        else:
            self._fault(prefix + (head if head == key else f"{head}…"), "is not a setting", origin, hint)

    def _made(self, kind: StructType, values: Mapping[str, object], path: str, origin: Origin) -> object:
        try:
            made: object = kind.cls(**values)
        except ValueError as exc:  # a type's own rules
            return self._fault(path, f"is not right: {exc}", origin)
        return made

    def _value(self, node: Node, kind: Type, path: str) -> object:
        match kind:
            case VarTupleType():
                return self._items(node, kind, path)
            case DictType():
                return self._map(node, kind, path)
            case CustomType():
                return self._secret(node, path)
            case _:
                return _scalar(node, kind, path)

    def _items(self, node: Node, kind: VarTupleType, path: str) -> object:
        if is_nothing(node):
            return ()
        if not isinstance(node, Items):
            raise _Wrong(f"must be {wanted(kind)}, not {kind_in_words(node)}")
        values = tuple(self.read(item, kind.item_type, f"{path}[{at}]") for at, item in enumerate(node.items))
        return FAULTY if FAULTY in values else values

    def _map(self, node: Node, kind: DictType, path: str) -> object:
        if is_nothing(node):
            return {}
        if not isinstance(node, Table):
            raise _Wrong(f"must be {wanted(kind)}, not {kind_in_words(node)}")
        values = {key: self._entry(key, entry, kind, path) for key, entry in node.entries.items()}
        return FAULTY if FAULTY in values.values() else values

    def _entry(self, key: str, node: Node, kind: DictType, path: str) -> object:
        """A key without a value may be both of them, run together."""
        if is_nothing(node) and (hint := slip(key)):
            head = plausible(key)
            return self._fault(f"{path}.{head}…" if head else path, "has no value", node.origin, hint)
        is_shown = is_token(key) or not isinstance(kind.value_type, CustomType)
        return self.read(node, kind.value_type, below(path, key if is_shown else plausible(key)))

    # ---- secrets ----

    def _secret(self, node: Node, path: str) -> Secret:
        """Nothing that is said of it repeats the value."""
        if isinstance(node, Items) or is_nothing(node):
            raise _Wrong(f"must be text, {{env: NAME}} or {{file: PATH}}, not {kind_in_words(node)}")
        if isinstance(node, Table):
            text, origin = self._referred(node)
        else:
            text, origin = node.text.strip(), node.origin.name
            self.has_secrets_in_file |= node.origin.is_file
        if not text:
            raise _Wrong("is empty; leave it out where there is none")
        if not can_be_sent(text):
            raise _Wrong("cannot be sent: it must be one line of printable ASCII")
        self.origins[path] = node.origin.name
        return Secret(text, origin)

    def _referred(self, node: Table) -> tuple[str, str]:
        match [(key, entry) for key, entry in node.entries.items()]:
            case [("env" | "file" as place, Text(text=name))] if may_be_secret(name):
                what = "name of a variable" if place == "env" else "path of a file"
                raise _Wrong(f"must be the {what} where it says `{place}`, and what is there looks like a key itself")
            case [("env", Text(text=name))] if name:
                text = self._environment.get(name, "").strip()
                if not text:
                    raise _Wrong(f"is to come from the variable {name}, which is not set")
                return text, name
            case [("file", Text(text=name))] if name:
                try:
                    file = Path(node.origin.folder) / expanded(name)
                    return read_secret_file(file), str(file)
                except ValueError as exc:
                    raise _Wrong(str(exc)) from exc
            case _:
                raise _Wrong("must be text, {env: NAME} or {file: PATH}")


def below(path: str, key: str) -> str:
    """The path of an entry of a map, whose keys may hold anything."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{key!r}]"


# ---- single values ----


def _scalar(node: Node, kind: Type, path: str) -> object:
    if isinstance(node, Text) and not is_nothing(node):
        for value in _read_as(node.text, kind):
            return value
    what = f"must be {wanted(kind)}"
    if isinstance(node, Text) and node.quoted and not node.text.strip():
        raise _Wrong(f"{what}, not empty")
    if isinstance(node, Text) and (path.endswith(_MAY_BE_SECRET) or isinstance(kind, StrType)):
        raise _Wrong(what)
    raise _Wrong(f"{what}, not {in_words(node)}")


def _read_as(text: str, kind: Type) -> Iterator[object]:
    """The value, or nothing where the text is none of that kind."""
    match kind:
        case BoolType():
            if (word := text.strip().lower()) in _BOOLEANS:
                yield _BOOLEANS[word]
        case IntType() | FloatType():
            if (number := _number(text, kind)) is not None and within(kind, number):
                yield number
        case LiteralType():
            if (word := text.strip().lower()) in kind.values:  # none of them has a capital letter
                yield word
        case StrType():
            if text.strip() and (kind.pattern is None or re.fullmatch(kind.pattern, text)):
                yield text


def _number(text: str, kind: IntType | FloatType) -> float | None:
    try:
        if isinstance(kind, IntType):
            return int(text) if _WHOLE.fullmatch(text.strip()) else None
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
