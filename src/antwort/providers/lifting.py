"""The text of a constrained answer becomes deltas again, piece by piece as it comes. Pure.

`{"calls": [{"name": "f", "arguments": {…}}, …]}` is calls, `{"answer": "…"}` is text. A backend that does not hold its
model to the form is read all the same: an object that begins like one of them is read as far as it goes, and nothing
of its marks is text; a text of another form is passed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from antwort.errors import BackendCut
from antwort.providers.base import CUT, CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.providers.cursor import Cursor, OtherForm, Reading

_BEHIND = "]} \t\r\n`"
_MARKS = '{[,:"' + _BEHIND


class Lifting:
    """Reads one answer. `is_raw`: an answer is JSON that the client asked for, and is told as it is written."""

    def __init__(self, *, is_raw: bool = False) -> None:
        self._is_raw = is_raw
        self._cursor = Cursor()
        self._out: list[Delta] = []
        self._calls = 0
        self._is_named, self._held = False, ""  # of the call that is read: its name came; arguments that came before it
        self._is_calling = False  # a call was named, and its arguments are not whole
        self._is_known = self._is_whole = False  # what comes is of the form; it was closed
        self._reading: Reading | None = self._form()
        self._tell_rest = self._tell  # what becomes of a text behind the form
        self._marks = ""

    def read(self, batch: Sequence[Delta]) -> list[Delta]:
        """The batch with its text lifted. Raises `BackendCut` for an answer that ends inside a call for no reason."""
        for delta in batch:
            if isinstance(delta, TextDelta):
                self._feed(delta.text)
            elif isinstance(delta, Finished):
                self._finish(delta)
            else:
                self._out.append(delta)
        out, self._out = self._out, []
        return out

    def _feed(self, text: str) -> None:
        if self._reading is None:
            self._tell_rest(text)
            return
        self._cursor.feed(text)
        try:
            next(self._reading)
        except (OtherForm, StopIteration):
            self._reading = None
            if self._is_known:
                self._tell_rest = self._behind if self._is_whole else self._drop if self._calls else self._broken
            self._tell_rest(self._cursor.text)

    # ---- behind the form ----

    def _behind(self, text: str) -> None:
        """Words are not lost; a mark too many is none of them, nor is the same form once more."""
        if text := text.lstrip(_BEHIND):
            self._tell_rest = self._drop if text[0] == "{" else self._tell
            self._tell_rest(text)

    def _broken(self, text: str) -> None:
        """An answer goes on behind its end: a quote in it was not escaped. Its marks wait for more words."""
        self._marks += text
        words = self._marks.rstrip(_MARKS)
        self._marks = self._marks[len(words) :]
        self._tell(words)

    def _drop(self, text: str) -> None:
        """What a list of calls broke off with was not said to anybody."""

    # ---- the end ----

    def _finish(self, finished: Finished) -> None:
        if finished.finish in CUT:
            self._out.append(finished)  # a form that was begun and cut is nothing that the model said
            return
        if self._is_calling:
            raise BackendCut("The backend's answer broke off inside a call.")
        if self._reading is not None and not self._is_known:
            self._tell(self._cursor.text)
        is_call = self._calls > 0 and finished.finish == "stop"
        self._out.append(Finished("tool_calls", finished.usage) if is_call else finished)

    # ---- letting out ----

    def _tell(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))

    def _think(self, text: str) -> None:
        self._out.append(ReasoningDelta(text))

    def _tell_arguments(self, text: str) -> None:
        self._out.append(CallDelta(self._calls - 1, "", text))

    def _open_call(self, name: str) -> None:
        if not name:
            raise OtherForm
        self._cursor.take()
        self._out.append(CallDelta(self._calls, name))
        self._calls += 1
        self._is_known = self._is_named = self._is_calling = True

    def _end_call(self, arguments: str) -> None:
        self._tell_arguments(arguments)
        self._is_calling = False

    # ---- the form ----

    def _form(self) -> Reading:
        """Some models cannot write JSON without a block of code around it, and some backends let them; or have a model
        think in its text.
        """
        cursor = self._cursor
        if (yield from cursor.peek()) == "<":
            yield from cursor.word("<think>")
            cursor.take()
            yield from cursor.told_until("</think>", self._think)
        if (yield from cursor.peek()) == "`":
            yield from cursor.fence()
        yield from cursor.expect("{")
        yield from self._entries(self._entry)
        self._is_whole = True

    def _entries(self, read: Callable[[str], Reading]) -> Reading:
        """Those of an object that was begun, each by its key, and its end."""
        cursor = self._cursor
        yield from read((yield from cursor.key()))
        while (yield from cursor.peek()) != "}":
            yield from cursor.expect(",")
            yield from read((yield from cursor.key()))
        yield from cursor.expect("}")

    def _entry(self, key: str) -> Reading:
        """What else there is in a form says nothing."""
        if key == "calls":
            yield from self._list()
        elif key == "answer":
            yield from self._answer()
        elif self._is_known:
            yield from self._cursor.value()
        else:
            raise OtherForm
        self._cursor.take()

    def _answer(self) -> Reading:
        cursor = self._cursor
        mark = yield from cursor.peek()
        self._is_known = True
        if mark == "n" and (self._calls or not self._is_raw):
            yield from cursor.value()  # null: there is none
        elif mark == '"' and not self._is_raw:
            yield from cursor.told_string(self._tell)
        else:
            yield from cursor.told_value(self._tell)

    def _list(self) -> Reading:
        """No list but null, or a call alone, is meant well."""
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
        self._is_known = True

    def _call(self) -> Reading:
        """The schema has the name first; arguments that come before it are held until it is there."""
        self._is_named, self._held = False, ""
        yield from self._cursor.expect("{")
        yield from self._entries(self._part)
        if not self._is_named:
            raise OtherForm
        if self._is_calling:
            self._end_call("{}")
        self._cursor.take()

    def _part(self, key: str) -> Reading:
        cursor = self._cursor
        if key == "name" and not self._is_named:
            self._open_call((yield from cursor.string()))
            if self._held:
                self._end_call(self._held)
        elif key == "arguments" and self._is_calling:
            yield from self._arguments()
        elif key == "arguments" and not self._is_named:
            self._held = _unquoted((yield from cursor.value()))
        else:
            yield from cursor.value()

    def _arguments(self) -> Reading:
        """JSON in a string is what it says: that is how Chat Completions has them."""
        cursor = self._cursor
        match (yield from cursor.peek()):
            case "n":
                self._end_call(_unquoted((yield from cursor.value())))
            case '"':
                yield from cursor.told_string(self._tell_arguments)
            case _:
                yield from cursor.told_value(self._tell_arguments)
        self._is_calling = False


def _unquoted(arguments: str) -> str:
    """Arguments as they are written, be it null or JSON in a string."""
    try:
        plain = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(plain, str):
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "{}" if plain is None else arguments
