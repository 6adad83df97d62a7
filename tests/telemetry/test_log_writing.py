"""Lines go to a stream that may be closed, full, or read by nobody; the server goes on, and none is lost at its end."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import io
import json
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

import pytest

from antwort.engine.engine import Engine
from antwort.notes import RESPONSE_ID
from antwort.telemetry.hooks import log_content
from antwort.telemetry.logging import (
    CONTENT_LOG,
    MAX_QUEUED_BYTES,
    Format,
    HumanFormatter,
    JsonFormatter,
    LogHandler,
    configure,
)
from antwort.testing import demo_provider
from live_server import launched
from raw_http import ask

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end to read from, and a stream to write to."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        yield read_end, stream
    os.close(read_end)


@contextmanager
def handler_to(stream: TextIO | None, lines: logging.Formatter | None = None) -> Iterator[LogHandler]:
    handler = LogHandler(stream)
    handler.setFormatter(lines or JsonFormatter())
    try:
        yield handler
    finally:
        handler.close()


def write(handler: LogHandler, message: str, level: int = logging.INFO) -> None:
    handler.handle(logging.LogRecord("antwort.engine", level, "", 0, message, None, None))


def read_until(fd: int, enough: Callable[[list[str]], bool]) -> list[str]:
    """The messages that come, until there are enough."""
    data = b""
    messages: list[str] = []
    while not enough(messages):
        data += os.read(fd, 2**20)
        *lines, data = data.split(b"\n")
        messages += [json.loads(line)["message"] for line in lines]
    return messages


def messages_in(end: int, handler: LogHandler) -> list[str]:
    """What was written until now."""
    handler.flush()
    return [json.loads(line)["message"] for line in os.read(end, 2**20).splitlines()]


def test_lines_are_there_as_soon_as_they_are_written() -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        for message in ("one", "two"):
            write(handler, message)
            assert json.loads(os.read(end, 65536))["message"] == message


def test_a_reader_that_stops_reading_holds_up_nobody_and_gets_the_lines_in_order_later() -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        sent = [f"{number} {'x' * 1000}" for number in range(300)]  # a pipe holds 64 KiB
        for message in sent:
            write(handler, message)
        assert read_until(end, lambda got: len(got) >= len(sent)) == sent
        handler.close()
        write(handler, "again")
        assert read_until(end, bool) == ["again"]


def test_what_nobody_reads_is_bounded_and_the_loss_is_told() -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        count = 3 * MAX_QUEUED_BYTES // 1000
        for number in range(count):
            write(handler, f"{number} {'x' * 1000}")
        got = read_until(end, lambda got: bool(got) and "were lost" in got[-1])
        lost = int(got[-1].split(" ")[0])
        assert lost + len(got) - 1 == count
        assert lost > count // 3


def test_the_end_of_a_program_does_not_wait_for_a_reader_that_has_stopped() -> None:
    with pipe() as (end, stream):
        handler = LogHandler(stream)
        handler.setFormatter(JsonFormatter())
        for _ in range(200):
            write(handler, "x" * 1000)
        handler.close()
        write(handler, "again")  # nor does what comes behind it
        data = b""
        while data.count(b"\n") < 200:
            data += os.read(end, 2**20)
        assert b"again" not in data


class Whole(logging.Formatter):
    """Unlike our own, sets no bound to a message."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"message": record.getMessage()})


def test_a_line_is_never_cut_however_long_it_is() -> None:
    with pipe() as (end, stream), handler_to(stream, Whole()) as handler:
        long = "x" * (2 * MAX_QUEUED_BYTES)
        write(handler, long)
        write(handler, "after it")  # lost where the line before still takes all the room
        got = read_until(end, lambda got: len(got) >= 2)
        assert got[0] == long
        assert got[1] in ("after it", "1 lines of the log were lost: nobody read them")


@pytest.mark.usefixtures("_own_logging")
async def test_a_line_of_content_is_less_than_may_wait_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(CONTENT_LOG).setLevel(logging.INFO)
    texts = ["x" * 10**6, "\u65e5\u672c" * 50_000, "\U0001f600" * 50_000, "\x01" * 200_000, '"\\' * 200_000]
    async with Engine(demo_provider(), on_end=[log_content]) as engine:
        for text in texts:
            await engine.create(input=text, instructions=text)
    records = [record for record in caplog.records if record.name == CONTENT_LOG]
    assert len(records) == len(texts)
    for record, form in product(records, (JsonFormatter(content=True), HumanFormatter(content=True))):
        assert 50_000 < len(form.format(record).encode()) < MAX_QUEUED_BYTES
    assert "bytes more)" in JsonFormatter(content=True).format(records[0])


@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK])
def test_a_long_line_is_written_whole(flags: int) -> None:
    with pipe() as (end, stream):
        fcntl.fcntl(stream.fileno(), fcntl.F_SETFL, os.O_WRONLY | flags)
        message = "line " * 300
        with handler_to(stream) as handler:
            for _ in range(100):
                write(handler, message)
            assert read_until(end, lambda got: len(got) >= 100) == [message] * 100


def test_a_reader_that_is_gone_is_no_trouble() -> None:
    end, write_end = os.pipe()
    os.close(end)
    with os.fdopen(write_end, "w") as stream, handler_to(stream) as handler:
        write(handler, "into the void")
        handler.flush()
        write(handler, "again")


def test_a_stream_that_is_closed_or_none_is_no_trouble() -> None:
    closed = io.StringIO()
    for stream in (closed, None):
        with handler_to(stream) as handler:
            closed.close()
            write(handler, "into the void")


def test_a_descriptor_that_is_closed_behind_our_back_is_no_trouble() -> None:
    end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w", closefd=False)
    with handler_to(stream) as handler:
        os.close(write_end)
        write(handler, "into the void")
    os.close(end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_no_trouble() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full, handler_to(full) as handler:
        write(handler, "no room")


# ---- the settings ----


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """What `configure` does is undone."""
    root, ours, content = logging.getLogger(), logging.getLogger("antwort"), logging.getLogger("antwort.content")
    before = root.handlers[:], [logger.level for logger in (root, ours, content)]
    hook = sys.excepthook
    kept = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    written()
    root.handlers[:] = before[0]
    for logger, level in zip((root, ours, content), before[1], strict=True):
        logger.setLevel(level)
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = kept
    sys.excepthook = hook


def written(out: io.StringIO | None = None) -> str:
    """What was logged until now."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    return "" if out is None else out.getvalue()


@pytest.mark.usefixtures("_own_logging")
@pytest.mark.parametrize(("form", "is_json"), [("auto", True), ("json", True), ("human", False)])
def test_what_is_not_a_terminal_gets_json_unless_asked_otherwise(form: Format, *, is_json: bool) -> None:
    out = io.StringIO()
    configure("info", form, stream=out)
    logging.getLogger("antwort.engine").info("hello")
    assert written(out).startswith("{") is is_json


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
    assert [json.loads(line)["message"] for line in written(out).splitlines()] == ["trouble", "ours"]


@pytest.mark.usefixtures("_own_logging")
def test_the_driver_of_the_database_names_no_hosts_and_users_in_our_log() -> None:
    out = io.StringIO()
    configure("debug", stream=out)
    logging.getLogger("psycopg").warning("connection to host db.internal, user antwort failed")
    assert written(out) == ""


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


@pytest.mark.parametrize("size", [1, 1000])  # with the longer ones, the pipe is full
def test_what_the_garbage_collector_has_to_say_holds_up_no_line_and_breaks_none(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", collecting(os.write))
    monkeypatch.setattr(Ending, "has_say", True)

    async def say(handler: LogHandler) -> None:
        for number in range(200):
            write(handler, f"{number} {'x' * size}")
            if number % 7 == 0:
                await asyncio.sleep(0)

    class Collecting(JsonFormatter):
        def format(self, record: logging.LogRecord) -> str:
            gc.collect(0)
            return super().format(record)

    with pipe() as (end, stream), handler_to(stream, Collecting()) as handler:
        Ending(lambda word: write(handler, word, logging.ERROR), 100)
        thread = threading.Thread(target=asyncio.run, args=(say(handler),), daemon=True)
        thread.start()
        thread.join(20)
        Ending.has_say = False
        gc.collect()  # the last one, where there is one
        assert not thread.is_alive(), "it waits for itself"
        got = read_until(end, lambda got: len(got) >= 300)
        assert sorted(got) == sorted([f"{n} {'x' * size}" for n in range(200)] + [f"ended {n + 1}" for n in range(100)])


def test_who_logs_while_a_line_is_half_written_is_written_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        put = os.write

        def interrupted(fd: int, data: bytes) -> int:
            monkeypatch.setattr(os, "write", put)
            write(handler, "two")
            return put(fd, data[:10])

        monkeypatch.setattr(os, "write", interrupted)
        write(handler, "one")
        assert read_until(end, lambda got: len(got) >= 2) == ["one", "two"]


# ---- threads, tasks and processes ----


async def test_a_line_says_what_it_was_written_for() -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        for number in ("resp_1", "resp_2"):
            RESPONSE_ID.set(number)
            write(handler, number)
        RESPONSE_ID.set("")
        handler.flush()
        lines = [json.loads(line) for line in os.read(end, 65536).splitlines()]
        assert [line["response_id"] for line in lines] == [line["message"] for line in lines] == ["resp_1", "resp_2"]


async def test_the_form_of_a_line_can_change_at_any_time() -> None:
    with pipe() as (end, stream), handler_to(stream) as handler:
        write(handler, "one")
        handler.setFormatter(HumanFormatter())
        write(handler, "two")
        handler.flush()
        first, second = os.read(end, 65536).decode().splitlines()
    assert json.loads(first)["message"] == "one"
    assert second.endswith(" INFO antwort.engine two")


async def test_lines_of_threads_and_of_event_loops_are_all_written_once_and_each_in_its_order() -> None:
    async def talk(handler: LogHandler, name: str) -> None:
        for number in range(200):
            write(handler, f"{name} {number}")
            if number % 7 == 0:
                await asyncio.sleep(0)

    names = ("here", "other", "third")
    with pipe() as (end, stream), handler_to(stream) as handler:
        others = [asyncio.to_thread(asyncio.run, talk(handler, name)) for name in names[1:]]
        reading = asyncio.create_task(asyncio.to_thread(read_until, end, lambda got: len(got) >= 600))
        await asyncio.gather(talk(handler, names[0]), *others)
        lines = await reading
    for name in names:
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(200)]
    assert len(lines) == 600


ENDS = """
import asyncio, logging, os, sys
from antwort.notes import note
from antwort.telemetry.logging import configure
configure("info", "json")
async def main():
    note(logging.getLogger("antwort"), logging.INFO, "one")
    await asyncio.sleep(0)
    note(logging.getLogger("antwort"), logging.INFO, "two")
    {}
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "raise ValueError",
        "sys.exit()",
        "asyncio.get_running_loop().call_soon(sys.exit); await asyncio.sleep(1000)",
        "asyncio.get_running_loop().stop(); await asyncio.sleep(1000)",
        "asyncio.current_task().cancel(); await asyncio.sleep(1000)",
        "child = os.fork(); child or (logging.shutdown(), os._exit(0)); os.waitpid(child, 0)",
        "os.kill(os.getpid(), __import__('signal').SIGINT); await asyncio.sleep(1000)",
    ],
)
def test_however_a_process_ends_in_order_each_line_is_written_once(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(end)], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert [json.loads(line)["message"] for line in lines] == ["one", "two"]


FORKS = ENDS.format("""
    logging.getLogger().handlers[0].flush()
    if (child := os.fork()) == 0:
        note(logging.getLogger("antwort"), logging.INFO, "child")
        os._exit(0)
    os.waitpid(child, 0)
    note(logging.getLogger("antwort"), logging.INFO, "three")
""")


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_a_copy_of_the_process_writes_only_its_own_lines() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("{")]  # Python warns of the fork
    assert [json.loads(line)["message"] for line in lines] == ["one", "two", "child", "three"]


async def test_a_server_that_is_told_to_stop_under_load_has_written_a_line_for_each_request() -> None:
    async with launched("--scripted", "--memory") as server:
        numbers = [f"r{number}" for number in range(200)]
        for some in (numbers[:100], numbers[100:]):
            asked = [ask(server.port, "GET", "/healthz", headers={"x-request-id": number}) for number in some]
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        status, log = await server.stop()
    assert status == 0
    lines = [line for line in map(json.loads, log.splitlines()) if line.get("event") == "request"]
    assert sorted(line["request_id"] for line in lines) == sorted(numbers)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
