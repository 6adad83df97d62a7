"""Grammars as patterns: what a backend that decodes by JSON Schemas can be held to. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antwort.tools.lark import (
    Choice,
    Literal,
    Node,
    Range,
    Reference,
    Repeated,
    Sequenced,
    Unreadable,
    definitions_of,
)
from antwort.tools.regexes import LONGEST, Expr, Unsupported, in_order, letters, literal, one_of, repeated, rewritten

_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""Terminals that Lark brings."""


def regex_pattern(source: str) -> str | None:
    """The regular expression as a schema's pattern; None where it says more than those can."""
    try:
        return _whole(rewritten(source))
    except (Unsupported, RecursionError):
        return None


def lark_pattern(source: str) -> str | None:
    """The grammar as a schema's pattern. None where there is none: rules that lead back to themselves, among others."""
    try:
        return _whole(_Inlined(definitions_of(source)).rule("start"))
    except (Unsupported, Unreadable, RecursionError):
        return None


def _whole(expression: Expr) -> str:
    pattern = f"^(?:{expression.text})$"
    if len(pattern) > LONGEST:
        raise Unsupported("too long")
    return pattern


class _Inlined:
    """Rules, each written out where it is used."""

    def __init__(self, definitions: Mapping[str, Node | None]) -> None:
        self._definitions = definitions
        self._written: dict[str, Expr] = {}
        self._under_way: set[str] = set()

    def rule(self, name: str) -> Expr:
        if name not in self._written:
            if name in self._under_way or name not in self._definitions:
                raise Unsupported(name)
            self._under_way.add(name)
            node = self._definitions[name]
            self._written[name] = _common(name) if node is None else self._write(node)
            self._under_way.remove(name)
        return self._written[name]

    def _write(self, node: Node) -> Expr:
        match node:
            case Reference():
                found = self.rule(node.name)
            case Literal():
                found = _literal(node)
            case Range():
                found = letters(_character(node.first), _character(node.last))
            case Sequenced():
                found = in_order(self._write(piece) for piece in node.pieces)
            case Choice():
                found = one_of(self._write(choice) for choice in node.choices)
            case Repeated():
                found = repeated(self._write(node.piece), node.least, node.most)
        if len(found.text) > LONGEST:
            raise Unsupported("too long")
        return found


def _common(name: str) -> Expr:
    if name not in _COMMON:
        raise Unsupported(name)
    return rewritten(_COMMON[name])


def _literal(node: Literal) -> Expr:
    if node.is_regex:
        source, _, flags = node.written[1:].rpartition("/")
        return rewritten(source.replace("\\/", "/"), flags=flags)
    any_case = node.written.endswith("i")
    return literal(_text(node.written.removesuffix("i")), any_case=any_case)


def _text(quoted: str) -> str:
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        raise Unsupported(quoted) from None


def _character(quoted: str) -> str:
    text = _text(quoted)
    if len(text) != 1:
        raise Unsupported(quoted)
    return text
