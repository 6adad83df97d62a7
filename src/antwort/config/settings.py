"""What an operator can set: one tree of frozen values. Its shape is the shape of `antwort.yaml`.

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
    """How many may be open at once; who comes then is refused (503)."""
    lifetime: Seconds = 3600.0
    """How long one may be open. A response under way then is made to its end."""
    queue: Count = 16
    """How many messages wait on one while a response is made; from there on it is not read."""
    memory: Count = 32 * 2**20
    """The largest conversation of responses that are not stored that one remembers; a larger one is forgotten. Counted
    as JSON, which is how it is kept.
    """
    total_memory: Count = 256 * 2**20
    """What all of them remember together; beyond it, those that have been idle for longest forget."""
    ping_interval: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    """How often a client is asked for a sign of life; 0: never."""
    ping_timeout: Seconds = 60.0
    """How long it may take to give one before it is hung up on."""


class ServerSettings(Wire):
    """Where the server listens, and what it lets a client do to it."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback requires API keys (see `auth`)."""
    port: Port = 8080
    """The port to listen on; 0 takes a free one."""
    drain: Annotated[float, Meta(ge=0, le=86400)] = 10.0
    """How long responses under way get to end when the server is told to stop."""
    notice: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """How long it goes on taking requests before, while `/readyz` says that it is not ready and answers end their
    connections: so that a balancer that looks there sends the next ones elsewhere."""
    body_limit: Count = 64 * 2**20
    """The largest request body that is read."""
    head_limit: Count = 64 * 1024
    """The largest request line and headers that are read; also the largest chunk extensions and trailers of a body,
    which are read and ignored."""
    request_time: Seconds = 60.0
    """How long a request may take to come in."""
    linger: Seconds = 30.0
    """How long a client may take nothing of an answer that has ended before it is hung up on."""
    followers: Count = 256
    """How many streams of responses may be read again at once (`GET /v1/responses/{id}?stream=true`), over all keys;
    who comes then is refused (503). One tenant may have half of them, and one of its subjects half of those."""
    idempotency: Annotated[float, Meta(ge=0, le=604800)] = 86400.0
    """How long an `Idempotency-Key` is remembered; 0: the header is not looked at."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    """How many processes serve side by side on the port; more than one needs `database`. Each has metrics of its own,
    on a port of its own: `metrics.port` and those behind it."""
    peer_host: str = "127.0.0.1"
    """The address on which the other processes reach this one, where they share a `database`: a stream that is made
    here is read through them, too. It takes the same requests as the port of the server, and asks for the same keys."""
    peer_port: Port = 0
    """The port there; 0 takes a free one. Of several workers, each takes the next."""
    peer_url: str | None = None
    """What the others are told to reach it by, such as `http://10.0.0.7:9000`; unset, by `peer_host` and the port. Of
    several workers, each is told by the next port."""
    hosts: tuple[str, ...] = ()
    """Where no key is asked for: more names that requests may come under, such as a proxy's; `*` for all."""
    websocket: WebSocketSettings = WebSocketSettings()
    """Many responses on one connection."""


# ---- backends ----


class TimeoutSettings(Wire):
    """How long a backend is waited for."""

    connect: Seconds = 1.5
    """For a connection, name and TLS included. Above 2, a backend that is not there ends streams as `failed`; up to 2,
    those who can answer for the same model share the time."""
    first_byte: Seconds = 300.0
    """For the first byte of an answer. One that is not streamed has it only when the whole inference is done. Below
    `loop.deadline`, a backend that hangs is noticed, and another one is asked."""
    idle: Seconds = 120.0
    """Between two reads of an answer."""


class BreakerSettings(Wire):
    """Its circuit breakers, one for each model: while one is open, no request for that model is sent to it."""

    failures: Count = 5
    """Connection failures in a row, counted at most once a second, that open it."""
    open: Seconds = 10.0
    """How long it stays open, unless the backend is seen to be back; then one request is let through, and its outcome
    decides. Also how long a backend that answers with errors is tried last, and how often a tenant's timeouts and
    broken streams start a health check."""


class CapabilitySettings(Wire):
    """What it takes. Unset means what backends of its kind take, mostly: vLLM, llama.cpp, SGLang and Ollama, or those
    that speak the Responses API."""

    vision: bool | UnsetType = UNSET
    """Images. Off, a request that brings some is refused. Unset: on."""
    files: bool | UnsetType = UNSET
    """Files. Unset: on for `kind: responses`."""
    reasoning_field: Literal["reasoning_content", "reasoning"] | None | UnsetType = UNSET
    """Where a replayed assistant message carries its reasoning; null: it is left out. Unset: `reasoning_content`."""
    developer_role: bool | UnsetType = UNSET
    """Messages of the role `developer`; off, they are sent as `system`. Unset: on for `kind: responses`."""
    allowed_tools: bool | UnsetType = UNSET
    """`tool_choice` of the type `allowed_tools`. Unset: on for `kind: responses`."""
    stream_usage: bool | UnsetType = UNSET
    """`stream_options: {include_usage: true}`. Unset: on."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | UnsetType = UNSET
    """What the limit of an answer's length is called there. Unset: `max_tokens`."""
    prompt_cache_key: bool | UnsetType = UNSET
    """`prompt_cache_key`. Unset: on for `kind: responses`."""
    verbosity: bool | UnsetType = UNSET
    """`verbosity`. Unset: on for `kind: responses`."""
    grammar: Literal["described", "plain_pattern", "pattern"] | UnsetType = UNSET
    """How models are held to the grammar of a free-form tool: `described` in words and checked afterwards, or by a
    `pattern` in the schema of its parameters, for backends that decode by it; `plain_pattern` for those, such as
    llama.cpp, that write what a pattern allows into JSON as it is. `pattern` needs `tool_calling: native`. Unset:
    `described`."""
    context_length: Count | UnsetType = UNSET
    """How many tokens a request and its answer may have together, with any of its models. Unset: what it lists, or what
    it says when it refuses a request that is longer."""

    def over(self, usual: Capabilities) -> Capabilities:
        """The usual ones, with what is set here in their place."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return replace(usual, **given)


class BackendSettings(Wire):
    """A model server."""

    name: Name
    """What it is called in logs, metrics and routes."""
    url: str
    """Its base address, up to what comes before `/chat/completions`, such as `http://localhost:8000/v1`."""
    kind: Literal["chat", "responses"] = "chat"
    """What it speaks: Chat Completions, or the Responses API itself."""
    api_key: Secret | None = None
    """Sent as a bearer token. Of the only backend, `ANTWORT_BACKEND_API_KEY` goes before it."""
    models: tuple[str, ...] | None = None
    """The models it has; unset, it is asked for its list, again and again."""
    prefix: str | None = None
    """A model's name that starts with this goes to this backend, without the prefix: with `gpu1/`, `gpu1/qwen3`."""
    weight: Count = 1
    """Its share of the requests where a weighted group has it."""
    headers: Mapping[str, Secret] = {}
    """More headers to send with every request."""
    ca_file: str | None = None
    """A file of certificates to trust instead of the system's; a `~` at its beginning is the home folder."""
    max_exchanges: Count | None = None
    """How many inferences may be under way at once; the next one waits."""
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long it is waited for."""
    breaker: BreakerSettings = BreakerSettings()
    """Its circuit breakers, one for each model: while one is open, no request for that model is sent to it."""
    tool_calling: ToolCalling = "auto"
    """How its models call tools. `native`: by the backend's own tool calls. `constrained`: the tools are described in
    the prompt, and a JSON schema holds the answer to calls that fit them (it needs `response_format: json_schema`).
    `auto`: natively, until it is seen that this does not work."""
    capabilities: CapabilitySettings = CapabilitySettings()
    """What it takes."""


class LocalSettings(Wire):
    """The model that antwort runs by itself, with llama.cpp: where there are no backends, or where `model` is set."""

    model: str | None = None
    """A GGUF file; unset, the demo model that `antwort model pull` brings. A `~` is the home folder."""
    name: str | None = None
    """What requests call it; unset, after the file."""
    template: str | None = None
    """A file with a chat template (Jinja) to use instead of the one in the model's file."""
    adapter: str | None = None
    """A LoRA adapter (GGUF) to load with it."""
    context: Annotated[int, Meta(ge=256)] = 4096
    """How many tokens a request and its answer may have together."""
    slots: Count = 2
    """How many inferences run at once; the next one waits."""
    threads: Count | None = None
    """Processor threads; unset, half of the processors that this process may use, and at least two."""
    ready: Seconds = 120.0
    """How long it may take to start."""
    tool_calling: ToolCalling = "auto"
    """As of a backend; with the demo model, `auto` is `constrained`."""


class RouteTarget(Wire):
    """One of those that can answer for a route."""

    backend: Name
    """The backend's name."""
    model: str | None = None
    """What the model is called there; unset, as the route is."""
    weight: Count | None = None
    """Its share in a weighted group; unset, the backend's own."""


Policy: TypeAlias = Literal["failover", "weighted"]


class RouteSettings(Wire):
    """A model by an explicit way."""

    model: str
    """The name that requests ask for; one that ends in `*` stands for all that begin so."""
    to: tuple[RouteTarget, ...]
    """Who can answer, the preferred one first."""
    policy: Policy | None = None
    """`failover`: in this order; `weighted`: by their shares. Unset, as for all."""


class RetrySettings(Wire):
    """Trying again, as long as nothing of an answer has come."""

    attempts: Count = 3
    """How often all who can answer are tried."""
    base: Seconds = 0.2
    """The first wait; the next ones double."""
    cap: Seconds = 2.0
    """The longest wait."""
    budget: Annotated[float, Meta(ge=0, le=86400)] = 1.5
    """No try begins later than this after the first."""


class RoutingSettings(Wire):
    """Which backend answers for which model."""

    policy: Policy = "failover"
    """Among several backends that have the same model: the first that is well, or by weight."""
    aliases: Mapping[str, str] = {}
    """Other names of models: `{gpt-4o: qwen3}`. With `--set 'routing.aliases."gpt-4.1"=qwen3'` one more joins them."""
    routes: tuple[RouteSettings, ...] = ()
    """Models by an explicit way. They go before the backends' own lists."""
    retry: RetrySettings = RetrySettings()
    """Trying again."""
    refresh: Seconds = 60.0
    """How often backends are asked for their models."""
    health: Seconds = 10.0
    """How often a backend that is not well is looked after."""


# ---- tools ----


class ToolSettings(Wire):
    """Tools of this process."""

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
    """What a call may take."""
    max_in_prompt: Count = 64
    """How many tools the model is told of at once. Where a request offers more, those of servers are looked for by the
    model when it needs them."""
    approval_time: Seconds = 86400.0
    """How long a call waits for the client's approval."""


# ---- MCP servers ----


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


# ---- keys, and what is seen from outside ----


class KeyLimits(Wire):
    """What one key may use; unset means any amount."""

    requests_per_minute: Count | None = None
    """Responses asked for (`POST /v1/responses`): so many at once, and so many more as each minute goes by, evenly."""
    concurrent: Count | None = None
    """Responses under way at once, also those that go on without their client. Background responses do not count."""
    followers: Count | None = None
    """Streams of responses that are read again at once (`GET /v1/responses/{id}?stream=true`); unset, as many as
    `concurrent`. They are counted apart."""
    tokens_per_minute: Count | None = None
    """Tokens, counted when a response ends, or estimated: the response that goes over is the last for a while."""


class KeySettings(Wire):
    """An API key: who it stands for, and what it may do."""

    name: Name
    """What it is called in logs."""
    key: Secret | None = None
    """The key itself; only its hash is kept in memory."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """Instead of the key: its SHA-256, in hexadecimal."""
    subject: str | None = None
    """Whose records it reaches, within the tenant; unset, the key's name."""
    tenant: str = "default"
    """Whose records it can never leave."""
    models: tuple[str, ...] | None = None
    """The models it may use, by the names that requests ask for; one that ends in `*` stands for all that begin so."""
    metrics: bool = False
    """Whether it may read `/metrics`."""
    limits: KeyLimits = KeyLimits()
    """What it may use."""


class AuthSettings(Wire):
    """Who may come in."""

    required: Literal["auto", "always", "never"] = "auto"
    """`auto`: when there are keys, or when the server listens on anything but loopback."""
    keys: tuple[KeySettings, ...] = ()
    """The API keys that are let in; `antwort key` makes one."""


class EncryptionSettings(Wire):
    """What is given out sealed, to be brought back: compactions, and the reasoning of responses that are not stored."""

    keys: tuple[Secret, ...] = ()
    """The first seals, all of them open. Unset, a key is made at the first start and kept in the data folder. Servers
    that answer for each other need the same."""


class CorsSettings(Wire):
    """Which web pages may use the API from a browser."""

    origins: tuple[str, ...] = ()
    """Such as `https://app.example.com`; `*` for all."""
    headers: tuple[str, ...] = ()
    """Request headers that pages may send, besides those that OpenAI's clients send; `*` for all."""
    credentials: bool = False
    """Whether cookies and the like may be sent along; not with `*`."""
    max_age: Annotated[int, Meta(ge=0, le=86400)] = 600
    """How long a browser may remember the answer."""


class LogSettings(Wire):
    """What is logged, and how."""

    level: LogLevel = "info"
    """From which level on; one line a request and one a tool call are `info`."""
    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: for people on a terminal, JSON otherwise."""
    content: bool = False
    """Write what was asked and answered, too. Off: never."""


class MetricsSettings(Wire):
    """`/metrics`, for Prometheus."""

    enabled: bool = True
    """Whether there are any."""
    host: str = "127.0.0.1"
    """The address of a port of its own. Whoever reaches it may read them, unless there is a key."""
    port: Port | None = None
    """A port of its own; unset, the server's, where they need a key as soon as the server is public or asks for one."""
    key: Secret | None = None
    """Their own bearer token; one that is set is always asked for."""


class Settings(Wire):
    """The settings of a server."""

    default_model: str | None = None
    """The model of requests that name none; unset, the only one there is."""
    backends: tuple[BackendSettings, ...] = ()
    """The model servers that answer."""
    local: LocalSettings = LocalSettings()
    """The model that antwort runs by itself."""
    scripted: bool = False
    """A scripted stand-in answers, not a model, where there are no backends."""
    data: str | None = None
    """The folder that data is kept in; unset, the user's own for applications. A `~` is the home folder."""
    database: Secret | None = None
    """A PostgreSQL database to keep responses in instead of the data folder, such as
    `postgresql://user:password@db.example.com/antwort`. Any number of processes may share it."""
    memory: bool = False
    """Responses are kept in memory only. The demo model is looked for in the data folder all the same."""
    server: ServerSettings = ServerSettings()
    """Where the server listens, and what it lets a client do to it."""
    routing: RoutingSettings = RoutingSettings()
    """Which backend answers for which model."""
    loop: LoopSettings = LoopSettings()
    """How responses are made."""
    background: BackgroundSettings = BackgroundSettings()
    """Responses that outlive their request."""
    limits: Limits = Limits()
    """How large a request may be."""
    tools: ToolSettings = ToolSettings()
    """Tools of this process."""
    mcp_servers: tuple[McpServerSettings, ...] = ()
    """MCP servers that requests name by label."""
    mcp: McpSettings = McpSettings()
    """MCP servers that requests name by address, and what holds for all."""
    auth: AuthSettings = AuthSettings()
    """Who may come in."""
    encryption: EncryptionSettings = EncryptionSettings()
    """What is given out sealed."""
    cors: CorsSettings = CorsSettings()
    """Which web pages may use the API from a browser."""
    log: LogSettings = LogSettings()
    """What is logged, and how."""
    metrics: MetricsSettings = MetricsSettings()
    """`/metrics`, for Prometheus."""

    def data_folder(self) -> Path:
        """Where data is kept; asked only when it is. Raises `CannotStart` for a user without a home."""
        folder = own_folder("data") if self.data is None else Path(self.data)
        if folder is None:
            raise CannotStart("There is no home folder to keep data in: say --data DIR, or --memory to keep none.")
        return folder

    def engine(self) -> EngineSettings:
        """All that the engine is to know."""
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
