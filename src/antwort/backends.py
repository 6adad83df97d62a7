"""Make one provider of the backends that the settings name, and of the model that antwort runs itself."""

from __future__ import annotations

import math
import shlex
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.config.checks import LOCAL, checked_backend, runs_a_model
from antwort.config.problems import CannotStart
from antwort.config.settings import BackendSettings, Settings, ToolCalling
from antwort.providers.base import OnInference, Provider
from antwort.providers.fleet import Fleet, Member
from antwort.providers.retry_policy import RetryPolicy
from antwort.providers.routing import Route, RouteTo, Rules

if TYPE_CHECKING:
    from antwort.local.provider import LocalProvider
    from antwort.providers.http import HttpProvider
    from antwort.providers.tool_emulation.emulation import ToolEmulation

LOCAL_START_SECONDS = 1.8
"""For which an inference waits for a model that is loading: below the two for which `response.created` is held back,
so that a model that takes longer shows as an HTTP error, with the time to wait.
"""


def make_fleet(
    settings: Settings, *, on_inference: OnInference | None = None, local: LocalProvider | None = None
) -> Fleet:
    """Return a provider of all backends. `local` is the result of `make_local` for the same settings; without it, it is
    made here. `on_inference` is called after each request to a backend.

    Raises `CannotStart` for a backend or a route that cannot be used.
    """
    members = [_member(backend, settings.limits.output_bytes) for backend in settings.backends]
    if (local := local or make_local(settings)) is not None:
        mode = settings.local.tool_calling
        mode = "constrained" if mode == "auto" and local.is_constrained else mode
        members.append(
            Member(
                LOCAL,
                local,
                kind="local",
                models=[local.name],
                most=settings.local.slots,
                emulation=_emulation(mode, local),
                failures=math.inf,  # no circuit breaker: the supervisor of the process knows its state
            )
        )
    if not members:
        from antwort.testing.demo import DEMO_MODEL, demo_provider

        members.append(Member("scripted", demo_provider(), kind="scripted", models=[DEMO_MODEL]))
    routing, retry = settings.routing, settings.routing.retry
    routes = [
        Route(
            model=route.model,
            to=tuple(RouteTo(backend=to.backend, model=to.model, weight=to.weight) for to in route.to),
            policy=route.policy,
        )
        for route in routing.routes
    ]
    try:
        return Fleet(
            members,
            Rules(routes=tuple(routes), aliases=routing.aliases, policy=routing.policy),
            retry=RetryPolicy(retry.attempts, retry.base, retry.cap, retry.budget),
            refresh=routing.refresh,
            health=routing.health,
            on_inference=on_inference,
        )
    except ValueError as exc:
        raise CannotStart(f"The backends cannot be used: {exc}.") from exc


def _member(backend: BackendSettings, output_bytes: int) -> Member:
    from antwort.providers.http import Timeouts

    times, kind = backend.timeouts, _kind(backend)
    try:
        provider = kind(
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
    except OSError as exc:  # an SSLError is one, too
        reason = "it holds no certificate" if isinstance(exc, ssl.SSLError) else exc.strerror
        problem = f"the certificates in {backend.ca_file!r} cannot be read: {reason}"
        raise CannotStart(f"The backend {backend.name!r} cannot be used: {problem}.") from exc


def _emulation(mode: ToolCalling, provider: Provider) -> ToolEmulation | None:
    """Return tool calls for models of the provider that have none of their own."""
    if mode == "native":
        return None
    from antwort.providers.tool_emulation.emulation import ToolEmulation

    return ToolEmulation(mode, provider.capabilities)


# ---- the model that antwort runs itself ----


def make_local(settings: Settings) -> LocalProvider | None:
    """Return the model that antwort runs itself, not started yet; None if there is none.

    Raises `CannotStart`, with the one command that installs or fetches what is missing.
    """
    if not runs_a_model(settings):
        return None
    from antwort.local.provider import LocalProvider
    from antwort.local.server_options import CannotRun

    given = settings.local
    file = _model_file(settings)
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
            patience=LOCAL_START_SECONDS,
            output_bytes=settings.limits.output_bytes,
        )
    except CannotRun as exc:
        raise CannotStart(f"The model cannot be run: {exc}.") from exc


def _model_file(settings: Settings) -> Path:
    """Return the model's file, if it and llama.cpp are there."""
    from antwort.local.demo import demo_path, is_there
    from antwort.local.server_options import has_llama

    others = "or name a backend with --backend URL, or a GGUF file with --gguf FILE; --scripted does without a model"
    named = settings.local.model
    try:
        file = demo_path(settings.data_folder()) if named is None else Path(named)
    except CannotStart as exc:
        problem = "There is no home folder that the demo model could be in"
        raise CannotStart(f"{problem}: say --data DIR, {others}.") from exc
    install = "pip install 'antwort[demo]'"
    pull = "antwort model pull" + ("" if settings.data is None else f" --data {shlex.quote(settings.data)}")
    match has_llama(), named is not None or is_there(file):
        case True, True:
            return file
        case False, True:
            missing, brings = "llama.cpp is not installed", f"`{install}` brings it"
        case True, False:
            missing, brings = "the demo model is not there", f"`{pull}` fetches it"
        case _:
            missing, brings = "neither llama.cpp nor the demo model is there", f"`{install} && {pull}` brings both"
    if named is not None:
        raise CannotStart(f"The model cannot be run: {missing}; {brings}.")
    raise CannotStart(f"No backend is named, and {missing}: {brings}; {others}.")
