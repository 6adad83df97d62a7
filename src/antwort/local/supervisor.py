"""Keep the model's subprocess running: start it, wait until it is ready, and restart it when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from urllib.parse import urlsplit

from antwort.concurrency import Once
from antwort.local.process import ModelProcess, ProcessEnded
from antwort.local.server_options import CannotRun
from antwort.providers.errors import NotReady

_log = logging.getLogger("antwort.local")

RESTART_DELAYS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before a restart, by the number of short lives in a row. A start that failed counts as one more."""
STABLE_SECONDS = 60.0
"""A process that ran that long resets the delay."""
CHECK_INTERVAL_SECONDS = 5.0
CHECK_TIMEOUT_SECONDS = 5.0
"""llama.cpp answers health checks on threads of their own, also while the model is busy."""
FAILED_CHECKS = 3
"""Health checks that fail in a row before the process is taken for hung."""
_RETRY_SECONDS = 2.0
_LOADING = "The model is still being loaded; try again in a few seconds."


async def is_alive(process: ModelProcess, timeout: float = CHECK_TIMEOUT_SECONDS) -> bool:
    """Return whether llama.cpp answers a health check in time, with whatever status."""
    at = urlsplit(process.address)
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return bool(await reader.readline())
            finally:
                writer.close()
    except (OSError, ValueError):  # a TimeoutError is an OSError; a ValueError is for a line without an end
        return False


class Supervisor:
    """Start a process for the model `name` with `start_process`, at the first request for it. Loading may take
    `load_seconds`. `sleep` waits between restarts, `check_sleep` between health checks.
    """

    def __init__(
        self,
        name: str,
        start_process: Callable[[], Awaitable[ModelProcess]],
        *,
        load_seconds: float,
        check: Callable[[ModelProcess], Awaitable[bool]] = is_alive,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        check_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._start_process, self._load_seconds = name, start_process, load_seconds
        self._check, self._sleep, self._check_sleep, self._clock = check, sleep, check_sleep, clock
        self._task: asyncio.Task[None] | None = None
        self._started: ModelProcess | None = None
        self._ready: ModelProcess | None = None
        self._next: Once[None] = Once()
        """Set when the current or next start has succeeded or failed."""
        self._first: Once[None] = Once()
        self._is_closed = False
        self._short_lives = 0
        self._has_failed = False
        """Whether the last start failed."""
        self._next_start = 0.0
        self._problem = _LOADING

    @property
    def pid(self) -> int | None:
        """The process id of the process that is ready, if there is one."""
        return None if self._ready is None else self._ready.pid

    async def first_start(self) -> None:
        """Wait for the first start. Raises `CannotRun` if it fails."""
        self.start()
        await self._first.wait()

    async def process(self, timeout: float) -> ModelProcess:
        """Return the process when it is ready. Raises `NotReady` if its start fails or takes longer than `timeout`."""
        self.start()
        if (process := self._current()) is None and not self._is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._next.wait()
            process = self._current()
        if process is not None:
            return process
        if self._is_closed:
            raise NotReady("The model has been stopped.")
        raise NotReady(self._problem, retry_after=max(self._next_start - self._clock(), 0.0) + _RETRY_SECONDS)

    def start(self) -> None:
        """Start to supervise, outside of the context of the request that asks first."""
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def close(self) -> None:
        """Stop the process for good."""
        self._is_closed = True
        self._first.fail(CannotRun("it has been stopped"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._started is not None:
            await self._started.stop()
        self._next.set(None)

    def _current(self) -> ModelProcess | None:
        """Return the process that is ready. A request may be the first to notice that it has ended."""
        if self._ready is not None and self._ready.has_ended:
            self._forget()
        return self._ready

    def _forget(self) -> None:
        if self._ready is not None:
            self._ready, self._next = None, Once()

    async def _run(self) -> None:
        while True:
            started_at = self._clock()
            end = await self._run_once()
            if self._clock() - started_at >= STABLE_SECONDS and not self._has_failed:
                self._short_lives = 0
            else:
                self._short_lives = max(self._short_lives, self._has_failed) + 1
            delay = RESTART_DELAYS[min(max(self._short_lives - 1, 0), len(RESTART_DELAYS) - 1)]
            self._next_start = self._clock() + delay
            what = "cannot be loaded" if self._has_failed else "has stopped"
            when = f"in {delay:g} seconds" if delay else "now"
            _log.warning("the model %s %s: %s; the next start is %s", self._name, what, end, when)
            if not _log.isEnabledFor(logging.DEBUG):  # otherwise they have been logged already
                for line in end.last_lines:
                    _log.warning("llama.cpp: %s", line)
            if self._has_failed:  # those who wait are told; later requests wait for the next start
                self._first.fail(CannotRun(end.error or str(end)))
                failed, self._next = self._next, Once()
                failed.set(None)
            await self._sleep(delay)

    async def _run_once(self) -> ProcessEnded:
        """Run one process until its end."""
        try:
            process = self._started = await self._start_process()
            await self._load(process)
            end = await self._wait_for_end(process)
            self._problem = f"The model has stopped ({end}) and is started again; try again in a few seconds."
        except (ProcessEnded, OSError) as exc:
            if isinstance(exc, ProcessEnded):
                end = exc
            else:
                end = ProcessEnded(f"its process cannot be started: {exc.strerror}")
            self._has_failed = True
            self._problem = f"The model cannot be loaded ({end}); the server's log says more."
        finally:
            self._forget()
            if self._started is not None:
                await self._started.stop()
        return end

    async def _load(self, process: ModelProcess) -> None:
        started_at = self._clock()
        try:
            async with asyncio.timeout(self._load_seconds):
                await process.ready()
        except TimeoutError as exc:
            problem = f"it was not ready after {self._load_seconds:g} seconds, which local.ready allows"
            raise ProcessEnded(problem) from exc
        _log.info("the model %s is ready after %.1f seconds", self._name, self._clock() - started_at)
        self._ready, self._has_failed = process, False
        self._next.set(None)
        self._first.set(None)

    async def _wait_for_end(self, process: ModelProcess) -> ProcessEnded:
        """Wait until the process ends, or has failed its health checks."""
        ended = asyncio.ensure_future(process.ended())
        hung = asyncio.ensure_future(self._wait_until_hung(process))
        try:
            await asyncio.wait({ended, hung}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            hung.result()
            problem = f"it has not answered {FAILED_CHECKS} looks in a row, {CHECK_INTERVAL_SECONDS:g} seconds apart"
            return ProcessEnded(problem)
        finally:
            ended.cancel()
            hung.cancel()
            await asyncio.wait({ended, hung})

    async def _wait_until_hung(self, process: ModelProcess) -> None:
        failed = 0
        while failed < FAILED_CHECKS:
            await self._check_sleep(CHECK_INTERVAL_SECONDS)
            failed = 0 if await self._check(process) else failed + 1
