"""`antwort serve`: the server on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antwort.version import __version__

if TYPE_CHECKING:
    from antwort.app import App
    from antwort.config import Settings

KEY_VARIABLE = "ANTWORT_BACKEND_API_KEY"
NO_BACKEND = "antwort: say who answers: --backend URL for a Chat Completions backend, or --scripted for a stand-in."


def declare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="answer the Responses API over HTTP",
        description="Answer the Responses API over HTTP, in front of a Chat Completions backend.",
        epilog=f"The backend's key is read from the variable {KEY_VARIABLE}, or from --backend-key-file.",
        # What is not given is not there: defaults are said once, by the settings.
        argument_default=argparse.SUPPRESS,
    )
    _declare_server(parser)
    _declare_loop(parser.add_argument_group("the loop"))
    parser.set_defaults(run=run)


def _declare_server(parser: argparse.ArgumentParser) -> None:
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--backend", metavar="URL", help="the backend's base address, such as http://localhost:8000/v1")
    who.add_argument("--scripted", action="store_true", help="no backend: a scripted stand-in answers, not a model")
    parser.add_argument("--backend-key-file", metavar="FILE", help="a file with the backend's API key")
    parser.add_argument("--host", metavar="HOST", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=_number(int, 0, 65535), help="0 takes a free one (default: 8080)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", metavar="DIR", help="the folder for stored responses (default: the user's data folder)"
    )
    where.add_argument("--memory", action="store_true", help="keep stored responses in memory only")
    seconds = "seconds that responses under way get when the server is told to stop (default: 10)"
    parser.add_argument("--drain", metavar="S", type=_number(float, 0, 86400), help=seconds)
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, help="(default: info, one line a request)")


def _declare_loop(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--default-model", metavar="MODEL", help="the model of requests that name none")
    turns = "how often the model is asked for one response (default: 10)"
    group.add_argument("--max-turns", metavar="N", type=_number(int, 1, 10000), help=turns)
    deadline = "seconds that one response may take (default: 600)"
    group.add_argument("--deadline", metavar="S", type=_number(float, 0.001, 86400), help=deadline)
    mixed = (
        "a turn that calls the client's and the server's tools: hand all to the client, or run ours (default: pause)"
    )
    group.add_argument("--mixed-turns", choices=("pause", "execute"), help=mixed)
    action = "how a response says that the client must act (default: status)"
    group.add_argument("--requires-action", choices=("status", "event", "completed"), help=action)
    group.add_argument("--strict", action="store_true", help="write the standard's names where OpenAI's differ")


def _number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return value

    return read


def run(chosen: argparse.Namespace) -> int:
    given = vars(chosen)
    if "backend" not in given and "scripted" not in given:
        print(NO_BACKEND, file=sys.stderr)
        return 2
    from antwort.cli import logs
    from antwort.config import CannotStart

    try:
        settings = read_settings(given, os.environ.get(KEY_VARIABLE))
        logs.configure(settings.log.level)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serve(settings))
    except CannotStart as exc:
        print(f"antwort: {exc}", file=sys.stderr)
        return 1


def read_settings(given: dict[str, Any], key: str | None) -> Settings:
    """The settings that the flags ask for. Raises `CannotStart`."""
    from antwort.config import Settings, checked_backend, read_key
    from antwort.config.settings import BackendSettings, LogSettings, ServerSettings
    from antwort.engine.settings import LoopSettings

    def chosen(kind: type[Any]) -> Any:
        return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})

    backends: tuple[BackendSettings, ...] = ()
    if "backend" in given:
        key_read = read_key(key, given.get("backend_key_file"))
        backends = (BackendSettings(name="default", url=checked_backend(given["backend"]), api_key=key_read),)
    return Settings(
        backends=backends,
        scripted=given.get("scripted", False),
        data=given.get("data"),
        memory=given.get("memory", False),
        default_model=given.get("default_model"),
        server=chosen(ServerSettings),
        loop=chosen(LoopSettings),
        log=LogSettings(level=given["log_level"]) if "log_level" in given else LogSettings(),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not to be had on Windows
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings) -> int:
    """Serve until a signal says to stop; the exit status. Raises `CannotStart`."""
    from antwort.app import build
    from antwort.transport.server import Server

    with _listen(settings) as sock:
        app = await build(settings)
        try:
            await app.start()
            address = _address(settings.server.host, sock.getsockname()[1])
            server = Server(
                app.asgi,
                drain=app.engine.drain,
                drain_seconds=settings.server.drain,
                started=lambda: announce(app, settings, address),
            )
            await server.serve(sockets=[sock])
        finally:
            await app.close()
    return 1 if server.force_exit else 0


def _listen(settings: Settings) -> socket.socket:
    from antwort.config import CannotStart
    from antwort.transport.server import listen

    try:
        return listen(settings.server.host, settings.server.port)
    except OSError as exc:
        where = _address(settings.server.host, settings.server.port)
        raise CannotStart(f"Cannot listen on {where}: {exc.strerror or exc}.") from exc


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def announce(app: App, settings: Settings, address: str) -> None:
    """What a person who has just started the server wants to know."""
    from antwort.config import without_query

    _say(f"antwort {__version__} listens on {address}")
    models, state = await _models(app)
    scripted = "none: a scripted stand-in answers, not a model"
    example = {"model": settings.default_model or next(iter(models), None), "input": "Say hello."}
    body = json.dumps({key: value for key, value in example.items() if value})
    _say(
        f"  backend  {scripted if not settings.backends else without_query(settings.backends[0].url) + state}",
        f"  data     {'in memory, gone when the server stops' if settings.memory else settings.data_folder()}",
        f"  try      curl {address}/v1/responses -H 'Content-Type: application/json' -d '{body}'",
    )


def _say(*lines: str) -> None:
    """To whoever listens: a server whose output is closed, or full, serves all the same."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError:  # what was not written would be tried again at the end, and change the exit status
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


async def _models(app: App) -> tuple[list[str], str]:
    """The models there are, and what to say of them."""
    from antwort.errors import AntwortError, BackendTimeout, BackendUnavailable

    try:
        models = [model.id for model in await asyncio.wait_for(app.engine.models(), 2)]
    except (BackendTimeout, BackendUnavailable, TimeoutError):
        return [], ", which cannot be reached yet"
    except AntwortError as exc:
        return [], f", which was reached, but did not list its models: {exc.message}"
    more = f" and {len(models) - 5} more" if len(models) > 5 else ""
    return models, f", models: {', '.join(models[:5])}{more}" if models else ", which lists no models"
