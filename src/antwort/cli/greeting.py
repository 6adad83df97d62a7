"""What somebody who has just started the server wants to know."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.cli.say import say
from antwort.cli.waiting import shown
from antwort.config.checks import keys_required, only_near, without_query
from antwort.config.problems import CannotStart, printable
from antwort.config.settings import Settings, StandingSettings
from antwort.config.shown import shown_address
from antwort.observing import metrics_for_strangers
from antwort.version import __version__

if TYPE_CHECKING:
    from antwort.app import App
    from antwort.local.provider import LocalProvider
    from antwort.providers.member import BackendStatus
    from antwort.tools.toolset import ToolsetInfo

_MOST = 5
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it listens is the operator's word
_READERS = {"open": "", "locked": " (with a key)", "hidden": " (for nobody, until metrics.key is set)"}
_KEY = "-H 'Authorization: Bearer YOUR_KEY'"


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def announce(app: App, settings: Settings, port: int, file: Path | None = None) -> None:
    """Say at once where the server listens, and the rest when the model is loaded and the backends have been asked.

    Raises `CannotStart` when the model cannot be loaded. `file` is the one that the settings came from: it may be one
    that nobody named.
    """
    say(headline(settings, port))
    say(*written(await rows(app, settings, port, file)))


def headline(settings: Settings, port: int) -> str:
    return f"antwort {__version__} listens on {address(settings.server.host, port)}"


def written(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {title:8} {text}" for title, text in rows)


async def rows(app: App, settings: Settings, port: int, file: Path | None = None) -> list[tuple[str, str]]:
    """All but where it listens. Raises `CannotStart` when the model cannot be loaded."""
    if app.local is not None:
        await _load(app.local)
    backends = await app.survey()
    near = address(_EVERYWHERE.get(settings.server.host, settings.server.host), port)
    return [
        *_backends(app, settings, backends),
        *_tools(app.toolsets),
        *_mcp(settings),
        ("keys", _keys(settings)),
        *_metrics(app, settings, near),
        *([] if file is None else [("config", str(file))]),
        ("data", _data(settings)),
        ("docs", f"{near}/docs"),
        ("try", _example(settings, backends, near, _question(app.local))),
        ("or", f"antwort chat --url {near}"),
    ]


def worker_headline(settings: Settings) -> str:
    return f"antwort {__version__} makes background responses, {settings.background.at_once} at once"


async def worker_rows(app: App, settings: Settings, file: Path | None = None) -> list[tuple[str, str]]:
    """Of a process that listens to nobody. Raises `CannotStart` when the model cannot be loaded."""
    if app.local is not None:
        await _load(app.local)
    return [
        *_backends(app, settings, await app.survey()),
        *_tools(app.toolsets),
        *_mcp(settings),
        *([] if app.metrics_port is None else _metrics(app, settings, "")),
        *([] if file is None else [("config", str(file))]),
        ("data", _data(settings)),
    ]


def _data(settings: Settings) -> str:
    """Of a database nothing is told but that it is one: its address may carry a password."""
    if settings.database is not None:
        return "in the PostgreSQL database"
    return "in memory, gone when the server stops" if settings.memory else str(settings.data_folder())


async def _load(model: LocalProvider) -> None:
    from antwort.local.server_options import CannotRun

    try:
        await shown(model.ready(), f"  {'model':8} loading {printable(model.name)}")
    except CannotRun as exc:
        raise CannotStart(f"The model {model.name} cannot be loaded: {exc}.") from exc


def _local(model: LocalProvider) -> str:
    from antwort.local.demo import ABOUT

    about = ABOUT if model.is_demo else f"the file {printable(str(model.file))}"
    return f"{printable(model.name)} on this machine: {about}"


def _backends(app: App, settings: Settings, backends: Sequence[BackendStatus]) -> Iterator[tuple[str, str]]:
    if app.local is not None:
        yield "model", _local(app.local)
    elif not settings.backends:
        yield "backend", "none: a scripted stand-in answers, not a model"
    status = {backend.name: backend for backend in backends}
    is_alone = len(settings.backends) == 1
    for backend in settings.backends:
        name = "" if is_alone and backend.name == "default" else f"{backend.name} at "
        known = status.get(backend.name)
        yield "backend", f"{name}{without_query(backend.url)}, {_state(known) if known else 'not asked yet'}"


def _state(backend: BackendStatus) -> str:
    from antwort.providers.errors import REFUSED_CREDENTIALS

    if backend.state == "unreachable" and backend.problem != REFUSED_CREDENTIALS:
        return "which cannot be reached yet"
    if backend.models:
        return f"models: {_some(backend.models)}"
    if backend.problem:
        return f"which was reached, but did not list its models: {backend.problem}"
    return "which has not answered yet" if backend.models is None else "which lists no models"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join(printable(name) for name in names[:_MOST])}{more}"


def _tools(toolsets: Sequence[ToolsetInfo]) -> Iterator[tuple[str, str]]:
    for toolset in toolsets:
        yield "tools", f"{toolset.label}: {_some(toolset.tools)} (from {toolset.origin})"


def _mcp(settings: Settings) -> Iterator[tuple[str, str]]:
    """As they are configured: how they stand is not waited for."""
    for server in settings.mcp_servers:
        place = f"at {shown_address(server.url)}" if server.url else f"run by {printable(server.command[0])}"
        standing = "" if server.standing is None else _FOR_ALL if server.standing == _ALL else _FOR_SOME
        yield "mcp", f"{server.label}: {place}{standing}"


_ALL = StandingSettings()
_FOR_ALL, _FOR_SOME = " (in every request)", " (in some requests without being named)"


def _keys(settings: Settings) -> str:
    if keys_required(settings):
        return f"required; there are {_some([key.name for key in settings.auth.keys])}"
    if only_near(settings):
        return "not required: only this machine can reach the server"
    return (
        "not required, as auth.required is never: whoever reaches the server can use it, under a name in server.hosts"
    )


def _metrics(app: App, settings: Settings, near: str) -> Iterator[tuple[str, str]]:
    metrics = settings.metrics
    if not metrics.enabled:
        return
    if settings.server.workers > 1 and app.metrics_port is None:
        yield "metrics", "none, until metrics.port is set: each worker has its own, on a port of its own"
        return
    place = near if app.metrics_port is None else address(metrics.host, app.metrics_port.port)
    others = settings.server.workers - 1
    more = "" if not others else ", and on the next port" if others == 1 else f", and on the next {others} ports"
    yield "metrics", f"{place}/metrics{more}{_READERS[metrics_for_strangers(settings)]}"


def _question(model: LocalProvider | None) -> str:
    """The demo model knows a few capitals, and finds no end to its greetings."""
    return "What is the capital of France?" if model is not None and model.is_demo else "Say hello."


def _example(settings: Settings, backends: Sequence[BackendStatus], near: str, question: str) -> str:
    models = [model for backend in backends for model in backend.models or ()]
    model = settings.default_model or next(iter(models), None)
    body = json.dumps({"model": model, "input": question} if model else {"input": question})
    key = f" {_KEY}" if keys_required(settings) else ""
    return f"curl {near}/v1/responses{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
