"""`antwort serve` and `antwort worker`: processes that serve until a signal stops them."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, TypeVar

from antwort.app import App, build, hashed
from antwort.cli.greeting import address, announce, format_rows, server_rows, worker_headline, worker_rows
from antwort.cli.output import say
from antwort.cli.process import (
    HANGUP,
    STOP_SIGNALS,
    configure_malloc,
    hangup_handler,
    open_standard_streams,
    release_memory,
    run_process,
    signal_handlers,
    tune_garbage_collector,
)
from antwort.config.checks import check_ready, peers_host
from antwort.config.loading import Loaded, read
from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.server.server import Ping, Server, listen, reason

if TYPE_CHECKING:
    from antwort.cli.worker_process import SupervisorLink

T = TypeVar("T")

_NO_DATABASE = (
    "A worker needs a database that it shares with the servers whose responses it makes: set `database` to one of "
    "PostgreSQL, such as postgresql://antwort@localhost/antwort."
)
_NO_WORK = "A worker with background.at_once: 0, or background.enabled: false, would have nothing to do."


def run(given: Mapping[str, object]) -> int:
    """`antwort serve`."""
    open_standard_streams()
    settings, file = read_settings(given)
    if file is not None:  # a reload reads the same file again: without it, the settings stay as they are
        given = {**given, "config": str(file)}
    if settings.server.workers == 1:
        return run_process(serve(settings, file, given=given))
    from antwort.cli.supervisor import supervise

    return run_process(supervise(settings, given))


def run_worker(given: Mapping[str, object]) -> int:
    """`antwort worker`."""
    open_standard_streams()
    settings, file = read_settings(given)
    if settings.database is None:
        raise CannotStart(_NO_DATABASE)
    if not (settings.background.at_once and settings.background.enabled):
        raise CannotStart(_NO_WORK)
    return run_process(work(settings, file))


# ---- settings ----


def read_settings(given: Mapping[str, object]) -> tuple[Settings, Path | None]:
    """Return the settings, with hashes for keys, and their file, and configure the log. Raises `CannotStart`."""
    loaded = read(given)
    configure_log(loaded)
    return checked(logged(loaded)), loaded.file


def logged(loaded: Loaded) -> Settings:
    """Log the warnings, and return the settings."""
    for warning in loaded.warnings:
        logging.getLogger("antwort.config").warning(warning)
    return loaded.settings


def checked(settings: Settings) -> Settings:
    """Return the settings with hashes in place of keys. Raises `CannotStart` if no server can start with them."""
    check_ready(settings)
    return hashed(settings)


def configure_log(loaded: Loaded) -> None:
    from antwort.telemetry.logging import configure

    log = loaded.settings.log
    configure(log.level, log.format, content=log.content)


# ---- the server ----


async def serve(
    settings: Settings,
    file: Path | None = None,
    *,
    given: Mapping[str, object] | None = None,
    link: SupervisorLink | None = None,
) -> int:
    """Serve until a signal stops the server, and return the exit status. Raises `CannotStart`.

    `given` are the flags that the settings are read from again on SIGHUP; `link` leads to the supervisor of a worker.
    """
    app: App | None = None
    is_started = must_reload = False

    def reload() -> None:
        nonlocal must_reload
        must_reload = not is_started
        if app is not None and is_started and given is not None:
            app.reload(lambda: logged(read(given)))

    configure_malloc()
    releasing = asyncio.create_task(release_memory())
    with ExitStack() as stack:
        if link is None:
            stack.enter_context(signal_handlers(hangup_handler(reload, lambda: signal.raise_signal(signal.SIGTERM))))
        listener = stack.enter_context(listen_to_clients(settings) if link is None else link.listener)
        peers, peer_address = _listen_to_peers(settings) or (None, None)
        if peers is not None:
            stack.enter_context(peers)
        app = await build(settings, address=peer_address)
        try:
            await app.start()
            is_started = True
            if must_reload:
                reload()
            tune_garbage_collector()
            server = _make_server(app, settings, listener, peers, file, link)
            if link is not None:
                await link.watch(on_hurry=server.hurry, on_lost=server.told_to_stop)
            await server.serve(sockets=[listener])
        finally:
            releasing.cancel()
            await app.close()
    return 1 if server.force_exit else 0


def _make_server(
    app: App, settings: Settings, listener: socket, peers: socket | None, file: Path | None, link: SupervisorLink | None
) -> Server:
    async def started() -> None:
        port = listener.getsockname()[1]
        if link is None:
            await announce(app, settings, port, file)
        else:
            await link.report_ready(await server_rows(app, settings, port, file) if link.wants_rows else [])

    given = settings.server
    return Server(
        app.asgi,
        drain=app.engine.drain,
        drain_seconds=given.drain,
        notice=given.notice,
        leave=app.leave,
        started=started,
        is_led=link is not None,
        head_limit=given.head_limit,
        request_time=given.request_time,
        on_refusal=app.asgi.refused,
        message_limit=given.body_limit,
        ping=Ping(interval=given.websocket.ping_interval, timeout=given.websocket.ping_timeout),
        strict=settings.loop.strict,
        peers=peers,
    )


def listen_to_clients(settings: Settings) -> socket:
    """Raises `CannotStart`."""
    return _listen(settings.server.host, settings.server.port, "", "choose another with --port")


def _listen_to_peers(settings: Settings) -> tuple[socket, str] | None:
    """Return a socket for other processes and the address they are told; None without a database to share. Raises
    `CannotStart`.
    """
    if (host := peers_host(settings)) is None:
        return None
    fix = "see server.peer_host and server.peer_port"
    listener = _listen(host, settings.server.peer_port, " for the other processes", fix)
    return listener, settings.server.peer_url or address(host, listener.getsockname()[1])


def _listen(host: str, port: int, purpose: str, fix: str) -> socket:
    try:
        return listen(host, port)
    except OSError as exc:
        fix = f"; {fix}" if purpose or exc.errno == errno.EADDRINUSE else ""
        raise CannotStart(f"Cannot listen on {address(host, port)}{purpose}: {reason(exc)}{fix}.") from exc


# ---- the worker ----


async def work(settings: Settings, file: Path | None = None) -> int:
    """Make background responses until a signal says to stop, and return the exit status. Raises `CannotStart`."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def hear() -> None:
        (hurry if stop.is_set() else stop).set()

    is_hangup_ignored = HANGUP is None or signal.getsignal(HANGUP) is signal.SIG_IGN  # as by `nohup`
    signals = [*STOP_SIGNALS, *([] if HANGUP is None or is_hangup_ignored else [HANGUP])]
    configure_malloc()
    releasing = asyncio.create_task(release_memory())
    app = await build(settings)
    try:
        with signal_handlers(dict.fromkeys(signals, hear)):
            await app.start()
            tune_garbage_collector()
            rows = await _unless(stop, worker_rows(app, settings, file))
            say(worker_headline(settings), *format_rows(rows or ()))
            await stop.wait()
            app.leave()
            await _unless(hurry, app.engine.drain(settings.server.drain))
            return 1 if hurry.is_set() else 0
    finally:
        releasing.cancel()
        await app.close()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the work, or None if the event cancels it."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, waiting):
            each.cancel()  # no effect if it is done
    try:
        return await task
    except asyncio.CancelledError:
        return None
