"""Answer with a run: `POST /v1/responses` and `/compact` start one, `GET /v1/responses/{id}?stream=true` reads one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from antwort.api.events import TERMINAL
from antwort.api.requests import CompactRequest, CreateRequest
from antwort.api.standard import Wording
from antwort.concurrency import Signal, rest_of
from antwort.engine.engine import Engine
from antwort.engine.runs.subscription import Subscription
from antwort.engine.settings import OnDisconnect
from antwort.errors import AntwortError, ClientLeft, HandedOver, InvalidField, ShuttingDown, UnsupportedFeature
from antwort.event_loop import next_turn
from antwort.identity import Identity
from antwort.server.exchange import AnswerCut, ClientGone, Exchange
from antwort.server.sse import DONE, SLICE, written

if TYPE_CHECKING:
    from antwort.server.websocket import SocketWriter

T = TypeVar("T")


async def respond(
    exchange: Exchange,
    engine: Engine,
    words: Wording,
    request: CreateRequest,
    identity: Identity,
    key: str | None = None,
) -> None:
    """Answer with the response, whole or as a stream of its events. A client that leaves ends the run, unless it was to
    go on, others with the same key wait for it, or may come for it because a tool was started, or it is made in the
    background.
    """
    wanted = exchange.headers.get(b"antwort-on-disconnect")
    on_disconnect = None if wanted is None else _on_disconnect(wanted, engine)
    watch = DisconnectWatch(exchange)
    try:
        starting = engine.start(request, identity, key=key, on_disconnect=on_disconnect)
        # A background response is queued in any case: its client may ask for it by its key.
        run = await (starting if request.background else watch.unless_gone(starting))
        if run.is_replay:
            exchange.is_replay = True
            exchange.answer_headers.append((b"idempotent-replayed", b"true"))
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
        await watch.close()


def _on_disconnect(wanted: bytes, engine: Engine) -> OnDisconnect:
    """Return what becomes of a stored response when its client leaves, as the request says."""
    match wanted:
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
    exchange.run, watch = run, DisconnectWatch(exchange)
    try:
        watch.follow(run)
        if exchange.method == "HEAD":  # only the head is asked for
            await exchange.open_stream()
            await exchange.end_stream()
        else:
            await _stream(watch, run, words)
    except AntwortError as error:
        if exchange.status:  # the run goes on, and may be read again
            raise AnswerCut from error
        raise
    finally:
        await run.close()
        await watch.close()


async def unless_gone(exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. Raise `ClientGone`, and break it off, when the client leaves."""
    watch = DisconnectWatch(exchange)
    try:
        return await watch.unless_gone(work)
    finally:
        await watch.close()


class DisconnectWatch:
    """Notice that the client has left: planning stops, and its subscription leaves."""

    __slots__ = ("_run", "_signal", "_stop", "exchange", "is_gone")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._run: Subscription | None = None
        self._signal: Signal | None = None
        self.is_gone = False
        self._stop = exchange.connection.watch(self._disconnected)

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Begin the work at once: what does not have to wait cannot be broken off."""
        if self.is_gone:
            work.close()
            raise ClientGone
        try:
            waits = work.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        self._signal = Signal()
        try:
            return await self._signal.race(lambda: rest_of(work, waits))
        except ClientLeft:
            raise ClientGone from None

    def follow(self, run: Subscription) -> None:
        """Have the subscription leave with the client; at once, if the client has left meanwhile."""
        self._run = run
        if self.is_gone:
            run.leave()

    async def close(self) -> None:
        """Leave no task behind."""
        if self._stop is not None:
            await self._stop()

    def _disconnected(self) -> None:
        self.is_gone = True
        if self._run is not None:
            self._run.leave()
        elif self._signal is not None:
            self._signal.set(ClientLeft())


class SlowClient:
    """A slow client has all the time that its run takes. When the run has `ended`, it has the time to linger."""

    __slots__ = ("_client", "_ended", "_waiting")

    def __init__(self, client: Exchange | SocketWriter, ended: Callable[[], Awaitable[None]]) -> None:
        self._client, self._ended = client, ended
        self._waiting: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Call this before a write that may have to wait."""
        if not self._client.is_behind:
            return
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())
        elif self._waiting.done():
            self._client.linger()

    async def _wait(self) -> None:
        await self._ended()
        self._client.linger()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


async def _stream(watch: DisconnectWatch, run: Subscription, words: Wording) -> None:
    """Write the batches that are there, as often as there are some, until the terminal event has gone out. As long as
    the client is behind, they stay in the buffer of the log, which is bounded.
    """
    exchange = watch.exchange
    connection, client = exchange.connection, SlowClient(exchange, run.wait)
    await exchange.open_stream()
    try:
        while batches := await run.read():
            events = batches[-1].events
            is_end = bool(events) and isinstance(events[-1], TERMINAL)
            ready, rest = written(batches, words)
            if rest is not None:
                ready = await _write_slices(watch, ready, rest, client)
            elif len(ready) > SLICE:
                await next_turn()
            if is_end:
                await exchange.end_stream(ready + DONE)
                return
            await exchange.write(ready)
            if connection.is_behind:
                del batches, events
                client.check()
                await exchange.write(b"")  # which waits
    finally:
        client.close()
    if run.is_over and not run.has_left:
        await exchange.end_stream()  # the terminal event is one that the client has seen before
    else:
        raise AnswerCut  # another process continues it, unless it is the client that has left


async def _write_slices(watch: DisconnectWatch, ready: bytes, rest: Iterator[bytes], client: SlowClient) -> bytes:
    """Write all but the last slice, and return that. Raises `ClientGone`."""
    exchange = watch.exchange
    while True:
        await next_turn()
        more = next(rest, b"")
        if not more:
            return ready
        if ready:
            await exchange.write(ready)
        if exchange.connection.is_behind:
            client.check()
            await exchange.write(b"")
        if watch.is_gone:
            raise ClientGone
        ready = more
