"""Lines go to a stream that may be closed, full, or read by nobody; the server goes on."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import io
import json
import logging
import os
import pty
import select
import sys
import threading
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

import pytest

from antwort.engine.engine import Engine
from antwort.notes import RESPONSE_ID
from antwort.telemetry.formatters import HumanFormatter, JsonFormatter
from antwort.telemetry.log_events import content_log, log_content
from antwort.telemetry.log_writer import MAX_BUFFERED_BYTES, LineWriter
from antwort.telemetry.logs import configure
from antwort.testing import demo_provider

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end to read from, and a stream to write to."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        yield read_end, stream
    os.close(read_end)


def writer_to(stream: TextIO | None) -> LineWriter:
    writer = LineWriter(stream)
    writer.setFormatter(JsonFormatter())
    return writer


def write(writer: LineWriter, message: str) -> None:
    writer.handle(logging.LogRecord("antwort.engine", logging.INFO, "", 0, message, None, None))


def read_until(fd: int, enough: Callable[[list[str]], bool]) -> list[str]:
    """The messages that come, until there are enough."""
    data = b""
    messages: list[str] = []
    while not enough(messages):
        data += os.read(fd, 2**20)
        *lines, data = data.split(b"\n")
        messages += [json.loads(line)["message"] for line in lines]
    return messages


def test_lines_are_there_as_soon_as_they_are_written() -> None:
    with pipe() as (end, stream):
        write(writer_to(stream), "one")
        assert json.loads(os.read(end, 65536))["message"] == "one"


def test_a_reader_that_stops_reading_holds_up_nobody_and_gets_the_lines_in_order_later() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        sent = [f"{number} {'x' * 1000}" for number in range(300)]  # a pipe holds 64 KiB
        for message in sent:
            write(writer, message)
        assert read_until(end, lambda got: len(got) >= len(sent)) == sent
        writer.close()
        write(writer, "again")
        assert read_until(end, bool) == ["again"]


def test_what_nobody_reads_is_bounded_and_the_loss_is_told() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        count = 3 * MAX_BUFFERED_BYTES // 1000
        for number in range(count):
            write(writer, f"{number} {'x' * 1000}")
        got = read_until(end, lambda got: bool(got) and "were lost" in got[-1])
        lost = int(got[-1].split(" ")[0])
        assert lost + len(got) - 1 == count
        assert lost > count // 3


class Whole(logging.Formatter):
    """Unlike our own, sets no bound to a message."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"message": record.getMessage()})


def test_a_line_that_was_begun_is_never_cut_however_long_it_is() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        writer.setFormatter(Whole())
        long = "x" * (2 * MAX_BUFFERED_BYTES)
        write(writer, long)
        write(writer, "after it")  # lost where the line before still takes all the room
        got = read_until(end, lambda got: len(got) >= 2)
        assert got[0] == long
        assert got[1] in ("after it", "1 lines of the log were lost: nobody read them")


@pytest.mark.usefixtures("_own_logging")
async def test_a_line_of_content_is_less_than_may_wait_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    content_log.setLevel(logging.INFO)
    texts = ["x" * 10**6, "\u65e5\u672c" * 50_000, "\U0001f600" * 50_000, "\x01" * 200_000, '"\\' * 200_000]
    async with Engine(demo_provider(), on_end=[log_content]) as engine:
        for text in texts:
            await engine.create(input=text, instructions=text)
    records = [record for record in caplog.records if record.name == content_log.name]
    assert len(records) == len(texts)
    for record, form in product(records, (JsonFormatter(content=True), HumanFormatter(content=True))):
        assert 50_000 < len(form.format(record).encode()) < MAX_BUFFERED_BYTES
    assert "bytes more)" in JsonFormatter(content=True).format(records[0])


@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK])
def test_a_long_line_is_written_whole(flags: int) -> None:
    with pipe() as (end, stream):
        fcntl.fcntl(stream.fileno(), fcntl.F_SETFL, os.O_WRONLY | flags)
        writer = writer_to(stream)
        message = "line " * 300
        for _ in range(100):
            write(writer, message)
        assert read_until(end, lambda got: len(got) >= 100) == [message] * 100


def test_a_reader_that_is_gone_is_no_trouble() -> None:
    end, write_end = os.pipe()
    os.close(end)
    with os.fdopen(write_end, "w") as stream:
        writer = writer_to(stream)
        write(writer, "into the void")
        write(writer, "again")


def test_a_stream_that_is_closed_or_none_is_no_trouble() -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    stream.close()
    write(writer, "into the void")
    write(writer_to(None), "into the void")


def test_a_descriptor_that_is_closed_behind_our_back_is_no_trouble() -> None:
    end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w", closefd=False)
    writer = writer_to(stream)
    os.close(write_end)
    write(writer, "into the void")
    os.close(end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_no_trouble() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        write(writer_to(full), "no room")


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """What `configure` does is undone."""
    root, ours, content = logging.getLogger(), logging.getLogger("antwort"), logging.getLogger("antwort.content")
    before = root.handlers[:], [logger.level for logger in (root, ours, content)]
    kept = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    root.handlers[:] = before[0]
    for logger, level in zip((root, ours, content), before[1], strict=True):
        logger.setLevel(level)
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = kept


@pytest.mark.usefixtures("_own_logging")
@pytest.mark.parametrize(("form", "is_json"), [("auto", True), ("json", True), ("human", False)])
def test_what_is_not_a_terminal_gets_json_unless_asked_otherwise(form: str, is_json: bool) -> None:
    out = io.StringIO()
    configure("info", form, stream=out)  # type: ignore[arg-type] # a parameter of the test
    logging.getLogger("antwort.engine").info("hello")
    assert out.getvalue().startswith("{") is is_json


@pytest.mark.usefixtures("_own_logging")
def test_a_terminal_gets_lines_for_people() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        configure("info", stream=terminal)
        logging.getLogger("antwort.engine").info("hello")
        assert b" INFO antwort.engine hello" in os.read(leader, 65536)
    os.close(leader)


@pytest.mark.usefixtures("_own_logging")
def test_other_peoples_loggers_speak_from_warnings_on_whatever_our_level_is() -> None:
    out = io.StringIO()
    configure("debug", stream=out)
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("httpx").warning("trouble")
    logging.getLogger("antwort.engine").debug("ours")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["trouble", "ours"]


def test_only_who_may_have_to_wait_is_asked_before_a_line_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    poll = select.poll

    class Watched:
        def __init__(self) -> None:
            self._poll = poll()

        def register(self, fd: int, events: int) -> None:
            self._poll.register(fd, events)

        def poll(self, timeout: int) -> list[tuple[int, int]]:
            found = self._poll.poll(timeout)
            asked.extend(fd for fd, _ in found)
            return found

    monkeypatch.setattr(select, "poll", Watched)
    with (tmp_path / "log").open("w") as file, pipe() as (_, stream):
        for each in (file, stream):
            write(writer_to(each), "one")
        assert asked == [stream.fileno()]
    assert json.loads((tmp_path / "log").read_text())["message"] == "one"


# ---- what is logged by those who interrupt it ----


class Ending:
    """Something that only the garbage collector ends, with a word, and that leaves another one behind."""

    has_say = False

    def __init__(self, say: Callable[[str], object], left: int) -> None:
        self.say, self.left, self.itself = say, left, self

    def __del__(self) -> None:
        if self.has_say:
            self.say(f"ended {self.left}")
            if self.left > 1:
                Ending(self.say, self.left - 1)


def collecting(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with the garbage collector at work just before it, as it may be at any time."""

    def collected(*given: P.args, **named: P.kwargs) -> R:
        gc.collect(0)
        return function(*given, **named)

    return collected


@pytest.mark.parametrize("size", [1, 1000])  # with the longer ones, the pipe is full and a thread goes on
def test_what_the_garbage_collector_has_to_say_holds_up_no_line_and_breaks_none(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", collecting(os.write))
    monkeypatch.setattr(Ending, "has_say", True)

    async def say(writer: LineWriter) -> None:
        for number in range(200):
            write(writer, f"{number} {'x' * size}")
            if number % 7 == 0:
                await asyncio.sleep(0)

    with pipe() as (end, stream):
        writer = LineWriter(stream, running_loop=collecting(_get_running_loop))
        writer.setFormatter(JsonFormatter())
        Ending(lambda word: writer.handle(logging.LogRecord("asyncio", logging.ERROR, "", 0, word, None, None)), 100)
        thread = threading.Thread(target=asyncio.run, args=(say(writer),), daemon=True)
        thread.start()
        thread.join(20)
        Ending.has_say = False
        gc.collect()  # the last one, where there is one
        assert not thread.is_alive(), "it waits for itself"
        got = read_until(end, lambda got: len(got) >= 300)
        assert sorted(got) == sorted([f"{n} {'x' * size}" for n in range(200)] + [f"ended {n + 1}" for n in range(100)])


def test_who_logs_while_a_line_is_half_written_is_written_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        put = os.write

        def interrupted(fd: int, data: bytes) -> int:
            monkeypatch.setattr(os, "write", put)
            write(writer, "two")
            return put(fd, data[:10])

        monkeypatch.setattr(os, "write", interrupted)
        thread = threading.Thread(target=write, args=(writer, "one"), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it waits for itself"
        assert messages_in(end) == ["one", "two"]


def test_a_filter_may_put_another_record_in_the_place_of_one() -> None:
    def hidden(record: logging.LogRecord) -> logging.LogRecord:
        return logging.LogRecord(record.name, record.levelno, "", 0, record.msg.replace("s3cret", "***"), None, None)

    class Hiding(LineWriter):
        if sys.version_info < (3, 12):  # which does what filters ask for by itself

            def filter(self, record: logging.LogRecord) -> logging.LogRecord:  # type: ignore[override]
                return hidden(record)

    with pipe() as (end, stream):
        writer = Hiding(stream)
        writer.setFormatter(JsonFormatter())
        writer.addFilter(hidden)  # type: ignore[arg-type,unused-ignore] # a word of Python 3.12
        write(writer, "the key is s3cret")
        assert messages_in(end) == ["the key is ***"]


# ---- lines of one turn of the event loop ----


def messages_in(end: int) -> list[str]:
    return [json.loads(line)["message"] for line in os.read(end, 65536).splitlines()]


async def test_notes_of_one_turn_of_the_event_loop_are_written_together_and_at_its_end() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        os.set_blocking(end, False)
        write(writer, "one")
        write(writer, "two")
        with pytest.raises(BlockingIOError):
            os.read(end, 1)
        await asyncio.sleep(0)
        assert messages_in(end) == ["one", "two"]
        write(writer, "three")
        await asyncio.sleep(0)
        assert messages_in(end) == ["three"]


@pytest.mark.parametrize(
    "urgent",
    [
        logging.LogRecord("a", logging.WARNING, "", 0, "urgent", None, None),
        logging.LogRecord("a", logging.INFO, "", 0, "%s", ("urgent",), None),
        logging.LogRecord("a", logging.INFO, "", 0, "urgent", None, (ValueError, ValueError(), None)),
    ],
)
async def test_a_line_that_cannot_wait_is_written_at_once_behind_those_before_it(urgent: logging.LogRecord) -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        write(writer, "one")
        writer.handle(urgent)
        assert messages_in(end) == ["one", "urgent"]


async def test_what_was_put_off_is_written_when_the_program_ends() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        write(writer, "one")
        writer.flush()  # as logging does at the end
        write(writer, "two")
        writer.close()
        assert messages_in(end) == ["one", "two"]


def test_an_event_loop_that_ends_before_its_next_turn_leaves_its_lines_to_the_next_one() -> None:
    async def say(writer: LineWriter, message: str, turns: int) -> None:
        write(writer, message)
        for _ in range(turns):
            await asyncio.sleep(0)

    with pipe() as (end, stream):
        writer = writer_to(stream)
        loop = asyncio.new_event_loop()
        running = loop.create_task(say(writer, "one", 0))
        running.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        loop.close()
        asyncio.run(say(writer, "two", 1))
        assert messages_in(end) == ["one", "two"]


async def test_a_line_that_is_put_off_says_what_it_was_written_for() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        for number in ("resp_1", "resp_2"):
            RESPONSE_ID.set(number)
            write(writer, number)
        RESPONSE_ID.set("")
        await asyncio.sleep(0)
        lines = [json.loads(line) for line in os.read(end, 65536).splitlines()]
        assert [line["response_id"] for line in lines] == [line["message"] for line in lines] == ["resp_1", "resp_2"]


async def test_lines_of_threads_and_of_the_event_loop_are_all_written_once() -> None:
    with pipe() as (end, stream):
        writer = writer_to(stream)
        threads = [asyncio.to_thread(write, writer, f"thread {number}") for number in range(20)]
        tasks = [asyncio.ensure_future(thread) for thread in threads]
        for number in range(20):
            write(writer, f"loop {number}")
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        writer.close()
        expected = {f"{who} {number}" for who in ("thread", "loop") for number in range(20)}
        found = messages_in(end)
        assert len(found) == 40
        assert set(found) == expected


async def test_a_broken_stream_costs_nothing_but_the_lines_that_were_put_off() -> None:
    with pipe() as (_, stream):
        writer = writer_to(stream)
        write(writer, "one")
        stream.close()
        await asyncio.sleep(0)


@pytest.mark.usefixtures("_own_logging")
def test_the_driver_of_the_database_names_no_hosts_and_users_in_our_log() -> None:
    out = io.StringIO()
    configure("debug", stream=out)
    logging.getLogger("psycopg").warning("connection to host db.internal, user antwort failed")
    assert out.getvalue() == ""
