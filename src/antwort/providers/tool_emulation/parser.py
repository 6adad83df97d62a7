"""Parse the text of an emulated answer into deltas, piece by piece as it comes. Pure.

`{"calls": [{"name": "f", "arguments": {…}}, …]}` is calls, `{"answer": "…"}` is text. The parser tolerates a backend
that does not enforce the form: an object that begins like one of these is parsed as far as it goes, and its JSON
syntax never becomes text; any other text passes unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from antwort.errors import BackendCut
from antwort.providers.base import CUT, CallDelta, Delta, Finished, ReasoningDelta, TextDelta

Parsing: TypeAlias = Generator[None, None, None]
"""Yields where the text ends; more of it is there when it is resumed."""
Emit: TypeAlias = Callable[[str], None]
"""Takes what was parsed, piece by piece."""

_TRAILING_SYNTAX = "]} \t\r\n`"
_SYNTAX = '{[,:"' + _TRAILING_SYNTAX


class UnexpectedForm(Exception):
    """The text is not of the form that the parser looks for."""


class EmulatedAnswerParser:
    """Parse one answer. `is_json`: an answer without calls is JSON that the client asked for, and passes as written."""

    def __init__(self, *, is_json: bool = False) -> None:
        self._is_json = is_json
        self._cursor = JsonCursor()
        self._out: list[Delta] = []
        self._calls = 0
        self._is_named, self._early_arguments = False, ""  # of the current call; arguments that come before its name
        self._is_calling = False  # a call has a name, and its arguments are incomplete
        self._is_recognized = self._is_complete = False  # the text is of the form; it has come to its end
        self._parsing: Parsing | None = self._form()
        self._emit_rest = self._emit_text  # takes the text behind the form
        self._syntax = ""

    def feed(self, batch: Sequence[Delta]) -> list[Delta]:
        """Return the batch with its text parsed. Raises `BackendCut` if the answer ends inside a call for no reason."""
        for delta in batch:
            if isinstance(delta, TextDelta):
                self._feed_text(delta.text)
            elif isinstance(delta, Finished):
                self._finish(delta)
            else:
                self._out.append(delta)
        out, self._out = self._out, []
        return out

    def _feed_text(self, text: str) -> None:
        if self._parsing is None:
            self._emit_rest(text)
            return
        self._cursor.feed(text)
        try:
            next(self._parsing)
        except (UnexpectedForm, StopIteration):
            self._parsing = None
            if self._is_complete:
                self._emit_rest = self._emit_behind
            elif self._is_recognized:
                self._emit_rest = self._drop if self._calls else self._emit_broken
            self._emit_rest(self._cursor.text)

    def _finish(self, finished: Finished) -> None:
        if finished.finish in CUT:
            self._out.append(finished)  # an incomplete form is no text
            return
        if self._is_calling:
            raise BackendCut("The backend's answer broke off inside a call.")
        if self._parsing is not None and not self._is_recognized:
            self._emit_text(self._cursor.text)
        is_call = self._calls > 0 and finished.finish == "stop"
        self._out.append(Finished("tool_calls", finished.usage) if is_call else finished)

    # ---- text behind the form ----

    def _emit_behind(self, text: str) -> None:
        """Emit text behind a complete form, without superfluous syntax and repetitions of the form."""
        if text := text.lstrip(_TRAILING_SYNTAX):
            self._emit_rest = self._drop if text[0] == "{" else self._emit_text
            self._emit_rest(text)

    def _emit_broken(self, text: str) -> None:
        """Emit text behind an answer that has ended early, as a quote in it was not escaped. Syntax is held back until
        more text comes.
        """
        self._syntax += text
        words = self._syntax.rstrip(_SYNTAX)
        self._syntax = self._syntax[len(words) :]
        self._emit_text(words)

    def _drop(self, text: str) -> None:
        """Drop what follows a malformed list of calls."""

    # ---- deltas ----

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))

    def _emit_reasoning(self, text: str) -> None:
        self._out.append(ReasoningDelta(text))

    def _emit_arguments(self, text: str) -> None:
        self._out.append(CallDelta(self._calls - 1, "", text))

    def _open_call(self, name: str) -> None:
        if not name:
            raise UnexpectedForm
        self._cursor.take()
        self._out.append(CallDelta(self._calls, name))
        self._calls += 1
        self._is_recognized = self._is_named = self._is_calling = True

    def _end_call(self, arguments: str) -> None:
        self._emit_arguments(arguments)
        self._is_calling = False

    # ---- the form ----

    def _form(self) -> Parsing:
        """Parse the form. Some models put a block of code around their JSON even where a backend enforces a schema, and
        some backends leave reasoning in the text.
        """
        cursor = self._cursor
        if (yield from cursor.peek()) == "<":
            yield from cursor.word("<think>")
            cursor.take()
            yield from cursor.emit_until("</think>", self._emit_reasoning)
        if (yield from cursor.peek()) == "`":
            yield from cursor.code_fence()
        yield from cursor.expect("{")
        yield from self._entries(self._entry)
        self._is_complete = True

    def _entries(self, parse: Callable[[str], Parsing]) -> Parsing:
        """Parse the rest of an object, each entry by its key."""
        cursor = self._cursor
        yield from parse((yield from cursor.key()))
        while (yield from cursor.peek()) != "}":
            yield from cursor.expect(",")
            yield from parse((yield from cursor.key()))
        yield from cursor.expect("}")

    def _entry(self, key: str) -> Parsing:
        """Parse an entry of the form. Unknown ones behind a known one are ignored."""
        if key == "calls":
            yield from self._call_list()
        elif key == "answer":
            yield from self._answer()
        elif self._is_recognized:
            yield from self._cursor.value()
        else:
            raise UnexpectedForm
        self._cursor.take()

    def _answer(self) -> Parsing:
        cursor = self._cursor
        first = yield from cursor.peek()
        self._is_recognized = True
        if first == "n" and (self._calls or not self._is_json):
            yield from cursor.value()  # null: there is no answer
        elif first == '"' and not self._is_json:
            yield from cursor.emit_string(self._emit_text)
        else:
            yield from cursor.emit_value(self._emit_text)

    def _call_list(self) -> Parsing:
        """Parse the list of calls; null and a single call outside of a list are accepted, too."""
        cursor = self._cursor
        match (yield from cursor.peek()):
            case "n":
                yield from cursor.value()
            case "{":
                yield from self._call()
            case _:
                yield from cursor.expect("[")
                while (yield from cursor.peek()) != "]":
                    yield from self._call()
                    if (yield from cursor.peek()) != "]":
                        yield from cursor.expect(",")
                yield from cursor.expect("]")
        self._is_recognized = True

    def _call(self) -> Parsing:
        """Parse a call. The schema has the name first; arguments that come before it are held back."""
        self._is_named, self._early_arguments = False, ""
        yield from self._cursor.expect("{")
        yield from self._entries(self._call_entry)
        if not self._is_named:
            raise UnexpectedForm
        if self._is_calling:
            self._end_call("{}")
        self._cursor.take()

    def _call_entry(self, key: str) -> Parsing:
        cursor = self._cursor
        if key == "name" and not self._is_named:
            self._open_call((yield from cursor.string()))
            if self._early_arguments:
                self._end_call(self._early_arguments)
        elif key == "arguments" and self._is_calling:
            yield from self._arguments()
        elif key == "arguments" and not self._is_named:
            self._early_arguments = _unquoted((yield from cursor.value()))
        else:
            yield from cursor.value()

    def _arguments(self) -> Parsing:
        """Parse arguments. They may be JSON in a string, as in Chat Completions."""
        cursor = self._cursor
        match (yield from cursor.peek()):
            case "n":
                self._end_call(_unquoted((yield from cursor.value())))
            case '"':
                yield from cursor.emit_string(self._emit_arguments)
            case _:
                yield from cursor.emit_value(self._emit_arguments)
        self._is_calling = False


def _unquoted(arguments: str) -> str:
    """Return arguments as JSON text, be they null or JSON in a string."""
    try:
        plain = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(plain, str):
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "{}" if plain is None else arguments


# ---- JSON that is incomplete ----

_SPACE = re.compile(r"[ \t\r\n]*")
_QUOTE_OR_BRACKET = re.compile(r'["{}\[\]]')
_QUOTE_OR_ESCAPE = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")

_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE = re.compile(rf"{_HIGH}{_LOW}|\\u{_HEX}{{4}}|\\.", re.DOTALL)
_PARTIAL_ESCAPE = re.compile(rf"(?:\\(?:u{_HEX}{{0,3}})?|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)\Z")
"""What may become an escape, or a pair of surrogates, once there is more."""


class JsonCursor:
    """A position in a JSON text that is still coming."""

    def __init__(self) -> None:
        self.text = ""
        """What has come and was not taken."""
        self._at = 0

    def feed(self, text: str) -> None:
        self.text += text

    def take(self) -> str:
        """Remove what was parsed since the last time, and return it."""
        parsed, self.text, self._at = self.text[: self._at], self.text[self._at :], 0
        return parsed

    def peek(self) -> Generator[None, None, str]:
        """Skip space, and return the next character."""
        while True:
            if found := _SPACE.match(self.text, self._at):
                self._at = found.end()
            if self._at < len(self.text):
                return self.text[self._at]
            yield

    def expect(self, character: str) -> Parsing:
        if (yield from self.peek()) != character:
            raise UnexpectedForm
        self._at += 1

    def code_fence(self) -> Parsing:
        """Parse the opening of a Markdown code block, with its language."""
        for character in "```":
            yield from self.expect(character)
        while (yield from self.peek()).isalpha():
            self._at += 1

    def word(self, word: str) -> Parsing:
        yield from self.peek()
        while not self.text.startswith(word, self._at):
            if not word.startswith(self.text[self._at :]):
                raise UnexpectedForm
            yield
        self._at += len(word)

    def emit_until(self, word: str, emit: Emit) -> Parsing:
        """Emit and take what comes before the word, then take the word."""
        while (end := self.text.find(word, self._at)) < 0:
            self._at = len(self.text) - _partial_length(word, self.text)
            self._emit_taken(emit)
            yield
        self._at = end
        self._emit_taken(emit)
        self._at = len(word)
        self.take()

    def _emit_taken(self, emit: Emit) -> None:
        if piece := self.take():
            emit(piece)

    def key(self) -> Generator[None, None, str]:
        """Return the next key of an object. Its colon is parsed."""
        name = yield from self.string()
        yield from self.expect(":")
        return name

    # ---- strings ----

    def string(self) -> Generator[None, None, str]:
        """Return a complete string. It is not taken: it may still turn out to be text of another form."""
        yield from self.expect('"')
        parts: list[str] = []
        yield from self._characters(parts.append)
        return "".join(parts)

    def emit_string(self, emit: Emit) -> Parsing:
        """Emit and take the characters of a string as they come."""
        yield from self.expect('"')
        self.take()

        def emit_and_take(piece: str) -> None:
            self.take()
            emit(piece)

        yield from self._characters(emit_and_take)
        self.take()

    def _characters(self, emit: Emit) -> Parsing:
        """Emit the unescaped characters up to the closing quote. A lone surrogate is replaced."""
        parts: list[str] = []
        while True:
            found = _QUOTE_OR_ESCAPE.search(self.text, self._at)
            end = found.start() if found else len(self.text)
            parts.append(self.text[self._at : end])
            self._at = end
            is_over = found is not None and found.group() == '"'
            if is_over or found is None or _PARTIAL_ESCAPE.match(self.text, end):
                if piece := "".join(parts):
                    emit(piece)
                parts = []
                if is_over:
                    self._at += 1
                    return
                yield
            else:
                escape = _ESCAPE.match(self.text, self._at)
                raw = escape.group() if escape else "\\"
                self._at += len(raw)
                parts.append(_unescaped(raw))

    # ---- values ----

    def value(self) -> Generator[None, None, str]:
        """Return a complete value as written. It is not taken."""
        yield from self.peek()
        begin = self._at
        yield from self._skip_value(_no_op)
        return self.text[begin : self._at]

    def emit_value(self, emit: Emit) -> Parsing:
        """Emit and take a value as written, as it comes."""
        yield from self.peek()
        self.take()
        yield from self._skip_value(lambda: self._emit_taken(emit))
        self._emit_taken(emit)

    def _skip_value(self, on_pause: Callable[[], None]) -> Parsing:
        """Find the end of a value, without validating it. `on_pause` is called before each wait for more text."""
        if self.text[self._at] not in '"{[':
            yield from self._skip_scalar(on_pause)
            return
        depth, is_quoted = 0, False
        while True:
            found = (_QUOTE_OR_ESCAPE if is_quoted else _QUOTE_OR_BRACKET).search(self.text, self._at)
            if found is None or (found.group() == "\\" and found.end() == len(self.text)):
                self._at = len(self.text) if found is None else found.start()
                on_pause()
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

    def _skip_scalar(self, on_pause: Callable[[], None]) -> Parsing:
        if not _SCALAR.match(self.text, self._at):
            raise UnexpectedForm
        while True:
            if found := _SCALAR.match(self.text, self._at):
                self._at = found.end()
            if self._at < len(self.text):
                return
            on_pause()
            yield


def _partial_length(word: str, text: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the word."""
    return next((size for size in range(len(word) - 1, 0, -1) if text.endswith(word[:size])), 0)


def _no_op() -> None:
    pass


def _unescaped(escape: str) -> str:
    """Return the character of an escape; an invalid escape is left as it is."""
    try:
        character: str = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return "\N{REPLACEMENT CHARACTER}" if "\ud800" <= character[0] <= "\udfff" else character
