"""`antwort worker`: a process that makes background responses, and answers nobody."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.version import __version__
from chat_backend import ChatBackend, Says, Stalls
from live_server import PATIENCE, LiveServer, launched, run, start
from postgres import free_port
from raw_http import ask

RESPONSES = "/v1/responses"
LATER = {"model": "test-model", "input": "Hello", "background": True}


class LiveWorker:
    def __init__(self, process: asyncio.subprocess.Process, greeting: Sequence[str]) -> None:
        self.process, self.greeting = process, greeting

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Tell it to stop; the exit status and what was logged."""
        self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def working(database: str, *flags: str, data: Path) -> AsyncIterator[LiveWorker]:
    given = ("worker", "--data", str(data), "--log-format", "human", *flags)
    process = await start(*given, environment={"ANTWORT_DATABASE": database})
    try:
        yield LiveWorker(process, await _greeting(process))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _greeting(process: asyncio.subprocess.Process) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not lines or not lines[-1].startswith("  data "):
            line = await process.stdout.readline()
            assert line, lines
            lines.append(line.decode().rstrip("\n"))
    return lines


@asynccontextmanager
async def taking(database: str, backend: ChatBackend, data: Path) -> AsyncIterator[LiveServer]:
    """A server that takes background responses and leaves them to others."""
    flags = ("--backend", backend.url, "--data", str(data), "--set", "background.at_once=0")
    async with launched(*flags, environment={"ANTWORT_DATABASE": database}) as server:
        yield server


async def ended(server: LiveServer, name: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (response := (await ask(server.port, "GET", f"{RESPONSES}/{name}")).json())["status"] != "completed":
            assert response["status"] in ("queued", "in_progress"), response
    return dict(response)


async def test_it_makes_what_a_server_has_taken_and_tells_of_it(migrated_database: str, tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(("Hello", " there"))) as backend,
        taking(migrated_database, backend, tmp_path) as server,
    ):
        queued = (await ask(server.port, "POST", RESPONSES, LATER)).json()
        async with working(migrated_database, "--backend", backend.url, data=tmp_path) as worker:
            response = await ended(server, queued["id"])
            status, log = await worker.stop()
    assert worker.greeting == [
        f"antwort {__version__} makes background responses, 32 at once",
        f"  backend  {backend.url}, models: test-model",
        "  data     in the PostgreSQL database",
    ]
    assert response["output"][0]["content"][0]["text"] == "Hello there"
    assert status == 0
    begins, over = (line for line in log.splitlines() if "antwort.runs" in line)
    assert " INFO antwort.runs a response in the background begins " in begins
    assert f"response_id={queued['id']} model=test-model attempt=1 waited_ms=" in begins
    assert " INFO antwort.runs a response in the background is completed " in over
    assert f"response_id={queued['id']} model=test-model turns=1 input_tokens=5 output_tokens=7" in over


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
async def test_told_to_stop_it_hands_over_what_another_makes_to_its_end(
    how: signal.Signals, migrated_database: str, tmp_path: Path
) -> None:
    stall = asyncio.Event()
    async with (
        ChatBackend(Stalls(stall), Says()) as backend,
        taking(migrated_database, backend, tmp_path) as server,
        working(migrated_database, "--backend", backend.url, "--drain", "0", data=tmp_path) as first,
    ):
        queued = (await ask(server.port, "POST", RESPONSES, LATER)).json()
        await backend.until(lambda: len(backend.requests) == 1)
        status, log = await first.stop(how)
        assert (status, "a response in the background is handed over" in log) == (0, True)
        async with working(migrated_database, "--backend", backend.url, data=tmp_path) as second:
            response = await ended(server, queued["id"])
            _, other = await second.stop()
    assert response["status"] == "completed"
    assert f"a response in the background goes on here response_id={queued['id']}" in other
    assert "attempt=1" in other


async def test_what_a_killed_one_has_begun_is_taken_over(migrated_database: str, tmp_path: Path) -> None:
    async with (
        ChatBackend(Stalls(asyncio.Event()), Says()) as backend,
        taking(migrated_database, backend, tmp_path) as server,
    ):
        flags = ("--backend", backend.url, "--set", "background.lease=1")
        async with working(migrated_database, *flags, data=tmp_path) as first:
            queued = (await ask(server.port, "POST", RESPONSES, LATER)).json()
            await backend.until(lambda: len(backend.requests) == 1)
            first.process.kill()
            await first.process.communicate()
        port = free_port()
        async with working(migrated_database, *flags, "--set", f"metrics.port={port}", data=tmp_path) as second:
            await ended(server, queued["id"])
            metrics = (await ask(port, "GET", "/metrics")).body.decode()
            _, log = await second.stop()
    assert "WARNING antwort.runs a response in the background is taken over: whoever made it was lost" in log
    assert "attempt=2" in log
    assert 'antwort_run_claims_total{kind="taken_over"} 1.0' in metrics
    assert "antwort_runs_queued 0.0" in metrics
    assert "antwort_runs_held 0.0" in metrics


async def test_a_port_of_its_own_says_how_it_stands(migrated_database: str, tmp_path: Path) -> None:
    port = free_port()
    flags = ("--scripted", "--set", f"metrics.port={port}")
    async with working(migrated_database, *flags, data=tmp_path) as worker:
        found = [(await ask(port, "GET", path)).status for path in ("/healthz", "/readyz", "/metrics", RESPONSES)]
        assert (await worker.stop())[0] == 0
    assert f"  metrics  http://127.0.0.1:{port}/metrics" in worker.greeting
    assert found == [200, 200, 200, 404]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "A worker needs a database that it shares with the servers whose responses it makes"),
        (("--set", "background.at_once=0", "--set", "database=postgresql://127.0.0.1/x"), "would have nothing to do"),
        (("--set", "background.enabled=false", "--set", "database=postgresql://127.0.0.1/x"), "nothing to do"),
    ],
)
async def test_one_that_could_do_nothing_says_why(flags: Sequence[str], said: str, tmp_path: Path) -> None:
    given = ("worker", "--config", os.devnull, "--scripted", "--data", str(tmp_path))
    status, output, errors = await run(*given, *flags)
    assert (status, output) == (1, "")
    assert said in errors
    assert errors.count("\n") == 1
