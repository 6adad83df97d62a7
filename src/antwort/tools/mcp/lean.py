"""`tools/call` in one POST of our own, over a session that the SDK holds: most of what a loop does is this.

It sends what the SDK sends for a call. What is out of the ordinary it leaves to the SDK, or says clearly; nothing is
sent twice that may have been carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import msgspec

from antwort.net.connection import Timeouts
from antwort.net.exchange import BadAnswer, ConnectFailed, ConnectTimedOut, HttpFault
from antwort.net.http import HttpClient, Reply, header_lines
from antwort.net.sse import SseParser
from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_LONG,
    UNAUTHORIZED,
    Agreement,
    Ask,
    Report,
    Unsent,
    decoded,
    progress_of,
    result_of,
)

_JSON, _EVENTS = "application/json", "text/event-stream"
_ALWAYS = {"Accept": f"{_JSON}, {_EVENTS}", "Content-Type": _JSON}
_COURTESY = Timeouts(connect=2.0, first_byte=5.0, idle=5.0)
"""For what nobody waits for."""
_REFUSAL_CAP = 64 * 1024
_HTTPS_OWN = frozenset(
    ("host", "user-agent", "accept-encoding", "connection", "content-length", "transfer-encoding", "keep-alive", "te")
)
"""What the client below writes itself."""
_UNSUPPORTED = {"code": -32601, "message": "Not supported by this client."}


class Unusual(Exception):
    """The call has not been carried out. It is the SDK's to make, and so are those after it."""


class Credentials(Protocol):
    """What lets requests in. `renew` says whether there are others than those `used`."""

    async def headers(self) -> Mapping[str, str]: ...

    async def renew(self, used: Mapping[str, str]) -> bool: ...


class Line(msgspec.Struct, frozen=True):
    """Where a session's messages go."""

    http: HttpClient
    target: str
    session: str | None
    login: Credentials


class Lean:
    """Calls over one session. `spawn` runs what outlives a call; `changed` hears that the list of tools has changed."""

    def __init__(
        self,
        line: Line,
        agreed: Agreement,
        largest: int,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        changed: Callable[[], None],
    ) -> None:
        self._line = line
        self._agreed = agreed
        self._largest = largest
        self._spawn = spawn
        self._changed = changed
        self._numbers = count(1)
        self._known: tuple[Mapping[str, str], bytes] | None = None
        self._reports: dict[str, Report] = {}

    async def call(self, ask: Ask) -> object:
        """What the server answered. Raises `Refused`, `Unsent`, `Unusual`, `ServerUnavailable`.

        Cancelled, it tells the server so and does not wait: newer versions hear it from the stream's end.
        """
        number = f"antwort-{next(self._numbers)}"  # never one of the SDK's, which are whole numbers
        if ask.progress is not None:
            self._reports[number] = ask.progress
        try:
            return await self._admitted(ask, number)
        except asyncio.CancelledError:
            if not self._agreed.is_modern:
                self._spawn(self._tell_of_cancel(number))
            raise
        except (ConnectFailed, ConnectTimedOut) as exc:
            raise Unsent from exc
        except BadAnswer as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except HttpFault as exc:
            raise ServerUnavailable(BROKEN) from exc
        finally:
            self._reports.pop(number, None)

    def hear_progress(self, params: object) -> None:
        """Servers tell it in the stream of the call, or in the one for everything else."""
        said = progress_of(params)
        if said is not None and isinstance(said[0], str) and (report := self._reports.get(said[0])) is not None:
            report(said[1])

    async def _admitted(self, ask: Ask, number: str) -> object:
        used = await self._line.login.headers()
        try:
            return await self._asked(ask, number, used)
        except Unauthorized:
            if not await self._line.login.renew(used):
                raise
        return await self._asked(ask, number, await self._line.login.headers())

    async def _asked(self, ask: Ask, number: str, headers: Mapping[str, str]) -> object:
        params = ask.params(self._agreed, number if ask.progress is not None else None)
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        fields = self._fields(headers) + header_lines(ask.headers) if ask.headers else self._fields(headers)
        reply = await self._line.http.request("POST", self._line.target, body, None, fields, resends=ask.is_repeatable)
        async with reply:
            kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
            if reply.status != 200:
                return await self._refusal(reply, kind, number)
            if reply.headers.get("content-encoding", "identity") != "identity":
                raise ServerUnavailable(NOT_AN_ANSWER)
            if kind == _EVENTS:
                return await self._events(reply, number)
            if kind != _JSON:
                raise ServerUnavailable(NOT_AN_ANSWER)
            return _answer(decoded(await self._read(reply)), number)

    async def _read(self, reply: Reply) -> bytes:
        try:
            return await reply.read(self._largest)
        except BadAnswer as exc:
            raise ServerUnavailable(TOO_LONG) from exc

    async def _events(self, reply: Reply, number: str) -> object:
        parser = SseParser()
        async for data in reply.reads():
            for payload in parser.feed(data):
                message = decoded(payload)
                if "method" not in message:
                    reply.release()
                    return _answer(message, number)
                self._hear(message)
            if parser.open_size > self._largest:
                raise ServerUnavailable(TOO_LONG)
        for payload in parser.finish():
            return _answer(decoded(payload), number)
        raise ServerUnavailable(BROKEN)

    def _hear(self, message: Mapping[str, Any]) -> None:
        method = message["method"]
        if "id" in message:  # a request of the server's, which may not go on before it is answered
            self._spawn(self._decline(message["id"], is_ping=method == "ping"))
        elif method == "notifications/progress":
            self.hear_progress(message.get("params"))
        elif method == "notifications/tools/list_changed":
            self._changed()

    async def _refusal(self, reply: Reply, kind: str, number: str) -> object:
        """What an answer other than 200 means. With those that are told apart here, nothing was carried out."""
        if reply.status in (401, 403):
            raise Unauthorized(UNAUTHORIZED)
        if 300 <= reply.status < 400:
            raise Unusual
        if reply.status in (400, 404):
            message = await _words(reply) if kind == _JSON else {}
            if "error" in message and (self._agreed.is_modern or message.get("id") == number):
                return result_of(message)
            raise Unsent  # the session is not known there (any more)
        raise ServerUnavailable(f"The MCP server answered the call with HTTP status {reply.status}.")

    # what nobody waits for

    async def _tell_of_cancel(self, number: str) -> None:
        params = {"requestId": number, "reason": "cancelled"}
        await self._tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _decline(self, number: object, *, is_ping: bool) -> None:
        answer: dict[str, Any] = {"result": {}} if is_ping else {"error": _UNSUPPORTED}
        await self._tell({"jsonrpc": "2.0", "id": number, **answer})

    async def _tell(self, message: Mapping[str, Any]) -> None:
        with suppress(HttpFault, ServerUnavailable):  # it is gone, or has thrown us out: it need not hear it
            fields = self._fields(await self._line.login.headers())
            body = msgspec.json.encode(message)
            async with await self._line.http.request("POST", self._line.target, body, _COURTESY, fields) as reply:
                reply.release()

    def _fields(self, headers: Mapping[str, str]) -> bytes:
        """As they are sent; made anew only where the credentials are others."""
        if self._known is None or self._known[0] is not headers:
            session = {} if self._line.session is None else {"Mcp-Session-Id": self._line.session}
            ours = {**_ALWAYS, "MCP-Protocol-Version": self._agreed.version, **session}
            self._known = (headers, header_lines(merged(headers, ours)))
        return self._known[1]


def merged(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Both; ours where they have the same name, in whatever case, and nothing that belongs to HTTP itself."""
    names = {name.lower() for name in ours} | _HTTPS_OWN
    return {**{name: value for name, value in theirs.items() if name.lower() not in names}, **ours}


async def _words(reply: Reply) -> dict[str, Any]:
    """Of a refusal, if it has any."""
    with suppress(BadAnswer, ServerUnavailable):
        return decoded(await reply.read(_REFUSAL_CAP))
    return {}


def _answer(message: Mapping[str, Any], number: str) -> object:
    is_refused = "error" in message
    if message.get("id") != number and not (is_refused and message.get("id") is None):
        raise ServerUnavailable(NOT_AN_ANSWER)
    if not is_refused and "result" not in message:
        raise ServerUnavailable(NOT_AN_ANSWER)
    return result_of(message)
