"""One connection to a server: the handshake, and the requests that are made over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from itertools import count
from typing import Any, NamedTuple

import msgspec

from antwort.net.client import header_lines
from antwort.net.response import HttpError
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy
from antwort.tools.mcp.base import Forbidden, NotReached, ServerSpec, ServerTool, ServerUnavailable, Unauthorized
from antwort.tools.mcp.conversion import MAX_UNTRUSTED_PAGE_BYTES
from antwort.tools.mcp.endpoint import MAX_HANDSHAKE_BYTES
from antwort.tools.mcp.http import StreamableHttp
from antwort.tools.mcp.messages import (
    HANDSHAKE_VERSIONS,
    IDEMPOTENCY_KEY,
    MODERN_VERSION,
    NOT_AN_ANSWER,
    TOO_LONG,
    UNSUPPORTED_VERSION,
    Agreement,
    JsonRpcError,
    OnProgress,
    Request,
    SchemaPath,
    Unsent,
    header_parameters,
    header_value,
    parameter_headers,
    progress_of,
)
from antwort.tools.mcp.sse import SseTransport
from antwort.tools.mcp.stdio import StdioTransport
from antwort.tools.mcp.throttle import HEAVY_BYTES, LIGHT_BYTES, PROGRESS_BYTES, Allowance, Decliner
from antwort.tools.mcp.transport import McpTransport
from antwort.version import __version__

_log = logging.getLogger(__name__)

_PROBE_SHARE = 0.4
"""Share of the time for connecting in which a server may answer to the modern version."""
_RELISTEN_SECONDS = 30.0
"""Time before a stream of change notices that has ended is opened again."""
_CLOSE_SECONDS = 1.0
_MAX_UNTRUSTED_INSTRUCTIONS = 256 * 1024
_CLIENT = {"name": "antwort", "version": __version__}
_MODERN_META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_UNREACHED = "The MCP server cannot be reached."


class _CallTemplate(NamedTuple):
    """The parts of a call that are the same for all calls of a tool."""

    tool: ServerTool | None
    head: bytes
    parameters: Mapping[SchemaPath, str]
    """Parameters that are repeated in headers, with the names of these headers."""
    is_repeatable: bool


class McpConnection:
    """A connection to a server, opened and closed once. Requests run in the tasks of their callers.

    `on_change` is called when the server says that its list of tools has changed.
    """

    def __init__(
        self, spec: ServerSpec, policy: AddressPolicy | None, allowance: Allowance, on_change: Callable[[], None]
    ) -> None:
        self.is_unproven = True
        """Whether nothing was answered yet. A connection that ends so counts as a failure to connect."""
        self.over = asyncio.Event()
        self.agreement = Agreement(version="", is_modern=False)
        self.allowance = allowance
        self._spec, self._policy, self._on_change = spec, policy, on_change
        self._transport: McpTransport | None = None
        self._on_progress: dict[object, OnProgress] = {}
        self._ids = count(1)
        self._calls = 0
        self._is_retired = self._was_acknowledged = False
        self._templates: dict[str, _CallTemplate] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Task[None] | None = None

    @property
    def transport(self) -> McpTransport:
        assert self._transport is not None, "it is open"
        return self._transport

    @property
    def is_usable(self) -> bool:
        """Whether it still takes requests."""
        return not self.over.is_set() and not self._is_retired

    @property
    def details(self) -> str:
        return "" if self._transport is None else self._transport.details

    # ---- begin and end ----

    async def open(self, *, tries_modern: bool) -> None:
        """Connect, and negotiate the version of the protocol. Raises `ServerUnavailable`; close it also then."""
        try:
            self._transport = self._make_transport()
            await self._transport.open()
            agreement = await self._discover() if tries_modern else None
            if agreement is None:
                agreement = await self._initialize(tries_modern=tries_modern)
        except AddressNotAllowed as exc:
            raise NotReached(f"The address of the MCP server {exc}") from exc
        except Unsent as exc:
            if isinstance(exc.__cause__, AddressNotAllowed):
                raise NotReached(f"The address of the MCP server {exc.__cause__}") from exc
            raise (NotReached(_UNREACHED) if exc.__cause__ else ServerUnavailable(NOT_AN_ANSWER)) from exc
        except (JsonRpcError, HttpError) as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except ServerUnavailable as exc:
            if type(exc) is not ServerUnavailable:
                raise
            raise ServerUnavailable(NOT_AN_ANSWER) from exc  # its text is about a call, and there was none
        if self._spec.is_untrusted and len(agreement.instructions or "") > _MAX_UNTRUSTED_INSTRUCTIONS:
            raise ServerUnavailable(TOO_LONG)
        self.agreement = agreement
        listening = self._listen() if agreement.is_modern else self._transport.listen()
        self._listener = asyncio.create_task(listening, context=Context())

    def end(self) -> None:
        """Take no more requests."""
        self.over.set()
        if self._listener is not None and self._listener is not asyncio.current_task():
            self._listener.cancel()

    def retire(self) -> None:
        """Take no further calls, and end with the last of those that are in progress."""
        self._is_retired = True
        if not self._calls:
            self.end()

    async def close(self) -> None:
        """Send the notifications that are under way, within a second, and close the transport."""
        self.end()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._listener is not None:
                    await asyncio.wait([self._listener])
                if self._tasks:
                    await asyncio.wait(self._tasks)
                if self._transport is not None:
                    await self._transport.end_session()
        except TimeoutError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            if self._transport is not None:
                await self._transport.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background. It may outlive the run that it is for."""
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- requests ----

    async def page(self, cursor: str | None) -> object:
        """Return a page of the list of tools. Raises as `McpTransport.request` does."""
        spec = self._spec
        most = min(spec.largest, MAX_UNTRUSTED_PAGE_BYTES) if spec.is_untrusted else spec.largest
        return await self._ask(
            self._request("tools/list", {} if cursor is None else {"cursor": cursor}, max_bytes=most)
        )

    def call(
        self, name: str, arguments: str, key: str, on_progress: OnProgress | None, tool: ServerTool | None
    ) -> Coroutine[Any, Any, object]:
        """Return the result of `tools/call`. `tool` is the tool as the server lists it, if it does. Raises as
        `McpTransport.request` does.
        """
        request_id = self._next_id()
        meta: dict[str, Any] = {IDEMPOTENCY_KEY: key}
        if on_progress is not None:
            meta["progressToken"] = request_id
        template = self._templates.get(name)
        if template is None or template.tool is not tool:
            template = self._template(name, tool)
        head = template.head
        if template.parameters:
            head += header_lines(parameter_headers(template.parameters, msgspec.json.decode(arguments)))
        request = self._request(
            "tools/call",
            {"name": name, "arguments": msgspec.Raw(arguments.encode())},
            request_id,
            meta=meta,
            head=head,
            is_repeatable=template.is_repeatable,
            max_bytes=self._spec.largest,
        )
        return self._ask(request, on_progress)

    def allows(self, schema: object) -> bool:
        """Return whether the protocol allows the use of a tool with that schema."""
        return not self.agreement.is_modern or header_parameters(schema) is not None

    async def _ask(self, request: Request, on_progress: OnProgress | None = None) -> object:
        if self.over.is_set():
            raise Unsent
        self._calls += 1
        if on_progress is not None:
            self._on_progress[request.id] = on_progress
        try:
            answer = await self.transport.request(request)
        except JsonRpcError:
            self.is_unproven = False
            raise
        finally:
            self._on_progress.pop(request.id, None)
            self._calls -= 1
            if self._is_retired:
                self.retire()
        self.is_unproven = False
        return answer

    def _request(
        self,
        method: str,
        params: Mapping[str, Any],
        request_id: str | int | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        head: bytes | None = None,
        is_repeatable: bool = True,
        max_bytes: int = MAX_HANDSHAKE_BYTES,
    ) -> Request:
        if request_id is None:
            request_id = self._next_id()
        if head is None:
            head = header_lines({"Mcp-Method": method}) if self.agreement.is_modern else b""
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        meta = {**self.agreement.meta, **meta} if meta else self.agreement.meta
        if meta or params:
            message["params"] = {**params, "_meta": meta} if meta else params
        return Request(
            id=request_id,
            body=_encode(message),
            head=head,
            is_repeatable=is_repeatable,
            is_cancellable=bool(self.agreement.version),
            max_bytes=min(max_bytes, self._spec.largest),
        )

    def send_cancelled(self, request_id: str | int) -> None:
        params = {"requestId": request_id, "reason": "cancelled"}
        self.spawn(
            self.transport.notify_safely({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        )

    def _next_id(self) -> str | int:
        """Return an id. For programs and old servers it is a number, because some know no other ids."""
        number = next(self._ids)
        return f"antwort-{number}" if self._spec.transport == "http" else number

    def _template(self, name: str, tool: ServerTool | None) -> _CallTemplate:
        is_modern = self.agreement.is_modern
        template = _CallTemplate(
            tool,
            header_lines({"Mcp-Method": "tools/call", "Mcp-Name": header_value(name)}) if is_modern else b"",
            (header_parameters(tool.input_schema) or {}) if tool is not None and is_modern else {},
            tool is not None and is_repeatable(tool),
        )
        if tool is not None:  # names that are not listed are unbounded in number
            self._templates[name] = template
        return template

    # ---- handshake ----

    def _make_transport(self) -> McpTransport:
        match self._spec.transport:
            case "http":
                return StreamableHttp(self._spec, self._policy, self)
            case "sse":
                return SseTransport(self._spec, self._policy, self)
            case "stdio":
                return StdioTransport(self._spec, self)

    async def _discover(self, seconds: float | None = None) -> Agreement | None:
        """Ask for the modern version. Return None when the server does not know it."""
        head = header_lines({"MCP-Protocol-Version": MODERN_VERSION, "Mcp-Method": "server/discover"})
        try:
            async with asyncio.timeout(self._spec.connect * _PROBE_SHARE if seconds is None else seconds):
                result = await self._ask_first(self._request("server/discover", {}, meta=_MODERN_META, head=head))
        except Unauthorized as exc:
            if not isinstance(exc, Forbidden):  # some servers forbid methods that they do not know
                raise
            return None
        except NotReached:
            raise
        except (JsonRpcError, ServerUnavailable, TimeoutError):
            return None
        versions = result.get("supportedVersions")
        if not isinstance(versions, list) or MODERN_VERSION not in versions:
            return None
        return self._agree(MODERN_VERSION, result)

    async def _initialize(self, *, tries_modern: bool) -> Agreement:
        params = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}, "clientInfo": _CLIENT}
        try:
            result = await self._ask_first(self._request("initialize", params))
        except JsonRpcError as refused:
            late = refused.code == UNSUPPORTED_VERSION and tries_modern  # it was slow to answer, and knows only that
            if late and (agreement := await self._discover(self._spec.connect)) is not None:
                return agreement
            raise
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            raise ServerUnavailable(NOT_AN_ANSWER)
        agreement = self._agree(str(version), result)
        try:  # requests over other TCP connections must not come before it
            async with asyncio.timeout(self._spec.connect * _PROBE_SHARE):
                await self.transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except TimeoutError:
            pass
        return agreement

    async def _ask_first(self, request: Request) -> dict[str, Any]:
        result = await self.transport.request(request)
        if not isinstance(result, dict):
            raise ServerUnavailable(NOT_AN_ANSWER)
        return result

    def _agree(self, version: str, result: Mapping[str, Any]) -> Agreement:
        instructions, capabilities = result.get("instructions"), result.get("capabilities")
        tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
        is_modern = version == MODERN_VERSION
        agreement = Agreement(
            version=version,
            is_modern=is_modern,
            meta=_MODERN_META if is_modern else {},
            instructions=instructions if isinstance(instructions, str) else None,
            announces_changes=isinstance(tools, dict) and tools.get("listChanged") is True,
        )
        self.transport.agree(agreement)
        return agreement

    # ---- unsolicited messages ----

    async def take_unsolicited(self, message: object, size: int, decliner: Decliner) -> bool:
        """Handle a message that answers no request. Return False when the server has sent too many requests. Raises
        `Flooded`.
        """
        if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
            await self.skip(size)
        elif "id" in message:
            await self.allowance.spend(size + HEAVY_BYTES)
            return await decliner.decline(message["id"], method)
        elif method == "notifications/tools/list_changed":
            await self.allowance.spend(size + HEAVY_BYTES)
            self._report_change()
        elif method == "notifications/subscriptions/acknowledged":
            await self.allowance.spend(size + HEAVY_BYTES)
            if self._was_acknowledged:  # notices were missed since the last subscription ended
                self._report_change()
            self._was_acknowledged = True
        elif method == "notifications/progress" and self._take_progress(message.get("params")):
            await self.allowance.spend(size + PROGRESS_BYTES, only_waits=True)
        else:  # an operator's tool may log each line of its work, and that must not end calls
            await self.allowance.spend(size + LIGHT_BYTES, only_waits=not self.allowance.is_untrusted)
        return True

    async def skip(self, size: int) -> None:
        """Count a comment, an empty event or an invalid line. Raises `Flooded`."""
        await self.allowance.spend(size + LIGHT_BYTES)

    def _take_progress(self, params: object) -> bool:
        """Pass progress on. Return whether it belongs to a call in progress. Errors of the callback are only logged."""
        if (found := progress_of(params)) is None or not isinstance(found[0], str | int):
            return False
        if (on_progress := self._on_progress.get(found[0])) is None:
            return False
        try:
            on_progress(found[1])
        except Exception:
            _log.exception("The progress of a call could not be told.")
        return True

    def _report_change(self) -> None:
        if not self.over.is_set():  # otherwise the next connection requests a list anyway
            self._on_change()

    async def _listen(self) -> None:
        """Subscribe to change notices, and again when the stream ends, if the server has acknowledged it before."""
        while self.agreement.announces_changes:
            params = {"notifications": {"toolsListChanged": True}}
            try:
                await self.transport.request(self._request("subscriptions/listen", params))
            except JsonRpcError:
                return
            except (Unsent, ServerUnavailable):
                if not self._was_acknowledged:
                    return
            await asyncio.sleep(max(_RELISTEN_SECONDS, self.allowance.pause()))


def is_repeatable(tool: ServerTool) -> bool:
    """Return whether the tool is annotated as read-only or idempotent, so that a call may be sent again."""
    hints = tool.annotations or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


_encode = msgspec.json.Encoder().encode
