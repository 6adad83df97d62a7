"""Messages as the SDK takes them, from the transports that are our own."""

from __future__ import annotations

from collections.abc import Iterator

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, RequestId, jsonrpc_message_adapter

from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.decoding import TooHeavy, decoded_aside, number_in
from antwort.tools.mcp.messages import NOT_AN_ANSWER, TOO_LONG, Unsent
from antwort.tools.mcp.unsolicited_traffic import Unsolicited

_MOST_ANSWERED = 64
_MOST_WAITING = 10_000
"""Requests whose answers are known to be asked for. Those that were given up stay among them: they may yet come."""


class Unread(Exception):
    """No message of any kind."""


class MessageReader:
    """Reads what comes in one stream, where nobody but the reader knows which messages were asked for."""

    def __init__(self, unsolicited: Unsolicited) -> None:
        self.unsolicited = unsolicited
        self._waiting: dict[RequestId, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether an answer may come."""
        return bool(self._waiting)

    def expect(self, item: SessionMessage) -> None:
        """It goes to the server: its answer, if it has one, is asked for."""
        if isinstance(item.message, JSONRPCRequest):
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[coerce_request_id(item.message.id)] = None

    async def read(self, data: bytes, size: int | None = None) -> list[SessionMessage]:
        """What it says, where anybody wants to hear it. `size`: bytes that it took.

        An answer that is none, or cannot be read, is taken as one that says so: whoever waits for it need not wait
        longer. Raises `Unread`, `Flooded`, and `ServerUnavailable` for more than is taken, of which nobody knows whose
        answer it is.
        """
        size = len(data) if size is None else size
        try:
            said = await decoded_aside(data)
        except TooHeavy as exc:
            if (number := number_in(data)) is not None and self._is_answer(number):
                return [failed(number, ServerUnavailable(TOO_LONG))]
            raise ServerUnavailable(TOO_LONG) from exc
        except ValueError as exc:
            if (number := number_in(data)) is not None and self._is_answer(number):
                return [failed(number, ServerUnavailable(NOT_AN_ANSWER))]
            await self.unsolicited.pass_over(size)
            raise Unread from exc
        answered = [number for number in _numbers(said) if self._is_answer(number)]
        if not answered and isinstance(said, dict):
            if "method" not in said:
                await self.unsolicited.pass_over(size)
                return []
            if not await self.unsolicited.take(said, size):
                return []
        try:
            return [SessionMessage(jsonrpc_message_adapter.validate_python(said, by_name=False))]
        except ValueError as exc:
            if answered:
                return [failed(number, ServerUnavailable(NOT_AN_ANSWER)) for number in answered]
            await self.unsolicited.pass_over(size)
            raise Unread from exc

    def _is_answer(self, number: RequestId) -> bool:
        number = coerce_request_id(number)
        if number not in self._waiting:
            return False
        del self._waiting[number]
        return True


def failed(number: RequestId, fault: ServerUnavailable | Unsent) -> SessionMessage:
    """The answer to a request of ours that can have no other. It carries `fault` to whoever asked."""
    error = ErrorData(code=INTERNAL_ERROR, message="", data=fault)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _numbers(said: object) -> Iterator[RequestId]:
    """Of the requests that it means to answer, one by one or many together."""
    for one in said[:_MOST_ANSWERED] if isinstance(said, list) else [said]:
        if isinstance(one, dict) and "method" not in one:
            number = one.get("id")
            if isinstance(number, int | str) and not isinstance(number, bool):
                yield number
