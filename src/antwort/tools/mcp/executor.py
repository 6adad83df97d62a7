"""The tools of all MCP servers as one executor: the operator's servers, and those that requests name by address."""

from __future__ import annotations

import asyncio
import logging
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING

import msgspec

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.caching import Cache
from antwort.concurrency import stop
from antwort.identity import Identity
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
    ToolRules,
    define,
    instructions_of,
    output_of,
    rules_for,
    unknown_names,
    untrusted_rules,
)
from antwort.tools.mcp.servers import McpPolicy, McpServer, base_spec, needed_to_reach, own_spec, untrusted_spec
from antwort.tools.mcp.tool_memory import SHARED, ToolMemory, WritingNames

if TYPE_CHECKING:
    from antwort.tools.mcp.pool import SessionPool

_log = logging.getLogger("antwort.tools.mcp")

_MAX_CACHED = 512
"""Most cached specs, and most servers whose tool definitions are cached."""
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


class _Definitions(msgspec.Struct, frozen=True):
    listed: weakref.ReferenceType[ServerTools]
    """A weak reference, so that the session alone keeps the list alive."""
    declared: McpTool
    writing: WritingNames
    tools: tuple[ToolDefinition, ...]

    def are_of(self, listed: ServerTools, declared: McpTool, writing: WritingNames) -> bool:
        return self.listed() is listed and self.declared == declared and all(map(is_, self.writing, writing))


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
        self._servers: dict[str, McpServer] = {}
        self._base_specs: dict[str, ServerSpec] = {}
        self._by_server_id: dict[str, list[McpServer]] = defaultdict(list)
        """A request may name one of the operator's servers by its address, under another label."""
        for server in servers:
            if server.label in self._servers:
                raise ValueError(f"There are two MCP servers labelled {server.label!r}.")
            spec = base_spec(server, self._policy)
            self._servers[server.label], self._base_specs[server.label] = server, spec
            self._by_server_id[spec.server_id].append(server)
        self.labels = tuple(self._servers)
        self._memory = ToolMemory()
        self._sessions = sessions
        self._definitions = Cache[bytes, _Definitions](_MAX_CACHED)
        self._specs = Cache[Hashable, ServerSpec](_MAX_CACHED)
        """Specs without credentials of a request: each call needs one."""
        self._is_up: dict[str, bool] = {}
        self._unknown: dict[str, tuple[str, ...]] = {}
        self._failures: Counter[str | None] = Counter()
        self._warming: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"McpExecutor({', '.join(self._servers)})"

    def remember_with(self, note: NoteWritingTools) -> None:
        self._memory.note = note

    # ---- what a request is offered ----

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        """Return the tools of a declared server, or None for an unknown label. Raises `ServerUnavailable`, and
        `InvalidField` for an invalid declaration.
        """
        server = self._servers.get(declared.server_label)
        if server is None and declared.server_url is UNSET:
            return None
        spec = self._spec(declared, identity)
        listed = await self._list(spec)
        if server is not None:
            self._warn_of_unknown(server, listed)
        if server is not None and server.authorization == "own":
            declared = McpTool(server_label=server.label)
        else:
            declared = needed_to_reach(declared)
        tenants, known = self._tenants(spec), self._definitions.get(spec.key)
        is_current = known is not None and known.listed() is listed and known.declared == declared
        if known is not None and is_current and self._memory.holds(spec, tenants, known.writing):
            return known.tools  # the same objects until something changes, because requests are more frequent
        writing = await self._memory.learn(spec, tenants, listed)
        if server is not None:
            rules = [rules_for(server)]
        else:
            by_address = self._by_server_id.get(spec.server_id, ())
            rules = [untrusted_rules(self._policy), *map(rules_for, by_address)]
        return self._define(spec, listed, declared, rules, writing)

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        if declared.server_label in self._servers or declared.server_url is not UNSET:
            await self._list(self._spec(declared, identity), is_fresh=True)

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        server = self._servers.get(declared.server_label)
        if server is None and declared.server_url is UNSET:
            return None
        spec = self._spec(declared, identity)
        known = self._definitions.get(spec.key)
        # This follows `discover`: use the list that the definitions come from.
        listed = (None if known is None else known.listed()) or await self._list(spec)
        return instructions_of(listed, declared, server)

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return [
            McpTool(server_label=server.label)
            for server in self._servers.values()
            if server.standing is not None and server.standing.has(model, identity)
        ]

    def _spec(self, declared: McpTool, identity: Identity) -> ServerSpec:
        """Return the spec of the session for a declaration. Raises `InvalidField`."""
        known: Hashable = None
        if declared.authorization is declared.headers is UNSET:
            known = (declared.server_label, declared.server_url, declared.connector_id, identity.tenant, identity.owner)
            if (spec := self._specs.get(known)) is not None:
                return spec
        server = self._servers.get(declared.server_label)
        if server is None:
            spec = untrusted_spec(declared, identity, self._policy)
        else:
            spec = own_spec(server, self._base_specs[server.label], declared, identity)
        if known is not None:
            self._specs.put(known, spec)
        return spec

    def _tenants(self, spec: ServerSpec) -> tuple[str, ...]:
        """Return the tenants under which the server's writing tools are recorded. The record of the shared session with
        an operator's server counts for all tenants.
        """
        if spec.owner is None:
            return (SHARED,)
        return (spec.owner[0], SHARED) if spec.server_id in self._by_server_id else (spec.owner[0],)

    def _define(
        self,
        spec: ServerSpec,
        listed: ServerTools,
        declared: McpTool,
        rules: Sequence[ToolRules],
        writing: WritingNames,
    ) -> tuple[ToolDefinition, ...]:
        """Return the cached definitions, or new ones if the list, the declaration or the record has changed."""
        known = self._definitions.get(spec.key)
        if known is None or not known.are_of(listed, declared, writing):
            reference = weakref.ref(listed, partial(self._forget, spec.key))
            tools = define(listed, declared, *rules, writing=writing)
            known = _Definitions(reference, declared, writing, tools)
            self._definitions.put(spec.key, known)
        return known.tools

    def _forget(self, key: bytes, listed: weakref.ReferenceType[ServerTools]) -> None:
        if (known := self._definitions.get(key)) is not None and known.listed is listed:
            self._definitions.discard(key)

    async def _list(self, spec: ServerSpec, *, is_fresh: bool = False) -> ServerTools:
        try:
            with self._pool().session(spec) as session:
                listed = await (session.refresh() if is_fresh else session.tools())
        except ServerUnavailable as fault:
            self._record_failure(spec, named := _with_label(fault, spec.label))
            raise named from fault
        self._record_success(spec)
        return listed

    # ---- running calls ----

    def can_execute(self, tool: ToolDefinition) -> bool:
        declared = tool.declared
        if tool.kind is not ToolKind.MCP or declared is None or declared.server_label != tool.server_label:
            return False
        return declared.server_label in self._servers or (
            self._policy.declared and isinstance(declared.server_url, str)
        )

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        """Return the limits that the operator has set for the server, also if a request names it by its address. None:
        the limits of all tools.
        """
        server = self._servers.get(tool.server_label or "")
        if server is None and tool.declared is not None and isinstance(tool.declared.server_url, str):
            server = next(iter(self._by_server_id.get(server_id_of(tool.declared.server_url), ())), None)
        return None if server is None else server.limits

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = call.definition
        if tool.declared is None or not self.can_execute(tool):
            raise LookupError(f"There is no tool named {call.name!r} here.")
        arguments = call.arguments.strip() or "{}"  # it becomes part of a message, which it must not end
        if isinstance(context.arguments_of(call), str):
            return ToolResult(call.id, "The arguments are not a JSON object.", is_error=True)
        spec = self._spec(tool.declared, context.identity)
        try:
            with self._pool().session(spec) as session:
                key = context.idempotency_key
                outcome = await session.call(tool.own_name, arguments, key=key, progress=context.progress)
        except ServerUnavailable as fault:
            self._count_failure(spec)
            return ToolResult(call.id, str(_with_label(fault, spec.label)), is_error=True)
        return ToolResult(call.id, output_of(outcome), is_error=outcome.is_error)

    # ---- start and stop ----

    async def open(self) -> None:
        """Connect to the operator's servers in the background. A failed one is tried again when it is used."""
        for server in self._servers.values():
            if server.sessions == "shared" and server.authorization == "own":
                task = asyncio.create_task(self._warm(self._base_specs[server.label]))
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)

    async def _warm(self, spec: ServerSpec) -> None:
        try:
            await self._memory.learn(spec, self._tenants(spec), await self._list(spec))
        except ServerUnavailable:
            pass  # it is in the log
        except Exception:
            _log.exception("the MCP server %r could not be connected to", spec.label)

    async def close(self) -> None:
        await stop(list(self._warming), _CLOSE_SECONDS)
        if self._sessions is not None:
            await self._sessions.close()

    def _pool(self) -> SessionPool:
        if self._sessions is None:  # imported when it is needed, so that a server without MCP starts faster
            from antwort.tools.mcp.pool import SessionPool

            policy = self._policy
            self._sessions = SessionPool(limit=policy.sessions, idle=policy.idle, reach=policy.reach)
        return self._sessions

    # ---- status: a line is logged when a server fails and when it works again, not for each request ----

    def status(self) -> Sequence[McpServerStatus]:
        """Return the states of the operator's servers, and one for all others together."""
        servers = [McpServerStatus(label, self._is_up.get(label), self._failures[label]) for label in self._servers]
        return [*servers, McpServerStatus(None, None, self._failures[None])]

    @property
    def open_sessions(self) -> int:
        return getattr(self._sessions, "open_sessions", 0)

    def _record_failure(self, spec: ServerSpec, fault: ServerUnavailable) -> None:
        self._count_failure(spec)
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

    def _count_failure(self, spec: ServerSpec) -> None:
        self._failures[None if spec.is_untrusted else spec.label] += 1


def _with_label(fault: ServerUnavailable, label: str) -> ServerUnavailable:
    """Return the same fault with the server's label in its text."""
    text = _SERVER.sub(lambda found: f"{found[0]} {label!r}", str(fault), count=1)
    if text == str(fault):
        return fault
    named = type(fault)(text)
    named.details = fault.details
    return named
