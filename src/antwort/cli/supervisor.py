"""`antwort serve --workers N`: hold the port, and keep N worker processes that serve it.

uvicorn's own supervisor is not used: it answers no signal during a rolling restart, restarts a worker that fails
without any delay, cannot give each worker ports of its own, and leaves its workers running when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

from antwort.cli.greeting import format_rows, headline
from antwort.cli.output import report, say
from antwort.cli.process import STOP_SIGNALS, hangup_handler, signal_handlers
from antwort.cli.serve import checked, listen_to_clients, logged
from antwort.concurrency import backoff
from antwort.config.checks import check, of_worker
from antwort.config.loading import read
from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.notes import note

_log = logging.getLogger("antwort.cli")
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.2, 30.0
"""Before a worker is restarted; the delay doubles as long as no worker lasts."""
_LASTING_SECONDS = 60.0
"""A worker that ran this long has lasted."""
_KILL_SECONDS = 10.0
"""Workers that were told to stop at once are killed after this time."""
STOP_SECONDS = 20.0
"""What a worker may need to stop, besides `server.notice` and `server.drain`, before it is killed."""
_ORDERLY = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""Exit statuses of workers that were told to stop: the signals, if that was early in their start."""
_READY_BYTES = 2**20
_FIXED = ("host", "port", "workers")
"""Settings of `server` that the supervisor itself uses: a rolling restart does not change them."""


async def supervise(settings: Settings, flags: Mapping[str, object]) -> int:
    """Run the workers until a signal says to stop, and return the exit status. Raises `CannotStart`."""
    if os.name == "nt":
        raise CannotStart("Several workers are not available on Windows: start one server.")
    with listen_to_clients(settings) as listener:
        supervisor = WorkerSupervisor(listener, flags, settings)
        stop = dict.fromkeys(STOP_SIGNALS, supervisor.stop)
        with signal_handlers({**stop, **hangup_handler(supervisor.restart, supervisor.stop)}):
            try:
                rows = await supervisor.start()
            except WorkerLost as exc:
                return await supervisor.give_up(exc)
            say(headline(settings, listener.getsockname()[1]), *format_rows(rows))
            return await supervisor.run()


class WorkerLost(Exception):
    """A worker has ended before it was ready, or could not be started; `problem` says why not."""

    def __init__(self, status: int, problem: str = "") -> None:
        super().__init__(status, problem)
        self.status, self.problem = status, problem


class WorkerProcess:
    """A process, and a socket to it. When it has ended, it can be started again."""

    def __init__(self, index: int, listener: socket.socket) -> None:
        self.index, self._listener = index, listener
        self.is_ready = asyncio.Event()
        self.is_replaced = False
        """Whether it was told to stop so that it can be started with other settings."""
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._started_at, self._stop_seconds = 0.0, 0.0
        self._kill_timer: asyncio.TimerHandle | None = None
        self._delays = backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS)

    @property
    def is_started(self) -> bool:
        return self._process is not None

    async def start(self, order: Mapping[str, object], stop_seconds: float) -> None:
        """Start it, and tell it what to do. Raises `WorkerLost`. It may take `stop_seconds` to stop."""
        self.is_ready.clear()
        self.is_replaced, self._kill_timer, self._process = False, None, None
        ours, theirs = socket.socketpair()
        # The same modules must be found: `-P` keeps the current folder out of the path, where it is not in ours.
        is_here = bool(sys.path) and sys.path[0] in ("", str(Path.cwd()))
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *([sys.executable] if is_here else [sys.executable, "-P"]),
                    *("-m", "antwort.cli.worker_process", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), self._listener.fileno()),
                    start_new_session=True,  # signals of a terminal are for the supervisor
                )
            except OSError as exc:
                ours.close()
                raise WorkerLost(1, os.strerror(exc.errno) if exc.errno else "no process can be created") from exc
        self._started_at, self._stop_seconds = monotonic(), stop_seconds
        self._streams = await asyncio.open_connection(sock=ours, limit=_READY_BYTES)
        whole = {**order, "index": self.index, "listener": self._listener.fileno()}
        self._streams[1].write(json.dumps(whole).encode() + b"\n")

    async def ready(self) -> list[tuple[str, str]]:
        """Wait until it serves, and return the rows of its greeting. Raises `WorkerLost`."""
        assert self._streams is not None
        line = b""
        with suppress(OSError):
            line = await self._streams[0].readline()
        if not line:
            raise WorkerLost(await self.wait())
        self.is_ready.set()
        return [(title, text) for title, text in json.loads(line)]

    async def wait(self) -> int:
        """Return its exit status when it has ended."""
        assert self._process is not None
        assert self._streams is not None
        status = await self._process.wait()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._streams[1].close()
        return status

    def next_delay(self) -> float:
        """Return how many seconds to wait before it is started again."""
        if monotonic() - self._started_at > _LASTING_SECONDS:
            self._delays = backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS)
        return next(self._delays)

    def stop(self) -> None:
        """Tell it to stop, once; kill it if that takes too long."""
        if self._process is not None and self._process.returncode is None and self._kill_timer is None:
            self._process.send_signal(signal.SIGTERM)
            self._kill_timer = asyncio.get_running_loop().call_later(self._stop_seconds, self._kill_late)

    def hurry(self) -> None:
        """Tell it to stop at once. This is no signal: those a worker may also get from elsewhere, as with its group."""
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(b"hurry\n")

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _kill_late(self) -> None:
        message = f"worker {self.index} was told to stop {self._stop_seconds:g} s ago, and is killed"
        note(_log, logging.WARNING, message, said={"event": "worker_killed", "worker": self.index})
        self.kill()


class WorkerSupervisor:
    """Start workers, restart those that end, replace them one after the other on `restart`, and stop them all."""

    def __init__(
        self,
        listener: socket.socket,
        flags: Mapping[str, object],
        settings: Settings,
        *,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._flags, self._settings, self._stop_seconds = dict(flags), settings, stop_seconds
        self._workers = [WorkerProcess(index, listener) for index in range(settings.server.workers)]
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self._is_running = False
        self._restarting: asyncio.Task[None] | None = None
        self._is_restart_due = False

    async def start(self) -> list[tuple[str, str]]:
        """Start all workers, and return the rows of the greeting. Raises `WorkerLost`.

        What keeps one worker from starting mostly keeps all. So the first goes first: only it reports the problem.
        """

        async def start_one(worker: WorkerProcess) -> list[tuple[str, str]]:
            await self._start(worker, wants_rows=worker.index == 0)
            return await worker.ready()

        first, *others = self._workers
        rows = await start_one(first)
        for outcome in await asyncio.gather(*map(start_one, others), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return [("workers", str(len(self._workers))), *rows]

    async def give_up(self, lost: WorkerLost) -> int:
        """Stop the workers, one of which was lost before all were ready, and return the exit status."""
        was_stopped = self._stopping.is_set()
        if lost.problem:
            report(CannotStart(f"A worker cannot be started: {lost.problem}."))
        self._stop_workers()
        status = await self.run()
        return status if was_stopped else max(lost.status, 1)

    async def run(self) -> int:
        """Keep the workers until `stop` is called, and return the exit status."""
        self._is_running = True
        if self._is_restart_due:
            self.restart()
        statuses = await asyncio.gather(*(self._keep(worker) for worker in self._workers if worker.is_started))
        if self._restarting is not None:
            self._restarting.cancel()
        return 1 if self._is_hurried or set(statuses) - _ORDERLY else 0

    async def _start(self, worker: WorkerProcess, *, wants_rows: bool = False) -> None:
        server = self._settings.server
        order = {"flags": self._flags, "workers": len(self._workers), "wants_rows": wants_rows}
        await worker.start(order, server.notice + server.drain + self._stop_seconds)
        if self._stopping.is_set():  # in the meantime
            worker.stop()

    async def _keep(self, worker: WorkerProcess) -> int:
        """Start the worker again whenever it ends, and return its last exit status."""
        while True:
            status = await worker.wait()
            if self._stopping.is_set():
                return status
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            problem = "" if worker.is_replaced else f"has ended {how}; another takes its place"
            while True:
                if problem and await self._is_stopped_during_delay(worker, problem, status):
                    return 0
                try:
                    await self._start(worker)
                    break
                except WorkerLost as exc:
                    problem, status = f"cannot be started: {exc.problem}; tried again", exc.status
            with suppress(WorkerLost):  # `wait` returns its exit status
                await worker.ready()

    async def _is_stopped_during_delay(self, worker: WorkerProcess, problem: str, status: int) -> bool:
        delay = worker.next_delay()
        note(
            _log,
            logging.WARNING,
            f"worker {worker.index} {problem} in {delay:g} s",
            said={"event": "worker_lost", "worker": worker.index, "status": status},
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()
        return self._stopping.is_set()

    # ---- stop ----

    def stop(self) -> None:
        """Stop all workers in order; the second time, at once."""
        if not self._stopping.is_set():
            self._stop_workers()
        elif not self._is_hurried:
            self._is_hurried = True
            for worker in self._workers:
                worker.hurry()
                asyncio.get_running_loop().call_later(_KILL_SECONDS, worker.kill)

    def _stop_workers(self) -> None:
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    # ---- rolling restart ----

    def restart(self) -> None:
        """Replace the workers one after the other, with the settings that are in the file by then."""
        self._is_restart_due = True
        if self._is_running and (self._restarting is None or self._restarting.done()):
            self._restarting = asyncio.create_task(self._restart_workers())

    async def _restart_workers(self) -> None:
        while self._is_restart_due and not self._stopping.is_set():
            self._is_restart_due = False
            if not self._read_settings():
                return
            for worker in self._workers:
                if not self._stopping.is_set():
                    worker.is_replaced = True
                    worker.is_ready.clear()
                    worker.stop()
                    await worker.is_ready.wait()
            _log.info("all workers have been replaced")

    def _read_settings(self) -> bool:
        """Return whether workers can start with the settings of now."""
        try:
            settings = logged(read(self._flags))
            checked(check(of_worker(settings, 0, len(self._workers))))
        except CannotStart as exc:
            _log.error("the workers stay as they are: %s", exc)
            return False
        for name in _FIXED:
            if getattr(settings.server, name) != getattr(self._settings.server, name):
                _log.warning("server.%s has changed, which needs a restart: it stays as it was", name)
        self._settings = settings
        return True
