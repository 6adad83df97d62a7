"""One HTTP request and its answer, over plain ASGI, and its line in the log."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote

from antwort.engine.runs.subscription import Subscription
from antwort.errors import AntwortError, BodyTooLarge, InvalidField, WrongMediaType
from antwort.identity import ANONYMOUS, Identity
from antwort.ids import new_id
from antwort.notes import Value, note, reason_behind
from antwort.server.errors import Headers, failure
from antwort.server.sse import DONE

if TYPE_CHECKING:
    from antwort.server.protocol import HttpProtocol

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the current task works for, if any; the run it starts inherits it."""

CONNECTION = "antwort.connection"
"""Where in the scope our own server leaves its protocol, which can do what ASGI cannot."""
CLIENT_GONE = 499
"""The status in the log of a request whose client has left; it is never sent."""
WATCH_DELAY_SECONDS = 0.05
MAX_READ_FACTOR = 4
"""The rest of a body that is too large is read and dropped, so that a client which sends first and reads then still
gets its answer; but not of a body without end, or of more than so many times the limit.
"""
MAX_LOGGED_PATH = 200
MAX_LOGGED_MODEL = 100

_logger = logging.getLogger("antwort.transport")
_SAFE_ID = re.compile(rb"[A-Za-z0-9._~:/+=@,-]{1,128}").fullmatch
_SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGone(Exception):
    """The client has left: nobody reads the answer."""


class AnswerCut(Exception):
    """An answer that has begun does not end here, and may go on elsewhere: the client must notice."""


class AsgiConnection:
    """The connection of a request on another server. Ours leaves its `HttpProtocol` in the scope: that can do more."""

    is_behind = False
    """Whether a write would wait for the client."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, on_disconnect: Callable[[], None]) -> Callable[[], Awaitable[None]] | None:
        """Call `on_disconnect` when the client leaves before it has its answer, and at once if it has left. Return what
        stops watching, where a task does it.

        Only reading shows that the client has left. The task starts a moment late: most requests are answered by then.
        """

        def start() -> None:
            self._task = asyncio.create_task(self._wait(on_disconnect))

        self._timer = asyncio.get_running_loop().call_later(WATCH_DELAY_SECONDS, start)
        return self._unwatch

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_disconnect()

    async def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None  # a cancelled task holds this object by its traceback
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def linger(self, seconds: float) -> None:
        """Nothing more will be written: hang up once the client takes nothing of what is left for so long."""

    def abort(self) -> bool:
        """Hang up now, whatever is unsent. Return whether the server can."""
        return False

    def cut(self) -> None:
        """Hang up behind what is unsent, without the end of the answer. The server sees that it has none."""


class Exchange:
    """A request, and the means to answer it once."""

    identity: Identity = ANONYMOUS
    response_id: str | None = None
    status = 0
    """The status of the answer; 0 until it has begun."""
    code: str | None = None
    """The code of the error it was answered with."""
    cause: str | None = None
    """For its line in the log: what is behind an error that is not the client's."""
    is_stream = False
    run: Subscription | None = None
    """The response that it reads."""
    is_replay = False
    """Whether it was answered with a response that another request has started."""
    cancelled: AntwortError | None = None
    """The error it is answered with when the server that hosts us cancels it."""
    _must_close = False

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, linger: float) -> None:
        self.scope, self.receive, self._send, self._linger = scope, receive, send, linger
        self.connection: HttpProtocol | AsgiConnection = scope.get(CONNECTION) or AsgiConnection(receive)
        self.method: str = scope["method"]
        self.path = raw_path(scope)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """Of a repeated one, the last."""
        given = self.headers.get(b"x-request-id")
        self.request_id = new_id("req") if given is None or not _SAFE_ID(given) else given.decode()
        self.answer_headers: Headers = []
        """Headers that go out with the answer, whichever it turns out to be."""

    # ---- the request ----

    def query(self) -> dict[str, str]:
        """Return the parameters of the query; of a repeated one, the last."""
        return dict(self.query_pairs())

    def query_pairs(self) -> list[tuple[str, str]]:
        try:
            return parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError as exc:
            raise InvalidField("", "The query has too many parameters.") from exc

    def header_values(self, name: bytes) -> list[bytes]:
        """Return every value of a header that may be repeated, without the white space around it."""
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        return [value.strip(b" \t") for given, value in headers if given == name]

    async def body(self, limit: int) -> bytes:
        """Return the body, if it says that it is JSON and is no larger than `limit`; it is not decoded here."""
        length = int(self.headers.get(b"content-length", b"0"))
        if (length or b"transfer-encoding" in self.headers) and (
            self.headers.get(b"content-type") != b"application/json" or b"content-encoding" in self.headers
        ):
            self._check_media_type()
        if length > limit:
            self._must_close = length > MAX_READ_FACTOR * limit
            raise BodyTooLarge(limit)
        pieces = bytearray()
        while True:
            try:
                message = await self.receive()
            except AntwortError:  # the rest does not come, or must not
                self._must_close = True
                raise
            if message["type"] != "http.request":
                raise ClientGone
            body: bytes = message.get("body", b"")
            has_more = bool(message.get("more_body"))
            if len(pieces) + len(body) > limit:
                self._must_close = has_more or bool(pieces)
                raise BodyTooLarge(limit)
            if not has_more and not pieces:
                return body
            pieces += body
            if not has_more:
                return bytes(pieces)

    def _check_media_type(self) -> None:
        declared = self.headers.get(b"content-type", b"")
        kind, *parameters = declared.lower().split(b";")
        if kind.strip() != b"application/json" or not all(map(_is_utf8, parameters)):
            raise WrongMediaType(declared.decode("latin-1"))
        coding = self.headers.get(b"content-encoding", b"identity")
        if coding.strip().lower() != b"identity":
            raise WrongMediaType(f"JSON in the coding {coding.decode('latin-1')}")

    # ---- the answer ----

    async def answer(
        self, body: bytes, *, status: int = 200, headers: Headers | None = None, kind: bytes = b"application/json"
    ) -> None:
        """Answer whole; with JSON, unless `kind` says otherwise."""
        fields = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            *(headers or ()),
            (b"x-request-id", self.request_id.encode()),
            *self.answer_headers,
        ]
        connection = self.connection
        self.status = status
        if connection.is_behind:  # with the answer to an earlier request
            connection.linger(self._linger)
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})
        connection.linger(self._linger)

    async def answer_empty(self, status: int = 204, headers: Headers | None = None) -> None:
        """Answer with a status that no body goes with."""
        await self._start(status, [*(headers or ())])
        await self._finish(b"")

    async def fail(self, error: AntwortError, *, strict: bool) -> None:
        """Answer with an error; an answer that has begun can only be ended."""
        if self.status:
            await self._finish(b"")
            return
        sent = failure(error, strict=strict)
        closing = [(b"connection", b"close")] if self._must_close else []
        await self.answer(sent.body, status=sent.status, headers=sent.headers + closing)

    async def give_up(self) -> None:
        """End the answer though nobody reads it: the server, and what is in front of us, want to see all of one."""
        with suppress(OSError):  # by which some servers say that the client has gone
            if not self.status:
                await self._start(503, [(b"content-length", b"0")])
            await self._finish(b"")
        self.status = CLIENT_GONE

    def abort(self) -> bool:
        """Hang up on the client. Return whether the server can."""
        can = self.connection.abort()
        if can:
            self.status = CLIENT_GONE
        return can

    def cut(self) -> None:
        """Hang up behind what was written, in the middle of the answer."""
        self.connection.cut()
        self.linger()
        self.status = CLIENT_GONE

    async def open_stream(self) -> None:
        self.is_stream = True
        await self._start(200, [*_SSE_HEADERS])

    async def write(self, frames: bytes) -> None:
        """Write once. Waits while the client is behind."""
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    @property
    def is_behind(self) -> bool:
        """Whether the next write waits for the client."""
        return self.connection.is_behind

    def linger(self) -> None:
        """Nothing more will be written: a client that has stopped reading is not waited for much longer."""
        self.connection.linger(self._linger)

    async def end_stream(self, frames: bytes = DONE) -> None:
        """Write the last frames and the end of the body, in one write."""
        await self._finish(frames)

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        if self.connection.is_behind:  # with the answer to an earlier request
            self.connection.linger(self._linger)
        headers.append((b"x-request-id", self.request_id.encode()))
        headers += self.answer_headers
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _finish(self, body: bytes) -> None:
        connection = self.connection
        if connection.is_behind:
            connection.linger(self._linger)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        connection.linger(self._linger)

    # ---- its line in the log ----

    def log(self, seconds: float) -> None:
        """Log the request in one line, as a warning where a fault of ours or of a backend is the cause of its failure:
        never content, and of the address only the path.
        """
        cause, run = self.cause, self.run
        summary = None if run is None else run.summary()  # of several readers of one run, only the first reports it
        if cause is None and summary is not None:
            cause = cause_of(summary.error)
        level = logging.INFO if cause is None else logging.WARNING
        if not _logger.isEnabledFor(level):
            return
        path, ms = self.path[:MAX_LOGGED_PATH], round(seconds * 1000, 1)
        in_message: dict[str, Value] = {
            "event": "request",
            "method": self.method,
            "path": path,
            "status": self.status,
            "duration_ms": ms,
        }
        fields: dict[str, Value] = {"request_id": self.request_id}  # only what there is: that is written faster
        if self.response_id is not None:
            fields["response_id"] = self.response_id
        if self.identity.key:
            fields["key"] = self.identity.key
        if self.code is not None:
            fields["error"] = self.code
        elif summary is not None and summary.response.error is not None:
            fields["error"] = summary.response.error.code
        if cause is not None:
            fields["cause"] = cause
        if run is not None:
            response = run.response
            fields["model"], fields["response_status"] = response.model[:MAX_LOGGED_MODEL], response.status
            if response.incomplete_details is not None:
                fields["reason"] = response.incomplete_details.reason
            if self.is_replay:
                fields["replayed"] = True
            if summary is not None:
                fields["turns"] = summary.turns
                if (usage := summary.response.usage) is not None:
                    fields["input_tokens"], fields["output_tokens"] = usage.input_tokens, usage.output_tokens
        note(_logger, level, f"{self.method} {path} {self.status} {ms:.1f} ms", said=in_message, **fields)


def cause_of(error: Exception | None) -> str | None:
    """Return what a fault of ours or of a backend is and what is behind it, for the line of its request; None for a
    request that is wrong: the message may be the backend's own, with the prompt in it.
    """
    if isinstance(error, AntwortError) and error.status >= 500:
        return f"{error.message}{reason_behind(error)}"
    return None


def raw_path(scope: Mapping[str, Any]) -> str:
    """Return the path as it was written, below the place that the application is mounted at. Decoded, a slash that is
    part of an id could not be told from the others.

    `root_path` is where we are mounted. ASGI has `path` begin with it, older servers and frameworks took it off, and
    `raw_path`, being what the client wrote, has it in either case; all are understood.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    written = raw.decode("latin-1") if raw else quote(path)
    if written == path and not root:  # as nearly all are
        return path
    if written != path and unquote(written) not in (path, root + path):
        written = quote(path)  # something on the way has changed the path, and that is what it wants answered
    if not root:
        return written
    end = 0
    for _ in range(root.count("/")):  # decoding adds slashes and removes none: no more of them than the root has
        end = written.find("/", end + 1)
        if end < 0:
            return "/" if unquote(written) == root else written
        if unquote(written[:end]) == root:
            return written[end:]
    return written


def _is_utf8(parameter: bytes) -> bool:
    """JSON defines no parameters of its type, and one without meaning does no harm."""
    name, _, value = parameter.partition(b"=")
    return name.strip() != b"charset" or value.strip().strip(b'"') in (b"utf-8", b"utf8")
