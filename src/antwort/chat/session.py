"""The loop: somebody asks, the model answers, until they have had enough."""

from __future__ import annotations

import asyncio
import sys
import time

from antwort.chat.answer import Answer, Called
from antwort.chat.asking import Question, questions
from antwort.chat.client import ChatFault, Refused
from antwort.chat.commands import parse
from antwort.chat.conversation import Asked, Conversation, Decided
from antwort.chat.home import Home
from antwort.chat.orders import Orders
from antwort.chat.prompting import Prompt, unechoed
from antwort.chat.receiving import receive
from antwort.chat.screen import Screen
from antwort.chat.waiting import FRAME, Interrupts, awaited
from antwort.chat.writing import Writing

_REST = 3
"""How much longer than drawing is the pause before it is done again, at least."""
_UNKNOWN_LABEL = "unknown_tool_server"


class Session:
    def __init__(self, screen: Screen, home: Home, conversation: Conversation) -> None:
        self._screen, self._home, self._conversation = screen, home, conversation
        self._interrupts = Interrupts()
        self._orders = Orders(screen, home, conversation, self._interrupts)

    async def talk(self, prompt: Prompt) -> None:
        with self._interrupts.caught():
            while await self._next(prompt):
                self._screen.blank()

    async def ask(self, text: str) -> Answer:
        """The one turn that there is."""
        with self._interrupts.caught(), unechoed(sys.stdin):
            return await self._turn(text)

    async def _next(self, prompt: Prompt) -> bool:
        """Whether the chat goes on."""
        try:
            line = await prompt.ask()
        except EOFError:
            return False
        with unechoed(sys.stdin):
            if (typed := parse(line)) is not None:
                return await self._orders.obey(typed)
            answer = await self._turn(line.strip()) if line.strip() else None
        while answer is not None and answer.asked:
            answer = await self._decide(prompt, answer)
        return True

    async def _decide(self, prompt: Prompt, answer: Answer) -> Answer | None:
        """The turn behind what was decided; None where nobody wants to decide, and the calls go on waiting."""
        self._screen.blank()
        try:
            given = [Decided(each, await self._confirm(prompt, question)) for each, question in _asked(answer)]
        except EOFError:
            self._screen.say("Nothing is run.")
            return None
        with unechoed(sys.stdin):
            return await self._turn(given)

    async def _confirm(self, prompt: Prompt, question: Question) -> bool:
        """Whether they say yes; asked until it is clear."""
        if question.above:
            self._screen.say(question.above)
        while (said := await prompt.confirm(question.words, may_see_all=question.whole is not None)) is None:
            self._screen.say(question.whole or "")
        return said

    async def _turn(self, asked: Asked) -> Answer:
        """Ask, and show the answer as it comes. What goes wrong is told, and the next turn may go better."""
        answer = Answer(began=time.monotonic())
        writing = Writing(self._screen, answer)
        try:
            if not await self._interrupts.run(self._follow(asked, answer, writing)):
                await self._cancel(answer)
        except ChatFault as fault:
            answer.finish("failed", self._said(fault), time.monotonic())
        self._conversation.note(asked, answer)
        writing.finish(time.monotonic())
        return answer

    async def _follow(self, asked: Asked, answer: Answer, writing: Writing) -> None:
        """Until the answer has ended. What takes long to draw is drawn less often."""
        await awaited(self._screen, self._home.ready)
        receiving = asyncio.create_task(receive(self._home, self._conversation, asked, answer))
        try:
            while not receiving.done():
                began = time.monotonic()
                writing.draw(began)
                pause = max(FRAME, _REST * (time.monotonic() - began))
                await asyncio.wait({receiving}, timeout=pause)
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
        receiving.result()

    async def _cancel(self, answer: Answer) -> None:
        answer.finish("cancelled", "", time.monotonic())
        if answer.response_id:
            await self._interrupts.run(self._home.client.cancel(answer.response_id))

    def _said(self, fault: ChatFault) -> str:
        """In words that say what to do where that is known."""
        if isinstance(fault, Refused) and fault.code == _UNKNOWN_LABEL:
            for label in [label for label in self._conversation.labels if repr(label) in str(fault)]:
                self._conversation.switch(label, on=False)
                return f"The server has no tools labelled {label!r}; they are switched off now. Ask again."
        if isinstance(fault, Refused) and fault.param == "model":
            return f"{fault} `/model` lists the models."
        return str(fault)


def _asked(answer: Answer) -> list[tuple[Called, Question]]:
    return list(zip(answer.asked, questions(answer.asked), strict=True))
