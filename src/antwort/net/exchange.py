"""One HTTP request and its answer: what the parser has found so far, and what can go wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import httptools

from antwort.net.heads import NO_HEADERS, Head, Headers, recall, remember

HEAD_CAP = 64 * 1024
"""Bytes of the heads before an answer's body, those of interim answers among them."""

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


class Cut(HttpFault):
    """The connection ended before the answer did. `heard`: at least one byte of the answer had come."""

    def __init__(self, *, heard: bool) -> None:
        super().__init__("the connection ended before the answer did")
        self.heard = heard


_USUAL = ("Content-Type", "Content-Length", "Transfer-Encoding", "Date", "Server", "Connection", "Mcp-Session-Id")
_NAMES = {form.encode(): name.lower() for name in _USUAL for form in (name, name.lower())}
"""Names of fields as they are mostly written, and as they are looked up."""


# ---- one request and its answer ----


class Exchange:
    """What the parser has found so far, and who waits for it."""

    __slots__ = (
        "_fields",
        "_fields_size",
        "_head_size",
        "_interim",
        "_loop",
        "_waiter",
        "answered",
        "complete",
        "failure",
        "headers",
        "heard",
        "is_unwanted",
        "keeps_alive",
        "parser",
        "pieces",
        "reads",
        "size",
        "status",
        "until_eof",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._interim = False
        self._head_size = self._fields_size = 0
        self.parser: httptools.HttpResponseParser | None = None
        self.status = 0
        self._fields: dict[str, str] = {}
        self.headers = NO_HEADERS
        self.reads = 0
        self.pieces: list[bytes] = []
        self.size = 0
        self.failure: HttpFault | None = None
        self.heard = self.answered = self.complete = self.until_eof = self.keeps_alive = self.is_unwanted = False

    # called by the parser; what it finds behind a complete answer is nobody's

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.answered:  # trailers come later, and nobody reads them
            return
        self._fields_size += len(name) + len(value)
        if self._fields_size > HEAD_CAP:
            raise BadAnswer("the head of the answer is too long")
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
        if not self.is_unwanted:
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
        self.reads += 1
        if not self.heard:
            self.heard = True
            if (known := recall(data)) is not None:
                self._answer(*known, data)
                return
            self.parser = httptools.HttpResponseParser(self)
        self._parse(data)
        if self.complete and self.reads == 1 and self.keeps_alive:
            remember(data, Head(self.status, self.headers, self.size))

    def _answer(self, head: Head, begin: int, data: bytes) -> None:
        """All of it has come at once, with a head that was parsed before."""
        self.status, self.headers, self.size = head
        self.answered = self.complete = self.keeps_alive = True
        if head.length:
            self.pieces.append(data[begin:])

    def _parse(self, data: bytes) -> None:
        assert self.parser is not None
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.keeps_alive = False
            if not self.complete:
                raise BadAnswer("the answer is not HTTP") from exc
        if not self.answered:  # the parser keeps a field until it is whole: one without end it would never tell
            self._head_size += len(data)
            if self._head_size > HEAD_CAP:
                raise BadAnswer("the head of the answer is too long")

    def take(self) -> bytes:
        pieces, self.pieces, self.size = self.pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, failure: HttpFault | None = None) -> None:
        """Nothing more will come."""
        self.parser = None  # it holds this object, and would keep both alive until the next collection
        if not self.complete and self.failure is None:
            self.failure = failure
        self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wait(self) -> Awaitable[None]:
        """Until there is news, or none to come. One waits at a time."""
        self._waiter = self._loop.create_future()
        return self._waiter
