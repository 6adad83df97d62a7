"""`antwort serve`: what it takes, what it says, how it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antwort.cli import main
from antwort.cli.commands import COMMANDS
from antwort.cli.parser import parse
from antwort.config import Secret, read
from antwort.config.settings import BackendSettings, LogSettings, ServerSettings, Settings, ToolSettings
from antwort.engine.settings import LoopSettings
from antwort.version import __version__
from chat_backend import ChatBackend
from live_server import PATIENCE, launched, run, start
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

# ---- flags ----


def settings_of(*arguments: str) -> Settings:
    """What a command line asks for, where there is no file."""
    _, given = parse(["serve", "--config", os.devnull, *arguments])
    return read(given, environment={}).settings


def test_what_is_not_given_has_the_default_of_the_settings() -> None:
    assert settings_of("--scripted") == Settings(scripted=True)


def test_every_flag_becomes_its_setting(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    given = "--host 0.0.0.0 --port 9 --data /somewhere --drain 3 --log-level debug --log-format json --default-model m "
    given += "--max-turns 4 --deadline 5 --mixed-turns execute --requires-action event --strict --set server.linger=6 "
    given += f"--tools a --tools b --backend http://localhost:8000/v1/ --backend-key-file {tmp_path / 'key'}"
    assert settings_of(*given.split()) == Settings(
        backends=(BackendSettings(name="default", url="http://localhost:8000/v1", api_key=Secret("sk-file")),),
        server=ServerSettings(host="0.0.0.0", port=9, drain=3.0, linger=6.0),
        data="/somewhere",
        tools=ToolSettings(modules=("a", "b")),
        log=LogSettings(level="debug", format="json"),
        default_model="m",
        loop=LoopSettings(max_turns=4, deadline=5.0, mixed_turns="execute", requires_action="event", strict=True),
    )
    assert settings_of("--memory") == Settings(memory=True)
    assert [flag.key for flag in COMMANDS[0].flags if f"--{flag.key.replace('_', '-')}" not in given] == [
        "scripted",
        "memory",
        "config",
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "65536"], "--port"),
        (["--port=-1"], "--port"),
        (["--port", "http"], "--port"),
        (["--max-turns", "0"], "--max-turns"),
        (["--deadline", "0"], "--deadline"),
        (["--deadline", "nan"], "--deadline"),
        (["--drain=-1"], "--drain"),
        (["--memory", "--data", "x"], "--memory"),
        (["--backend", "http://localhost"], "--backend"),
        (["--mixed-turns", "maybe"], "--mixed-turns"),
        (["--log-level", "loud"], "--log-level"),
        (["--set", "nonsense=1"], "nonsense is not a setting"),
        (["--set", "nonsense"], "--set must be PATH=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_flags_that_make_no_sense_end_with_status_2(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["serve", "--config", os.devnull, "--scripted", *flags]))
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


# ---- failures, each one sentence ----


async def failure(*arguments: str) -> str:
    """The one line with which a command fails."""
    status, output, errors = await run("serve", "--config", os.devnull, *arguments)
    assert (status, output) == (1, "")
    assert errors.startswith("antwort: ")
    assert errors.endswith(".\n")
    assert errors.count("\n") == 1
    return errors


async def test_without_a_backend_it_says_both_ways_to_have_one() -> None:
    said = await failure()
    assert "--backend URL" in said
    assert "--scripted" in said


@pytest.mark.proves("MISTAKE-27")
async def test_on_an_address_that_others_can_reach_it_wants_keys() -> None:
    said = await failure("--scripted", "--memory", "--host", "0.0.0.0", "--port", "0")
    assert "`antwort key`" in said
    assert "auth.required=never" in said


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = await failure("--scripted", "--memory", "--port", port)
    assert said.startswith(f"antwort: Cannot listen on http://127.0.0.1:{port}: ")
    assert said.endswith("; choose another with --port.\n")


async def test_a_data_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = str(tmp_path / "file" / "data")
    assert folder in await failure("--scripted", "--port", "0", "--data", folder)


async def test_a_data_folder_that_another_server_uses_is_one_sentence(tmp_path: Path) -> None:
    async with launched("--scripted", "--data", str(tmp_path)):
        said = await failure("--scripted", "--port", "0", "--data", str(tmp_path))
    problem = "Another antwort process uses this data folder."
    assert said == f"antwort: The data folder {str(tmp_path)!r} cannot be used: {problem}\n"


async def test_a_module_of_tools_that_is_not_there_is_one_sentence() -> None:
    assert "no_such_module" in await failure("--scripted", "--memory", "--port", "0", "--tools", "no_such_module")


async def test_an_interrupt_while_it_starts_ends_it_quietly(tmp_path: Path) -> None:
    pipe = tmp_path / "antwort.yaml"
    os.mkfifo(pipe)
    process = await start("serve", "--scripted", "--memory", "--config", str(pipe))
    async with asyncio.timeout(PATIENCE):
        writing = await asyncio.to_thread(os.open, pipe, os.O_WRONLY)  # the server has opened it, and reads
        process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
        os.close(writing)
    assert (process.returncode, output, errors) == (130, b"", b"")


# ---- what it says at the start ----


async def test_a_scripted_server_says_that_no_model_answers_and_gives_a_request_that_works(tmp_path: Path) -> None:
    async with launched("--scripted", "--data", str(tmp_path / "new"), "--log-format", "human") as server:
        listens, backend, keys, metrics, data, example = server.greeting
        reply = await ask(server.port, "POST", "/v1/responses", b'{"model": "scripted", "input": "Say hello."}')
        status, log = await server.stop()
    url = f"http://127.0.0.1:{server.port}"
    assert listens == f"antwort {__version__} listens on {url}"
    assert backend == "  backend  none: a scripted stand-in answers, not a model"
    assert keys == "  keys     not required: only this machine can reach the server"
    assert metrics == f"  metrics  {url}/metrics"
    assert data == f"  data     {tmp_path / 'new'}"
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
    assert "  metrics  http://127.0.0.1:" in shown
    assert f"http://127.0.0.1:{server.port}/metrics" not in shown
    assert "-H 'Authorization: Bearer YOUR_KEY'" in shown
    assert refused.status == 401
    assert "holds secrets and can be read by other users" in log
    assert KEY not in shown + log


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
    async with serve(whole(b"[]", status)) as backend, launched("--backend", backend.url, "--memory") as server:
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


async def test_the_log_level_silences_the_line_a_request() -> None:
    async with launched("--scripted", "--memory", "--log-level", "warning") as server:
        await ask(server.port, "GET", "/healthz")
        assert await server.stop() == (0, "")
