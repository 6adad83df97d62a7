"""`antwort doctor --write` and the files of others; whose key goes where; output that cannot be written."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antwort.cli import main
from antwort.config import load
from antwort.config.files import copy_of, replace_file
from bare_machine import forget_this_machine
from replay import LLAMA_CPP_WITHOUT_TOOLS, VLLM, ReplayedEngine, playing
from replay_backend import whole

KEY = "sk-VERYSECRET123"
FILE = Path("antwort.yaml")


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_this_machine(monkeypatch, tmp_path)


@pytest.fixture
async def mute() -> AsyncIterator[ReplayedEngine]:
    """Of which there is something to record: calls must be constrained."""
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        yield engine


async def doctor(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["doctor", *arguments])


def put(text: str, file: Path = FILE) -> None:
    file.write_text(text)
    file.chmod(0o600)


def kept() -> str:
    return FILE.read_text()


def is_there() -> bool:
    return FILE.exists()


def allow(mode: int) -> None:
    FILE.chmod(mode)


def rights() -> int:
    return FILE.stat().st_mode & 0o777


def entry(engine: ReplayedEngine, more: str = "") -> str:
    return f"backends:\n  - name: x\n    url: {engine.url}/v1\n{more}"


# ---- what is not written ----


async def test_a_file_that_only_one_parser_can_read_is_left_and_its_key_not_shown(
    mute: ReplayedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    text = entry(mute, f"    api_key: {KEY}\t# mine\n")
    put(text)
    assert main(["config", "check"]) == 0
    assert await doctor("--write") == 1
    told = capsys.readouterr()
    assert "antwort.yaml is left as it is: it is written in a way that cannot be changed safely." in told.err
    assert KEY not in told.out + told.err
    assert kept() == text


async def test_backends_of_the_environment_go_before_the_file_and_are_not_recorded_in_it(
    mute: ReplayedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTWORT_BACKEND", f"{mute.url}/v1")
    assert await doctor("--write") == 1
    assert "ANTWORT_BACKEND is set, and goes before what is in it" in capsys.readouterr().err
    assert await doctor(mute.url, "--write") == 1
    assert not is_there()


async def test_of_a_backend_of_the_environment_there_may_be_nothing_to_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with playing({**VLLM, "image": VLLM["text"]}) as engine:
        monkeypatch.setenv("ANTWORT_BACKEND", f"{engine.url}/v1")
        assert await doctor("--write") == 0
    assert "There is nothing to record." in capsys.readouterr().out
    assert not is_there()


async def test_a_file_that_is_to_be_read_only_stays_as_it_is(
    mute: ReplayedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    put(entry(mute))
    allow(0o400)
    assert await doctor("--write") == 1
    told = capsys.readouterr()
    assert "antwort.yaml is left as it is: it is read-only." in told.err
    assert "--write" not in told.out.splitlines()[-1]
    assert (kept(), rights()) == (entry(mute), 0o400)


async def test_what_could_not_be_written_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    async with playing(VLLM) as engine:
        put(f"backends: [{{name: x, url: '{engine.url}/v1'}}]\n")
        assert await doctor() == 0
        assert "--write records: capabilities.vision: false." in capsys.readouterr().out
        assert await doctor("--write") == 1
    assert "--write records" not in capsys.readouterr().out.splitlines()[-1]


# ---- what is written ----


async def test_a_backend_with_several_models_gets_no_settings_of_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = dict.fromkeys(("auto", "required", "named"), VLLM["named"])
    listed = whole(json.dumps({"data": [{"id": "qwen3:8b"}, {"id": "llava:7b"}]}).encode())
    async with playing({**VLLM, **calls, "GET /v1/models": listed}) as engine:
        assert await doctor(engine.url, "--write") == 0
        assert kept() == f"backends:\n  - name: default\n    url: {engine.url}/v1\n"
    told = " ".join(capsys.readouterr().out.split())
    assert "Of its 2 models only qwen3:8b was asked, and its settings hold for all of them" in told


async def test_a_key_file_below_the_home_folder_is_recorded_where_it_is(
    mute: ReplayedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(KEY, Path("key"))
    assert await doctor(mute.url, "--backend-key-file=~/key", "--write") == 0
    assert f"api_key: {{file: {tmp_path}/key}}" in kept()


def test_a_file_keeps_its_owner_and_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: given.append((user, group)))
    file = tmp_path / "file"
    file.write_text("one")
    file.chmod(0o640)
    copy_of(file, tmp_path / "copy")
    replace_file(file, "two", mode=0o600)
    assert (file.read_text(), (tmp_path / "copy").read_text()) == ("two", "one")
    assert given == [(file.stat().st_uid, file.stat().st_gid)] * 2
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_a_text_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "new" / "file", "\ud800", mode=0o600)
    assert list(tmp_path.iterdir()) == []


# ---- keys ----


@pytest.mark.parametrize(("others", "sent"), [("", "sk-environment"), ("  - {name: y, url: 'http://h/v1'}\n", KEY)])
async def test_the_key_of_the_environment_is_that_of_the_only_backend(
    others: str, sent: str, mute: ReplayedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(entry(mute, f"    api_key: {KEY}\n") + others)
    monkeypatch.setenv("ANTWORT_BACKEND_API_KEY", "sk-environment")
    await doctor(mute.url)
    assert {request.headers["authorization"] for request in mute.requests} == {f"Bearer {sent}"}


async def test_a_key_in_the_query_behind_a_slash_is_no_other_address(capsys: pytest.CaptureFixture[str]) -> None:
    async with playing({**VLLM, "GET /v1/models?key=secret": VLLM["GET /v1/models"]}) as engine:
        put(entry(engine).replace("/v1", "/v1/?key=secret"))
        assert await doctor("--write") == 0
        assert load("antwort.yaml").backends[0].url == f"{engine.url}/v1/?key=secret"
    assert "✓  reachable" in capsys.readouterr().out


async def test_chat_that_is_closed_to_us_is_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    async with playing(VLLM, text=whole(b'{"error":{"message":"No auth credentials found"}}', 401)) as engine:
        assert await doctor(engine.url, "--json", "--write") == 3
    told = capsys.readouterr()
    [backend] = json.loads(told.out)["backends"]
    assert backend["outcome"] == "unreachable"
    assert backend["problem"].startswith("asks for a key: say --backend-key-file")
    assert not is_there()


# ---- the command line and the output ----


@pytest.mark.parametrize("url", ["http://[::1", "http://ä..x"])
async def test_what_cannot_be_an_address_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await doctor(url) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def _in_a_shell(command: str) -> subprocess.CompletedProcess[str]:
    line = f'"{sys.executable}" -m antwort {command}'
    return subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        ("> /dev/full", 1, "antwort: The output cannot be written: No space left on device.\n"),
        ("--json > /dev/full", 1, "antwort: The output cannot be written: No space left on device.\n"),
        (">&-", 1, "antwort: The output cannot be written: it is closed.\n"),
        ("| head -1 > /dev/null", 0, ""),
    ],
)
async def test_output_that_is_lost_is_told_and_a_reader_who_has_enough_is_not(
    redirection: str, status: int, said: str
) -> None:
    async with playing(VLLM) as engine:
        done = await asyncio.to_thread(_in_a_shell, f"doctor {engine.url} {redirection}")
    assert (done.returncode, done.stderr) == (status, said)
