"""A place in a JSON text that is still coming. Pure.

What reads is a generator that stops where the text ends, and goes on when it is called again and there is more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeAlias

Reading: TypeAlias = Generator[None, None, None]
Show: TypeAlias = Callable[[str], None]
"""Is given what was read, piece by piece as it comes."""

_SPACE = re.compile(r"[ \t\r\n]*")
_TURN = re.compile(r'["{}\[\]]')
_QUOTED = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")

_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE = re.compile(rf"{_HIGH}{_LOW}|\\u{_HEX}{{4}}|\\.", re.DOTALL)
_PARTIAL = re.compile(rf"(?:\\(?:u{_HEX}{{0,3}})?|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)\Z")
"""What may yet become an escape, or the first half of a pair, once there is more."""


class OtherForm(Exception):
    """The text is not what was looked for."""


class Cursor:
    def __init__(self) -> None:
        self.text = ""
        """What came and was not taken."""
        self._at = 0

    def feed(self, text: str) -> None:
        self.text += text

    def take(self) -> str:
        """What was read since the last time; it is gone from `text`."""
        read, self.text, self._at = self.text[: self._at], self.text[self._at :], 0
        return read

    # ---- marks ----

    def peek(self) -> Generator[None, None, str]:
        """What stands behind the space; the space is read."""
        while True:
            if found := _SPACE.match(self.text, self._at):
                self._at = found.end()
            if self._at < len(self.text):
                return self.text[self._at]
            yield

    def expect(self, mark: str) -> Reading:
        if (yield from self.peek()) != mark:
            raise OtherForm
        self._at += 1

    def fence(self) -> Reading:
        """The opening of a block of code, and what it is said to be."""
        for mark in "```":
            yield from self.expect(mark)
        while (yield from self.peek()).isalpha():
            self._at += 1

    def word(self, word: str) -> Reading:
        """These very characters, next to each other."""
        yield from self.peek()
        while not self.text.startswith(word, self._at):
            if not word.startswith(self.text[self._at :]):
                raise OtherForm
            yield
        self._at += len(word)

    def told_until(self, word: str, show: Show) -> Reading:
        """What comes before the word is shown as it comes, and taken with it."""
        while (end := self.text.find(word, self._at)) < 0:
            self._at = len(self.text) - _begun(word, self.text)
            self._show(show)
            yield
        self._at = end
        self._show(show)
        self._at = len(word)
        self.take()

    def _show(self, show: Show) -> None:
        if piece := self.take():
            show(piece)

    def key(self) -> Generator[None, None, str]:
        """A key of an object, and its colon."""
        name = yield from self.string()
        yield from self.expect(":")
        return name

    # ---- strings ----

    def string(self) -> Generator[None, None, str]:
        """A whole one, which is not taken yet: it can still be told as it came."""
        yield from self.expect('"')
        parts: list[str] = []
        yield from self._characters(parts.append)
        return "".join(parts)

    def told_string(self, show: Show) -> Reading:
        """A string whose characters are shown, and taken, as they come."""
        yield from self.expect('"')
        self.take()

        def tell(piece: str) -> None:
            self.take()
            show(piece)

        yield from self._characters(tell)
        self.take()

    def _characters(self, show: Show) -> Reading:
        """Up to the closing quote, unescaped. A half of a pair that stands alone is no character."""
        parts: list[str] = []
        while True:
            found = _QUOTED.search(self.text, self._at)
            end = found.start() if found else len(self.text)
            parts.append(self.text[self._at : end])
            self._at = end
            is_over = found is not None and found.group() == '"'
            if is_over or found is None or _PARTIAL.match(self.text, end):
                if piece := "".join(parts):
                    show(piece)
                parts = []
                if is_over:
                    self._at += 1
                    return
                yield
            else:
                parts.append(self._escape())

    def _escape(self) -> str:
        found = _ESCAPE.match(self.text, self._at)
        raw = found.group() if found else "\\"
        self._at += len(raw)
        return _unescaped(raw)

    # ---- values ----

    def value(self) -> Generator[None, None, str]:
        """A whole one as it is written, which is not taken yet."""
        yield from self.peek()
        begin = self._at
        yield from self._over_value(_nothing)
        return self.text[begin : self._at]

    def told_value(self, show: Show) -> Reading:
        """A value that is shown as it is written, and taken, as it comes."""
        yield from self.peek()
        self.take()
        yield from self._over_value(lambda: self._show(show))
        self._show(show)

    def _over_value(self, pause: Callable[[], None]) -> Reading:
        """Only its end is looked for: whether it is sound is for others to say."""
        if self.text[self._at] not in '"{[':
            yield from self._over_scalar(pause)
            return
        depth, is_quoted = 0, False
        while True:
            found = (_QUOTED if is_quoted else _TURN).search(self.text, self._at)
            if found is None or (found.group() == "\\" and found.end() == len(self.text)):
                self._at = len(self.text) if found is None else found.start()
                pause()
                yield
                continue
            self._at = found.end()
            match found.group():
                case "\\":
                    self._at += 1
                case '"':
                    is_quoted = not is_quoted
                case "{" | "[":
                    depth += 1
                case _:
                    depth -= 1
            if depth <= 0 and not is_quoted:
                return

    def _over_scalar(self, pause: Callable[[], None]) -> Reading:
        if not _SCALAR.match(self.text, self._at):
            raise OtherForm
        while True:
            if found := _SCALAR.match(self.text, self._at):
                self._at = found.end()
            if self._at < len(self.text):
                return
            pause()
            yield


def _begun(word: str, text: str) -> int:
    """How many characters at the end of the text may be the beginning of the word."""
    return next((size for size in range(len(word) - 1, 0, -1) if text.endswith(word[:size])), 0)


def _nothing() -> None:
    pass


def _unescaped(escape: str) -> str:
    """What an escape stands for; one that stands for nothing is left as it is."""
    try:
        character: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return "\N{REPLACEMENT CHARACTER}" if "\ud800" <= character[0] <= "\udfff" else character
