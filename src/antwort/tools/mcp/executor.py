"""All MCP servers as one executor: those of the operator's by label, and those that requests name by address."""

from __future__ import annotations

import asyncio
import logging
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from operator import is_
from typing import Literal

import msgspec

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.caching import Cache
from antwort.concurrency import stop
from antwort.identity import Identity
from antwort.tools.base import NoteWritingTools, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import ToolLimits
from antwort.tools.mcp.base import ServerSpec, ServerTools, ServerUnavailable, Sessions, server_id_of
from antwort.tools.mcp.conversion import (
    Rules,
    define,
    instructions_of,
    output_of,
    rules_for,
    unknown_names,
    untrusted_rules,
)
from antwort.tools.mcp.servers import McpPolicy, McpServer, base_spec, own_spec, remembered, untrusted_spec
from antwort.tools.mcp.tool_memory import SHARED, ToolMemory, Writing

_log = logging.getLogger("antwort.tools.mcp")

_MAX_CACHED = 512
"""Most lists that are cached as the model is offered them, and most specs."""
_CLOSE_SECONDS = 1.0
_SERVER = re.compile(r"\bMCP server(?![\w'])(?! ')")


class ServerStatus(msgspec.Struct, frozen=True):
    """How a server stands."""

    label: str | None
    """None: all those that requests name by address."""
    is_up: bool | None
    """Whether its last list succeeded; None: it was never asked, or has no shared session."""
    failures: int
    """Lists and calls that failed because of it."""


class _OwnServer(msgspec.Struct, frozen=True):
    """A server of the operator, with what is the same for all requests."""

    server: McpServer
    spec: ServerSpec
    rules: Rules
    declared: McpTool


class _Definitions(msgspec.Struct, frozen=True):
    listed: weakref.ReferenceType[ServerTools]
    """A weak reference: the session decides how long its list lives."""
    declared: McpTool
    writing: Writing
    tools: tuple[ToolDefinition, ...]

    def is_of(self, listed: ServerTools, declared: McpTool, writing: Writing) -> bool:
        return self.listed() is listed and self.declared == declared and all(map(is_, self.writing, writing))


class McpExecutor:
    """Runs the tools of MCP servers.

        docs = McpServer("docs", url="https://docs.example.com/mcp")
        engine = Engine(provider, executors=[McpExecutor([docs])])

    A request reaches a server by its label: `{"type": "mcp", "server_label": "docs"}`. Servers that requests name by
    `server_url` are asked only where the `policy` says so. Sessions are opened when they are needed, and closed with
    the engine that the executor was given to; an executor is of one engine only.
    """

    kind = ToolKind.MCP
    holds_to_its_word = True
    ends_when_told: Literal[True] = True
    """A cancelled call ends at once; the server is told in the background."""

    def __init__(
        self, servers: Sequence[McpServer] = (), policy: McpPolicy | None = None, sessions: Sessions | None = None
    ) -> None:
        """`sessions` are those of the executor's own unless given. Raises `ValueError` for two of the same label."""
        self._policy = policy or McpPolicy()
        self._own: dict[str, _OwnServer] = {}
        for server in servers:
            if server.label in self._own:
                raise ValueError(f"There are two MCP servers labelled {server.label!r}.")
            spec, declared = base_spec(server, self._policy), McpTool(server_label=server.label)
            self._own[server.label] = _OwnServer(server, spec, rules_for(server), declared)
        self._untrusted_rules = untrusted_rules(self._policy)
        self._by_server: dict[str, list[_OwnServer]] = defaultdict(list)
        """The operator's servers by what they are: a request may reach one by its address, under another label."""
        for own in self._own.values():
            self._by_server[own.spec.server_id].append(own)
        self._memory = ToolMemory()
        self._sessions = sessions
        self._definitions = Cache[bytes, _Definitions](_MAX_CACHED)
        self._specs = Cache[Hashable, ServerSpec](_MAX_CACHED)
        """Those without credentials of a request: the same ones are asked for with each call."""
        self._is_up: dict[str, bool] = {}
        self._unknown: dict[str, tuple[str, ...]] = {}
        self._failures: Counter[str | None] = Counter()
        self._warming: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"McpExecutor({', '.join(self._own)})"

    @property
    def labels(self) -> Sequence[str]:
        return tuple(self._own)

    def remember_with(self, note: NoteWritingTools) -> None:
        self._memory.note = note

    # ---- what a request is offered ----

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        """Raises `ServerUnavailable`, and `InvalidField` for what may not be declared so."""
        own = self._own.get(declared.server_label)
        if own is None and declared.server_url is UNSET:
            return None
        spec = self._spec(declared, identity)
        listed = await self._list(spec)
        is_same_for_all = own is not None and own.server.authorization == "own"
        if own is not None:
            self._warn_of_unknown(own.server, listed)
        kept = own.declared if own is not None and is_same_for_all else remembered(declared)
        tenants, known = self._tenants(spec), self._definitions.get(spec.key)
        is_made = known is not None and known.listed() is listed and known.declared == kept
        if known is not None and is_made and self._memory.holds(spec, tenants, known.writing):
            return known.tools  # the same objects as long as nothing changes: requests come more often than lists do
        writing = await self._memory.learn(spec, tenants, listed)
        rules = [own.rules] if own is not None else [self._untrusted_rules, *self._rules_at(spec)]
        return self._define(spec, listed, kept, rules, writing)

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        if declared.server_label in self._own or declared.server_url is not UNSET:
            await self._list(self._spec(declared, identity), is_fresh=True)

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:
        own = self._own.get(declared.server_label)
        if own is None and declared.server_url is UNSET:
            return None
        spec = self._spec(declared, identity)
        known = self._definitions.get(spec.key)
        # It is asked for right after the tools, and what was listed then is what they are of.
        listed = (None if known is None else known.listed()) or await self._list(spec)
        return instructions_of(listed, declared, None if own is None else own.server)

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return [
            own.declared
            for own in self._own.values()
            if own.server.standing is not None and own.server.standing.has(model, identity)
        ]

    def _spec(self, declared: McpTool, identity: Identity) -> ServerSpec:
        """Raises `InvalidField`."""
        known: Hashable = None
        if declared.authorization is declared.headers is UNSET:
            known = (declared.server_label, declared.server_url, declared.connector_id, identity.tenant, identity.owner)
            if (spec := self._specs.get(known)) is not None:
                return spec
        own = self._own.get(declared.server_label)
        if own is None:
            spec = untrusted_spec(declared, identity, self._policy)
        else:
            spec = own_spec(own.server, own.spec, declared, identity)
        if known is not None:
            self._specs.put(known, spec)
        return spec

    def _rules_at(self, spec: ServerSpec) -> list[Rules]:
        """Return the operator's rules for a server that a request names by its address."""
        return [own.rules for own in self._by_server.get(spec.server_id, ())]

    def _tenants(self, spec: ServerSpec) -> tuple[str, ...]:
        """Return for whom the server's writing tools are remembered. Of the operator's servers, what the shared session
        has seen counts for all.
        """
        if spec.owner is None:
            return (SHARED,)
        return (spec.owner[0], SHARED) if spec.server_id in self._by_server else (spec.owner[0],)

    def _define(
        self, spec: ServerSpec, listed: ServerTools, declared: McpTool, rules: Sequence[Rules], writing: Writing
    ) -> tuple[ToolDefinition, ...]:
        """Unless another request has done so meanwhile, or nothing but the age of the record has changed."""
        known = self._definitions.get(spec.key)
        if known is None or not known.is_of(listed, declared, writing):
            reference = weakref.ref(listed, partial(self._forget, spec.key))
            tools = define(listed, declared, *rules, writing=writing)
            known = _Definitions(reference, declared, writing, tools)
            self._definitions.put(spec.key, known)
        return known.tools

    def _forget(self, key: bytes, listed: weakref.ReferenceType[ServerTools]) -> None:
        if (known := self._definitions.get(key)) is not None and known.listed is listed:
            self._definitions.discard(key)

    async def _list(self, spec: ServerSpec, *, is_fresh: bool = False) -> ServerTools:
        session = (self._sessions or self._pool()).get(spec)
        try:
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
        return declared.server_label in self._own or (self._policy.declared and isinstance(declared.server_url, str))

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        """Return the limits that the operator has set for the server, also where a request names it by its address.
        None: those for all tools.
        """
        own = self._own.get(tool.server_label or "")
        if own is None and tool.declared is not None and isinstance(tool.declared.server_url, str):
            own = next(iter(self._by_server.get(server_id_of(tool.declared.server_url), ())), None)
        return None if own is None else own.server.limits

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        tool = call.definition
        if tool.declared is None or not self.can_execute(tool):
            raise LookupError(f"There is no tool named {call.name!r} here.")
        arguments = call.arguments.strip() or "{}"
        if not _is_object(arguments):
            return ToolResult(call.id, "The arguments are not a JSON object.", is_error=True)
        spec = self._spec(tool.declared, context.identity)
        session = (self._sessions or self._pool()).get(spec)
        try:
            key = context.idempotency_key
            outcome = await session.call(tool.own_name, arguments, key=key, progress=context.progress)
        except ServerUnavailable as fault:
            self._count_failure(spec)
            return ToolResult(call.id, str(_with_label(fault, spec.label)), is_error=True)
        return ToolResult(call.id, output_of(outcome), is_error=outcome.is_error)

    # ---- start and stop ----

    async def open(self) -> None:
        """Begin to connect to the operator's servers. One that fails is tried again when it is used."""
        for own in self._own.values():
            if own.server.sessions == "shared" and own.server.authorization == "own":
                task = asyncio.create_task(self._warm(own.spec))
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)

    async def _warm(self, spec: ServerSpec) -> None:
        try:
            await self._memory.learn(spec, self._tenants(spec), await self._list(spec))
        except ServerUnavailable:
            pass  # it has been noted
        except Exception:
            _log.exception("the MCP server %r could not be connected to", spec.label)

    async def close(self) -> None:
        await stop(list(self._warming), _CLOSE_SECONDS)
        if self._sessions is not None:
            await self._sessions.close()

    def _pool(self) -> Sessions:
        if self._sessions is None:
            from antwort.tools.mcp.pool import SessionPool

            policy = self._policy
            self._sessions = SessionPool(limit=policy.sessions, idle=policy.idle, reach=policy.reach)
        return self._sessions

    # ---- status: the log has a line when a server fails and when it is back, and not for each request ----

    def status(self) -> Sequence[ServerStatus]:
        """Return how the operator's servers stand, and all others together, as far as is known."""
        own = [ServerStatus(label, self._is_up.get(label), self._failures[label]) for label in self._own]
        return [*own, ServerStatus(None, None, self._failures[None])]

    @property
    def open_sessions(self) -> int:
        return getattr(self._sessions, "open_sessions", 0)

    def _record_failure(self, spec: ServerSpec, fault: ServerUnavailable) -> None:
        self._count_failure(spec)
        if spec.owner is not None:  # how those stand is nobody's but their own
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
        """Warn once, and again when the list changes. What is misspelt may be a demand for approval."""
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
        """The tools that the operator names, and that the server's latest list does not have."""
        return self._unknown.get(label, ())

    def _count_failure(self, spec: ServerSpec) -> None:
        self._failures[None if spec.is_untrusted else spec.label] += 1


def _with_label(fault: ServerUnavailable, label: str) -> ServerUnavailable:
    """Return the same fault with the label in its text, which sessions do not know."""
    text = _SERVER.sub(lambda found: f"{found[0]} {label!r}", str(fault), count=1)
    if text == str(fault):
        return fault
    named = type(fault)(text)
    named.details = fault.details
    return named


_decode = msgspec.json.Decoder().decode


def _is_object(arguments: str) -> bool:
    """Return whether it is the text of one JSON object: it becomes part of a message, which it must not end."""
    try:
        return isinstance(_decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
