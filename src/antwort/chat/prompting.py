"""The line at which somebody types."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle

from antwort.chat.scrub import in_one_line

_LARGEST = 1024 * 1024
"""Bytes of the history; of a larger one the older half is dropped."""
_NEW_ENTRY = b"\n# "

_LONGEST_QUESTION = 300
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}
_ALL = ("a", "all")

Complete = Callable[[str], Iterable[str]]


class Prompt:
    """Raises `EOFError` when whoever sits there has had enough."""

    def __init__(self, sign: str, complete: Complete, history: Path | None) -> None:
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # no question to the terminal that it may answer too late
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("ansicyan bold", f"{sign} ")]),
            multiline=True,
            key_bindings=bindings(),
            completer=_Words(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=open_history(history),
            prompt_continuation="  ",
        )

    async def ask(self) -> str:
        return await self._session.prompt_async(handle_sigint=False)

    async def confirm(self, question: str, *, may_see_all: bool = False) -> bool | None:
        """Whether they say yes, None where they want to see all there is; asked until it is clear. Ctrl-C is as good as
        the end: it never means yes.
        """
        answers = "[y/n/all]" if may_see_all else "[y/n]"
        session: PromptSession[str] = PromptSession(
            FormattedText([("ansiyellow", f"{in_one_line(question, _LONGEST_QUESTION)} {answers} ")])
        )
        while True:
            try:
                said = (await session.prompt_async(handle_sigint=False)).strip().lower()
            except KeyboardInterrupt as exc:
                raise EOFError from exc
            if said in _ANSWERS:
                return _ANSWERS[said]
            if may_see_all and said in _ALL:
                return None


class _Words(Completer):
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


def bindings() -> KeyBindings:
    """Enter sends, unless a backslash says that more is to come; Alt-Enter is a new line; Ctrl-C clears."""
    keys = KeyBindings()

    @keys.add(Keys.Vt100MouseEvent)
    def _(event: KeyPressEvent) -> None:
        """Nobody has asked for it: somebody has typed, or pasted, what looks like one."""

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


# ---- what was typed before ----


def open_history(file: Path | None) -> History:
    """In the file, which is for nobody else to read; in memory where there is none, or it cannot be had."""
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        file.chmod(0o600)
        _trim(file)
    except OSError:
        return InMemoryHistory()
    return _Kept(file)


class _Kept(FileHistory):
    """What cannot be kept any more is only remembered until the end."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _trim(file: Path) -> None:
    if file.stat().st_size > _LARGEST:
        kept = file.read_bytes()[-_LARGEST // 2 :]
        file.write_bytes(kept[kept.find(_NEW_ENTRY) :] if _NEW_ENTRY in kept else b"")


# ---- while nobody is asked ----


@contextmanager
def unechoed(stream: TextIO | None) -> Iterator[None]:
    """Keys typed meanwhile do not show among the words of the answer; they wait for the next prompt."""
    try:
        import termios
    except ImportError:  # not to be had on Windows
        yield
        return
    if stream is None:  # closed before we began
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
