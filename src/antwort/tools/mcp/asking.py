"""One request of ours over HTTP: what goes in its head, and what its answer says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin

import msgspec

from antwort.net.client import HttpResponse
from antwort.net.response import InvalidResponse
from antwort.net.ssrf import AddressNotAllowed, parse_url
from antwort.tools.mcp.addresses import canonical_address
from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from antwort.tools.mcp.decoding import AT_ONCE
from antwort.tools.mcp.messages import (
    BROKEN,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_AN_ANSWER,
    TOO_LONG,
    UNAUTHORIZED,
    Report,
    decoded,
    message_in,
    result_of,
)

EVENTS = "text/event-stream"
_BUSY = (429, 502, 503, 504)
_REFUSAL_CAP = 64 * 1024
_HTTPS_OWN = frozenset(
    ("host", "user-agent", "accept-encoding", "connection", "content-length", "transfer-encoding", "keep-alive", "te")
)
"""What the client below writes itself."""


class Question(msgspec.Struct, frozen=True):
    """A request of ours, as it is sent, and what its answer may be."""

    number: str
    body: bytes
    headers: Mapping[str, str]
    is_repeatable: bool
    largest: int
    report: Report | None = None
    """Who hears how far it has come, where that is asked for."""


class Moved(Exception):
    """The request was not carried out: it belongs to another place of the same server."""

    def __init__(self, target: str) -> None:
        super().__init__("moved")
        self.target = target


class Busy(ServerUnavailable):
    """It may well go on with the stream a moment later."""


def check_stream(reply: HttpResponse) -> None:
    """Whether it goes on with a stream. Raises `Busy`, `Unauthorized`, `ServerUnavailable`."""
    if reply.status in _BUSY:
        raise Busy(BROKEN)
    if reply.status in (401, 403):
        raise Unauthorized(UNAUTHORIZED)
    if reply.status != 200 or reply.headers.media_type != EVENTS:
        raise ServerUnavailable(BROKEN)


def moved(origin: str, target: str, reply: HttpResponse) -> Moved | None:
    """None for a redirect that leads to another address, or would have another request made. An operator's rules go by
    the address, so a redirect must not lead around them.
    """
    if reply.status not in (307, 308) or (location := reply.headers.get("location")) is None:
        return None
    try:
        place = parse_url(urljoin(origin + target, location))
        is_same = canonical_address(origin + target) == canonical_address(place.origin + place.target)
    except (ValueError, AddressNotAllowed):
        return None
    return Moved(place.target) if is_same and place.origin == origin else None


def merged(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Both; ours where they have the same name, in whatever case, and nothing that belongs to HTTP itself."""
    names = {name.lower() for name in ours} | _HTTPS_OWN
    return {**{name: value for name, value in theirs.items() if name.lower() not in names}, **ours}


async def read_message(reply: HttpResponse, largest: int) -> dict[str, Any]:
    """The one that is the whole answer."""
    try:
        data = await reply.read(largest)
    except InvalidResponse as exc:
        raise ServerUnavailable(TOO_LONG) from exc
    return message_in(data) if len(data) <= AT_ONCE else await decoded(data)


async def words_of(reply: HttpResponse) -> dict[str, Any]:
    """Of a refusal, if it has any."""
    with suppress(InvalidResponse, ServerUnavailable):
        return await decoded(await reply.read(_REFUSAL_CAP))
    return {}


def is_of_the_call(message: Mapping[str, Any], number: str) -> bool:
    """Whether it is the call that was refused, and not the session that it came by."""
    error = message["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return message.get("id") == number or code in (INVALID_PARAMS, METHOD_NOT_FOUND)


def answer_in(message: Mapping[str, Any], number: str) -> object:
    if message.get("id") == number and "result" in message and "error" not in message:
        return message["result"]  # as nearly all are
    is_refused = "error" in message
    if message.get("id") != number and not (is_refused and message.get("id") is None):
        raise ServerUnavailable(NOT_AN_ANSWER)
    if not is_refused and "result" not in message:
        raise ServerUnavailable(NOT_AN_ANSWER)
    return result_of(message)
