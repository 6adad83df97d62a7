"""The conversation as a Markdown file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from antwort.chat.answer import Answer, Called, Part, Problem, Said, Thought
from antwort.chat.calls import seconds_shown
from antwort.chat.scrub import scrub


def transcript(turns: Sequence[tuple[str, Answer]], model: str, now: datetime) -> str:
    return "\n\n".join([f"# Chat with {scrub(model)}", f"{now:%Y-%m-%d %H:%M}", *_turns(turns)]) + "\n"


def _turns(turns: Sequence[tuple[str, Answer]]) -> Iterator[str]:
    for asked, answer in turns:
        yield "## You"
        yield scrub(asked)
        yield f"## {scrub(answer.model) or 'Answer'}"
        yield from (shown for part in answer.parts if (shown := _part(part)))
        if answer.status != "completed":
            yield f"*{scrub(answer.problem) or answer.status}*"


def _part(part: Part) -> str:
    match part:
        case Said(text=text):
            return scrub(text).strip()
        case Thought(text=text):
            return "\n".join(f"> {line}".rstrip() for line in scrub(text).strip().split("\n")) if text.strip() else ""
        case Called():
            return _call(part)
        case Problem(text=text):
            return f"*{scrub(text)}*"


def _call(called: Called) -> str:
    seconds = called.seconds(called.ended or 0.0)
    took = "" if seconds is None else f", {seconds_shown(seconds)}"
    head = f"**{scrub(called.title)}**{took}{', failed' if called.error else ''}"
    return "\n\n".join([head, fenced(called.arguments, "json"), fenced(called.error or called.output)])


def fenced(text: str, language: str = "") -> str:
    """In a fence that is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{scrub(text).strip()}\n{fence}"


def usual_name(now: datetime) -> str:
    return f"antwort-chat-{now:%Y-%m-%d-%H%M%S}.md"


def save(file: Path, text: str, *, overwrite: bool = False) -> None:
    """For nobody else to read. Raises `OSError`: `FileExistsError` for a file that is there and not to be replaced."""
    if overwrite:
        _replace(file, text)
        return
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
        opened.write(text)


def _replace(file: Path, text: str) -> None:
    """At once, or not at all."""
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(text)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
