"""A note that only our own writer hears of needs no record; whoever else listens gets one, from then on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.notes import RESPONSE_ID, note, reason_behind
from antwort.telemetry.formatters import HumanFormatter, JsonFormatter
from antwort.telemetry.log_writer import LineWriter

NAMES = st.sampled_from(["tool", "status", "request_id", "response_id", "time", "message", "exception", "ü"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("x" * 3000)
FIELDS = st.dictionaries(NAMES, VALUES | st.just(b"bytes") | st.lists(st.integers(), max_size=1), max_size=4)


@given(message=st.text(max_size=20) | st.sampled_from(["null", "NaN", "\x7f", "\ud800"]), said=FIELDS, fields=FIELDS)
def test_a_line_that_is_written_at_once_is_the_one_that_is_put_together_format_each(
    message: str, said: dict[str, Any], fields: dict[str, Any]
) -> None:
    lines = JsonFormatter()
    record = logging.LogRecord("antwort.tools", logging.INFO, "", 0, message, None, None)
    record.__dict__.update(said=said, fields=fields)
    token = RESPONSE_ID.set("resp_1")
    try:
        at_once = lines.format_note(record.created, "info", "antwort.tools", message, said, fields)
        assert at_once is None or at_once.decode() == lines._format_each(record, message)
    finally:
        RESPONSE_ID.reset(token)


class Other(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


class House:
    """Loggers of its own, with a writer at their root, as a server has them."""

    def __init__(self) -> None:
        self.root = logging.RootLogger(logging.WARNING)
        self.manager = logging.Manager(self.root)
        self.ours, self.tools = self.manager.getLogger("antwort"), self.manager.getLogger("antwort.tools")
        self.ours.setLevel(logging.INFO)
        self.end, write_end = os.pipe()
        os.set_blocking(self.end, False)
        self.stream = os.fdopen(write_end, "w")
        self.writer = LineWriter(self.stream)
        self.writer.setFormatter(JsonFormatter())
        self.root.addHandler(self.writer)
        self.records: list[logging.LogRecord] = []

    def other(self) -> logging.Handler:
        """Somebody else, who keeps the records that he hears of."""
        return Other(self.records)

    def seen(self, record: logging.LogRecord) -> bool:
        self.records.append(record)
        return True

    async def lines(self) -> list[str]:
        """The messages that were written."""
        await asyncio.sleep(0)
        try:
            return [json.loads(line)["message"] for line in os.read(self.end, 65536).splitlines()]
        except BlockingIOError:
            return []


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.stream.close()
    os.close(made.end)
    logging.setLogRecordFactory(logging.LogRecord)


def _make_records(house: House) -> None:
    def made(*given: Any, **named: Any) -> logging.LogRecord:
        record = logging.LogRecord(*given, **named)
        house.records.append(record)
        return record

    logging.setLogRecordFactory(made)


def _watch_the_handing_on(house: House) -> None:
    class Watched(logging.Logger):
        def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
            house.records.append(record)
            super().callHandlers(record)

    house.tools.__class__ = Watched


LISTENERS: dict[str, Callable[[House], object]] = {
    "a handler of the logger": lambda house: house.tools.addHandler(house.other()),
    "a handler above it": lambda house: house.ours.addHandler(house.other()),
    "a handler beside the writer": lambda house: house.root.addHandler(house.other()),
    "handlers that are all put in another place": lambda house: setattr(
        house.ours, "handlers", [house.writer, house.other()]
    ),
    "a filter of the logger": lambda house: house.tools.addFilter(house.seen),
    "a filter of the writer": lambda house: house.writer.addFilter(house.seen),
    "who makes the records": _make_records,
    "who hands them on": _watch_the_handing_on,
}


@pytest.mark.parametrize("listen", LISTENERS.values(), ids=LISTENERS.keys())
async def test_whoever_listens_hears_of_every_note_from_then_on(
    house: House, listen: Callable[[House], object]
) -> None:
    note(house.tools, logging.INFO, "before")
    listen(house)
    note(house.tools, logging.INFO, "one", said={"tool": "add"}, turns=1)
    (record,) = house.records
    assert (record.getMessage(), record.name, record.levelname) == ("one", "antwort.tools", "INFO")
    assert (record.__dict__["said"], record.__dict__["fields"]) == ({"tool": "add"}, {"turns": 1})
    lines = await house.lines()
    assert lines[:2] == ["before", "one"]


EARLY = """
import asyncio, logging
handed_on = logging.Logger.callHandlers
def watched(self, record):
    print(record.getMessage())
    handed_on(self, record)
logging.Logger.callHandlers = watched
from antwort.notes import note
from antwort.telemetry.logs import configure
configure("info", "json")
async def main():
    note(logging.getLogger("antwort.tools"), logging.INFO, "one")
asyncio.run(main())
"""


def test_who_hands_records_on_since_before_we_came_hears_of_every_note() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "one\n"
    assert json.loads(done.stderr)["message"] == "one"


@pytest.mark.parametrize(
    "hush",
    [
        lambda house: house.writer.setLevel(logging.WARNING),
        lambda house: house.ours.setLevel(logging.WARNING),
        lambda house: setattr(house.ours, "propagate", False),
        lambda house: setattr(house.tools, "disabled", True),
        lambda house: house.root.removeHandler(house.writer),
        lambda house: house.writer.addFilter(lambda _: False),
    ],
)
async def test_what_nobody_is_to_hear_is_not_written(
    house: House, hush: Callable[[House], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "lastResort", None)
    note(house.tools, logging.INFO, "before")
    hush(house)
    note(house.tools, logging.INFO, "one")
    assert await house.lines() == ["before"]


async def test_the_form_of_a_line_can_change_at_any_time(house: House) -> None:
    note(house.tools, logging.INFO, "one")
    house.writer.setFormatter(HumanFormatter())
    note(house.tools, logging.INFO, "two", turns=1)
    await asyncio.sleep(0)
    first, second = os.read(house.end, 65536).decode().splitlines()
    assert json.loads(first)["message"] == "one"
    assert second.endswith(" INFO antwort.tools two turns=1")


async def test_what_went_wrong_is_written_at_once_behind_what_went_well(house: House) -> None:
    note(house.tools, logging.INFO, "one")
    note(house.tools, logging.WARNING, "two")
    data = os.read(house.end, 65536)
    assert [json.loads(line)["message"] for line in data.splitlines()] == ["one", "two"]


def test_without_an_event_loop_a_note_is_written_at_once(house: House) -> None:
    note(house.tools, logging.INFO, "one")
    assert json.loads(os.read(house.end, 65536))["message"] == "one"


def test_an_error_that_is_behind_itself_has_an_end_all_the_same() -> None:
    own, one, other = ValueError(), ValueError(), OSError(2, "No such file")
    own.__cause__, one.__cause__, other.__cause__ = own, other, one
    assert reason_behind(own) == ""
    assert reason_behind(one) == " (FileNotFoundError: No such file)"
