"""`antwort serve`: the server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from antwort.cli.say import complain
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.config.reading import Loaded
    from antwort.config.settings import Settings

_LAST_MOMENT = 1.0
"""Seconds for whatever is left when the server has stopped."""


def run(given: Mapping[str, object]) -> int:
    _fill_gaps()
    try:
        settings, file = _read(given)
    except CannotStart as exc:
        return complain(exc)
    runner = asyncio.Runner(loop_factory=_loop_factory())
    status = 1
    try:
        status = runner.run(serve(settings, file))
    except CannotStart as exc:
        status = complain(exc)
    finally:
        _close(runner, status)
    return status


def _close(runner: asyncio.Runner, status: int) -> None:
    """The event loop waits for all that runs on it and beside it; a tool that hangs would keep the process for ever."""
    closing = threading.Thread(target=runner.close, daemon=True)
    closing.start()
    with contextlib.suppress(KeyboardInterrupt):
        closing.join(_LAST_MOMENT)
    if closing.is_alive() or _is_held():
        _leave(status)


def _is_held() -> bool:
    """Whether a thread of somebody's own would keep the process, after a moment to end."""
    end = time.monotonic() + _LAST_MOMENT
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(end - time.monotonic(), 0))
            if thread.is_alive():
                return True
    return False


def _leave(status: int) -> NoReturn:
    """End the process now, whoever is still at work in it."""
    logging.getLogger("antwort.cli").warning("something that a tool has left behind does not end; leaving without it")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _fill_gaps() -> None:
    """A standard stream that is closed leaves its number to the next socket or file, and then words go there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def _read(given: Mapping[str, object]) -> tuple[Settings, Path | None]:
    """The settings without a key in them: they are kept as long as the server runs."""
    from antwort.access import hashed
    from antwort.config.checks import check_ready
    from antwort.config.reading import read

    loaded = read(given)
    check_ready(loaded.settings)
    _begin_log(loaded)
    return hashed(loaded.settings), loaded.file


def _begin_log(loaded: Loaded) -> None:
    from antwort.telemetry import logs

    log = loaded.settings.log
    logs.configure(log.level, log.format, content=log.content)
    for warning in loaded.warnings:
        logging.getLogger("antwort.config").warning(warning)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not to be had on Windows
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings, file: Path | None = None) -> int:
    """Serve until a signal says to stop; the exit status. Raises `CannotStart`."""
    from antwort.app import build
    from antwort.cli.greeting import announce
    from antwort.transport.server import Ping, Server

    with _listen(settings) as sock:
        app = await build(settings)
        try:
            await app.start()
            _spare_the_collector()
            port, sockets = sock.getsockname()[1], settings.server.websocket
            server = Server(
                app.asgi,
                drain=app.engine.drain,
                drain_seconds=settings.server.drain,
                started=lambda: announce(app, settings, port, file),
                head_limit=settings.server.head_limit,
                request_time=settings.server.request_time,
                on_refusal=app.asgi.refused,
                message_limit=settings.server.body_limit,
                ping=Ping(interval=sockets.ping_interval, timeout=sockets.ping_timeout),
                strict=settings.loop.strict,
            )
            await server.serve(sockets=[sock])
        finally:
            await app.close()
    return 1 if server.force_exit else 0


def _spare_the_collector() -> None:
    """What is there now stays, and what a request leaves behind is mostly freed without it: to look through all of it
    after every few hundred objects would take a tenth of the time of a short request.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _listen(settings: Settings) -> socket.socket:
    from antwort.cli.greeting import address
    from antwort.transport.server import listen, reason

    host, port = settings.server.host, settings.server.port
    try:
        return listen(host, port)
    except OSError as exc:
        fix = "; choose another with --port" if exc.errno == errno.EADDRINUSE else ""
        raise CannotStart(f"Cannot listen on {address(host, port)}: {reason(exc)}{fix}.") from exc
