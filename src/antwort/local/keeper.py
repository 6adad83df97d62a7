"""Keeps the model's process alive: starts it, waits until it answers, and starts it again when it dies, or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context

from antwort.concurrency import Once
from antwort.local.files import CannotRun
from antwort.local.process import Ended, ModelProcess
from antwort.local.watch import EVERY, MISSES, Look, answers, until_silent
from antwort.providers.errors import NotReady

_log = logging.getLogger("antwort.local")

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before the next start, after so many short lives in a row: one death is an accident and costs no time. A
start that fails is none."""
STEADY = 60.0
"""Seconds of a life that is no longer short."""
_TRY_AGAIN = 2.0
"""What those are asked to wait who find it loading."""
_LOADING = "The model is still being loaded; try again in a few seconds."


class Keeper:
    """`begin` starts a process for the model `name`; it may take `ready` seconds to answer. Nothing is started before
    somebody asks for it. `sleep` is for the pauses between two starts, `rest` for those between two looks.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Awaitable[ModelProcess]],
        *,
        ready: float,
        look: Look = answers,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._begin, self._ready = name, begin, ready
        self._look, self._rest = look, rest
        self._sleep, self._clock = sleep, clock
        self._task: asyncio.Task[None] | None = None
        self._begun: ModelProcess | None = None
        self._process: ModelProcess | None = None
        """The one that answers."""
        self._coming: Once[None] = Once()
        """What comes of the start that is under way, or due."""
        self._first: Once[None] = Once()
        self._is_closed = False
        self._short_lives = 0
        self._has_failed = False
        self._next_start = 0.0
        self._problem = _LOADING

    @property
    def pid(self) -> int | None:
        """Of the process that answers now, if there is one."""
        return None if self._process is None else self._process.pid

    async def first(self) -> None:
        """Wait for what comes of its first start. Raises `CannotRun` when that fails."""
        self.start()
        await self._first.wait()

    async def process(self, patience: float) -> ModelProcess:
        """The process, as soon as it answers. Raises `NotReady` when its start fails, or takes longer than that."""
        self.start()
        if (there := self._there()) is None and not self._is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._coming.wait()
            there = self._there()
        if there is None:
            raise self._not_ready()
        return there

    def start(self) -> None:
        """Begin to keep it. It works for nobody's request, whoever asks first."""
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())

    async def close(self) -> None:
        """End it for good."""
        self._is_closed = True
        self._first.fail(CannotRun("it has been stopped"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._begun is not None:
            await self._begun.stop()
        self._coming.set(None)

    # ---- within ----

    def _there(self) -> ModelProcess | None:
        """The process that answers. That one has just ended may be seen here first."""
        if self._process is not None and self._process.has_ended:
            self._lose()
        return self._process

    def _lose(self) -> None:
        if self._process is not None:
            self._process = None
            self._coming = Once()

    def _not_ready(self) -> NotReady:
        if self._is_closed:
            return NotReady("The model has been stopped.")
        return NotReady(self._problem, retry_after=max(self._next_start - self._clock(), 0.0) + _TRY_AGAIN)

    async def _keep(self) -> None:
        while True:
            began = self._clock()
            end = await self._live()
            pause = self._pause(self._clock() - began)
            self._next_start = self._clock() + pause
            self._tell(end, pause)
            if self._has_failed:
                self._give_up(end)
            await self._sleep(pause)

    def _pause(self, lived: float) -> float:
        is_steady = lived >= STEADY and not self._has_failed
        self._short_lives = 0 if is_steady else max(self._short_lives, self._has_failed) + 1
        return PAUSES[min(max(self._short_lives - 1, 0), len(PAUSES) - 1)]

    async def _live(self) -> Ended:
        """One life of it, to its end."""
        try:
            process = self._begun = await self._begin()
            await self._come_up(process)
            end = await self._end_of(process)
            self._problem = f"The model has stopped ({end}) and is started again; try again in a few seconds."
        except (Ended, OSError) as exc:
            end = exc if isinstance(exc, Ended) else Ended(f"its process cannot be started: {exc.strerror}")
            self._has_failed = True
            self._problem = f"The model cannot be loaded ({end}); the server's log says more."
        finally:
            self._lose()
            if self._begun is not None:
                await self._begun.stop()
        return end

    async def _come_up(self, process: ModelProcess) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(self._ready):
                await process.ready()
        except TimeoutError as exc:
            raise Ended(f"it was not ready after {self._ready:g} seconds, which local.ready allows") from exc
        _log.info("the model %s is ready after %.1f seconds", self._name, self._clock() - began)
        self._process, self._has_failed = process, False
        self._coming.set(None)
        self._first.set(None)

    async def _end_of(self, process: ModelProcess) -> Ended:
        """Wait until it ends, or hangs; whoever asks in between is not given one that hangs."""
        ended = asyncio.ensure_future(process.ended())
        silent = asyncio.ensure_future(until_silent(process, self._look, self._rest))
        try:
            await asyncio.wait({ended, silent}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            silent.result()
            return Ended(f"it has not answered {MISSES} looks in a row, {EVERY:g} seconds apart")
        finally:
            ended.cancel()
            silent.cancel()
            await asyncio.wait({ended, silent})

    def _give_up(self, end: Ended) -> None:
        """Those who wait for the start are told that it has failed; later ones wait for the next."""
        self._first.fail(CannotRun(end.error or str(end)))
        coming, self._coming = self._coming, Once()
        coming.set(None)

    def _tell(self, end: Ended, pause: float) -> None:
        what = "cannot be loaded" if self._has_failed else "has stopped"
        when = f"in {pause:g} seconds" if pause else "now"
        _log.warning("the model %s %s: %s; the next start is %s", self._name, what, end, when)
        if not _log.isEnabledFor(logging.DEBUG):  # they have been logged otherwise
            for line in end.last_words:
                _log.warning("llama.cpp: %s", line)
