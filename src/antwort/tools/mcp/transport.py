"""What carries the messages of one connection, and how answers find their requests where all come in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from antwort.caching import Cache
from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_LONG,
    Agreement,
    Message,
    Request,
    TooHeavy,
    Unsent,
    decode_aside,
    find_id,
    result_of,
)
from antwort.tools.mcp.throttle import Decliner

if TYPE_CHECKING:
    from antwort.tools.mcp.client import Connection

_MAX_BATCH = 64
"""Answers in one message that are looked at."""
_MAX_ABANDONED = 10_000
"""Requests that were given up whose answers may yet come: those count as asked for."""

Id: TypeAlias = str | int
Outcome: TypeAlias = Message | ServerUnavailable | Unsent


class Transport:
    """Carries the messages of one connection."""

    details = ""
    """What the operator may want to know of a program that has ended."""

    async def open(self) -> None:
        """Raises `ServerUnavailable`, `Unsent`."""

    def agree(self, agreement: Agreement) -> None:
        """Called once, when it is known which version of the protocol is spoken."""

    async def request(self, request: Request) -> object:
        """Return the result. Raises `Refused`, `Unsent`, `ServerUnavailable`. Cancelled, it tells the server so."""
        raise NotImplementedError

    async def notify(self, message: Message) -> None:
        """Send a message that has no answer. Raises `HttpError`, `ServerUnavailable`."""
        raise NotImplementedError

    async def tell(self, message: Message) -> None:
        """Send a message that may as well be lost. Raises nothing."""
        raise NotImplementedError

    async def listen(self) -> None:
        """Read what a server says by itself in a version with a handshake, where that is not read anyway."""

    async def leave(self) -> None:
        """End the session at the server. Raises nothing."""

    async def close(self) -> None:
        """Give back all that is held, even when cancelled."""
        raise NotImplementedError


class Duplex(Transport):
    """Matches answers to requests, in whichever order they come. Subclasses send messages, and pass on what comes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: dict[Id, asyncio.Future[Outcome]] = {}
        self._abandoned = Cache[Id, None](_MAX_ABANDONED)
        self._decliner = Decliner(self.tell, connection.spawn)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer may come."""
        return bool(self._pending or self._abandoned)

    async def send(self, request: Request) -> None:
        """Send a request. Raises `ServerUnavailable`, `Unsent`, or calls `fail` later."""
        raise NotImplementedError

    async def request(self, request: Request) -> object:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = answer
        try:
            await self.send(request)
            outcome = await answer
        except asyncio.CancelledError:
            self._abandoned.put(request.id, None)
            if request.is_cancellable and not self._connection.over.is_set():
                self._connection.tell_of_cancel(request.id)
            raise
        finally:
            self._pending.pop(request.id, None)
        if isinstance(outcome, Exception):
            raise outcome
        return result_of(outcome)

    async def receive(self, data: bytes, size: int | None = None) -> bool:
        """Take what came; `size`: bytes that it took. Return whether it was a message.

        An answer that cannot be read fails its request: whoever waits need not wait longer. Raises `Flooded`, and
        `ServerUnavailable` for more than is taken, of which nobody knows whose answer it is.
        """
        size = len(data) if size is None else size
        unsolicited = self._connection.unsolicited
        try:
            message = await decode_aside(data)
        except TooHeavy as exc:
            if self.fail(find_id(data), ServerUnavailable(TOO_LONG)):
                return True
            raise ServerUnavailable(TOO_LONG) from exc
        except ValueError:
            if self.fail(find_id(data), ServerUnavailable(NOT_AN_ANSWER)):
                return True
            await unsolicited.skip(size)
            return False
        if isinstance(message, dict) and "method" not in message and self._settle(message.get("id"), message):
            return True
        if isinstance(message, list):
            failed = [self.fail(each, ServerUnavailable(NOT_AN_ANSWER)) for each in _ids(message)]
            if any(failed):
                return True
        if not await unsolicited.take(message, size, self._decliner):
            self._connection.end()
        return isinstance(message, dict)

    def fail(self, request_id: object, fault: ServerUnavailable | Unsent) -> bool:
        """End a request without an answer. Return whether it was under way, or was given up."""
        return self._settle(request_id, fault)

    def fail_all(self) -> None:
        for request_id in list(self._pending):
            self._settle(request_id, ServerUnavailable(BROKEN))

    def _settle(self, request_id: object, outcome: Outcome) -> bool:
        if isinstance(request_id, str) and request_id.isascii() and request_id.isdecimal() and len(request_id) < 19:
            request_id = int(request_id)  # ours are whole numbers
        if not isinstance(request_id, str | int) or isinstance(request_id, bool):
            return False
        if request_id in self._abandoned:
            self._abandoned.discard(request_id)
            return True
        if (answer := self._pending.pop(request_id, None)) is None:
            return False
        if not answer.done():
            answer.set_result(outcome)
        return True


def _ids(batch: list[object]) -> Iterator[object]:
    for each in batch[:_MAX_BATCH]:
        if isinstance(each, dict) and "method" not in each:
            yield each.get("id")
