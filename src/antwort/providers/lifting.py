"""The text of a constrained answer becomes deltas again, piece by piece as it comes. Pure.

`{"calls": [{"name": "f", "arguments": {…}}, …]}` is calls, `{"answer": "…"}` is text. A text of another form is passed
on as it is: a backend that does not hold its model to the form is read all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from antwort.errors import BackendCut
from antwort.providers.base import CallDelta, Delta, Finished, TextDelta
from antwort.providers.cursor import Cursor, OtherForm, Reading

CUT = frozenset({"length", "content_filter"})
"""Finish reasons that say the answer was broken off."""

_SPACE = " \t\r\n`"
_MARKS = "{}[],:" + _SPACE


class Lifting:
    """Reads one answer. `is_raw`: an answer is JSON that the client asked for, and is told as it is written."""

    def __init__(self, *, is_raw: bool = False) -> None:
        self._is_raw = is_raw
        self._cursor = Cursor()
        self._out: list[Delta] = []
        self._calls = 0
        self._is_calling = False  # a call was named, and its arguments are not whole
        self._is_known = False  # something was let out: what comes is of the form
        self._reading: Reading | None = self._form()

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
            self._tell_rest(self._cursor.text)

    def _tell_rest(self, text: str) -> None:
        """What is not of the form, as it came. Space that follows the form, or the end of a block, says nothing."""
        if rest := text.lstrip(_SPACE) if self._is_known else text:
            self._is_known = False
            self._tell(rest)

    def _finish(self, finished: Finished) -> None:
        if finished.finish in CUT:
            self._out.append(finished)  # a form that was begun and cut is nothing that the model said
            return
        if self._is_calling:
            raise BackendCut("The backend's answer broke off inside a call.")
        if self._reading is not None and (not self._is_known or self._cursor.text.strip(_MARKS)):
            self._tell_rest(self._cursor.text)
        is_call = self._calls > 0 and finished.finish == "stop"
        self._out.append(Finished("tool_calls", finished.usage) if is_call else finished)

    # ---- letting out ----

    def _tell(self, text: str) -> None:
        self._out.append(TextDelta(text))

    def _tell_arguments(self, text: str) -> None:
        self._out.append(CallDelta(self._calls - 1, "", text))

    def _open_call(self, name: str) -> None:
        if not name:
            raise OtherForm
        self._cursor.take()
        self._out.append(CallDelta(self._calls, name))
        self._calls += 1
        self._is_known = self._is_calling = True

    # ---- the form ----

    def _form(self) -> Reading:
        cursor = self._cursor
        if (yield from cursor.peek()) == "`":  # some models cannot write JSON otherwise, and some backends let them
            yield from cursor.fence()
        yield from cursor.expect("{")
        key = yield from cursor.key()
        if key == "calls":
            yield from self._list()
        elif key == "answer":
            yield from self._answer()
        else:
            raise OtherForm
        yield from cursor.expect("}")
        cursor.take()

    def _answer(self) -> Reading:
        is_text = (yield from self._cursor.peek()) == '"' and not self._is_raw
        self._is_known = True
        yield from self._cursor.told_string(self._tell) if is_text else self._cursor.told_value(self._tell)

    def _list(self) -> Reading:
        cursor = self._cursor
        yield from cursor.expect("[")
        yield from self._call()
        while (yield from cursor.peek()) != "]":
            yield from cursor.expect(",")
            yield from self._call()
        yield from cursor.expect("]")

    def _call(self) -> Reading:
        """The schema has the name first; arguments that come before it are held until it is there."""
        cursor = self._cursor
        yield from cursor.expect("{")
        key = yield from cursor.key()
        if key == "arguments":
            held = yield from cursor.value()
            yield from self._second("name")
            self._open_call((yield from cursor.string()))
            self._tell_arguments(held)
        elif key == "name":
            self._open_call((yield from cursor.string()))
            yield from self._second("arguments")
            yield from cursor.told_value(self._tell_arguments)
        else:
            raise OtherForm
        self._is_calling = False
        yield from cursor.expect("}")
        cursor.take()

    def _second(self, key: str) -> Reading:
        yield from self._cursor.expect(",")
        if (yield from self._cursor.key()) != key:
            raise OtherForm
