"""One request and its answer, over plain ASGI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl

from antwort.engine.runs.subscription import Subscription
from antwort.errors import AntwortError, BodyTooLarge, InvalidField, WrongMediaType
from antwort.identity import ANONYMOUS, Identity
from antwort.ids import new_id
from antwort.server.errors import Headers, failure
from antwort.server.paths import written_path
from antwort.server.sse import DONE

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the current task works for, if any; the run it starts inherits it."""

_SAFE_ID = re.compile(rb"[A-Za-z0-9._~:/+=@,-]{1,128}")
_UTF8 = frozenset({b"utf-8", b"utf8"})
# What is left of a body too large is read and dropped, so that a client which writes first and reads then still gets
# its answer; a body without end, or of more than so many times the limit, is cut off.
_PATIENCE = 4
_CLIENT_GONE = 499  # for the log; never sent


class ClientGone(Exception):
    """There is nobody left to answer."""


class BrokenOff(Exception):
    """An answer that has begun does not come to its end here, and may go on elsewhere: whoever reads it must notice."""


CONNECTION = "antwort.connection"
"""Where in the scope our own server leaves the `Line` of a request, or the connection of a WebSocket; another server
leaves none.
"""


class Line(Protocol):
    """What our own server does for a request beyond ASGI."""

    @property
    def refusal(self) -> AntwortError | None:
        """Why the rest of the request is not waited for."""

    @property
    def is_behind(self) -> bool:
        """Whether a write would wait for the client."""

    def take(self, receive: Receive) -> bytes | None:
        """The body of the request, if it is all there; None: it is to be received."""

    def answer(self, send: Send, status: int, head: bytes, body: bytes, linger: float) -> bool:
        """Write a whole answer at once, unless something stands in its way; whether it was written. `head` are its
        lines but for the first and those that every answer has.
        """

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the client leaves before it has its answer, and at once if it has left."""

    def linger(self, seconds: float) -> None:
        """There is no more to come: hang up when the client takes nothing of what is left for so long."""

    def abort(self) -> None:
        """Hang up now, whatever is unsent."""

    def cut(self) -> None:
        """Hang up behind what is unsent, without the end of the answer."""


class Exchange:
    """What was asked, and the means to answer it once."""

    identity: Identity = ANONYMOUS
    response_id: str | None = None
    status = 0
    """The status of the answer; 0 until it has begun."""
    code: str | None = None
    """The code of the error it was answered with, if it was."""
    cause: str | None = None
    """For its line in the log: what is behind an error that is not the client's."""
    is_stream = False
    run: Subscription | None = None
    """The response that it reads, if it does."""
    is_replay = False
    """Whether it was answered with a response that another request has started."""
    broken_off: AntwortError | None = None
    """What it is told when the program that hosts us does not wait for its answer."""
    _cut = False

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, linger: float) -> None:
        self.scope, self.receive, self._send, self._linger = scope, receive, send, linger
        self.line: Line | None = scope.get(CONNECTION)
        """None: another server has the connection."""
        self.method: str = scope["method"]
        self.path = written_path(scope)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """Of a repeated one, the last."""
        given = self.headers.get(b"x-request-id")
        self.request_id = new_id("req") if given is None or not _SAFE_ID.fullmatch(given) else given.decode()
        self.with_answer: Headers = []
        """Headers that go out with the answer, whichever it turns out to be."""

    # ---- the request ----

    def query(self) -> dict[str, str]:
        """The parameters of the query; of a repeated one, the last."""
        return dict(self.query_pairs())

    def query_pairs(self) -> list[tuple[str, str]]:
        try:
            return parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError as exc:
            raise InvalidField("", "The query has too many parameters.") from exc

    def header_values(self, name: bytes) -> list[bytes]:
        """Every value of a header that may stand there more than once, without the white space around it."""
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        return [value.strip(b" \t") for given, value in headers if given == name]

    async def body(self, limit: int) -> bytes:
        """The body, if it says it is JSON and is no larger than `limit`; it is not decoded here."""
        length = int(self.headers.get(b"content-length", b"0"))
        if length or b"transfer-encoding" in self.headers:
            self._check_media_type()
        if length > limit:
            raise self._too_large(limit, endless=length > _PATIENCE * limit)
        body = None if self.line is None else self.line.take(self.receive)
        if body is None:
            message = await self.receive()
            if message["type"] != "http.request" or message.get("more_body"):
                return await self._gather(message, limit)
            body = message.get("body", b"")
        if len(body) > limit:
            raise self._too_large(limit)
        return body

    async def _gather(self, message: Message, limit: int) -> bytes:
        body = bytearray()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > limit:
                raise self._too_large(limit, endless=True)
            if not message.get("more_body"):
                return bytes(body)
            self._check_refusal()
            message = await self.receive()
        raise ClientGone

    def _check_refusal(self) -> None:
        if self.line is not None and (refusal := self.line.refusal) is not None:
            self._cut = True
            raise refusal

    def _too_large(self, limit: int, *, endless: bool = False) -> BodyTooLarge:
        self._cut = endless
        return BodyTooLarge(limit)

    def _check_media_type(self) -> None:
        declared = self.headers.get(b"content-type", b"")
        if declared == b"application/json" and b"content-encoding" not in self.headers:
            return
        kind, *parameters = declared.lower().split(b";")
        if kind.strip() != b"application/json" or not all(map(_leaves_it_utf8, parameters)):
            raise WrongMediaType(declared.decode("latin-1"))
        coding = self.headers.get(b"content-encoding", b"identity")
        if coding.strip().lower() != b"identity":
            raise WrongMediaType(f"JSON in the coding {coding.decode('latin-1')}")

    # ---- the answer ----

    async def answer(
        self, body: bytes, *, status: int = 200, headers: Headers | None = None, kind: bytes = b"application/json"
    ) -> None:
        """Answer whole; with JSON, unless `kind` says otherwise."""
        line, told = self.line, self.request_id.encode()
        if line is not None and not headers and not self.with_answer:  # what most answers are
            self.status = status
            head = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (kind, len(body), told)
            if line.answer(self._send, status, head, body, self._linger):
                return
        fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *(headers or ())]
        await self._start(status, fields)
        await self._write(body)

    async def answer_empty(self, status: int = 204, headers: Headers | None = None) -> None:
        """With a status that no body goes with."""
        await self._start(status, [*(headers or ())])
        await self._write(b"")

    async def fail(self, error: AntwortError, *, strict: bool) -> None:
        """Answer with an error; an answer that has begun can only be ended."""
        if self.status:
            await self._write(b"")
            return
        sent = failure(error, strict=strict)
        closing = [(b"connection", b"close")] if self._cut else []
        await self.answer(sent.body, status=sent.status, headers=sent.headers + closing)

    async def give_up(self) -> None:
        """Nobody is left to read the answer; the server, and what stands before us, still want to see all of one."""
        with suppress(OSError):  # as some servers say that the client has gone
            if not self.status:
                await self._start(503, [(b"content-length", b"0")])
            await self._write(b"")
        self.status = _CLIENT_GONE

    def abort(self) -> bool:
        """Hang up on the client, if the server lets us; whether it did."""
        if self.line is None:
            return False
        self.line.abort()
        self.status = _CLIENT_GONE
        return True

    def cut(self) -> None:
        """Hang up behind what was written, in the middle of the answer. Of another's server, leaving it there is all
        that can be done.
        """
        if self.line is not None:
            self.line.cut()
            self.linger()
        self.status = _CLIENT_GONE

    async def open_stream(self) -> None:
        head = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        self.is_stream = True
        await self._start(200, head)

    async def write(self, frames: bytes) -> None:
        """One write. Waits while the client is slower than we are."""
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def drained(self) -> None:
        """Until the client has taken what was written, or most of it."""
        await self.write(b"")

    @property
    def is_behind(self) -> bool:
        """Whether the next write waits for the client."""
        return self.line is not None and self.line.is_behind

    def linger(self) -> None:
        """All is said that will be: a client that has stopped reading is not waited for much longer."""
        if self.line is not None:
            self.line.linger(self._linger)

    async def end_stream(self) -> None:
        """The end of the body: whoever wrote what is in it has said that there is no more."""
        await self._write(b"")

    async def close_stream(self, frames: bytes = b"") -> None:
        """The last frames, the mark that there are no more, and the end of the body, in one write."""
        await self._write(frames + DONE)

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        headers += self.with_answer
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, body: bytes) -> None:
        self.linger()  # the client may be behind already
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.linger()


def _leaves_it_utf8(parameter: bytes) -> bool:
    """JSON defines no parameters of its type, and one that means nothing does no harm."""
    name, _, value = parameter.partition(b"=")
    return name.strip() != b"charset" or value.strip().strip(b'"') in _UTF8
