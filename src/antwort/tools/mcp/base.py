"""The types that sessions with MCP servers take and return, and the errors that they raise.

Schemas, annotations and contents stay decoded JSON, as the server sent them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import unquote

import msgspec

from antwort.net.ssrf import ParsedUrl, parse_url, unmap_ipv4
from antwort.tools.base import Unanswered

TransportName: TypeAlias = Literal["http", "sse", "stdio"]
"""Streamable HTTP, its predecessor, or a subprocess."""


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth 2.1, grant `client_credentials`. The server's metadata name the token endpoint."""

    client_id: str
    client_secret: str
    scopes: tuple[str, ...] = ()
    token_url: str | None = None
    """The token endpoint, for servers that do not publish it."""
    issuer: str | None = None
    """The only issuer that gets the credentials; None: the one in the server's metadata."""

    def __repr__(self) -> str:
        return f"ClientCredentials({self.client_id!r})"


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How a server is reached. It holds credentials in clear, and is never shown or stored."""

    label: str
    transport: TransportName = "http"
    url: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    folder: str | None = None
    headers: Mapping[str, str] = {}
    oauth: ClientCredentials | None = None
    is_untrusted: bool = False
    """Whether the address comes from a request. Then each request and connection is checked by the address policy."""
    owner: tuple[str, str] | None = None
    """Tenant and subject of a session that is not shared; None: all share the session."""
    connect: float = 10.0
    """Timeout in seconds of the connection and the handshake."""
    list_age: float = 300.0
    """Seconds after which the cached list of tools is refreshed."""
    largest: int = 16 * 2**20
    """Longest message of the server in bytes; a call with a longer answer fails."""
    unsolicited: int = 2**20
    """Bytes that the server may send unsolicited, at once and then in each four seconds."""

    @cached_property
    def key(self) -> bytes:
        """Identify a session: by its server, credentials, owner and limits."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()

    @cached_property
    def server_id(self) -> str:
        """Identify a server independently of its label and of the spelling of its address. It is a digest, because an
        address may hold a key. A subprocess is identified by its label.
        """
        return _digest(f"program {self.label}") if self.transport == "stdio" else server_id_of(self.url)

    def __repr__(self) -> str:
        return f"ServerSpec({self.label!r})"


@lru_cache(maxsize=256)
def server_id_of(url: str) -> str:
    """Return the `ServerSpec.server_id` of a server at this address. Raises `AddressNotAllowed`."""
    return _digest(canonical_address(url))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server lists it."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] = {}
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None

    @property
    def reads(self) -> bool:
        """Whether it is annotated as read-only."""
        return self.annotations is not None and self.annotations.get("readOnlyHint") is True

    @property
    def is_repeatable(self) -> bool:
        """Whether it is annotated as read-only or idempotent, so that a call may be sent again."""
        return self.reads or (self.annotations is not None and self.annotations.get("idempotentHint") is True)


class ServerTools(msgspec.Struct, frozen=True, kw_only=True):
    """What a server offers. An unchanged list is the same object."""

    tools: tuple[ServerTool, ...] = ()
    instructions: str | None = None


class McpCallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `tools/call`."""

    content: Sequence[Mapping[str, Any]] = ()
    structured: Any = None
    is_error: bool = False


class ServerUnavailable(Unanswered):
    """The server cannot be reached, or its answer is invalid. The text is for the model and the client: it names no
    address and repeats nothing that the server sent. `details` are for the operator only: why a subprocess does not
    run, and what it wrote last.
    """

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details

    def again(self, more: str = "") -> Self:
        """Return a new error of the same kind, to be raised to somebody else."""
        return type(self)(f"{self}{more}", self.details)


class Unauthorized(ServerUnavailable):
    """The server wants other credentials."""


class Forbidden(Unauthorized):
    """The server answered with HTTP status 403: it wants other credentials, or forbids the method."""


class NotReached(ServerUnavailable):
    """The address is not allowed, or no server answers there."""


# ---- addresses ----

_USUAL_PORTS = (80, 443)
_MOST_DECODINGS = 5
"""Most levels of percent-encoding of a path that are decoded."""


def canonical_address(url: str) -> str:
    """Return host, port and path of an address in one spelling. Raises `AddressNotAllowed`.

    The scheme, the usual ports and the query are left out, because they seldom lead to another server. In the path,
    percent-encoding, case, dots, empty segments, parameters and a trailing slash are normalized.
    """
    place = parse_url(url)
    port = "" if place.port in _USUAL_PORTS else f":{place.port}"
    return f"{_host(place)}{port}/{_path(place.target.partition('?')[0])}"


def _host(place: ParsedUrl) -> str:
    """Return a host; all names and addresses of this machine are one."""
    if place.address is None:
        return "localhost" if place.is_localhost else place.host
    address = unmap_ipv4(place.address)
    return "localhost" if address.is_loopback or address.is_unspecified else str(address)


def _path(path: str) -> str:
    for _ in range(_MOST_DECODINGS):
        path = unquote(path)
    segments: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in ("", "."):
            segments.append(name.casefold())
    return "/".join(segments)
