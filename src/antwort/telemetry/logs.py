"""Configure logging: level, format and destination."""

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
    # No line names its thread or process, and finding them out is a third of the cost of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=logging.WARNING, handlers=[writer], force=True)
    logging.getLogger("antwort").setLevel(level.upper())
    logging.getLogger("psycopg").setLevel(_OFF)  # it names hosts, users and databases, and we log the same events
    content_log.setLevel(logging.INFO if content else _OFF)


@contextmanager
def batching() -> Iterator[None]:
    """Batch log lines under load while an event loop runs. The context must end before the event loop does."""
    with ExitStack() as held:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, LineWriter):
                held.enter_context(handler.batching())
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
