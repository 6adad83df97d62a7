"""A run under way: a task of its own that writes to an outlet, and the face it shows to those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from antwort.api.events import TERMINAL, Batch, ResponseInProgress
from antwort.api.responses import Response
from antwort.engine.draft import Run
from antwort.engine.loop import Control, advance
from antwort.engine.pipe import Numbered, Outlet, recorded
from antwort.engine.plan import Plan
from antwort.errors import AntwortError, ClientLeft, DeadlinePassed, Interrupted
from antwort.identity import Identity
from antwort.providers.base import Provider
from antwort.storage.base import ResponseStore


class LiveRun:
    """One response on its way. Whoever holds it reads the events, or waits for the result, or leaves."""

    def __init__(
        self, plan: Plan, provider: Provider, store: ResponseStore | None, on_end: Callable[[str], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        settings = plan.settings
        self._plan = plan
        self._on_end = on_end
        self._control = Control(Run(plan.response), loop.time() + settings.deadline)
        self._outlet = Outlet(settings.buffer_batches)
        self._answered: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[Response] = loop.create_future()
        self._timers = [
            loop.call_later(settings.deadline, self._control.signal.set, DeadlinePassed()),
            loop.call_later(settings.hold_back, self._is_answered),
        ]
        if plan.request.stream:
            self._timers.append(loop.call_later(settings.keepalive_interval, self._keep_alive))
        else:
            self._outlet.abandon()
        batches = recorded(advance(plan, provider, self._control), store, plan, self._control)
        self._task = asyncio.create_task(self._drive(batches), name=f"run {plan.response.id}")

    @property
    def response_id(self) -> str:
        return self._plan.response.id

    @property
    def identity(self) -> Identity:
        return self._plan.identity

    @property
    def response(self) -> Response:
        """The response as it stands."""
        return self._control.run.response

    async def answered(self) -> None:
        """Wait until the backend has answered, at most as long as the response is held back.

        Raises what went wrong before that: nothing has been sent yet, so it can be told as an HTTP error.
        """
        await asyncio.shield(self._answered)

    async def read(self) -> list[Numbered]:
        """All batches waiting, at least one; nothing when the stream is over."""
        return await self._outlet.read()

    async def result(self) -> Response:
        return await asyncio.shield(self._ended)

    def leave(self) -> None:
        """The client has gone. The run ends itself; nobody cancels it."""
        self._outlet.abandon()
        self.stop(ClientLeft())

    def stop(self, reason: Exception) -> None:
        self._control.signal.set(reason)

    async def wait(self) -> None:
        """Until the run and everything it started has ended."""
        await asyncio.wait([self._task])

    # ---- the run's own task ----

    async def _drive(self, batches: AsyncGenerator[Batch, None]) -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if batch:
                        await self._publish(batch)
                    elif not self._answered.done():
                        self._answered.set_result(None)  # the backend's headers
        finally:
            self._close()

    async def _publish(self, batch: Batch) -> None:
        last = batch[-1]
        if isinstance(last, TERMINAL):
            self._end(last.response)
        elif not isinstance(last, ResponseInProgress):
            self._is_answered()
            if self._outlet.is_full:
                await self._wait_for_room()
        self._outlet.publish(batch)

    def _end(self, response: Response) -> None:
        error = self._control.error
        if not self._answered.done() and error is not None:
            self._answered.set_exception(error)
            self._answered.exception()  # told through `answered`; whoever left early need not ask
        self._is_answered()
        self._ended.set_result(response)

    async def _wait_for_room(self) -> None:
        """A slow reader holds the run back, and through it the backend; a run told to stop does not wait."""
        with contextlib.suppress(Interrupted, AntwortError):
            await self._control.signal.race(self._outlet.wait_for_room)

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._outlet.end()
        if not self._ended.done():  # only when the task itself was cancelled, as at the end of an event loop
            self._ended.cancel()
            self._answered.cancel()
        self._on_end(self.response_id)

    def _is_answered(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    def _keep_alive(self) -> None:
        if self._plan.settings.keepalive == "comment":
            self._outlet.tick()
        elif self._outlet.is_read and not self._ended.done():
            self._outlet.publish([ResponseInProgress(response=self._plan.response)])
        loop = asyncio.get_running_loop()
        self._timers[-1] = loop.call_later(self._plan.settings.keepalive_interval, self._keep_alive)
