"""What `antwort serve` says at the start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antwort.version import __version__
from chat_backend import ChatBackend
from live_server import PATIENCE, launched, start
from raw_http import ask
from replay_backend import serve, whole

TOOLS = '''
from antwort.tools.toolset import Toolset

calc = Toolset("calc")

@calc.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''
KEY = "sk-antwort-0123456789"


async def test_a_scripted_server_says_that_no_model_answers_and_gives_a_request_that_works(tmp_path: Path) -> None:
    async with launched("--scripted", "--data", str(tmp_path / "new"), "--log-format", "human") as server:
        listens, backend, keys, metrics, data, docs, example = server.greeting
        page = await ask(server.port, "GET", "/docs")
        reply = await ask(server.port, "POST", "/v1/responses", b'{"model": "scripted", "input": "Say hello."}')
        status, log = await server.stop()
    url = f"http://127.0.0.1:{server.port}"
    assert listens == f"antwort {__version__} listens on {url}"
    assert backend == "  backend  none: a scripted stand-in answers, not a model"
    assert keys == "  keys     not required: only this machine can reach the server"
    assert metrics == f"  metrics  {url}/metrics"
    assert data == f"  data     {tmp_path / 'new'}"
    assert (docs, page.status) == (f"  docs     {url}/docs", 200)
    body = """-d '{"model": "scripted", "input": "Say hello."}'"""
    assert example == f"  try      curl {url}/v1/responses -H 'Content-Type: application/json' {body}"
    assert reply.json()["output"][0]["content"][0]["text"] == "You said: Say hello."
    assert status == 0
    assert log.count("POST /v1/responses") == 1
    assert str(reply.headers["x-request-id"]) in log


async def test_a_server_with_a_backend_names_it_and_its_models_and_sends_the_key() -> None:
    async with ChatBackend(models=[f"model-{i}" for i in range(7)]) as backend:
        environment = {"ANTWORT_BACKEND_API_KEY": "sk-secret"}
        async with launched("--backend", backend.url, "--memory", environment=environment) as server:
            shown = "\n".join(server.greeting)
    assert f"  {backend.url}, models: model-0, model-1, model-2, model-3, model-4 and 2 more" in shown
    assert "in memory" in shown
    assert '"model": "model-0"' in shown
    assert set(backend.keys) == {"Bearer sk-secret"}
    assert "sk-secret" not in shown


async def test_a_server_with_several_backends_has_a_line_for_each() -> None:
    async with ChatBackend(models=["m"]) as well, ChatBackend(models=["n"]) as second:
        given = ["--backend", f"one={well.url}", "--backend", f"two={second.url}", "--backend", "http://127.0.0.1:9"]
        async with launched(*given, "--memory") as server:
            shown = server.greeting[1:4]
    assert shown == [
        f"  backend  one at {well.url}, models: m",
        f"  backend  two at {second.url}, models: n",
        "  backend  default3 at http://127.0.0.1:9, which cannot be reached yet",
    ]


async def test_tools_keys_and_metrics_are_told_and_the_example_has_a_place_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    file = tmp_path / "antwort.yaml"
    file.write_text(f"auth: {{keys: [{{name: ada, key: {KEY}}}]}}\nmetrics: {{port: 0}}\n")
    file.chmod(0o644)
    given = ("--config", str(file), "--tools", str(tmp_path / "my_tools.py"), "--scripted", "--memory")
    async with launched(*given) as server:
        shown = "\n".join(server.greeting)
        refused = await ask(server.port, "POST", "/v1/responses", {"model": "scripted", "input": "Hello"})
        _, log = await server.stop()
    assert "  tools    calc: add (from " in shown
    assert "  keys     required; there are ada" in shown
    assert f"  config   {file}" in shown
    assert "  metrics  http://127.0.0.1:" in shown
    assert f"http://127.0.0.1:{server.port}/metrics" not in shown
    assert "-H 'Authorization: Bearer YOUR_KEY'" in shown
    assert refused.status == 401
    assert "holds secrets and can be read by other users" in log
    assert KEY not in shown + log


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{}", "/metrics (for nobody, until metrics.key is set)"),
        (f"{{metrics: {{key: {KEY}-m}}}}", "/metrics (with a key)"),
        ("{metrics: {port: 0}}", "/metrics"),
        ("{metrics: {host: 127.0.0.2, port: 0}}", "/metrics"),
        ("{metrics: {enabled: false}}", ""),
    ],
)
async def test_who_may_read_the_metrics_of_a_server_with_keys_is_told(settings: str, said: str, tmp_path: Path) -> None:
    keys = f"auth: {{keys: [{{name: ada, key: {KEY}}}]}}"
    (tmp_path / "antwort.yaml").write_text(f"{keys}\n{settings[1:-1]}")
    async with launched("--config", str(tmp_path / "antwort.yaml"), "--scripted", "--memory") as server:
        lines = [line for line in server.greeting if line.startswith("  metrics ")]
    assert [line.endswith(said) for line in lines] == ([True] if said else [])


async def test_a_server_on_every_address_is_tried_on_this_machine() -> None:
    async with launched("--scripted", "--memory", "--host", "0.0.0.0", "--set", "auth.required=never") as server:
        shown = "\n".join(server.greeting)
    assert shown.startswith(f"antwort {__version__} listens on http://0.0.0.0:{server.port}\n")
    assert "whoever reaches the server can use it" in shown
    assert f"curl http://127.0.0.1:{server.port}/v1/responses" in shown


async def test_a_backend_that_cannot_be_reached_does_not_keep_the_server_from_starting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with launched("--backend", f"http://127.0.0.1:{port}/v1", "--memory") as server:
        assert "cannot be reached yet" in server.greeting[1]
        assert (await ask(server.port, "GET", "/healthz")).status == 200
        ready = await ask(server.port, "GET", "/readyz")
        reply = await ask(server.port, "POST", "/v1/responses", {"model": "m", "input": "Hello"})
        _, log = await server.stop()
    assert (ready.status, ready.json()["store"]) == (503, "ok")
    assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
    assert str(port).encode() not in reply.body + ready.body
    assert "backend_unavailable" in log


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "which was reached, but did not list its models: The backend did not accept this server's credentials."),
        (404, "which was reached, but did not list its models: The backend does not offer what was asked of it."),
        (200, "which was reached, but did not list its models: The backend's list of models cannot be understood."),
        (503, "which cannot be reached yet"),
    ],
)
async def test_the_greeting_says_what_is_wrong_with_the_backend(status: int, said: str) -> None:
    async with serve(whole(b"<html>", status)) as backend, launched("--backend", backend.url, "--memory") as server:
        assert server.greeting[1] == f"  backend  {backend.url}, {said}"


async def test_a_key_in_the_query_of_the_address_is_sent_and_not_shown() -> None:
    async with (
        serve(whole(b'{"data": []}')) as backend,
        launched("--backend", f"{backend.url}?key=hush", "--memory") as server,
    ):
        shown = "\n".join(server.greeting)
        _, log = await server.stop()
    assert backend.requests[0].path == "/v1/models?key=hush"
    assert f"{backend.url}, which lists no models" in shown
    assert "hush" not in shown + log


MCP = """
mcp_servers:
  - {label: docs, url: "http://127.0.0.1:9/mcp?key=hush", standing: {}}
  - {label: files, command: [no-such-program-here, /srv], standing: {models: [qwen]}}
  - {label: more, url: "http://127.0.0.1:9/mcp", token: hush-hush}
"""


async def test_mcp_servers_are_named_and_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    file.write_text(MCP)
    async with launched("--scripted", "--memory", "--config", str(file)) as server:
        shown = [line for line in server.greeting if line.startswith("  mcp")]
        reply = await ask(server.port, "POST", "/v1/responses", b'{"model": "scripted", "input": "Hi"}')
        status, log = await server.stop()
    assert shown == [
        "  mcp      docs: at http://127.0.0.1:9/mcp (in every request)",
        "  mcp      files: run by no-such-program-here (in some requests without being named)",
        "  mcp      more: at http://127.0.0.1:9/mcp",
    ]
    assert [item["type"] for item in reply.json()["output"]] == ["mcp_list_tools", "message"]
    assert (status, "hush" in log, log.count("'more' cannot be used")) == (0, False, 1)


GREET = """
import asyncio
from antwort.app import build
from antwort.cli.greeting import announce
from antwort.config import Settings

async def main():
    settings = Settings(scripted=True, memory=True)
    app = await build(settings)
    await announce(app, settings, 80)
    await app.close()

asyncio.run(main())
"""


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to be had")
@pytest.mark.parametrize("opened", [closed_pipe, full_disk])
async def test_a_greeting_that_nobody_can_read_does_no_harm(opened: Callable[[], int]) -> None:
    out = opened()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GREET, stdout=out, stderr=asyncio.subprocess.PIPE
    )
    os.close(out)
    _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGINT)], ids=["one", "two"])
async def test_a_signal_breaks_the_look_at_the_backends_off(signals: tuple[signal.Signals, ...]) -> None:
    """The backend takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        process = await start("serve", "--port", "0", "--memory", "--config", os.devnull, "--backend", url)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            first = await process.stdout.readline()
            for each in signals:
                process.send_signal(each)
            rest, errors = await process.communicate()
    assert b"listens on" in first
    assert rest == b""
    assert b"Traceback" not in errors
    assert process.returncode == len(signals) - 1


async def test_names_of_models_are_shown_without_what_a_terminal_would_obey() -> None:
    listed = b'{"data": [{"id": "a\\u001b[31mb"}]}'
    async with serve(whole(listed)) as backend, launched("--backend", backend.url, "--memory") as server:
        shown = "\n".join(server.greeting)
    assert "\x1b" not in shown
