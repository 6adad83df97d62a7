"""Read the input of a free-form tool out of the JSON that a Chat backend writes for it: `{"input": "…"}`. Pure.

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

_OPEN = r"(?!(?:\\(?:u[0-9A-Fa-f]{0,3})?)?\Z)"
"""Not where the text ends, or ends within an escape: the second half of a surrogate pair may follow."""
_HIGH = r"\\u[dD][89abAB][0-9A-Fa-f]{2}|[\ud800-\udbff]"
_ESCAPE = rf"(?:{_HIGH}){_OPEN}|(?!{_HIGH})\\(?:u[0-9A-Fa-f]{{4}}|u(?![0-9A-Fa-f]{{0,3}}\Z)|[^u])"
_INSIDE = re.compile(rf'(?:[^"\\\ud800-\udbff]++|{_ESCAPE})*+', re.DOTALL)
"""The inside of a string as far as it is complete, up to a quote."""
_INSIDE_WITH_QUOTES = re.compile(rf"(?:[^\\\ud800-\udbff]++|{_ESCAPE})*+", re.DOTALL)
_STRAY = re.compile(r'\\(["\\/bfnrt]|u[0-9A-Fa-f]{4})?|"')
_LAST_QUOTE = re.compile(r'"\s*\}?\s*\Z')

_lenient = json.JSONDecoder(strict=False)  # models write line ends into strings as they are
_State: TypeAlias = Literal["head", "text", "tail", "raw", "whole"]


def input_of(arguments: str) -> str:
    """Return the input in all that the backend wrote."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()


def wrapped(arguments: str) -> str:
    """Return what the backend wrote if it is a JSON object, else its input as one, so that it can be sent again."""
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else json.dumps({"input": input_of(arguments)}, ensure_ascii=False)


def as_object(arguments: str) -> str:
    """Return arguments as backends take them. Anything but a JSON object goes as text in one: the model sees what it
    wrote.
    """
    arguments = given_arguments(arguments)
    return arguments if is_object(arguments) else msgspec.json.encode({"input": arguments}).decode()


class _AnyObject(msgspec.Struct):
    """Any JSON object: nothing is built of what is in it."""


_read_object = msgspec.json.Decoder(_AnyObject).decode


def is_object(text: str) -> bool:
    """Return whether a text is a whole JSON object, without decoding what is in it."""
    try:
        _read_object(text)
    except (ValueError, RecursionError):
        return False
    return True


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
        """Return the rest, when no more pieces come."""
        kept, self._kept = "".join(self._kept), []
        match self._state:
            case "whole":
                return _read_whole(kept)
            case "tail":
                return (
                    "" if _is_end(kept) else _StringReader(_INSIDE_WITH_QUOTES).feed(_LAST_QUOTE.sub("", kept, count=1))
                )
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
    """Feed it the inside of a JSON string. An escape that is none stands for itself."""

    def __init__(self, inside: re.Pattern[str] = _INSIDE) -> None:
        self.rest: str | None = None
        """From the quote on that ends the string."""
        self._inside = inside
        self._begun = ""  # an escape or a surrogate pair that has not come whole

    def feed(self, piece: str) -> str:
        text = self._begun + piece
        inside = self._inside.match(text)
        assert inside is not None, "it matches anywhere"
        self._begun = text[inside.end() :]
        if self._begun.startswith('"'):
            self.rest = self._begun
        escaped = _STRAY.sub(_escaped, inside[0])
        return _mended(_lenient.decode(f'"{escaped}"'))


def _escaped(found: re.Match[str]) -> str:
    """Return an escape, a backslash that begins none, or a quote, as JSON."""
    return found[0] if found[1] else "\\" + found[0]


def _is_end(tail: str) -> bool:
    """Return whether the quote that `tail` begins with ends the string: the object goes on or ends behind it, or was
    cut.

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
    """Return the text under `input` or under the only key of an object, the text of a string, else all of it."""
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
