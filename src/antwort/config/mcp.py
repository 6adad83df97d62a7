"""What an operator can set about MCP servers: those of its own, and those that requests may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from antwort.api.wire import UNSET, UnsetType, Wire
from antwort.config.secrets import Secret
from antwort.tools.base import LABEL

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Label: TypeAlias = Annotated[str, Meta(pattern=f"^{LABEL}$")]


class OAuthSettings(Wire):
    """Logging in by OAuth, grant `client_credentials`."""

    client_id: str
    """Who logs in."""
    client_secret: Secret
    """What it logs in with."""
    scopes: tuple[str, ...] = ()
    """What it asks for."""
    token_url: str | None = None
    """Where tokens are given out; unset, where the server says."""
    issuer: str | None = None
    """Who must be the one that gives them out, as its metadata name it; unset, whomever the server names."""


class StandingSettings(Wire):
    """For whom a server is there without being named by the request. Both must fit; unset fits all."""

    models: tuple[str, ...] | None = None
    """By the names that requests ask for; one that ends in `*` stands for all that begin so."""
    subjects: tuple[str, ...] | None = None
    """By the subjects of API keys."""
    tenants: tuple[str, ...] | None = None
    """By the tenants of API keys."""


class McpToolSettings(Wire):
    """One tool of a server, otherwise than the server says."""

    timeout: Seconds | None = None
    """How long a call may take; unset, as for the server."""
    output_bytes: Count | None = None
    """How much text of a result is kept; unset, as for the server."""
    concurrency: Count | None = None
    """How many calls of it run at once; unset, as for the server."""
    parallel: bool | UnsetType = UNSET
    """Off, its calls never overlap; unset, as for the server."""
    read_only: bool | UnsetType = UNSET
    """Whether it changes nothing; unset, what the server says, unless it once said otherwise."""
    idempotent: bool | UnsetType = UNSET
    """Whether to run it twice does no more than once; unset, what the server says."""
    require_approval: bool | UnsetType = UNSET
    """Whether the client must approve its calls; unset, as for the server."""


class McpServerSettings(Wire):
    """An MCP server of the operator's. Requests name it by its label."""

    label: Label
    """What requests call it, and what its calls show under."""
    url: str | None = None
    """Its address. Or there is a `command`."""
    command: tuple[str, ...] = ()
    """A program that speaks MCP on its standard input and output, with its arguments."""
    transport: Literal["http", "sse"] = "http"
    """Of an address: streamable HTTP, or its predecessor with server-sent events."""
    env: Mapping[str, Secret] = {}
    """Of a command: more environment. Of antwort's own it gets only what programs need to run, such as `PATH`."""
    folder: str | None = None
    """Of a command: the folder to start it in."""
    description: str | None = None
    """What it is for, in the place of what it says itself."""
    headers: Mapping[str, Secret] = {}
    """Sent with every request to it."""
    token: Secret | None = None
    """Sent as a bearer token."""
    oauth: OAuthSettings | None = None
    """Or it is logged in to by OAuth."""
    authorization: Literal["own", "request"] = "own"
    """`request`: the `authorization` that a request brings is passed on instead; each identity has its own session."""
    sessions: Literal["shared", "identity"] = "shared"
    """Whether all use one session, or each identity its own: for servers that remember whom they speak with."""
    allowed_tools: tuple[str, ...] | None = None
    """Which of its tools are offered; unset, all."""
    require_approval: Literal["always", "writes", "never"] = "never"
    """Which calls the client must approve; `writes`: those of tools that do not say that they change nothing, or once
    did not. A request can ask for more approvals, never for fewer; it holds for the address as for the label."""
    standing: StandingSettings | None = None
    """For whom it is there without being named; unset, for nobody. `{}`: for all."""
    connect: Seconds = 30.0
    """How long it may take to start and connect. Requests wait for it no longer than `loop.discovery`."""
    timeout: Seconds | None = None
    """How long a call may take; unset, `tools.limits.timeout`."""
    concurrency: Count | None = None
    """How many calls of it run at once, of all its tools; unset, `tools.limits.total`."""
    output_bytes: Count | None = None
    """How much text of a result is kept; unset, `tools.limits.output_bytes`."""
    list_age: Seconds = 300.0
    """How old its list of tools may become."""
    tools: Mapping[str, McpToolSettings] = {}
    """Single tools, by their own names."""


class ReachSettings(Wire):
    """Which addresses requests may name as MCP servers. Names are looked up, and what they stand for is held against
    this each time that a connection is made."""

    allow: tuple[str, ...] = ()
    """Hosts that may be named whatever they stand for: `tools.example.com`, `*.example.com`, `10.1.0.0/16`; each with
    `:port` where only that is meant. Also over http."""
    deny: tuple[str, ...] = ()
    """Hosts that may not be named. It goes before `allow`."""
    only_allowed: bool = False
    """Whether only those in `allow` may be named."""
    http: bool = False
    """Whether public addresses may be named without TLS."""
    loopback: Literal["auto", "always", "never"] = "auto"
    """Addresses of this machine; `auto`: when the server itself listens on loopback only and asks for no keys. Where it
    asks for keys, others may come by way of a proxy."""


class McpSettings(Wire):
    """MCP servers that requests name by address, and what holds for all."""

    declared: bool = True
    """Whether requests may name servers by address at all."""
    reach: ReachSettings = ReachSettings()
    """Which addresses they may name."""
    headers_allow: tuple[str, ...] = ("*",)
    """The headers that a request may have sent to a server that it names; `X-*` for all that begin so."""
    headers_deny: tuple[str, ...] = ()
    """Those that it may not; it goes before the others. What belongs to HTTP itself, such as `Host`, is never sent."""
    require_approval: Literal["always", "never"] = "always"
    """What holds for servers that requests name by address, where they do not say."""
    force_approval: bool = False
    """Whether it holds for them whatever they say, where it is `always`."""
    sessions: Count = 256
    """How many sessions that requests have brought are open at once; beyond it, idle ones are closed, first those of
    whoever asks. Servers of the operator's that all share are not counted."""
    idle: Seconds = 600.0
    """How long a session may be idle before it is closed."""
    connect: Seconds = 10.0
    """How long a server that a request names may take to connect."""
    largest: Count = 16 * 2**20
    """The largest message of a server that is read."""
    unsolicited_bytes: Count = 2**20
    """How much a server may send that nobody asked for (log messages, requests, comments), at once and then in each
    four seconds; each message counts as at least a kilobyte. More waits, and after as much again the stream is closed.
    Your own servers have four times that, and of log messages and other notifications only the waiting."""
