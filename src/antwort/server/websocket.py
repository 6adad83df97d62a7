"""WebSocket on `/v1/responses`: who is let in, turns one after the other, and how a connection ends. Plain ASGI, and
past it where the server is our own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from antwort.api.events import TERMINAL
from antwort.api.standard import wording
from antwort.concurrency import Signal
from antwort.engine.engine import Engine
from antwort.engine.history.recent_responses import (
    CONNECTION_BYTES,
    TOTAL_BYTES,
    RecentMemory,
    RecentResponses,
)
from antwort.engine.runs.subscription import Subscription
from antwort.errors import (
    AntwortError,
    BadUpgrade,
    BodyTooLarge,
    ClientLeft,
    ConnectionTooOld,
    NotFound,
    NotPermitted,
    RequestCancelled,
    ShuttingDown,
    SocketsOff,
    TooManySockets,
)
from antwort.event_loop import in_turns, next_turn
from antwort.identity import TENANT, Identity
from antwort.notes import note
from antwort.server.cors import Cors
from antwort.server.errors import Headers, failure, socket_failure, unexpected
from antwort.server.exchange import (
    CLIENT_GONE,
    CONNECTION,
    REQUEST_ID,
    ClientGone,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
    cause_of,
)
from antwort.server.messages import MAX_NAME, CreateMessage, SteerFailed, message_steps, written
from antwort.server.quotas import Quotas
from antwort.server.respond import SlowClient
from antwort.server.sse import SLICE, sliced

if TYPE_CHECKING:
    from antwort.server.websocket_protocol import WebSocketProtocol

T = TypeVar("T")

PATH = "/v1/responses"
TURN = "WS"
"""The method of a turn in the log and the metrics."""
BUFFERED_MESSAGE_BYTES = 2**20
"""Bytes of messages that wait, about: no more are read then."""
MESSAGE_LIMIT = 64 * 2**20

NORMAL, GOING_AWAY, TOO_BIG, INTERNAL, RESTART = 1000, 1001, 1009, 1011, 1012
"""Close codes (RFC 6455)."""

_KEY = "openai-insecure-api-key."
"""How a web page, which can set no headers, brings a key: as one of the protocols that it offers."""
_PROTOCOLS = ("responses", "realtime")
"""What a page offers beside it: a browser gives up where none of its offers is chosen, and a key never is."""
_MAX_SHOWN = 100

_logger = logging.getLogger("antwort.transport")


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    connections: int = 4096
    """How many may be open at once."""
    lifetime: float = 3600.0
    """Seconds that one may be open; a response in progress then is made to its end."""
    queue: int = 16
    """How many messages wait on a connection before it is not read from."""
    memory: int = CONNECTION_BYTES
    """Bytes of a conversation that is not stored, which one connection remembers."""
    total_memory: int = TOTAL_BYTES
    """And which all of them remember together: then those forget that have been idle for longest."""


class AsgiSocket:
    """A WebSocket on another server. Ours leaves its `WebSocketProtocol` in the scope: that can do more.

    Writing raises `OSError` or `RuntimeError` when the client has left.
    """

    is_behind = False
    """Whether a write would wait for the client."""
    on_shutdown: Callable[[], None] | None = None
    """Called when the server stops."""
    on_lost: Callable[[], None] | None = None
    """Called when the connection has ended, also while it is not read from."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._fragments: list[bytes] = []

    def linger(self, seconds: float) -> None:
        """Nothing more will be written: hang up once the client takes nothing of what is left for so long."""

    def stop_lingering(self) -> None:
        """More will be written."""

    def abort(self) -> bool:
        """Hang up now, whatever is unsent. Return whether the server can."""
        return False

    async def write_texts(self, texts: Sequence[bytes]) -> None:
        """Write a message for each text. Waits while the client is behind."""
        for text in texts:
            await self._send({"type": "websocket.send", "text": text.decode()})

    async def write_fragment(self, data: bytes, *, is_first: bool, is_last: bool) -> None:  # noqa: ARG002 - see above
        """Write a part of one message; otherwise as `write_texts`."""
        self._fragments.append(data)
        if is_last:
            text, self._fragments = b"".join(self._fragments), []
            await self.write_texts([text])

    async def drained(self) -> None:
        """Wait until the client has taken most of what was written."""


class SocketWriter:
    """Write to the client of a WebSocket. Every method that waits raises `ClientGone`."""

    def __init__(self, connection: WebSocketProtocol | AsgiSocket, send: Send, linger: float) -> None:
        self.connection, self._send, self._linger = connection, send, linger

    @property
    def is_behind(self) -> bool:
        return self.connection.is_behind

    def linger(self) -> None:
        """Nothing more will be written: a client that has stopped reading is not waited for much longer."""
        self.connection.linger(self._linger)

    async def write(self, texts: Sequence[bytes]) -> None:
        """Write a message for each text."""
        await self._unless_gone(self.connection.write_texts(texts))

    async def write_pieces(self, pieces: Iterator[bytes], client: SlowClient) -> None:
        """Write one message, piece by piece."""
        slices = sliced(pieces)
        ready, is_first = next(slices), True
        while ready:
            await next_turn()
            more = next(slices, b"")
            client.check()
            await self._unless_gone(self.connection.write_fragment(ready, is_first=is_first, is_last=not more))
            ready, is_first = more, False

    async def drained(self) -> None:
        await self._unless_gone(self.connection.drained())

    async def tell(self, text: bytes) -> None:
        """Write a message that is no part of a stream."""
        self.linger()  # the client may be behind already
        await self.write([text])
        self.linger()

    async def close(self, code: int, reason: str = "") -> None:
        self.linger()
        await self._unless_gone(self._send({"type": "websocket.close", "code": code, "reason": reason}))

    async def _unless_gone(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except (OSError, RuntimeError) as exc:  # servers have different ways to say so
            raise ClientGone from exc


class ReceiveQueue:
    """Read messages ahead while a response is made, because only reading shows that the client has left; within limits.

    A message that was taken is not held here.
    """

    def __init__(self, receive: Receive, max_messages: int, max_bytes: int = MESSAGE_LIMIT) -> None:
        """`max_messages`: how many wait before reading pauses. `max_bytes`: of one message."""
        self._receive, self._max_messages, self._max_bytes = receive, max_messages, max_bytes
        self._messages: deque[tuple[str | bytes, int]] = deque()
        self._size = 0
        self._has_message, self._has_room = asyncio.Event(), asyncio.Event()
        self._gone = Signal()
        self._run: Subscription | None = None
        self.ending: AntwortError | None = None
        """Why no more messages are taken, though the client is there."""
        self._task = asyncio.create_task(self._read())

    @property
    def is_gone(self) -> bool:
        return self._gone.reason is not None

    async def next(self) -> str | bytes | None:
        """Return the next message, or None when no more are taken. Raises `BodyTooLarge`."""
        while not self.is_gone and self.ending is None:
            if self._messages:
                message, size = self._messages.popleft()
                self._size -= size
                self._has_room.set()
                if size > self._max_bytes:
                    raise BodyTooLarge(self._max_bytes)
                return message
            self._has_message.clear()
            await self._has_message.wait()
        return None

    def take_rest(self) -> tuple[str | bytes, ...]:
        """Return the messages that came and were not taken."""
        rest = tuple(message for message, _ in self._messages)
        self._messages.clear()
        return rest

    def end(self, reason: AntwortError) -> None:
        """Take no further message; the response in progress is made to its end."""
        self.ending = self.ending or reason
        self._has_message.set()

    async def unless_gone(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return what `start()` returns. Raise `ClientGone`, and break it off, when the client leaves."""
        try:
            return await self._gone.race(start)
        except ClientLeft:
            raise ClientGone from None

    def follow(self, run: Subscription | None) -> None:
        """Have the run told when the client leaves, and now if it has left already."""
        self._run = run
        if run is not None and self.is_gone:
            run.leave()

    def leave(self) -> None:
        """The client has gone. While no more is read, only the connection knows."""
        self._gone.set(ClientLeft())
        self._messages.clear()
        self._has_message.set()
        if self._run is not None:
            self._run.leave()

    async def close(self) -> None:
        """Leave no task behind."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _read(self) -> None:
        try:
            while (event := await self._receive())["type"] == "websocket.receive":
                text = event.get("text")
                self._add(event.get("bytes") or b"" if text is None else text)
                del event, text  # a message that was taken is not held here
                while len(self._messages) >= self._max_messages or self._size >= BUFFERED_MESSAGE_BYTES:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            self.leave()

    def _add(self, message: str | bytes) -> None:
        size = len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())
        self._messages.append((message, size))
        self._size += size
        self._has_message.set()


class WebSockets:
    """All open connections, and what they share."""

    def __init__(
        self,
        engine: Engine,
        identify: Callable[[Scope], Identity],
        *,
        limits: SocketLimits,
        quotas: Quotas,
        cors: Cors | None,
        body_limit: int,
        linger: float,
        on_begin: Callable[[Exchange], None],
        on_end: Callable[[Exchange, float], None],
    ) -> None:
        """`on_begin` is called when a turn begins, and `on_end` when it has ended, with its duration in seconds."""
        self.engine, self.limits, self.quotas, self.body_limit, self.linger = engine, limits, quotas, body_limit, linger
        self.on_begin, self.on_end = on_begin, on_end
        self.words = wording(strict=engine.settings.strict)
        self.strict = engine.settings.strict
        self.memory = RecentMemory(max_size=limits.total_memory)
        self._identify, self._cors = identify, cors
        self._open: set[ReceiveQueue] = set()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def end(self) -> None:
        """Begin no further turns; those in progress come to their end."""
        for queue in self._open:
            queue.end(ShuttingDown())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        exchange = Exchange({**scope, "method": "GET"}, receive, send, linger=self.linger)
        await receive()
        error: AntwortError
        try:
            protocol = self._admit(exchange)
        except AntwortError as refusal:
            error = refusal
        except Exception:
            _logger.exception("a connection was refused in a way nobody expected")
            error = unexpected()
        else:
            await self._serve(exchange, receive, send, protocol)
            return
        exchange.status, exchange.code = error.sent_status(strict=self.strict), error.code
        await deny(exchange.scope, send, error, exchange.request_id, strict=self.strict)
        self.on_end(exchange, perf_counter() - began)

    # ---- who is let in ----

    def _admit(self, exchange: Exchange) -> str | None:
        """Return the protocol that is chosen of those that the client offers. Raise why it is not let in."""
        offered = [name.strip() for name in exchange.scope.get("subprotocols", ())]
        keys = [name.removeprefix(_KEY) for name in offered if name.startswith(_KEY)]
        brings_key = bool(keys) and exchange.headers.get(b"authorization") is None
        if brings_key:
            headers = [*exchange.scope["headers"], (b"authorization", f"Bearer {keys[0]}".encode())]
            exchange.scope["headers"] = headers
        exchange.identity = self._identify(exchange.scope)
        TENANT.set(exchange.identity.tenant)
        if exchange.path != PATH:
            problem = f"There is no WebSocket at {exchange.path[:_MAX_SHOWN]!r}; connect to {PATH!r}."
            raise NotFound(problem, code="unknown_url")
        self._check_origin(exchange)
        if not self.limits.enabled:
            raise SocketsOff
        if self.engine.is_draining:
            raise ShuttingDown
        if len(self._open) >= self.limits.connections:
            raise TooManySockets
        protocol = next((name for name in offered if name in _PROTOCOLS), None)
        if brings_key and protocol is None:
            raise BadUpgrade(f"Offer the protocol {_PROTOCOLS[0]!r} beside your key: a key is not chosen as one.")
        return protocol

    def _check_origin(self, exchange: Exchange) -> None:
        """Any web page can have a browser open a connection to anywhere, and read what comes; the browser asks nobody.
        Our own pages may, and those that may use the API otherwise.
        """
        origins = exchange.header_values(b"origin")
        if len(origins) > 1:
            _refuse_origin(b", ".join(origins))
        if not origins or (self._cors is not None and self._cors.allows(origins[0])):
            return
        own = (exchange.headers.get(b"host") or b"").lower()
        if not own or origins[0].partition(b"://")[2].lower() != own:
            _refuse_origin(origins[0])

    async def _serve(self, exchange: Exchange, receive: Receive, send: Send, protocol: str | None) -> None:
        began = perf_counter()
        headers = [(b"x-request-id", exchange.request_id.encode())]
        try:
            await send({"type": "websocket.accept", "subprotocol": protocol, "headers": headers})
        except (OSError, RuntimeError):
            return  # it has gone already
        queue = ReceiveQueue(receive, self.limits.queue, self.body_limit)
        connection: WebSocketProtocol | AsgiSocket = exchange.scope.get(CONNECTION) or AsgiSocket(send)
        connection.on_shutdown, connection.on_lost = (lambda: queue.end(ShuttingDown())), queue.leave
        session = WebSocketSession(self, exchange, queue, SocketWriter(connection, send, self.linger))
        self._open.add(queue)
        try:
            await session.run()
        finally:
            session.close()
            self._open.discard(queue)
            await queue.close()
            ms = round((perf_counter() - began) * 1000, 1)
            note(
                _logger,
                logging.INFO,
                f"a WebSocket was open for {ms:.1f} ms, with {session.turns} turn{'' if session.turns == 1 else 's'}",
                said={"event": "websocket", "duration_ms": ms, "turns": session.turns},
                request_id=exchange.request_id,
                key=exchange.identity.key or None,
            )


class WebSocketSession:
    """A connection: it answers requests one after the other, until it ends or is too old."""

    def __init__(self, sockets: WebSockets, exchange: Exchange, queue: ReceiveQueue, writer: SocketWriter) -> None:
        self._sockets, self._exchange, self._queue, self._writer = sockets, exchange, queue, writer
        self._engine, self._words, self._strict = sockets.engine, sockets.words, sockets.strict
        self._recent = RecentResponses(sockets.limits.memory, sockets.memory)
        self._is_answering = False
        self.turns = 0
        lifetime = sockets.limits.lifetime
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(lifetime, self._expire, ConnectionTooOld(lifetime))

    async def run(self) -> None:
        """Answer messages until there are no more, and close the connection."""
        queue, writer = self._queue, self._writer
        try:
            while await self._take_next():
                pass
            if (ending := queue.ending) is None:
                return
            refused_turns = await self._refuse_rest(ending)
            if isinstance(ending, ConnectionTooOld):
                if not refused_turns:
                    await writer.tell(socket_failure(ending, strict=self._strict))
                await writer.close(GOING_AWAY, ending.code)
            else:
                await writer.close(RESTART, ending.code)
        except BodyTooLarge as error:
            await writer.close(TOO_BIG, error.code)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not writer.connection.abort():
                raise

    def close(self) -> None:
        """Forget the response that a next turn could have continued."""
        if not isinstance(self._queue.ending, ConnectionTooOld):
            self._timer.cancel()  # else the client may still be there
        self._recent.clear()
        self._writer.linger()

    def _expire(self, reason: ConnectionTooOld) -> None:
        """Begin no further response. After the time to linger the client is hung up on, if it is still there, however
        slowly it takes its close; later only if a response was in progress meanwhile.
        """
        self._queue.end(reason)
        self._timer = self._loop.call_later(self._sockets.linger, self._abort_expired, self._is_answering)

    def _abort_expired(self, was_answering: bool) -> None:
        if was_answering or self._is_answering:
            self._timer = self._loop.call_later(self._sockets.linger, self._abort_expired, self._is_answering)
        else:
            self._writer.connection.abort()

    async def _take_next(self) -> bool:
        """Answer the next message. Return whether there was one. Nothing of the last one is in memory meanwhile."""
        message = await self._queue.next()
        if message is None:
            return False
        parsed = await self._parse(message)
        del message
        await self._reply(parsed)
        return True

    async def _refuse_rest(self, reason: AntwortError) -> bool:
        """Answer the messages that wait with an error. Return whether one of them was a request."""
        waiting = [await self._parse(message) for message in self._queue.take_rest()]
        for each in waiting:
            await self._reply(each, reason)
        return any(isinstance(each, CreateMessage) for each in waiting)

    async def _parse(self, message: str | bytes) -> CreateMessage | SteerFailed | AntwortError | None:
        try:
            return await in_turns(message_steps(message, self._engine.settings.limits))
        except AntwortError as error:
            return error

    async def _reply(
        self, parsed: CreateMessage | SteerFailed | AntwortError | None, refusal: AntwortError | None = None
    ) -> None:
        if isinstance(parsed, SteerFailed):
            await self._writer.tell(self._words.encode(parsed))
        elif isinstance(parsed, AntwortError):
            await self._turn(None, parsed)
        elif parsed is not None:
            await self._turn(parsed, refusal)

    # ---- one turn ----

    async def _turn(self, message: CreateMessage | None, error: AntwortError | None = None) -> None:
        """Answer one request, or fail with `error`. The client gets every outcome, and each turn is one log line."""
        self.turns += 1
        opened, began = self._exchange, perf_counter()
        exchange = Exchange({**opened.scope, "method": TURN}, opened.receive, _ignore, linger=0)
        exchange.request_id, exchange.identity = f"{opened.request_id}.{self.turns}", opened.identity
        REQUEST_ID.set(exchange.request_id)
        self._sockets.on_begin(exchange)
        try:
            if error is not None:
                raise error
            assert message is not None
            self._is_answering = True
            await self._respond(exchange, message)
        except ClientGone:
            exchange.status = CLIENT_GONE
            raise
        except AntwortError as refusal:
            exchange.cause = cause_of(refusal)
            await self._fail(exchange, message, refusal)
        except Exception:
            _logger.exception("a message failed in a way nobody expected")
            await self._fail(exchange, message, unexpected())
        finally:
            self._is_answering = False
            self._sockets.on_end(exchange, perf_counter() - began)

    async def _fail(self, exchange: Exchange, message: CreateMessage | None, error: AntwortError) -> None:
        """A response that a failed request wanted to continue is forgotten, because a retry would fail, too."""
        self._is_answering = False
        stream_id: str | None = None
        hints: Headers = [*exchange.answer_headers]
        if message is not None:
            if message.previous is not None and message.previous == self._recent.response_id:
                self._recent.clear()
                hints.append((b"x-should-retry", b"false"))
            given = message.body.get("stream_id")
            stream_id = given if isinstance(given, str) and len(given) <= MAX_NAME else None
        exchange.status, exchange.code = error.sent_status(strict=self._strict), error.code
        await self._writer.tell(socket_failure(error, strict=self._strict, headers=hints, stream_id=stream_id))

    async def _respond(self, exchange: Exchange, message: CreateMessage) -> None:
        engine, identity, queue = self._engine, exchange.identity, self._queue
        quota = self._sockets.quotas.of(identity.key)
        with quota.slot(exchange.answer_headers):
            stream_id, request = message.stream_id, await in_turns(message.request_steps(engine.settings.limits))
            run = await queue.unless_gone(lambda: engine.start(request, identity, recent=self._recent))
            exchange.response_id, exchange.run = run.response_id, run
            queue.follow(run)
            try:
                await run.answered()
                exchange.status, exchange.is_stream = 200, True
                await self._stream(run, stream_id)
            except BaseException as exc:
                if isinstance(exc, asyncio.CancelledError):  # by the server
                    run.stop(ShuttingDown() if engine.is_draining else RequestCancelled())
                run.leave()
                if isinstance(exc, ClientLeft):
                    raise ClientGone from None
                raise
            finally:
                queue.follow(None)
                if run.runs_alone:
                    quota.keep(run)
            if chain := run.chain():
                if run.response.status == "failed":
                    self._recent.evict(message.previous)
                else:
                    self._recent.keep(chain)

    async def _stream(self, run: Subscription, stream_id: str | None) -> None:
        """Write events as they come, up to the terminal event."""
        writer, client = self._writer, SlowClient(self._writer, run.wait)
        writer.connection.stop_lingering()
        try:
            while batches := await run.read():
                events = batches[-1].events
                is_end = bool(events) and isinstance(events[-1], TERMINAL)
                if is_end:
                    writer.linger()  # the client may be behind already
                await self._write(written(batches, self._words, stream_id), client)
                if is_end:
                    writer.linger()
                    return
                del batches, events
                if writer.connection.is_behind:  # events wait in the bounded buffer of the run
                    client.check()
                    await writer.drained()
        finally:
            client.close()
        raise ClientGone

    async def _write(self, messages: Iterator[bytes | Iterator[bytes]], client: SlowClient) -> None:
        """Write messages, small ones together, and check after each `SLICE` bytes whether the client keeps up."""
        texts: list[bytes] = []
        size = 0
        for message in messages:
            if isinstance(message, bytes):
                texts.append(message)
                size += len(message)
                if size < SLICE:
                    continue
            client.check()
            if texts:
                await self._writer.write(texts)
            texts, size = [], 0
            if not isinstance(message, bytes):
                await self._writer.write_pieces(message, client)
            await next_turn()
        if texts:
            client.check()
            await self._writer.write(texts)


async def _ignore(_: Message) -> None:
    """A turn is answered on its connection."""


def _refuse_origin(origin: bytes) -> NoReturn:
    shown = origin[:_MAX_SHOWN].decode("latin-1")
    problem = f"Web pages of {shown!r} may not open a connection here: list the origin under cors.origins."
    raise NotPermitted(problem, code="origin_not_allowed")


async def deny(scope: Scope, send: Send, error: AntwortError, request_id: str, *, strict: bool) -> None:
    """Refuse a connection, with a body where the server can send one."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": NORMAL})
        return
    sent = failure(error, strict=strict)
    own = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": sent.status, "headers": [*own, *sent.headers]})
    await send({"type": "websocket.http.response.body", "body": sent.body})
