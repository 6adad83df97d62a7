"""A chat from its beginning to its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from antwort.chat import home as homes
from antwort.chat.conversation import Conversation
from antwort.chat.home import Home
from antwort.chat.server import Report

WAITS = "A call waits to be approved, and there is nobody to ask. Run `antwort chat` without a question for that."


@dataclass(frozen=True, slots=True)
class Options:
    question: str | None = None
    """Asked once; None: whoever sits at the terminal asks."""
    url: str | None = None
    key: str | None = None
    model: str | None = None
    labels: tuple[str, ...] | None = None
    """The toolsets that the model may use; None: all that the server has."""
    system: str = ""
    history: Path | None = None
    """Where what is typed is kept; None: nowhere."""
    own: tuple[str, ...] | None = None
    """The flags of a server to be started; None: one that runs, if there is one."""
    is_plain: bool = False
    """The output is read by a program."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """What there is to say of a model, by its name."""


async def chat(options: Options) -> int:
    """The exit status. Raises `ChatFault` where it cannot begin, and `OSError` where it cannot write."""
    main = asyncio.current_task()
    assert main is not None
    _end_at_signals(main)
    if options.is_plain:
        from antwort.chat.plain import answer_once as hold
    else:
        from antwort.chat.shown import talk as hold
    return await hold(options)


def _end_at_signals(main: asyncio.Task[int]) -> None:
    """So that what we have started is stopped."""
    for name in ("SIGTERM", "SIGHUP"):
        with suppress(AttributeError, NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(getattr(signal, name), main.cancel)


async def find_home(options: Options, report: Report) -> Home:
    if options.url is not None:
        return await homes.running(options.url, options.key)
    if options.own is None and (found := await homes.usual(options.key)) is not None:
        return found
    report("starting a server")
    return await homes.own(options.own or ("--demo-tools",), report)


async def begin(home: Home, options: Options) -> Conversation:
    """Which model is talked to, and with which tools."""
    await home.look(lambda _: None)
    model = options.model or (home.models[0] if len(home.models) == 1 else None)
    offered = [toolset.label for toolset in home.toolsets]
    labels = offered if options.labels is None else list(options.labels)
    return Conversation(model=model, labels=labels, system=options.system)
