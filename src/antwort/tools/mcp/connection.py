"""One connection to a server: the handshake, the requests made over it, and the messages that answer none."""

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
    JsonRpcError,
    JsonRpcMessage,
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
_NOTIFY_SECONDS = 10.0
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

    `on_change` is called when the server says that its list of tools has changed; `on_end` once, when the connection
    takes no more requests and is being closed.
    """

    def __init__(
        self,
        spec: ServerSpec,
        policy: AddressPolicy | None,
        allowance: Allowance,
        on_change: Callable[[], None],
        on_end: Callable[[McpConnection], None],
    ) -> None:
        """Raises `AddressNotAllowed`."""
        self.spec, self.allowance = spec, allowance
        self.version = ""
        """The version of the protocol; empty until it is negotiated."""
        self.is_modern = False
        self.instructions: str | None = None
        self.uses = 0
        """The calls and lists in progress."""
        self.is_usable = True
        """Whether it takes requests."""
        self.is_unproven = True
        """Whether nothing was answered yet. A connection that ends so counts as a failure to connect."""
        self.closing: asyncio.Task[None] | None = None
        self._on_change, self._on_end = on_change, on_end
        self._on_progress: dict[object, OnProgress] = {}
        self._ids = count(1)
        self._templates: dict[str, _CallTemplate] = {}
        self._announces_changes = self._was_acknowledged = False
        self._listener: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.transport: McpTransport
        match spec.transport:
            case "http":
                self.transport = StreamableHttp(spec, policy, self)
            case "sse":
                self.transport = SseTransport(spec, policy, self)
            case "stdio":
                self.transport = StdioTransport(spec, self)

    # ---- begin and end ----

    async def open(self, *, tries_modern: bool) -> None:
        """Connect, and negotiate the version of the protocol. Raises `ServerUnavailable`; end it also then."""
        try:
            await self.transport.open()
            if not (tries_modern and await self._discover(self.spec.connect * _PROBE_SHARE)):
                await self._initialize(tries_modern=tries_modern)
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
        if self.spec.is_untrusted and len(self.instructions or "") > _MAX_UNTRUSTED_INSTRUCTIONS:
            raise ServerUnavailable(TOO_LONG)
        listening = self._listen() if self.is_modern else self.transport.listen()
        self._listener = asyncio.create_task(listening, context=Context())

    def retire(self) -> None:
        """Take no further calls, and end with the last of those that are in progress."""
        self.is_usable = False
        if not self.uses:
            self.end()

    def end(self) -> asyncio.Task[None]:
        """Take no more requests, and close the connection in the background, by the task that is returned."""
        if self.closing is None:
            self.is_usable = False
            if self._listener is not None and self._listener is not asyncio.current_task():
                self._listener.cancel()
            self.closing = asyncio.create_task(self._close(), name="mcp session", context=Context())
            self._on_end(self)
        return self.closing

    async def _close(self) -> None:
        """Send the notifications that are under way, within a second, and close the transport."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._listener is not None:
                    await asyncio.wait([self._listener])
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await self.transport.end_session()
        except TimeoutError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            await self.transport.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the background. It may outlive the run that it is for."""
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- requests ----

    async def page(self, cursor: str | None) -> object:
        """Return a page of the list of tools. Raises as `McpTransport.request` does."""
        most = min(self.spec.largest, MAX_UNTRUSTED_PAGE_BYTES) if self.spec.is_untrusted else self.spec.largest
        return await self._ask("tools/list", {} if cursor is None else {"cursor": cursor}, max_bytes=most)

    async def call(
        self, name: str, arguments: str, key: str, on_progress: OnProgress | None, tool: ServerTool | None
    ) -> object:
        """Return the result of `tools/call`. `tool` is the tool as the server lists it, if it does. Raises as
        `McpTransport.request` does.
        """
        template = self._templates.get(name)
        if template is None or template.tool is not tool:
            template = self._template(name, tool)
        head = template.head
        if template.parameters:
            head += header_lines(parameter_headers(template.parameters, msgspec.json.decode(arguments)))
        params = {
            "name": name,
            "arguments": msgspec.Raw(arguments.encode()),
            "_meta": {**_MODERN_META, IDEMPOTENCY_KEY: key} if self.is_modern else {IDEMPOTENCY_KEY: key},
        }
        return await self._ask(
            "tools/call",
            params,
            head=head,
            on_progress=on_progress,
            is_repeatable=template.is_repeatable,
            max_bytes=self.spec.largest,
        )

    def allows(self, schema: object) -> bool:
        """Return whether the protocol allows the use of a tool with that schema."""
        return not self.is_modern or header_parameters(schema) is not None

    async def _ask(
        self,
        method: str,
        params: dict[str, Any],
        *,
        head: bytes | None = None,
        on_progress: OnProgress | None = None,
        is_repeatable: bool = True,
        max_bytes: int = MAX_HANDSHAKE_BYTES,
    ) -> object:
        """Send a request and return its result. A cancelled one is cancelled at the server, too: in the modern version
        over HTTP by the end of its stream.
        """
        if self.closing is not None:
            raise Unsent
        number = next(self._ids)
        # For programs and old servers it is a number, because some know no other ids.
        request_id = f"antwort-{number}" if self.spec.transport == "http" else number
        if self.is_modern:
            head = header_lines({"Mcp-Method": method}) if head is None else head
            params.setdefault("_meta", _MODERN_META)
        if on_progress is not None:
            self._on_progress[request_id] = on_progress
            params["_meta"]["progressToken"] = request_id
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if params:
            message["params"] = params
        request = Request(
            id=request_id,
            body=_encode(message),
            head=head or b"",
            is_repeatable=is_repeatable,
            max_bytes=min(max_bytes, self.spec.largest),
        )
        try:
            return await self.transport.request(request)
        except asyncio.CancelledError:
            is_told = self.is_modern and self.spec.transport == "http"
            if self.version and not is_told and self.closing is None:
                cancelled = {"requestId": request_id, "reason": "cancelled"}
                self.spawn(self.notify_safely(_notification("notifications/cancelled", cancelled)))
            raise
        finally:
            if on_progress is not None:
                del self._on_progress[request_id]

    def _template(self, name: str, tool: ServerTool | None) -> _CallTemplate:
        template = _CallTemplate(
            tool,
            header_lines({"Mcp-Method": "tools/call", "Mcp-Name": header_value(name)}) if self.is_modern else b"",
            (header_parameters(tool.input_schema) or {}) if tool is not None and self.is_modern else {},
            tool is not None and tool.is_repeatable,
        )
        if tool is not None:  # names that are not listed are unbounded in number
            self._templates[name] = template
        return template

    async def notify_safely(self, message: JsonRpcMessage) -> None:
        """Send a message that may be lost. Raises nothing."""
        try:
            async with asyncio.timeout(_NOTIFY_SECONDS):
                await self.transport.notify(message)
        except (TimeoutError, HttpError, ServerUnavailable):
            if self.spec.transport == "sse":  # its other messages may be lost as well
                self.retire()

    # ---- handshake ----

    async def _discover(self, seconds: float) -> bool:
        """Ask for the modern version. Return False when the server does not know it."""
        head = header_lines({"MCP-Protocol-Version": MODERN_VERSION, "Mcp-Method": "server/discover"})
        try:
            async with asyncio.timeout(seconds):
                result = await self._ask("server/discover", {"_meta": _MODERN_META}, head=head)
        except Unauthorized as exc:
            if not isinstance(exc, Forbidden):  # some servers forbid methods that they do not know
                raise
            return False
        except NotReached:
            raise
        except (JsonRpcError, ServerUnavailable, TimeoutError):
            return False
        if not isinstance(result, dict) or not isinstance(versions := result.get("supportedVersions"), list):
            return False
        if MODERN_VERSION not in versions:
            return False
        self._agree(MODERN_VERSION, result)
        return True

    async def _initialize(self, *, tries_modern: bool) -> None:
        params = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}, "clientInfo": _CLIENT}
        try:
            result = await self._ask("initialize", params)
        except JsonRpcError as refused:
            late = refused.code == UNSUPPORTED_VERSION and tries_modern  # it was slow to answer, and knows only that
            if late and await self._discover(self.spec.connect):
                return
            raise
        if not isinstance(result, dict) or (version := result.get("protocolVersion")) not in HANDSHAKE_VERSIONS:
            raise ServerUnavailable(NOT_AN_ANSWER)
        self._agree(version, result)
        try:  # requests over other TCP connections must not come before it
            async with asyncio.timeout(self.spec.connect * _PROBE_SHARE):
                await self.transport.notify(_notification("notifications/initialized"))
        except TimeoutError:
            pass

    def _agree(self, version: str, result: Mapping[str, Any]) -> None:
        self.version, self.is_modern = version, version == MODERN_VERSION
        instructions, capabilities = result.get("instructions"), result.get("capabilities")
        self.instructions = instructions if isinstance(instructions, str) else None
        tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
        self._announces_changes = isinstance(tools, dict) and tools.get("listChanged") is True
        self.transport.agree(version)

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
            await self.allowance.spend(size + LIGHT_BYTES, only_waits=not self.spec.is_untrusted)
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
        if self.closing is None:  # otherwise the next connection requests a list anyway
            self._on_change()

    async def _listen(self) -> None:
        """Subscribe to change notices, and again when the stream ends, if the server has acknowledged it before."""
        while self._announces_changes:
            try:
                await self._ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            except JsonRpcError:
                return
            except (Unsent, ServerUnavailable):
                if not self._was_acknowledged:
                    return
            await asyncio.sleep(max(_RELISTEN_SECONDS, self.allowance.pause()))


def _notification(method: str, params: Mapping[str, Any] | None = None) -> JsonRpcMessage:
    message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


_encode = msgspec.json.Encoder().encode
