"""The words and the definitions of a Lark grammar. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

_WORD = re.compile(
    r"""(?P<skip>[ \t\f\r]+|//[^\n]*|\#[^\n]*)
    |(?P<line>\n\s*)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<regex>/(?:[^/\\]|\\.)++/[a-z]*)
    |(?P<unclosed>"(?:[^"\\\n]|\\.)*+|/(?:[^/\\]|\\.)*+)
    |(?P<name>[!?]{0,2}[A-Za-z_][A-Za-z0-9_]*)
    |(?P<directive>%[a-z_]+)
    |(?P<number>[0-9]+)
    |(?P<mark>->|\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
"""Every alternative takes what it has looked at, whatever comes then: the time is that of the length."""


class Word(NamedTuple):
    kind: str
    text: str


class Unreadable(Exception):
    """A grammar that says more than what is read here, or that is none."""


def words_of(source: str) -> Iterator[Word]:
    """The words of a grammar. Anything has words: whether they make sense is another question."""
    for found in _WORD.finditer(source):
        if found.lastgroup is not None and found.lastgroup != "skip":
            yield Word(found.lastgroup, found[0])


# ---- definitions ----


class Reference(msgspec.Struct, frozen=True):
    name: str


class Literal(msgspec.Struct, frozen=True):
    """A string or a regular expression, as it is written."""

    written: str
    is_regex: bool = False


class Range(msgspec.Struct, frozen=True):
    first: str
    last: str


class Sequenced(msgspec.Struct, frozen=True):
    pieces: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True):
    choices: tuple[Node, ...]


class Repeated(msgspec.Struct, frozen=True):
    """`most` is None for no end."""

    piece: Node
    least: int
    most: int | None


Node: TypeAlias = Reference | Literal | Range | Sequenced | Choice | Repeated

_SUFFIXES: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ENDS = (Word("mark", "|"), Word("mark", ")"), Word("mark", "]"))
_DEEPEST = 50


def definitions_of(source: str) -> Mapping[str, Node | None]:
    """What the grammar defines, by name. None: imported from the terminals that Lark brings."""
    return _Reader(list(words_of(source))).definitions()


class _Reader:
    def __init__(self, words: Sequence[Word]) -> None:
        self._words, self._at, self._depth = words, 0, 0
        self._found: dict[str, Node | None] = {}

    def definitions(self) -> Mapping[str, Node | None]:
        while (word := self._next()) is not None:
            if word.kind == "directive" and word.text == "%import":
                self._import()
            elif word.kind == "name":
                self._define(word.text.lstrip("!?"))
            elif word.kind != "line":
                raise Unreadable(word.text)
        return self._found

    def _import(self) -> None:
        """`%import common.WS`, `%import common.WS -> SPACE`, `%import common (WS, INT)`."""
        self._expect("common")
        if self._skip("("):
            while not self._skip(")"):
                self._found[self._name()] = None
                self._skip(",")
            return
        self._expect(".")
        name = self._name()
        if self._peek() == Word("mark", "->"):
            raise Unreadable("->")
        self._found[name] = None

    def _define(self, name: str) -> None:
        self._expect(":")
        if name in self._found:
            raise Unreadable(name)
        self._found[name] = self._choice()

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("too deeply nested")
        choices = [self._sequence()]
        while self._goes_on():
            choices.append(self._sequence())
        self._depth -= 1
        return choices[0] if len(choices) == 1 else Choice(tuple(choices))

    def _goes_on(self) -> bool:
        """A choice may go on in the next line."""
        at = self._at
        while self._peek_kind() == "line":
            self._at += 1
        if self._skip("|"):
            return True
        self._at = at
        return False

    def _sequence(self) -> Node:
        pieces: list[Node] = []
        while (word := self._peek()) is not None and word.kind != "line" and word not in _ENDS:
            self._at += 1
            if word == Word("mark", "->"):
                self._name()
            else:
                pieces.append(self._repeats(self._piece(word)))
        return pieces[0] if len(pieces) == 1 else Sequenced(tuple(pieces))

    def _piece(self, word: Word) -> Node:
        if word.kind == "name" and word.text[0] not in "!?":
            return Reference(word.text)
        if word.kind == "string":
            return self._range(word.text) if self._skip("..") else Literal(word.text)
        if word.kind == "regex":
            return Literal(word.text, is_regex=True)
        if word.kind == "mark" and word.text in ("(", "["):
            inside = self._choice()
            self._expect(")" if word.text == "(" else "]")
            return inside if word.text == "(" else Repeated(inside, 0, 1)
        raise Unreadable(word.text)

    def _range(self, first: str) -> Range:
        last = self._next()
        if last is None or last.kind != "string":
            raise Unreadable("..")
        return Range(first, last.text)

    def _repeats(self, piece: Node) -> Node:
        while (word := self._peek()) is not None:
            if word.kind == "mark" and word.text in _SUFFIXES:
                self._at += 1
                piece = Repeated(piece, *_SUFFIXES[word.text])
            elif self._skip("~"):
                least = self._number()
                piece = Repeated(piece, least, self._number() if self._skip("..") else least)
            else:
                break
        return piece

    # ---- the words ----

    def _peek(self) -> Word | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _peek_kind(self) -> str:
        word = self._peek()
        return "" if word is None else word.kind

    def _next(self) -> Word | None:
        word = self._peek()
        self._at += 1
        return word

    def _skip(self, mark: str) -> bool:
        is_there = self._peek() == Word("mark", mark)
        self._at += is_there
        return is_there

    def _expect(self, text: str) -> None:
        word = self._next()
        if word is None or word.text != text:
            raise Unreadable(text)

    def _name(self) -> str:
        word = self._next()
        if word is None or word.kind != "name":
            raise Unreadable("a name")
        return word.text

    def _number(self) -> int:
        word = self._next()
        if word is None or word.kind != "number" or len(word.text) > 5:
            raise Unreadable("a number")
        return int(word.text)
