"""The settings of a server: one tree of frozen values, in the shape of `antwort.yaml`.

The text under a field is its description in the reference and in the schema for editors; the bounds are checked when
the settings are read. Durations are in seconds and sizes in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from antwort.api.decoding import Limits as Limits  # noqa: PLC0414 - exported
from antwort.api.wire import UNSET, UnsetType, Wire, replace
from antwort.config.files import own_folder
from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret as Secret  # noqa: PLC0414 - exported
from antwort.engine.settings import BackgroundSettings as BackgroundSettings  # noqa: PLC0414 - exported
from antwort.engine.settings import EngineSettings
from antwort.engine.settings import HostedPolicy as HostedPolicy  # noqa: PLC0414 - exported
from antwort.engine.settings import LoopSettings as LoopSettings  # noqa: PLC0414 - exported
from antwort.providers.base import Capabilities
from antwort.tools.base import LABEL
from antwort.tools.limits import ToolLimits as ToolLimits  # noqa: PLC0414 - exported

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
NAME_IN_WORDS = "a name of at most 64 letters, digits, `_`, `.` and `-`"
Name: TypeAlias = Annotated[str, Meta(pattern=NAME)]
Label: TypeAlias = Annotated[str, Meta(pattern=f"^{LABEL}$")]
ToolCalling: TypeAlias = Literal["native", "constrained", "auto"]


def is_name(text: str) -> bool:
    """Return whether a backend or a key can have this name."""
    return re.fullmatch(NAME, text) is not None


class WebSocketSettings(Wire):
    """WebSocket on `/v1/responses`: many responses on one connection, one after the other."""

    enabled: bool = True
    """Off, clients are told to use HTTP (426)."""
    connections: Count = 4096
    """The most connections at once; more are refused (503)."""
    lifetime: Seconds = 3600.0
    """How long a connection may be open. A response in progress is completed first."""
    queue: Count = 16
    """Messages that are buffered on a connection while a response is in progress; then it is not read."""
    memory: Count = 32 * 2**20
    """The largest history of unstored responses that a connection remembers, as JSON. Larger ones are forgotten."""
    total_memory: Count = 256 * 2**20
    """The limit of this memory over all connections; beyond it, those that have been idle the longest forget."""
    ping_interval: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    """Seconds between two pings; 0: none."""
    ping_timeout: Seconds = 60.0
    """How long a client may take to answer a ping before the connection is closed."""


class ServerSettings(Wire):
    """Where the server listens, and limits of connections and requests."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback requires API keys (see `auth`)."""
    port: Port = 8080
    """The port to listen on; 0 takes a free one."""
    drain: Annotated[float, Meta(ge=0, le=86400)] = 10.0
    """How long responses in progress may take to end when the server stops."""
    notice: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """How long it still accepts requests before that, while `/readyz` says that it is not ready and answers close their
    connections, so that a load balancer sends the next requests elsewhere."""
    body_limit: Count = 64 * 2**20
    """The largest request body that is read."""
    head_limit: Count = 64 * 1024
    """The largest request line and headers that are read; also the largest chunk extensions and trailers of a body,
    which are read and ignored."""
    request_time: Seconds = 60.0
    """How long a request may take to arrive."""
    linger: Seconds = 30.0
    """How long a client may read nothing of an answer that is complete before the connection is closed."""
    followers: Count = 256
    """How many streams of responses may be replayed at once (`GET /v1/responses/{id}?stream=true`), over all keys; more
    are refused (503). One tenant may have half of them, and one of its subjects half of those."""
    idempotency: Annotated[float, Meta(ge=0, le=604800)] = 86400.0
    """How long an `Idempotency-Key` is remembered; 0: the header is ignored."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    """How many processes serve on the port; more than one needs `database`. Each has its own metrics, on a port of its
    own: `metrics.port` and those that follow."""
    peer_host: str = "127.0.0.1"
    """The address on which other processes with the same `database` reach this one: they pass on streams of responses
    that run here. It takes the same requests as the server's port, and requires the same keys."""
    peer_port: Port = 0
    """The port there; 0 takes a free one. Each of several workers takes the next."""
    peer_url: str | None = None
    """The URL at which they reach it, such as `http://10.0.0.7:9000`; unset, made of `peer_host` and the port. Each of
    several workers has the next port."""
    hosts: tuple[str, ...] = ()
    """Without API keys: more host names that requests may use, such as a proxy's; `*` for all."""
    websocket: WebSocketSettings = WebSocketSettings()
    """Many responses on one connection."""


# ---- backends ----


class TimeoutSettings(Wire):
    """Timeouts of a backend."""

    connect: Seconds = 1.5
    """For a connection, DNS and TLS included. Above 2, streams to an unreachable backend end as `failed`; up to 2, the
    backends of a model share the time."""
    first_byte: Seconds = 300.0
    """For the first byte of an answer. Without streaming it comes only when the whole inference is done. Below
    `loop.deadline`, a backend that hangs is detected, and another one is asked."""
    idle: Seconds = 120.0
    """Between two reads of an answer."""


class BreakerSettings(Wire):
    """The circuit breakers of a backend, one for each model: while one is open, it gets no requests for that model."""

    failures: Count = 5
    """Connection failures in a row, counted at most once a second, that open it."""
    open: Seconds = 10.0
    """How long it stays open, unless the backend recovers earlier; then one request is let through, and its outcome
    decides. Also how long a backend that answers with errors is tried last, and how often a tenant's timeouts and
    broken streams start a health check."""


class CapabilitySettings(Wire):
    """What a backend supports. Unset: what most backends of its kind do (vLLM, llama.cpp, SGLang and Ollama, or those
    that speak the Responses API)."""

    vision: bool | UnsetType = UNSET
    """Images. Off, a request with images is refused. Unset: on."""
    files: bool | UnsetType = UNSET
    """Files. Unset: on for `kind: responses`."""
    reasoning_field: Literal["reasoning_content", "reasoning"] | None | UnsetType = UNSET
    """The field for the reasoning of earlier assistant messages; null: it is left out. Unset: `reasoning_content`."""
    developer_role: bool | UnsetType = UNSET
    """Messages of the role `developer`; off, they are sent as `system`. Unset: on for `kind: responses`."""
    allowed_tools: bool | UnsetType = UNSET
    """`tool_choice` of the type `allowed_tools`. Unset: on for `kind: responses`."""
    stream_usage: bool | UnsetType = UNSET
    """`stream_options: {include_usage: true}`. Unset: on."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | UnsetType = UNSET
    """The name of the limit of an answer's length. Unset: `max_tokens`."""
    prompt_cache_key: bool | UnsetType = UNSET
    """`prompt_cache_key`. Unset: on for `kind: responses`."""
    verbosity: bool | UnsetType = UNSET
    """`verbosity`. Unset: on for `kind: responses`."""
    grammar: Literal["described", "plain_pattern", "pattern"] | UnsetType = UNSET
    """How a model learns the grammar of a free-form tool: `described` in the prompt and checked afterwards, or as a
    `pattern` in the schema of its parameters, for backends that decode by it; `plain_pattern` for those, such as
    llama.cpp, that write the matched text into JSON without escapes. `pattern` needs `tool_calling: native`. Unset:
    `described`."""
    context_length: Count | UnsetType = UNSET
    """The most tokens of a request and its answer together, for all of its models. Unset: as it lists, or as it says
    when it refuses a longer request."""

    def over(self, usual: Capabilities) -> Capabilities:
        """Return the usual capabilities with those that are set here in their place."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return replace(usual, **given)


class BackendSettings(Wire):
    """A model server."""

    name: Name
    """Its name in logs, metrics and routes."""
    url: str
    """Its base URL, without `/chat/completions`, such as `http://localhost:8000/v1`."""
    kind: Literal["chat", "responses"] = "chat"
    """Its API: Chat Completions, or Responses."""
    api_key: Secret | None = None
    """Sent as a bearer token. For an only backend, `ANTWORT_BACKEND_API_KEY` overrides it."""
    models: tuple[str, ...] | None = None
    """The models it has; unset, it is asked for its list at intervals."""
    prefix: str | None = None
    """Requests for models whose names begin with this go to this backend, without it: with `gpu1/`, `gpu1/qwen3`."""
    weight: Count = 1
    """Its share of the requests in a weighted group."""
    headers: Mapping[str, Secret] = {}
    """Additional headers of every request."""
    ca_file: str | None = None
    """A file of certificates to trust instead of the system's; a leading `~` is the home folder."""
    max_exchanges: Count | None = None
    """How many inferences run at once; the next one waits."""
    timeouts: TimeoutSettings = TimeoutSettings()
    """Its timeouts."""
    breaker: BreakerSettings = BreakerSettings()
    """Its circuit breakers, one for each model."""
    tool_calling: ToolCalling = "auto"
    """How its models call tools. `native`: by the backend's own tool calls. `constrained`: the tools are described in
    the prompt, and a JSON schema restricts the answer to valid calls (it needs `response_format: json_schema`).
    `auto`: natively, until that fails."""
    capabilities: CapabilitySettings = CapabilitySettings()
    """What it supports."""


class LocalSettings(Wire):
    """A model that antwort runs itself, with llama.cpp: if there are no backends, or if `model` is set."""

    model: str | None = None
    """A GGUF file; unset, the demo model, which `antwort model pull` fetches. A leading `~` is the home folder."""
    name: str | None = None
    """Its name in requests; unset, that of the file."""
    template: str | None = None
    """A file with a chat template (Jinja) that replaces the one in the model's file."""
    adapter: str | None = None
    """A LoRA adapter (GGUF) to load with it."""
    context: Annotated[int, Meta(ge=256)] = 4096
    """The most tokens of a request and its answer together."""
    slots: Count = 2
    """How many inferences run at once; the next one waits."""
    threads: Count | None = None
    """CPU threads; unset, half of the CPUs that this process may use, and at least two."""
    ready: Seconds = 120.0
    """The timeout of its start."""
    tool_calling: ToolCalling = "auto"
    """As for a backend; with the demo model and its adapter, `auto` is `constrained`."""


class RouteTarget(Wire):
    """A backend of a route."""

    backend: Name
    """The backend's name."""
    model: str | None = None
    """The model's name there; unset, as in the request."""
    weight: Count | None = None
    """Its share in a weighted group; unset, the backend's own."""


Policy: TypeAlias = Literal["failover", "weighted"]


class RouteSettings(Wire):
    """The explicit route of a model."""

    model: str
    """The name in requests; a trailing `*` matches any ending."""
    to: tuple[RouteTarget, ...]
    """The backends that can answer, the preferred one first."""
    policy: Policy | None = None
    """`failover`: in this order; `weighted`: by their shares. Unset: `routing.policy`."""


class RetrySettings(Wire):
    """Retries, as long as no part of an answer has arrived."""

    attempts: Count = 3
    """How often all backends that can answer are tried."""
    base: Seconds = 0.2
    """The first delay; it doubles each time."""
    cap: Seconds = 2.0
    """The longest delay."""
    budget: Annotated[float, Meta(ge=0, le=86400)] = 1.5
    """No attempt begins later than this after the first."""


class RoutingSettings(Wire):
    """Which backend answers for which model."""

    policy: Policy = "failover"
    """For a model of several backends: the first healthy one, or by weight."""
    aliases: Mapping[str, str] = {}
    """Other names of models: `{gpt-4o: qwen3}`. With `--set 'routing.aliases."gpt-4.1"=qwen3'` one more joins them."""
    routes: tuple[RouteSettings, ...] = ()
    """Explicit routes of models. They override the backends' own lists."""
    retry: RetrySettings = RetrySettings()
    """Retries."""
    refresh: Seconds = 60.0
    """The interval at which backends are asked for their models."""
    health: Seconds = 10.0
    """The interval of health checks of a backend that is unhealthy."""


# ---- tools ----


class ToolSettings(Wire):
    """Tools that run in this process, and limits of all tools."""

    modules: tuple[str, ...] = ()
    """Python modules whose `@tool` functions and toolsets are offered."""
    entry_points: bool = True
    """Offer the toolsets that installed packages register under `antwort.tools`."""
    demo: bool = False
    """Offer a clock, a calculator and a unit converter, as the toolset `demo`."""
    hosted: Mapping[str, HostedPolicy] = {}
    """What happens to tools that only OpenAI runs, by their type (`web_search`; `computer*` for all that begin so; `*`
    for all of them).
    Types that are not here go by `loop.unknown_tools`."""
    limits: ToolLimits = ToolLimits()
    """Limits of calls."""
    max_in_prompt: Count = 64
    """The most tools in a prompt. If a request offers more, the model searches for those of servers when it needs
    them."""
    approval_time: Seconds = 86400.0
    """How long a call waits for the client's approval."""


# ---- MCP servers ----


class OAuthSettings(Wire):
    """OAuth login, grant `client_credentials`."""

    client_id: str
    """The client id."""
    client_secret: Secret
    """The client secret."""
    scopes: tuple[str, ...] = ()
    """The scopes to request."""
    token_url: str | None = None
    """The token endpoint; unset, the one that the server names."""
    issuer: str | None = None
    """The issuer that the metadata must name; unset, any that the server names."""


class StandingSettings(Wire):
    """Requests that get a server's tools without naming it. All fields must match; unset matches all."""

    models: tuple[str, ...] | None = None
    """Model names as in requests; a trailing `*` matches any ending."""
    subjects: tuple[str, ...] | None = None
    """Subjects of API keys."""
    tenants: tuple[str, ...] | None = None
    """Tenants of API keys."""


class McpToolSettings(Wire):
    """Overrides for one tool of a server."""

    timeout: Seconds | None = None
    """The timeout of a call; unset, as for the server."""
    output_bytes: Count | None = None
    """How much text of a result is kept; unset, as for the server."""
    concurrency: Count | None = None
    """How many calls of it run at once; unset, as for the server."""
    parallel: bool | UnsetType = UNSET
    """Off, its calls never overlap; unset, as for the server."""
    read_only: bool | UnsetType = UNSET
    """Whether it only reads; unset, as the server says, unless it once said otherwise."""
    idempotent: bool | UnsetType = UNSET
    """Whether it can be repeated without further effect; unset, as the server says."""
    require_approval: bool | UnsetType = UNSET
    """Whether the client must approve its calls; unset, as for the server."""


class McpServerSettings(Wire):
    """An MCP server of the operator. Requests name it by its label."""

    label: Label
    """Its name in requests, and in the items of its calls."""
    url: str | None = None
    """Its URL, unless there is a `command`."""
    command: tuple[str, ...] = ()
    """A program that speaks MCP on its standard input and output, with its arguments."""
    transport: Literal["http", "sse"] = "http"
    """For a `url`: streamable HTTP, or its predecessor with server-sent events."""
    env: Mapping[str, Secret] = {}
    """For a `command`: more environment variables. Of antwort's own it inherits only basics such as `PATH`."""
    folder: str | None = None
    """For a `command`: its working directory."""
    description: str | None = None
    """What it is for; replaces its own description."""
    headers: Mapping[str, Secret] = {}
    """Sent with every request to it."""
    token: Secret | None = None
    """Sent as a bearer token."""
    oauth: OAuthSettings | None = None
    """OAuth login, instead of a token."""
    authorization: Literal["own", "request"] = "own"
    """`request`: the `authorization` of a request is passed on instead; each identity has its own session."""
    sessions: Literal["shared", "identity"] = "shared"
    """Whether all use one session, or each identity its own, for servers with state."""
    allowed_tools: tuple[str, ...] | None = None
    """Which of its tools are offered; unset, all."""
    require_approval: Literal["always", "writes", "never"] = "never"
    """Which calls the client must approve; `writes`: those of tools that are not marked as read-only, or once were not.
    A request can ask for more approvals, never for fewer, whether it names the server by label or by address."""
    standing: StandingSettings | None = None
    """Which requests get its tools without naming it; unset: none, `{}`: all."""
    connect: Seconds = 30.0
    """The timeout of starting it and connecting. Requests wait no longer than `loop.discovery`."""
    timeout: Seconds | None = None
    """The timeout of a call; unset, `tools.limits.timeout`."""
    concurrency: Count | None = None
    """How many calls of all its tools run at once; unset, `tools.limits.total`."""
    output_bytes: Count | None = None
    """How much text of a result is kept; unset, `tools.limits.output_bytes`."""
    list_age: Seconds = 300.0
    """How long its list of tools is cached."""
    tools: Mapping[str, McpToolSettings] = {}
    """Overrides for single tools, by their names."""


class ReachSettings(Wire):
    """Which addresses requests may name as MCP servers. Names are resolved, and their addresses are checked at each
    connection."""

    allow: tuple[str, ...] = ()
    """Hosts that are allowed at any address, also over http: `tools.example.com`, `*.example.com`, `10.1.0.0/16`; each
    with `:port` to allow only that port."""
    deny: tuple[str, ...] = ()
    """Hosts that are not allowed. It overrides `allow`."""
    only_allowed: bool = False
    """Whether only those in `allow` are allowed."""
    http: bool = False
    """Whether public addresses are allowed without TLS."""
    loopback: Literal["auto", "always", "never"] = "auto"
    """Addresses of this machine; `auto`: if the server listens on loopback only and requires no keys. With keys, it may
    be behind a proxy."""


class McpSettings(Wire):
    """MCP servers that requests name by address, and rules for all."""

    declared: bool = True
    """Whether requests may name servers by address at all."""
    reach: ReachSettings = ReachSettings()
    """Which addresses they may name."""
    headers_allow: tuple[str, ...] = ("*",)
    """The headers that a request may send to a server that it names; a trailing `*` matches any ending."""
    headers_deny: tuple[str, ...] = ()
    """Those that it may not send; overrides `headers_allow`. Headers of HTTP itself, such as `Host`, are never sent."""
    require_approval: Literal["always", "never"] = "always"
    """The default of requests that name a server by address."""
    force_approval: bool = False
    """Whether `require_approval: always` overrides what requests say."""
    sessions: Count = 256
    """How many sessions of servers that requests name are open at once; beyond it, idle ones are closed, first those of
    the same identity. Shared sessions of the operator's servers are not counted."""
    idle: Seconds = 600.0
    """How long a session may be idle before it is closed."""
    connect: Seconds = 10.0
    """The timeout of connecting to a server that a request names."""
    largest: Count = 16 * 2**20
    """The largest message of a server, in bytes."""
    unsolicited_bytes: Count = 2**20
    """How much a server may send unsolicited (log messages, requests, comments), at once and then in each four seconds;
    each message counts as at least a kilobyte. More waits, and after as much again the stream is closed. The operator's
    servers have four times that, and their log messages and other notifications only wait."""


# ---- keys, and what is seen from outside ----


class KeyLimits(Wire):
    """Limits of one API key; unset: none."""

    requests_per_minute: Count | None = None
    """Requests for responses (`POST /v1/responses`): a token bucket of this size, refilled in a minute."""
    concurrent: Count | None = None
    """Responses in progress, also those that continue without their client. Background responses do not count."""
    followers: Count | None = None
    """Streams of responses that are replayed at once (`GET /v1/responses/{id}?stream=true`), counted separately; unset,
    as many as `concurrent`."""
    tokens_per_minute: Count | None = None
    """Tokens, counted or estimated when a response ends; after the response that exceeds it, requests must wait."""


class KeySettings(Wire):
    """An API key: whose it is, and what it may do."""

    name: Name
    """Its name in logs."""
    key: Secret | None = None
    """The key itself; only its hash is kept in memory."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """Instead of the key: its SHA-256, in hexadecimal."""
    subject: str | None = None
    """Whose records it can see, within the tenant; unset, the key's name."""
    tenant: str = "default"
    """The tenant, whose records are separate from all others."""
    models: tuple[str, ...] | None = None
    """The models it may use, by their names in requests; a trailing `*` matches any ending."""
    metrics: bool = False
    """Whether it may read `/metrics`."""
    limits: KeyLimits = KeyLimits()
    """Its limits."""


class AuthSettings(Wire):
    """Authentication."""

    required: Literal["auto", "always", "never"] = "auto"
    """Whether API keys are required; `auto`: if there are keys, or if the server listens on anything but loopback."""
    keys: tuple[KeySettings, ...] = ()
    """The API keys; `antwort key` makes one."""


class EncryptionSettings(Wire):
    """Encryption of what clients store and send back: compactions, and the reasoning of unstored responses."""

    keys: tuple[Secret, ...] = ()
    """The first encrypts, all of them decrypt. Unset, a key is made at the first start and stored in the data folder.
    Servers that stand in for each other need the same keys."""


class CorsSettings(Wire):
    """Which web pages may use the API from a browser."""

    origins: tuple[str, ...] = ()
    """Such as `https://app.example.com`; `*` for all."""
    headers: tuple[str, ...] = ()
    """Request headers that pages may send, besides those that OpenAI's clients send; `*` for all."""
    credentials: bool = False
    """Whether cookies and the like may be sent along; not with `*`."""
    max_age: Annotated[int, Meta(ge=0, le=86400)] = 600
    """How long a browser may cache the answer."""


class LogSettings(Wire):
    """Logging."""

    level: LogLevel = "info"
    """The lowest level; one line for each request and each tool call are `info`."""
    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: `human` on a terminal, else JSON."""
    content: bool = False
    """Whether prompts and answers are logged."""


class MetricsSettings(Wire):
    """`/metrics`, for Prometheus."""

    enabled: bool = True
    """Whether metrics are collected."""
    host: str = "127.0.0.1"
    """The address of their own port. Everybody who reaches it can read them, unless there is a key."""
    port: Port | None = None
    """Their own port; unset, the server's, where they need a key if the server is public or requires keys."""
    key: Secret | None = None
    """Their own bearer token; if set, it is always required."""


class Settings(Wire):
    """The settings of a server."""

    default_model: str | None = None
    """The model of requests that name none; unset, the only one."""
    backends: tuple[BackendSettings, ...] = ()
    """The model servers."""
    local: LocalSettings = LocalSettings()
    """A model that antwort runs itself."""
    scripted: bool = False
    """Without backends, a scripted stand-in answers instead of a model."""
    data: str | None = None
    """The folder for data; unset, the user's own for applications. A leading `~` is the home folder."""
    database: Secret | None = None
    """A PostgreSQL database to store responses in instead of the data folder, such as
    `postgresql://user:password@db.example.com/antwort`. Any number of processes can share it."""
    memory: bool = False
    """Store responses in memory only. The demo model is read from the data folder in any case."""
    server: ServerSettings = ServerSettings()
    """Where the server listens, and limits of connections and requests."""
    routing: RoutingSettings = RoutingSettings()
    """Which backend answers for which model."""
    loop: LoopSettings = LoopSettings()
    """The agentic loop."""
    background: BackgroundSettings = BackgroundSettings()
    """Background responses."""
    limits: Limits = Limits()
    """Limits of requests and answers."""
    tools: ToolSettings = ToolSettings()
    """Tools that run in this process, and limits of all tools."""
    mcp_servers: tuple[McpServerSettings, ...] = ()
    """MCP servers that requests name by label."""
    mcp: McpSettings = McpSettings()
    """MCP servers that requests name by address, and rules for all."""
    auth: AuthSettings = AuthSettings()
    """Authentication."""
    encryption: EncryptionSettings = EncryptionSettings()
    """Encryption of what clients store and send back."""
    cors: CorsSettings = CorsSettings()
    """Which web pages may use the API from a browser."""
    log: LogSettings = LogSettings()
    """Logging."""
    metrics: MetricsSettings = MetricsSettings()
    """`/metrics`, for Prometheus."""

    def data_folder(self) -> Path:
        """Return the folder for data. Raises `CannotStart` for a user without a home."""
        folder = own_folder("data") if self.data is None else Path(self.data)
        if folder is None:
            raise CannotStart("There is no home folder to keep data in: say --data DIR, or --memory to keep none.")
        return folder

    def engine(self) -> EngineSettings:
        """Return the settings of the engine."""
        loop = {name: getattr(self.loop, name) for name in LoopSettings.__struct_fields__}
        return EngineSettings(
            **loop,
            background=self.background,
            default_model=self.default_model,
            idempotency=self.server.idempotency,
            limits=self.limits,
            tool_limits=self.tools.limits,
            hosted=self.tools.hosted,
            max_in_prompt=self.tools.max_in_prompt,
            approval_time=self.tools.approval_time,
        )
