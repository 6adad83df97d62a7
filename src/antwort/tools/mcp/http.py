"""Streamable HTTP: each message is a POST, answered with JSON or with an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from antwort.concurrency import backoff
from antwort.net.client import HttpResponse
from antwort.net.connection import Timeouts
from antwort.net.response import ConnectFailed, ConnectTimeout, HttpError, InvalidResponse
from antwort.net.sse import EventParser, SseEvent
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.auth import make_login
from antwort.tools.mcp.base import Forbidden, ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import HttpClients, McpEndpoint, check_coding
from antwort.tools.mcp.messages import (
    BROKEN,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_AN_ANSWER,
    TOO_CURIOUS,
    TOO_LONG,
    UNAUTHORIZED,
    Agreement,
    JsonRpcMessage,
    Request,
    Unsent,
    decode,
    decode_message,
    http_status_error,
    result_of,
)
from antwort.tools.mcp.throttle import Decliner
from antwort.tools.mcp.transport import McpTransport

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import McpConnection

EVENTS = "text/event-stream"
_JSON = "application/json"
_POST = {"Accept": f"{_JSON}, {EVENTS}", "Content-Type": _JSON}
_NOTIFY_TIMEOUTS = Timeouts(connect=2.0, first_byte=5.0, idle=5.0)
_BUSY = (429, 502, 503, 504)
_MAX_REFUSAL_BYTES = 64 * 1024
_MAX_UNSOLICITED_BYTES = 256 * 1024
"""Longest event in the stream of unsolicited messages."""
_RESUME_SECONDS = 1.0
_MIN_RESUME_SECONDS, _MAX_RESUME_SECONDS = 0.1, 30.0
"""Bounds of the pause before a stream is resumed, whatever `retry` the server sends."""
_MAX_FAILURES = 2
_MAX_BUSY = 5
"""Attempts in a row to resume a stream, after broken connections and after statuses that mean that it is busy."""
_REOPEN_SECONDS = 1.0
"""Shortest pause before the stream of unsolicited messages is opened again."""


class _Busy(ServerUnavailable):
    """The stream cannot be resumed now, and may be later."""


class StreamableHttp(McpTransport):
    """The transport of one connection. Requests run in the tasks of their callers."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, connection: McpConnection) -> None:
        """Raises `AddressNotAllowed`."""
        self._clients = HttpClients(spec, policy)
        self._endpoint = McpEndpoint(self._clients, make_login(spec, self._clients))
        self._connection = connection
        self._headers: Mapping[str, str] = _POST
        self._agreement: Agreement | None = None
        self._session: str | None = None

    def agree(self, agreement: Agreement) -> None:
        self._agreement = agreement
        if agreement.is_modern:  # that version has no sessions
            self._session = None
        session = {} if self._session is None else {"Mcp-Session-Id": self._session}
        self._headers = {**_POST, "MCP-Protocol-Version": agreement.version, **session}

    async def request(self, request: Request) -> object:
        """Return the result. A cancelled request is cancelled at the server, too: in the modern version by closing the
        stream. Raises `JsonRpcError`, `Unsent`, `ServerUnavailable`.
        """
        try:
            try:
                reply = await self._endpoint.send(
                    "POST", self._headers, request.body, more=request.head, resends=request.is_repeatable
                )
            except (ConnectFailed, ConnectTimeout, AddressNotAllowed) as exc:
                raise Unsent from exc
            try:
                return await self._answer(reply, request)
            finally:
                reply.close()
        except asyncio.CancelledError:
            if request.is_cancellable and self._agreement is not None and not self._agreement.is_modern:
                self._connection.send_cancelled(request.id)
            raise
        except (InvalidResponse, ValueError) as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except HttpError as exc:
            raise ServerUnavailable(BROKEN) from exc

    async def notify(self, message: JsonRpcMessage, timeouts: Timeouts | None = None) -> None:
        """Send a message that has no answer, and ignore refusals. Without `timeouts`, the caller limits the time.

        Raises `HttpError`.
        """
        body = msgspec.json.encode(message)
        with suppress(ServerUnavailable):
            async with await self._endpoint.send("POST", self._headers, body, timeouts=timeouts) as reply:
                reply.release()

    async def notify_safely(self, message: JsonRpcMessage) -> None:
        with suppress(HttpError):
            await self.notify(message, _NOTIFY_TIMEOUTS)

    async def close(self) -> None:
        await self._clients.close()

    async def end_session(self) -> None:
        """End the session at the server."""
        if self._session is not None and self._agreement is not None:
            with suppress(HttpError, ServerUnavailable):
                async with await self._endpoint.send("DELETE", self._headers, timeouts=_NOTIFY_TIMEOUTS) as reply:
                    reply.release()

    # ---- answers ----

    async def _answer(self, reply: HttpResponse, request: Request) -> object:
        if reply.status != 200:
            return await self._refusal(reply, request)
        check_coding(reply)
        if reply.headers.media_type == _JSON:
            try:
                data = await reply.read(request.max_bytes)
            except InvalidResponse as exc:
                raise ServerUnavailable(TOO_LONG) from exc
            message = await decode_message(data)
        elif reply.headers.media_type == EVENTS:
            message = await self._events(reply, request)
        else:
            raise ServerUnavailable(NOT_AN_ANSWER)
        if message.get("id") != request.id and not ("error" in message and message.get("id") is None):
            raise ServerUnavailable(NOT_AN_ANSWER)
        if self._agreement is None and (session := reply.headers.get("mcp-session-id")):
            if not (session.isascii() and session.isprintable()):
                raise ServerUnavailable(NOT_AN_ANSWER)
            self._session = session
        return result_of(message)

    async def _refusal(self, reply: HttpResponse, request: Request) -> object:
        """Return the result or raise the error of an answer other than 200. `Unsent` only if the request was certainly
        not carried out, or may be repeated.
        """
        self._connection.is_unproven = False
        if reply.status == 401:
            raise Unauthorized(UNAUTHORIZED)
        if reply.status == 403:
            raise Forbidden(UNAUTHORIZED)
        message: dict[str, Any] = {}
        if reply.headers.media_type == _JSON and reply.status in (400, 404):
            with suppress(InvalidResponse, ServerUnavailable):
                message = await decode_message(await reply.read(_MAX_REFUSAL_BYTES))
        is_error = "error" in message
        if self._session is not None and not (is_error and _is_of_request(message, request.id)):
            if reply.status == 404 or (reply.status == 400 and request.is_repeatable):
                raise Unsent(reply.status)  # the server does not know the session (any more)
            if reply.status == 400:
                self._connection.retire()
        if is_error:
            return result_of(message)
        raise http_status_error(reply.status)

    async def _events(self, reply: HttpResponse, request: Request) -> dict[str, Any]:
        """Return the answer from a stream, which may end and be resumed."""
        resumes = self._agreement is None or not self._agreement.is_modern
        stream = _AnswerStream(self._connection, request.max_bytes, resumes=resumes)
        try:
            try:
                answer = await stream.read(reply)
            except HttpError:
                if not stream.can_resume:
                    raise
                answer = None
            if answer is None and not stream.can_resume:
                raise ServerUnavailable(BROKEN)
            return await self._resumed(stream) if answer is None else answer
        finally:
            stream.decliner.drop()

    async def _resumed(self, stream: _AnswerStream) -> dict[str, Any]:
        """Resume a stream that ended before the answer, as often as the server ends it. The caller limits the time."""
        failures, pauses = 0, backoff(stream.pause, _MAX_RESUME_SECONDS)
        while True:
            await asyncio.sleep(max(stream.pause, next(pauses)))
            try:
                async with await self._open_stream(stream.last_id) as reply:
                    if reply.status in _BUSY:
                        raise _Busy(BROKEN)
                    if reply.status != 200 or reply.headers.media_type != EVENTS:
                        raise ServerUnavailable(BROKEN)
                    if (answer := await stream.read(reply)) is not None:
                        return answer
                failures, pauses = 0, backoff(stream.pause, _MAX_RESUME_SECONDS)
            except (HttpError, _Busy) as exc:
                failures += 1
                if failures >= (_MAX_BUSY if isinstance(exc, _Busy) else _MAX_FAILURES):
                    raise ServerUnavailable(BROKEN) from exc
            except (Unauthorized, ValueError) as exc:  # ValueError: an id that cannot be sent
                raise ServerUnavailable(BROKEN) from exc

    async def _open_stream(self, last_id: str | None) -> HttpResponse:
        resume = {} if last_id is None else {"Last-Event-ID": last_id}
        headers = {name: value for name, value in self._headers.items() if name != "Content-Type"}
        return await self._endpoint.send("GET", {**headers, "Accept": EVENTS, **resume})

    # ---- unsolicited messages ----

    async def listen(self) -> None:
        """Read unsolicited messages, in one stream after the other, until the server offers none."""
        if self._session is None:
            return
        stream, failures = _UnsolicitedStream(self._connection), 0
        allowance = self._connection.allowance
        wait = allowance.pause()
        while failures < _MAX_FAILURES:
            await asyncio.sleep(wait)
            failures += 1
            with suppress(HttpError, ServerUnavailable, ValueError):
                async with await self._open_stream(stream.last_id) as reply:
                    if reply.status == 405:
                        return
                    if reply.status == 200 and reply.headers.media_type == EVENTS:
                        failures = 0
                        await stream.read(reply)
            wait = max(_REOPEN_SECONDS, stream.pause, allowance.pause())


class _Stream:
    """A stream of events. When it is resumed, it spans several HTTP answers."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self.decliner = Decliner(connection.transport.notify_safely, connection.spawn)
        self.last_id: str | None = None
        """The id of the last event with an id, after which the server can resume."""
        self._pause = _RESUME_SECONDS

    @property
    def pause(self) -> float:
        """Seconds before the stream may be resumed."""
        return min(_MAX_RESUME_SECONDS, max(_MIN_RESUME_SECONDS, self._pause))

    async def _data(self, event: SseEvent) -> bytes | None:
        """Return the data of an event if it is a message."""
        if event.id is not None:
            self.last_id = event.id.decode("latin-1") or None
        if event.retry is not None:
            self._pause = event.retry / 1000
        if event.kind == b"message" and event.data:
            return event.data
        await self._connection.skip(event.size)
        return None


class _AnswerStream(_Stream):
    """The stream in which the answer to a request comes."""

    def __init__(self, connection: McpConnection, max_bytes: int, *, resumes: bool) -> None:
        super().__init__(connection)
        self._max_bytes, self._resumes = max_bytes, resumes

    @property
    def can_resume(self) -> bool:
        return self._resumes and self.last_id is not None

    async def read(self, reply: HttpResponse) -> dict[str, Any] | None:
        """Return the answer, or None if the stream ends before it. Raises `ServerUnavailable` and `HttpError`."""
        parser = EventParser()
        async for data in reply:
            for event in parser.feed(data):
                if (answer := await self._take(event)) is not None:
                    reply.release()
                    return answer
            if parser.open_size > self._max_bytes:
                raise ServerUnavailable(TOO_LONG)
        for event in () if self.can_resume else parser.finish():  # half an event counts if it cannot be resumed
            with suppress(ServerUnavailable):
                return await self._take(event)
        return None

    async def _take(self, event: SseEvent) -> dict[str, Any] | None:
        if (data := await self._data(event)) is None:
            return None
        message = await decode_message(data)
        if "method" not in message:
            return message
        if not await self._connection.take_unsolicited(message, event.size, self.decliner):
            raise ServerUnavailable(TOO_CURIOUS)
        return None


class _UnsolicitedStream(_Stream):
    """The stream of unsolicited messages, in which no answers come."""

    async def read(self, reply: HttpResponse) -> None:
        parser = EventParser()
        async for data in reply:
            for event in parser.feed(data):
                if (body := await self._data(event)) is None:
                    continue
                try:
                    message = decode(body)
                except ValueError:
                    message = None
                if not await self._connection.take_unsolicited(message, event.size, self.decliner):
                    self._connection.end()
                    return
            if parser.open_size > _MAX_UNSOLICITED_BYTES:
                raise self._connection.allowance.closed()


def _is_of_request(message: JsonRpcMessage, request_id: str | int) -> bool:
    """Return whether the error is about the request, and not about its session."""
    error = message["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return message.get("id") == request_id or code in (INVALID_PARAMS, METHOD_NOT_FOUND)
