"""The tools of all MCP servers as one executor: the operator's servers, and those that requests name by address."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.caching import Cache
from antwort.concurrency import stop
from antwort.identity import ANONYMOUS, Identity
from antwort.tools.base import (
    BaseExecutor,
    NoteWritingTools,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolKind,
    ToolResult,
)
from antwort.tools.limits import ToolLimits
from antwort.tools.mcp.base import ServerSpec, ServerTools, ServerUnavailable, server_id_of
from antwort.tools.mcp.conversion import (
    Definitions,
    define,
    instructions_of,
    output_of,
    unknown_names,
    usual_approval,
)
from antwort.tools.mcp.servers import McpPolicy, McpServer, base_spec, needed_to_reach, own_spec, untrusted_spec
from antwort.tools.mcp.tool_memory import SHARED, ToolMemory

if TYPE_CHECKING:
    from antwort.tools.mcp.pool import SessionPool
    from antwort.tools.mcp.session import McpSession

_log = logging.getLogger("antwort.tools.mcp")

_MAX_CACHED = 512
"""Most cached specs."""
_CLOSE_SECONDS = 1.0
_SERVER = re.compile(r"\bMCP server(?![\w'])(?! ')")


class McpServerStatus(msgspec.Struct, frozen=True):
    """The state of a server."""

    label: str | None
    """None: all servers that requests name by address."""
    is_up: bool | None
    """Whether its last list succeeded; None: none was requested yet, or it has no shared session."""
    failures: int
    """Lists and calls that failed because of it."""


class _Own(NamedTuple):
    """An operator's server."""

    server: McpServer
    spec: ServerSpec
    """Without the parts that depend on a request."""
    declared: McpTool
    """What a call needs to reach it, if the request brings no credentials."""


class McpExecutor(BaseExecutor):
    """Runs the tools of MCP servers.

        docs = McpServer("docs", url="https://docs.example.com/mcp")
        engine = Engine(provider, executors=[McpExecutor([docs])])

    A request names a server by its label: `{"type": "mcp", "server_label": "docs"}`. Servers that it names by
    `server_url` are used only if the `policy` allows that. Sessions are opened when they are needed, and closed with
    the engine. An executor belongs to one engine.
    """

    kind = ToolKind.MCP
    is_steady = True
    ends_when_told = True
    """A cancelled call ends at once; the server is told in the background."""

    def __init__(
        self, servers: Sequence[McpServer] = (), policy: McpPolicy | None = None, sessions: SessionPool | None = None
    ) -> None:
        """`sessions`: None for a pool of its own. Raises `ValueError` for two servers with the same label."""
        self._policy = policy or McpPolicy()
        self._own: dict[str, _Own] = {}
        self._by_server_id: dict[str, list[McpServer]] = defaultdict(list)
        """A request may name one of the operator's servers by its address, under another label."""
        for server in servers:
            if server.label in self._own:
                raise ValueError(f"There are two MCP servers labelled {server.label!r}.")
            spec = base_spec(server, self._policy)
            self._own[server.label] = _Own(server, spec, McpTool(server_label=server.label))
            self._by_server_id[spec.server_id].append(server)
        self.labels = tuple(self._own)
        self._standing = [
            (own.server.standing, own.declared) for own in self._own.values() if own.server.standing is not None
        ]
        self._memory = ToolMemory()
        self._sessions = sessions
        self._specs = Cache[Hashable, ServerSpec](_MAX_CACHED)
        """Specs without credentials of a request: each call needs one."""
        self._is_up: dict[str, bool] = {}
        self._unknown: dict[str, tuple[str, ...]] = {}
        self._failures: Counter[str | None] = Counter()
        self._warming: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"McpExecutor({', '.join(self._own)})"

    def remember_with(self, note: NoteWritingTools) -> None:
        self._memory.note = note

    # ---- what a request is offered ----

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        """Return the tools of a declared server, or None for an unknown label. Raises `ServerUnavailable`, and
        `InvalidField` for an invalid declaration.
        """
        own = self._own.get(declared.server_label)
        if own is None and declared.server_url is UNSET:
            return None
        session = self._session(declared, identity)
        if (listed := session.cached()) is None:
            listed = await self._list(session)
        spec, memory, known = session.spec, self._memory, session.definitions
        if spec.owner is None and not self._is_up.get(spec.label):
            self._record_success(spec)
        needed = own.declared if own is not None and own.server.authorization == "own" else needed_to_reach(declared)
        if known is not None and (known.listed is not listed or known.declared != needed):
            known = None
        if known is not None and memory.is_current(known.writing):
            return known.tools  # the same objects until something changes, because requests are more frequent
        writing = await memory.learn(spec, self._tenants(spec), listed)
        if known is not None and all(map(is_, known.writing.names, writing.names)):
            tools = known.tools
        elif own is not None:
            self._warn_of_unknown(own.server, listed)
            tools = define(listed, needed, own.server, writing=writing.names)
        else:
            by_address, approval = self._by_server_id.get(spec.server_id, ()), usual_approval(self._policy)
            tools = define(listed, needed, *by_address, needs_approval=approval, writing=writing.names)
        session.definitions = Definitions(listed, needed, writing, tools)
        return tools

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        if declared.server_label in self._own or declared.server_url is not UNSET:
            await self._list(self._session(declared, identity), is_fresh=True)

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        own = self._own.get(declared.server_label)
        if own is None and declared.server_url is UNSET:
            return None
        session = self._session(declared, identity)
        listed = session.listed or await self._list(session)  # the list that the definitions come from
        return instructions_of(listed, declared, None if own is None else own.server)

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        if not self._standing:
            return ()
        return [declared for audience, declared in self._standing if audience.has(model, identity)]

    def _session(self, declared: McpTool, identity: Identity) -> McpSession:
        """Return the session for a declaration. Raises `InvalidField`, `ServerUnavailable`."""
        if self._sessions is None:  # imported when it is needed, so that a server without MCP starts faster
            from antwort.tools.mcp.pool import SessionPool

            policy = self._policy
            self._sessions = SessionPool(limit=policy.sessions, idle=policy.idle, reach=policy.reach)
        key: Hashable = None
        if declared.authorization is declared.headers is UNSET:
            key = (declared.server_label, declared.server_url, declared.connector_id, identity.tenant, identity.owner)
            if (spec := self._specs.get(key)) is not None:
                return self._sessions.session(spec)
        own = self._own.get(declared.server_label)
        if own is not None:
            spec = own_spec(own.server, own.spec, declared, identity)
        elif declared.server_url is UNSET:
            raise LookupError(f"There is no MCP server labelled {declared.server_label!r} here.")
        else:
            spec = untrusted_spec(declared, identity, self._policy)
        if key is not None:
            self._specs.put(key, spec)
        return self._sessions.session(spec)

    def _tenants(self, spec: ServerSpec) -> tuple[str, ...]:
        """Return the tenants under which the server's writing tools are recorded. The record of the shared session with
        an operator's server counts for all tenants.
        """
        if spec.owner is None:
            return (SHARED,)
        return (spec.owner[0], SHARED) if spec.server_id in self._by_server_id else (spec.owner[0],)

    async def _list(self, session: McpSession, *, is_fresh: bool = False) -> ServerTools:
        try:
            listed = await (session.refresh() if is_fresh else session.tools())
        except ServerUnavailable as fault:
            self._record_failure(session.spec, named := _with_label(fault, session.spec.label))
            raise named from fault
        self._record_success(session.spec)
        return listed

    # ---- running calls ----

    def can_execute(self, tool: ToolDefinition) -> bool:
        declared = tool.declared
        if tool.kind is not ToolKind.MCP or declared is None or declared.server_label != tool.server_label:
            return False
        return declared.server_label in self._own or (self._policy.declared and isinstance(declared.server_url, str))

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        """Return the limits that the operator has set for the server, also if a request names it by its address. None:
        the limits of all tools.
        """
        if (own := self._own.get(tool.server_label or "")) is not None:
            return own.server.limits
        if not self._by_server_id or tool.declared is None or not isinstance(tool.declared.server_url, str):
            return None
        by_address = self._by_server_id.get(server_id_of(tool.declared.server_url))
        return by_address[0].limits if by_address else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = call.definition
        if tool.kind is not ToolKind.MCP or tool.declared is None or tool.declared.server_label != tool.server_label:
            raise LookupError(f"There is no tool named {call.name!r} here.")
        arguments = call.arguments.strip() or "{}"  # it becomes part of a message, which it must not end
        if isinstance(context.arguments_of(call), str):
            return ToolResult(call.id, "The arguments are not a JSON object.", is_error=True)
        try:
            session = self._session(tool.declared, context.identity)
            outcome = await session.call(
                tool.own_name, arguments, key=context.idempotency_key, progress=context.progress
            )
        except ServerUnavailable as fault:
            label = tool.declared.server_label
            self._failures[label if label in self._own else None] += 1
            return ToolResult(call.id, str(_with_label(fault, label)), is_error=True)
        return ToolResult(call.id, output_of(outcome), is_error=outcome.is_error)

    # ---- start and stop ----

    async def open(self) -> None:
        """Connect to the operator's servers in the background. A failed one is tried again when it is used."""
        for own in self._own.values():
            if own.server.sessions == "shared" and own.server.authorization == "own":
                task = asyncio.create_task(self._warm(own.declared))
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)

    async def _warm(self, declared: McpTool) -> None:
        try:
            await self.discover(declared, ANONYMOUS)
        except ServerUnavailable:
            pass  # it is in the log
        except Exception:
            _log.exception("the MCP server %r could not be connected to", declared.server_label)

    async def close(self) -> None:
        await stop(list(self._warming), _CLOSE_SECONDS)
        if self._sessions is not None:
            await self._sessions.close()

    # ---- status: a line is logged when a server fails and when it works again, not for each request ----

    def status(self) -> Sequence[McpServerStatus]:
        """Return the states of the operator's servers, and one for all others together."""
        servers = [McpServerStatus(label, self._is_up.get(label), self._failures[label]) for label in self._own]
        return [*servers, McpServerStatus(None, None, self._failures[None])]

    @property
    def open_sessions(self) -> int:
        return getattr(self._sessions, "open_sessions", 0)

    def _record_failure(self, spec: ServerSpec, fault: ServerUnavailable) -> None:
        self._failures[None if spec.is_untrusted else spec.label] += 1
        if spec.owner is not None:  # the state of such a session concerns its owner only
            _log.debug("an MCP server that a request uses cannot be asked: %s", fault)
        elif self._is_up.get(spec.label) is not False:
            self._is_up[spec.label] = False
            why = f" ({fault.details})" if fault.details else ""
            _log.warning("the MCP server %r cannot be used: %s%s", spec.label, fault, why)

    def _record_success(self, spec: ServerSpec) -> None:
        if spec.owner is None and not self._is_up.get(spec.label):
            if self._is_up.get(spec.label) is False:
                _log.info("the MCP server %r can be used again", spec.label)
            self._is_up[spec.label] = True

    def _warn_of_unknown(self, server: McpServer, listed: ServerTools) -> None:
        """Warn of settings for tools that do not exist, once for each list: a misspelt one may demand approval."""
        if not server.allowed_tools and not server.tools:
            return
        unknown = unknown_names(listed, server)
        if unknown and self._unknown.get(server.label) != unknown:
            names = ", ".join(map(repr, unknown))
            _log.warning(
                "the MCP server %r has no tool named %s: what is set for it holds for none", server.label, names
            )
        self._unknown[server.label] = unknown

    def unknown_tools(self, label: str) -> Sequence[str]:
        """Return the tools that the operator's settings name, and that the server's latest list does not have."""
        return self._unknown.get(label, ())


def _with_label(fault: ServerUnavailable, label: str) -> ServerUnavailable:
    """Return the same fault with the server's label in its text."""
    text = _SERVER.sub(lambda found: f"{found[0]} {label!r}", str(fault), count=1)
    return type(fault)(text, fault.details)
