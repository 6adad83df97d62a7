"""The backends that the settings name become one provider."""

from __future__ import annotations

import math
import shlex
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.config.checks import LOCAL, checked_backend, runs_a_model
from antwort.config.problems import CannotStart
from antwort.config.settings import BackendSettings, RoutingSettings, Settings, ToolCalling
from antwort.providers.base import OnInference, Provider
from antwort.providers.fleet import Fleet, Member
from antwort.providers.retry_policy import RetryPolicy
from antwort.providers.routing import Route, RouteTo, Rules

if TYPE_CHECKING:
    from antwort.local.provider import LocalProvider
    from antwort.providers.http import HttpProvider
    from antwort.providers.tool_emulation.emulation import ToolEmulation


def make_fleet(
    settings: Settings, *, on_inference: OnInference | None = None, local: LocalProvider | None = None
) -> Fleet:
    """Make a provider of the backends in the settings. `local` is what `make_local` has made of the same settings;
    without it, it is made here. `on_inference` is called after each request to a backend.

    Raises `CannotStart` when the settings name a backend that cannot be spoken to, or a route to nobody.
    """
    members = [_member(backend, settings.limits.output_bytes) for backend in settings.backends]
    if (local := local or make_local(settings)) is not None:
        members.append(_local_member(settings, local))
    members = members or [_scripted_member()]
    routing, retry = settings.routing, settings.routing.retry
    try:
        return Fleet(
            members,
            _rules(routing),
            retry=RetryPolicy(retry.attempts, retry.base, retry.cap, retry.budget),
            refresh=routing.refresh,
            health=routing.health,
            on_inference=on_inference,
        )
    except ValueError as exc:
        raise CannotStart(f"The backends cannot be used: {exc}.") from exc


def make_local(settings: Settings) -> LocalProvider | None:
    """The model that antwort is to run by itself, if there is one; it is not started yet.

    Raises `CannotStart`, which says what brings what is missing.
    """
    if not runs_a_model(settings):
        return None
    from antwort.local.provider import LocalProvider
    from antwort.local.server_options import CannotRun

    given = settings.local
    file = _demo_file(settings) if given.model is None else Path(given.model)
    _check_parts(settings, file)
    try:
        return LocalProvider(
            file,
            name=given.name,
            template=given.template,
            adapter=given.adapter,
            context=given.context,
            slots=given.slots,
            threads=given.threads,
            ready=given.ready,
            patience=PATIENCE,
            output_bytes=settings.limits.output_bytes,
        )
    except CannotRun as exc:
        raise CannotStart(f"The model cannot be run: {exc}.") from exc


def _member(backend: BackendSettings, output_bytes: int) -> Member:
    provider = _provider(backend, output_bytes)
    return Member(
        backend.name,
        provider,
        kind=backend.kind,
        models=backend.models,
        prefix=backend.prefix or "",
        weight=backend.weight,
        most=backend.max_exchanges,
        emulation=_emulation(backend.tool_calling if backend.kind == "chat" else "native", provider),
        failures=backend.breaker.failures,
        open_for=backend.breaker.open,
    )


# ---- the model of our own ----

PATIENCE = 1.8
"""Seconds that an inference waits for a model that is loading: below the two for which `response.created` is held
back, so that a model that takes longer shows as an HTTP error, with the time to wait.
"""
_OTHERS = "or name a backend with --backend URL, or a GGUF file with --gguf FILE; --scripted does without a model"


def _local_member(settings: Settings, local: LocalProvider) -> Member:
    """Without a circuit breaker: the supervisor of its process knows when it can be reached."""
    mode = settings.local.tool_calling
    if mode == "auto" and local.is_constrained:
        mode = "constrained"
    return Member(
        LOCAL,
        local,
        kind="local",
        models=[local.name],
        most=settings.local.slots,
        emulation=_emulation(mode, local),
        failures=math.inf,
    )


def _demo_file(settings: Settings) -> Path:
    from antwort.local.demo import demo_path

    try:
        return demo_path(settings.data_folder())
    except CannotStart as exc:
        raise CannotStart(
            f"There is no home folder that the demo model could be in: say --data DIR, {_OTHERS}."
        ) from exc


def _check_parts(settings: Settings, file: Path) -> None:
    """Raises `CannotStart` with the one command that brings what is missing."""
    from antwort.local.demo import is_there
    from antwort.local.server_options import has_llama

    install = "pip install 'antwort[demo]'"
    data = "" if settings.data is None else f" --data {shlex.quote(settings.data)}"
    match has_llama(), settings.local.model is not None or is_there(file):
        case True, True:
            return
        case False, True:
            missing, brings = "llama.cpp is not installed", f"`{install}` brings it"
        case True, False:
            missing, brings = "the demo model is not there", f"`antwort model pull{data}` fetches it"
        case _:
            missing = "neither llama.cpp nor the demo model is there"
            brings = f"`{install} && antwort model pull{data}` brings both"
    if settings.local.model is not None:
        raise CannotStart(f"The model cannot be run: {missing}; {brings}.")
    raise CannotStart(f"No backend is named, and {missing}: {brings}; {_OTHERS}.")


def _scripted_member() -> Member:
    from antwort.testing.demo import DEMO_MODEL, demo_provider

    return Member("scripted", demo_provider(), kind="scripted", models=[DEMO_MODEL])


def _emulation(mode: ToolCalling, provider: Provider) -> ToolEmulation | None:
    """Return tool calls for models of the provider that have none of their own."""
    if mode == "native":
        return None
    from antwort.providers.tool_emulation.emulation import ToolEmulation

    return ToolEmulation(mode, provider.capabilities)


def _provider(backend: BackendSettings, output_bytes: int) -> Provider:
    from antwort.providers.http import Timeouts

    times, kind = backend.timeouts, _kind(backend)
    try:
        return kind(
            checked_backend(backend.url),
            api_key=backend.api_key.reveal() if backend.api_key else None,
            capabilities=backend.capabilities.over(kind.default_capabilities),
            timeouts=Timeouts(connect=times.connect, first_byte=times.first_byte, idle=times.idle),
            headers={name: value.reveal() for name, value in backend.headers.items()},
            tls=_tls(backend),
            output_bytes=output_bytes,
        )
    except ValueError as exc:
        raise CannotStart(f"The backend {backend.name!r} cannot be used: {exc}.") from exc


def _kind(backend: BackendSettings) -> type[HttpProvider]:
    if backend.kind == "responses":
        from antwort.providers.responses import ResponsesProvider

        return ResponsesProvider
    from antwort.providers.chat import ChatProvider

    return ChatProvider


def _tls(backend: BackendSettings) -> ssl.SSLContext | None:
    if backend.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=backend.ca_file)
    except OSError as exc:  # of which an SSLError is one
        reason = "it holds no certificate" if isinstance(exc, ssl.SSLError) else exc.strerror
        problem = f"the certificates in {backend.ca_file!r} cannot be read: {reason}"
        raise CannotStart(f"The backend {backend.name!r} cannot be used: {problem}.") from exc


def _rules(routing: RoutingSettings) -> Rules:
    routes = [
        Route(
            model=route.model,
            to=tuple(RouteTo(backend=to.backend, model=to.model, weight=to.weight) for to in route.to),
            policy=route.policy,
        )
        for route in routing.routes
    ]
    return Rules(routes=tuple(routes), aliases=routing.aliases, policy=routing.policy)
