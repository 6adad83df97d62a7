"""A log record as a line, for people and for machines."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.notes import RESPONSE_ID, note
from antwort.server.exchange import REQUEST_ID
from antwort.telemetry.logging import MAX_TEXT_CHARS, HumanFormatter, JsonFormatter, LineFormatter

HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ [\w.]+ ")
ANY_TEXT = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(
    [
        "a\nb",
        "x\r\n2026-01-01 00:00:00.000 INFO antwort.transport fake",
        "\x1b[31m",
        "\x9b2J",
        'a" level="error',
        "=",
        " ",
    ]
)


def record_of(message: str, error: Exception | None = None, logger: str = "antwort.engine") -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(logger, logging.WARNING, "", 0, message, None, info)


def noted(lines: LineFormatter, message: str, /, said: dict[str, Any] | None = None, **fields: Any) -> str:
    """The line that a note leaves."""
    logger = logging.Logger("antwort.test", logging.DEBUG)  # one that nobody else hears of
    kept: list[str] = []
    keeper = logging.Handler()
    keeper.emit = lambda record: kept.append(lines.format(record))  # type: ignore[method-assign] # a small one
    logger.addHandler(keeper)
    note(logger, logging.INFO, message, said=said or {}, **fields)
    return kept[0]


def raised(words: str) -> Exception:
    try:
        raise ValueError(words)
    except ValueError as error:
        return error


# ---- JSON ----


def test_a_json_line_has_the_time_in_utc_the_level_the_logger_the_message_and_the_fields() -> None:
    line = json.loads(noted(JsonFormatter(), "a thing happened", said={"status": 200}, tool="add", turns=2, none=None))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "antwort.test",
        "message": "a thing happened",
        "status": 200,
        "tool": "add",
        "turns": 2,
    }


def test_an_exception_is_one_json_line_with_the_traceback_in_a_field() -> None:
    text = JsonFormatter().format(record_of("it broke", raised("some\nreason")))
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "it broke"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: some\nreason")


@given(message=ANY_TEXT, name=ANY_TEXT)
def test_nothing_can_forge_a_json_line_or_a_field(message: str, name: str) -> None:
    text = noted(JsonFormatter(), message, tool=name)
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text)
    assert list(line) == ["time", "level", "logger", "message", "tool"]
    assert line["message"] == message
    assert line["tool"] == name


def test_a_field_cannot_take_the_place_of_what_the_line_itself_says() -> None:
    line = json.loads(noted(JsonFormatter(), "true", level="forged", logger="forged", message="forged", time="forged"))
    assert (line["level"], line["logger"], line["message"]) == ("info", "antwort.test", "true")


NAMES = st.sampled_from(["tool", "status", "request_id", "response_id", "time", "message", "exception", "ü"])
WORDS = st.sampled_from(["", "text", "null", "NaN", "ü", "\x7f", "\ud800", 'a" level="error', "a\nb", "x" * 3000])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
FIELDS = st.dictionaries(NAMES, VALUES | st.just(b"bytes") | st.lists(st.integers(), max_size=1), max_size=4)


@given(message=WORDS.filter(lambda word: len(word) < 100), said=FIELDS, fields=FIELDS)
def test_a_json_line_has_every_field_that_has_a_value_and_no_other(
    message: str, said: dict[str, Any], fields: dict[str, Any]
) -> None:
    """However it is written: most lines are written by a shorter way."""
    token = RESPONSE_ID.set("resp_1")
    try:
        text = noted(JsonFormatter(), message, said=said, **fields)
    finally:
        RESPONSE_ID.reset(token)
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text)
    given = {**said, **{name: value for name, value in fields.items() if value is not None or name not in said}}
    own = {"level": "info", "logger": "antwort.test", "message": message}
    expected = {name: shown(value) for name, value in given.items() if value is not None and name not in OWN}
    assert line.pop("time") > "2026"
    assert line == {"response_id": "resp_1", **own, **expected}


OWN = ("time", "level", "logger", "message", "exception")


def shown(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        return f"{value[:MAX_TEXT_CHARS]}… ({len(value) - MAX_TEXT_CHARS} more)"
    is_number = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number else str(value)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("message", ["x", "ü", "\ud800"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (1.5, 1.5),
        (2**70, 2**70),
        (True, True),
        (b"ab", "b'ab'"),
        ({1}, "{1}"),
        ([None], "[None]"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        (Unspeakable(), "a Unspeakable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_can_be_written(message: str, value: object, shown: object) -> None:
    def refused(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    line = json.loads(noted(JsonFormatter(), message, value=value), parse_constant=refused)
    assert (line["message"], line["value"]) == (message, shown)
    assert " value=" in noted(HumanFormatter(), "x", value=value)


@pytest.mark.parametrize("lines", [JsonFormatter(), HumanFormatter()])
def test_a_value_that_is_no_text_is_cut_as_one(lines: LineFormatter) -> None:
    assert len(noted(lines, "x", value=["x" * MAX_TEXT_CHARS])) < MAX_TEXT_CHARS + 200


# ---- for people ----


def test_a_human_line_has_the_same_in_one_line_and_does_not_say_things_twice() -> None:
    text = noted(HumanFormatter(), "GET / 200", said={"status": 200, "path": "/"}, request_id="r1", key="a b", turns=2)
    assert HEAD.match(text)
    assert text.endswith(' INFO antwort.test GET / 200 request_id=r1 key="a b" turns=2')


@given(message=ANY_TEXT, name=ANY_TEXT)
def test_nothing_can_forge_a_human_line_or_a_field(message: str, name: str) -> None:
    """Outside of quotes, which always match, there is no `=` but that of a field."""
    text = noted(HumanFormatter(), message, tool=name, turns=1)
    assert text.isprintable()
    assert HEAD.match(text)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "Q", text)
    assert '"' not in bare
    assert re.findall(r"(\S*)=", bare) == ["tool", "turns"]


def test_a_traceback_for_people_is_marked_line_by_line() -> None:
    forged = "2026-01-01 00:00:00.000 INFO antwort.transport GET /forged 200 1.0 ms"
    text = HumanFormatter().format(record_of("it broke", raised(f"x\n{forged}\n\x1b[2J")))
    head, *rest = text.split("\n")
    assert head.endswith("WARNING antwort.engine it broke")
    assert all(line.startswith("  | ") for line in rest)
    assert all(line.isprintable() for line in rest)
    assert f"  | {forged}" in rest


def test_a_quoted_value_reads_back_as_it_was() -> None:
    text = noted(HumanFormatter(), "x", path='a "quoted" \\ path')
    assert shlex.split(text)[-1] == 'path=a "quoted" \\ path'


# ---- both ----


@pytest.mark.proves("TR-026")
@pytest.mark.parametrize("lines", [HumanFormatter(), JsonFormatter()])
@pytest.mark.parametrize("request_id", ["req_1", "tool", "a=b", "WARNING", "request_id="])
def test_a_line_from_any_room_names_the_request_and_the_response_it_was_written_for(
    lines: LineFormatter, request_id: str
) -> None:
    tokens = REQUEST_ID.set(request_id), RESPONSE_ID.set("resp_1")
    try:
        text = lines.format(record_of("a tool failed"))
    finally:
        REQUEST_ID.reset(tokens[0])
        RESPONSE_ID.reset(tokens[1])
    if isinstance(lines, JsonFormatter):
        line = json.loads(text)
        assert (line["request_id"], line["response_id"]) == (request_id, "resp_1")
    else:
        assert shlex.split(text)[-2:] == [f"request_id={request_id}", "response_id=resp_1"]
    assert "request_id" not in lines.format(record_of("nobody asked"))


@pytest.mark.parametrize("lines", [HumanFormatter(), JsonFormatter()])
def test_what_a_tools_exception_says_is_not_written_but_where_it_came_from_is(lines: LineFormatter) -> None:
    text = lines.format(record_of("The tool failed", raised("canary"), logger="antwort.tools"))
    assert "canary" not in text
    assert "ValueError" in text
    assert "test_log_lines.py" in text
    assert "canary" in lines.format(record_of("it broke", raised("canary")))


def test_what_a_tools_exception_says_is_written_for_those_who_asked_for_content() -> None:
    text = JsonFormatter(content=True).format(record_of("The tool failed", raised("canary"), logger="antwort.tools"))
    assert "canary" in text


@pytest.mark.parametrize("lines", [HumanFormatter(), JsonFormatter()])
def test_a_line_stays_within_bounds_whatever_is_logged(lines: LineFormatter) -> None:
    assert len(noted(lines, "m" * 10**6, tool="t" * 10**6)) < 3 * MAX_TEXT_CHARS


def test_words_that_do_not_fit_their_arguments_are_not_lost() -> None:
    record = logging.LogRecord("antwort.engine", logging.INFO, "", 0, "%d of %s", ("many",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "%d of %s"


def test_an_exception_that_cannot_be_shown_does_not_lose_the_line() -> None:
    try:
        raise ValueError
    except ValueError:
        record = logging.LogRecord("antwort.engine", logging.INFO, "", 0, "broke", None, sys.exc_info())
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("ValueError")
