"""The process that keeps several workers: what it does when one is not to be had, or does not leave."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.cli import supervisor as supervisors
from antwort.cli.supervisor import WorkerSupervisor
from antwort.config import Settings
from antwort.config.loading import read
from antwort.server.server import listen
from live_server import PATIENCE

Spawned = list[Process]


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Spawned:
    """The workers that were started."""
    made: Spawned = []
    spawn = asyncio.create_subprocess_exec

    async def noted(*args: Any, **more: Any) -> Process:
        process = await spawn(*args, **more)
        made.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    return made


def given(database: str, folder: Path) -> tuple[Settings, dict[str, object]]:
    """Settings of two workers, and the flags that read them."""
    file = folder / "antwort.yaml"
    server = "{workers: 2, port: 0, drain: 0}"
    file.write_text(f"scripted: true\nserver: {server}\ndatabase: {database}\ndata: {folder}\n")
    flags: dict[str, object] = {"config": str(file)}
    return read(flags).settings, flags


@asynccontextmanager
async def working(database: str, folder: Path, **options: float) -> AsyncIterator[WorkerSupervisor]:
    settings, flags = given(database, folder)
    with listen("127.0.0.1", 0) as front:
        supervisor = WorkerSupervisor(front, flags, settings, **options)
        await supervisor.start()
        yield supervisor


async def ended(supervisor: WorkerSupervisor, work: asyncio.Task[int]) -> int:
    supervisor.stop()
    async with asyncio.timeout(PATIENCE):
        return await work


async def test_a_worker_that_cannot_be_started_is_tried_again_and_the_others_stay(
    migrated_database: str,
    tmp_path: Path,
    spawned: Spawned,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(migrated_database, tmp_path) as supervisor:
        one, other = spawned
        spawn, tries, is_back = asyncio.create_subprocess_exec, [0], asyncio.Event()

        async def refuse_once(*args: Any, **more: Any) -> Process:
            tries[0] += 1
            if tries[0] == 1:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            process = await spawn(*args, **more)
            is_back.set()
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_once)
        work = asyncio.create_task(supervisor.run())
        one.kill()
        async with asyncio.timeout(PATIENCE):
            await is_back.wait()
        assert other.returncode is None
        assert await ended(supervisor, work) == 0
    assert len(spawned) == 3
    assert "cannot be started: Resource temporarily unavailable; tried again in 0.4 s" in caplog.text


async def test_a_first_worker_that_cannot_be_started_is_told_of_and_ends_the_others(
    migrated_database: str,
    tmp_path: Path,
    spawned: Spawned,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spawn = asyncio.create_subprocess_exec

    async def refuse_second(*args: Any, **more: Any) -> Process:
        if spawned:
            raise FileNotFoundError(2, "No such file or directory")
        return await spawn(*args, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_second)
    settings, flags = given(migrated_database, tmp_path)
    async with asyncio.timeout(PATIENCE):
        assert await supervisors.supervise(settings, flags) == 1
    assert [process.returncode for process in spawned] == [0]
    assert capsys.readouterr().err == "antwort: A worker cannot be started: No such file or directory.\n"


async def test_a_worker_that_stands_still_does_not_keep_the_others_for_ever(
    migrated_database: str,
    tmp_path: Path,
    spawned: Spawned,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(migrated_database, tmp_path, stop_seconds=0.2) as supervisor:
        work = asyncio.create_task(supervisor.run())
        spawned[0].send_signal(signal.SIGSTOP)
        assert await ended(supervisor, work) == 1
    assert spawned[0].returncode == -signal.SIGKILL
    assert "worker 0 was told to stop 0.2 s ago, and is killed" in caplog.text
