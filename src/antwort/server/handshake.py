"""Requests that want their connection to speak something else: which may, and what is left of others. No I/O."""

from __future__ import annotations

from antwort.errors import BadUpgrade, RequestError, WrongSocketVersion

Headers = list[tuple[bytes, bytes]]


def wants_socket(method: str, headers: Headers) -> bool:
    """What asks for anything else is a request as any other."""
    return method == "GET" and [value.strip().lower() for name, value in headers if name == b"upgrade"] == [
        b"websocket"
    ]


def fault_of(http_version: str, headers: Headers) -> RequestError | None:
    """What is wrong with a request for a WebSocket, as far as it is not about single headers of it (RFC 6455, 4.2)."""
    if http_version != "1.1":
        return BadUpgrade(f"A WebSocket is asked for over HTTP/1.1, not HTTP/{http_version}.")
    versions = [value for name, value in headers if name == b"sec-websocket-version"]
    if versions != [b"13"]:
        return WrongSocketVersion()
    if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers):
        return BadUpgrade("A request for a WebSocket has no body.")
    return None


def without_upgrade(method: str, url: bytes, http_version: str, headers: Headers) -> bytes:
    """The head of the request, which stays with HTTP."""
    kept = [(name, _but_upgrade(value) if name == b"connection" else value) for name, value in headers]
    fields = [b"%b: %b\r\n" % field for field in kept if field[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method.encode(), url, http_version.encode(), b"".join(fields))


def _but_upgrade(connection: bytes) -> bytes:
    return b", ".join([token for token in connection.split(b",") if token.strip().lower() != b"upgrade"])
