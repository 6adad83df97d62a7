"""Sessions as the SDK makes them: the transport, the handshake, and what the server says by itself.

Importing this takes the SDK, which costs over a second: it comes with the first session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeAlias

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable, Unauthorized
from antwort.tools.mcp.connection import Connection
from antwort.tools.mcp.declining import Declining, Message
from antwort.tools.mcp.lean import Line
from antwort.tools.mcp.login import Login, log_in
from antwort.tools.mcp.messages import TOO_LONG, UNAUTHORIZED, Agreement
from antwort.tools.mcp.older import older
from antwort.tools.mcp.program import program
from antwort.tools.mcp.quiet import hush, own_context
from antwort.tools.mcp.streams import Hearing, Streams, Writing
from antwort.tools.mcp.tool_list import STRANGERS_PAGE
from antwort.tools.mcp.unsolicited_traffic import Allowance, Unsolicited
from antwort.tools.mcp.watching import Watch, Watched
from antwort.tools.mcp.web import LARGEST_OTHER, Web, WebTransport
from antwort.version import __version__

Mode: TypeAlias = Literal["auto", "legacy"]
"""Whether the server is first asked for the newer versions of the protocol, which know no handshake."""

_PROBE_SHARE = 0.4
"""Of the time for connecting: what a server has for saying that it does not know the newer versions."""
_RELISTEN = 30.0
"""Seconds before a stream of changes that broke off is asked for again."""
_GOODBYE = 1.0
_LONGEST_GREETING = 256 * 1024
"""Characters of what the server of a stranger says of itself."""
_US = types.Implementation(name="antwort", version=__version__)

_log = logging.getLogger(__name__)

hush()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is made of. `ready` is given the connection, and `left` hears that it is over and only has to be
    closed; `changed` hears that the tools are others now. `explain` hears why a program is not
    there, for its operator. `allowance` outlives the session.
    """

    spec: ServerSpec
    reach: AddressPolicy | None
    allowance: Allowance
    explain: Callable[[str], None]
    ready: Callable[[Connection], None]
    left: Callable[[], None]
    changed: Callable[[], None]


async def hold(setting: Setting, mode: Mode) -> None:
    """Connect, hand out the connection, and hold it until it is over. One task enters and leaves everything here.

    Raises whatever the SDK raises: groups of exceptions, and cancellations that nobody has asked for, among it.
    """
    if setting.spec.transport == "stdio":
        talk = _Talk(setting, mode)
        async with program(setting.spec, talk.unsolicited, setting.explain) as streams:
            await talk.hold(streams)
        return
    web = Web(setting.spec, setting.reach)
    try:
        await _WebTalk(setting, mode, web).hold_over_http()
    finally:
        await web.close()


class _Talk:
    """One session from its handshake to its end."""

    watch: Watch | None = None

    def __init__(self, setting: Setting, mode: Mode) -> None:
        self._setting = setting
        self._mode = mode
        self._over = asyncio.Event()
        self._connection: Connection | None = None
        self.unsolicited = Unsolicited(setting.allowance, self._hear_progress)

    async def hold(self, streams: Streams) -> None:
        read, write = streams
        answers = _Answers(write, self._over)
        dispatcher = JSONRPCDispatcher[Any](Hearing(read, self._over, answers.decline), write)
        async with ClientSession(dispatcher=dispatcher, client_info=_US, message_handler=self._hear) as session:
            await self._negotiate(session)
            if session.initialize_result is not None:
                await self.greet()
            if self._setting.spec.is_strangers:
                _check_size(session)
            connection = self._connection = Connection(dispatcher, _agreement(session), self._over, self.watch)
            self.lighten(connection)
            answers.connection = connection
            try:
                self._setting.ready(connection)
                await self._stay(session, connection.agreed)
            finally:
                answers.close()
                connection.end()
                self._setting.left()
            await connection.finish(_GOODBYE)

    async def greet(self) -> None:
        """The handshake's last message goes before all others; only over streamable HTTP must that be waited for."""

    def lighten(self, connection: Connection) -> None:
        """Only sessions over streamable HTTP can be."""

    async def _negotiate(self, session: ClientSession) -> None:
        if self._mode == "auto" and await self._discover(session):
            return
        try:
            await session.initialize()
        except MCPError as error:
            self._check_login()
            if error.error.code != types.UNSUPPORTED_PROTOCOL_VERSION or self._mode == "legacy":
                raise
            await session.discover()  # it was slow to say so, and knows nothing else

    async def _discover(self, session: ClientSession) -> bool:
        try:
            with anyio.fail_after(self._setting.spec.connect * _PROBE_SHARE):
                await session.discover()
        except (MCPError, TimeoutError, RuntimeError, ValueError):
            if self.watch is not None and self.watch.refused == 401:  # some forbid what they do not know by 403
                raise Unauthorized(UNAUTHORIZED) from None
            return False
        return True

    def _check_login(self) -> None:
        if self.watch is not None and self.watch.is_unauthorized:
            raise Unauthorized(UNAUTHORIZED)

    async def _stay(self, session: ClientSession, agreed: Agreement) -> None:
        async with anyio.create_task_group() as beside:
            if agreed.is_modern and agreed.tells_of_changes:
                beside.start_soon(self._listen, session)
            await self._over.wait()
            beside.cancel_scope.cancel()

    async def _listen(self, session: ClientSession) -> None:
        """Changes, in the newer versions. What was missed while nobody listened is taken for a change."""
        while True:
            try:
                async with listen(session, tools_list_changed=True) as events:
                    async for _ in events:
                        self._setting.changed()
            except MCPError:
                return  # it has thought better of it, or the connection is gone
            except SubscriptionLost:
                pass
            self._setting.changed()
            await anyio.sleep(_RELISTEN)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._setting.changed()

    def _hear_progress(self, params: object) -> bool:
        """Whoever reports it may fail, and ends nobody else's call by that."""
        if self._connection is None:
            return False
        try:
            return self._connection.hear_progress(params)
        except Exception:
            _log.exception("The progress of a call could not be told.")
            return True


class _WebTalk(_Talk):
    """Over HTTP, in either of its ways."""

    def __init__(self, setting: Setting, mode: Mode, web: Web) -> None:
        super().__init__(setting, mode)
        self._web = web
        self._login: Login = log_in(setting.spec, web)
        self.watch: Watch = Watch()

    async def hold_over_http(self) -> None:
        spec = self._setting.spec
        if spec.transport == "sse":
            async with (
                self._client() as client,
                older(client, spec.url, spec.largest, self.unsolicited, self._lose) as streams,
            ):
                await self.hold(streams)
            return
        most = min(spec.largest, LARGEST_OTHER)
        async with (
            self._client() as client,
            streamable_http_client(spec.url, http_client=client, max_sse_event_size=most) as streams,
        ):
            await self.hold(streams)

    async def greet(self) -> None:
        """A server may offer more from then on, and has no way yet to say so."""
        if self._setting.spec.transport == "http":
            with anyio.move_on_after(self._setting.spec.connect * _PROBE_SHARE):
                await _either(self.watch.greeted, self._over)

    def lighten(self, connection: Connection) -> None:
        spec = self._setting.spec
        if spec.transport == "http":
            page = min(spec.largest, STRANGERS_PAGE) if spec.is_strangers else spec.largest
            home = self._web.home
            line = Line(self._web.client(), home.target, self.watch.session, self._login, home.origin)
            connection.lighten(line, spec.largest, page, self.unsolicited, self._setting.changed)

    def _lose(self) -> None:
        """A message did not get through: whoever asks next is given another session."""
        if self._connection is None:
            self._over.set()
        else:
            self._connection.retire()

    def _client(self) -> httpx2.AsyncClient:
        """How long an answer may take, whoever asks decides."""
        spec = self._setting.spec
        unsolicited = None if spec.transport == "sse" else self.unsolicited
        return httpx2.AsyncClient(
            headers=dict(spec.headers),
            timeout=httpx2.Timeout(None, connect=spec.connect),
            auth=self._login.auth,
            transport=Watched(WebTransport(self._web), self.watch, unsolicited),
            trust_env=False,
        )


class _Answers:
    """What the server is told that asks for something by itself."""

    def __init__(self, write: Writing, over: asyncio.Event) -> None:
        self._write = write
        self._over = over
        self._task: asyncio.Task[None] | None = None
        self._declining = Declining(self._tell, self._spawn)
        self.connection: Connection | None = None

    async def decline(self, request: types.JSONRPCRequest) -> bool:
        return await self._declining.take(request.id, request.method)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work, name="mcp answers", context=own_context())

    async def _tell(self, message: Message) -> None:
        """Over streamable HTTP not by the SDK: there, one that does not get through would end the session."""
        if self.connection is not None and await self.connection.tell(message):
            return
        try:
            await self._write.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._over.set()


async def _either(*events: asyncio.Event) -> None:
    async with anyio.create_task_group() as waiting:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            waiting.cancel_scope.cancel()

        for event in events:
            waiting.start_soon(wait, event)


def _check_size(session: ClientSession) -> None:
    """What a server says of itself is held as long as the session is. Raises `ServerUnavailable`."""
    capabilities, about = session.server_capabilities, session.server_info
    said = [session.instructions or "", *(each.model_dump_json() for each in (capabilities, about) if each is not None)]
    if sum(map(len, said)) > _LONGEST_GREETING:
        raise ServerUnavailable(TOO_LONG)


def _agreement(session: ClientSession) -> Agreement:
    version = session.protocol_version or ""
    capabilities = session.server_capabilities
    tools = None if capabilities is None else capabilities.tools
    is_modern = version in MODERN_PROTOCOL_VERSIONS
    meta = {
        types.PROTOCOL_VERSION_META_KEY: version,
        types.CLIENT_INFO_META_KEY: _US.model_dump(by_alias=True, mode="json", exclude_none=True),
        types.CLIENT_CAPABILITIES_META_KEY: {},
    }
    return Agreement(
        version=version,
        is_modern=is_modern,
        meta=meta if is_modern else {},
        instructions=session.instructions,
        tells_of_changes=tools is not None and bool(tools.list_changed),
    )
