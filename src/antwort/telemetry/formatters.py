"""A log record as one line: for people, or as JSON. Nothing in it can pass for the end of a line or another field."""

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
from antwort.transport.exchange import REQUEST_ID

Plain: TypeAlias = str | int | float | bool | None

LONGEST = 2000
"""Characters of a message or a field."""
LONGEST_TRACE = 20_000
PRIVATE = ("antwort.tools",)
"""Loggers whose exceptions are a tool's own: what they say is the tool's output, and so not for the log."""

_BARE = re.compile(r"[A-Za-z0-9._~:/+@,%-]+")
_encoder = msgspec.json.Encoder(enc_hook=str)  # of strings that are more than that


class LineFormatter(logging.Formatter):
    """What both forms share. With `content`, exceptions of tools are written with what they say."""

    time_form: str
    time_parts: Callable[[float], time.struct_time]
    time_ends: Sequence[str]
    """For each millisecond."""

    def __init__(self, *, content: bool = False) -> None:
        super().__init__()
        self._content = content
        self._second = (-1, "")

    def _time(self, created: float) -> str:
        """With milliseconds. The rest is written once for all lines of a second."""
        second, text = self._second
        if (now := int(created)) != second:
            second, text = self._second = now, time.strftime(self.time_form, self.time_parts(now))
        return text + self.time_ends[int((created - second) * 1000)]

    def _add_fields(self, record: logging.LogRecord, kinds: Sequence[str], found: dict[str, Plain]) -> dict[str, Plain]:
        """The fields of a record, of the kinds that a note has, and the ids of what it was written for."""
        said = record.__dict__
        for kind in kinds:
            fields: dict[str, Value] = said.get(kind, _NO_FIELDS)
            for name, value in fields.items():
                if value is not None and name not in _OURS:
                    is_short = type(value) is str and len(value) <= LONGEST  # as most are
                    found[name] = value if is_short else _plain(value)
        _add_ids(found)
        return found

    def _message(self, record: logging.LogRecord) -> str:
        if not record.args and type(record.msg) is str:  # as all notes are
            return record.msg if len(record.msg) <= LONGEST else _short(record.msg, LONGEST)
        try:
            message = record.getMessage()
        except Exception:  # the arguments do not fit the words: a defect, but not one to lose a line over
            message = str(record.msg)
        return _short(message, LONGEST)

    def _trace(self, record: logging.LogRecord) -> str:
        """The traceback; of a tool's exception without what it says."""
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        error = record.exc_info[1]
        if record.name in PRIVATE and not self._content:
            return _short("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__, LONGEST_TRACE)
        return _short("".join(traceback.format_exception(error)).rstrip("\n"), LONGEST_TRACE)


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
            line = self.at_once(record.created, record.levelname.lower(), record.name, message, said, fields)
            if line is not None:
                return line.decode()
        return self._bit_by_bit(record, message)

    def at_once(self, when: float, level: str, name: str, message: str, said: Fields, fields: Fields) -> bytes | None:
        """The line of a note, without a record of it, where no field needs to be looked at by itself: as mostly."""
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
        if len(text) > LONGEST or b"null" in text or b"\x7f" in text or not text.isascii():
            return None
        return text

    def _bit_by_bit(self, record: logging.LogRecord, message: str) -> str:
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
    """Time, level, logger and message, then `name=value` for each field. A value that could be misread is quoted, and
    so is a message that has a `=` or a `"` in it. What follows a line, as a traceback does, is marked as what it is.
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
    """The text with everything escaped that does not show: line ends, terminal commands, marks of direction."""
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
    """What can be written in either form."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else _cut(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, int) else _short(_words(value), LONGEST)


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception:  # not one to lose a line over, either
        return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    """A field that is content has bounded itself."""
    return str(text) if isinstance(text, Content) else _short(text, LONGEST)


class Content(str):
    """Text that an operator has asked to see whole."""

    __slots__ = ()


def _encode_plain(value: Plain) -> str:
    return _encoder.encode(value).decode()


def _encode(line: dict[str, Plain]) -> str:
    """In ASCII, so that no terminal and no reader of lines takes a part of it for anything else."""
    try:
        text = _encoder.encode(line).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no encoder but this one writes
        text = ""
    if text.isascii() and text.isprintable() and text:
        return text
    return json.dumps(line, separators=(",", ":")).replace("\x7f", "\\u007f")
