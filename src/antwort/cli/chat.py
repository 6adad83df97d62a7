"""`antwort chat`: talk to a model in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from antwort.cli.output import discard_output, note, report, report_lost
from antwort.config.files import expanded
from antwort.config.flags import is_gguf
from antwort.config.problems import CannotStart
from antwort.config.secrets import can_be_sent, read_secret_file

if TYPE_CHECKING:
    from antwort.chat.start import Options

URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
_LARGEST_INPUT = 16 * 2**20
_STATUS_ENDED = 143


def run(given: Mapping[str, object]) -> int:
    from antwort.chat.client import ChatFault
    from antwort.chat.start import chat

    if sys.stdout is None:
        return report_lost("it is closed")
    try:
        return asyncio.run(chat(options(given, os.environ)))
    except ChatFault as fault:
        return report(CannotStart(str(fault)))
    except CannotStart as fault:
        return report(fault)
    except asyncio.CancelledError:  # a signal to end
        return _STATUS_ENDED
    except OSError as exc:  # the terminal is gone, the disk is full, or nobody reads any more
        return report_lost(discard_output(exc))


def options(given: Mapping[str, object], environment: Mapping[str, str]) -> Options:
    """Raises `CannotStart`."""
    from antwort.chat.start import Options
    from antwort.local.demo import DEMO_NAME
    from antwort.local.traits import ABOUT

    flags = own_flags(given)
    url = _text(given, "url") or (environment.get(URL_VARIABLE) if flags is None else None) or None
    if _text(given, "url") and flags is not None:
        raise CannotStart(
            "--url names a server that runs, and the other flags one to be started: leave one of them out."
        )
    model = _text(given, "model")
    return Options(
        question=_question(given),
        url=url,
        key=_key(given, environment),
        model=None if model and is_gguf(model) else model,
        labels=_labels(given),
        system=_text(given, "system") or "",
        history=None if given.get("no_history") else history_file(),
        own=flags,
        is_plain=not _is_terminal(sys.stdout),
        remarks={DEMO_NAME: ABOUT},
    )


def own_flags(given: Mapping[str, object]) -> tuple[str, ...] | None:
    """The flags of `antwort serve` that are asked for here; None where nothing is said of a server of one's own."""
    flags: list[str] = ["--scripted"] if given.get("scripted") else []
    for name in ("backend", "backend_key_file", "config", "gguf"):
        for value in _values(given, name):
            flags += [f"--{name.replace('_', '-')}", value]
    model = _text(given, "model")
    if model and is_gguf(model):  # as in earlier versions
        note("antwort: --model takes a model's name; for a file, use --gguf FILE.")
        flags += ["--gguf", model]
    if not flags and not given.get("new"):
        return None
    return (*flags, "--demo-tools")


def history_file() -> Path | None:
    import platformdirs

    try:
        folder = platformdirs.user_state_path("antwort", appauthor=False)
    except RuntimeError:  # a user without a home
        return None
    return None if str(folder).startswith("~") else folder / "chat-history"


def _question(given: Mapping[str, object]) -> str | None:
    """What is asked once, with what is piped in behind it; None where somebody sits at a terminal to ask."""
    asked = _text(given, "question")
    if asked is None and _is_terminal(sys.stdin) and _is_terminal(sys.stdout):
        return None
    question = "\n\n".join(part for part in (asked, _read_input()) if part)
    if not question.strip():
        raise CannotStart("There is no question: say `antwort chat QUESTION`, or give it on standard input.")
    return question.strip()


def _read_input() -> str:
    if sys.stdin is None or _is_terminal(sys.stdin):  # nobody knows that they are to type something
        return ""
    data = sys.stdin.buffer.read(_LARGEST_INPUT + 1)
    if len(data) > _LARGEST_INPUT:
        raise CannotStart(f"The question is larger than {_LARGEST_INPUT} bytes.")
    return data.decode(errors="replace")


def _is_terminal(stream: TextIO | None) -> bool:
    """A stream that was closed before we began is none."""
    return stream is not None and stream.isatty()


def _key(given: Mapping[str, object], environment: Mapping[str, str]) -> str | None:
    file = _text(given, "key_file")
    try:
        key = read_secret_file(Path(expanded(file))) if file else environment.get(KEY_VARIABLE, "").strip()
    except ValueError as exc:
        raise CannotStart(f"The server's key {exc}.") from exc
    if key and not can_be_sent(key):
        raise CannotStart("The server's key cannot be sent: only printable ASCII can.")
    return key or None


def _labels(given: Mapping[str, object]) -> tuple[str, ...] | None:
    return () if given.get("no_tools") else tuple(_values(given, "tools")) or None


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) and value else None


def _values(given: Mapping[str, object], name: str) -> Sequence[str]:
    value = given.get(name)
    if isinstance(value, list):
        return [str(each) for each in value]
    return [value] if isinstance(value, str) else []
