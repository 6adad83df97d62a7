"""The composition root: build a server from settings, start and stop it, and reload its settings while it runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from antwort.backends import make_fleet, make_local
from antwort.config.checks import check, check_ready, check_toolsets, is_loopback, keys_required
from antwort.config.problems import CannotStart
from antwort.config.schema import leaves
from antwort.config.settings import KeySettings, Limits, LoopSettings, Settings
from antwort.engine.engine import Engine
from antwort.errors import AntwortError
from antwort.identity import Identity
from antwort.net.client import HttpClient, HttpResponse, Timeouts
from antwort.net.response import HttpError
from antwort.observing import metrics_for_strangers, observe
from antwort.persistence import check_seal, make_vault, open_records
from antwort.providers.fleet import BackendStatus, Fleet
from antwort.server.auth import HostCheck, Key, Keyring
from antwort.server.cors import Cors
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.server.readiness import Readiness
from antwort.server.relay import Ask, PeerGone
from antwort.server.websocket import SocketLimits
from antwort.telemetry.endpoint import MetricsPort
from antwort.tools.toolset import ToolsetInfo
from antwort.toolsets import find_label_problems, load_tools, make_mcp

if TYPE_CHECKING:
    from antwort.local.provider import LocalProvider
    from antwort.telemetry.metrics import Metrics

_log = logging.getLogger("antwort.config")

# ---- settings that can change while the server runs ----

_FIXED_LOOP = {"buffer_bytes", "buffer_events", "keepalive_interval", "requires_action", "strict", "unknown_tools"}
_FIXED_LIMITS = {"history_memory", "media_hosts", "output_bytes"}
"""Parts of the server are made from these. All others are read anew for each request."""
_LOOP_FIELDS = [name for name in LoopSettings.__struct_fields__ if name not in _FIXED_LOOP]
_LIMITS = [name for name in Limits.__struct_fields__ if name not in _FIXED_LIMITS]
RELOADABLE = frozenset(
    [
        *("auth.keys", "default_model", "log.level"),
        *(f"loop.{name}" for name in _LOOP_FIELDS),
        *(f"limits.{name}" for name in _LIMITS),
    ]
)
"""The settings that a running server can change."""


class Reloaded(msgspec.Struct, frozen=True):
    """The outcome of a reload. All of it has been logged."""

    changed: tuple[str, ...] = ()
    """The paths of settings that are in force from now on, such as `auth.keys`."""
    needs_restart: tuple[str, ...] = ()
    """The paths of settings that differ from those that the server was started with, and stay as they were."""
    problem: str = ""
    """Why the new settings cannot be used; then nothing has changed."""


class App:
    """A server that was built: its engine, the ASGI application in front of it, and what starts and stops with them."""

    asgi: Transport

    def __init__(
        self,
        engine: Engine,
        *,
        drain: float,
        fleet: Fleet | None = None,
        local: LocalProvider | None = None,
        toolsets: Sequence[ToolsetInfo] = (),
        metrics_port: MetricsPort | None = None,
        settings: Settings | None = None,
        keyring: Keyring | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`settings` are those that the parts were made from; without them, nothing can be reloaded."""
        self.engine = engine
        self.toolsets = toolsets
        """Those that requests can name by label."""
        self.local = local
        """The model that runs on this machine as a part of the server, if there is one."""
        self.metrics_port = metrics_port
        self._fleet, self._drain, self._keyring, self._metrics = fleet, drain, keyring, metrics
        self._started = self._current = settings
        """The settings that the parts were made from, and those that are in force."""
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
        """Return the state of each backend, after asking all of them, which takes two seconds at most."""
        if self._fleet is None:
            return ()
        with suppress(AntwortError):  # a backend's failure is part of its state
            await self._fleet.models()
        return self._fleet.status()

    def reload(self, read: Callable[[], Settings]) -> Reloaded:
        """Use the settings that `read` returns as far as a running server can: see `RELOADABLE`. Nothing is dropped:
        connections stay open, and runs in progress go on under the settings that they began with.

        It never raises, and settings that cannot be used change nothing. What has changed is logged, as is in one line
        what needs a restart. `read` is called once, and may raise `CannotStart`; for one of several workers, it returns
        the settings of that worker.
        """
        if self._started is None or self._current is None:
            raise RuntimeError("An application that was not made from settings cannot reload them.")
        try:
            new = check(read())
            check_ready(new)
        except CannotStart as exc:
            _log.error("the settings stay as they are: %s", exc)
            return Reloaded(problem=str(exc))
        new, old, started = hashed(new), self._current, self._started
        differs = {path for path in leaves() if attrgetter(path)(new) != attrgetter(path)(started)}
        changed = {path for path in RELOADABLE if attrgetter(path)(new) != attrgetter(path)(old)}
        needs_restart = differs - RELOADABLE
        if self._keyring is None or new.auth.required == "never":  # whether keys are required at all is fixed
            needs_restart |= differs & {"auth.keys"}
            changed.discard("auth.keys")
        elif not keys_required(new):  # until then, nobody comes in: to leave out the last key must not open the server
            needs_restart.add("auth.keys")
        elif _has_metrics_reader(new) and not _has_metrics_reader(started):
            needs_restart.add("auth.keys[].metrics")
        self._apply(new)
        logger, levels = logging.getLogger("antwort"), logging.getLevelNamesMapping()
        before, after = levels[old.log.level.upper()], levels[new.log.level.upper()]
        sets_level = logger.level == before  # else the program has set its own
        if sets_level:
            logger.setLevel(min(before, after))  # the lines about the reload show at either level
        if changed:
            _log.info("settings reloaded: %s", ", ".join(sorted(changed)))
        if needs_restart:
            _log.warning("needs a restart: %s", ", ".join(sorted(needs_restart)))
        if sets_level:
            logger.setLevel(after)
        return Reloaded(tuple(sorted(changed)), tuple(sorted(needs_restart)))

    def _apply(self, new: Settings) -> None:
        assert self._current is not None
        if self._keyring is not None and new.auth.required != "never":
            self._keyring.change(make_keys(new))
        given, now = new.engine(), self.engine.settings
        loop = {name: getattr(given, name) for name in ("default_model", *_LOOP_FIELDS)}
        limits = replace(now.limits, **{name: getattr(new.limits, name) for name in _LIMITS})
        self.engine.reconfigure(replace(now, limits=limits, **loop))
        if self._metrics is not None:
            self._metrics.learn(models=filter(None, [new.default_model]), keys=[key.name for key in new.auth.keys])
        self._current = new

    def leave(self) -> None:
        """Tell load balancers to send no more requests here, and begin no runs that other processes could begin."""
        self.asgi.leave()
        self.engine.stop_claiming()
        if self.metrics_port is not None and self.metrics_port.readiness is not None:
            self.metrics_port.readiness.leave()

    async def stop(self) -> None:
        """Let runs in progress end within the drain time, then end the others, and close."""
        await self.engine.drain(self._drain)
        await self.close()

    async def close(self) -> None:
        """End the runs in progress at once, and close."""
        try:
            await self.engine.close()
        finally:
            if self.metrics_port is not None:
                await self.metrics_port.stop()


async def build(settings: Settings, *, is_near: bool | None = None, address: str | None = None) -> App:
    """Build a server. Only its metrics port is open yet, and its store. Raises `CannotStart`.

    `is_near`: whether only this machine can reach the server; None: as the address says that it listens on. `address`
    is where other processes reach this one.
    """
    settings = check(settings)
    check_ready(settings)
    settings = hashed(settings)
    server, offered = settings.server, settings.tools
    tools = load_tools(offered.modules, entry_points=offered.entry_points, demo=offered.demo)
    for problem in find_label_problems(settings, tools.labels):
        raise CannotStart(str(problem))
    labels = {**tools.labels, **dict.fromkeys(server.label for server in settings.mcp_servers)}
    check_toolsets(offered.hosted, labels)
    mcp = make_mcp(settings, is_near=is_near)
    local = make_local(settings)
    door = make_door(settings)
    keyring = door if isinstance(door, Keyring) else None
    seen = observe(settings, labels, door)
    try:
        fleet = make_fleet(settings, on_inference=seen.on_inference, local=local)
        records = await open_records(settings)
        try:
            vault = make_vault(settings)
            await check_seal(records, vault)
        except CannotStart:
            await records.store.close()
            raise
    except CannotStart:
        if seen.port is not None:
            await seen.port.stop()
        raise
    engine = Engine(
        fleet,
        store=seen.store(records.store),
        executors=(*tools.executors, mcp),
        settings=settings.engine(),
        on_end=[*seen.on_end, *([] if keyring is None else [keyring.quotas.count])],
        on_call=seen.on_call,
        vault=vault,
        runs=seen.runs(records.runs),
        address=address,
    )
    app = App(
        engine,
        drain=server.drain,
        fleet=fleet,
        local=local,
        toolsets=tools.toolsets,
        metrics_port=seen.port,
        settings=settings,
        keyring=keyring,
        metrics=seen.metrics,
    )
    websocket = {name: getattr(server.websocket, name) for name in SocketLimits.__struct_fields__}
    app.asgi = Transport(
        engine,
        identify=door.identify,
        quotas=None if keyring is None else keyring.quotas,
        cors=make_cors(settings),
        extra=seen.extra,
        credentials="none" if keyring is None else "key",
        metrics=metrics_for_strangers(settings),
        body_limit=server.body_limit,
        linger=server.linger,
        followers=server.followers,
        websocket=SocketLimits(**websocket),
        on_request=seen.on_request,
        start=app.start,
        stop=app.stop,
        ask=None if settings.database is None else peer_asker(settings.loop.keepalive_interval),
    )
    if seen.metrics is not None:
        gauges, seen.metrics.is_listed = seen.metrics.gauges, fleet.lists
        gauges.streams, gauges.requests = lambda: app.asgi.streams, lambda: app.asgi.requests
        gauges.sockets, gauges.runs = lambda: app.asgi.sockets, lambda: engine.live
        gauges.backends, gauges.servers = fleet.status, mcp.status
        gauges.sessions = lambda: mcp.open_sessions
    return app


# ---- access ----


def hashed(settings: Settings) -> Settings:
    """Return the settings with hashes in place of the API keys, so that no key stays in memory."""
    keys = tuple(replace(key, key=None, sha256=_digest(key).hex()) for key in settings.auth.keys)
    return replace(settings, auth=replace(settings.auth, keys=keys))


def _digest(key: KeySettings) -> bytes:
    """Return the SHA-256 of a key; without one it is empty, which no request can match."""
    return bytes.fromhex(key.sha256 or "") if key.key is None else sha256(key.key.reveal().encode()).digest()


def make_door(settings: Settings) -> Keyring | HostCheck:
    """Return the check of API keys or, where none is required, the check of the names that requests come under.

    Where keys are required and there are none, nobody is let in.
    """
    if keys_required(settings):
        return Keyring(make_keys(settings))
    is_explicit = settings.auth.required == "never" or not is_loopback(settings.server.host)
    peer = urlsplit(settings.server.peer_url or "").hostname
    names = (*settings.server.hosts, socket.gethostname(), *((peer,) if peer else ()))
    return HostCheck(names, only_near=not is_explicit)


def make_keys(settings: Settings) -> list[Key]:
    return [
        Key(
            name=key.name,
            digest=_digest(key),
            # Never without an owner: the key must not see what anonymous requests have stored.
            identity=Identity(tenant=key.tenant, owner=key.subject or key.name, models=key.models, key=key.name),
            limits=KeyLimits(
                requests_per_minute=key.limits.requests_per_minute,
                concurrent=key.limits.concurrent,
                followers=key.limits.followers,
                tokens_per_minute=key.limits.tokens_per_minute,
            ),
            may_read_metrics=key.metrics,
        )
        for key in settings.auth.keys
    ]


def _has_metrics_reader(settings: Settings) -> bool:
    return any(key.metrics for key in settings.auth.keys)


def make_cors(settings: Settings) -> Cors | None:
    """Return the rules for web pages; None if none may use the API."""
    cors = settings.cors
    if not cors.origins:
        return None
    return Cors(cors.origins, headers=cors.headers, credentials=cors.credentials, max_age=cors.max_age)


# ---- other processes ----

_CONNECT_SECONDS, _FIRST_BYTE_SECONDS, _SILENCE_SECONDS = 1.5, 10.0, 30.0
"""For another process to accept a connection, to begin its answer, and to be silent beyond two keep-alives."""


def peer_asker(keepalive: float) -> Ask:
    """Return what sends requests to other processes that share the store; `keepalive` is their interval in seconds.

    Each answer has a connection of its own: they are few, and a client's credentials are not kept.
    """
    idle = 2 * keepalive + _SILENCE_SECONDS
    timeouts = Timeouts(connect=_CONNECT_SECONDS, first_byte=_FIRST_BYTE_SECONDS, idle=idle)

    @asynccontextmanager
    async def ask(address: str, target: str, fields: bytes) -> AsyncIterator[HttpResponse]:
        try:
            client = HttpClient(address, timeouts=timeouts)
        except ValueError as exc:
            raise PeerGone("it has no address") from exc
        try:
            async with await client.request("GET", target, fields=fields) as reply:
                yield reply
        except HttpError as exc:
            raise PeerGone(str(exc)) from exc
        finally:
            await client.close()

    return ask
