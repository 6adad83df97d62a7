"""One request and its answer, over plain ASGI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from antwort.errors import AntwortError, BodyTooLarge, InvalidField, WrongMediaType
from antwort.ids import new_id
from antwort.transport.errors import Headers, failure
from antwort.transport.sse import DONE

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the current task works for, if any; the run it starts inherits it."""

_SAFE_ID = re.compile(rb"[A-Za-z0-9._~:/+=@,-]{1,128}")
_UTF8 = frozenset({b"", b"charset=utf-8", b'charset="utf-8"'})
# What is left of a body too large is read and dropped, so that a client which writes first and reads then still gets
# its answer; a body without end, or of more than so many times the limit, is cut off.
_PATIENCE = 4
_CLIENT_GONE = 499  # for the log; never sent


class ClientGone(Exception):
    """There is nobody left to answer."""


class Exchange:
    """What was asked, and the means to answer it once."""

    __slots__ = (
        "_cut",
        "_headers",
        "_send",
        "method",
        "path",
        "receive",
        "request_id",
        "response_id",
        "scope",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._cut = False
        given = self._headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _SAFE_ID.fullmatch(given) else new_id("req")
        self.response_id: str | None = None
        self.status = 0
        """The status of the answer; 0 until it has begun."""

    # ---- the request ----

    def query(self) -> dict[str, str]:
        """The parameters of the query; of a repeated one, the last."""
        try:
            pairs = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError as exc:
            raise InvalidField("", "The query has too many parameters.") from exc
        return dict(pairs)

    async def body(self, limit: int) -> bytes:
        """The body, if it says it is JSON and is no larger than `limit`; it is not decoded here."""
        length = int(self._headers.get(b"content-length", b"0"))
        if length or b"transfer-encoding" in self._headers:
            self._check_media_type()
        if length > limit:
            raise self._too_large(limit, endless=length > _PATIENCE * limit)
        message = await self.receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise self._too_large(limit)
            return body
        return await self._gather(message, limit)

    async def _gather(self, message: Message, limit: int) -> bytes:
        body = bytearray()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > limit:
                raise self._too_large(limit, endless=True)
            if not message.get("more_body"):
                return bytes(body)
            message = await self.receive()
        raise ClientGone

    def _too_large(self, limit: int, *, endless: bool = False) -> BodyTooLarge:
        self._cut = endless
        return BodyTooLarge(limit)

    def _check_media_type(self) -> None:
        declared = self._headers.get(b"content-type", b"")
        kind, _, charset = declared.lower().partition(b";")
        if kind.strip() != b"application/json" or charset.strip() not in _UTF8:
            raise WrongMediaType(declared.decode("latin-1"))
        if (coding := self._headers.get(b"content-encoding", b"identity")) != b"identity":
            raise WrongMediaType(f"JSON in the coding {coding.decode('latin-1')}")

    # ---- the answer ----

    async def answer(self, body: bytes, *, status: int = 200, headers: Headers | None = None) -> None:
        """Answer with JSON, whole."""
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *(headers or ())]
        await self._start(status, head)
        await self._write(body)

    async def fail(self, error: AntwortError, *, strict: bool) -> None:
        """Answer with an error; an answer that has begun can only be ended."""
        if self.status:
            await self._write(b"")
            return
        sent = failure(error, strict=strict)
        closing = [(b"connection", b"close")] if self._cut else []
        await self.answer(sent.body, status=sent.status, headers=sent.headers + closing)

    async def give_up(self) -> None:
        """Nobody is left to read the answer; the server still wants to see its end."""
        if self.status:
            await self._write(b"")
        self.status = _CLIENT_GONE

    async def open_stream(self) -> None:
        head = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._start(200, head)

    async def write(self, frames: bytes) -> None:
        """One write. Waits while the client is slower than we are."""
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def close_stream(self, frames: bytes = b"") -> None:
        """The last frames, the mark that there are no more, and the end of the body, in one write."""
        await self._write(frames + DONE)

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
