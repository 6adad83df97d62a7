"""Regular expressions in the form that JSON Schema's `pattern` has everywhere. Pure.

Grammars hold those of Rust, schemas those of ECMAScript, and what decodes by a schema knows the plain part of both:
letters, classes, groups, alternatives, repetition. `rewritten` gives an expression in that part. Classes such as `\\w`
become their ASCII letters, so it may take a little less than the original, and never more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

LONGEST = 16_384
"""Characters of a pattern. Rules that are written out where they are used may grow beyond all bounds."""
_MOST_REPEATS = 10_000
_BRACED = re.compile(r"\{([0-9A-Fa-f]{1,8})\}")
_DIGITS = {digits: re.compile(f"([0-9A-Fa-f]{{{digits}}})") for digits in (2, 4, 8)}
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \\t\\n\\r\\x0c\\x0b"}
_ALL_SPACE = _CLASSES["s"] + "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space, beyond ASCII too: what is none of it must be none of that. Of letters and digits there are too many."""


class Unsupported(Exception):
    """What a schema's pattern cannot say, or not everywhere."""


class Expr(NamedTuple):
    """A piece of a pattern, and how tightly it holds together."""

    text: str
    is_atom: bool = False
    has_alternatives: bool = False


EMPTY = Expr("")


def one_of(choices: Iterable[Expr]) -> Expr:
    found = _bounded(choices)
    if len(found) == 1:
        return found[0]
    return Expr("|".join(choice.text for choice in found), has_alternatives=True)


def in_order(pieces: Iterable[Expr]) -> Expr:
    found = _bounded(piece for piece in pieces if piece.text)
    if len(found) == 1:
        return found[0]
    return Expr("".join(_grouped(piece) if piece.has_alternatives else piece.text for piece in found))


def _bounded(pieces: Iterable[Expr]) -> list[Expr]:
    """All of them, unless they come to too much: then none is made any more."""
    found: list[Expr] = []
    length = 0
    for piece in pieces:
        found.append(piece)
        length += len(piece.text) + 1
        if length > LONGEST:
            raise Unsupported("too long")
    return found


def repeated(piece: Expr, least: int, most: int | None) -> Expr:
    """`most` is None for no end."""
    if not piece.text:
        return piece
    return Expr((piece.text if piece.is_atom else _grouped(piece)) + _times(least, most))


def literal(text: str, *, any_case: bool = False) -> Expr:
    return in_order(_letter(char, any_case=any_case) for char in text)


def letters(first: str, last: str) -> Expr:
    """One character of a range."""
    if ord(first) > ord(last):
        raise Unsupported("an empty range")
    return Expr(f"[{_in_class(first)}-{_in_class(last)}]", is_atom=True)


def rewritten(source: str, *, flags: str = "") -> Expr:
    """The regular expression as part of a pattern."""
    if set(flags) - set("is"):
        raise Unsupported("flags")
    return _Reader(source, any_case="i" in flags, dot_all="s" in flags).read()


def _grouped(piece: Expr) -> str:
    return f"(?:{piece.text})"


def _times(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _ if most is None:
            return f"{{{least},}}"
        case _ if least == most:
            return f"{{{least}}}"
        case _:
            return f"{{{least},{most}}}"


def _letter(char: str, *, any_case: bool) -> Expr:
    cases = _cases(char) if any_case else char
    if len(cases) > 1:
        return Expr(f"[{cases}]", is_atom=True)
    written = _WRITTEN.get(char) or (_hex(char) if ord(char) < 32 else f"\\{char}" if char in _SPECIAL else char)
    return Expr(written, is_atom=True)


def _cases(char: str) -> str:
    if char.isascii():
        return "".join(sorted({char.lower(), char.upper()})) if char.isalpha() else char
    if char.lower() != char.upper():
        raise Unsupported("cases beyond ASCII")
    return char


def _in_class(char: str) -> str:
    """By their number where some readers of classes know no escape."""
    return _WRITTEN.get(char) or (
        _hex(char) if ord(char) < 32 or char in "-^" else f"\\{char}" if char in "\\[]" else char
    )


def _hex(char: str) -> str:
    return f"\\x{ord(char):02x}"


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, source: str, *, any_case: bool, dot_all: bool) -> None:
        self._source, self._at = source, 0
        self._any_case, self._dot_all = any_case, dot_all

    def read(self) -> Expr:
        """An anchor at either end says what holds anyway: the whole text is meant."""
        self._skip("^")
        found = self._alternatives()
        if self._at < len(self._source):
            self._refuse("a closing bracket that nothing opened")
        return found

    def _alternatives(self) -> Expr:
        choices = [self._sequence()]
        while self._skip("|"):
            choices.append(self._sequence())
        return one_of(choices)

    def _sequence(self) -> Expr:
        pieces: list[Expr] = []
        while (char := self._peek()) and char not in "|)":
            if char == "$" and self._at + 1 == len(self._source):
                self._at += 1
                break
            pieces.append(self._repeats(self._piece()))
        return in_order(pieces)

    def _repeats(self, piece: Expr) -> Expr:
        while self._peek() in ("*", "+", "?", "{"):
            match self._next():
                case "*":
                    piece = repeated(piece, 0, None)
                case "+":
                    piece = repeated(piece, 1, None)
                case "?":
                    piece = repeated(piece, 0, 1)
                case _:
                    piece = repeated(piece, *self._bounds())
            self._skip("?")  # how eagerly it matches does not change what it matches
        return piece

    def _bounds(self) -> tuple[int, int | None]:
        end = self._source.find("}", self._at)
        inside, self._at = self._source[self._at : end], end + 1
        least, comma, most = inside.partition(",")
        if end < 0 or not least.isdecimal() or not (most.isdecimal() or not most):
            self._refuse("a repetition that cannot be read")
        top = (int(most) if most else None) if comma else int(least)
        if max(int(least), top or 0) > _MOST_REPEATS or (top is not None and top < int(least)):
            self._refuse("a repetition out of bounds")
        return int(least), top

    def _piece(self) -> Expr:
        char = self._next()
        if char in "^$*+?{":
            self._refuse(f"{char} in this place")
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return Expr("[\\x00-\U0010ffff]" if self._dot_all else "[^\\n]", is_atom=True)
            case "\\":
                return self._escape()
            case _:
                return _letter(char, any_case=self._any_case)

    def _group(self) -> Expr:
        before = self._any_case, self._dot_all
        if self._skip("?") and not self._skip(":"):
            is_closed = self._flags_or_name()
            if is_closed:
                return EMPTY  # flags that hold from here on
        inside = self._alternatives()
        if not self._skip(")"):
            self._refuse("a group that is not closed")
        self._any_case, self._dot_all = before
        return Expr(_grouped(inside), is_atom=True) if inside.text else EMPTY

    def _flags_or_name(self) -> bool:
        """Behind `(?`: a name, which says nothing, or flags. Whether the bracket is closed already."""
        is_named = self._skip("P<") or (self._peek_two() not in ("<=", "<!") and self._skip("<"))
        if is_named:
            end = self._source.find(">", self._at)
            self._at = end + 1 if end > 0 else len(self._source)
            return False
        while (flag := self._next()) in ("i", "s", "u"):
            self._any_case, self._dot_all = self._any_case or flag == "i", self._dot_all or flag == "s"
        if flag not in (")", ":"):
            self._refuse("what stands at the beginning of a group")
        return flag == ")"

    def _escape(self) -> Expr:
        char = self._next()
        if char in _CLASSES:
            return Expr(f"[{_CLASSES[char]}]", is_atom=True)
        if char == "S":
            return Expr(f"[^{_ALL_SPACE}]", is_atom=True)
        return _letter(self._escaped(char), any_case=self._any_case)

    def _escaped(self, char: str) -> str:
        """The character that stands behind a backslash, `char` being the first of what does."""
        if char in _NAMED:
            return _NAMED[char]
        if char in ("x", "u", "U"):
            return self._numbered({"x": 2, "u": 4, "U": 8}[char])
        if not char or char.isalnum():
            self._refuse(f"the escape \\{char}")
        return char

    def _numbered(self, digits: int) -> str:
        found = (_BRACED if self._peek() == "{" else _DIGITS[digits]).match(self._source, self._at)
        number = int(found[1], 16) if found else sys.maxunicode + 1
        if found is None or number > sys.maxunicode or 0xD800 <= number < 0xE000:
            self._refuse("a character's number")
        self._at = found.end()
        return chr(number)

    def _class(self) -> Expr:
        is_negated = self._skip("^")
        if is_negated and self._any_case:
            self._refuse("a negated class in any case, where letters beyond ASCII count as cases of others")
        members: list[str] = []
        while not members or self._peek() != "]":
            members.append(self._member(is_negated=is_negated))
        self._at += 1
        if not is_negated and _is_all(members):
            return Expr("[\\x00-\U0010ffff]", is_atom=True)
        if any(member.startswith("^") for member in members):
            self._refuse("a negated class inside a class")
        return Expr(f"[{'^' if is_negated else ''}{''.join(members)}]", is_atom=True)

    def _member(self, *, is_negated: bool) -> str:
        """One entry of a class; a negated one with a `^` in front."""
        if (inside := self._shorthand()) is not None:
            return self._outside(inside) if is_negated else inside
        first = self._class_letter()
        is_range = self._peek() == "-" and self._source[self._at + 1 : self._at + 2] not in ("]", "")
        if not is_range:
            return "".join(map(_in_class, _cases(first))) if self._any_case else _in_class(first)
        self._at += 1
        if self._any_case or self._shorthand() is not None:
            self._refuse("a range of this kind")
        last = self._class_letter()
        if ord(first) > ord(last):
            self._refuse("an empty range")
        return f"{_in_class(first)}-{_in_class(last)}"

    def _outside(self, inside: str) -> str:
        if inside != _CLASSES["s"]:
            self._refuse("all but letters or digits, of which there are more than those of ASCII")
        return _ALL_SPACE

    def _shorthand(self) -> str | None:
        escape = self._peek_two()
        if escape[:1] != "\\" or escape[1:].lower() not in _CLASSES:
            return None
        self._at += 2
        return ("^" if escape[1].isupper() else "") + _CLASSES[escape[1].lower()]

    def _class_letter(self) -> str:
        char = self._next()
        is_set = char in ("&", "~", "-") and self._peek() == char
        if not char or char == "[" or is_set or self._peek_two() == "--":
            self._refuse("a class that is not plain")
        return self._escaped(self._next()) if char == "\\" else char

    # ---- the source ----

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _peek_two(self) -> str:
        return self._source[self._at : self._at + 2]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        is_there = self._source.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _refuse(self, what: str) -> NoReturn:
        raise Unsupported(f"{what}, at {self._at}")


def _is_all(members: Sequence[str]) -> bool:
    """`[\\s\\S]` and the like: any character at all."""
    return any(f"^{member}" in members for member in members)
