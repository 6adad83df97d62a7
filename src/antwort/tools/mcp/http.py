"""Streamable HTTP: each message is a POST, answered with JSON or with an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from antwort.concurrency import backoff
from antwort.net.client import HttpResponse
from antwort.net.response import ConnectFailed, ConnectTimeout, HttpError, InvalidResponse
from antwort.net.sse import EventParser, SseEvent
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.base import Forbidden, ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.endpoint import UNCODED, McpEndpoint
from antwort.tools.mcp.messages import (
    BROKEN,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    NOT_AN_ANSWER,
    TOO_CURIOUS,
    TOO_LONG,
    UNAUTHORIZED,
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


class StreamableHttp(McpTransport):
    """The transport of one connection. Requests run in the tasks of their callers."""

    def __init__(self, spec: ServerSpec, policy: AddressPolicy | None, connection: McpConnection) -> None:
        """Raises `AddressNotAllowed`."""
        self._endpoint = McpEndpoint(spec, policy)
        self._connection = connection
        self._headers: Mapping[str, str] = _POST
        self._session: str | None = None

    def agree(self, version: str) -> None:
        if version == MODERN_VERSION:  # it has no sessions
            self._session = None
        session = {} if self._session is None else {"Mcp-Session-Id": self._session}
        self._headers = {**_POST, "MCP-Protocol-Version": version, **session}

    async def request(self, request: Request) -> object:
        try:
            try:
                reply = await self._endpoint.send(
                    "POST", self._headers, request.body, more=request.head, resends=request.is_repeatable
                )
            except (ConnectFailed, ConnectTimeout, AddressNotAllowed) as exc:
                raise Unsent from exc
            try:
                if reply.status != 200:
                    return await self._refusal(reply, request)
                if reply.headers.coding not in UNCODED:
                    raise ServerUnavailable(NOT_AN_ANSWER)
                if reply.headers.media_type == _JSON:
                    try:
                        data = await reply.read(request.max_bytes)
                    except InvalidResponse as exc:
                        raise ServerUnavailable(TOO_LONG) from exc
                    message = await decode_message(data)
                elif reply.headers.media_type == EVENTS:
                    message = await self._streamed(reply, request.max_bytes)
                else:
                    raise ServerUnavailable(NOT_AN_ANSWER)
                if message.get("id") != request.id and not ("error" in message and message.get("id") is None):
                    raise ServerUnavailable(NOT_AN_ANSWER)
                if not self._connection.version and (session := reply.headers.get("mcp-session-id")):
                    if not (session.isascii() and session.isprintable()):
                        raise ServerUnavailable(NOT_AN_ANSWER)
                    self._session = session
                return result_of(message)
            finally:
                reply.close()
        except (InvalidResponse, ValueError) as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except HttpError as exc:
            raise ServerUnavailable(BROKEN) from exc

    async def notify(self, message: JsonRpcMessage) -> None:
        """Send a message, and ignore refusals. The caller limits the time."""
        with suppress(ServerUnavailable):
            async with await self._endpoint.send("POST", self._headers, msgspec.json.encode(message)) as reply:
                reply.release()

    async def close(self) -> None:
        await self._endpoint.close()

    async def end_session(self) -> None:
        if self._session is not None and self._connection.version:
            with suppress(HttpError, ServerUnavailable):
                async with await self._endpoint.send("DELETE", self._headers) as reply:
                    reply.release()

    # ---- answers ----

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

    async def _streamed(self, reply: HttpResponse, max_bytes: int) -> dict[str, Any]:
        """Return the answer from a stream. One that ends before it is resumed, as often as the server ends it, in
        versions in which that is possible. The caller limits the time.
        """
        stream = _EventStream(self._connection)
        try:
            return await self._read_stream(stream, reply, max_bytes)
        finally:
            stream.decliner.drop()

    async def _read_stream(self, stream: _EventStream, reply: HttpResponse, max_bytes: int) -> dict[str, Any]:
        resumes = not self._connection.is_modern
        try:
            answer = await stream.read_answer(reply, max_bytes, resumes=resumes)
        except HttpError:
            if not (resumes and stream.last_id):
                raise
            answer = None
        failures, pauses = 0, backoff(stream.pause, _MAX_RESUME_SECONDS)
        while answer is None:
            if not (resumes and stream.last_id):
                raise ServerUnavailable(BROKEN)
            await asyncio.sleep(max(stream.pause, next(pauses)))
            try:
                async with await self._open_stream(stream.last_id) as reply:
                    if reply.status == 200 and reply.headers.media_type == EVENTS:
                        answer = await stream.read_answer(reply, max_bytes, resumes=True)
                        failures, pauses = 0, backoff(stream.pause, _MAX_RESUME_SECONDS)
                        continue
                    attempts = _MAX_BUSY if reply.status in _BUSY else 0
            except HttpError:
                attempts = _MAX_FAILURES
            except (Unauthorized, ValueError):  # ValueError: an id that cannot be sent
                attempts = 0
            failures += 1
            if failures >= attempts:
                raise ServerUnavailable(BROKEN)
        return answer

    async def _open_stream(self, last_id: str | None) -> HttpResponse:
        resume = {} if last_id is None else {"Last-Event-ID": last_id}
        headers = {name: value for name, value in self._headers.items() if name != "Content-Type"}
        return await self._endpoint.send("GET", {**headers, "Accept": EVENTS, **resume})

    # ---- unsolicited messages ----

    async def listen(self) -> None:
        """Read unsolicited messages, in one stream after the other, until the server offers none."""
        if self._session is None:
            return
        stream, failures = _EventStream(self._connection), 0
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
                        await stream.read_unsolicited(reply)
            wait = max(_REOPEN_SECONDS, stream.pause, allowance.pause())


class _EventStream:
    """A stream of events. When it is resumed, it spans several HTTP answers."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self.decliner = Decliner(connection.notify_safely, connection.spawn)
        self.last_id: str | None = None
        """The id of the last event with an id, after which the server can resume."""
        self.pause = _RESUME_SECONDS
        """Seconds before the stream may be resumed."""

    async def read_answer(self, reply: HttpResponse, max_bytes: int, *, resumes: bool) -> dict[str, Any] | None:
        """Return the answer to a request, or None if the stream ends before it. Raises `ServerUnavailable`,
        `HttpError`.
        """
        parser = EventParser()
        async for data in reply:
            for event in parser.feed(data):
                if (answer := await self._answer(event)) is not None:
                    reply.release()
                    return answer
            if parser.open_size > max_bytes:
                raise ServerUnavailable(TOO_LONG)
        if not (resumes and self.last_id):  # half an event counts if it cannot be resumed
            for event in parser.finish():
                with suppress(ServerUnavailable):
                    return await self._answer(event)
        return None

    async def _answer(self, event: SseEvent) -> dict[str, Any] | None:
        if not await self._is_message(event):
            return None
        message = await decode_message(event.data)
        if "method" not in message:
            return message
        if not await self._connection.take_unsolicited(message, event.size, self.decliner):
            raise ServerUnavailable(TOO_CURIOUS)
        return None

    async def read_unsolicited(self, reply: HttpResponse) -> None:
        """Read messages that answer no request. Raises `ServerUnavailable`, `HttpError`."""
        parser = EventParser()
        async for data in reply:
            for event in parser.feed(data):
                if not await self._is_message(event):
                    continue
                message: object = None
                with suppress(ValueError):
                    message = decode(event.data)
                if not await self._connection.take_unsolicited(message, event.size, self.decliner):
                    self._connection.end()
                    return
            if parser.open_size > _MAX_UNSOLICITED_BYTES:
                raise self._connection.allowance.closed()

    async def _is_message(self, event: SseEvent) -> bool:
        """Return whether an event has a message, and note what it says about the stream."""
        if event.id is not None:
            self.last_id = event.id.decode("latin-1") or None
        if event.retry is not None:
            self.pause = min(_MAX_RESUME_SECONDS, max(_MIN_RESUME_SECONDS, event.retry / 1000))
        if event.kind == b"message" and event.data:
            return True
        await self._connection.skip(event.size)
        return False


def _is_of_request(message: JsonRpcMessage, request_id: str | int) -> bool:
    """Return whether the error is about the request, and not about its session."""
    error = message["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return message.get("id") == request_id or code in (INVALID_PARAMS, METHOD_NOT_FOUND)
