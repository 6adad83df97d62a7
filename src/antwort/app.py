"""The composition root: settings in, a server's worth of parts out. It owns start and stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from antwort.access import hashed, make_cors, make_door
from antwort.backends import make_fleet, make_local
from antwort.config.checks import check, check_ready
from antwort.config.hosted import check_toolsets
from antwort.config.problems import CannotStart
from antwort.config.settings import Settings, WebSocketSettings
from antwort.engine.engine import Engine
from antwort.errors import AntwortError
from antwort.keeping import Records, check_seal, open_records
from antwort.mcpservers import find_label_problems, make_mcp
from antwort.observing import Observation, metrics_for_strangers, observe
from antwort.peers import peer_asker
from antwort.providers.fleet import BackendStatus, Fleet
from antwort.sealing import make_vault
from antwort.server.auth import HostCheck, Keyring
from antwort.server.cors import Cors
from antwort.server.http import Transport
from antwort.server.readiness import Readiness
from antwort.server.websocket import SocketLimits
from antwort.telemetry.endpoint import MetricsPort
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.toolset import ToolsetInfo
from antwort.toolsets import LoadedTools, load_tools
from antwort.vault import Vault

if TYPE_CHECKING:
    from antwort.local.provider import LocalProvider


class App:
    """An engine, the ASGI application in front of it, and what stands beside them."""

    def __init__(
        self,
        engine: Engine,
        face: Callable[[App], Transport],
        *,
        drain: float,
        fleet: Fleet | None = None,
        local: LocalProvider | None = None,
        toolsets: Sequence[ToolsetInfo] = (),
        metrics_port: MetricsPort | None = None,
    ) -> None:
        self.engine = engine
        self.toolsets = toolsets
        """What requests can reach by label."""
        self.local = local
        """The model that runs on this machine as a part of the server, if there is one."""
        self.metrics_port = metrics_port
        self._fleet = fleet
        self._drain = drain
        self.asgi = face(self)
        if metrics_port is not None:
            metrics_port.readiness = Readiness(engine.check)

    async def start(self) -> None:
        """Raises `CannotStart`."""
        try:
            await self.engine.open()
        except AntwortError as exc:
            raise CannotStart(exc.message) from exc
        if self._fleet is not None:
            await self._fleet.open()
        if self.metrics_port is not None:
            await self.metrics_port.start()

    async def survey(self) -> Sequence[BackendStatus]:
        """How each backend stands, after a look at all of them that takes two seconds at most."""
        if self._fleet is None:
            return ()
        with suppress(AntwortError):  # what is wrong with one is part of how it stands
            await self._fleet.models()
        return self._fleet.status()

    def leave(self) -> None:
        """Say to those who ask that no more is to be sent here, and begin nothing that others could."""
        self.asgi.leave()
        self.engine.stop_claiming()
        if self.metrics_port is not None and self.metrics_port.readiness is not None:
            self.metrics_port.readiness.leave()

    async def stop(self) -> None:
        """Runs still under way get the drain time, then their end."""
        await self.engine.drain(self._drain)
        await self.close()

    async def close(self) -> None:
        """For a server that has drained already, or must not wait: runs still under way are ended at once."""
        try:
            await self.engine.close()
        finally:
            if self.metrics_port is not None:
                await self.metrics_port.stop()


class _Parts(msgspec.Struct, frozen=True):
    """What holds nothing open yet, but for the port of the metrics."""

    settings: Settings
    tools: LoadedTools
    mcp: McpExecutor
    door: Keyring | HostCheck
    cors: Cors | None
    seen: Observation
    fleet: Fleet
    local: LocalProvider | None


async def build(settings: Settings, *, is_near: bool | None = None, address: str | None = None) -> App:
    """Raises `CannotStart` when a part cannot be had. `is_near` says whether only this machine can reach the server;
    unset, by the address that it is to listen on. `address` is where other processes reach this one.
    """
    settings = check(settings)
    check_ready(settings)
    parts = _make_parts(hashed(settings), is_near)
    try:
        records, vault = await _open(settings)
    except CannotStart:
        if parts.seen.port is not None:
            await parts.seen.port.stop()
        raise
    return _assemble(parts, records, vault, address)


async def _open(settings: Settings) -> tuple[Records, Vault]:
    records = await open_records(settings)
    try:
        vault = make_vault(settings)
        await check_seal(records, vault)
    except CannotStart:
        await records.store.close()
        raise
    return records, vault


def _make_parts(settings: Settings, is_near: bool | None) -> _Parts:
    offered = settings.tools
    tools = load_tools(offered.modules, entry_points=offered.entry_points, demo=offered.demo)
    for problem in find_label_problems(settings, tools.labels):
        raise CannotStart(str(problem))
    labels = {**tools.labels, **dict.fromkeys(server.label for server in settings.mcp_servers)}
    check_toolsets(offered.hosted, labels)
    mcp = make_mcp(settings, is_near=is_near)
    local = make_local(settings)
    door = make_door(settings)
    seen = observe(settings, labels, door)
    fleet = make_fleet(settings, on_inference=seen.on_inference, local=local)
    return _Parts(settings, tools, mcp, door, make_cors(settings), seen, fleet, local)


def _assemble(parts: _Parts, records: Records, vault: Vault, address: str | None) -> App:
    settings, seen = parts.settings, parts.seen
    runs, on_run_end = seen.runs(records.runs)
    engine = Engine(
        parts.fleet,
        store=seen.store(records.store),
        executors=(*parts.tools.executors, parts.mcp),
        settings=settings.engine(),
        on_end=[*seen.on_end, on_run_end, *([parts.door.quotas.count] if isinstance(parts.door, Keyring) else [])],
        on_call=seen.on_call,
        vault=vault,
        runs=runs,
        address=address,
    )
    app = App(
        engine,
        lambda app: _face(app, parts),
        drain=settings.server.drain,
        fleet=parts.fleet,
        local=parts.local,
        toolsets=parts.tools.toolsets,
        metrics_port=seen.port,
    )
    if seen.metrics is not None:
        seen.metrics.watch(
            streams=lambda: app.asgi.streams,
            requests=lambda: app.asgi.requests,
            sockets=lambda: app.asgi.sockets,
            runs=lambda: engine.live,
            backends=parts.fleet.status,
            is_listed=parts.fleet.lists,
        )
        seen.metrics.watch_servers(parts.mcp.status, lambda: parts.mcp.open_sessions)
    return app


def _face(app: App, parts: _Parts) -> Transport:
    server, door = parts.settings.server, parts.door
    return Transport(
        app.engine,
        identify=door.identify,
        quotas=door.quotas if isinstance(door, Keyring) else None,
        cors=parts.cors,
        extra=parts.seen.extra,
        credentials="key" if isinstance(door, Keyring) else "none",
        metrics=metrics_for_strangers(parts.settings),
        body_limit=server.body_limit,
        linger=server.linger,
        followers=server.followers,
        websocket=_socket_limits(server.websocket),
        on_request=parts.seen.on_request,
        start=app.start,
        stop=app.stop,
        ask=None if parts.settings.database is None else peer_asker(parts.settings.loop.keepalive_interval),
    )


def _socket_limits(given: WebSocketSettings) -> SocketLimits:
    return SocketLimits(
        enabled=given.enabled,
        connections=given.connections,
        lifetime=given.lifetime,
        queue=given.queue,
        memory=given.memory,
        total_memory=given.total_memory,
    )
