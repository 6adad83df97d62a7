"""`tools/call` and `tools/list` in one POST of our own, over a session that the SDK holds: most of what a loop does.

It sends what the SDK sends for them. What is out of the ordinary it leaves to the SDK, or says clearly; nothing is
sent twice that may have been carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from antwort.net.client import HttpClient, HttpResponse, header_lines
from antwort.net.connection import Timeouts
from antwort.net.response import ConnectFailed, ConnectTimeout, HttpError, InvalidResponse
from antwort.tools.base import Progress
from antwort.tools.mcp.asking import (
    EVENTS,
    Busy,
    Moved,
    Question,
    answer_in,
    check_stream,
    is_of_the_call,
    merged,
    moved,
    read_message,
    words_of,
)
from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from antwort.tools.mcp.declining import Declining, Spawn
from antwort.tools.mcp.listening import LONGEST_PAUSE, Listening
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_CURIOUS,
    UNAUTHORIZED,
    Agreement,
    Ask,
    Report,
    Unsent,
    refused_with,
    result_of,
)
from antwort.tools.mcp.unsolicited_traffic import Unsolicited

_JSON = "application/json"
_AS_IT_IS = frozenset(("", "identity"))
_ALWAYS = {"Accept": f"{_JSON}, {EVENTS}", "Content-Type": _JSON}
_COURTESY = Timeouts(connect=2.0, first_byte=5.0, idle=5.0)
"""For what nobody waits for."""
_encode = msgspec.json.Encoder().encode
_MOST_MOVES = 3
_MOST_FAILURES = 2
_MOST_BUSY = 5
"""Attempts in a row to go on with a stream, with a server that breaks off and with one that says that it is busy."""


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
    origin: str = ""


class Lean:
    """Requests over one session. `spawn` runs what outlives one; `changed` hears that the list of tools has changed,
    `doubted` that the server may not know the session any more, `refused` that it has answered, with a status.
    """

    def __init__(
        self,
        line: Line,
        agreed: Agreement,
        largest: int,
        *,
        largest_page: int,
        unsolicited: Unsolicited,
        spawn: Spawn,
        changed: Callable[[], None],
        doubted: Callable[[], None],
        refused: Callable[[], None],
    ) -> None:
        self._line = line
        self._agreed = agreed
        self._largest, self._largest_page = largest, largest_page
        self._unsolicited = unsolicited
        self._spawn = spawn
        self._changed = changed
        self._doubted = doubted
        self._refused = refused
        self._number = map("antwort-{}".format, count(1)).__next__  # never one of the SDK's, which are whole numbers
        self._used: Mapping[str, str] | None = None
        """The credentials that were used last, and the head that was made with them."""
        self._head = b""
        self._reports: dict[str, Report] = {}

    def call(self, ask: Ask) -> Coroutine[Any, Any, object]:
        """What the server answers. Raises `Refused`, `Unsent`, `Unusual`, `ServerUnavailable`.

        Cancelled, it tells the server so and does not wait: newer versions hear it from the stream's end.
        """
        number, report = self._number(), ask.progress
        params = ask.params(self._agreed, None if report is None else number)
        body = _encode({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        return self._answered(Question(number, body, ask.headers, ask.is_repeatable, self._largest, report))

    def page(self, params: Mapping[str, Any]) -> Coroutine[Any, Any, object]:
        """Of the list of tools. Raises as `call` does."""
        headers = {"Mcp-Method": "tools/list"} if self._agreed.is_modern else {}
        number = self._number()
        said = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
        body = _encode({**said, "params": params} if params else said)
        return self._answered(Question(number, body, headers, is_repeatable=True, largest=self._largest_page))

    def hear_progress(self, said: tuple[object, Progress]) -> bool:
        """Servers tell it in the stream of the call, or in the one for everything else. Gives whether it is of one."""
        report = self._reports.get(said[0]) if isinstance(said[0], str) else None
        if report is not None:
            report(said[1])
        return report is not None

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Say what has no answer. Whether it was heard does not matter: who is gone need not hear it."""
        with suppress(HttpError, ServerUnavailable):
            fields = self._fields(await self._line.login.headers())
            body = msgspec.json.encode(message)
            async with await self._line.http.request("POST", self._line.target, body, _COURTESY, fields) as reply:
                reply.release()

    # within

    async def _answered(self, question: Question) -> object:
        if question.report is not None:
            self._reports[question.number] = question.report
        try:
            used = await self._line.login.headers()
            try:
                return await self._asked(question, used)
            except Moved as there:
                moves, self._line = 1, replace(self._line, target=there.target)
            except Unauthorized:
                moves = 0
            return await self._admitted(question, used, moves)
        except asyncio.CancelledError:
            if not self._agreed.is_modern:
                self._spawn(self._tell_of_cancel(question.number))
            raise
        except (ConnectFailed, ConnectTimeout) as exc:
            raise Unsent from exc
        except InvalidResponse as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except HttpError as exc:
            raise ServerUnavailable(BROKEN) from exc
        finally:
            if question.report is not None:
                del self._reports[question.number]

    async def _tell_of_cancel(self, number: str) -> None:
        params = {"requestId": number, "reason": "cancelled"}
        await self.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _admitted(self, question: Question, used: Mapping[str, str], moves: int) -> object:
        """Where the server says that it is elsewhere within itself, it is asked there from then on; and where it wants
        other credentials, as it does where it has made no `moves`, with those that there are.
        """
        if is_renewed := not moves:
            used = await self._renewed(used)
        while moves < _MOST_MOVES:
            try:
                return await self._asked(question, used)
            except Moved as there:
                moves, self._line = moves + 1, replace(self._line, target=there.target)
            except Unauthorized:
                if is_renewed:
                    raise
                used, is_renewed = await self._renewed(used), True
        raise Unusual

    async def _renewed(self, used: Mapping[str, str]) -> Mapping[str, str]:
        """Other credentials than those that were `used`. Raises `Unauthorized` where there are none."""
        if not await self._line.login.renew(used):
            raise Unauthorized(UNAUTHORIZED)
        return await self._line.login.headers()

    async def _asked(self, question: Question, headers: Mapping[str, str]) -> object:
        line = self._line
        fields = self._head if headers is self._used else self._fields(headers)
        if question.headers:
            fields += header_lines(question.headers)
        resends = question.is_repeatable
        reply = await line.http.request("POST", line.target, question.body, None, fields, resends=resends)
        try:
            kind = reply.headers.media_type
            if reply.status != 200:
                return await self._refusal(reply, kind, question)
            if reply.headers.coding not in _AS_IT_IS:
                raise ServerUnavailable(NOT_AN_ANSWER)
            if kind == _JSON:
                message = await read_message(reply, question.largest)
            elif kind == EVENTS:
                message = await self._events(reply, question)
            else:
                raise ServerUnavailable(NOT_AN_ANSWER)
            return answer_in(message, question.number)
        finally:
            reply.close()

    async def _refusal(self, reply: HttpResponse, kind: str, question: Question) -> object:
        """What an answer other than 200 means. Only where it says for certain that nothing was carried out, or where
        that does no harm, is the same asked again.
        """
        self._refused()
        if reply.status in (401, 403):
            raise Unauthorized(UNAUTHORIZED)
        if 300 <= reply.status < 400:
            raise moved(self._line.origin, self._line.target, reply) or Unusual
        message = await words_of(reply) if reply.status in (400, 404) and kind == _JSON else {}
        is_told = "error" in message
        if self._line.session is not None and not (is_told and is_of_the_call(message, question.number)):
            if reply.status == 404 or (reply.status == 400 and question.is_repeatable):
                raise Unsent(reply.status)  # the session is not known there (any more)
            if reply.status == 400:
                self._doubted()
        if is_told:
            return result_of(message)
        raise refused_with(reply.status)

    # streams

    async def _events(self, reply: HttpResponse, question: Question) -> dict[str, Any]:
        declining = Declining(self.tell, self._spawn)
        resumes = not self._agreed.is_modern
        listening = Listening(
            question.largest, self._unsolicited, lambda message: self._hear(message, declining), resumes=resumes
        )
        try:
            answer = await self._heard(reply, listening)
            return await self._go_on(listening) if answer is None else answer
        finally:
            declining.drop()

    async def _heard(self, reply: HttpResponse, listening: Listening) -> dict[str, Any] | None:
        """None where the stream has ended early, and may go on elsewhere."""
        try:
            answer = await listening.read(reply)
        except HttpError:
            if not listening.can_go_on:
                raise
            return None
        if answer is None and not listening.can_go_on:
            raise ServerUnavailable(BROKEN)
        return answer

    async def _go_on(self, listening: Listening) -> dict[str, Any]:
        """Servers may end a stream and have it asked for again. How long that goes on, whoever waits decides."""
        try:
            return await self._resumed(listening)
        except Unauthorized as exc:
            raise ServerUnavailable(BROKEN) from exc  # not as one that has not begun, which would be asked again

    async def _resumed(self, listening: Listening) -> dict[str, Any]:
        failures, is_renewed = 0, False
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE, listening.pause * 2**failures))
            used = await self._line.login.headers()
            try:
                if (answer := await self._next_stream(listening, used)) is not None:
                    return answer
                failures = 0
            except (HttpError, Busy) as exc:
                failures += 1
                if failures >= (_MOST_BUSY if isinstance(exc, Busy) else _MOST_FAILURES):
                    raise
            except Unauthorized:
                if is_renewed or not await self._line.login.renew(used):
                    raise
                is_renewed = True

    async def _next_stream(self, listening: Listening, headers: Mapping[str, str]) -> dict[str, Any] | None:
        ours = {"Accept": EVENTS, "Last-Event-ID": listening.last or "", **self._session()}
        try:
            fields = header_lines(merged(headers, ours))
        except ValueError as exc:  # an id that cannot be sent
            raise ServerUnavailable(BROKEN) from exc
        async with await self._line.http.request("GET", self._line.target, None, None, fields) as reply:
            check_stream(reply)
            return await listening.read(reply)

    async def _hear(self, message: Mapping[str, Any], declining: Declining) -> None:
        method = message["method"]
        if "id" in message:  # a request of the server's, which may not go on before it is answered
            if not await declining.take(message["id"], method):
                raise ServerUnavailable(TOO_CURIOUS)
        elif method == "notifications/tools/list_changed":
            self._changed()

    def _session(self) -> dict[str, str]:
        session = {} if self._line.session is None else {"Mcp-Session-Id": self._line.session}
        return {"MCP-Protocol-Version": self._agreed.version, **session}

    def _fields(self, headers: Mapping[str, str]) -> bytes:
        """As they are sent; made anew only where the credentials are others."""
        if headers is not self._used:
            self._head = header_lines(merged(headers, {**_ALWAYS, **self._session()}))
            self._used = headers  # after what may raise
        return self._head
