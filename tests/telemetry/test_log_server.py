"""The log of a real server: a process of its own, its standard error read as it is."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chat_backend import Answer, Breaks, ChatBackend, Refuses, Says
from live_server import launched
from raw_http import ask

TESTS = Path(__file__).resolve().parents[1]
TOOL = {
    "type": "function",
    "name": "secretive",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}
ASKED: dict[str, Any] = {
    "model": "scripted",
    "input": "canary-question",
    "instructions": "canary-rule",
    "tools": [TOOL],
}
HEADERS = {"authorization": "Bearer canary-key", "x-api-key": "canary-key", "x-request-id": "r1"}


class Process:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self.port = process, port

    async def stop(self) -> str:
        """Told to stop, it ends well; what it had logged, where that was a pipe."""
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            _, errors = await self._process.communicate()
        assert self._process.returncode == 0
        return (errors or b"").decode()


@asynccontextmanager
async def server(
    *arguments: str, stderr: int = asyncio.subprocess.PIPE, environment: dict[str, str] | None = None
) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "telemetry_kit", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": str(TESTS), **(environment or {})},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield Process(process, int(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def conversation(port: int) -> None:
    """A response with two turns of tool calls, a second one, and a request that is wrong."""
    assert (await ask(port, "POST", "/v1/responses?key=canary-query", ASKED, HEADERS)).status == 200
    streamed = await ask(port, "POST", "/v1/responses", {**ASKED, "stream": True}, {**HEADERS, "x-request-id": "r2"})
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    wrong = await ask(port, "GET", "/v1/responses/canary%0Aid?x=canary-query", None, {**HEADERS, "x-request-id": "r3"})
    assert wrong.status == 404


def events(lines: Sequence[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("event") == event]


async def test_a_server_writes_json_with_one_line_a_request_and_one_a_tool_call() -> None:
    async with server("info", "auto") as process:
        await conversation(process.port)
        lines = [json.loads(line) for line in (await process.stop()).splitlines()]
    assert all(list(line)[:4] == ["time", "level", "logger", "message"] for line in lines)
    first, second, third = events(lines, "request")
    assert [line["request_id"] for line in (first, second, third)] == ["r1", "r2", "r3"]
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/responses", 200)
    assert (first["model"], first["turns"], first["response_status"]) == ("scripted", 3, "completed")
    assert first["response_id"].startswith("resp_")
    assert first["duration_ms"] > 0
    assert (second["turns"], second["response_status"]) == (1, "completed")
    assert (third["status"], third["error"]) == (404, "response_not_found")
    calls = events(lines, "tool_call")
    assert [(line["tool"], line["outcome"]) for line in calls] == [
        ("secretive", "ok"),
        ("made\nup=1", "refused"),
        ("secretive", "error"),
    ]
    assert all((line["request_id"], line["response_id"]) == ("r1", first["response_id"]) for line in calls)
    assert all(line["call_id"].startswith("call_") for line in calls)


@pytest.mark.parametrize("form", ["json", "human"])
async def test_no_content_and_no_secret_is_written_even_at_the_lowest_level(form: str) -> None:
    async with server("debug", form) as process:
        await conversation(process.port)
        log = await process.stop()
    found = set(re.findall(r"canary[\w%-]*", log))
    assert found == {"canary%0Aid"}  # the path, as it was sent
    assert "POST /v1/responses 200" in log


async def test_the_key_of_a_backend_is_not_written_whatever_the_backend_does() -> None:
    wrong = Refuses(401, "canary-backend-key is wrong")
    answers: list[Answer] = [Says(), wrong, Refuses(500), Refuses(400), Says()]
    async with (
        ChatBackend(*answers) as backend,
        server("debug", "json", environment={"BACKEND": backend.url}) as process,
    ):
        for _ in answers:
            await ask(process.port, "POST", "/v1/responses", {"model": "m", "input": "canary-question"})
        log = await process.stop()
    assert backend.keys[0] == "Bearer canary-backend-key"
    assert "canary" not in log
    requests = events([json.loads(line) for line in log.splitlines()], "request")
    assert [line["status"] for line in requests] == [200, 502, 502, 400, 200]


async def test_a_dead_backend_is_one_warning_and_each_request_to_it_one_line_with_the_cause() -> None:
    async with ChatBackend() as backend:
        url = backend.url
    body = {"model": "m", "input": "Hello"}
    async with launched("--backend", url, "--memory", "--log-format", "json") as server:
        for stream in (False, True, False, False):
            assert (await ask(server.port, "POST", "/v1/responses", {**body, "stream": stream})).status == 503
        status, log = await server.stop()
    lines = [json.loads(line) for line in log.splitlines()]
    assert status == 0
    assert len(lines) == 5
    [lost] = [line for line in lines if line["logger"] == "antwort.providers"]
    assert (lost["level"], "is out of reach" in lost["message"]) == ("warning", True)
    requests = events(lines, "request")
    assert len(requests) == 4
    for line in requests:
        assert (line["level"], line["error"], line["response_status"]) == ("warning", "backend_unavailable", "failed")
        assert line["cause"] == "The backend cannot be reached. (ConnectionRefusedError: Connection refused)"


async def test_a_backend_that_answers_with_errors_is_reported_once_and_in_the_line_of_each_request() -> None:
    body = {"model": "m", "input": "Hello"}
    async with (
        ChatBackend(*[Refuses(500, "out of memory")] * 20) as backend,
        launched("--backend", backend.url, "--memory", "--log-format", "json") as server,
    ):
        for _ in range(3):
            assert (await ask(server.port, "POST", "/v1/responses", body)).status == 502
        _, log = await server.stop()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("antwort.providers", "info"),
        *[("antwort.transport", "warning")] * 3,
    ]
    assert {line["error"] for line in events(lines, "request")} == {"backend_error"}
    assert len({line["cause"] for line in events(lines, "request")}) == 1


async def test_a_backend_that_breaks_off_in_mid_stream_is_in_the_line_of_the_request() -> None:
    async with (
        ChatBackend(Breaks()) as backend,
        launched("--backend", backend.url, "--memory", "--log-format", "json") as server,
    ):
        reply = await ask(server.port, "POST", "/v1/responses", {"model": "m", "input": "Hello", "stream": True})
        _, log = await server.stop()
    assert reply.status == 200
    [line] = [line for line in map(json.loads, log.splitlines()) if line["level"] == "warning"]
    assert (line["event"], line["status"], line["response_status"]) == ("request", 200, "failed")
    assert (line["error"], line["cause"]) == ("backend_stream_cut", "The backend's answer broke off. (ConnectionLost)")


async def test_a_tool_that_fails_leaves_a_traceback_without_its_words() -> None:
    async with server("info", "json") as process:
        await conversation(process.port)
        lines = [json.loads(line) for line in (await process.stop()).splitlines()]
    [failed] = [line for line in lines if "exception" in line]
    assert failed["exception"].endswith("ValueError")
    assert "in secretive" in failed["exception"]


async def test_content_is_written_when_asked_for_in_lines_of_its_own() -> None:
    async with server("info", "json", "content") as process:
        await conversation(process.port)
        lines = [json.loads(line) for line in (await process.stop()).splitlines()]
    first, _ = events(lines, "content")
    assert "canary-question" in first["input"]
    assert "canary-answer" in first["output"]
    assert "canary-tool-output" in first["output"]
    assert first["instructions"] == "canary-rule"
    assert first["logger"] == "antwort.content"
    rest = json.dumps([line for line in lines if line.get("event") in ("request", "tool_call")])
    assert set(re.findall(r"canary[\w-]*", rest)) == {"canary"}  # of the path
    assert "canary-key" not in json.dumps(lines)


async def test_on_a_terminal_the_lines_are_for_people() -> None:
    leader, follower = pty.openpty()
    try:
        async with server("info", "auto", stderr=follower) as process:
            await ask(process.port, "GET", "/healthz", headers={"x-request-id": "r1"})
            await process.stop()
        shown = os.read(leader, 65536).decode()
    finally:
        os.close(follower)
        os.close(leader)
    head = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO antwort\.transport "
    assert re.fullmatch(rf"{head}GET /healthz 200 \d+\.\d ms request_id=r1\r\n", shown)


async def test_a_server_whose_log_nobody_reads_goes_on_and_stops() -> None:
    """Enough lines to fill the pipe many times over."""
    end, stuck = os.pipe()
    try:
        async with server("info", "json", stderr=stuck) as process:
            path = f"/{'x' * 190}"
            for _ in range(300):
                assert (await ask(process.port, "GET", path)).status == 404
            await process.stop()
    finally:
        os.close(end)
        os.close(stuck)


async def test_a_server_whose_log_is_closed_goes_on_and_stops() -> None:
    end, broken = os.pipe()
    os.close(end)
    try:
        async with server("info", "json", stderr=broken) as process:
            assert (await ask(process.port, "GET", "/healthz")).status == 200
            await process.stop()
    finally:
        os.close(broken)
