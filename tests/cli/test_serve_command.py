"""`antwort serve`: what it takes, what it says, how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antwort.cli import main
from antwort.cli.serve import LOOP_SETTINGS, NO_BACKEND, read_settings
from antwort.config import CannotStart, Secret, Settings, read_key
from antwort.config.settings import BackendSettings, LogSettings, ServerSettings
from antwort.engine.settings import LoopSettings
from antwort.version import __version__
from chat_backend import ChatBackend
from live_server import launched, run
from raw_http import ask
from replay_backend import serve, whole


def stopped_with(arguments: list[str]) -> int:
    """The status with which argparse ends the program."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


# ---- flags ----


def test_what_is_not_given_has_the_default_of_the_settings() -> None:
    assert read_settings({"scripted": True}, None) == Settings(scripted=True)


def test_every_flag_becomes_its_setting(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    given: dict[str, Any] = {
        "backend": "http://localhost:8000/v1/",
        "backend_key_file": str(tmp_path / "key"),
        "host": "0.0.0.0",
        "port": 9,
        "data": "/somewhere",
        "drain": 3.0,
        "log_level": "debug",
        "default_model": "m",
        "max_turns": 4,
        "deadline": 5.0,
        "mixed_turns": "execute",
        "requires_action": "event",
        "strict": True,
    }
    assert read_settings(given, "sk-environment") == Settings(
        backends=(BackendSettings(name="default", url="http://localhost:8000/v1", api_key=Secret("sk-file")),),
        server=ServerSettings(host="0.0.0.0", port=9, drain=3.0),
        data="/somewhere",
        log=LogSettings(level="debug"),
        default_model="m",
        loop=LoopSettings(
            max_turns=4,
            deadline=5.0,
            mixed_turns="execute",
            requires_action="event",
            strict=True,
        ),
    )


def test_the_key_is_taken_from_the_environment_and_never_shown() -> None:
    settings = read_settings({"backend": "http://localhost"}, "sk-environment")
    assert settings.backends[0].api_key == Secret("sk-environment")
    assert "sk-environment" not in repr(settings)


@pytest.mark.parametrize(
    "address",
    ["localhost:8000", "ftp://host/v1", "http://", "http://host:99999/v1", "http://host:0/v1", "http://[::1", ""],
)
def test_a_backend_that_is_no_http_address_is_refused(address: str) -> None:
    with pytest.raises(CannotStart, match="is not a URL like"):
        read_settings({"backend": address}, None)


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hush@host/v1",
        "http://user:hush@host:99999/v1",
        "http://user:hush@host:0/v1",
        "http://user:hush@[::1/v1",
        "http://user:hush@/v1",
        "http://hush@host/v1",
        "ftp://user:hush@host/v1",
        "user:hush@host",
        "//user:hush@host",
        "http://user:1/hush@host/v1",
        "http://user:1?hush@host/v1",
        "http://user:1#hush@host/v1",
        "http://user:hush%40host/v1",
        "http://user:hush\uff20host/v1",
        "ftp://host/v1?key=hush",
        "host/v1#hush",
    ],
)
def test_a_password_in_the_address_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(CannotStart, match=r"^The backend's address .*\.$") as caught:
        read_settings({"backend": address}, None)
    assert "hush" not in str(caught.value)


def test_a_slash_at_the_end_of_a_query_stays() -> None:
    assert read_settings({"backend": "http://host/v1?key=a/"}, None).backends[0].url == "http://host/v1?key=a/"


@pytest.mark.parametrize("key", ["sk-a\nsk-b", "sk-ü", "sk-a\tb", "sk-\x00"])
def test_a_key_that_cannot_be_sent_is_refused_without_repeating_it(key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(key, encoding="utf-8")
    for environment, file in ((key, None), (None, str(tmp_path / "key"))):
        with pytest.raises(CannotStart, match=r"^The backend's key cannot be sent: .*\.$") as caught:
            read_key(environment, file)
        assert "sk-" not in str(caught.value)


def test_white_space_around_a_key_is_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbf sk-a \r\n")
    assert read_key(" sk-a\n", None) == read_key(None, str(tmp_path / "key")) == Secret("sk-a")
    assert read_key(" \n", None) is None


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "not text"])
def test_a_key_file_that_holds_no_key_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CannotStart, match=r"key.*'.*/key'"):
        read_settings({"backend": "http://localhost", "backend_key_file": str(file)}, None)


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "65536"],
        ["--port", "-1"],
        ["--port", "http"],
        ["--max-turns", "0"],
        ["--deadline", "0"],
        ["--deadline", "nan"],
        ["--drain", "-1"],
        ["--memory", "--data", "x"],
        ["--backend", "http://localhost"],
        ["--mixed-turns", "maybe"],
        ["--log-level", "loud"],
        ["--unknown"],
    ],
    ids=" ".join,
)
def test_flags_that_make_no_sense_end_with_status_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["serve", "--scripted", *flags]) == 2
    assert flags[-2 if len(flags) > 1 else 0].lstrip("-").split("-")[0] in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for setting in ("backend", "scripted", "host", "port", "data", "memory", "drain", "log_level", *LOOP_SETTINGS):
        assert f"--{setting.replace('_', '-')}" in shown
    assert "--backend-key-file" in shown
    assert "ANTWORT_BACKEND_API_KEY" in shown


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_with(["--version"]) == 0
    assert capsys.readouterr().out == f"antwort {__version__}\n"


# ---- failures, each one sentence ----


def test_without_a_backend_it_says_both_ways_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == f"{NO_BACKEND}\n"
    assert "--backend" in NO_BACKEND
    assert "--scripted" in NO_BACKEND


async def failure(*arguments: str) -> str:
    """The one line with which a command fails."""
    status, output, errors = await run("serve", *arguments)
    assert (status, output) == (1, "")
    assert errors.startswith("antwort: ")
    assert errors.endswith(".\n")
    assert errors.count("\n") == 1
    return errors


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"Cannot listen on http://127.0.0.1:{port}:" in await failure("--scripted", "--memory", "--port", port)


async def test_a_bad_address_of_the_backend_is_one_sentence() -> None:
    assert "'nonsense'" in await failure("--backend", "nonsense")


async def test_a_data_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = str(tmp_path / "file" / "data")
    assert folder in await failure("--scripted", "--port", "0", "--data", folder)


async def test_a_data_folder_that_another_server_uses_is_one_sentence(tmp_path: Path) -> None:
    async with launched("--scripted", "--data", str(tmp_path)):
        said = await failure("--scripted", "--port", "0", "--data", str(tmp_path))
    problem = "Another antwort process uses this data folder."
    assert said == f"antwort: The data folder {str(tmp_path)!r} cannot be used: {problem}\n"


# ---- what it says at the start ----


async def test_a_scripted_server_says_that_no_model_answers_and_gives_a_request_that_works(tmp_path: Path) -> None:
    async with launched("--scripted", "--data", str(tmp_path / "new")) as server:
        listens, backend, data, example = server.greeting
        reply = await ask(server.port, "POST", "/v1/responses", b'{"model": "scripted", "input": "Say hello."}')
        status, log = await server.stop()
    assert listens == f"antwort {__version__} listens on http://127.0.0.1:{server.port}"
    assert "scripted stand-in answers, not a model" in backend
    assert data.endswith(str(tmp_path / "new"))
    assert f"curl http://127.0.0.1:{server.port}/v1/responses" in example
    assert """-d '{"model": "scripted", "input": "Say hello."}'""" in example
    assert reply.json()["output"][0]["content"][0]["text"] == "You said: Say hello."
    assert status == 0
    [line] = [json.loads(line) for line in log.splitlines()]
    assert line["message"].startswith("POST /v1/responses 200 ")
    assert line["request_id"] == reply.headers["x-request-id"]


async def test_a_server_with_a_backend_names_it_and_its_models_and_sends_the_key() -> None:
    async with ChatBackend(models=[f"model-{i}" for i in range(7)]) as backend:
        environment = {"ANTWORT_BACKEND_API_KEY": "sk-secret"}
        async with launched("--backend", backend.url, "--memory", environment=environment) as server:
            shown = "\n".join(server.greeting)
    assert f"{backend.url}, models: model-0, model-1, model-2, model-3, model-4 and 2 more" in shown
    assert "in memory" in shown
    assert '"model": "model-0"' in shown
    assert backend.keys == ["Bearer sk-secret"]
    assert "sk-secret" not in shown


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
from antwort.cli.serve import announce
from antwort.config import Settings

async def main():
    settings = Settings(scripted=True, memory=True)
    app = await build(settings)
    await announce(app, settings, "http://here")
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
