"""`antwort serve`: what it takes, what it says, how it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from antwort.cli import main
from antwort.cli.commands import COMMANDS
from antwort.cli.parser import parse
from antwort.config import Secret, read
from antwort.config.settings import BackendSettings, LocalSettings, LogSettings, ServerSettings, Settings, ToolSettings
from antwort.engine.settings import LoopSettings
from live_server import PATIENCE, launched, run, start
from raw_http import ask

# ---- flags ----


def settings_of(*arguments: str) -> Settings:
    """What a command line asks for, where there is no file."""
    _, given = parse(["serve", "--config", os.devnull, *arguments])
    return read(given, environment={}).settings


def test_what_is_not_given_has_the_default_of_the_settings() -> None:
    assert settings_of("--scripted") == Settings(scripted=True)


def test_every_flag_becomes_its_setting(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    given = "--host 0.0.0.0 --port 9 --data /somewhere --drain 3 --log-level debug --log-format json --model m "
    given += "--max-turns 4 --deadline 5 --mixed-turns execute --requires-action completed --strict "
    given += "--set server.linger=6 --tools a --tools b "
    given += f"--backend http://localhost:8000/v1/ --backend-key-file {tmp_path / 'key'} "
    given += "--gguf some.gguf --demo-tools --workers 1"
    assert settings_of(*given.split()) == Settings(
        backends=(BackendSettings(name="default", url="http://localhost:8000/v1", api_key=Secret("sk-file")),),
        server=ServerSettings(host="0.0.0.0", port=9, drain=3.0, linger=6.0),
        data="/somewhere",
        local=LocalSettings(model="some.gguf"),
        tools=ToolSettings(modules=("a", "b"), demo=True),
        log=LogSettings(level="debug", format="json"),
        default_model="m",
        loop=LoopSettings(max_turns=4, deadline=5.0, mixed_turns="execute", requires_action="completed", strict=True),
    )
    assert settings_of("--memory") == Settings(memory=True)
    assert [flag.key for flag in COMMANDS[0].flags if f"--{flag.key.replace('_', '-')}" not in given] == [
        "scripted",
        "default_model",
        "memory",
        "config",
    ]


def test_the_flags_of_earlier_versions_still_work_with_a_warning() -> None:
    loaded = read({"default_model": "m", "scripted": True, "config": os.devnull}, environment={})
    assert loaded.settings == Settings(scripted=True, default_model="m")
    assert loaded.warnings == ("--default-model is now called --model.",)
    loaded = read({"model": "some.gguf", "config": os.devnull}, environment={})
    assert loaded.settings == Settings(local=LocalSettings(model="some.gguf"))
    assert loaded.warnings == ("--model takes a model's name; for a file, use --gguf FILE.",)


def test_a_models_file_without_the_usual_ending_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "sha256-abc").write_bytes(b"GGUF\3\0")
    (tmp_path / "qwen3").write_bytes(b"not a model")
    for name, is_file in (("sha256-abc", True), ("qwen3", False), ("~nobody-here/qwen3", False)):
        settings = settings_of("--model", name if name.startswith("~") else str(tmp_path / name))
        assert (settings.local.model is not None, settings.default_model is not None) == (is_file, not is_file)


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


async def test_without_a_backend_and_the_demo_model_it_says_how_to_have_one(tmp_path: Path) -> None:
    said = await failure("--data", str(tmp_path), "--port", "0")
    assert f"the demo model is not there: `antwort model pull --data {tmp_path}` fetches it" in said
    assert "--backend URL" in said
    assert "--gguf FILE" in said
    assert "--scripted" in said


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "there is no file {}"), (b"GGML", "{} is not a GGUF file"), (b"", "{} is not a")]
)
async def test_a_model_that_is_no_model_is_one_sentence(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "some.gguf"
    if content is not None:
        file.write_bytes(content)
    said = await failure("--memory", "--port", "0", "--gguf", str(file))
    assert said.startswith(f"antwort: The model cannot be run: {problem.format(repr(str(file)))}")


@pytest.mark.proves("MISTAKE-27")
async def test_on_an_address_that_others_can_reach_it_wants_keys() -> None:
    said = await failure("--scripted", "--memory", "--host", "0.0.0.0", "--port", "0")
    assert "`antwort key`" in said
    assert "auth.required=never" in said


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = await failure("--scripted", "--memory", "--port", port)
    assert said == (
        f"antwort: Cannot listen on http://127.0.0.1:{port}: Address already in use; choose another with --port.\n"
    )


async def test_a_port_for_the_metrics_that_is_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = await failure("--scripted", "--memory", "--port", "0", "--set", f"metrics.port={port}")
    assert said == (
        f"antwort: Cannot listen on port {port} of 127.0.0.1 for the metrics: Address already in use; "
        "choose another with metrics.port.\n"
    )


async def test_a_server_whose_standard_streams_are_closed_ends_as_any_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = f'exec "$0" -m antwort serve --scripted --memory --port {port} <&- >&- 2>&-'
    process = await asyncio.create_subprocess_exec("sh", "-c", script, sys.executable)
    try:
        async with asyncio.timeout(PATIENCE):
            while not await answers(port):  # noqa: ASYNC110 - it has nobody to tell
                await asyncio.sleep(0.05)
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answers(port: int) -> bool:
    try:
        return (await ask(port, "GET", "/healthz")).status == 200
    except OSError:
        return False


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
        os.close(writing)  # a signal between two instructions is noticed when the reading ends
        output, errors = await process.communicate()
    assert (process.returncode, output, errors) == (130, b"", b"")


# ---- its log ----


async def test_the_log_level_silences_the_line_a_request() -> None:
    async with launched("--scripted", "--memory", "--log-level", "warning") as server:
        await ask(server.port, "GET", "/healthz")
        assert await server.stop() == (0, "")


async def test_a_variable_that_means_nothing_is_a_warning_in_it() -> None:
    flags = ("--scripted", "--memory", "--log-level", "warning")
    async with launched(*flags, environment={"ANTWORT_SERVER_PROT": "1"}) as server:
        status, logged = await server.stop()
    assert status == 0
    assert logged.count("\n") == 1
    assert "ANTWORT_SERVER_PROT is not a setting; did you mean ANTWORT_SERVER_PORT? It is ignored." in logged
