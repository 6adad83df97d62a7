"""Read what the user types: questions, and decisions about calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle

from antwort.chat.answer import CallPart
from antwort.chat.formatting import full_arguments, one_line

_HISTORY_BYTES = 1024 * 1024
"""Of a larger history, the older half is dropped."""
_NEW_ENTRY = b"\n# "
_QUESTION_LENGTH = 300
_INLINE_LENGTH, _SHOWN_LENGTH, _TITLE_LENGTH = 100, 4000, 120
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}
_ALL = ("a", "all")

Complete = Callable[[str], Iterable[str]]


class ChatPrompt:
    """A line editor with history and completion. Its methods raise `EOFError` when the user ends the input."""

    def __init__(self, sign: str, complete: Complete, history: Path | None) -> None:
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # a terminal may report the cursor position too late
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("ansicyan bold", f"{sign} ")]),
            multiline=True,
            key_bindings=_bindings(),
            completer=_CommandCompleter(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=open_history(history),
            prompt_continuation="  ",
        )

    async def ask(self) -> str:
        return await self._session.prompt_async(handle_sigint=False)

    async def confirm(self, question: str, *, has_more: bool = False) -> bool | None:
        """Ask until the answer is clear. Return None if the user wants to see everything first. Ctrl-C never means yes:
        it raises `EOFError`.
        """
        answers = "[y/n/all]" if has_more else "[y/n]"
        session: PromptSession[str] = PromptSession(
            FormattedText([("ansiyellow", f"{one_line(question, _QUESTION_LENGTH)} {answers} ")])
        )
        while True:
            try:
                said = (await session.prompt_async(handle_sigint=False)).strip().lower()
            except KeyboardInterrupt as exc:
                raise EOFError from exc
            if said in _ANSWERS:
                return _ANSWERS[said]
            if has_more and said in _ALL:
                return None


class _CommandCompleter(Completer):
    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - as prompt_toolkit calls it
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        last = before.rpartition(" ")[2]
        return [Completion(word, -len(last)) for word in self._complete(before)]


def _bindings() -> KeyBindings:
    """Enter sends, except after a backslash; Alt-Enter begins a new line; Ctrl-C clears."""
    keys = KeyBindings()

    @keys.add(Keys.Vt100MouseEvent)
    def _(event: KeyPressEvent) -> None:
        """Ignore it: the mouse is not used, so this was typed or pasted."""

    @keys.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return keys


# ---- approvals ----


class Confirmation(NamedTuple):
    """A question about a call, what is shown above it, and the whole of that where only its beginning is shown."""

    above: str
    question: str
    whole: str | None = None


def confirmations(calls: Sequence[CallPart]) -> list[Confirmation]:
    """Return the question about each call. It shows all arguments: nobody approves what they cannot see."""
    return [
        _confirmation(call, f", {number} of {len(calls)}" if len(calls) > 1 else "")
        for number, call in enumerate(calls, 1)
    ]


def _confirmation(call: CallPart, number: str) -> Confirmation:
    title, arguments = one_line(call.title, _TITLE_LENGTH), full_arguments(call.arguments)
    inline = ", ".join(arguments)
    if len(inline) <= _INLINE_LENGTH and "\n" not in inline:
        return Confirmation("", f"Run {title}({inline}){number}?")
    whole, question = "\n".join(arguments), f"Run {title} with this{number}?"
    rest = len(whole) - _SHOWN_LENGTH
    if rest <= 0:
        return Confirmation(whole, question)
    more = "character" if rest == 1 else "characters"
    return Confirmation(f"{whole[:_SHOWN_LENGTH]}\n… {rest} more {more}, which `all` shows", question, whole)


# ---- the history ----


def open_history(file: Path | None) -> History:
    """Open the history in a file that only the user can read, or in memory if that is not possible."""
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        file.chmod(0o600)
        if file.stat().st_size > _HISTORY_BYTES:
            kept = file.read_bytes()[-_HISTORY_BYTES // 2 :]
            file.write_bytes(kept[kept.find(_NEW_ENTRY) :] if _NEW_ENTRY in kept else b"")
    except OSError:
        return InMemoryHistory()
    return _SafeFileHistory(file)


class _SafeFileHistory(FileHistory):
    """Ignores errors when it writes: such entries are remembered until the end of the chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


# ---- while an answer is shown ----


@contextmanager
def without_echo(stream: TextIO | None) -> Iterator[None]:
    """Hide keys that are typed meanwhile. They are read by the next prompt."""
    try:
        import termios
    except ImportError:  # Windows has none
        yield
        return
    if stream is None:  # it was closed
        yield
        return
    failures = (termios.error, OSError, ValueError)
    try:
        number = stream.fileno()
        before = termios.tcgetattr(number)
    except failures:  # no terminal
        yield
        return
    quiet = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
    try:
        termios.tcsetattr(number, termios.TCSADRAIN, quiet)
        yield
    finally:
        with suppress(*failures):
            termios.tcsetattr(number, termios.TCSADRAIN, before)
