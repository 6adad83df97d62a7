"""Start a chat: find or start its server, and hold it in the terminal, or answer one question as plain text."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from antwort.chat.answer import ChatAnswer
from antwort.chat.conversation import ChatConversation, receive
from antwort.chat.formatting import one_line, sanitize_for_file
from antwort.chat.server import ChatServer, Report, own_server, server_at, usual_server

NOBODY_TO_ASK = (
    "A call waits to be approved, and there is nobody to ask. Run `antwort chat` without a question for that."
)
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    question: str | None = None
    """Asked once. None: the user types questions."""
    url: str | None = None
    key: str | None = None
    model: str | None = None
    labels: tuple[str, ...] | None = None
    """The toolsets that the model may use. None: all that the server has."""
    system: str = ""
    history: Path | None = None
    """The file for what is typed. None: it is not kept."""
    own: tuple[str, ...] | None = None
    """The flags of a server to start. None: one that is running, if there is one."""
    is_plain: bool = False
    """Whether the output is not a terminal."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """What to say about models, by their names."""


async def chat(options: Options) -> int:
    """Return the exit status. Raises `ChatError`, and `OSError` if the output cannot be written."""
    main = asyncio.current_task()
    assert main is not None
    for name in ("SIGTERM", "SIGHUP"):  # end in order, so that a server of our own is stopped
        with suppress(AttributeError, NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(getattr(signal, name), main.cancel)
    if options.is_plain:
        return await _answer_once(options)
    from antwort.chat.session import run

    return await run(options)


async def find_server(options: Options, report: Report) -> ChatServer:
    """Return the server that the options ask for. Raises `ChatError`."""
    if options.url is not None:
        return server_at(options.url, options.key)
    if options.own is None and (found := await usual_server(options.key)) is not None:
        return found
    report("starting a server")
    return await own_server(options.own or ("--demo-tools",), report)


async def new_conversation(server: ChatServer, options: Options) -> ChatConversation:
    """Choose the model and the tools. Raises `ChatError`."""
    await server.refresh(lambda _: None)
    model = options.model or (server.models[0] if len(server.models) == 1 else None)
    labels = list(server.tools if options.labels is None else options.labels)
    return ChatConversation(model=model, labels=labels, system=options.system)


async def _answer_once(options: Options) -> int:
    """Write the answer to one question as plain text, as it comes."""
    server = await find_server(options, lambda _: None)
    try:
        conversation = await new_conversation(server, options)
        answer = ChatAnswer(began=time.monotonic())
        receiving = asyncio.create_task(receive(server, conversation, options.question or "", answer))
        try:
            written, is_done, text = 0, False, ""
            while not is_done:
                await asyncio.wait({receiving}, timeout=_POLL_SECONDS)
                is_done, text = receiving.done(), answer.text
                end = len(text) if is_done else len(text.rstrip("\r"))  # an LF may follow the CR
                _write(sanitize_for_file(text[written:end]))
                written = max(written, end)
            if text and not text.endswith("\n"):
                _write("\n")
            await receiving
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
    finally:
        await server.close()
    if answer.awaiting_approval:
        sys.stderr.write(f"antwort: {NOBODY_TO_ASK}\n")
        return 1
    if answer.status != "completed":
        sys.stderr.write(f"antwort: {one_line(answer.problem or answer.status, 2000)}\n")
    return 0 if answer.status in ("completed", "incomplete") else 1


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
