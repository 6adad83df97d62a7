"""The response to one HTTP/1.1 request: its parser, its buffer, its reader, and the errors of a request.

HttpError
├── ConnectFailed          no connection could be made
├── ConnectTimeout         no connection was made in time
├── ResponseTimeout        the first byte or the next one took too long
├── InvalidResponse        the response is not HTTP, or its head is too long
│   └── ResponseTooLarge   the body is longer than its reader allows
├── ConnectionLost         the connection ended before the response did
└── ssrf.AddressNotAllowed the SSRF policy forbids the address
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import httptools
import msgspec

from antwort.caching import Cache

if TYPE_CHECKING:
    from antwort.net.connection import HttpConnection

READ_BYTES = 64 * 1024
"""Most bytes of a body that one read returns."""
MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of the heads before a body, interim ones included; and of chunk framing and trailers around a body."""
_MAX_CACHED_HEAD_BYTES = 1024
_CHUNK_FRAMING_BYTES = 32
"""Bytes that the size and line ends of each chunk may take in addition."""
_HEAD_END = b"\r\n\r\n"
_HEAD_TOO_LONG = "the head of the answer is too long"
_COMMON_NAMES = (
    "Content-Type",
    "Content-Length",
    "Transfer-Encoding",
    "Date",
    "Server",
    "Connection",
    "Mcp-Session-Id",
)
_LOWER_CASE_NAMES = {form.encode(): name.lower() for name in _COMMON_NAMES for form in (name, name.lower())}
"""Field names as servers usually write them, with their lower case form: saves decoding them each time."""


# ---- errors; no message names the backend ----


class HttpError(Exception):
    """A request failed."""


class ConnectFailed(HttpError):
    """No connection could be made."""


class ConnectTimeout(HttpError):
    """No connection was made in time."""


class ResponseTimeout(HttpError):
    """The first byte, or the next one, took too long."""


class InvalidResponse(HttpError):
    """The response is not HTTP, or longer than allowed."""


class ResponseTooLarge(InvalidResponse):
    """The body is longer than its reader allows."""


class ConnectionLost(HttpError):
    """The connection ended before the response did. `response_started`: at least one byte of it had arrived."""

    def __init__(self, *, response_started: bool) -> None:
        super().__init__("the connection ended before the answer did")
        self.response_started = response_started


# ---- heads ----


class Headers(Mapping[str, str]):
    """Header fields with case-insensitive names. Fields of the same name are joined by a comma.

    The properties of the content are computed once, because heads are cached. They are empty without their field. A
    content type that names both events and JSON counts as events.
    """

    __slots__ = ("_fields", "coding", "is_events", "is_json", "media_type")

    def __init__(self, fields: dict[str, str]) -> None:
        """Take fields whose names are in lower case."""
        self._fields = fields
        content_type = fields.get("content-type", "").lower()
        self.media_type = content_type.partition(";")[0].strip()
        self.is_events = "event-stream" in content_type
        self.is_json = "json" in content_type and not self.is_events
        self.coding = fields.get("content-encoding", "").lower()

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


_NO_HEADERS = Headers({})


class ResponseHead(NamedTuple):
    """A parsed head, and the length of the body that follows it."""

    status: int
    headers: Headers
    body_bytes: int


HEAD_CACHE = Cache[bytes, ResponseHead](256)
"""Parsed heads by their bytes, without the blank line. A hit saves about 3.5 µs of parsing.

Servers repeat their heads. A known head, followed by as many bytes as its Content-Length says, is the same response
with another body.
"""


# ---- responses ----


class HttpResponse(msgspec.Struct, eq=False):
    """One response: the connection feeds it, and the caller reads its body whole or in chunks.

    Close it, or leave its `async with`: that aborts the connection unless the response is complete. A complete
    response has released its connection already, and needs no closing.

    It is a msgspec struct because one is made for each request.
    """

    waiter: asyncio.Future[None]
    """Done when the head or more of the body has arrived, or nothing more will. There is one reader at a time."""
    connection: HttpConnection
    status: int = 0
    headers: Headers = _NO_HEADERS
    reads: int = 0
    """Number of reads from the socket in which the response has arrived so far."""
    chunks: list[bytes] = []
    """The part of the body that has arrived and has not been read."""
    buffered_bytes: int = 0
    """Size of `chunks`; while draining, of the discarded bytes."""
    has_head: bool = False
    is_complete: bool = False
    keep_alive: bool = False
    until_eof: bool = False
    """Whether the body ends with the connection."""
    is_draining: bool = False
    """Whether the rest of the body is discarded."""
    is_paused: bool = False
    """Whether its connection does not read from the socket until the reader has taken what has arrived."""
    reader_lagged: bool = False
    """Whether `chunks` held unread data when the connection's timer last fired."""
    error: HttpError | None = None
    parser: httptools.HttpResponseParser | None = None
    _fields: dict[str, str] = {}
    _fields_bytes: int = 0
    _framing_bytes: int = 0
    """Bytes that are not body: of the head, then of chunk framing and trailers."""
    _is_interim: bool = False

    # ---- callbacks of the parser ----

    on_body: Callable[[bytes], None] | None = None
    """Appends to `chunks`. It is called for each chunk of a body, so it is no function of ours."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields_bytes += len(name) + len(value)
        if self._fields_bytes > MAX_HEAD_BYTES:
            raise InvalidResponse(_HEAD_TOO_LONG)
        if self.has_head:  # a trailer
            return
        key = _LOWER_CASE_NAMES.get(name) or name.decode("latin-1").lower()
        text, fields = value.decode("latin-1"), self._fields
        fields[key] = f"{fields[key]}, {text}" if key in fields else text

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.status = self.parser.get_status_code()
        self._is_interim = 100 <= self.status < 200
        fields, self._fields = self._fields, {}
        if self._is_interim:
            return
        self.headers = Headers(fields)
        self.keep_alive = self.parser.should_keep_alive()
        self.until_eof = "content-length" not in fields and "transfer-encoding" not in fields
        self.has_head = True

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise InvalidResponse("unsolicited bytes")  # ends the parsing; `feed` knows that nothing is missing

    def on_message_complete(self) -> None:
        if not self._is_interim:
            self.is_complete = True

    # ---- called by the connection ----

    @property
    def has_started(self) -> bool:
        """Whether at least one byte has arrived."""
        return self.reads > 0

    def feed(self, data: bytes) -> None:
        """Parse what the connection has received. Raises `InvalidResponse`.

        Bytes behind a complete response are no error, but the connection cannot be used again.
        """
        if (parser := self.parser) is not None:
            self.reads += 1
        else:
            self.reads = 1
            written, end, body = data.partition(_HEAD_END)
            head = HEAD_CACHE.get(written)
            if head is not None and end and len(body) == head.body_bytes:
                self.status, self.headers, self.buffered_bytes = head
                self.has_head = self.is_complete = self.keep_alive = True
                if body:
                    self.chunks = [body]
                return
            self.on_body = self.chunks.append
            self.parser = parser = httptools.HttpResponseParser(self)
        had_head, count = self.has_head, len(self.chunks)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.keep_alive = False
            if not self.is_complete:
                raise InvalidResponse("the answer is not HTTP") from exc
        framing = len(data)
        for chunk in self.chunks[count:] if count else self.chunks:
            self.buffered_bytes += len(chunk)
            framing -= len(chunk) + _CHUNK_FRAMING_BYTES
        if self.is_draining:
            self.chunks.clear()
        if self.has_head and not had_head:
            self._framing_bytes = 0  # so far it counted the head
            if self.is_complete and self.keep_alive and self.reads == 1:
                self._cache_head(data)
            return
        self._framing_bytes = max(0, self._framing_bytes + framing)
        if self._framing_bytes > MAX_HEAD_BYTES and not self.is_complete:
            # The parser reports a field when it is whole: it would never report an endless one.
            raise InvalidResponse("the trailers of the answer are too long" if self.has_head else _HEAD_TOO_LONG)

    def _cache_head(self, data: bytes) -> None:
        """Cache the head of `data`, which is this whole response. Only a Content-Length fixes the end of a body: a head
        without one is not cached.
        """
        written, end, body = data.partition(_HEAD_END)
        has_length = "content-length" in self.headers and "transfer-encoding" not in self.headers
        if has_length and end and len(written) <= _MAX_CACHED_HEAD_BYTES and len(body) == self.buffered_bytes:
            HEAD_CACHE.put(written, ResponseHead(self.status, self.headers, self.buffered_bytes))

    def finish(self, error: HttpError | None = None) -> None:
        """End the response: nothing more will arrive. `error` counts unless the response is complete."""
        self.parser = None  # breaks the reference cycle between the two
        if error is not None and not self.is_complete and self.error is None:
            self.error = error
        if not (waiter := self.waiter).done():
            waiter.set_result(None)

    def take(self) -> bytes:
        """Remove and return all that has arrived and has not been read."""
        data = b"".join(self.chunks)  # does not copy a single chunk
        self.chunks.clear()
        self.buffered_bytes = 0
        return data

    # ---- called by the reader ----

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises `ResponseTooLarge` if it is longer than `limit` bytes."""
        chunks, size = [], 0
        while not self.is_complete and size <= limit:
            chunks.append(await anext(self, b""))
            size += len(chunks[-1])
        if size + self.buffered_bytes > limit:
            raise ResponseTooLarge("the answer is too long")
        chunks += self.chunks
        self.chunks.clear()
        self.buffered_bytes = 0
        return b"".join(chunks)  # does not copy a single chunk

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return what has arrived, at most `READ_BYTES`: a slow reader then holds little."""
        while not self.chunks:
            if self.is_complete:
                raise StopAsyncIteration
            if self.error is not None:
                raise self.error
            self.waiter = self.waiter.get_loop().create_future()
            await self.waiter
        if self.buffered_bytes > READ_BYTES:
            return self._take_first()
        if self.is_paused:
            self.connection.resume()
        data = b"".join(self.chunks)  # as in `take`, without the call: this runs for each read
        self.chunks.clear()
        self.buffered_bytes = 0
        return data

    def release(self) -> None:
        """Discard the rest of the response in the background, so that its connection can be used again."""
        if not self.is_complete and self.error is None:
            self.connection.drain()

    def close(self) -> None:
        """Abort the connection unless the response is complete or draining."""
        if not self.is_complete and self.error is None and not self.is_draining:
            self.connection.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_first(self) -> bytes:
        """Remove and return the first `READ_BYTES` bytes of a buffer that holds more."""
        size = count = 0
        while size < READ_BYTES:
            size += len(self.chunks[count])
            count += 1
        data = b"".join(self.chunks[:count])
        self.chunks[:count] = [data[READ_BYTES:]] if size > READ_BYTES else []
        self.buffered_bytes -= READ_BYTES
        return data[:READ_BYTES]
