"""Format a log record as one line, for people or as JSON. Untrusted text cannot end the line or forge a field."""

from __future__ import annotations

import json
import logging
import math
import re
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from antwort.notes import RESPONSE_ID, Fields, Value
from antwort.server.exchange import REQUEST_ID

Plain: TypeAlias = str | int | float | bool | None

MAX_TEXT_CHARS = 2000
"""Of a message or a field."""
MAX_TRACE_CHARS = 20_000
PRIVATE = ("antwort.tools",)
"""Loggers whose exceptions come from tools: their messages are tool output, and not for the log."""

_BARE = re.compile(r"[A-Za-z0-9._~:/+@,%-]+")
_encoder = msgspec.json.Encoder(enc_hook=str)  # of strings that are more than that


class LineFormatter(logging.Formatter):
    """The common part of both formats. With `content`, exceptions of tools are written with their messages."""

    time_form: str
    time_parts: Callable[[float], time.struct_time]
    time_ends: Sequence[str]
    """For each millisecond."""

    def __init__(self, *, content: bool = False) -> None:
        super().__init__()
        self._content = content
        self._second = (-1, "")

    def _time(self, created: float) -> str:
        """Return the time with milliseconds. The rest is formatted once for all lines of a second."""
        second, text = self._second
        if (now := int(created)) != second:
            second, text = self._second = now, time.strftime(self.time_form, self.time_parts(now))
        return text + self.time_ends[int((created - second) * 1000)]

    def _add_fields(self, record: logging.LogRecord, kinds: Sequence[str], found: dict[str, Plain]) -> dict[str, Plain]:
        """Add the fields of a note, and the ids of its request and response."""
        said = record.__dict__
        for kind in kinds:
            fields: dict[str, Value] = said.get(kind, _NO_FIELDS)
            for name, value in fields.items():
                if value is not None and name not in _OURS:
                    is_short = type(value) is str and len(value) <= MAX_TEXT_CHARS  # as most are
                    found[name] = value if is_short else _plain(value)
        _add_ids(found)
        return found

    def _message(self, record: logging.LogRecord) -> str:
        if not record.args and type(record.msg) is str:  # as all notes are
            return record.msg if len(record.msg) <= MAX_TEXT_CHARS else _short(record.msg, MAX_TEXT_CHARS)
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
        if record.name in PRIVATE and not self._content:
            return _short("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__, MAX_TRACE_CHARS)
        return _short("".join(traceback.format_exception(error)).rstrip("\n"), MAX_TRACE_CHARS)


def _add_ids(found: dict[str, Plain]) -> None:
    if "request_id" not in found and (request_id := REQUEST_ID.get()):
        found["request_id"] = request_id
    if "response_id" not in found and (response_id := RESPONSE_ID.get()):
        found["response_id"] = response_id


_OURS = frozenset({"time", "level", "logger", "message", "exception"})
_NO_FIELDS: dict[str, Value] = {}
_AS_THEY_ARE = frozenset({str, int, float, bool})


class JsonFormatter(LineFormatter):
    """One JSON object a line, all of it ASCII."""

    time_form = "%Y-%m-%dT%H:%M:%S"  # RFC 3339
    time_parts = staticmethod(time.gmtime)
    time_ends = tuple([f".{number:03d}Z" for number in range(1000)])

    def format(self, record: logging.LogRecord) -> str:
        message = self._message(record)
        if not record.exc_info:
            said, fields = record.__dict__.get("said", _NO_FIELDS), record.__dict__.get("fields", _NO_FIELDS)
            line = self.format_note(record.created, record.levelname.lower(), record.name, message, said, fields)
            if line is not None:
                return line.decode()
        return self._format_each(record, message)

    def format_note(
        self, when: float, level: str, name: str, message: str, said: Fields, fields: Fields
    ) -> bytes | None:
        """Return the line of a note without a record, or None if a field must be shortened, escaped or renamed."""
        if not (_OURS.isdisjoint(said) and _OURS.isdisjoint(fields)):
            return None
        second, stamp = self._second
        stamp = stamp + self.time_ends[int((when - second) * 1000)] if int(when) == second else self._time(when)
        line = {"time": stamp, "level": level, "logger": name, "message": message, **said, **fields}
        if not _AS_THEY_ARE.issuperset(map(type, line.values())):
            return None
        if "request_id" not in line and (request_id := REQUEST_ID.get()):  # as in `_add_ids`
            line["request_id"] = request_id
        if "response_id" not in line and (response_id := RESPONSE_ID.get()):
            line["response_id"] = response_id
        try:
            text = _encoder.encode(line)
        except UnicodeEncodeError:  # as in `_encode`
            return None
        # What has to be cut is in none that is short, and what is no number in JSON is written as null.
        if len(text) > MAX_TEXT_CHARS or b"null" in text or b"\x7f" in text or not text.isascii():
            return None
        return text

    def _format_each(self, record: logging.LogRecord, message: str) -> str:
        line: dict[str, Plain] = {
            "time": self._time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        self._add_fields(record, ("said", "fields"), line)
        if record.exc_info and (trace := self._trace(record)):
            line["exception"] = trace
        return _encode(line)


class HumanFormatter(LineFormatter):
    """Write time, level, logger and message, then `name=value` for each field. Ambiguous values are quoted, and so are
    messages with `=` or `"` in them. The lines of a traceback are marked.
    """

    time_form = "%Y-%m-%d %H:%M:%S"
    time_parts = staticmethod(time.localtime)  # the reader's own
    time_ends = tuple([f".{number:03d}" for number in range(1000)])

    def format(self, record: logging.LogRecord) -> str:
        message = self._message(record)
        said = quoted(message) if "=" in message or '"' in message else clean(message)
        fields = "".join(
            f" {name}={_shown(value)}" for name, value in self._add_fields(record, ("fields",), {}).items()
        )
        line = f"{self._time(record.created)} {record.levelname} {record.name} {said}{fields}"
        trace = self._trace(record)
        return line + "".join(f"\n  | {clean(part)}" for part in trace.split("\n")) if trace else line


def clean(text: str) -> str:
    """Return the text with line ends, terminal commands and direction marks escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def quoted(text: str) -> str:
    return '"' + clean(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _shown(value: Plain) -> str:
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else quoted(value)
    return _encode_plain(value)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def _plain(value: Value) -> Plain:
    """Return the value as either format can write it."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_CHARS else _cut(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, int) else _short(_words(value), MAX_TEXT_CHARS)


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    """Shorten a field, unless it is content, which has its own bound."""
    return str(text) if isinstance(text, Content) else _short(text, MAX_TEXT_CHARS)


class Content(str):
    """Text that the operator has asked to see whole."""

    __slots__ = ()


def _encode_plain(value: Plain) -> str:
    return _encoder.encode(value).decode()


def _encode(line: dict[str, Plain]) -> str:
    """Encode in ASCII, so that no terminal and no reader of lines misreads a part of it."""
    try:
        text = _encoder.encode(line).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no encoder but this one writes
        text = ""
    if text.isascii() and text.isprintable() and text:
        return text
    return json.dumps(line, separators=(",", ":")).replace("\x7f", "\\u007f")
