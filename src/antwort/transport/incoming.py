"""What uvicorn's parser reads becomes requests, and they are answered one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, ClassVar, NoReturn
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from antwort.errors import AntwortError, HeadTooLarge, RequestError, UnknownTransferCoding
from antwort.transport.cycle import Cycle, Receive, Send
from antwort.transport.errors import Headers
from antwort.transport.exchange import CONNECTION
from antwort.transport.lingering import Lingers

# uvicorn's own, which says of a request that it cannot read less than our line does, and of an upgrade what to install.
_logger = logging.getLogger("antwort.connection")
_logger.setLevel(logging.ERROR)

BODY_FRAMING = "chunk extensions and trailers"


class State(ServerState):
    """What the connections of a server share."""

    is_leaving = False
    """Whether each answer is the last on its connection: the next request is to go elsewhere."""
    _written: Headers | None = None
    _lines = b""

    @property
    def always(self) -> bytes:
        """What every answer says, as lines of its head: uvicorn makes a new list for each second."""
        if self._written is not self.default_headers:
            self._written = self.default_headers
            self._lines = b"".join([b"%b: %b\r\n" % field for field in self._written])
        return self._lines


class Incoming(Lingers, HttpToolsProtocol):
    """uvicorn's connection, with as little as can be to do for each request."""

    head_limit: ClassVar[int] = 64 * 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.server_state, State)
        self._state = self.server_state
        self.logger = _logger
        self._answering: Cycle | None = None
        self._newest: Cycle | None = None
        """The last whose head has come in."""
        self._waiting: deque[Cycle] = deque()
        """Those that came before it was their turn."""
        self._is_known = False
        """Whether what is being read has become the newest."""
        self._is_whole = False
        self._wants_upgrade = False
        """Whether it wants to go on in another protocol."""
        self._fault: AntwortError | None = None
        self._in_head = True
        self._head_bytes = 0
        self._most_bytes = 0
        """How many bytes the head may have at most, by what has come so far."""
        self._body_bytes = self._body_pieces = 0
        """Of the body under way, as far as the framing has not been held against them."""
        self._framing_bytes = self._trailer_bytes = 0
        self._idle_since: float | None = None
        self._always_so: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._always_so = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            CONNECTION: self,
        }

    # ---- requests ----

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._is_whole = self._is_known = self._wants_upgrade = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value))
            return
        # A trailer. It is no header: whatever checks or sets headers in front of us has not seen it (RFC 9110, 6.5.1).
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > self.head_limit:
            self._stop_parsing(HeadTooLarge(self.head_limit, BODY_FRAMING))

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._body_bytes = self._body_pieces = self._framing_bytes = self._trailer_bytes = 0
        if self._most_bytes > self.head_limit:
            self._check_head()
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        fields = dict(self.headers)
        if b"transfer-encoding" in fields:
            self._check_transfer_coding()
        if b"host" not in fields:
            if version == "1.1":
                self._stop_parsing(RequestError("An HTTP/1.1 request needs a Host header.", code="invalid_http"))
        elif len(fields) < len(self.headers) and [name for name, _ in self.headers].count(b"host") > 1:
            self._stop_parsing(RequestError("A request has one Host header.", code="invalid_http"))
        scope: dict[str, Any] = {
            **self._always_so,
            "http_version": version,
            "method": method.decode("ascii"),
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        self.scope = scope  # type: ignore[assignment] # a typed dict, and ours is one key more
        if parser.should_upgrade() and method != b"CONNECT":  # which is an upgrade for the parser as well
            self._wants_upgrade = True
            return
        url = httptools.parse_url(self.url)
        raw = url.path
        path = raw.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw
        scope["query_string"] = url.query or b""
        self._is_known = True
        self._enter(scope, fields.get(b"expect"), keep_alive=version != "1.0" and parser.should_keep_alive())

    def _check_head(self) -> None:
        if len(self.url) + sum([len(name) + len(value) for name, value in self.headers]) > self.head_limit:
            self._stop_parsing(HeadTooLarge(self.head_limit))

    def _check_transfer_coding(self) -> None:
        """The parser takes `gzip, chunked` for chunked, and would hand over what is compressed as it is."""
        codings = [value.strip(b" \t").lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings != [b"chunked"]:
            self._stop_parsing(UnknownTransferCoding(b", ".join(codings).decode("latin-1")))

    def _stop_parsing(self, fault: AntwortError) -> NoReturn:
        """For the parser's callbacks: it gives up, and `fault` is what is answered."""
        self._fault = fault
        raise fault

    def _enter(self, scope: dict[str, Any], expected: bytes | None, *, keep_alive: bool) -> None:
        """Have a request answered, behind those that came before it. `expected`: what its `Expect` says."""
        before = self._newest
        self._newest = cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.on_response_complete,
            always=self._state.always,
            keep_alive=keep_alive,
            expects=expected is not None and expected.lower() == b"100-continue",
        )
        if before is None or before.response_complete:
            self._start(cycle)
        else:
            self.flow.pause_reading()
            self._waiting.append(cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_pieces += 1
        cycle = self._newest
        if cycle is not None and not cycle.response_complete:
            cycle.add(body)
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._in_head = self._is_whole = True
        self._head_bytes = 0
        cycle = self._newest
        if cycle is not None and not self._wants_upgrade and not cycle.response_complete:
            cycle.more_body = False
            cycle.tell()

    # ---- answers ----

    def _start(self, cycle: Cycle) -> None:
        self._answering = cycle
        if self._state.is_leaving:
            cycle.keep_alive = False
        if self._lingering is not None:
            self.stop_lingering()
        task = self.loop.create_task(cycle.run(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def taken_body(self, receive: Receive) -> bytes | None:
        cycle = self._answering
        return None if cycle is None else cycle.take(receive)

    def answer(self, send: Send, status: int, head: bytes, body: bytes, linger: float) -> bool:
        cycle = self._answering
        if cycle is None or not cycle.answer(send, status, head, body):
            return False
        if self.flow.write_paused:
            self.linger(linger)
        return True

    def on_response_complete(self) -> None:
        self._state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    # ---- connections that are not used ----

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """One timer goes on whatever comes and goes: it looks for how long nothing has."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the next answer sets it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
            return
        if self.transport.get_write_buffer_size():  # of the last answer: nobody reads it
            self.transport.abort()
        self.transport.close()
