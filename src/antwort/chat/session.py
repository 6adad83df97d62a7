"""A chat in a terminal, from its greeting to its end: ask, show the answer, decide about calls, repeat."""

from __future__ import annotations

import asyncio
import sys
import time

from antwort.chat.answer import ChatAnswer
from antwort.chat.answer_view import AnswerView
from antwort.chat.client import ChatError, RequestRefused
from antwort.chat.commands import CommandRunner, completions, parse
from antwort.chat.conversation import ApprovalDecision, ChatConversation, Question, receive
from antwort.chat.prompt import ChatPrompt, Confirmation, confirmations, without_echo
from antwort.chat.screen import FRAME_SECONDS, Interrupts, Screen
from antwort.chat.server import ChatServer, Report
from antwort.chat.start import NOBODY_TO_ASK, Options, find_server, new_conversation
from antwort.version import __version__

_PAUSE_FACTOR = 3
"""The pause between two drawings is at least that many times as long as one of them takes."""
_EXIT_STATUS = {"completed": 0, "incomplete": 0, "cancelled": 130}


async def run(options: Options) -> int:
    """Return the exit status. Raises `ChatError` if the chat cannot begin."""
    screen = Screen(sys.stdout)
    server: ChatServer | None = None

    async def find(report: Report) -> None:
        nonlocal server
        server = await find_server(options, report)

    try:
        await screen.wait(find)
        assert server is not None
        return await _hold(screen, server, options)
    finally:
        if server is not None:
            await server.close()


async def _hold(screen: Screen, server: ChatServer, options: Options) -> int:
    conversation = await new_conversation(server, options)
    session = ChatSession(screen, server, conversation)
    if options.question is not None:
        return await session.ask_once(options.question)

    def complete(before: str) -> list[str]:
        return completions(before, server.models, list(server.tools))

    _greet(screen, server, conversation, options)
    await session.talk(ChatPrompt(screen.glyphs.prompt, complete, options.history))
    return 0


def _greet(screen: Screen, server: ChatServer, conversation: ChatConversation, options: Options) -> None:
    dot = f" {screen.glyphs.dot} "
    where = "a server of its own, gone with this chat" if server.is_own else server.client.url
    screen.say(dot.join([f"antwort {__version__}", conversation.model or "the server's model", where]))
    if remark := options.remarks.get(conversation.model or ""):
        screen.say(f"{conversation.model}: {remark}")
    for label in conversation.labels:
        names = server.tools.get(label)
        screen.say(f"tools {label}: {', '.join(names)}" if names else f"tools {label}")
    screen.say("/help lists the commands, Ctrl-D ends")
    screen.blank()


class ChatSession:
    def __init__(self, screen: Screen, server: ChatServer, conversation: ChatConversation) -> None:
        self._screen, self._server, self._conversation = screen, server, conversation
        self._interrupts = Interrupts()
        self._commands = CommandRunner(screen, server, conversation, self._interrupts)

    async def talk(self, prompt: ChatPrompt) -> None:
        """Ask for questions and commands until the user ends the chat."""
        with self._interrupts.caught():
            while await self._next(prompt):
                self._screen.blank()

    async def ask_once(self, question: str) -> int:
        """Ask one question, and return the exit status."""
        with self._interrupts.caught(), without_echo(sys.stdin):
            answer = await self._turn(question)
        if answer.awaiting_approval:
            self._screen.say(NOBODY_TO_ASK, "yellow")
            return 1
        return _EXIT_STATUS.get(answer.status, 1)

    async def _next(self, prompt: ChatPrompt) -> bool:
        """Run one command, or one turn with its approvals. Return whether the chat goes on."""
        try:
            line = await prompt.ask()
        except EOFError:
            return False
        with without_echo(sys.stdin):
            if (command := parse(line)) is not None:
                return await self._commands.run(command)
            answer = await self._turn(line.strip()) if line.strip() else None
        while answer is not None and answer.awaiting_approval:
            answer = await self._decide(prompt, answer)
        return True

    async def _decide(self, prompt: ChatPrompt, answer: ChatAnswer) -> ChatAnswer | None:
        """Ask about the calls, and return the next answer; None if the user does not decide."""
        self._screen.blank()
        calls = answer.awaiting_approval
        decisions = []
        try:
            for call, confirmation in zip(calls, confirmations(calls), strict=True):
                decisions.append(ApprovalDecision(call, await self._confirm(prompt, confirmation)))
        except EOFError:
            self._screen.say("Nothing is run.")
            return None
        with without_echo(sys.stdin):
            return await self._turn(decisions)

    async def _confirm(self, prompt: ChatPrompt, confirmation: Confirmation) -> bool:
        if confirmation.above:
            self._screen.say(confirmation.above)
        while (said := await prompt.confirm(confirmation.question, has_more=confirmation.whole is not None)) is None:
            self._screen.say(confirmation.whole or "")
        return said

    async def _turn(self, question: Question) -> ChatAnswer:
        """Ask, and show the answer as it comes. After an error, the chat goes on."""
        answer = ChatAnswer(began=time.monotonic())
        view = AnswerView(self._screen, answer)
        try:
            if not await self._interrupts.run(self._follow(question, answer, view)):
                answer.finish("cancelled", "", time.monotonic())
                if answer.response_id:
                    await self._interrupts.run(self._server.client.cancel(answer.response_id))
        except ChatError as error:
            answer.finish("failed", self._explain(error), time.monotonic())
        self._conversation.add(question, answer)
        view.finish(time.monotonic())
        return answer

    async def _follow(self, question: Question, answer: ChatAnswer, view: AnswerView) -> None:
        await self._screen.wait(self._server.ready)
        receiving = asyncio.create_task(receive(self._server, self._conversation, question, answer))
        try:
            while not receiving.done():
                started_at = time.monotonic()
                view.draw(started_at)
                pause = max(FRAME_SECONDS, _PAUSE_FACTOR * (time.monotonic() - started_at))
                await asyncio.wait({receiving}, timeout=pause)
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
        receiving.result()

    def _explain(self, error: ChatError) -> str:
        """Return the message, with what to do where that is known."""
        if isinstance(error, RequestRefused) and error.code == "unknown_tool_server":
            for label in [label for label in self._conversation.labels if repr(label) in str(error)]:
                self._conversation.switch(label, on=False)
                return f"The server has no tools labelled {label!r}; they are switched off now. Ask again."
        if isinstance(error, RequestRefused) and error.param == "model":
            return f"{error} `/model` lists the models."
        return str(error)
