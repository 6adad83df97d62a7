"""Answering `POST /v1/responses` and `/compact`: a run is started, and this request is its reader. And reading one
again: `GET /v1/responses/{id}?stream=true`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from antwort.api.events import TERMINAL
from antwort.api.requests import CompactRequest, CreateRequest
from antwort.api.standard import Wording, wording
from antwort.concurrency import Signal, rest_of
from antwort.engine.engine import Engine
from antwort.engine.runs.subscription import Subscription
from antwort.engine.settings import OnDisconnect
from antwort.errors import AntwortError, ClientLeft, HandedOver, InvalidField, ShuttingDown, UnsupportedFeature
from antwort.event_loop import next_turn
from antwort.identity import Identity
from antwort.server.exchange import BrokenOff, ClientGone, Exchange
from antwort.server.lingering import Patience
from antwort.server.sse import SLICE, written

T = TypeVar("T")

_A_MOMENT = 0.05


async def respond(
    exchange: Exchange, engine: Engine, request: CreateRequest, identity: Identity, key: str | None = None
) -> None:
    """Answer with the response, whole or as a stream of its events. A client that leaves ends the run, unless it was to
    go on, others with the same key wait for it, or may come for it because a tool was started, or it is made in the
    background.
    """
    wished = exchange.headers.get(b"antwort-on-disconnect")
    on_disconnect = None if wished is None else _on_disconnect(wished, engine)
    watch, words = Watch(exchange), wording(strict=engine.settings.strict)
    try:
        starting = engine.start(request, identity, key=key, on_disconnect=on_disconnect)
        # A background response is queued in any case: its client may ask for it by its key.
        run = await (starting if request.background else watch.unless_gone(starting))
        if run.is_replay:
            exchange.is_replay = True
            exchange.with_answer.append((b"idempotent-replayed", b"true"))
        exchange.response_id, exchange.run = run.response_id, run
        watch.follow(run)
        try:
            if request.stream:
                await run.answered()
                await _stream(watch, run, words)
            else:
                made = await (run.compacted() if isinstance(request, CompactRequest) else run.result())
                body = words.encode(made)
                if watch.is_gone:
                    raise ClientGone
                await exchange.answer(body)
        except BaseException as exc:
            run.leave()
            if isinstance(exc, ClientLeft) or (isinstance(exc, HandedOver) and watch.is_gone):
                raise ClientGone from None
            if isinstance(exc, HandedOver):  # nothing was sent yet: who asks again finds it in another process
                raise ShuttingDown from None
            raise
        finally:
            await run.close()
    finally:
        await watch.end()


def _on_disconnect(wished: bytes, engine: Engine) -> OnDisconnect:
    """What becomes of a stored response when its client leaves, as the request says."""
    match wished:
        case b"cancel":
            return "cancel"
        case b"continue" if not engine.offers_background:
            problem = "Antwort-On-Disconnect cannot be 'continue': this server makes no responses in the background."
            raise UnsupportedFeature(problem, param="Antwort-On-Disconnect")
        case b"continue":
            return "continue"
    raise InvalidField("Antwort-On-Disconnect", "the header must be 'cancel' or 'continue'.")


async def follow(exchange: Exchange, run: Subscription, words: Wording) -> None:
    """Answer with the events that are there, and those to come. A client that leaves changes nothing."""
    exchange.run, watch = run, Watch(exchange)
    try:
        watch.follow(run)
        if exchange.method == "HEAD":  # what comes first is all that is asked for
            await exchange.open_stream()
            await exchange.close_stream()
        else:
            await _stream(watch, run, words)
    except AntwortError as error:
        if exchange.status:  # the run is none the worse for it, and may be read again
            raise BrokenOff from error
        raise
    finally:
        await run.close()
        await watch.end()


async def unless_gone(exchange: Exchange, making: Coroutine[Any, Any, T]) -> T:
    """What `making` gives, broken off when the client leaves."""
    watch = Watch(exchange)
    try:
        return await watch.unless_gone(making)
    finally:
        await watch.end()


class Watch:
    """Notice that the client has left: planning stops, and its subscription leaves.

    Our own server tells. Of another's, only reading from the connection shows it, so that the watching is a task of its
    own there. It starts a moment late: most answers that have ended by then never need it.
    """

    __slots__ = ("_run", "_signal", "_task", "_timer", "exchange", "is_gone")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._run: Subscription | None = None
        self._signal: Signal | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_gone = False
        if exchange.line is not None:
            exchange.line.watch(self._left)
        else:
            self._timer = asyncio.get_running_loop().call_later(_A_MOMENT, self._start)

    async def unless_gone(self, planning: Coroutine[Any, Any, T]) -> T:
        """It is begun right here: what does not have to wait cannot be broken off."""
        if self.is_gone:
            planning.close()
            raise ClientGone
        try:
            waits = planning.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        self._signal = Signal()
        try:
            return await self._signal.race(lambda: rest_of(planning, waits))
        except ClientLeft:
            raise ClientGone from None

    def follow(self, run: Subscription) -> None:
        """Have the subscription leave with the client; at once, if the client has left meanwhile."""
        self._run = run
        if self.is_gone:
            run.leave()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self.exchange.receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.is_gone = True
        if self._run is not None:
            self._run.leave()
        elif self._signal is not None:
            self._signal.set(ClientLeft())

    async def end(self) -> None:
        """Leaves no task behind."""
        if self._timer is None:
            return
        self._timer.cancel()
        task, self._task = self._task, None  # a task that was broken off holds on to us by its traceback
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


async def _stream(watch: Watch, run: Subscription, words: Wording) -> None:
    """Write the batches that are there, as often as there are some, until the terminal event has gone out. As long as
    the client is behind, they stay in the buffer of the log, which is bounded.
    """
    exchange, patience = watch.exchange, Patience(watch.exchange, run.wait)
    is_end = False
    await exchange.open_stream()
    try:
        while batches := await run.read():
            events = batches[-1].events
            is_end = is_end or (bool(events) and isinstance(events[-1], TERMINAL))
            ready, rest = written(batches, words)
            if rest is not None:
                ready = await _write_slices(watch, ready, rest, patience)
            elif len(ready) > SLICE:
                await next_turn()
            if is_end:
                await exchange.close_stream(ready)
                return
            await exchange.write(ready)
            if exchange.is_behind:
                del batches, events
                patience.look()
                await exchange.drained()
    finally:
        patience.end()
    if run.is_over and not run.has_left:
        await exchange.close_stream()  # the terminal event is one that the client has seen before
    else:
        raise BrokenOff  # another process continues it, unless it is the client that has left


async def _write_slices(watch: Watch, ready: bytes, rest: Iterator[bytes], patience: Patience) -> bytes:
    """All but the last slice, which is given back. Raises `ClientGone`."""
    while True:
        await next_turn()
        more = next(rest, b"")
        if not more:
            return ready
        if ready:
            await watch.exchange.write(ready)
        if watch.exchange.is_behind:
            patience.look()
            await watch.exchange.drained()
        if watch.is_gone:
            raise ClientGone
        ready = more
