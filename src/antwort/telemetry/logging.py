"""Write the log: each record as one line, as JSON or for people, on a thread of its own."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

from antwort.notes import RESPONSE_ID, Fields, Value
from antwort.server.exchange import REQUEST_ID

Format: TypeAlias = Literal["auto", "human", "json"]

MAX_TEXT_CHARS = 2000
"""Of a message or a field."""
MAX_TRACE_CHARS = 20_000
MAX_QUEUED_BYTES = 2**20
"""Bytes of lines that wait for a reader that has stopped reading."""
BATCH_SECONDS = 0.005
"""Between two writes: under load, lines are written many at a time, which takes less time than waking up for each.
Warnings do not wait.
"""
MAX_BATCH_LINES = 256
MAX_BATCH_BYTES = 2**16
"""Bytes that do not wait for more."""
FLUSH_SECONDS = 1.0
"""For which the end of the program waits for a reader to take what is queued."""
CONTENT_LOG = "antwort.content"
_TOOLS_LOG = "antwort.tools"
"""Exceptions of tools are logged there; their messages are tool output."""
_OFF = logging.CRITICAL + 1
# Not left to the levels of others: a program that sets "antwort" to INFO has not asked for content.
logging.getLogger(CONTENT_LOG).setLevel(_OFF)


def configure(level: str, format: Format = "auto", *, content: bool = False, stream: TextIO | None = None) -> None:  # noqa: A002 - as the setting is called
    """Log to standard error, or `stream`: ours from `level` on, other people's from warnings on.

    `auto` writes for people on a terminal and JSON otherwise. With `content`, what was asked and answered is written
    too, each time in a line of its own.
    """
    out = sys.stderr if stream is None else stream
    if format == "auto":
        format = "human" if _is_terminal(out) else "json"  # noqa: A001
    handler = LogHandler(out)
    handler.setFormatter(HumanFormatter(content=content) if format == "human" else JsonFormatter(content=content))
    # No line names its thread or process, and finding them out is a third of the cost of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _show_exception
    logging.getLogger("antwort").setLevel(level.upper())
    logging.getLogger("psycopg").setLevel(_OFF)  # it names hosts, users and databases, and we log the same events
    logging.getLogger(CONTENT_LOG).setLevel(logging.INFO if content else _OFF)


def _show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write what is queued, so that no line comes in the middle of the traceback with which the program ends."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.__excepthook__(kind, error, trace)


def _is_terminal(out: TextIO | None) -> bool:
    try:
        return out is not None and out.isatty()
    except ValueError:  # closed
        return False


# ---- writing ----


class LogHandler(QueueHandler):
    """Put each line into a queue, from which a thread writes them.

    When the reader of the stream stops, only that thread waits. Lines beyond `MAX_QUEUED_BYTES` are dropped, and
    counted in a line of their own when the reader is back. A stream that is closed or broken loses its lines, and
    nothing else happens. A forked process, which has no such thread, writes its lines at once.

    The garbage collector runs at any time on any thread, and a finalizer may log: `SimpleQueue` and the handler's lock
    are made for that.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._lines: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self._lines)
        self._stream, self._fd = stream, _descriptor(stream)
        self._forks = _forks
        self._queued = self._lost = 0
        """Bytes and lines so far, counted by those who log."""
        self._written = self._reported = 0
        """Of these, what the thread has written, and counted in a line."""
        self._is_closed = self._is_stuck = False
        self._is_urgent = threading.Event()
        """Set when the thread is not to wait for more lines."""
        self._listener = _Listener(self._lines, self._write_batch, self._is_urgent)
        self._listener.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        if self._is_closed or self._forks != _forks:
            if not self._is_stuck:
                self._write(line)
            return
        waiting = self._queued - self._written
        if waiting and waiting + len(line) > MAX_QUEUED_BYTES:
            self._lost += 1
        else:
            self._queued += len(line)
            self._lines.put(line)
        if record.levelno >= logging.WARNING or waiting > MAX_BATCH_BYTES:
            self._is_urgent.set()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the record: there is no other place to report it."""

    def flush(self) -> None:
        """Wait until all lines so far are written, at most for `FLUSH_SECONDS`."""
        if not self._is_closed and self._forks == _forks:
            written = threading.Event()
            self._lines.put(written)
            self._is_urgent.set()
            self._is_stuck = not written.wait(FLUSH_SECONDS)

    def close(self) -> None:
        self.flush()
        if not self._is_closed and self._forks == _forks:
            self._is_closed = True
            self._listener.enqueue_sentinel()
        super().close()

    # ---- on the thread ----

    def _write_batch(self, batch: Sequence[bytes | threading.Event]) -> None:
        lines = [each for each in batch if isinstance(each, bytes)]
        self._write(data := b"".join(lines))
        self._written += len(data)
        if (lost := self._lost - self._reported) and self._lines.empty():
            self._reported += lost
            words = f"{lost} lines of the log were lost: nobody read them"
            record = logging.LogRecord("antwort.telemetry", logging.WARNING, "", 0, words, None, None)
            self._write((self.format(record) + "\n").encode())
        for each in batch:
            if isinstance(each, threading.Event):
                each.set()

    def _write(self, data: bytes) -> None:
        with suppress(Exception):  # the reader is gone, or the stream is closed
            if self._fd is None:
                if self._stream is not None:
                    self._stream.write(data.decode())
                return
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    select.select([], [self._fd], [], 1.0)


class _Listener(QueueListener):
    """Take what is in the queue, many lines at a time, and write it."""

    def __init__(
        self, lines: SimpleQueue[Any], write: Callable[[Sequence[Any]], None], is_urgent: threading.Event
    ) -> None:
        super().__init__(lines)
        self._lines, self._write, self._is_urgent = lines, write, is_urgent

    def dequeue(self, block: bool) -> Any:
        """Return the next lines, or None at the end."""
        batch = [self._lines.get(block)]
        with suppress(Empty):
            while batch[-1] is not None and len(batch) < MAX_BATCH_LINES:
                batch.append(self._lines.get_nowait())
        if batch[-1] is None and len(batch) > 1:
            self.enqueue_sentinel()
            batch.pop()
        return None if batch[-1] is None else batch

    def handle(self, record: Any) -> None:
        self._is_urgent.clear()
        self._write(record)
        self._is_urgent.wait(BATCH_SECONDS)


_forks = 0
"""How many of the processes that this one descends from were forked after this module was loaded."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of a stream: nothing written to it directly stays in a buffer when the program ends."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


# ---- lines ----


class Content(str):
    """Text that the operator has asked to see whole."""

    __slots__ = ()


class LineFormatter(logging.Formatter):
    """The common part of both formats: untrusted text cannot end a line or forge a field. With `content`, exceptions of
    tools are written with their messages.
    """

    time_format: str
    time_parts: Callable[[float], time.struct_time]

    def __init__(self, *, content: bool = False) -> None:
        super().__init__()
        self._content = content
        self._second = (-1, "")

    def _time(self, created: float) -> str:
        """Return the time with milliseconds. The rest is formatted once for all lines of a second."""
        second, text = self._second
        if (now := int(created)) != second:
            second, text = self._second = now, time.strftime(self.time_format, self.time_parts(now))
        return text + _MILLISECONDS[int((created - second) * 1000)]

    def _message(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception:  # the arguments do not fit the format: a defect, but the line still counts
            message = str(record.msg)
        return _short(message, MAX_TEXT_CHARS)

    def _trace(self, record: logging.LogRecord) -> str:
        """Return the traceback; of a tool's exception without its message."""
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        error = record.exc_info[1]
        if record.name == _TOOLS_LOG and not self._content:
            return _short("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__, MAX_TRACE_CHARS)
        return _short("".join(traceback.format_exception(error)).rstrip("\n"), MAX_TRACE_CHARS)


_MILLISECONDS = [f".{number:03d}" for number in range(1000)]
_NO_FIELDS: Fields = {}
_OWN_FIELDS = frozenset({"time", "level", "logger", "message", "exception"})
_LEVELS = {level: logging.getLevelName(level).lower() for level in (10, 20, 30, 40, 50)}
_PLAIN_TYPES = frozenset({str, int, float, bool})
_BARE = re.compile(r"[A-Za-z0-9._~:/+@,%-]+")
_encoder = msgspec.json.Encoder(enc_hook=str)


class JsonFormatter(LineFormatter):
    """One JSON object a line, all of it ASCII."""

    time_format = "%Y-%m-%dT%H:%M:%S"  # RFC 3339
    time_parts = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        said: Fields = record.__dict__.get("said", _NO_FIELDS)
        fields: Fields = record.__dict__.get("fields", _NO_FIELDS)
        line: dict[str, Any] = {
            "time": self._time(record.created) + "Z",
            "level": _LEVELS.get(record.levelno) or record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record) if record.args or type(record.msg) is not str else record.msg,
        }
        if (
            not record.exc_info
            and _OWN_FIELDS.isdisjoint(said)
            and _OWN_FIELDS.isdisjoint(fields)
            and (text := _encode_plain({**line, **said, **fields})) is not None
        ):
            return text
        line["message"] = self._message(record)
        line |= _cleaned(said) | _cleaned(fields)
        _add_ids(line)
        if trace := self._trace(record):
            line["exception"] = trace
        return json.dumps(line, separators=(",", ":")).replace("\x7f", "\\u007f")


def _encode_plain(line: dict[str, Any]) -> str | None:
    """Return the line, or None if a value must be shortened, escaped or left out, which takes three times as long
    (12 us for the line of a request, in place of 4) and is needed for few lines.
    """
    if not _PLAIN_TYPES.issuperset(map(type, line.values())):
        return None
    _add_ids(line)
    try:
        text = _encoder.encode(line)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    # What has to be cut is in none that is short, and what is no number in JSON is written as null.
    if len(text) > MAX_TEXT_CHARS or b"null" in text or b"\x7f" in text or not text.isascii():
        return None
    return text.decode()


class HumanFormatter(LineFormatter):
    """Write time, level, logger and message, then `name=value` for each field. Ambiguous values are quoted, and so are
    messages with `=` or `"` in them. The lines of a traceback are marked.
    """

    time_format = "%Y-%m-%d %H:%M:%S"
    time_parts = staticmethod(time.localtime)  # the reader's own

    def format(self, record: logging.LogRecord) -> str:
        message = self._message(record)
        fields = _cleaned(record.__dict__.get("fields", _NO_FIELDS))
        _add_ids(fields)
        shown = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        said = _quoted(message) if "=" in message or '"' in message else _escaped(message)
        line = f"{self._time(record.created)} {record.levelname} {record.name} {said}{shown}"
        trace = self._trace(record)
        return line + "".join(f"\n  | {_escaped(part)}" for part in trace.split("\n")) if trace else line


def _add_ids(fields: dict[str, Any]) -> None:
    """Add the ids of the request and the response that the line is written for."""
    if "request_id" not in fields and (request_id := REQUEST_ID.get()):
        fields["request_id"] = request_id
    if "response_id" not in fields and (response_id := RESPONSE_ID.get()):
        fields["response_id"] = response_id


def _cleaned(fields: Fields) -> dict[str, Any]:
    """Return the fields that have a value, as either format can write it."""
    found = {name: value for name, value in fields.items() if value is not None and name not in _OWN_FIELDS}
    return {name: _clean(value) for name, value in found.items()}


def _clean(value: Value) -> Value:
    if isinstance(value, Content):  # which has a bound of its own
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value
    try:
        return _short(str(value), MAX_TEXT_CHARS)
    except Exception:
        return f"a {type(value).__name__}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def _shown(value: Value) -> str:
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else _quoted(value)
    return _encoder.encode(value).decode()


def _escaped(text: str) -> str:
    """Return the text with line ends, terminal commands and direction marks escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _quoted(text: str) -> str:
    return '"' + _escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
