"""The embedded engine itself, with the demo model: the shape of what comes over the wire, and what becomes of its
process. Never what the model says.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.testing import check_frames
from live_server import LiveServer, launched, run, start
from local_model import keep_in
from raw_http import Reply, Wire, ask, connected
from terminal import CTRL_C, terminal

pytestmark = [
    pytest.mark.xdist_group("model"),
    pytest.mark.skipif(sys.platform != "linux", reason="who is whose child is asked of /proc"),
]

PATIENCE = 60.0
NAME = "smollm2-135m-instruct"
SMALL = ("--set", "local.threads=1", "--set", "local.context=1024")
"""One thread: where several tests run at once, threads that wait for each other take many times as long."""
RESPONSES = "/v1/responses"


@pytest.fixture
def data(tmp_path: Path, demo_model: Path) -> str:
    keep_in(tmp_path, demo_model)
    return str(tmp_path)


@asynccontextmanager
async def serving(data: str, *flags: str) -> AsyncIterator[tuple[LiveServer, int]]:
    """A server with the demo model, and the model's process; both are gone when the block is left."""
    async with asyncio.timeout(PATIENCE), launched("--data", data, *SMALL, *flags) as server:
        [child] = children(server.process.pid)
        yield server, child
        await server.stop()
        assert not is_alive(child)


def children(pid: int) -> Sequence[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while is_alive(pid):  # noqa: ASYNC110 - it is nobody's child here, so that nobody is told
            await asyncio.sleep(0.01)


def asked(words: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
    return {"model": NAME, "input": words, "max_output_tokens": 12, **more}


def endless(**more: Any) -> dict[str, Any]:
    """A request whose answer takes longer than any test; the model may not stop of itself."""
    pattern = {"type": "json_schema", "name": "n", "schema": {"type": "string", "minLength": 1500}}
    return asked("Count.", stream=True, text={"format": pattern}, **{"max_output_tokens": 900, **more})


# ---- the wire ----


async def test_a_real_model_answers_in_both_forms_and_ends_with_the_server(data: str) -> None:
    async with serving(data) as (server, child):
        models = await ask(server.port, "GET", "/v1/models")
        ready = await ask(server.port, "GET", "/readyz")
        whole = (await ask(server.port, "POST", RESPONSES, asked())).json()
        stream = await ask(server.port, "POST", RESPONSES, asked(stream=True))
        other = await ask(server.port, "POST", RESPONSES, asked() | {"model": "gpt-5"})
        assert is_alive(child)
        status, _ = await server.stop()
    assert f"  model    {NAME} on this machine: a 135M demo model, often wrong" in server.greeting
    assert (status, ready.status) == (0, 200)
    assert [model["id"] for model in models.json()["data"]] == [NAME]
    [message] = whole["output"]
    assert (message["type"], message["role"], whole["model"]) == ("message", "assistant", NAME)
    assert message["content"][0]["text"]
    assert whole["usage"]["input_tokens"] > 5
    assert 0 < whole["usage"]["output_tokens"] <= 12
    check_frames(stream.body)
    assert stream.body.count(b"event: response.output_text.delta") > 1
    assert (other.status, other.error["code"]) == (404, "model_not_found")


LAMP = '''
from typing import Literal
from antwort.tools.toolset import Toolset

home = Toolset("home")

@home.tool
def set_lamp(room: Literal["kitchen", "hall"], on: bool) -> str:
    """Switch a lamp."""
    return f"The lamp in the {room} is {'on' if on else 'off'}."
'''


async def test_a_tool_call_is_made_executed_and_answered(data: str, tmp_path: Path) -> None:
    """What it says in the call and in the answer is the model's own affair; that both come, and how, is not."""
    (tmp_path / "lamp.py").write_text(LAMP)
    request = asked(
        "Switch the lamp in the kitchen on.",
        tools=[{"type": "mcp", "server_label": "home", "require_approval": "never"}],
        tool_choice={"type": "mcp", "server_label": "home", "name": "set_lamp"},
        stream=True,
        max_output_tokens=60,
    )
    async with serving(data, "--tools", str(tmp_path / "lamp.py")) as (server, _):
        stream = await ask(server.port, "POST", RESPONSES, request)
    check_frames(stream.body)
    response = terminal_event(stream)["response"]
    [listed, call, message] = response["output"]
    arguments = json.loads(call["arguments"])
    assert response["status"] in ("completed", "incomplete")  # how long the answer gets is its own affair, too
    assert (listed["type"], call["type"], message["type"]) == ("mcp_list_tools", "mcp_call", "message")
    assert (call["name"], call["server_label"], call["status"]) == ("set_lamp", "home", "completed")
    assert (arguments["room"] in ("kitchen", "hall"), type(arguments["on"])) == (True, bool)
    assert call["output"] == f"The lamp in the {arguments['room']} is {'on' if arguments['on'] else 'off'}."
    assert message["content"][0]["text"]


def terminal_event(stream: Reply) -> dict[str, Any]:
    """The last event of a stream."""
    *_, last, done = stream.body.decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    event: dict[str, Any] = json.loads(last.partition("data: ")[2])
    return event


# ---- the process ----


async def test_a_model_that_is_killed_under_load_fails_what_is_under_way_cleanly_and_answers_the_next(
    data: str,
) -> None:
    async with serving(data) as (server, child):
        # There is no place for all at once; the successor may make the long one to its end.
        requests = [endless(max_output_tokens=150), asked(stream=True), asked()]
        under_way = [asyncio.create_task(ask(server.port, "POST", RESPONSES, each)) for each in requests]
        async with connected(server.port) as seen:
            seen.send("POST", RESPONSES, endless())
            assert (await seen.head()).status == 200
            await until_said(seen)
            os.kill(child, signal.SIGKILL)
            rest = b""
            while chunk := await seen.chunk():
                rest += chunk
        failed = [await each for each in under_way]
        answer = await until_answered(server)
        [successor] = children(server.process.pid)
    assert b"event: response.failed" in rest
    assert [each for each in failed if not ended_cleanly(each)] == []
    assert answer["status"] in ("completed", "incomplete")
    assert successor != child


async def until_said(stream: Wire) -> None:
    said = b""
    while b"response.output_text.delta" not in said:
        said += await stream.chunk()


def ended_cleanly(reply: Reply) -> bool:
    """An error of its own, or an answer to its end: one that waited for a place may have been answered by the next."""
    if reply.status != 200:
        return reply.status in (502, 503) and bool(reply.error["message"])
    if reply.headers["content-type"] == "application/json":
        return reply.json()["status"] in ("failed", "completed", "incomplete")
    check_frames(reply.body)
    return terminal_event(reply)["type"] in ("response.failed", "response.completed", "response.incomplete")


async def until_answered(server: LiveServer) -> Any:
    """What a client gets that comes again when it is told to."""
    while (reply := await ask(server.port, "POST", RESPONSES, asked())).status != 200:
        assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
        await asyncio.sleep(min(int(reply.headers["retry-after"]), 1))
    return reply.json()


async def test_a_server_that_is_killed_takes_its_model_along(data: str) -> None:
    async with launched("--data", data, *SMALL) as server:
        [child] = children(server.process.pid)
        server.process.kill()
        await server.process.communicate()
        await until_gone(child)


@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)])
async def test_a_server_that_is_ended_while_the_model_loads_takes_it_along(
    data: str, how: signal.Signals, status: int
) -> None:
    process = await start("serve", "--port", "0", "--data", data, *SMALL)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert b"listens on" in await process.stdout.readline()
        while not (found := children(process.pid)):  # noqa: ASYNC110 - it is the server's child
            await asyncio.sleep(0.01)
        process.send_signal(how)
        await process.communicate()
    assert process.returncode == status
    await until_gone(found[0])


async def test_a_file_that_llama_cpp_cannot_load_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing of the kind")
    flags = ("--port", "0", "--memory", "--gguf", str(tmp_path / "bad.gguf"))
    status, output, errors = await run("serve", "--config", os.devnull, *flags)
    *log, last = errors.splitlines()
    assert (status, output.count("\n")) == (1, 1)
    assert last.startswith("antwort: The model bad cannot be loaded: gguf_init")
    assert any("llama.cpp: " in line for line in log)


async def test_a_terminal_sees_the_model_load_and_ctrl_c_lets_it_finish_what_it_says(data: str) -> None:
    """Ctrl-C goes to all that is in the foreground of a terminal, of which the model's process must be no part."""
    async with terminal("serve", "--port", "0", "--data", data, *SMALL, width=160) as screen:
        shown = await screen.until("  try      curl")
        [port] = re.findall(r"listens on http://127\.0\.0\.1:(\d+)", shown)
        [child] = children(screen.pid)
        async with asyncio.timeout(PATIENCE), connected(int(port)) as stream:
            stream.send("POST", RESPONSES, endless(max_output_tokens=40))
            assert (await stream.head()).status == 200
            await until_said(stream)
            screen.type(CTRL_C)
            rest = b""
            while chunk := await stream.chunk():
                rest += chunk
        status = await screen.ended()
    assert re.search(rf"  model    loading {NAME} \.\.\. \d+ s *\r".encode(), screen.received)
    assert f"\n  model    {NAME} on this machine: a 135M demo model, often wrong\n" in shown
    assert "loading" not in shown
    assert b"event: response.incomplete" in rest
    assert status == 0
    assert not is_alive(child)
