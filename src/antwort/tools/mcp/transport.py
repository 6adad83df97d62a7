"""The contract of transports, and the matching of answers to requests for those with one stream for all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from antwort.caching import Cache
from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    TOO_LONG,
    JsonRpcMessage,
    Request,
    TooHeavy,
    Unsent,
    decode_aside,
    find_id,
    result_of,
)
from antwort.tools.mcp.throttle import Decliner

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import McpConnection

_MAX_BATCH = 64
"""Most answers in one message that are read."""
_MAX_ABANDONED = 10_000
"""Most cancelled requests that are remembered. Answers to them count as requested."""

_Answer: TypeAlias = JsonRpcMessage | ServerUnavailable | Unsent


class McpTransport:
    """Carries the messages of one connection."""

    details = ""
    """How a program has ended, for the operator."""

    async def open(self) -> None:
        """Raises `ServerUnavailable`, `Unsent`."""

    def agree(self, version: str) -> None:
        """Called once, when the version of the protocol is negotiated."""

    async def request(self, request: Request) -> object:
        """Return the result. Raises `JsonRpcError`, `Unsent`, `ServerUnavailable`."""
        raise NotImplementedError

    async def notify(self, message: JsonRpcMessage) -> None:
        """Send a message that has no answer. Raises `HttpError`, `ServerUnavailable`."""
        raise NotImplementedError

    async def listen(self) -> None:
        """Read the stream of unsolicited messages, in versions with a handshake that have one."""

    async def end_session(self) -> None:
        """End the session at the server. Raises nothing."""

    async def close(self) -> None:
        """Release all resources, even when cancelled."""
        raise NotImplementedError


class DuplexTransport(McpTransport):
    """Matches answers to requests, in whichever order they come. Subclasses send and receive the messages."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self._decliner = Decliner(connection.notify_safely, connection.spawn)
        self._pending: dict[str | int, asyncio.Future[_Answer]] = {}
        self._abandoned = Cache[str | int, None](_MAX_ABANDONED)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is due."""
        return bool(self._pending or self._abandoned)

    async def send(self, request: Request) -> None:
        """Send a request. Raises `ServerUnavailable`, `Unsent`, or calls `settle` later."""
        raise NotImplementedError

    async def request(self, request: Request) -> object:
        answer = self._pending[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self.send(request)
            outcome = await answer
        except asyncio.CancelledError:
            self._abandoned.put(request.id, None)
            raise
        finally:
            self._pending.pop(request.id, None)
        if isinstance(outcome, Exception):
            raise outcome
        return result_of(outcome)

    async def receive(self, data: bytes, size: int | None = None) -> bool:
        """Handle received data that took `size` bytes. Return whether it was a message.

        An answer that cannot be decoded fails its request at once. Raises `Flooded`, and `ServerUnavailable` for a
        message that is too large and cannot be assigned to a request.
        """
        size = len(data) if size is None else size
        try:
            message = await decode_aside(data)
        except TooHeavy as exc:
            if self.settle(find_id(data), ServerUnavailable(TOO_LONG)):
                return True
            raise ServerUnavailable(TOO_LONG) from exc
        except ValueError:
            if self.settle(find_id(data), ServerUnavailable(NOT_AN_ANSWER)):
                return True
            await self._connection.skip(size)
            return False
        if isinstance(message, dict) and "method" not in message and self.settle(message.get("id"), message):
            return True
        if isinstance(message, list):  # no version that is spoken here has batches
            answers = [each for each in message[:_MAX_BATCH] if isinstance(each, dict) and "method" not in each]
            failed = [self.settle(each.get("id"), ServerUnavailable(NOT_AN_ANSWER)) for each in answers]
            if any(failed):
                return True
        if not await self._connection.take_unsolicited(message, size, self._decliner):
            self._connection.end()
        return isinstance(message, dict)

    def settle(self, request_id: object, outcome: _Answer) -> bool:
        """End a request. Return whether it was pending, or cancelled."""
        if isinstance(request_id, str) and request_id.isascii() and request_id.isdecimal() and len(request_id) < 19:
            request_id = int(request_id)  # our ids are numbers
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

    def fail_all(self) -> None:
        for request_id in list(self._pending):
            self.settle(request_id, ServerUnavailable(BROKEN))
