"""What a request to a server carries, by the version that was agreed on, and what an answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from antwort.tools.base import Progress
from antwort.tools.mcp.base import CallOutcome, ServerUnavailable
from antwort.tools.mcp.decoding import AT_ONCE, TooHeavy, decode

IDEMPOTENCY_KEY = "antwort/idempotency-key"
"""The entry of a call's `_meta` that is the same for every attempt at it."""
HEADER_MISMATCH = -32020
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_INPUT = "The tool asked for input in the middle of its call, which nobody here can give."
NOT_AN_ANSWER = "The MCP server did not answer as one."
TOO_LONG = "The MCP server's answer is too long."
BROKEN = "The connection to the MCP server ended before the answer; whether the tool has run is not known."
TOO_CURIOUS = "The MCP server asks for too much in the middle of a call."
UNAUTHORIZED = "The MCP server wants other credentials."

Report: TypeAlias = Callable[[Progress], None]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What the handshake with a server has settled."""

    version: str
    is_modern: bool
    """Whether each request says by itself who asks, and whether to close its stream is to cancel it."""
    meta: Mapping[str, Any] = {}
    """What every request carries in `_meta`."""
    instructions: str | None = None
    tells_of_changes: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments` is known to be a JSON object, and `said` is what it says."""

    name: str
    arguments: msgspec.Raw
    said: Mapping[str, Any]
    key: str
    progress: Report | None = None
    schema: Mapping[str, Any] | None = None
    """What the tool takes, as its server says; None where it has not said."""
    is_repeatable: bool = False
    """Whether the tool says that to run it twice does no more than once."""
    headers: Mapping[str, str] = {}
    """What newer versions of the protocol repeat of it in the head of the request."""

    def params(self, agreed: Agreement, token: str | None) -> dict[str, Any]:
        """As they are sent. With `token`, the server is asked to tell how far it has come."""
        meta = {**agreed.meta, IDEMPOTENCY_KEY: self.key}
        if token is not None:
            meta["progressToken"] = token
        return {"name": self.name, "arguments": self.arguments, "_meta": meta}


class Unsent(Exception):
    """The request has certainly not been carried out: it can be made again, over a fresh session. `status` is that of a
    server which has refused it as it refuses sessions that it does not know.
    """

    def __init__(self, status: int | None = None) -> None:
        super().__init__("not sent" if status is None else f"refused with HTTP status {status}")
        self.status = status


def refused_with(status: int) -> ServerUnavailable:
    return ServerUnavailable(f"The MCP server answered with HTTP status {status}.")


_LONGEST_WORDS = 4096
"""Characters of what a server says about a refusal."""


class Refused(Exception):
    """The server has answered with an error, in its own words. `code` is JSON-RPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the server refused with {code}")
        self.code = code
        self.message = message[:_LONGEST_WORDS]


_decode = msgspec.json.Decoder().decode


def checked_arguments(arguments: str) -> tuple[msgspec.Raw, dict[str, Any]]:
    """As they will be sent, and what they say. Raises `ValueError`: what is sent in a message must not end it."""
    text = arguments.strip() or "{}"
    try:
        said = _decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError("the arguments are not JSON") from exc
    if not isinstance(said, dict):
        raise ValueError("the arguments are not a JSON object")
    return msgspec.Raw(text.encode()), said


async def decoded(data: bytes) -> dict[str, Any]:
    """As `message_in`, without keeping others waiting."""
    return message_in(data) if len(data) <= AT_ONCE else await asyncio.to_thread(message_in, data)


def message_in(data: bytes) -> dict[str, Any]:
    """One message of a server's. Raises `ServerUnavailable`."""
    try:
        message = decode(data)
    except TooHeavy as exc:
        raise ServerUnavailable(TOO_LONG) from exc
    except ValueError as exc:
        raise ServerUnavailable(NOT_AN_ANSWER) from exc
    if not isinstance(message, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    return message


def result_of(message: Mapping[str, Any]) -> object:
    """What a response says. Raises `Refused` when it is an error."""
    if "error" not in message:
        return message.get("result")
    error = message["error"]
    if not isinstance(error, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    code, text = error.get("code"), error.get("message")
    raise Refused(code if isinstance(code, int) else 0, text if isinstance(text, str) else "")


_DICTS = frozenset((dict,))


def outcome_of(result: object) -> CallOutcome:
    """What `tools/call` was answered with. Raises `ServerUnavailable` when it is nothing of the kind."""
    if not isinstance(result, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    said = result.get
    if said("resultType") == "input_required":
        raise ServerUnavailable(UNSUPPORTED_INPUT)
    content, structured = said("content"), said("structuredContent")
    if not isinstance(content, list):
        if content is not None or structured is None:
            raise ServerUnavailable(NOT_AN_ANSWER)
        content = ()
    if not _DICTS.issuperset(map(type, content)):
        content = [part for part in content if isinstance(part, dict)]
    return CallOutcome(content=tuple(content), structured=structured, is_error=said("isError") is True)


def refusal(refused: Refused) -> CallOutcome:
    """A call that the server refused (an unknown name, arguments of another kind), as the tool's own failure."""
    text = refused.message or "The MCP server refused the call."
    return CallOutcome(content=({"type": "text", "text": text},), is_error=True)


def progress_of(params: object) -> tuple[object, Progress] | None:
    """The token of a notification of progress, and what it says."""
    if not isinstance(params, dict) or (done := _number(params.get("progress"))) is None:
        return None
    message = params.get("message")
    text = message if isinstance(message, str) else None
    return params.get("progressToken"), Progress(message=text, done=done, total=_number(params.get("total")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # digits without end, which are whole numbers all the same
        return None
