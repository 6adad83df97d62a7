"""SIGHUP to `antwort serve`: one process reloads its settings and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from antwort.testing import check_frames
from chat_backend import ChatBackend, Says
from live_server import PATIENCE, LiveServer, launched
from raw_http import ask, connected

RESPONSES = "/v1/responses"
HELLO = {"model": "scripted", "input": "Hello"}
ANN, BEN = "sk-test-ann-0123456789", "sk-test-ben-0123456789"


def write_settings(file: Path, key: str, more: str = "") -> tuple[str, ...]:
    """Write settings with one API key, and return the flags that name them."""
    file.write_text(f"auth: {{keys: [{{name: someone, key: {key}}}]}}\n{more}\n")
    file.chmod(0o600)
    return ("--config", str(file), "--memory", "--log-format", "human")


async def logged(server: LiveServer, words: str) -> str:
    """Return the next line of the log that has these words."""
    assert server.process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while words not in (line := (await server.process.stderr.readline()).decode()):
            assert line
    return line


async def status_with(key: str, server: LiveServer) -> int:
    return (await ask(server.port, "POST", RESPONSES, HELLO, {"authorization": f"Bearer {key}"})).status


@contextmanager
def hangup_ignored() -> Iterator[None]:
    """As `nohup` does: programs that are started inherit it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_sighup_reloads_keys_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    async with launched("--scripted", *write_settings(file, ANN)) as server:
        assert (await status_with(ANN, server), await status_with(BEN, server)) == (200, 401)
        write_settings(file, BEN, "server: {linger: 5}\nloop: {max_turns: 3}")
        server.process.send_signal(signal.SIGHUP)
        changed = await logged(server, "settings reloaded")
        restart = await logged(server, "needs a restart")
        assert (await status_with(ANN, server), await status_with(BEN, server)) == (401, 200)
        status, log = await server.stop()
    assert changed.endswith("settings reloaded: auth.keys, loop.max_turns\n")
    assert restart.endswith("needs a restart: server.linger\n")
    assert (status, "Traceback" in log) == (0, False)


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found, not named: without it, the defaults would hold."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "antwort.yaml"
    _, _, *flags = write_settings(file, ANN)
    async with launched("--scripted", *flags) as server:
        file.unlink()
        server.process.send_signal(signal.SIGHUP)
        assert "antwort.yaml" in await logged(server, "the settings stay as they are")
        assert await status_with(ANN, server) == 200
        assert (await server.stop())[0] == 0


async def test_settings_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    async with launched("--scripted", *write_settings(file, ANN)) as server:
        write_settings(file, BEN, "server: {linger: never}")
        server.process.send_signal(signal.SIGHUP)
        assert "server.linger" in await logged(server, "the settings stay as they are")
        assert (await status_with(ANN, server), await status_with(BEN, server)) == (200, 401)
        assert (await server.stop())[0] == 0


async def test_a_stream_under_way_goes_on_and_is_completed(tmp_path: Path) -> None:
    file, go = tmp_path / "antwort.yaml", asyncio.Event()
    async with ChatBackend(Says(hold=go)) as backend:
        flags = ("--backend", backend.url, *write_settings(file, ANN))
        async with launched(*flags) as server, connected(server.port) as wire:
            body = {"model": "test-model", "input": "Hello", "stream": True}
            wire.send("POST", RESPONSES, body, {"authorization": f"Bearer {ANN}"})
            assert (await wire.head()).status == 200
            chunks = [await wire.chunk()]
            write_settings(file, BEN)
            server.process.send_signal(signal.SIGHUP)
            await logged(server, "settings reloaded")
            go.set()
            while chunk := await wire.chunk():
                chunks.append(chunk)
            assert (await server.stop())[0] == 0
    assert check_frames(b"".join(chunks)).status == "completed"


async def test_a_server_under_nohup_reloads_as_well(tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    with hangup_ignored():
        async with launched("--scripted", *write_settings(file, ANN)) as server:
            write_settings(file, BEN)
            server.process.send_signal(signal.SIGHUP)
            await logged(server, "settings reloaded")
            assert await status_with(BEN, server) == 200
            assert (await server.stop())[0] == 0


@pytest.mark.parametrize("is_nohup", [False, True])
async def test_a_server_ends_with_its_terminal_unless_it_runs_under_nohup(is_nohup: bool) -> None:
    arguments = ["-m", "antwort", "serve", "--scripted", "--memory", "--port", "0", "--config", os.devnull]
    child = pexpect.spawn(sys.executable, arguments, timeout=PATIENCE, ignore_sighup=is_nohup)
    child.expect(r"listens on http://127.0.0.1:(\d+)")
    port = int(child.match.group(1))
    child.expect("antwort chat --url")
    ending = asyncio.create_task(asyncio.to_thread(os.waitpid, child.pid, 0))
    try:
        os.close(child.child_fd)  # the terminal is gone
        child.child_fd, child.closed, child.terminated = -1, True, True
        if is_nohup:
            assert (await ask(port, "GET", "/healthz")).status == 200
            os.kill(child.pid, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            _, status = await asyncio.shield(ending)
    finally:
        if not ending.done():
            os.kill(child.pid, signal.SIGKILL)
            await ending
    assert os.waitstatus_to_exitcode(status) == 0
