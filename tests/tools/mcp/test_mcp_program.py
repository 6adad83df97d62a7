"""Programs that speak MCP on their standard input and output: nothing of them is left, whatever they do."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import TOO_LONG
from antwort.tools.mcp.program import Inbox, Outbox, environment, program
from antwort.tools.mcp.unsolicited_traffic import Allowance, Unsolicited
from session_kit import until

HELLO = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="hello"))


@asynccontextmanager
async def running(
    script: str, *asked: int, largest: int = 10_000, unsolicited: int = 2**40
) -> AsyncGenerator[tuple[Inbox, Outbox], None]:
    """A program that was asked something under each of those numbers before it does anything."""
    reads = f"import sys\nfor _ in range({len(asked)}): sys.stdin.readline()\n"
    command = (sys.executable, "-c", reads + textwrap.dedent(script))
    spec = ServerSpec(label="x", transport="stdio", command=command, largest=largest, unsolicited=unsolicited)
    async with program(spec, unasked(spec)) as (inbox, outbox):
        for number in asked:
            await outbox.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="x")))
        yield inbox, outbox


def unasked(spec: ServerSpec) -> Unsolicited:
    return Unsolicited(Allowance(spec), lambda _: False)


def is_alive(number: int) -> bool:
    """A process that has ended and only waits to be collected is not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print('{"jsonrpc": "2.0", "id": 1, "method": "%d/%d"}' % (os.getpid(), child.pid), flush=True)
    time.sleep(600)
"""


async def test_one_that_will_not_end_is_killed_with_all_that_it_has_started() -> None:
    async with running(STUBBORN) as (inbox, _):
        message = await inbox.receive()
        assert isinstance(message, SessionMessage)
        assert isinstance(message.message, JSONRPCRequest)
        numbers = [int(number) for number in message.message.method.split("/")]
        assert all(map(is_alive, numbers))
    await until(lambda: not any(map(is_alive, numbers)))


async def test_one_that_ends_by_itself_takes_what_it_has_started_with_it() -> None:
    async with running(STUBBORN.replace("    time.sleep(600)", "    sys.stdin.read()")) as (inbox, _):
        message = await inbox.receive()
        assert isinstance(message, SessionMessage)
        assert isinstance(message.message, JSONRPCRequest)
        numbers = [int(number) for number in message.message.method.split("/")]
    await until(lambda: not any(map(is_alive, numbers)))


async def test_whoever_is_cancelled_leaves_no_process() -> None:
    started = asyncio.Event()
    numbers: list[int] = []

    async def use() -> None:
        async with running(STUBBORN) as (inbox, _):
            message = await inbox.receive()
            assert isinstance(message, SessionMessage)
            assert isinstance(message.message, JSONRPCRequest)
            numbers.extend(int(number) for number in message.message.method.split("/"))
            started.set()
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    await started.wait()
    using.cancel()
    await asyncio.wait([using])
    await until(lambda: not any(map(is_alive, numbers)))


async def test_lines_come_whole_however_they_are_cut_and_what_is_no_message_is_passed_over() -> None:
    script = """
        import sys, time
        for piece in ('print', ' and pray', chr(10), chr(10), '{"jsonrpc": "2.0", "id": 1, "meth', 'od": "a"}' +
                      chr(10) + '{"jsonrpc": "2.0", "id": 1, "method": "b"}' + chr(10) + '{"jsonrpc"',
                      ': "2.0", "id": 1, "method": "c"}', chr(10)):
            sys.stdout.write(piece)
            sys.stdout.flush()
            time.sleep(0.01)
    """
    async with running(script) as (inbox, _):
        got = [item.message async for item in inbox if isinstance(item, SessionMessage)]
        assert [message.method for message in got if isinstance(message, JSONRPCRequest)] == ["a", "b", "c"]


async def test_what_it_wrote_before_it_ended_is_read() -> None:
    script = """print('{"jsonrpc": "2.0", "id": 1, "method": "last"}')"""
    async with running(script) as (inbox, _):
        await inbox._talk.exited.wait()
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()


async def test_one_whose_output_is_held_by_what_it_has_started_is_over_all_the_same() -> None:
    script = """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    """
    async with running(script) as (inbox, _):
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()


ODD = {
    "a result that is none": '{"jsonrpc": "2.0", "id": 7, "result": "x"}',
    "several at once": '[{"jsonrpc": "2.0", "id": 7, "result": {}}]',
    "neither result nor error": '{"jsonrpc": "2.0", "id": 7}',
    "too deep": '{"jsonrpc": "2.0", "id": 7, "result": {"x": ' + "[" * 2000 + "]" * 2000 + "}}",
    "cut": '{"jsonrpc": "2.0", "id": 7, "result": {"x": ',
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
async def test_an_answer_that_is_none_fails_who_waits_for_it_at_once(line: str) -> None:
    async with running(f"print({line!r})", 7) as (inbox, _):
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCError)
        assert item.message.id == 7
        assert isinstance(item.message.error.data, ServerUnavailable)


async def test_an_answer_that_is_no_text_fails_who_waits_for_it_at_once() -> None:
    script = """
        import sys
        line = '{"jsonrpc": "2.0", "id": 7, "result": {"text": "' + chr(233) + '"}}' + chr(10)
        sys.stdout.buffer.write(line.encode("latin-1"))
    """
    async with running(script, 7) as (inbox, _):
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCError)
        assert item.message.id == 7


async def test_a_number_that_is_none_is_read_as_nothing() -> None:
    script = """print('{"jsonrpc": "2.0", "id": 7, "result": {"x": NaN, "y": 1e999}}')"""
    async with running(script, 7) as (inbox, _):
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCResponse)
        assert item.message.result == {"x": None, "y": None}


async def test_half_a_character_is_read_as_one_that_is_missing() -> None:
    script = """print('{"jsonrpc": "2.0", "id": 7, "result": {"text": "' + chr(92) + 'ud83d"}}')"""
    async with running(script, 7) as (inbox, _):
        item = await inbox.receive()
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCResponse)
        assert item.message.result == {"text": "\ufffd"}


@pytest.mark.parametrize("line", ["y", "", '{"jsonrpc": "2.0", "id": 9, "result": {}}'])
async def test_one_that_writes_nothing_but_what_nobody_asked_for_is_given_up(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(f"while True: print({line!r})", unsolicited=2_000) as (inbox, _):
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()
        assert not inbox._talk.lines
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "A stream of an MCP server is closed: it sends too much that nobody asked for."
    ]


async def test_one_that_prints_what_it_should_log_is_borne_with() -> None:
    script = """
        import sys
        for number in range(3000):
            print("Downloading", number)
            print()
        print('{"jsonrpc": "2.0", "id": 7, "result": {}}')
    """
    async with running(script, 7, unsolicited=4 * 2**20) as (inbox, _):
        (item,) = [item async for item in inbox]
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCResponse)


async def test_others_are_heard_while_one_talks_without_end() -> None:
    script = """
        import sys
        while True:
            sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "method": "x"}' + chr(10))
    """
    turns = heard = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running(script) as (inbox, _):
        turning = asyncio.create_task(turn())
        while heard < 500:
            await inbox.receive()
            heard += 1
        turning.cancel()
    assert turns >= heard // 2


async def test_an_answer_of_too_many_small_things_fails_who_waits_for_it_and_nobody_else() -> None:
    script = """
        print('{"jsonrpc": "2.0", "id": 7, "result": {"a": [' + '{},' * 300000 + '{}]}}')
        print('{"jsonrpc": "2.0", "id": 8, "result": {}}')
    """
    async with running(script, 7, 8, largest=10_000_000) as (inbox, _):
        heavy, light = [item async for item in inbox]
        assert isinstance(heavy, SessionMessage)
        assert isinstance(heavy.message, JSONRPCError)
        assert heavy.message.id == 7
        assert str(heavy.message.error.data) == TOO_LONG
        assert isinstance(light, SessionMessage)
        assert isinstance(light.message, JSONRPCResponse)


async def test_a_message_of_too_many_small_things_that_answers_nobody_ends_it() -> None:
    script = 'print(\'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": [\' + \'{},\' * 300000 + \'{}]}}\')'
    async with running(script, largest=10_000_000) as (inbox, _):
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()


@pytest.mark.parametrize("ending", ["", "chr(10)"])
async def test_a_line_that_is_too_long_ends_it_and_is_not_kept(ending: str) -> None:
    script = f"""
        import sys
        for _ in range(800):
            sys.stdout.write("x" * 65536)
        sys.stdout.write({ending or '""'})
        sys.stdout.flush()
        sys.stdin.read()
    """
    async with running(script) as (inbox, outbox):
        with pytest.raises(anyio.EndOfStream):
            await inbox.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await outbox.send(HELLO)


async def test_one_that_talks_without_end_is_read_no_faster_than_it_is_heard() -> None:
    script = """
        import sys
        while True:
            sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "method": "x"}' + chr(10))
    """
    async with running(script) as (inbox, _):
        talk = inbox._talk
        await until(lambda: talk._is_paused)
        waiting = len(talk.lines)
        for _ in range(3 * waiting):
            await inbox.receive()
        assert len(talk.lines) <= 2 * waiting + 4000


async def test_one_that_reads_nothing_is_taken_for_hung() -> None:
    big = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="x" * 5 * 2**20))
    async with running("import time; time.sleep(600)") as (_, outbox):
        await outbox.send(big)
        await outbox.send(big)
        with pytest.raises(anyio.BrokenResourceError):
            await outbox.send(big)


async def test_what_it_writes_to_its_standard_error_is_for_those_who_look_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="antwort.tools.mcp.program")
    script = """
        import sys
        for _ in range(100):
            sys.stderr.write("what it did " * 1000)
        sys.stderr.flush()
    """
    async with running(script) as (inbox, _):
        assert [item async for item in inbox] == []
    told = [record for record in caplog.records if "standard error" in record.message]
    texts = [str(getattr(record, "fields", {}).get("text")) for record in told]
    assert texts
    assert "what it did" in texts[0]
    assert sum(map(len, texts)) <= 2 * 64 * 1024
    assert all(record.levelno == logging.DEBUG for record in told)


def test_of_our_environment_it_gets_only_what_programs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTWORT_SECRET", "s")
    given = environment({"TOKEN": "t"})
    assert given["PATH"] == os.environ["PATH"]
    assert given["TOKEN"] == "t"
    assert "ANTWORT_SECRET" not in given


# ---- why it does not run ----


async def explained(*command: str, folder: str | None = None) -> str:
    """What the operator of a program is told that is asked for nothing, and ends."""
    told: list[str] = []
    spec = ServerSpec(label="x", transport="stdio", command=command, folder=folder)
    with suppress(ServerUnavailable):
        async with program(spec, unasked(spec), told.append) as (inbox, _):
            async for _ in inbox:
                pass
    return told[-1]


async def test_the_operator_is_told_why_a_program_does_not_start(tmp_path: Path) -> None:
    assert await explained("no-such-program") == "the program 'no-such-program': No such file or directory"
    nowhere = str(tmp_path / "nowhere")
    assert await explained(sys.executable, folder=nowhere) == f"the folder {nowhere!r}: No such file or directory"
    assert await explained("a\0b") == "the program 'a\\x00b': it cannot be a command"


async def test_the_operator_is_told_how_a_program_ended_and_what_it_wrote_last() -> None:
    dies = "import sys; sys.stderr.write('x' * 5000 + '\\nNo key.\\n\\x1b[31mSet KEY.\\n'); sys.exit(3)"
    told = await explained(sys.executable, "-c", dies)
    assert told.startswith("it ended with status 3; its last words: xxx")
    assert told.endswith("x / No key. / [31mSet KEY.")
    assert len(told) < 1_100
    kills = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert await explained(sys.executable, "-c", kills) == "it was ended by signal 9"
