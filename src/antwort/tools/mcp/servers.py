"""MCP servers: the operator's, the policy for those that requests name, and the specs of sessions with both.

An address or credentials in a request lead to a session of that identity alone.

docs = McpServer("docs", url="https://docs.example.com/mcp", token="…")
files = McpServer("files", command=("npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/files"))
engine = Engine(provider, executors=[McpExecutor([docs, files])])
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, parse_url
from antwort.tools.base import HOUSE_LABEL, LABEL, LABEL_IN_WORDS
from antwort.tools.limits import ToolLimits
from antwort.tools.mcp.base import ClientCredentials, ServerSpec, TransportName

ApprovalRule: TypeAlias = Literal["always", "writes", "never"]


class Audience(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use a server that the request does not name. All fields must match; None matches all."""

    models: tuple[str, ...] | None = None
    """Model names as in requests; a trailing `*` stands for any ending."""
    subjects: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None

    def has(self, model: str, identity: Identity) -> bool:
        if self.models is not None and not any(_fits(model, pattern) for pattern in self.models):
            return False
        is_subject = self.subjects is None or identity.owner in self.subjects
        return is_subject and (self.tenants is None or identity.tenant in self.tenants)


def _fits(model: str, pattern: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


class McpToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one tool that override the server's. None: as the server says. The limits of its calls are in
    `McpServer.limits`.
    """

    parallel: bool = True
    """Off, its calls never overlap."""
    read_only: bool | None = None
    idempotent: bool | None = None
    require_approval: bool | None = None


class McpServer(msgspec.Struct, frozen=True):
    """An MCP server of the operator's. Requests name it by its label: `{"type": "mcp", "server_label": label}`.

    It has either a `url` or a `command`. Raises `ValueError` for fields that contradict each other.
    """

    label: str
    url: str | None = None
    command: tuple[str, ...] = ()
    """A program that speaks MCP on its standard input and output."""
    transport: Literal["http", "sse"] = "http"
    """With a `url`: streamable HTTP, or its predecessor."""
    env: Mapping[str, str] = {}
    """With a `command`: more environment. Of the variables of this process it gets only those that programs need."""
    folder: str | None = None
    description: str | None = None
    """Shown to models instead of the server's own instructions."""
    headers: Mapping[str, str] = {}
    token: str | None = None
    """Sent as a bearer token."""
    oauth: ClientCredentials | None = None
    authorization: Literal["own", "request"] = "own"
    """`request`: the `authorization` of each request is sent."""
    sessions: Literal["shared", "identity"] = "shared"
    allowed_tools: tuple[str, ...] | None = None
    require_approval: ApprovalRule = "never"
    """Which calls the client must approve, whatever the request says; `writes`: calls of tools that are not listed as
    read-only, or once were not."""
    standing: Audience | None = None
    """Who may use it without naming it; None: it must be named."""
    connect: float = 30.0
    list_age: float = 300.0
    limits: ToolLimits | None = None
    """Limits of its calls; None: those of all tools."""
    tools: Mapping[str, McpToolPolicy] = {}

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise ValueError(f"The MCP server {self.label!r} {problem}.")

    def __repr__(self) -> str:
        """Only the label, because other fields hold credentials."""
        return f"McpServer({self.label!r})"

    @property
    def way(self) -> TransportName:
        return "stdio" if self.command else self.transport


def _problem(server: McpServer) -> str | None:
    if not re.fullmatch(LABEL, server.label):
        return f"needs another label: {LABEL_IN_WORDS}"
    if server.label == HOUSE_LABEL:
        return "needs another label: calls that are refused show under it"
    command: object = server.command
    if isinstance(command, str):
        return "has a command that is one text; write a tuple of the program and its arguments"
    if bool(server.url) == bool(server.command):
        return "needs either a url or a command"
    if server.transport not in ("http", "sse"):
        return f"has a transport that is none: {server.transport!r}; there are 'http' and 'sse'"
    if server.command and server.transport != "http":
        return "has a command, which speaks on its own input and output: leave transport out"
    for name in ("connect", "list_age"):
        if not 0 < getattr(server, name) < math.inf:
            return f"has a {name} that is no number of seconds, more than 0"
    try:
        parse_url(server.url or "https://example.com/")
    except AddressNotAllowed as exc:
        return f"has a url that cannot be asked: it {str(exc).rstrip('.')}"
    logins = (server.token is not None, server.oauth is not None, server.authorization == "request")
    if sum(logins) > 1:
        return "has more than one of token, oauth and authorization='request'"
    if server.command and (any(logins) or server.headers):
        return "has a command, and cannot be logged in to: give its credentials in env"
    if any(logins) and any(name.lower() == "authorization" for name in server.headers):
        return "has an Authorization header beside another way to log in"
    return None


# ---- headers of requests ----

MAX_HEADERS = 32
"""Most headers of one declaration."""
MAX_HEADER_CHARACTERS = 8 * 1024
"""Longest value of a header."""
MAX_HEADERS_CHARACTERS = 32 * 1024
"""Longest names and values of all headers together."""

_NEVER = (
    # headers of HTTP itself, and hop-by-hop headers
    *("connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("accept", "accept-encoding", "content-*", "proxy-*", "range", "user-agent", "via"),
    # headers of MCP
    *("last-event-id", "mcp-*"),
)
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[!-~]([ -~]*[!-~])?")
_SCHEME = re.compile("(bearer|basic|dpop) +[!-~]", re.IGNORECASE)


class HeaderRules:
    """Rules for the headers that a request may send to a server.

    Names match in any case, and a trailing `*` stands for any ending. `deny` overrides `allow`.
    """

    def __init__(self, allow: Sequence[str] = ("*",), deny: Sequence[str] = ()) -> None:
        self._allow = tuple(name.lower() for name in allow)
        self._deny = (*_NEVER, *(name.lower() for name in deny))

    def check(self, declared: McpTool) -> dict[str, str]:
        """Return the headers to send for a declaration: its `headers`, and its `authorization` as one of them. Raises
        `InvalidField` with a field of the declaration; no message repeats a value.
        """
        headers = {} if declared.headers is UNSET else dict(declared.headers)
        if len(headers) > MAX_HEADERS:
            raise InvalidField("headers", f"{len(headers)} headers; at most {MAX_HEADERS} are allowed.")
        if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADERS_CHARACTERS:
            raise InvalidField("headers", f"longer than {MAX_HEADERS_CHARACTERS} characters together.")
        for name, value in headers.items():
            if not _NAME.fullmatch(name) or len(name) > 256:
                raise InvalidField("headers", "a name is not one that a header can have.")
            if not self._allows(name):
                raise InvalidField(f"headers.{name}", "this header may not be sent to a server.")
            _check_value(f"headers.{name}", value, may_be_empty=True)
        names = {name.lower() for name in headers}
        if len(names) < len(headers):
            raise InvalidField("headers", "a header is there twice.")
        if declared.authorization is not UNSET:
            if "authorization" in names:
                raise InvalidField("authorization", "is in 'headers', too. Send one of them.")
            if not self._allows("Authorization"):
                raise InvalidField("authorization", "may not be sent to a server.")
            token = declared.authorization
            _check_value("authorization", token)
            headers["Authorization"] = token if _SCHEME.match(token) else f"Bearer {token}"
        return headers

    def _allows(self, name: str) -> bool:
        return _is_among(name, self._allow) and not _is_among(name, self._deny)


def _check_value(field: str, value: str, *, may_be_empty: bool = False) -> None:
    if len(value) > MAX_HEADER_CHARACTERS:
        raise InvalidField(field, f"longer than {MAX_HEADER_CHARACTERS} characters.")
    if not _VALUE.fullmatch(value) and not (may_be_empty and not value):
        raise InvalidField(field, "only printable ASCII, without spaces around it, can be sent.")


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    name = name.lower()
    return any(_fits(name, pattern) for pattern in patterns)


class McpPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for servers that requests name by address, and for all sessions."""

    declared: bool = False
    """Whether requests may name servers by address at all."""
    reach: AddressPolicy = msgspec.field(default_factory=AddressPolicy)
    """Which addresses they may name; by default, public ones over https."""
    headers: HeaderRules = msgspec.field(default_factory=HeaderRules)
    """Which headers they may send."""
    require_approval: Literal["always", "never"] = "always"
    """The default for requests that do not set it."""
    force_approval: bool = False
    """Whether `always` cannot be overridden by requests."""
    connect: float = 10.0
    largest: int = 16 * 2**20
    """Longest message in bytes, also of the operator's servers."""
    unsolicited: int = 2**20
    """Bytes that a server may send unsolicited, at once and in each four seconds; the operator's servers may send four
    times as much."""
    sessions: int = 256
    """Most open sessions that requests have brought."""
    idle: float = 600.0
    """Seconds that a session may be idle before it is closed."""


# ---- specs ----

_TRUSTED_FACTOR = 4
"""How much more an operator's server may send unsolicited: it is trusted."""


def base_spec(server: McpServer, policy: McpPolicy) -> ServerSpec:
    """Return the spec of an operator's server, without the parts that depend on a request."""
    login = {} if server.token is None else {"Authorization": _bearer(server.token)}
    return ServerSpec(
        label=server.label,
        transport=server.way,
        url=server.url or "",
        command=server.command,
        env=dict(server.env),
        folder=server.folder,
        headers={**server.headers, **login},
        oauth=server.oauth,
        connect=server.connect,
        list_age=server.list_age,
        largest=policy.largest,
        unsolicited=policy.unsolicited * _TRUSTED_FACTOR,
    )


def own_spec(server: McpServer, base: ServerSpec, declared: McpTool, identity: Identity) -> ServerSpec:
    """Return the spec of an operator's server for a request. Raises `InvalidField` for fields that do not apply."""
    if declared.connector_id not in (UNSET, server.label):  # some clients cannot leave it out
        raise _unexpected("connector_id", f"{server.label!r} is a server of its own and no connector; leave it out.")
    url = declared.server_url
    if url is not UNSET and (server.url is None or url.rstrip("/") != server.url.rstrip("/")):
        raise _unexpected("server_url", f"{server.label!r} is a server of the operator's; leave its address out.")
    owner = (identity.tenant, identity.owner)
    if server.authorization == "request":
        login = next(iter(_AUTHORIZATION_ONLY.check(declared).values()), None)
        headers = base.headers if login is None else {**base.headers, "Authorization": login}
        return replace(base, headers=headers, owner=owner)
    for field in ("authorization", "headers"):
        if getattr(declared, field):
            raise _unexpected(field, f"{server.label!r} is logged in to by this server itself; leave it out.")
    return replace(base, owner=owner) if server.sessions == "identity" else base


def untrusted_spec(declared: McpTool, identity: Identity, policy: McpPolicy) -> ServerSpec:
    """Return the spec of a server that a request names by address. Raises `InvalidField` if the address or a header is
    not allowed.
    """
    assert isinstance(declared.server_url, str), "the caller has checked that"
    if not policy.declared:
        problem = "servers are not named by address here; use the label of one that the operator offers."
        raise InvalidField("server_url", problem, code="unsupported_parameter")
    if declared.connector_id is not UNSET:
        problem = "there are no connectors here; the server has an address, leave it out."
        raise InvalidField("connector_id", problem, code="unexpected_parameter")
    try:
        place = policy.reach.check(declared.server_url)
    except AddressNotAllowed as exc:
        raise InvalidField("server_url", str(exc), code="server_not_allowed") from exc
    return ServerSpec(
        label=declared.server_label,
        transport=_guess_transport(declared.server_url),
        url=place.url,
        headers=policy.headers.check(declared),
        is_untrusted=True,
        owner=(identity.tenant, identity.owner),
        connect=policy.connect,
        largest=policy.largest,
        unsolicited=policy.unsolicited,
    )


def needed_to_reach(declared: McpTool) -> McpTool:
    """Return a declaration with only the fields that are needed to reach the server again."""
    return McpTool(
        server_label=declared.server_label,
        server_url=declared.server_url,
        authorization=declared.authorization,
        headers=declared.headers,
    )


def _bearer(token: str) -> str:
    return token if token[:7].lower() == "bearer " else f"Bearer {token}"


def _guess_transport(url: str) -> TransportName:
    """Guess the transport: by custom, the addresses of SSE servers end in `/sse`."""
    return "sse" if urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


_AUTHORIZATION_ONLY = HeaderRules(allow=("Authorization",))


def _unexpected(field: str, problem: str) -> InvalidField:
    return InvalidField(field, problem, code="unexpected_parameter")
