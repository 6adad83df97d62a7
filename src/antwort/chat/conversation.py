"""What was said so far: what of it is sent in a request, and the transcript as a Markdown file."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from antwort.chat.answer import CallPart, ChatAnswer, Part, ProblemPart, ReasoningPart, TextPart
from antwort.chat.client import RequestRefused
from antwort.chat.formatting import format_seconds, sanitize_for_file
from antwort.chat.server import ChatServer

RequestItem: TypeAlias = dict[str, object] | msgspec.Raw
_NOT_FOUND = frozenset({"previous_response_not_found", "response_not_found"})


@dataclass(slots=True, frozen=True)
class ApprovalDecision:
    """A call that waited for approval, and the answer."""

    call: CallPart
    is_approved: bool


Question: TypeAlias = str | Sequence[ApprovalDecision]
"""What the user says: text, or decisions about calls."""


def _text(question: Question) -> str:
    if isinstance(question, str):
        return question
    return "\n".join(f"{'approved' if each.is_approved else 'denied'}: {each.call.title}" for each in question)


def _items(question: Question) -> list[RequestItem]:
    if isinstance(question, str):
        return [{"type": "message", "role": "user", "content": question}]
    kind = "mcp_approval_response"
    return [{"type": kind, "approval_request_id": each.call.approval, "approve": each.is_approved} for each in question]


@dataclass(slots=True)
class ChatConversation:
    """A conversation continues from the last response that was completed, not from one that failed or was cancelled."""

    model: str | None = None
    labels: list[str] = field(default_factory=list)
    """The toolsets that the model may use."""
    system: str = ""
    turns: list[tuple[str, ChatAnswer]] = field(default_factory=list)
    """All questions with their answers, for the transcript."""
    _previous: str | None = None
    _items: list[RequestItem] = field(default_factory=list)
    _is_stored: bool = True
    """Whether the server stores responses. Otherwise, all items are sent each time."""

    def request(self, question: Question) -> dict[str, object]:
        items = _items(question)
        body: dict[str, object] = {"stream": True, "input": items}
        if self.model:
            body["model"] = self.model
        if self.system:
            body["instructions"] = self.system
        if self.labels:
            body["tools"] = [
                {"type": "mcp", "server_label": label, "require_approval": "never"} for label in self.labels
            ]
        if self._previous and self._is_stored:
            body["previous_response_id"] = self._previous
        elif self._items:
            body["input"] = [*self._items, *items]
        return body

    def add(self, question: Question, answer: ChatAnswer) -> None:
        """Add a turn that has ended. The next one continues from it if it was completed."""
        self.turns.append((_text(question), answer))
        if answer.status in ("completed", "incomplete"):
            self._items += [*_items(question), *answer.output]
            self._previous = answer.response_id or None
            self._is_stored = self._is_stored and self._previous is not None

    def is_forgotten(self, code: str, param: str) -> bool:
        """Return whether an error says that the server has lost the previous response. Then all items are sent."""
        if not self._is_stored or self._previous is None:
            return False
        self._is_stored = code not in _NOT_FOUND and param != "previous_response_id"
        return not self._is_stored

    def clear(self) -> None:
        self.turns, self._items, self._previous, self._is_stored = [], [], None, True

    def switch(self, label: str, *, on: bool) -> None:
        if on and label not in self.labels:
            self.labels.append(label)
        elif not on and label in self.labels:
            self.labels.remove(label)


async def receive(server: ChatServer, conversation: ChatConversation, question: Question, answer: ChatAnswer) -> None:
    """Send the question, and feed the answer until its end. Raises `ChatError`."""
    for is_retry in (False, True):
        try:
            async with aclosing(server.client.events(conversation.request(question))) as events:
                async for event in events:
                    answer.feed(event, time.monotonic())
                    if answer.ended is not None:
                        return
            answer.cut_off(time.monotonic())
        except RequestRefused as error:
            if is_retry or not conversation.is_forgotten(error.code, error.param):
                raise
        else:
            return


# ---- the transcript ----


def transcript(turns: Sequence[tuple[str, ChatAnswer]], model: str, now: datetime) -> str:
    parts = [f"# Chat with {model}", f"{now:%Y-%m-%d %H:%M}"]
    for question, answer in turns:
        parts += ["## You", question, f"## {answer.model or 'Answer'}", *_parts(answer)]
        if answer.status != "completed":
            parts.append(f"*{answer.problem or answer.status}*")
    return sanitize_for_file("\n\n".join(parts)) + "\n"


def _parts(answer: ChatAnswer) -> Iterator[str]:
    for part in answer.parts:
        if text := _part(part):
            yield text


def _part(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text.strip()
        case ReasoningPart(text=text):
            return "\n".join(f"> {line}".rstrip() for line in text.strip().split("\n")) if text.strip() else ""
        case ProblemPart(text=text):
            return f"*{text}*"
        case CallPart() as call:
            seconds = call.seconds(call.ended or 0.0)
            took = "" if seconds is None else f", {format_seconds(seconds)}"
            head = f"**{call.title}**{took}{', failed' if call.error else ''}"
            language = "json" if call.arguments.lstrip().startswith("{") else ""  # a free-form tool takes any text
            arguments = fenced(call.arguments, language)
            if call.approval:
                return f"{head}, to be approved\n\n{arguments}"
            return f"{head}\n\n{arguments}\n\n{fenced(call.error or call.output)}"


def fenced(text: str, language: str = "") -> str:
    """Put the text into a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def default_name(now: datetime) -> str:
    return f"antwort-chat-{now:%Y-%m-%d-%H%M%S}.md"


def save(file: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a file that only the user can read. A file that is overwritten keeps its owner and permissions.

    Raises `OSError`; `FileExistsError` if the file exists and is not to be overwritten.
    """
    path = Path(os.path.realpath(file)) if overwrite else file
    try:
        former = path.stat()
    except FileNotFoundError:
        former = None
    if former is not None and not stat.S_ISREG(former.st_mode):  # overwriting would destroy a device
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(former.st_mode) else "it is not a file")
    if former is None or not overwrite:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(text)
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(text)
        with suppress(PermissionError):  # only root can give a file away
            os.chown(name, former.st_uid, former.st_gid)
        Path(name).chmod(stat.S_IMODE(former.st_mode))
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
