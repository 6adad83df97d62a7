"""A connection to one server: what is agreed on first, and what can be asked over it."""

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
    Path,
    Refused,
    Report,
    Request,
    Unsent,
    header_parameters,
    header_value,
    parameter_headers,
    progress_of,
)
from antwort.tools.mcp.sse import SseTransport
from antwort.tools.mcp.stdio import StdioTransport
from antwort.tools.mcp.throttle import Allowance, Unsolicited
from antwort.tools.mcp.transport import Transport
from antwort.version import __version__

_log = logging.getLogger(__name__)

_PROBE_SHARE = 0.4
"""Of the time for connecting: what a server has for saying that it does not know the modern version."""
_RELISTEN_SECONDS = 30.0
"""Time before a stream of changes that broke off is asked for again."""
_CLOSE_SECONDS = 1.0
_MAX_UNTRUSTED_INSTRUCTIONS = 256 * 1024
_CLIENT = {"name": "antwort", "version": __version__}
_MODERN_META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_UNREACHED = "The MCP server cannot be reached."


class Call(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    key: str
    report: Report | None = None
    tool: ServerTool | None = None
    """As the server lists it; None where it has not."""


class _ListedTool(NamedTuple):
    """What follows for its calls from how a tool is listed."""

    tool: ServerTool | None
    head: bytes
    parameters: Mapping[Path, str]
    """Those that are repeated in the head, with the names of their headers."""
    is_repeatable: bool


class Connection:
    """Whoever asks something over a connection does so in a task of their own; `changed` is called when the server says
    that its list of tools is another one.
    """

    def __init__(
        self, spec: ServerSpec, policy: AddressPolicy | None, allowance: Allowance, changed: Callable[[], None]
    ) -> None:
        self.is_unproven = True
        """Whether it has answered nothing yet: one that ends so is as good as one that was never made."""
        self.over = asyncio.Event()
        self.agreement = Agreement(version="", is_modern=False)
        self.unsolicited = Unsolicited(allowance, self._take_progress, self._take_change, self._acknowledge)
        self._spec, self._policy, self._changed = spec, policy, changed
        self._transport: Transport | None = None
        self._reports: dict[object, Report] = {}
        self._ids = count(1)
        self._calls = 0
        self._is_retired = self._was_acknowledged = False
        self._listed: dict[str, _ListedTool] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Task[None] | None = None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None, "it is open"
        return self._transport

    @property
    def is_usable(self) -> bool:
        """Whether anything may still be asked over it."""
        return not self.over.is_set() and not self._is_retired

    @property
    def details(self) -> str:
        return "" if self._transport is None else self._transport.details

    # ---- begin and end ----

    async def open(self, *, tries_modern: bool) -> None:
        """Connect, and agree on a version of the protocol. Raises `ServerUnavailable`; close it also then."""
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
        except (Refused, HttpError) as exc:
            raise ServerUnavailable(NOT_AN_ANSWER) from exc
        except ServerUnavailable as exc:
            if type(exc) is not ServerUnavailable:
                raise
            raise ServerUnavailable(NOT_AN_ANSWER) from exc  # it speaks of a call, and there was none
        if self._spec.is_untrusted and len(agreement.instructions or "") > _MAX_UNTRUSTED_INSTRUCTIONS:
            raise ServerUnavailable(TOO_LONG)
        self.agreement = agreement
        listening = self._listen() if agreement.is_modern else self._transport.listen()
        self._listener = asyncio.create_task(listening, context=Context())

    def end(self) -> None:
        """Nothing more is asked over it."""
        self.over.set()
        if self._listener is not None and self._listener is not asyncio.current_task():
            self._listener.cancel()

    def retire(self) -> None:
        """No further calls begin. It ends with the last of those that are under way."""
        self._is_retired = True
        if not self._calls:
            self.end()

    async def close(self) -> None:
        """Let what is being told the server go out, within a second, and close all."""
        self.end()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._listener is not None:
                    await asyncio.wait([self._listener])
                if self._tasks:
                    await asyncio.wait(self._tasks)
                if self._transport is not None:
                    await self._transport.leave()
        except TimeoutError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            if self._transport is not None:
                await self._transport.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something that may outlive the run that it is for."""
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- questions ----

    async def page(self, cursor: str | None) -> object:
        """Return a page of the list of tools. Raises as `Transport.request` does."""
        spec = self._spec
        most = min(spec.largest, MAX_UNTRUSTED_PAGE_BYTES) if spec.is_untrusted else spec.largest
        return await self._ask(
            self._request("tools/list", {} if cursor is None else {"cursor": cursor}, max_bytes=most)
        )

    def call(self, call: Call) -> Coroutine[Any, Any, object]:
        """Return what the server answers. Raises as `Transport.request` does."""
        request_id = self._next_id()
        meta: dict[str, Any] = {IDEMPOTENCY_KEY: call.key}
        if call.report is not None:
            meta["progressToken"] = request_id
        listed = self._listed.get(call.name)
        if listed is None or listed.tool is not call.tool:
            listed = self._prepare(call.name, call.tool)
        head = listed.head
        if listed.parameters:
            head += header_lines(parameter_headers(listed.parameters, msgspec.json.decode(call.arguments)))
        request = self._request(
            "tools/call",
            {"name": call.name, "arguments": msgspec.Raw(call.arguments.encode())},
            request_id,
            meta=meta,
            head=head,
            is_repeatable=listed.is_repeatable,
            max_bytes=self._spec.largest,
        )
        return self._ask(request, call.report)

    def allows(self, schema: object) -> bool:
        """Return whether the protocol lets a client use a tool with that schema."""
        return not self.agreement.is_modern or header_parameters(schema) is not None

    async def _ask(self, request: Request, report: Report | None = None) -> object:
        if self.over.is_set():
            raise Unsent
        self._calls += 1
        if report is not None:
            self._reports[request.id] = report
        try:
            answer = await self.transport.request(request)
        except Refused:
            self.is_unproven = False
            raise
        finally:
            self._reports.pop(request.id, None)
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

    def tell_of_cancel(self, request_id: str | int) -> None:
        params = {"requestId": request_id, "reason": "cancelled"}
        self.spawn(self.transport.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))

    def _next_id(self) -> str | int:
        """Programs and old servers may know whole numbers only."""
        number = next(self._ids)
        return f"antwort-{number}" if self._spec.transport == "http" else number

    def _prepare(self, name: str, tool: ServerTool | None) -> _ListedTool:
        is_modern = self.agreement.is_modern
        listed = _ListedTool(
            tool,
            header_lines({"Mcp-Method": "tools/call", "Mcp-Name": header_value(name)}) if is_modern else b"",
            (header_parameters(tool.input_schema) or {}) if tool is not None and is_modern else {},
            tool is not None and is_repeatable(tool),
        )
        if tool is not None:  # else the name may be any
            self._listed[name] = listed
        return listed

    def _take_progress(self, params: object) -> bool:
        """Return whether it is of a call that is under way. Whoever hears of it may fail, and ends nothing by that."""
        if (said := progress_of(params)) is None or not isinstance(said[0], str | int):
            return False
        if (report := self._reports.get(said[0])) is None:
            return False
        try:
            report(said[1])
        except Exception:
            _log.exception("The progress of a call could not be told.")
        return True

    def _take_change(self) -> None:
        if not self.over.is_set():  # it would be followed over another connection, whose list is a fresh one anyway
            self._changed()

    # ---- handshake ----

    def _make_transport(self) -> Transport:
        match self._spec.transport:
            case "http":
                return StreamableHttp(self._spec, self._policy, self)
            case "sse":
                return SseTransport(self._spec, self._policy, self)
            case "stdio":
                return StdioTransport(self._spec, self)

    async def _discover(self, seconds: float | None = None) -> Agreement | None:
        """Ask for the modern version. None: the server does not know it."""
        head = header_lines({"MCP-Protocol-Version": MODERN_VERSION, "Mcp-Method": "server/discover"})
        try:
            async with asyncio.timeout(self._spec.connect * _PROBE_SHARE if seconds is None else seconds):
                result = await self._ask_first(self._request("server/discover", {}, meta=_MODERN_META, head=head))
        except Unauthorized as exc:
            if not isinstance(exc, Forbidden):  # some forbid what they do not know
                raise
            return None
        except NotReached:
            raise
        except (Refused, ServerUnavailable, TimeoutError):
            return None
        versions = result.get("supportedVersions")
        if not isinstance(versions, list) or MODERN_VERSION not in versions:
            return None
        return self._agree(MODERN_VERSION, result)

    async def _initialize(self, *, tries_modern: bool) -> Agreement:
        params = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}, "clientInfo": _CLIENT}
        try:
            result = await self._ask_first(self._request("initialize", params))
        except Refused as refused:
            late = refused.code == UNSUPPORTED_VERSION and tries_modern  # it was slow to say so, and knows nothing else
            if late and (agreement := await self._discover(self._spec.connect)) is not None:
                return agreement
            raise
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            raise ServerUnavailable(NOT_AN_ANSWER)
        agreement = self._agree(str(version), result)
        try:  # what is asked over another connection must not come before it
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

    # ---- changes, in the modern version ----

    def _acknowledge(self) -> None:
        if self._was_acknowledged:
            self._take_change()  # while nobody listened
        self._was_acknowledged = True

    async def _listen(self) -> None:
        """Have the server tell of changes. A server that has done so before is asked again when the stream ends."""
        while self.agreement.announces_changes:
            params = {"notifications": {"toolsListChanged": True}}
            try:
                await self.transport.request(self._request("subscriptions/listen", params))
            except Refused:
                return
            except (Unsent, ServerUnavailable):
                if not self._was_acknowledged:
                    return
            await asyncio.sleep(max(_RELISTEN_SECONDS, self.unsolicited.allowance.pause()))


def is_repeatable(tool: ServerTool) -> bool:
    """Return whether the tool says that to run it twice does no more than once."""
    hints = tool.annotations or {}
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


_encode = msgspec.json.Encoder().encode
