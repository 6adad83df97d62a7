"""The shape of the settings, read off their types: which there are, how they are named, what they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec import NODEFAULT, UNSET
from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from antwort.config.names import NAME, NAME_IN_WORDS
from antwort.config.settings import Settings
from antwort.tools.base import LABEL, LABEL_IN_WORDS

PREFIX = "ANTWORT_"


class Leaf(NamedTuple):
    """A setting that has a value of its own. In lists of tables it is one of each entry: `backends[].url`."""

    path: str
    field: Field
    owner: type

    @property
    def kind(self) -> Type:
        return without_none(self.field.type)

    @property
    def is_secret(self) -> bool:
        return isinstance(self.kind, CustomType)

    @property
    def variable(self) -> str:
        """The name of its variable in the environment."""
        return variable_of(self.path)


def variable_of(path: str) -> str:
    return PREFIX + path.upper().replace(".", "_")


@cache
def root() -> StructType:
    shape = type_info(Settings)
    assert isinstance(shape, StructType)
    return shape


def without_none(kind: Type) -> Type:
    """The type of an optional setting where it is set."""
    if isinstance(kind, UnionType):
        [kind] = [member for member in kind.types if not isinstance(member, NoneType)]
    return kind


def is_optional(kind: Type) -> bool:
    return isinstance(kind, UnionType)


def entry_of(kind: Type) -> StructType | None:
    """The table that each entry of a list of tables is."""
    kind = without_none(kind)
    if isinstance(kind, VarTupleType) and isinstance(kind.item_type, StructType):
        return kind.item_type
    return None


def fields(struct: StructType) -> Mapping[str, Field]:
    return {field.name: field for field in struct.fields}


@cache
def leaves() -> Mapping[str, Leaf]:
    """What can be set by one variable, by its path: lists and maps are set as a whole."""
    return {leaf.path: leaf for leaf in _leaves(root(), "")}


@cache
def all_leaves() -> tuple[Leaf, ...]:
    """These and what stands in the entries of lists."""
    return tuple(_with_entries(leaves().values()))


def _leaves(struct: StructType, prefix: str) -> Iterator[Leaf]:
    for field in struct.fields:
        path = prefix + field.name
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, f"{path}.")
        else:
            yield Leaf(path, field, struct.cls)


def _with_entries(given: Iterable[Leaf]) -> Iterator[Leaf]:
    for leaf in given:
        yield leaf
        if entry := entry_of(leaf.field.type):
            yield from _with_entries(_leaves(entry, f"{leaf.path}[]."))


def default_of(field: Field) -> object:
    """Of a field that need not be given; `UNSET` where what holds then depends on other settings."""
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return UNSET if default is NODEFAULT else default


# ---- in words ----

_PATTERNS = {
    NAME: NAME_IN_WORDS,
    f"^{LABEL}$": LABEL_IN_WORDS,
    r"^[0-9a-fA-F]{64}$": "64 hexadecimal digits",
}


def in_words(kind: Type) -> str:
    """What a setting takes, as a sentence goes on after "must be"."""
    kind = without_none(kind)
    match kind:
        case BoolType():
            return "true or false"
        case IntType():
            return f"a whole number{bounds(kind)}"
        case FloatType():
            return f"a number{bounds(kind)}"
        case LiteralType():
            return f"one of {', '.join(str(value) for value in kind.values)}"
        case VarTupleType():
            return "a list of tables" if isinstance(kind.item_type, StructType) else "a list of texts"
        case DictType():
            return f"a mapping of names to {_values_in_words(kind.value_type)}"
        case StructType():
            return "a mapping of settings"
        case CustomType():
            return "a secret: text, {env: NAME} or {file: PATH}"
        case StrType(pattern=pattern) if pattern is not None:
            return _PATTERNS.get(pattern, f"text like {pattern}")
        case _:
            return "text"


def _values_in_words(kind: Type) -> str:
    if isinstance(kind, StructType):
        return "settings"
    return "numbers" if isinstance(kind, FloatType) else "texts"


def bounds(kind: IntType | FloatType) -> str:
    """With a space before it; empty where there are none."""
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    limits = (("more than", kind.gt), ("at least", kind.ge), ("less than", kind.lt), ("at most", kind.le))
    words = " and ".join(f"{word} {bound}" for word, bound in limits if bound is not None)
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def within(kind: IntType | FloatType, value: float) -> bool:
    return (
        (kind.gt is None or value > kind.gt)
        and (kind.ge is None or value >= kind.ge)
        and (kind.lt is None or value < kind.lt)
        and (kind.le is None or value <= kind.le)
    )
