"""Answering `POST /v1/responses`: a run is started, and this request is its reader."""

from __future__ import annotations

import asyncio

from antwort.api.events import TERMINAL
from antwort.api.requests import CreateRequest
from antwort.api.wire import encode
from antwort.engine.engine import Engine
from antwort.engine.live import LiveRun
from antwort.identity import Identity
from antwort.transport.exchange import ClientGone, Exchange
from antwort.transport.sse import written

_A_MOMENT = 0.05


async def respond(exchange: Exchange, engine: Engine, request: CreateRequest, identity: Identity) -> None:
    """Answer with the response, whole or as a stream of its events. A client that leaves ends the run."""
    run = await engine.start(request, identity)
    exchange.response_id = run.response_id
    watch = Watch(exchange, run)
    try:
        await run.answered()
        if request.stream:
            await _stream(exchange, run)
        else:
            body = encode(await run.result())
            if watch.is_gone:
                raise ClientGone
            await exchange.answer(body)
    except BaseException:
        run.leave()
        raise
    finally:
        await watch.end()


class Watch:
    """Tells the run when its client is gone.

    Only reading from a connection shows that, so the watching is a task of its own. It starts a moment late: most
    answers that have ended by then never need it.
    """

    __slots__ = ("_exchange", "_run", "_task", "_timer", "is_gone")

    def __init__(self, exchange: Exchange, run: LiveRun) -> None:
        self._exchange, self._run = exchange, run
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_A_MOMENT, self._start)
        self.is_gone = False

    def _start(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._run.leave()

    async def end(self) -> None:
        """Leaves no task behind."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


async def _stream(exchange: Exchange, run: LiveRun) -> None:
    """Write what has gathered, as often as there is something, until the terminal event has gone out."""
    await exchange.open_stream()
    while batches := await run.read():
        frames = written(batches)
        events = batches[-1].events
        if events and isinstance(events[-1], TERMINAL):
            await exchange.close_stream(frames)
            return
        await exchange.write(frames)
    raise ClientGone
