"""One HTTP request and its answer: what the parser has found so far, and what can go wrong on the way."""

from __future__ import annotations

import asyncio

import httptools
import msgspec

from antwort.net import heads
from antwort.net.heads import END, NO_HEADERS, Head, Headers

AT_ONCE = 64 * 1024
"""Bytes that a reader takes in one go."""
HEAD_CAP = 64 * 1024
"""Bytes of the heads before an answer's body, those of interim answers among them; and of what is around the body,
such as trailers.
"""
_CHUNK_FRAMING_BYTES = 32
"""What the size and the line ends of a chunk may take beside that."""

# ---- what can go wrong; no message names the backend ----


class HttpFault(Exception):
    """An exchange failed."""


class ConnectFailed(HttpFault):
    """No connection could be made."""


class ConnectTimedOut(HttpFault):
    """No connection was made in time."""


class TimedOut(HttpFault):
    """The first byte, or the next one, took too long."""


class BadAnswer(HttpFault):
    """What came is not HTTP, or more than was allowed."""


class AnswerTooLong(BadAnswer):
    """The body is longer than its reader allows."""


class Cut(HttpFault):
    """The connection ended before the answer did. `heard`: at least one byte of the answer had come."""

    def __init__(self, *, heard: bool) -> None:
        super().__init__("the connection ended before the answer did")
        self.heard = heard


_LONG_HEAD = "the head of the answer is too long"
_USUAL = ("Content-Type", "Content-Length", "Transfer-Encoding", "Date", "Server", "Connection", "Mcp-Session-Id")
_NAMES = {form.encode(): name.lower() for name in _USUAL for form in (name, name.lower())}
"""Names of fields as they are mostly written, and as they are looked up."""


# ---- one request and its answer ----


class Exchange(msgspec.Struct, eq=False):
    """What the parser has found so far, and who waits for it."""

    waiter: asyncio.Future[None]
    """Done when there is news, or none to come. One waits at a time; the first waits for the head."""
    status: int = 0
    headers: Headers = NO_HEADERS
    arrivals: int = 0
    """In how many pieces the answer has come so far."""
    pieces: list[bytes] = []
    size: int = 0
    """Bytes of the body that have come, and have not been taken."""
    answered: bool = False
    complete: bool = False
    keeps_alive: bool = False
    until_eof: bool = False
    is_unwanted: bool = False
    is_lagging: bool = False
    """Whether there was something to read when the clock was last looked at."""
    failure: HttpFault | None = None
    parser: httptools.HttpResponseParser | None = None
    _fields: dict[str, str] = {}
    _fields_size: int = 0
    _framing_size: int = 0
    """Bytes that are no body: of the head, and then of what chunks and trailers take."""
    _interim: bool = False

    @property
    def heard(self) -> bool:
        """Whether at least one byte has come."""
        return self.arrivals > 0

    # called by the parser; what it finds behind a complete answer is nobody's

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields_size += len(name) + len(value)
        if self._fields_size > HEAD_CAP:
            raise BadAnswer(_LONG_HEAD)
        if self.answered:  # trailers come later, and nobody reads them
            return
        # Servers write the same names every time, and whole answers are short: so they are looked up.
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        text, fields = value.decode("latin-1"), self._fields
        fields[key] = f"{fields[key]}, {text}" if key in fields else text

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        assert self.parser is not None
        self.status = self.parser.get_status_code()
        self._interim = 100 <= self.status < 200
        fields, self._fields = self._fields, {}
        if self._interim:
            return
        self.headers = Headers(fields)
        self.keeps_alive = self.parser.should_keep_alive()
        self.until_eof = "content-length" not in fields and "transfer-encoding" not in fields
        self.answered = True

    def on_body(self, data: bytes) -> None:
        if self.complete:
            return
        self.size += len(data)
        if self.is_unwanted:
            self._framing_size -= _CHUNK_FRAMING_BYTES
        else:
            self.pieces.append(data)

    def on_message_begin(self) -> None:
        if self.complete:  # bytes that nobody asked for
            self.keeps_alive = False

    def on_message_complete(self) -> None:
        if not self._interim:
            self.complete = True

    # called by the connection and the reply

    def feed(self, data: bytes) -> None:
        """Raises `BadAnswer`; bytes behind a complete answer only cost the connection its reuse."""
        if self.parser is not None:
            self.arrivals += 1
        else:
            self.arrivals = 1
            written, end, body = data.partition(END)
            head = heads.known.get(written)
            if head is not None and end and len(body) == head.length:  # all of it has come at once
                self.status, self.headers, self.size = head
                self.answered = self.complete = self.keeps_alive = True
                if body:
                    self.pieces = [body]
                return
            self.parser = httptools.HttpResponseParser(self)
        self._parse(data)
        if self.complete and self.arrivals == 1 and self.keeps_alive:
            heads.remember(data, Head(self.status, self.headers, self.size))

    def _parse(self, data: bytes) -> None:
        assert self.parser is not None
        was_answered, size, count = self.answered, self.size, len(self.pieces)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.keeps_alive = False
            if not self.complete:
                raise BadAnswer("the answer is not HTTP") from exc
        if self.answered and not was_answered:
            self._framing_size = 0  # that was the head
            return
        framing = len(data) - (self.size - size) - _CHUNK_FRAMING_BYTES * (len(self.pieces) - count)
        self._framing_size = max(0, self._framing_size + framing)
        if self._framing_size > HEAD_CAP and not self.complete:
            # The parser keeps a field until it is whole: one without end it would never tell.
            raise BadAnswer("the trailers of the answer are too long" if self.answered else _LONG_HEAD)

    def take(self) -> bytes:
        data = b"".join(self.pieces)  # of a single one it makes no copy
        self.pieces = []
        self.size = 0
        return data

    def take_some(self) -> bytes:
        """As `take`, but at most `AT_ONCE` bytes: reading more takes long, and whoever reads slowly holds little."""
        if self.size <= AT_ONCE:
            return self.take()
        size = count = 0
        while size < AT_ONCE:
            size += len(self.pieces[count])
            count += 1
        data = b"".join(self.pieces[:count])
        self.pieces[:count] = [data[AT_ONCE:]] if size > AT_ONCE else []
        self.size -= min(size, AT_ONCE)
        return data[:AT_ONCE]

    def end(self, failure: HttpFault | None = None) -> None:
        """Nothing more will come."""
        self.parser = None  # it holds this object, and would keep both alive until the next collection
        if failure is not None and not self.complete and self.failure is None:
            self.failure = failure
        if not (waiter := self.waiter).done():
            waiter.set_result(None)

    def wake(self) -> None:
        if not (waiter := self.waiter).done():
            waiter.set_result(None)
