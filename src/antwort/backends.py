"""The backends that the settings name become one provider."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from antwort.config.addresses import checked_backend
from antwort.config.problems import CannotStart
from antwort.config.settings import BackendSettings, RetrySettings, RoutingSettings, Settings
from antwort.providers.base import Provider
from antwort.providers.breaker import Breaker
from antwort.providers.fleet import Fleet, Member
from antwort.providers.resilience import Retrying
from antwort.providers.routing import Route, RouteTo, Rules

if TYPE_CHECKING:
    from antwort.providers.remote import Remote

Wrap: TypeAlias = Callable[[str, Provider], Provider]
"""What is put around each backend's provider; it is told the backend's name."""


def _as_it_is(name: str, provider: Provider) -> Provider:  # noqa: ARG001 - the shape of a wrap
    return provider


def make_fleet(settings: Settings, *, wrap: Wrap = _as_it_is) -> Fleet:
    """Raises `CannotStart` when the settings name a backend that cannot be spoken to, or a route to nobody."""
    members = [_member(backend, wrap) for backend in settings.backends] or [_stand_in(wrap)]
    routing = settings.routing
    try:
        return Fleet(members, _rules(routing), refresh=routing.refresh, health=routing.health)
    except ValueError as exc:
        raise CannotStart(f"The backends cannot be used: {exc}.") from exc


def patient(provider: Provider, retry: RetrySettings) -> Retrying:
    """The provider, tried again as the settings say."""
    return Retrying(provider, attempts=retry.attempts, base=retry.base, cap=retry.cap, budget=retry.budget)


def _member(backend: BackendSettings, wrap: Wrap) -> Member:
    return Member(
        backend.name,
        wrap(backend.name, _provider(backend)),
        kind=backend.kind,
        models=backend.models,
        prefix=backend.prefix or "",
        weight=backend.weight,
        most=backend.max_exchanges,
        breaker=Breaker(backend.breaker.failures, backend.breaker.open),
    )


def _stand_in(wrap: Wrap) -> Member:
    from antwort.testing.demo import DEMO_MODEL, demo_provider

    return Member("scripted", wrap("scripted", demo_provider()), kind="scripted", models=[DEMO_MODEL])


def _provider(backend: BackendSettings) -> Provider:
    from antwort.providers.remote import Timeouts

    times, kind = backend.timeouts, _kind(backend)
    try:
        return kind(
            checked_backend(backend.url),
            api_key=backend.api_key.reveal() if backend.api_key else None,
            capabilities=backend.capabilities.over(kind.usual),
            timeouts=Timeouts(connect=times.connect, first_byte=times.first_byte, idle=times.idle),
            headers={name: value.reveal() for name, value in backend.headers.items()},
            tls=_tls(backend),
        )
    except ValueError as exc:
        raise CannotStart(f"The backend {backend.name!r} cannot be used: {exc}.") from exc


def _kind(backend: BackendSettings) -> type[Remote]:
    if backend.kind == "responses":
        from antwort.providers.native import ResponsesProvider

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
