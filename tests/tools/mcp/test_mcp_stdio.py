"""Programs that speak MCP on their standard input and output: nothing of them is left, whatever they do."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.identity import ANONYMOUS
from antwort.testing.executors import context
from antwort.tools.base import ToolCall
from antwort.tools.mcp.base import McpCallResult, ServerSpec, ServerUnavailable
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import McpServer
from session_kit import PATIENCE, Session, pooled, session_with, until

PRELUDE = """
import json, os, signal, subprocess, sys, time

def say(message):
    sys.stdout.write(json.dumps(message) + chr(10))
    sys.stdout.flush()

def answer(text, asked):
    say({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [{"type": "text", "text": str(text)}]}})

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        method, number = asked.get("method"), asked.get("id")
        if method == "server/discover":
            say({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}})
        elif method == "initialize":
            agreed = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            say({"jsonrpc": "2.0", "id": number, "result": agreed})
        elif method == "tools/list":
            say({"jsonrpc": "2.0", "id": number, "result": {"tools": [{"name": "do"}]}})
        elif method == "tools/call" and asked["params"]["name"] == "pid":
            answer(os.getpid(), asked)
        elif method == "tools/call":
            called(asked)
"""


def program(called: str, **fields: Any) -> ServerSpec:
    """A program that does this when the tool `do` is called; `asked` is the request."""
    script = f"{PRELUDE}\ndef called(asked):\n{textwrap.indent(textwrap.dedent(called), '    ')}\nmain()\n"
    return ServerSpec(label="x", transport="stdio", command=(sys.executable, "-c", script), connect=PATIENCE, **fields)


def text_of(outcome: McpCallResult) -> str:
    return str(outcome.content[0]["text"])


async def do(session: Session, arguments: str = "{}") -> McpCallResult:
    return await session.call("do", arguments, key="k")


async def pid_of(session: Session) -> int:
    return int(text_of(await session.call("pid", "{}", key="k")))


def is_alive(number: int) -> bool:
    """A process that has ended and only waits to be collected is not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- its end ----

PARENT = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    answer(f"{os.getpid()} {child.pid}", asked)
"""
STUBBORN = f"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {PARENT}
    time.sleep(600)
"""


@pytest.mark.parametrize("called", [PARENT, STUBBORN], ids=["ends by itself", "will not end"])
async def test_nothing_is_left_of_a_program_and_of_what_it_has_started(called: str) -> None:
    async with session_with(program(called)) as session:
        numbers = [int(number) for number in text_of(await do(session)).split()]
        assert all(map(is_alive, numbers))
    await until(lambda: not any(map(is_alive, numbers)))


async def test_a_program_that_is_being_connected_to_is_ended_with_its_pool(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    script = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    async with pooled() as pool:
        spec = ServerSpec(label="x", transport="stdio", command=(sys.executable, "-c", script))
        asking = asyncio.create_task(pool.get(spec).tools())
        await until(lambda: started.exists() and bool(started.read_text()))
        assert is_alive(int(started.read_text()))
    with pytest.raises(ServerUnavailable, match="being closed"):
        await asking
    await until(lambda: not is_alive(int(started.read_text())))


async def test_what_it_wrote_before_it_ended_is_read() -> None:
    async with session_with(program("answer('last', asked)\nos._exit(0)")) as session:
        assert text_of(await do(session)) == "last"


async def test_one_whose_output_is_held_by_what_it_has_started_is_over_all_the_same() -> None:
    called = """
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os._exit(0)
    """
    async with session_with(program(called)) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await do(session)


async def test_what_it_asks_for_in_the_middle_of_a_call_is_declined_in_words() -> None:
    called = """
        told = []
        for number, method in enumerate(("ping", "roots/list", "sampling/createMessage", "elicitation/create")):
            say({"jsonrpc": "2.0", "id": f"mine-{number}", "method": method, "params": {}})
            told.append(json.loads(sys.stdin.readline()))
        answer(json.dumps(told), asked)
    """
    async with session_with(program(called)) as session:
        ping, *others = json.loads(text_of(await do(session)))
        assert ping == {"jsonrpc": "2.0", "id": "mine-0", "result": {}}
        for each in others:
            assert each["error"] == {"code": -32601, "message": "Not supported by this client."}


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"], ids=["LF", "CR", "CRLF"])
async def test_arguments_of_several_lines_are_no_messages_of_their_own(line_break: str) -> None:
    """Otherwise a model could call tools that it is not allowed to call."""
    message = '{"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "pid", "arguments": {}}}'
    arguments = f'{{"text":{line_break}{message}{line_break}}}'
    server = McpServer(
        "x", command=program("answer(json.dumps(asked['params']), asked)").command, allowed_tools=("do",)
    )
    executor = McpExecutor([server])
    try:
        async with asyncio.timeout(PATIENCE):
            listed = await executor.discover(McpTool(server_label="x"), ANONYMOUS)
            assert listed is not None
            call = ToolCall(id="call_1", name="do", arguments=arguments, definition=listed[0])
            result = await executor.execute(call, context())
    finally:
        await executor.close()
    assert not result.is_error
    assert isinstance(result.output, str)
    params = json.loads(result.output)
    assert params["name"] == "do"
    assert params["arguments"] == {"text": json.loads(message)}


# ---- what it writes ----


async def test_lines_come_whole_however_they_are_cut_and_what_is_no_message_is_passed_over() -> None:
    called = """
        line = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [], "structuredContent": 1}})
        pieces = "print", " and pray", chr(10), chr(10), line[:20], line[20:] + chr(10) + '{"jsonrpc"', ": 1}" + chr(10)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            time.sleep(0.01)
    """
    async with session_with(program(called)) as session:
        assert (await do(session)).structured == 1
        assert (await do(session)).structured == 1


ODD = {
    "a result that is none": '{"jsonrpc": "2.0", "id": ID, "result": "x"}',
    "several at once": '[{"jsonrpc": "2.0", "id": ID, "result": {}}]',
    "neither result nor error": '{"jsonrpc": "2.0", "id": ID}',
    "too deep": '{"jsonrpc": "2.0", "id": ID, "result": {"x": ' + "[" * 2000 + "]" * 2000 + "}}",
    "cut": '{"jsonrpc": "2.0", "id": ID, "result": {"x": ',
    "no text": '{"jsonrpc": "2.0", "id": ID, "result": {"text": "\xe9"}}',
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
async def test_an_answer_that_is_none_fails_who_waits_for_it_at_once_and_nobody_else(line: str) -> None:
    called = f"""
        sys.stdout.buffer.write({line!r}.replace("ID", str(asked["id"])).encode("latin-1") + bytes([10]))
        sys.stdout.buffer.flush()
    """
    async with session_with(program(called)) as session:
        first = await pid_of(session)
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await do(session)
        assert await pid_of(session) == first


@pytest.mark.parametrize(
    ("said", "read"),
    [('{"x": NaN, "y": 1e999}', {"x": None, "y": None}), (r'{"text": "\ud83d"}', {"text": "\ufffd"})],
    ids=["numbers that are none", "half a character"],
)
async def test_what_is_almost_json_is_mended(said: str, read: object) -> None:
    called = f"""
        line = '{{"jsonrpc": "2.0", "id": ID, "result": {{"structuredContent": VALUE}}}}'
        print(line.replace("ID", str(asked["id"])).replace("VALUE", {said!r}), flush=True)
    """
    async with session_with(program(called)) as session:
        assert (await do(session)).structured == read


async def test_an_answer_whose_number_is_written_as_a_text_is_one() -> None:
    async with session_with(program('asked["id"] = str(asked["id"])\nanswer("done", asked)')) as session:
        assert text_of(await do(session)) == "done"


async def test_an_answer_of_too_many_small_things_fails_who_waits_for_it_and_nobody_else() -> None:
    called = """
        print('{"jsonrpc": "2.0", "id": %d, "result": {"a": [' % asked["id"] + '{},' * 300000 + '{}]}}', flush=True)
    """
    async with session_with(program(called)) as session:
        first = await pid_of(session)
        with pytest.raises(ServerUnavailable, match="too long"):
            await do(session)
        assert await pid_of(session) == first


async def test_a_message_of_too_many_small_things_that_answers_nobody_ends_it() -> None:
    called = """
        print('{"jsonrpc": "2.0", "method": "x", "params": {"a": [' + '{},' * 300000 + '{}]}}', flush=True)
        time.sleep(600)
    """
    async with session_with(program(called)) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await do(session)


@pytest.mark.parametrize("ending", ["", "chr(10)"])
async def test_a_line_that_is_too_long_ends_it(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    called = f"""
        for _ in range(800):
            sys.stdout.write("x" * 65536)
        sys.stdout.write({ending or '""'})
        sys.stdout.flush()
        time.sleep(600)
    """
    async with session_with(program(called, largest=10_000)) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await do(session)
        assert await pid_of(session)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "An MCP server's program wrote a message that is too long."
    ]


@pytest.mark.parametrize("line", ["y", "", '{"jsonrpc": "2.0", "id": 999, "result": {}}'])
async def test_one_that_writes_nothing_but_what_nobody_asked_for_is_given_up(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with session_with(program(f"while True: print({line!r})", unsolicited=4_000)) as session:
        with pytest.raises(ServerUnavailable, match="ended before the answer"):
            await do(session)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "A stream of an MCP server is closed: it sends too much that nobody asked for."
    ]


async def test_one_that_prints_what_it_should_log_is_borne_with() -> None:
    called = """
        for number in range(3000):
            print("Downloading", number)
            print()
        answer("done", asked)
    """
    async with session_with(program(called, unsolicited=4 * 2**20)) as session:
        assert text_of(await do(session)) == "done"


LOG = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'


async def test_others_are_heard_while_one_talks_without_end() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    called = f"""
        for _ in range(500):
            print({LOG!r})
        answer("done", asked)
    """
    async with session_with(program(called, unsolicited=2**30)) as session:
        await session.tools()
        turning = asyncio.create_task(turn())
        assert text_of(await do(session)) == "done"
        turning.cancel()
    assert turns >= 250


async def test_one_that_talks_without_end_is_read_no_faster_than_it_is_heard(tmp_path: Path) -> None:
    written = tmp_path / "written"
    called = f"""
        for count in range(100_000):
            print({LOG!r} + " " * 1000)
            if count % 100 == 0:
                open({str(written)!r}, "w").write(str(count))
        answer("done", asked)
    """
    async with session_with(program(called, unsolicited=20_000)) as session:
        await session.tools()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await do(session)
        assert int(written.read_text()) < 5_000


async def test_one_that_reads_nothing_is_taken_for_hung() -> None:
    async with session_with(program("time.sleep(600)")) as session:
        first = await pid_of(session)
        big = json.dumps({"x": "x" * 5 * 2**20})
        calling = [asyncio.create_task(do(session, big)) for _ in range(3)]
        await until(lambda: sum(task.done() for task in calling) == 2)
        assert all("ended before" in str(task.exception()) for task in calling[:2])
        await until(lambda: not is_alive(first))  # the third has a program of its own
        calling[2].cancel()
        await asyncio.wait(calling)


async def test_what_it_writes_to_its_standard_error_is_for_those_who_look_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="antwort.tools.mcp")
    called = """
        for _ in range(100):
            sys.stderr.write("what it did " * 1000)
        sys.stderr.flush()
        answer("done", asked)
    """
    async with session_with(program(called)) as session:
        await do(session)
    told = [record for record in caplog.records if "standard error" in record.message]
    texts = [str(getattr(record, "fields", {}).get("text")) for record in told]
    assert texts
    assert "what it did" in texts[0]
    assert sum(map(len, texts)) <= 2 * 64 * 1024
    assert all(record.levelno == logging.DEBUG for record in told)


async def test_of_our_environment_it_gets_only_what_programs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTWORT_SECRET", "s")
    spec = program("answer(json.dumps(dict(os.environ)), asked)", env={"TOKEN": "t"})
    async with session_with(spec) as session:
        given = json.loads(text_of(await do(session)))
    assert (given["PATH"], given["TOKEN"]) == (os.environ["PATH"], "t")
    assert "ANTWORT_SECRET" not in given


# ---- why it does not run ----


@asynccontextmanager
async def explained(*command: str, folder: str | None = None) -> AsyncGenerator[str, None]:
    """What the operator of a program is told that cannot be used."""
    spec = ServerSpec(label="x", transport="stdio", command=command, folder=folder)
    async with session_with(spec) as session:
        with pytest.raises(ServerUnavailable) as caught:
            await session.tools()
        yield caught.value.details


async def test_the_operator_is_told_why_a_program_does_not_start(tmp_path: Path) -> None:
    async with explained("no-such-program") as told:
        assert told == "the program 'no-such-program': No such file or directory"
    nowhere = str(tmp_path / "nowhere")
    async with explained(sys.executable, folder=nowhere) as told:
        assert told == f"the folder {nowhere!r}: No such file or directory"
    async with explained("a\0b") as told:
        assert told == "the program 'a\\x00b': it cannot be a command"


async def test_the_operator_is_told_how_a_program_ended_and_what_it_wrote_last() -> None:
    dies = "import sys; sys.stderr.write('x' * 5000 + '\\nNo key.\\n\\x1b[31mSet KEY.\\n'); sys.exit(3)"
    async with explained(sys.executable, "-c", dies) as told:
        assert told.startswith("it ended with status 3; its last words: xxx")
        assert told.endswith("x / No key. / [31mSet KEY.")
        assert len(told) < 1_100
    kills = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    async with explained(sys.executable, "-c", kills) as told:
        assert told == "it was ended by signal 9"


async def test_a_program_that_cannot_be_used_once_can_be_used_later(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    spec = program("answer('done', asked)")
    script = f"import os, sys; os.path.exists({str(ready)!r}) or sys.exit(1)\n{spec.command[2]}"
    async with session_with(replace(spec, command=(sys.executable, "-c", script))) as session:
        with pytest.raises(ServerUnavailable):
            await do(session)
        ready.touch()
        assert text_of(await do(session)) == "done"
