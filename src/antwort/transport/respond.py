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


async def respond(exchange: Exchange, engine: Engine, request: CreateRequest, identity: Identity) -> None:
    """Answer with the response, whole or as a stream of its events. A client that leaves ends the run."""
    run = await engine.start(request, identity)
    exchange.response_id = run.response_id
    # Only reading from a connection shows that it is gone, so the watching is a task of its own.
    watch = asyncio.create_task(_watch(exchange, run))
    try:
        await run.answered()
        if request.stream:
            await _stream(exchange, run)
        else:
            body = encode(await run.result())
            if watch.done():
                raise ClientGone
            await exchange.answer(body)
    except BaseException:
        run.leave()
        raise
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


async def _watch(exchange: Exchange, run: LiveRun) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
    run.leave()


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
