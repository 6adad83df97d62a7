"""How the server's own lines look, and where they go."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, TextIO, TypeAlias

from antwort.telemetry.formatters import HumanFormatter, JsonFormatter, LineFormatter
from antwort.telemetry.log_events import content_log
from antwort.telemetry.log_writer import LineWriter

Format: TypeAlias = Literal["auto", "human", "json"]

_OFF = logging.CRITICAL + 1


def configure(level: str, format: Format = "auto", *, content: bool = False, stream: TextIO | None = None) -> None:  # noqa: A002 - as the setting is called
    """Log to standard error, or `stream`: ours from `level` on, other people's from warnings on.

    `auto` writes for people on a terminal and JSON otherwise. With `content`, what was asked and answered is written
    too, each time in a line of its own.
    """
    out = sys.stderr if stream is None else stream
    writer = LineWriter(out)
    writer.setFormatter(_lines(format, out, content=content))
    # No line says which thread or process wrote it, and to find out is a third of the cost of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=logging.WARNING, handlers=[writer], force=True)
    logging.getLogger("antwort").setLevel(level.upper())
    logging.getLogger("psycopg").setLevel(_OFF)  # it names hosts, users and databases; what it tells is told by us, too
    content_log.setLevel(logging.INFO if content else _OFF)


@contextmanager
def gathering() -> Iterator[None]:
    """While an event loop is at work that has an orderly end: under load, its lines are written a few at a time."""
    with ExitStack() as held:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, LineWriter):
                held.enter_context(handler.gathering())
        yield


def _lines(form: Format, out: TextIO | None, *, content: bool) -> LineFormatter:
    if form == "auto":
        form = "human" if _is_terminal(out) else "json"
    return HumanFormatter(content=content) if form == "human" else JsonFormatter(content=content)


def _is_terminal(out: TextIO | None) -> bool:
    try:
        return out is not None and out.isatty()
    except ValueError:  # closed
        return False
