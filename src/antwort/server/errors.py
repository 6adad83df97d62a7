"""Errors as HTTP answers, and as messages. Every error is JSON and has the same four keys."""

from __future__ import annotations

import math

import msgspec

from antwort.api.wire import UNSET, UnsetType, Wire, encode
from antwort.errors import AntwortError, MethodNotAllowed, NotAuthenticated, ServerFault, WrongSocketVersion

Headers = list[tuple[bytes, bytes]]

_WAIT = 1.0
"""Seconds to wait where it helps and nobody knows how long."""
_LONGEST_WAIT = 120.0
"""SDKs that are told to wait longer than so many seconds do not, or come back at once."""


class ErrorDetail(Wire):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Wire):
    error: ErrorDetail


class SocketError(Wire, tag="error"):
    """An error as a message. Its headers are those that an HTTP answer would have."""

    status: int
    error: ErrorDetail
    headers: dict[str, str] | UnsetType = UNSET
    stream_id: str | UnsetType = UNSET


class Failure(msgspec.Struct, frozen=True):
    """An error as it is sent."""

    status: int
    headers: Headers
    body: bytes


def failure(error: AntwortError, *, strict: bool = False) -> Failure:
    """`strict` writes the standard's types and statuses instead of OpenAI's."""
    status = error.sent_status(strict=strict)
    return Failure(status, _headers(error), encode(ErrorBody(error=_detail(error, strict=strict))))


def socket_failure(
    error: AntwortError, *, strict: bool = False, headers: Headers | None = None, stream_id: str | None = None
) -> bytes:
    """The same for a WebSocket, on which it is a message among others. `headers`: more than those of the error."""
    hints = [*_headers(error), *(headers or ())]
    return encode(
        SocketError(
            status=error.sent_status(strict=strict),
            error=_detail(error, strict=strict),
            headers={name.decode(): value.decode() for name, value in hints} if hints else UNSET,
            stream_id=UNSET if stream_id is None else stream_id,
        )
    )


def _detail(error: AntwortError, *, strict: bool) -> ErrorDetail:
    kind = error.standard_type if strict else error.type
    return ErrorDetail(message=error.message, type=kind, param=error.param, code=error.code)


def unexpected() -> ServerFault:
    """What a client is told of a defect of ours: nothing but that it was one."""
    return ServerFault("The server failed to process the request.")


def _headers(error: AntwortError) -> Headers:
    headers: Headers = []
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if isinstance(error, NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, WrongSocketVersion):
        headers += [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
    wait = error.retry_after
    if wait is None and error.may_pass and error.status in (429, 503):
        wait = _WAIT
    if wait is not None:
        milliseconds = math.ceil(wait * 1000)
        headers.append((b"retry-after", b"%d" % math.ceil(milliseconds / 1000)))
        headers.append((b"retry-after-ms", b"%d" % milliseconds))
    # SDKs repeat some statuses of their own accord; what is wrong for good stays wrong.
    if error.may_pass is not None:
        is_worth_it = error.may_pass and (wait is None or wait <= _LONGEST_WAIT)
        headers.append((b"x-should-retry", b"true" if is_worth_it else b"false"))
    return headers
