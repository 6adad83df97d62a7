"""The input of a free-form tool, out of the JSON that a Chat backend writes for it: `{"input": "…"}`. Pure.

What has been given out is never taken back, so nothing is given out before it is certain. In the usual form that is
every piece as it comes; other things that models write are read when they are whole.
"""

from __future__ import annotations

import json
import re
from typing import Literal, TypeAlias

import msgspec

from antwort.tools.base import given_arguments

_HEAD = (" {", ' "', *"input", '"', " :", ' "')
"""How the usual form begins, letter by letter. Where an entry begins with a space, white space may come before it."""
_WHITE = " \t\n\r"

_PLAIN = re.compile(r'[^"\\\ud800-\udfff]+')
_BROKEN_OFF = re.compile(r"\\(?:u[0-9A-Fa-f]{0,3})?\Z")
_UNIT = re.compile(r"\\u([0-9A-Fa-f]{4})")
_LAST_QUOTE = re.compile(r'"\s*\}?\s*\Z')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MENDED = "\N{REPLACEMENT CHARACTER}"

_lenient = json.JSONDecoder(strict=False)  # models write line ends into strings as they are
_State: TypeAlias = Literal["head", "text", "tail", "raw", "whole"]


def input_of(arguments: str) -> str:
    """The input in the whole of what the backend wrote."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


def wrapped(arguments: str) -> str:
    """What the backend wrote if it is a JSON object; if not, the input in it as one, so that it can be sent again."""
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else json.dumps({"input": input_of(arguments)}, ensure_ascii=False)


def as_object(arguments: str) -> str:
    """Arguments as backends take them. What is no JSON object goes as text in one: the model sees what it wrote."""
    arguments = given_arguments(arguments)
    try:
        _read_object(arguments)
    except (ValueError, RecursionError):
        is_object = False
    else:
        is_object = True
    return arguments if is_object else msgspec.json.encode({"input": arguments}).decode()


class _AnyObject(msgspec.Struct):
    """Any JSON object: nothing is built of what is in it."""


_read_object = msgspec.json.Decoder(_AnyObject).decode


class InputReader:
    """Feed it the pieces of the arguments; what comes out, joined, is the input."""

    def __init__(self) -> None:
        self._state: _State = "head"
        self._at = 0  # in the head
        self._kept: list[str] = []  # what came and is not decided
        self._string = _StringReader()

    def feed(self, piece: str) -> str:
        match self._state:
            case "text":
                return self._feed_text(piece)
            case "raw":
                return piece
            case "head":
                return self._feed_head(piece)
            case _:
                self._kept.append(piece)
                return ""

    def finish(self) -> str:
        """The rest. No piece will come any more."""
        kept, self._kept = "".join(self._kept), []
        match self._state:
            case "whole":
                return _read_whole(kept)
            case "tail":
                return "" if _is_end(kept) else _StringReader(quotes_end=False).feed(_LAST_QUOTE.sub("", kept, count=1))
            case _:
                return ""  # cut in the head or inside an escape: nothing of the text has come

    def _feed_head(self, piece: str) -> str:
        self._kept.append(piece)
        for place, char in enumerate(piece):
            if self._at == 0 and char not in '{"' + _WHITE:
                return self._become_raw()
            expected = _HEAD[self._at]
            if expected[0] == " " and char in _WHITE:
                continue
            if char != expected[-1]:
                self._state = "whole"
                return ""
            self._at += 1
            if self._at == len(_HEAD):
                self._state, self._kept = "text", []
                return self._feed_text(piece[place + 1 :])
        return ""

    def _become_raw(self) -> str:
        text, self._kept = "".join(self._kept), []
        self._state = "raw"
        return text

    def _feed_text(self, piece: str) -> str:
        text = self._string.feed(piece)
        if self._string.rest is not None:
            self._state, self._kept = "tail", [self._string.rest]
        return text


class _StringReader:
    """The inside of a JSON string. An escape that is none stands for itself."""

    def __init__(self, *, quotes_end: bool = True) -> None:
        self.rest: str | None = None
        """From the quote on that ends the string."""
        self._quotes_end = quotes_end
        self._begun = ""  # an escape that has not come whole
        self._high = 0  # the first half of a surrogate pair

    def feed(self, piece: str) -> str:
        text, self._begun = self._begun + piece, ""
        read: list[str] = []
        at = 0
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                read.append(self._alone() + plain[0])
                at = plain.end()
            elif text[at] == '"' and self._quotes_end:
                self.rest = text[at:]
                return "".join(read) + self._alone()
            elif _BROKEN_OFF.match(text, at):
                self._begun = text[at:]
                break
            else:
                found, at = self._special(text, at)
                read.append(found)
        return "".join(read)

    def _special(self, text: str, at: int) -> tuple[str, int]:
        """An escape, a quote that ends nothing, or half of a pair; and where the text goes on."""
        if unit := _UNIT.match(text, at):
            return self._unit(int(unit[1], 16)), unit.end()
        if text[at] != "\\":
            return (self._unit(ord(text[at])) if text[at] != '"' else self._alone() + '"'), at + 1
        escape = text[at : at + 2]
        return self._alone() + _ESCAPED.get(escape[1], escape), at + 2

    def _unit(self, code: int) -> str:
        """A unit of UTF-16: text by itself, or one half of a pair."""
        if 0xDC00 <= code < 0xE000:
            if not self._high:
                return _MENDED
            high, self._high = self._high, 0
            return chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00))
        before = self._alone()
        if 0xD800 <= code < 0xDC00:
            self._high = code
            return before
        return before + chr(code)

    def _alone(self) -> str:
        """What a first half comes to that no second follows."""
        high, self._high = self._high, 0
        return _MENDED if high else ""


def _is_end(tail: str) -> bool:
    """Whether the quote that `tail` begins with ends the string: the object goes on or ends behind it, or was cut.

    If not, the model has written a quote of its text as it is, and all of it is text.
    """
    if not tail.rstrip(_WHITE)[1:]:
        return True
    try:
        _lenient.raw_decode('{"input":"' + tail)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _read_whole(text: str) -> str:
    """Of an object the text under `input`, or under the only key there is; of a string the string; else all of it."""
    try:
        value = _lenient.decode(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        only = next(iter(value.values())) if len(value) == 1 else text if value else ""
        value = value.get("input", only)
    return _mended(value) if isinstance(value, str) else text


def _mended(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
