"""What a server or a worker prints when it has started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.cli.output import say, with_progress
from antwort.config.checks import keys_required, only_near, without_query
from antwort.config.problems import CannotStart, printable
from antwort.config.settings import Settings, StandingSettings
from antwort.config.shown import shown_address
from antwort.observing import metrics_for_strangers
from antwort.version import __version__

if TYPE_CHECKING:
    from antwort.app import App
    from antwort.providers.member import BackendStatus

Row = tuple[str, str]
"""A title and a text."""

_MAX_NAMES = 5
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it listens is the operator's word
_METRICS_ACCESS = {"open": "", "locked": " (with a key)", "hidden": " (for nobody, until metrics.key is set)"}


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def announce(app: App, settings: Settings, port: int, file: Path | None = None) -> None:
    """Print at once where the server listens, and the rest when the model is loaded and the backends have been asked.
    `file` is that of the settings. Raises `CannotStart` if the model cannot be loaded.
    """
    say(headline(settings, port))
    say(*format_rows(await server_rows(app, settings, port, file)))


def headline(settings: Settings, port: int) -> str:
    return f"antwort {__version__} listens on {address(settings.server.host, port)}"


def worker_headline(settings: Settings) -> str:
    return f"antwort {__version__} makes background responses, {settings.background.at_once} at once"


def format_rows(rows: Iterable[Row]) -> Iterator[str]:
    return (f"  {title:8} {text}" for title, text in rows)


async def server_rows(app: App, settings: Settings, port: int, file: Path | None = None) -> list[Row]:
    """Return everything but where the server listens. Raises `CannotStart` if the model cannot be loaded."""
    backends = await _survey(app)
    url = address(_ALL_ADDRESSES.get(settings.server.host, settings.server.host), port)
    if keys_required(settings):
        keys = f"required; there are {_some([key.name for key in settings.auth.keys])}"
    elif only_near(settings):
        keys = "not required: only this machine can reach the server"
    else:
        who = "whoever reaches the server can use it, under a name in server.hosts"
        keys = f"not required, as auth.required is never: {who}"
    return [
        *_parts(app, settings, backends),
        ("keys", keys),
        *_metrics(app, settings, url),
        *_places(settings, file),
        ("docs", f"{url}/docs"),
        ("try", _example(app, settings, backends, url)),
        ("or", f"antwort chat --url {url}"),
    ]


async def worker_rows(app: App, settings: Settings, file: Path | None = None) -> list[Row]:
    """Return what there is to say of `antwort worker`. Raises `CannotStart` if the model cannot be loaded."""
    backends = await _survey(app)
    metrics = [] if app.metrics_port is None else _metrics(app, settings, "")
    return [*_parts(app, settings, backends), *metrics, *_places(settings, file)]


async def _survey(app: App) -> Sequence[BackendStatus]:
    """Wait for the model of our own, and ask the backends for theirs."""
    if (model := app.local) is not None:
        from antwort.local.server_options import CannotRun

        try:
            await with_progress(model.ready(), f"  {'model':8} loading {printable(model.name)}")
        except CannotRun as exc:
            raise CannotStart(f"The model {model.name} cannot be loaded: {exc}.") from exc
    return await app.survey()


def _parts(app: App, settings: Settings, backends: Sequence[BackendStatus]) -> Iterator[Row]:
    """Yield what answers: models, backends, tools and MCP servers. For those, how they stand is not waited for."""
    if app.local is not None:
        from antwort.local.demo import ABOUT

        about = ABOUT if app.local.is_demo else f"the file {printable(str(app.local.file))}"
        yield "model", f"{printable(app.local.name)} on this machine: {about}"
    elif not settings.backends:
        yield "backend", "none: a scripted stand-in answers, not a model"
    status = {backend.name: backend for backend in backends}
    for backend in settings.backends:
        is_nameless = len(settings.backends) == 1 and backend.name == "default"
        found = _state(status[backend.name]) if backend.name in status else "not asked yet"
        yield "backend", f"{'' if is_nameless else f'{backend.name} at '}{without_query(backend.url)}, {found}"
    for toolset in app.toolsets:
        yield "tools", f"{toolset.label}: {_some(toolset.tools)} (from {toolset.origin})"
    for server in settings.mcp_servers:
        place = f"at {shown_address(server.url)}" if server.url else f"run by {printable(server.command[0])}"
        standing = " (in every request)" if server.standing == StandingSettings() else ""
        if server.standing is not None:
            standing = standing or " (in some requests without being named)"
        yield "mcp", f"{server.label}: {place}{standing}"


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
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(printable(name) for name in names[:_MAX_NAMES])}{more}"


def _metrics(app: App, settings: Settings, url: str) -> Iterator[Row]:
    metrics = settings.metrics
    if not metrics.enabled:
        return
    if settings.server.workers > 1 and app.metrics_port is None:
        yield "metrics", "none, until metrics.port is set: each worker has its own, on a port of its own"
        return
    place = url if app.metrics_port is None else address(metrics.host, app.metrics_port.port)
    others = settings.server.workers - 1
    more = "" if not others else ", and on the next port" if others == 1 else f", and on the next {others} ports"
    yield "metrics", f"{place}/metrics{more}{_METRICS_ACCESS[metrics_for_strangers(settings)]}"


def _places(settings: Settings, file: Path | None) -> Iterator[Row]:
    if file is not None:
        yield "config", str(file)
    if settings.database is not None:  # its address may hold a password
        yield "data", "in the PostgreSQL database"
    else:
        yield "data", "in memory, gone when the server stops" if settings.memory else str(settings.data_folder())


def _example(app: App, settings: Settings, backends: Sequence[BackendStatus], url: str) -> str:
    # The demo model knows a few capitals, and does not stop greeting.
    is_demo = app.local is not None and app.local.is_demo
    question = "What is the capital of France?" if is_demo else "Say hello."
    listed = (model for backend in backends for model in backend.models or ())
    model = settings.default_model or next(listed, None)
    body = json.dumps({"model": model, "input": question} if model else {"input": question})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if keys_required(settings) else ""
    return f"curl {url}/v1/responses{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
