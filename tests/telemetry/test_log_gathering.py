"""Under load, the lines of a server wait for each other a moment; none of them is lost for that, or out of order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from antwort.notes import note
from antwort.telemetry.formatters import HumanFormatter, JsonFormatter
from antwort.telemetry.log_writer import BATCH_SECONDS, MAX_BATCH_LINES, LineWriter
from antwort.telemetry.logs import batching
from live_server import launched
from raw_http import ask


class Turns:
    """In the place of an event loop: its turns and times come when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        self.later.append((delay, callback))

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def ring(self) -> None:
        due, self.later = self.later, []
        for _, callback in due:
            callback()


class House:
    """A writer, and the time and the event loop that it goes by."""

    def __init__(self, lines: logging.Formatter) -> None:
        self.now, self.loop = 100.0, Turns()
        self.running: Turns | None = self.loop
        self.end, write_end = os.pipe()
        os.set_blocking(self.end, False)
        self.stream = os.fdopen(write_end, "w")
        self.writer = LineWriter(
            self.stream,
            clock=lambda: self.now,
            running_loop=lambda: cast("asyncio.AbstractEventLoop | None", self.running),
        )
        self.writer.setFormatter(lines)
        self.logger = logging.RootLogger(logging.INFO)
        self.logger.addHandler(self.writer)

    def say(self, *messages: str, level: int = logging.INFO) -> None:
        for message in messages:
            note(self.logger, level, message)

    def written(self) -> list[str]:
        """The last word of each line that has been written since."""
        try:
            lines = os.read(self.end, 2**20).decode().splitlines()
        except BlockingIOError:
            return []
        return [json.loads(line)["message"] if line.startswith("{") else line.rpartition(" ")[2] for line in lines]


@pytest.fixture(params=[JsonFormatter, HumanFormatter])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(request.param())
    with made.writer.batching():
        yield made
    made.stream.close()
    os.close(made.end)


def written_just_now(house: House) -> None:
    house.say("first")
    house.loop.turn()
    assert house.written() == ["first"]


def test_after_a_quiet_time_lines_are_written_at_the_end_of_their_turn(house: House) -> None:
    for _ in range(3):
        house.say("one", "two")
        assert house.written() == []
        house.loop.turn()
        assert house.written() == ["one", "two"]
        house.now += BATCH_SECONDS
    assert not house.loop.later


def test_lines_soon_after_others_are_written_together_when_the_pause_is_over(house: House) -> None:
    written_just_now(house)
    house.now += BATCH_SECONDS / 2
    for number in range(10):
        house.say(str(number))
        house.loop.turn()
    assert house.written() == []
    ((delay, _),) = house.loop.later  # one time for all of them
    assert delay == pytest.approx(BATCH_SECONDS / 2)
    house.loop.ring()
    assert house.written() == [str(number) for number in range(10)]
    house.say("next")  # a write is a write, whatever it was made for
    assert len(house.loop.later) == 1


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_what_went_wrong_waits_for_nothing_and_is_behind_what_came_before_it(house: House, level: int) -> None:
    written_just_now(house)
    house.say("one", "two")
    house.say("wrong", level=level)
    assert house.written() == ["one", "two", "wrong"]
    house.say("three")
    assert len(house.loop.later) == 1  # the time that was set is theirs, too
    house.loop.ring()
    assert house.written() == ["three"]


def test_a_heap_of_lines_is_written_at_once(house: House) -> None:
    written_just_now(house)
    house.say(*map(str, range(MAX_BATCH_LINES - 1)))
    assert house.written() == []
    house.say("last")
    assert house.written() == [*map(str, range(MAX_BATCH_LINES - 1)), "last"]


def test_a_long_line_is_written_at_the_end_of_its_turn_behind_those_before_it(house: House) -> None:
    written_just_now(house)
    house.say("one")
    note(house.logger, logging.INFO, "long", a="a" * 1990, b="b" * 1990, c="c" * 1990, d="long")
    house.loop.turn()
    assert len(house.written()) == 2


def test_a_line_of_no_event_loop_is_written_at_once_behind_what_waits(house: House) -> None:
    written_just_now(house)
    house.say("waits")
    house.running = None
    house.say("other")
    assert house.written() == ["waits", "other"]


def test_another_event_loop_writes_at_the_end_of_its_turn_as_ever(house: House) -> None:
    written_just_now(house)
    house.say("waits")
    house.running = other = Turns()
    house.say("other")
    other.turn()
    assert house.written() == ["waits", "other"]
    house.running = house.loop
    house.say("again")
    house.loop.ring()
    assert house.written() == ["again"]


def test_what_waits_is_written_when_the_gathering_ends_and_nothing_waits_from_then_on() -> None:
    house = House(JsonFormatter())

    def work() -> None:
        with house.writer.batching():
            written_just_now(house)
            house.say("waits")
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - as any other
        work()
    assert house.written() == ["waits"]
    assert house.loop.later  # and if it never comes
    house.say("after")
    house.loop.turn()
    assert house.written() == ["after"]
    house.stream.close()
    os.close(house.end)


@pytest.mark.parametrize("end", [LineWriter.flush, LineWriter.close])
def test_what_waits_is_written_when_the_program_ends(house: House, end: Callable[[LineWriter], None]) -> None:
    written_just_now(house)
    house.say("waits")
    end(house.writer)
    assert house.written() == ["waits"]


def test_nothing_is_gathered_unless_asked_for() -> None:
    house = House(JsonFormatter())
    for _ in range(2):
        written_just_now(house)
    house.stream.close()
    os.close(house.end)


def test_the_log_of_a_server_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(JsonFormatter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler(), house.writer])
    with batching():
        written_just_now(house)
        house.say("waits")
        assert (len(house.loop.later), house.loop.soon) == (1, [])
    assert house.written() == ["waits"]
    house.stream.close()
    os.close(house.end)


async def test_lines_of_threads_and_of_event_loops_are_all_written_once_and_each_in_its_order() -> None:
    async def talk(writer: LineWriter, name: str) -> None:
        for number in range(200):
            writer.handle(logging.LogRecord(name, logging.INFO, "", 0, f"{name} {number}", None, None))
            if number % 7 == 0:
                await asyncio.sleep(0)

    end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        writer = LineWriter(stream)
        writer.setFormatter(logging.Formatter())
        with writer.batching():
            others = [asyncio.to_thread(asyncio.run, talk(writer, name)) for name in ("other", "third")]
            await asyncio.gather(talk(writer, "gathered"), *others)
        writer.close()
    lines = os.read(end, 2**20).decode().splitlines()
    os.close(end)
    for name in ("gathered", "other", "third"):
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(200)]
    assert len(lines) == 600


ENDS = """
import asyncio, logging, os, sys
from antwort.notes import note
from antwort.telemetry.logs import configure, batching
configure("info", "json")
async def main():
    with batching():
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
        if (child := os.fork()) == 0:
            note(logging.getLogger("antwort"), logging.INFO, "child")
            os._exit(0)
        os.waitpid(child, 0)
""")


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_a_copy_of_the_process_writes_only_its_own_lines() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == ["one", "child", "two"]


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
