"""The server as an ASGI application, to be run by any ASGI server or mounted into a program's own application.

    from antwort.asgi import create_app

    ai = create_app("antwort.yaml")  # or Settings, or an Engine, or nothing: then as `antwort serve` would find them
    app = FastAPI(lifespan=ai.lifespan)
    app.mount("/ai", ai)  # clients then use the base URL …/ai/v1

Run by itself it starts and stops with its server. A mounted application is not told of either, so that the program
hands on its own lifespan, as above or by `async with ai.lifespan():` within it. An application that nobody has started
starts at its first request, and then nobody stops it: what is under way when the process ends is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from antwort.config.problems import CannotStart
from antwort.config.settings import ServerSettings, Settings
from antwort.engine.engine import Engine
from antwort.errors import AntwortError, ServerFault, ShuttingDown
from antwort.ids import new_id
from antwort.server.exchange import Exchange, Receive, Scope, Send
from antwort.server.http import LINGER, Transport, everyone_is_anonymous
from antwort.server.routes import Identify
from antwort.server.websocket import deny

if TYPE_CHECKING:
    from antwort.app import Reloaded

_log = logging.getLogger("antwort.asgi")


def create_app(
    source: Settings | Engine | str | os.PathLike[str] | None = None, *, identify: Identify | None = None
) -> Application:
    """The application of these settings, of this configuration file, or in front of this engine.

    Without any, the settings are read as `antwort serve` reads them: from `antwort.yaml` and the environment. Nothing
    is opened before the application starts. An engine that the program has opened when the application starts is left
    to the program; one that is not open is opened, and drained and closed with the last application that stands before
    it. Raises `CannotStart`.

    `identify` says for whom a request is made, by its ASGI scope, and raises `NotAuthenticated` for strangers. It is a
    plain function that does not wait. It goes with an engine only, where without it everybody is the same: settings
    have keys for that.
    """
    if isinstance(source, Engine):
        engine = source
        _check_identify(identify)
        return Application(lambda: _lend(engine, identify or everyone_is_anonymous))
    if identify is not None:
        raise TypeError("`identify` goes with an engine; settings say by `auth.keys` who may come in.")
    if isinstance(source, Settings):
        settings = _kept(source)
        return Application(lambda: _build(settings))

    latest = _kept(_load(source))

    def read() -> Settings:
        nonlocal latest
        latest = _kept(_load(source))
        return latest

    return Application(lambda: _build(latest), read)


def _check_identify(identify: Identify | None) -> None:
    call = getattr(identify, "__call__", None)  # noqa: B004 - of an object that can be called, its method
    if inspect.iscoroutinefunction(identify) or inspect.iscoroutinefunction(call):
        raise TypeError("`identify` must not be `async`: look up what takes time in a middleware before the mount.")


class Parts(Protocol):
    """What an application is made of while it runs."""

    @property
    def engine(self) -> Engine: ...

    @property
    def asgi(self) -> Transport: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...

    def reload(self, read: Callable[[], Settings], /) -> Reloaded: ...


class Application:
    """An ASGI 3 application. One that was stopped can be started again, unless it stands before an engine of yours."""

    def __init__(self, build: Callable[[], Awaitable[Parts]], read: Callable[[], Settings] | None = None) -> None:
        """`build` makes what answers, at each start. `read` reads its settings anew."""
        self._build, self._read = build, read
        self._parts: Parts | None = None
        self._starting: asyncio.Task[Parts] | None = None
        self._is_stopped = False

    @property
    def engine(self) -> Engine:
        """The engine behind it. Raises `RuntimeError` while it does not run."""
        if self._parts is None:
            raise RuntimeError("The application has not been started.")
        return self._parts.engine

    def reload(self) -> Reloaded:
        """Read the configuration file and the environment anew, and use of them what a running server can change: API
        keys with their limits, the default model, limits of requests and responses, the log level. Nothing is dropped.

        It never raises for what it reads: settings that cannot be used change nothing, and what needs a restart is
        named. An application that does not run, or was not made from a file, raises `RuntimeError`.
        """
        if self._read is None:
            raise RuntimeError("An application that was not made from a configuration file has none to read anew.")
        if self._parts is None:
            raise RuntimeError("The application has not been started.")
        return self._parts.reload(self._read)

    # ---- start and stop ----

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Started within, drained and stopped at the end: the `lifespan` of a Starlette or FastAPI, or a part of it."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def start(self) -> None:
        """Once, however many ask for it. Raises `CannotStart`; then the next one who asks has it tried again."""
        self._is_stopped = False
        await self._started()

    async def _started(self) -> Parts:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        try:
            return await asyncio.shield(starting)  # a request that is broken off does not break off the others' start
        finally:
            if self._starting is starting and starting.done() and (starting.cancelled() or starting.exception()):
                self._starting = None

    async def _start(self) -> Parts:
        parts = await self._build()
        try:
            await parts.start()
        except BaseException:
            await parts.close()
            raise
        self._parts = parts
        return parts

    async def stop(self) -> None:
        """Responses under way get the drain time, then their end. Requests that come later are refused."""
        self._is_stopped = True
        if self._starting is None:
            return
        with contextlib.suppress(Exception):  # who asked for the start was told
            await self._starting
        self._starting = None
        if self._parts is not None:
            self._parts.asgi.wind_up()
            try:
                await self._parts.stop()
                await self._parts.asgi.finish()
            finally:
                self._parts = None

    # ---- ASGI ----

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http" | "websocket":
                asgi = await self._ready(scope, receive, send)
                if asgi is not None:
                    await asgi(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case other:
                raise NotImplementedError(f"{other} is not spoken here")

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> Transport | None:
        """Who answers; nobody, when it cannot be started, and then the request has been told so."""
        if self._parts is not None:
            return self._parts.asgi
        try:
            return (await self._start_late()).asgi
        except AntwortError as error:
            await _refuse(scope, receive, send, error)
            return None

    async def _start_late(self) -> Parts:
        if self._is_stopped:
            raise ShuttingDown
        try:
            return await self._started()
        except Exception as exc:
            # The reason is the operator's. `CannotStart` says it all; what nobody expected needs its traceback.
            _log.error("cannot start: %s", exc, exc_info=None if isinstance(exc, CannotStart) else exc)
            raise ServerFault("The server could not be started.", code="server_not_started") from exc

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and stop, as the server that runs us tells them."""
        await receive()
        try:
            await self.start()
        except Exception as exc:
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            raise  # servers take it with the message, and without it a test client would go on
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.stop()
        except Exception as exc:
            _log.exception("cannot stop")
            await send({"type": "lifespan.shutdown.failed", "message": str(exc)})
            raise
        await send({"type": "lifespan.shutdown.complete"})


async def _refuse(scope: Scope, receive: Receive, send: Send, error: AntwortError) -> None:
    if scope["type"] == "http":
        await Exchange(scope, receive, send, linger=LINGER).fail(error, strict=False)
    else:
        await receive()
        await deny(scope, send, error, new_id("req"), strict=False)


# ---- where the parts come from ----


def _load(path: object) -> Settings:
    from antwort.config import load

    if path is not None and not isinstance(path, str | os.PathLike):
        name = type(path).__name__
        raise TypeError(f"An application is made of Settings, an Engine, or the path of a file, not of a {name}.")
    return load(path)


def _kept(settings: Settings) -> Settings:
    """Checked, and without a key in them: they are kept as long as there is the application."""
    from antwort.app import hashed
    from antwort.config.checks import check

    return hashed(check(settings))


async def _build(settings: Settings) -> Parts:
    from antwort.app import build
    from antwort.config.checks import peers_given

    for name in peers_given(settings.server):
        _log.warning("server.%s means nothing here: an application that others run cannot be asked by its peers", name)
    return await build(settings, is_near=False)  # whoever runs or mounts it says where it listens


async def _lend(engine: Engine, identify: Identify) -> Parts:
    return _Lent(engine, identify)


_holders: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
"""How many applications hold an engine open that the program has not opened itself: the last of them closes it."""


class _Lent:
    """An engine that the program made."""

    def __init__(self, engine: Engine, identify: Identify) -> None:
        self.engine = engine
        self.asgi = Transport(engine, identify=identify)
        self._holds = False

    async def start(self) -> None:
        if self.engine.is_open and self.engine not in _holders:
            return
        self._hold()
        try:
            await self.engine.open()
        except BaseException as exc:
            self._let_go()
            if isinstance(exc, AntwortError):
                raise CannotStart(exc.message) from exc
            raise

    async def stop(self) -> None:
        if self._let_go():
            await self.engine.drain(ServerSettings().drain)
            await self.engine.close()

    async def close(self) -> None:
        if self._let_go():
            await self.engine.close()

    def reload(self, _: Callable[[], Settings], /) -> Reloaded:
        raise RuntimeError("The settings of an engine are the program's.")

    def _hold(self) -> None:
        self._holds = True
        _holders[self.engine] = _holders.get(self.engine, 0) + 1

    def _let_go(self) -> bool:
        """Whether nobody holds the engine any more, and we did."""
        if not self._holds:
            return False
        self._holds = False
        _holders[self.engine] -= 1
        if _holders[self.engine]:
            return False
        del _holders[self.engine]
        return True
