"""Messages as the SDK takes them, from the transports that are our own."""

from __future__ import annotations

from collections.abc import Iterator

from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, RequestId, jsonrpc_message_adapter

from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.decoding import TooHeavy, decoded_aside, number_in
from antwort.tools.mcp.messages import NOT_AN_ANSWER, TOO_LONG, Unsent

_MOST_ANSWERED = 64


class Unread(Exception):
    """No message of any kind."""


async def read_message(data: bytes) -> list[SessionMessage]:
    """What it says. An answer that is none, or cannot be read, is taken as one that says so: whoever waits for it need
    not wait longer.

    Raises `Unread`, and `ServerUnavailable` for more than is taken, of which nobody knows whose answer it is.
    """
    try:
        said = await decoded_aside(data)
    except TooHeavy as exc:
        return [_unreadable(data, TOO_LONG, ServerUnavailable(TOO_LONG), exc)]
    except ValueError as exc:
        return [_unreadable(data, NOT_AN_ANSWER, Unread(), exc)]
    try:
        return [SessionMessage(jsonrpc_message_adapter.validate_python(said, by_name=False))]
    except ValueError as exc:
        if answered := [failed(number, ServerUnavailable(NOT_AN_ANSWER)) for number in _numbers(said)]:
            return answered
        raise Unread from exc


def failed(number: RequestId, fault: ServerUnavailable | Unsent) -> SessionMessage:
    """The answer to a request of ours that can have no other. It carries `fault` to whoever asked."""
    error = ErrorData(code=INTERNAL_ERROR, message="", data=fault)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _unreadable(data: bytes, words: str, otherwise: Exception, cause: Exception) -> SessionMessage:
    """The failure of whoever waits for it. Raises `otherwise` where nobody does."""
    if (number := number_in(data)) is None:
        raise otherwise from cause
    return failed(number, ServerUnavailable(words))


def _numbers(said: object) -> Iterator[RequestId]:
    """Of the requests that it means to answer, one by one or many together."""
    for one in said[:_MOST_ANSWERED] if isinstance(said, list) else [said]:
        if isinstance(one, dict) and "method" not in one:
            number = one.get("id")
            if isinstance(number, int | str) and not isinstance(number, bool):
                yield number
