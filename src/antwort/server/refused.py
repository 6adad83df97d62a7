"""What comes in and never becomes a request, and what is answered to it."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from antwort.errors import AntwortError
from antwort.server.errors import failure


class Refused(msgspec.Struct, frozen=True):
    """What came and never became a request."""

    request_id: str
    error: AntwortError
    seconds: float
    method: str = "-"
    path: str = "-"
    """Both as far as they are known."""


def nobody_asks(_: Refused) -> None:
    """Nobody wants to know."""


def refusal(refused: Refused, *, strict: bool) -> bytes:
    """The answer, whole. It is the last on its connection."""
    sent = failure(refused.error, strict=strict)
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(sent.body)),
        (b"x-request-id", refused.request_id.encode()),
        *sent.headers,
        (b"connection", b"close"),
    ]
    return b"".join([STATUS_LINE[sent.status], *(b"%b: %b\r\n" % field for field in fields), b"\r\n", sent.body])
