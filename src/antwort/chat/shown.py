"""A chat on a terminal, from its greeting to its end."""

from __future__ import annotations

import sys

from antwort.chat.commands import completions
from antwort.chat.conversation import Conversation
from antwort.chat.home import Home
from antwort.chat.prompting import Prompt
from antwort.chat.screen import Screen
from antwort.chat.server import Report
from antwort.chat.session import Session
from antwort.chat.start import WAITS, Options, begin, find_home
from antwort.chat.waiting import awaited
from antwort.version import __version__

_STATUS = {"completed": 0, "incomplete": 0, "cancelled": 130}


async def talk(options: Options) -> int:
    """The exit status. Raises `ChatFault` where it cannot begin."""
    screen = Screen(sys.stdout)
    home: Home | None = None

    async def find(report: Report) -> None:
        nonlocal home
        home = await find_home(options, report)

    try:
        await awaited(screen, find)
        assert home is not None
        return await _hold(screen, home, options)
    finally:
        if home is not None:
            await home.close()


async def _hold(screen: Screen, home: Home, options: Options) -> int:
    conversation = await begin(home, options)
    session = Session(screen, home, conversation)
    if options.question is not None:
        answer = await session.ask(options.question)
        if answer.asked:
            screen.say(WAITS, "yellow")
        return 1 if answer.asked else _STATUS.get(answer.status, 1)
    _greet(screen, home, conversation, options)
    await session.talk(_prompt(screen, home, options))
    return 0


def _greet(screen: Screen, home: Home, conversation: Conversation, options: Options) -> None:
    dot = f" {screen.glyphs.dot} "
    where = "a server of its own, gone with this chat" if home.is_own else home.client.url
    screen.say(dot.join([f"antwort {__version__}", conversation.model or "the server's model", where]))
    if remark := options.remarks.get(conversation.model or ""):
        screen.say(f"{conversation.model}: {remark}")
    known = {toolset.label: toolset.names for toolset in home.toolsets}
    for label in conversation.labels:
        tools = f": {', '.join(known[label])}" if known.get(label) else ""
        screen.say(f"tools {label}{tools}")
    screen.say("/help lists the commands, Ctrl-D ends")
    screen.blank()


def _prompt(screen: Screen, home: Home, options: Options) -> Prompt:
    def complete(before: str) -> list[str]:
        return list(completions(before, home.models, [toolset.label for toolset in home.toolsets]))

    return Prompt(screen.glyphs.prompt, complete, options.history)
