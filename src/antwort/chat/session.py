"""The loop: somebody asks, the model answers, until they have had enough."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress

from rich.text import Text

from antwort.chat.answer import Answer
from antwort.chat.calls import seconds_shown
from antwort.chat.client import ChatFault, Refused
from antwort.chat.commands import parse
from antwort.chat.conversation import Conversation
from antwort.chat.home import Home
from antwort.chat.orders import Orders
from antwort.chat.prompting import Prompt, unechoed
from antwort.chat.receiving import receive
from antwort.chat.screen import Screen
from antwort.chat.scrub import scrub
from antwort.chat.server import Report
from antwort.chat.writing import Writing

_FRAME = 0.08
"""Seconds between two looks at what has come."""
_UNKNOWN_LABEL = "unknown_tool_server"


class Session:
    def __init__(self, screen: Screen, home: Home, conversation: Conversation) -> None:
        self._screen, self._home, self._conversation = screen, home, conversation
        self._orders = Orders(screen, home, conversation)

    async def talk(self, prompt: Prompt) -> None:
        while True:
            try:
                line = await prompt.ask()
            except EOFError:
                return
            typed = parse(line)
            if typed is None:
                if line.strip():
                    await self.turn(line.strip())
            elif not await self._orders.obey(typed):
                return
            self._screen.blank()

    async def turn(self, text: str) -> Answer:
        """Ask, and show the answer as it comes. What goes wrong is told, and the next turn may go better."""
        answer = Answer(began=time.monotonic())
        writing = Writing(self._screen, answer)
        with unechoed(sys.stdin):
            try:
                await awaited(self._screen, self._home.ready)
                await self._follow(text, answer, writing)
            except ChatFault as fault:
                answer.finish("failed", self._said(fault), time.monotonic())
            self._conversation.note(text, answer)
            writing.finish(time.monotonic())
        return answer

    async def _follow(self, text: str, answer: Answer, writing: Writing) -> None:
        """Until the answer has ended, or Ctrl-C ends it."""
        receiving = asyncio.create_task(receive(self._home, self._conversation, text, answer))
        try:
            with _interrupts(receiving.cancel):
                while not receiving.done():
                    writing.draw(time.monotonic())
                    await asyncio.wait({receiving}, timeout=_FRAME)
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
        if receiving.cancelled():
            await self._cancel(answer)
        else:
            receiving.result()

    async def _cancel(self, answer: Answer) -> None:
        answer.finish("cancelled", "", time.monotonic())
        if answer.response_id:
            await self._home.client.cancel(answer.response_id)

    def _said(self, fault: ChatFault) -> str:
        """In words that say what to do where that is known."""
        if isinstance(fault, Refused) and fault.code == _UNKNOWN_LABEL:
            for label in [label for label in self._conversation.labels if repr(label) in str(fault)]:
                self._conversation.switch(label, on=False)
                return f"The server has no tools labelled {label!r}; they are switched off now. Ask again."
        if isinstance(fault, Refused) and fault.param == "model":
            return f"{fault} `/model` lists the models."
        return str(fault)


async def awaited(screen: Screen, doing: Callable[[Report], Coroutine[None, None, None]]) -> None:
    """Something that takes a moment, with a line that says so."""
    began, said = time.monotonic(), ""

    def report(line: str) -> None:
        nonlocal said
        said = line

    task = asyncio.create_task(doing(report))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_FRAME)
            passed = time.monotonic() - began
            frame = screen.glyphs.spinner[int(passed * 10) % len(screen.glyphs.spinner)]
            line = Text.assemble((frame, "cyan"), (f" {seconds_shown(passed)} {scrub(said)}", "dim"))
            screen.paint([], screen.lines(line)[:1] if passed > _FRAME else [])
        await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ChatFault):
            await task
        screen.paint([], [])


@contextmanager
def _interrupts(stop: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C ends what is under way and nothing else."""
    loop = asyncio.get_running_loop()

    def interrupted(*_: object) -> None:
        loop.call_soon_threadsafe(stop)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
