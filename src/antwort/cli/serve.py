"""`antwort serve`: the server on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.cli.memory import configure_malloc, release_memory
from antwort.cli.process import fill_gaps, run_to_end, spare_the_collector
from antwort.cli.say import complain
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from socket import socket

    from antwort.app import App
    from antwort.cli.berth import Berth
    from antwort.config.reading import Loaded
    from antwort.config.settings import Settings
    from antwort.server.server import Server


def run(given: Mapping[str, object]) -> int:
    fill_gaps()
    try:
        settings, file = read_settings(given)
    except CannotStart as exc:
        return complain(exc)
    if settings.server.workers == 1:
        return run_to_end(serve(settings, file))
    from antwort.cli.crew import lead

    return run_to_end(lead(settings, given))


def read_settings(given: Mapping[str, object]) -> tuple[Settings, Path | None]:
    """The settings without a key in them: they are kept as long as the server runs. The log begins with it."""
    from antwort.config.reading import read

    loaded = read(given)
    begin_log(loaded)
    for warning in loaded.warnings:
        logging.getLogger("antwort.config").warning(warning)
    return checked(loaded.settings), loaded.file


def checked(settings: Settings) -> Settings:
    from antwort.access import hashed
    from antwort.config.checks import check_ready

    check_ready(settings)
    return hashed(settings)


def begin_log(loaded: Loaded) -> None:
    from antwort.telemetry.logging import configure

    log = loaded.settings.log
    configure(log.level, log.format, content=log.content)


async def serve(settings: Settings, file: Path | None = None, berth: Berth | None = None) -> int:
    """Serve until a signal says to stop; the exit status. Raises `CannotStart`. With a `berth`, as one of several."""
    from antwort.app import build
    from antwort.cli.listening import listen_to_clients, listen_to_peers

    configure_malloc()
    releasing = asyncio.create_task(release_memory())
    with ExitStack() as held:
        front = held.enter_context(listen_to_clients(settings) if berth is None else berth.front)
        peers = listen_to_peers(settings)
        side = None if peers is None else held.enter_context(peers.socket)
        app = await build(settings, address=None if peers is None else peers.address)
        try:
            await app.start()
            spare_the_collector()
            server = _server(app, settings, (front.getsockname()[1], side), file, berth)
            if berth is not None:
                await berth.watch(hurried=server.hurry, abandoned=server.told_to_stop)
            await server.serve(sockets=[front])
        finally:
            releasing.cancel()
            await app.close()
    return 1 if server.force_exit else 0


def _server(
    app: App, settings: Settings, doors: tuple[int, socket | None], file: Path | None, berth: Berth | None
) -> Server:
    """`doors`: the port of the front, and where other processes come in."""
    from antwort.cli.greeting import announce, rows
    from antwort.server.server import Ping, Server

    async def started() -> None:
        if berth is None:
            await announce(app, settings, port, file)
        else:
            await berth.tell_ready(await rows(app, settings, port, file) if berth.speaks else ())

    given = settings.server
    port, peers = doors
    return Server(
        app.asgi,
        drain=app.engine.drain,
        drain_seconds=given.drain,
        notice=given.notice,
        leave=app.leave,
        started=started,
        is_led=berth is not None,
        head_limit=given.head_limit,
        request_time=given.request_time,
        on_refusal=app.asgi.refused,
        message_limit=given.body_limit,
        ping=Ping(interval=given.websocket.ping_interval, timeout=given.websocket.ping_timeout),
        strict=settings.loop.strict,
        peers=peers,
    )
