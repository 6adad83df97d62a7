"""`antwort chat`: talk to a model in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from antwort.cli.output import discard_output, note, report_lost
from antwort.config.files import expanded
from antwort.config.flags import is_gguf
from antwort.config.problems import CannotStart
from antwort.config.secrets import can_be_sent, read_secret_file

if TYPE_CHECKING:
    from antwort.chat.start import Options

URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
_MAX_INPUT_BYTES = 16 * 2**20
_STATUS_ENDED = 143


def run(given: Mapping[str, object]) -> int:
    if any(find_spec(name) is None for name in ("markdown_it", "prompt_toolkit", "rich")):
        raise CannotStart("`antwort chat` is not installed: `pip install 'antwort[demo]'` brings it.")
    from antwort.chat.client import ChatError
    from antwort.chat.start import chat

    if sys.stdout is None:
        return report_lost("it is closed")
    try:
        return asyncio.run(chat(_options(given, os.environ)))
    except ChatError as exc:
        raise CannotStart(str(exc)) from exc
    except asyncio.CancelledError:  # a signal to end
        return _STATUS_ENDED
    except OSError as exc:  # the terminal is gone, the disk is full, or nobody reads any more
        return report_lost(discard_output(exc))


def _options(given: Mapping[str, object], environment: Mapping[str, str]) -> Options:
    """Raises `CannotStart`."""
    from antwort.chat.start import Options
    from antwort.local.demo import ABOUT, DEMO_NAME

    flags, url, model = _server_flags(given), _text(given, "url"), _text(given, "model")
    if url and flags is not None:
        raise CannotStart(
            "--url names a server that runs, and the other flags one to be started: leave one of them out."
        )
    if flags is None:
        url = url or environment.get(URL_VARIABLE) or None
    return Options(
        question=_question(given),
        url=url,
        key=_key(given, environment),
        model=None if model and is_gguf(model) else model,
        labels=() if given.get("no_tools") else tuple(_texts(given, "tools")) or None,
        system=_text(given, "system") or "",
        history=None if given.get("no_history") else _history_file(),
        own=flags,
        is_plain=not _is_terminal(sys.stdout),
        remarks={DEMO_NAME: ABOUT},
    )


def _server_flags(given: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the flags of `antwort serve` for a server of its own; None if nothing asks for one."""
    flags: list[str] = ["--scripted"] if given.get("scripted") else []
    for name in ("backend", "backend_key_file", "config", "gguf"):
        for value in _texts(given, name):
            flags += [f"--{name.replace('_', '-')}", value]
    model = _text(given, "model")
    if model and is_gguf(model):  # as in earlier versions
        note("antwort: --model takes a model's name; for a file, use --gguf FILE.")
        flags += ["--gguf", model]
    return (*flags, "--demo-tools") if flags or given.get("new") else None


def _history_file() -> Path | None:
    import platformdirs

    try:
        folder = platformdirs.user_state_path("antwort", appauthor=False)
    except RuntimeError:  # a user without a home
        return None
    return None if str(folder).startswith("~") else folder / "chat-history"


def _question(given: Mapping[str, object]) -> str | None:
    """Return the question with what is piped in behind it; None if a user sits at a terminal to ask."""
    asked = _text(given, "question")
    if asked is None and _is_terminal(sys.stdin) and _is_terminal(sys.stdout):
        return None
    piped = b""
    if sys.stdin is not None and not _is_terminal(sys.stdin):
        piped = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    if len(piped) > _MAX_INPUT_BYTES:
        raise CannotStart(f"The question is larger than {_MAX_INPUT_BYTES} bytes.")
    question = "\n\n".join(part for part in (asked, piped.decode(errors="replace")) if part).strip()
    if not question:
        raise CannotStart("There is no question: say `antwort chat QUESTION`, or give it on standard input.")
    return question


def _is_terminal(stream: TextIO | None) -> bool:
    """A stream is None if it was closed before the program began."""
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


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) and value else None


def _texts(given: Mapping[str, object], name: str) -> Sequence[str]:
    value = given.get(name)
    return [str(each) for each in value] if isinstance(value, list) else [value] if isinstance(value, str) else []
