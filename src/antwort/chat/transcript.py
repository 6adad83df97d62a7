"""The conversation as a Markdown file."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from antwort.chat.answer import Answer, Called, Part, Problem, Said, Thought
from antwort.chat.calls import seconds_shown
from antwort.chat.scrub import scrub_for_file


def transcript(turns: Sequence[tuple[str, Answer]], model: str, now: datetime) -> str:
    return scrub_for_file("\n\n".join([f"# Chat with {model}", f"{now:%Y-%m-%d %H:%M}", *_turns(turns)])) + "\n"


def _turns(turns: Sequence[tuple[str, Answer]]) -> Iterator[str]:
    for asked, answer in turns:
        yield "## You"
        yield asked
        yield f"## {answer.model or 'Answer'}"
        yield from (shown for part in answer.parts if (shown := _part(part)))
        if answer.status != "completed":
            yield f"*{answer.problem or answer.status}*"


def _part(part: Part) -> str:
    match part:
        case Said(text=text):
            return text.strip()
        case Thought(text=text):
            return "\n".join(f"> {line}".rstrip() for line in text.strip().split("\n")) if text.strip() else ""
        case Called():
            return _call(part)
        case Problem(text=text):
            return f"*{text}*"


def _call(called: Called) -> str:
    seconds = called.seconds(called.ended or 0.0)
    took = "" if seconds is None else f", {seconds_shown(seconds)}"
    head = f"**{called.title}**{took}{', failed' if called.error else ''}"
    language = "json" if called.arguments.lstrip().startswith("{") else ""  # a free-form tool takes any text
    if called.approval:
        return "\n\n".join([f"{head}, to be approved", fenced(called.arguments, language)])
    return "\n\n".join([head, fenced(called.arguments, language), fenced(called.error or called.output)])


def fenced(text: str, language: str = "") -> str:
    """In a fence that is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def usual_name(now: datetime) -> str:
    return f"antwort-chat-{now:%Y-%m-%d-%H%M%S}.md"


def save(file: Path, text: str, *, overwrite: bool = False) -> None:
    """For nobody else to read; a file that is overwritten is read by whoever could before. Raises `OSError`:
    `FileExistsError` for a file that is there and not to be overwritten.
    """
    place = Path(os.path.realpath(file)) if overwrite else file
    before = _status(place)
    if overwrite and before is not None:
        _replace(place, text, before)
        return
    number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
        opened.write(text)


def _status(file: Path) -> os.stat_result | None:
    """Raises `OSError` for what is there and no file: a device would be lost."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a file")
    return status


def _replace(file: Path, text: str, before: os.stat_result) -> None:
    """At once, or not at all; owner and rights stay."""
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(text)
        with suppress(PermissionError):  # only root can give a file away
            os.chown(name, before.st_uid, before.st_gid)
        Path(name).chmod(stat.S_IMODE(before.st_mode))
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
