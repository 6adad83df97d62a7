"""The text of Codex's config.toml, changed in a few places and nowhere else. Pure.

The text is cut into statements with the parser itself as the judge of where one ends. What is changed is then read
again as a whole: it must say what was there before and what was to be changed, and nothing else.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = str | int

PROVIDER = "antwort"
_HEADER = f"[model_providers.{PROVIDER}]"
_TABLES = "model_providers"
_ODD = "is written in a way that cannot be changed safely"
_LONGEST_STATEMENT = 2000
"""Lines; so that an odd file takes no quadratic time."""


class Unsure(Exception):
    """The file is not one that can be changed safely; the message goes on after its name."""


class Block(NamedTuple):
    """What makes Codex use a server."""

    top: Mapping[str, Value]
    """Keys at the file's beginning."""
    provider: Mapping[str, Value]
    """Keys that the provider must have."""
    usual: Mapping[str, Value]
    """Keys that a new provider gets; in one that is there they are the user's own."""
    unwanted: Mapping[str, Value]
    """Keys that go when they have just this value."""

    @property
    def table(self) -> str:
        """The provider as a new table of its own."""
        return "\n".join([_HEADER, *_lines({"name": PROVIDER, **self.provider, **self.usual})])

    def __str__(self) -> str:
        return "\n".join([*_lines(self.top), "", self.table])


def _lines(values: Mapping[str, Value]) -> Iterator[str]:
    return (f"{key} = {written(value)}" for key, value in values.items())


def written(value: Value) -> str:
    """As TOML; its basic strings are those of JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Statement(NamedTuple):
    text: str
    says: Mapping[str, Any]
    """Empty for comments and blank lines."""

    @property
    def is_header(self) -> bool:
        return self.text.lstrip().startswith("[")


def changed(text: str, block: Block) -> str:
    """The text with the block in it; the same text where it says all of that already. Raises `Unsure`."""
    before = _read(text)
    if not text.strip():
        return f"{block}\n"
    end = "\r\n" if "\r\n" in text else "\n"
    added = "" if text.endswith("\n") or not text else end
    statements = list(_statements(text + added))
    first = next((at for at, each in enumerate(statements) if each.is_header), len(statements))
    top, tables = statements[:first], statements[first:]
    _refuse_other_forms(top, tables)
    edited = "".join([*_with(top, block.top, end, is_top=True), *_tables(tables, block, end)])
    if added and edited.endswith(statements[-1].text):  # a last line without an end stays one
        edited = edited.removesuffix(added)
    if not _says(edited, _expected(before, block)):
        raise Unsure(_ODD)
    return edited


def _says(text: str, expected: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise Unsure(f"is not valid TOML: {exc}") from exc


def _statements(text: str) -> Iterator[_Statement]:
    """A statement ends with the first line at which it is one."""
    pending = ""
    lines = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        pending, lines = pending + line, lines + 1
        try:
            says = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            if lines > _LONGEST_STATEMENT:
                raise Unsure("has a value that is too long to be changed safely") from None
            continue
        yield _Statement(pending, says)
        pending, lines = "", 0
    if pending:
        raise Unsure(_ODD)


def _refuse_other_forms(top: Sequence[_Statement], tables: Sequence[_Statement]) -> None:
    """A provider can be written in other forms than as a table of its own; those are left alone."""
    if any(_TABLES in each.says for each in top):
        raise Unsure(f"has {_TABLES} in a form other than {_HEADER}")
    inside = False
    for each in tables:
        if each.is_header:
            inside = each.says == {_TABLES: {}}
        elif inside and PROVIDER in each.says:
            raise Unsure(f"has the provider {PROVIDER!r} in a form other than {_HEADER}")


def _tables(tables: Sequence[_Statement], block: Block, end: str) -> Iterator[str]:
    at = next((at for at, each in enumerate(tables) if each.says == {_TABLES: {PROVIDER: {}}}), None)
    if at is None:
        yield from (each.text for each in tables)
        yield end.join(["", *block.table.split("\n"), ""])
        return
    last = next((n for n, each in enumerate(tables) if n > at and each.is_header), len(tables))
    yield from (each.text for each in tables[: at + 1])
    own = [each for each in tables[at + 1 : last] if not _is_unwanted(each, block)]
    yield from _with(own, block.provider, end, is_top=False)
    yield from (each.text for each in tables[last:])


def _is_unwanted(statement: _Statement, block: Block) -> bool:
    return any(statement.says == {key: value} for key, value in block.unwanted.items())


def _with(statements: Sequence[_Statement], values: Mapping[str, Value], end: str, *, is_top: bool) -> Iterator[str]:
    """The statements with the values in them: changed where they stand, or else added after the last that says
    something. At the top of a file that says nothing there, they come before all else.
    """
    there = {key for each in statements for key in each.says}
    missing = "".join(f"{line}{end}" for line in _lines({key: values[key] for key in values if key not in there}))
    place = max((at for at, each in enumerate(statements) if each.says), default=-1)
    if missing and place < 0:
        yield missing + (end if is_top else "")
    for at, each in enumerate(statements):
        yield _set(each, values)
        if missing and at == place:
            yield missing


def _set(statement: _Statement, values: Mapping[str, Value]) -> str:
    for key, value in values.items():
        if key in statement.says and statement.says[key] != value:
            return _replaced(statement.text, key, value)
    return statement.text


def _replaced(text: str, key: str, value: Value) -> str:
    """Only the value goes; what stands around it, a comment too, stays."""
    found = re.fullmatch(
        rf"""(?P<before>\s*(?:{key}|"{key}"|'{key}')\s*=\s*)(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\d+)(?P<after>\s*(?:\#.*)?)""",
        text,
        re.DOTALL,
    )
    if found is None:
        raise Unsure(f"has {key} in a form that cannot be changed safely")
    return f"{found['before']}{written(value)}{found['after']}"


def _expected(before: Mapping[str, Any], block: Block) -> dict[str, Any]:
    providers = dict(before.get(_TABLES, {}))
    own = providers.get(PROVIDER)
    if not isinstance(own, dict | None):
        raise Unsure(_ODD)
    kept = {} if own is None else {key: value for key, value in own.items() if block.unwanted.get(key) != value}
    usual = {"name": PROVIDER, **block.usual} if own is None else {}
    providers[PROVIDER] = {**kept, **block.provider, **usual}
    return {**before, **block.top, _TABLES: providers}
