"""`antwort serve --workers N`: several processes on one port."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from antwort.testing import check_frames
from antwort.version import __version__
from chat_backend import ChatBackend, Says
from live_server import PATIENCE, LiveServer, launched, run, start
from postgres import free_port
from raw_http import Reply, ask, connected

RESPONSES = "/v1/responses"
HELLO = {"model": "scripted", "input": "Hello"}
STREAMED = {"model": "test-model", "input": "Hello", "stream": True}


async def children(server: LiveServer) -> set[int]:
    """The processes that a server has started."""
    listing = await asyncio.create_subprocess_exec(
        *("ps", "-o", "pid=", "--ppid", str(server.process.pid)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await listing.communicate()
    return {int(word) for word in output.split()}


def lives(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@asynccontextmanager
async def supervised(database: str, *flags: str, data: Path) -> AsyncIterator[LiveServer]:
    given = ("--workers", "2", "--data", str(data), "--log-format", "human", *flags)
    async with launched(*given, environment={"ANTWORT_DATABASE": database}) as server:
        yield server


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    """What another process does has no event here."""
    async with asyncio.timeout(PATIENCE):
        while not await claim():
            continue


async def are_gone(*pids: int) -> bool:
    await asyncio.sleep(0)
    return not any(lives(pid) for pid in pids)


async def one_is_left(server: LiveServer) -> bool:
    return len(await children(server)) == 1


async def several_are_there(server: LiveServer) -> bool:
    return len(await children(server)) > 1


async def replaced(server: LiveServer, before: set[int], others: int = 0) -> set[int]:
    """All who are there when others have taken the places of those before."""
    async with asyncio.timeout(PATIENCE):
        while len(now := await children(server)) < len(before) + others or now & before:
            assert (await ask(server.port, "GET", "/healthz")).status == 200
    return now


async def logged(server: LiveServer, words: str) -> str:
    """The next line of its log that has them."""
    assert server.process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while words not in (line := (await server.process.stderr.readline()).decode()):
            assert line
    return line


# ---- start ----


async def test_several_workers_answer_on_one_port_and_say_so_once(migrated_database: str, tmp_path: Path) -> None:
    async with supervised(migrated_database, "--scripted", data=tmp_path) as server:
        assert len(await children(server)) == 2
        replies = [await ask(server.port, "POST", RESPONSES, HELLO) for _ in range(4)]
        made = [reply.json()["id"] for reply in replies]
        read = [await ask(server.port, "GET", f"{RESPONSES}/{name}") for name in made]
        metrics = await ask(server.port, "GET", "/metrics")
        status, log = await server.stop()
    assert server.greeting[0] == f"antwort {__version__} listens on http://127.0.0.1:{server.port}"
    titles = [line.split()[0] for line in server.greeting[1:]]
    assert titles == ["workers", "backend", "keys", "metrics", "data", "docs", "try"]
    assert server.greeting[1] == "  workers  2"
    assert "  metrics  none, until metrics.port is set" in server.greeting[4]
    assert server.greeting[5] == "  data     in the PostgreSQL database"
    assert {reply.status for reply in (*replies, *read)} == {200}
    assert metrics.error["message"] == "Each of several workers has metrics of its own: set metrics.port to read them."
    assert status == 0
    assert "Traceback" not in log
    assert log.count(f"POST {RESPONSES}") == 4


async def test_each_worker_has_metrics_on_a_port_of_its_own(migrated_database: str, tmp_path: Path) -> None:
    port = free_port()
    async with supervised(migrated_database, "--scripted", "--set", f"metrics.port={port}", data=tmp_path) as server:
        for _ in range(6):
            await ask(server.port, "POST", RESPONSES, HELLO)
        read = [await ask(each, "GET", "/metrics") for each in (port, port + 1)]
        verdicts = [await ask(each, "GET", "/readyz") for each in (port, port + 1)]
    assert f"  metrics  http://127.0.0.1:{port}/metrics, and on the next port" in server.greeting
    assert [verdict.status for verdict in verdicts] == [200, 200]
    assert sum(_responses(reply) for reply in read) == 6


def _responses(reply: Reply) -> float:
    lines = reply.body.decode().splitlines()
    (line,) = (line for line in lines if line.startswith('antwort_responses_total{reason="",status="completed"}'))
    return float(line.split()[-1])


async def test_what_keeps_all_workers_from_their_start_is_said_once(tmp_path: Path) -> None:
    nowhere = f"database=postgresql://antwort:hush@127.0.0.1:{free_port()}/antwort"
    flags = ("--workers", "3", "--scripted", "--port", "0", "--data", str(tmp_path), "--set", nowhere)
    status, output, errors = await run("serve", "--config", os.devnull, *flags)
    assert (status, output) == (1, "")
    assert errors.startswith("antwort: The database cannot be used: ")
    assert errors.count("\n") == 1
    assert "hush" not in errors


# ---- losses, and others in their places ----


async def test_another_takes_the_place_of_a_worker_that_is_killed(migrated_database: str, tmp_path: Path) -> None:
    async with supervised(migrated_database, "--scripted", data=tmp_path) as server:
        one, other = sorted(await children(server))
        os.kill(one, signal.SIGKILL)
        await until(lambda: are_gone(one))
        assert (await ask(server.port, "POST", RESPONSES, HELLO)).status == 200
        assert other in await replaced(server, {one}, others=1)
        status, log = await server.stop()
    assert status == 0
    assert log.count("has ended by signal 9; another takes its place in 0.2 s") == 1
    assert "Traceback" not in log


async def test_sighup_lets_others_take_their_places_with_what_is_in_the_file_by_then(
    migrated_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "antwort.yaml"
    file.write_text("scripted: true\n")
    async with supervised(migrated_database, "--config", str(file), data=tmp_path) as server:
        before = await children(server)
        file.write_text("scripted: true\ntools: {demo: true}\n")
        server.process.send_signal(signal.SIGHUP)
        await replaced(server, before)
        toolsets = (await ask(server.port, "GET", "/v1/toolsets")).json()
        status, log = await server.stop()
    assert [each["server_label"] for each in toolsets["data"]] == ["demo"]
    assert status == 0
    assert "Traceback" not in log
    assert "takes its place in" not in log


async def test_workers_stay_when_the_file_is_not_right_any_more(migrated_database: str, tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    file.write_text("scripted: true\n")
    async with supervised(migrated_database, "--config", str(file), data=tmp_path) as server:
        before = await children(server)
        file.write_text("scripted: perhaps\n")
        server.process.send_signal(signal.SIGHUP)
        assert "scripted must be" in await logged(server, "the workers stay as they are")
        assert await children(server) == before
        assert (await server.stop())[0] == 0


async def test_workers_stay_when_they_could_not_be_several_with_what_is_in_the_file(
    migrated_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "antwort.yaml"
    both = f"scripted: true\ndatabase: {migrated_database}\nserver: {{workers: 2}}\n"
    file.write_text(both)
    async with launched("--config", str(file), "--data", str(tmp_path), "--log-format", "human") as server:
        before = await children(server)
        file.write_text("scripted: true\n")
        server.process.send_signal(signal.SIGHUP)
        line = await logged(server, "the workers stay as they are")
        assert "server.workers above 1 needs a database that they share" in line
        assert await children(server) == before
        assert (await server.stop())[0] == 0


async def test_what_belongs_to_the_port_and_has_changed_needs_a_restart_and_is_said(
    migrated_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "antwort.yaml"
    file.write_text("scripted: true\nserver: {workers: 2}\n")
    flags = ("--config", str(file), "--data", str(tmp_path), "--log-format", "human")
    async with launched(*flags, environment={"ANTWORT_DATABASE": migrated_database}) as server:
        before = await children(server)
        file.write_text("scripted: true\nserver: {workers: 3, host: localhost}\n")
        server.process.send_signal(signal.SIGHUP)
        said = [await logged(server, f"server.{name} has changed") for name in ("host", "workers")]
        assert len(await replaced(server, before)) == 2
        status, log = await server.stop()
    assert all("which needs a restart: it stays as it was" in line for line in said)
    assert (status, "server.port" in log) == (0, False)


# ---- the end ----


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("leads", [True, False])
async def test_workers_drain_when_each_process_of_the_group_is_told_to_stop(
    how: signal.Signals, leads: bool, migrated_database: str, tmp_path: Path
) -> None:
    go = asyncio.Event()
    async with ChatBackend(Says(hold=go)) as backend:
        flags = ("--backend", backend.url, "--drain", "60")
        async with supervised(migrated_database, *flags, data=tmp_path) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            assert (await wire.head()).status == 200
            chunks = [await wire.chunk()]
            workers = sorted(await children(server))
            for pid in [server.process.pid, *workers] if leads else [*workers, server.process.pid]:
                os.kill(pid, how)
            await until(lambda: one_is_left(server))
            go.set()
            while chunk := await wire.chunk():
                chunks.append(chunk)
            async with asyncio.timeout(PATIENCE):
                _, log = await server.process.communicate()
    assert check_frames(b"".join(chunks)).status == "completed"
    assert server.process.returncode == 0
    assert b"Traceback" not in log


async def test_one_signal_while_workers_start_ends_them_in_order(migrated_database: str, tmp_path: Path) -> None:
    flags = ("--port", "0", "--workers", "3", "--scripted", "--data", str(tmp_path))
    process = await start("serve", *flags, environment={"ANTWORT_DATABASE": migrated_database})
    server = LiveServer(process, 0, [])
    await until(lambda: several_are_there(server))
    assert await server.stop() == (0, "")


@pytest.mark.proves("TR-022")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_all_workers_drain_when_the_server_is_told_to_stop(
    how: signal.Signals, migrated_database: str, tmp_path: Path
) -> None:
    go = asyncio.Event()
    async with ChatBackend(Says(hold=go)) as backend:
        flags = ("--backend", backend.url, "--drain", "60")
        async with supervised(migrated_database, *flags, data=tmp_path) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            assert (await wire.head()).status == 200
            chunks = [await wire.chunk()]
            stopping = asyncio.create_task(server.stop(how))
            await until(lambda: one_is_left(server))  # the other has nothing to do
            go.set()
            while chunk := await wire.chunk():
                chunks.append(chunk)
            status, log = await stopping
    assert check_frames(b"".join(chunks)).status == "completed"
    assert status == 0
    assert "Traceback" not in log


async def test_a_second_signal_ends_all_workers_at_once(migrated_database: str, tmp_path: Path) -> None:
    async with ChatBackend(Says(hold=asyncio.Event())) as backend:
        flags = ("--backend", backend.url, "--drain", "600")
        async with supervised(migrated_database, *flags, data=tmp_path) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            assert (await wire.head()).status == 200
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: one_is_left(server))
            status, _ = await server.stop()
    assert status == 1


async def test_workers_do_not_outlive_the_one_who_started_them(migrated_database: str, tmp_path: Path) -> None:
    async with supervised(migrated_database, "--scripted", data=tmp_path) as server:
        workers = await children(server)
        server.process.kill()
        await until(lambda: are_gone(*workers))
