"""MCP servers: as operators name them, what holds for those that requests name, and how they are reached.

Whatever a request brings, an address or credentials, makes a session of its identity's own.

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
from antwort.tools.mcp.base import ClientCredentials, ServerSpec, Transport

Approval: TypeAlias = Literal["always", "writes", "never"]


class Audience(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a server is there without being named by the request. All must fit; None fits all."""

    models: tuple[str, ...] | None = None
    """By the names that requests ask for; one that ends in `*` stands for all that begin so."""
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
    """One tool of a server, otherwise than the server says; None: as the server says, or as for the server. What its
    calls may take is in the server's `limits`.
    """

    parallel: bool = True
    """Off, its calls never overlap."""
    read_only: bool | None = None
    idempotent: bool | None = None
    require_approval: bool | None = None


class McpServer(msgspec.Struct, frozen=True):
    """An MCP server of the program's own. Requests name it by its label: `{"type": "mcp", "server_label": label}`.

    It has either a `url` or a `command`. Raises `ValueError` where that, or anything else, does not go together.
    """

    label: str
    url: str | None = None
    command: tuple[str, ...] = ()
    """A program that speaks MCP on its standard input and output."""
    transport: Literal["http", "sse"] = "http"
    """Of a `url`: streamable HTTP, or its predecessor."""
    env: Mapping[str, str] = {}
    """Of a `command`: more environment. Of this process's own it gets only what programs need to run."""
    folder: str | None = None
    description: str | None = None
    """What models are told of it, in the place of what it says itself."""
    headers: Mapping[str, str] = {}
    token: str | None = None
    """Sent as a bearer token."""
    oauth: ClientCredentials | None = None
    authorization: Literal["own", "request"] = "own"
    """`request`: it is logged in to with the `authorization` that a request brings."""
    sessions: Literal["shared", "identity"] = "shared"
    allowed_tools: tuple[str, ...] | None = None
    require_approval: Approval = "never"
    """Which calls the client must approve, whatever the request says; `writes`: those of tools that do not say that
    they change nothing, or once did not."""
    standing: Audience | None = None
    """For whom it is there without being named; None: for nobody."""
    connect: float = 30.0
    list_age: float = 300.0
    limits: ToolLimits | None = None
    """What its calls may take; None: as the calls of other tools."""
    tools: Mapping[str, McpToolPolicy] = {}

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise ValueError(f"The MCP server {self.label!r} {problem}.")

    def __repr__(self) -> str:
        """Without the rest: that may be what it is logged in to with."""
        return f"McpServer({self.label!r})"

    @property
    def way(self) -> Transport:
        return "stdio" if self.command else self.transport


def _problem(server: McpServer) -> str | None:
    if not re.fullmatch(LABEL, server.label):
        return f"needs another label: {LABEL_IN_WORDS}"
    if server.label == HOUSE_LABEL:
        return "needs another label: calls that are refused show under it"
    if _is_text(server.command):
        return "has a command that is one text; write a tuple of the program and its arguments"
    if bool(server.url) == bool(server.command):
        return "needs either a url or a command"
    return _problem_of_place(server) or _problem_of_login(server)


def _problem_of_place(server: McpServer) -> str | None:
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
    return None


def _problem_of_login(server: McpServer) -> str | None:
    logins = (server.token is not None, server.oauth is not None, server.authorization == "request")
    if sum(logins) > 1:
        return "has more than one of token, oauth and authorization='request'"
    if server.command and (any(logins) or server.headers):
        return "has a command, and cannot be logged in to: give its credentials in env"
    if any(logins) and any(name.lower() == "authorization" for name in server.headers):
        return "has an Authorization header beside another way to log in"
    return None


def _is_text(command: object) -> bool:
    return isinstance(command, str)


# ---- what a request may bring ----

MAX_HEADERS = 32
"""Headers of one declaration."""
MAX_HEADER_CHARACTERS = 8 * 1024
"""Characters of a header's name and value."""
MAX_HEADERS_CHARACTERS = 32 * 1024
"""Of all of them."""

_NEVER = (
    # HTTP's own, and what only means something between two neighbours
    *("connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("accept", "accept-encoding", "content-*", "proxy-*", "range", "user-agent", "via"),
    # the protocol's own
    *("last-event-id", "mcp-*"),
)
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[!-~]([ -~]*[!-~])?")
_SCHEME = re.compile("(bearer|basic|dpop) +[!-~]", re.IGNORECASE)


class HeaderRules:
    """Names in any case; one that ends in `*` stands for all that begin so. What is denied goes before."""

    def __init__(self, allow: Sequence[str] = ("*",), deny: Sequence[str] = ()) -> None:
        self._allow = tuple(name.lower() for name in allow)
        self._deny = (*_NEVER, *(name.lower() for name in deny))

    def check(self, declared: McpTool) -> dict[str, str]:
        """The headers to send for the declaration: its `headers`, and its `authorization` as one of them. Raises
        `InvalidField`, naming a field of the declaration; no message repeats a value.
        """
        headers = {} if declared.headers is UNSET else declared.headers
        self._check_size(headers)
        for name, value in headers.items():
            self._check_header(name, value)
        if len({name.lower() for name in headers}) < len(headers):
            raise InvalidField("headers", "a header is there twice.")
        if declared.authorization is UNSET:
            return dict(headers)
        if any(name.lower() == "authorization" for name in headers):
            raise InvalidField("authorization", "is in 'headers', too. Send one of them.")
        if not self._lets("Authorization"):
            raise InvalidField("authorization", "may not be sent to a server.")
        return {**headers, "Authorization": _authorization(declared.authorization)}

    def _lets(self, name: str) -> bool:
        return _is_among(name, self._allow) and not _is_among(name, self._deny)

    def _check_size(self, headers: Mapping[str, str]) -> None:
        if len(headers) > MAX_HEADERS:
            raise InvalidField("headers", f"{len(headers)} headers; at most {MAX_HEADERS} are allowed.")
        if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADERS_CHARACTERS:
            raise InvalidField("headers", f"longer than {MAX_HEADERS_CHARACTERS} characters together.")

    def _check_header(self, name: str, value: str) -> None:
        if not _NAME.fullmatch(name) or len(name) > 256:
            raise InvalidField("headers", "a name is not one that a header can have.")
        where = f"headers.{name}"
        if not self._lets(name):
            raise InvalidField(where, "this header may not be sent to a server.")
        if len(value) > MAX_HEADER_CHARACTERS:
            raise InvalidField(where, f"longer than {MAX_HEADER_CHARACTERS} characters.")
        if value and not _VALUE.fullmatch(value):
            raise InvalidField(where, "only printable ASCII, without spaces around it, can be sent.")


def _authorization(token: str) -> str:
    """A token is sent as a bearer's; what says itself what it is, as it is."""
    if len(token) > MAX_HEADER_CHARACTERS:
        raise InvalidField("authorization", f"longer than {MAX_HEADER_CHARACTERS} characters.")
    if not _VALUE.fullmatch(token):
        raise InvalidField("authorization", "only printable ASCII, without spaces around it, can be sent.")
    return token if _SCHEME.match(token) else f"Bearer {token}"


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    name = name.lower()
    return any(name.startswith(text[:-1]) if text.endswith("*") else name == text for text in patterns)


class McpPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for servers that requests name by address, and for all sessions."""

    declared: bool = False
    """Whether requests may name servers by address at all."""
    reach: AddressPolicy = msgspec.field(default_factory=AddressPolicy)
    """Which addresses they may name; unless it says otherwise, public ones over https."""
    headers: HeaderRules = msgspec.field(default_factory=HeaderRules)
    """Which headers they may have sent."""
    require_approval: Literal["always", "never"] = "always"
    """What holds where the request does not say."""
    force_approval: bool = False
    """Whether it holds whatever the request says, where it is `always`."""
    connect: float = 10.0
    largest: int = 16 * 2**20
    """Bytes of one message of a server, also of the program's own."""
    unsolicited: int = 2**20
    """Bytes that a server may send unasked, at once and in each four seconds; the program's own may send four times
    that."""
    sessions: int = 256
    """How many sessions that requests have brought are open at once."""
    idle: float = 600.0
    """Seconds that a session may be idle before it is closed."""


# ---- how a server is reached: in whose name, and with which credentials ----

_OWN_SHARE = 4
"""How much more an operator's own server may send unasked: it is chatty, not hostile."""


def base_spec(server: McpServer, policy: McpPolicy) -> ServerSpec:
    """How a server of the operator's own is reached, as far as no request has a say in it."""
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
        unsolicited=policy.unsolicited * _OWN_SHARE,
    )


def own_spec(server: McpServer, base: ServerSpec, declared: McpTool, identity: Identity) -> ServerSpec:
    """Raises `InvalidField` for what a request may not say of this server."""
    _check_place(server, declared)
    if (brought := _brought(server, declared)) is not None:
        return replace(base, headers={**base.headers, "Authorization": brought}, owner=_owner(identity))
    is_theirs = server.sessions == "identity" or server.authorization == "request"
    return replace(base, owner=_owner(identity)) if is_theirs else base


def untrusted_spec(declared: McpTool, identity: Identity, policy: McpPolicy) -> ServerSpec:
    """Raises `InvalidField` where the server, or a header for it, may not be named."""
    assert isinstance(declared.server_url, str), "a server by its address"
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
        transport=_guess(declared.server_url),
        url=place.url,
        headers=policy.headers.check(declared),
        is_untrusted=True,
        owner=_owner(identity),
        connect=policy.connect,
        largest=policy.largest,
        unsolicited=policy.unsolicited,
    )


def remembered(declared: McpTool) -> McpTool:
    """What of a declaration is needed to reach the server again."""
    return McpTool(
        server_label=declared.server_label,
        server_url=declared.server_url,
        authorization=declared.authorization,
        headers=declared.headers,
    )


def _owner(identity: Identity) -> tuple[str, str]:
    return identity.tenant, identity.owner


def _bearer(token: str) -> str:
    return token if token[:7].lower() == "bearer " else f"Bearer {token}"


def _guess(url: str) -> Transport:
    """A request does not say which: by custom, those of the older kind are called so."""
    return "sse" if urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


# ---- what a request says of the operator's servers ----


def _check_place(server: McpServer, declared: McpTool) -> None:
    if declared.connector_id not in (UNSET, server.label):  # some clients must say one
        raise _unexpected("connector_id", f"{server.label!r} is a server of its own and no connector; leave it out.")
    if declared.server_url is UNSET:
        return
    if server.url is None or declared.server_url.rstrip("/") != server.url.rstrip("/"):
        raise _unexpected("server_url", f"{server.label!r} is a server of the operator's; leave its address out.")


def _brought(server: McpServer, declared: McpTool) -> str | None:
    """The credentials in the request. Other headers would tell the operator's server what only the operator may."""
    if server.authorization == "request":
        return next(iter(_ONLY_LOGIN.check(declared).values()), None)
    for field in ("authorization", "headers"):
        if getattr(declared, field):
            raise _unexpected(field, f"{server.label!r} is logged in to by this server itself; leave it out.")
    return None


_ONLY_LOGIN = HeaderRules(allow=("Authorization",))


def _unexpected(field: str, problem: str) -> InvalidField:
    return InvalidField(field, problem, code="unexpected_parameter")
