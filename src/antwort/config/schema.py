"""The tree of settings, read off their types: names, descriptions and bounds, a JSON Schema, and the reference page."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
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

from antwort.config.flags import BY_PATH
from antwort.config.settings import NAME, NAME_IN_WORDS, Settings
from antwort.tools.base import LABEL, LABEL_IN_WORDS

PREFIX = "ANTWORT_"


class Leaf(NamedTuple):
    """A setting with a value of its own. In lists of tables it is one of each entry: `backends[].url`."""

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
        """The name of its environment variable."""
        return PREFIX + self.path.upper().replace(".", "_")


@cache
def root() -> StructType:
    shape = type_info(Settings)
    assert isinstance(shape, StructType)
    return shape


@cache
def leaves() -> Mapping[str, Leaf]:
    """Return what one variable can set, by its path: lists and maps are set as a whole."""
    return {leaf.path: leaf for leaf in _leaves(root(), "")}


@cache
def all_leaves() -> tuple[Leaf, ...]:
    """Return these and the settings of the entries of lists."""
    return tuple(_with_entries(leaves().values()))


def _leaves(struct: StructType, prefix: str) -> Iterator[Leaf]:
    for field in struct.fields:
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield Leaf(prefix + field.name, field, struct.cls)


def _with_entries(given: Iterable[Leaf]) -> Iterator[Leaf]:
    for leaf in given:
        yield leaf
        if isinstance(leaf.kind, VarTupleType) and isinstance(leaf.kind.item_type, StructType):
            yield from _with_entries(_leaves(leaf.kind.item_type, f"{leaf.path}[]."))


def fields(struct: StructType) -> Mapping[str, Field]:
    return {field.name: field for field in struct.fields}


def is_optional(kind: Type) -> bool:
    return isinstance(kind, UnionType)


def without_none(kind: Type) -> Type:
    """Return the type of an optional setting where it is set."""
    if isinstance(kind, UnionType):
        [kind] = [member for member in kind.types if not isinstance(member, NoneType)]
    return kind


def default_of(field: Field) -> object:
    """Return the default of an optional field; `UNSET` if it depends on other settings."""
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return UNSET if default is NODEFAULT else default


# ---- in words ----

_PATTERNS = {NAME: NAME_IN_WORDS, f"^{LABEL}$": LABEL_IN_WORDS, r"^[0-9a-fA-F]{64}$": "64 hexadecimal digits"}


def in_words(kind: Type) -> str:
    """Return what a setting takes, to follow "must be" in a sentence."""
    match without_none(kind):
        case BoolType():
            return "true or false"
        case IntType() as number:
            return f"a whole number{_bounds(number)}"
        case FloatType() as number:
            return f"a number{_bounds(number)}"
        case LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case VarTupleType(item_type=item):
            return "a list of tables" if isinstance(item, StructType) else "a list of texts"
        case DictType(value_type=value):
            names = "settings" if isinstance(value, StructType) else "texts"
            return f"a mapping of names to {'numbers' if isinstance(value, FloatType) else names}"
        case StructType():
            return "a mapping of settings"
        case CustomType():
            return "a secret: text, {env: NAME} or {file: PATH}"
        case StrType(pattern=str(pattern)):
            return _PATTERNS.get(pattern, f"text like {pattern}")
        case _:
            return "text"


def _bounds(kind: IntType | FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    limits = (("more than", kind.gt), ("at least", kind.ge), ("less than", kind.lt), ("at most", kind.le))
    words = " and ".join(f"{word} {bound}" for word, bound in limits if bound is not None)
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def description(owner: type, field: str) -> str:
    """Return the text under a field in the source; empty if there is none."""
    return _descriptions(owner.__module__).get((owner.__name__, field), "")


@cache
def _descriptions(module: str) -> Mapping[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                        found[node.name, name] = inspect.cleandoc(text)
    return found


# ---- JSON Schema, for editors ----

Schema = dict[str, Any]


def schema() -> Schema:
    """Return a JSON Schema of `antwort.yaml`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "antwort.yaml",
        **_schema(root()),
    }


def _schema(kind: Type) -> Schema:
    match kind:
        case UnionType():
            return {"anyOf": [_schema(without_none(kind)), {"type": "null"}]}
        case StructType():
            properties = {field.name: _field_schema(field, kind.cls) for field in kind.fields}
            made = {"type": "object", "properties": properties, "additionalProperties": False}
            required = [field.name for field in kind.fields if field.required]
            return {**made, "required": required} if required else made
        case VarTupleType():
            return {"type": "array", "items": _schema(kind.item_type)}
        case DictType():
            return {"type": "object", "additionalProperties": _schema(kind.value_type)}
        case CustomType():
            env, file = _reference("env", "The variable that holds it."), _reference("file", "The file that holds it.")
            return {"anyOf": [{"type": "string", "minLength": 1}, env, file]}
        case BoolType():
            return {"type": "boolean"}
        case LiteralType():
            return {"enum": list(kind.values)}
        case IntType() | FloatType():
            names = {"minimum": kind.ge, "exclusiveMinimum": kind.gt, "maximum": kind.le, "exclusiveMaximum": kind.lt}
            bounds = {name: bound for name, bound in names.items() if bound is not None}
            return {"type": "integer" if isinstance(kind, IntType) else "number", **bounds}
        case StrType(pattern=str(pattern)):
            return {"type": "string", "pattern": pattern}
        case _:
            return {"type": "string", "minLength": 1}


def _field_schema(field: Field, owner: type) -> Schema:
    made: Schema = {}
    if text := description(owner, field.name):
        made["description"] = text
    if not field.required and not isinstance(field.type, StructType) and (default := default_of(field)) is not UNSET:
        made["default"] = msgspec.to_builtins(default)
    return {**made, **_schema(field.type)}


def _reference(name: str, text: str) -> Schema:
    properties = {name: {"type": "string", "description": text}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


# ---- the reference page ----


def reference() -> str:
    """Return Markdown: a section for each table of settings, in the order of the file, and a row for each setting."""
    sections: dict[str, list[Leaf]] = {}
    for leaf in all_leaves():
        sections.setdefault(leaf.path.rpartition(".")[0], []).append(leaf)
    return "\n\n".join("\n".join(_section(name, rows)) for name, rows in sections.items()) + "\n"


def _section(name: str, rows: list[Leaf]) -> Iterator[str]:
    yield from (f"## `{name}`" if name else "## At the top", "")
    if about := (rows[0].owner.__doc__ or "").strip():
        yield from (about, "")
    yield from ("| setting | takes | default | variable and flag | |", "|---|---|---|---|---|")
    for leaf in rows:
        takes = in_words(leaf.field.type).replace("{", "`{", 1).replace("} or {", "}` or `{").replace("PATH}", "PATH}`")
        text = " ".join(description(leaf.owner, leaf.field.name).split())
        cells = (f"`{leaf.path}`", takes, _default(leaf.field), "<br>".join(_ways(leaf)), text)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default(field: Field) -> str:
    from antwort.config.shown import written

    if field.required:
        return "required"
    value = default_of(field)
    if value is UNSET or (value is None and is_optional(field.type)):
        return "unset"
    return f"`{written(msgspec.to_builtins(value))}`"


def _ways(leaf: Leaf) -> Iterator[str]:
    """Yield the variables and the flag of a setting. Settings of the entries of lists have none."""
    if "[]" not in leaf.path:
        yield f"`{leaf.variable}`"
        if leaf.is_secret:
            yield f"`{leaf.variable}_FILE`"
        if flag := BY_PATH.get(leaf.path):
            yield f"`{flag}`"
