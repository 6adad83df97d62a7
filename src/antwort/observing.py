"""The log lines and the metrics of a server, as the settings say."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from antwort.config.checks import is_loopback, keys_required, only_near
from antwort.config.problems import CannotStart
from antwort.config.settings import Settings
from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.providers.base import OnInference
from antwort.server.auth import HostCheck, Keyring
from antwort.server.exchange import Exchange
from antwort.server.resources import Endpoint
from antwort.server.server import reason
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from antwort.telemetry.endpoint import PATH, Guard, MetricsElsewhere, MetricsEndpoint, MetricsPort, Verdict, verdict
from antwort.telemetry.hooks import RunObserver, log_call, log_content, timed_store

if TYPE_CHECKING:
    from antwort.telemetry.metrics import Metrics


class Observation:
    """The hooks of a server. Without metrics they only write log lines."""

    def __init__(
        self, metrics: Metrics | None = None, extra: Endpoint | None = None, port: MetricsPort | None = None
    ) -> None:
        """`extra` is to be read on the server's own port."""
        self.metrics, self.port = metrics, port
        self.extra: Mapping[str, Endpoint] = {} if extra is None else {PATH: extra}
        self._runs = RunObserver(metrics)
        on_end, on_call = (log_content, self._runs.on_end), (log_call,)
        self.on_end: Sequence[Callable[[RunSummary], None]] = on_end if metrics is None else (*on_end, metrics.response)
        self.on_call: Sequence[Callable[[CallRecord], None]] = on_call if metrics is None else (*on_call, metrics.call)
        self.on_request: Sequence[Callable[[Exchange, float], None]] = () if metrics is None else (metrics.request,)
        self.on_inference: OnInference | None = None if metrics is None else metrics.inference

    def store(self, store: ResponseStore) -> ResponseStore:
        return store if self.metrics is None else timed_store(store, self.metrics)

    def runs(self, runs: RunLog) -> RunLog:
        if self.metrics is not None:
            self.metrics.gauges.load = runs.load
        return self._runs.observe(runs)


def observe(settings: Settings, labels: Iterable[str], door: Keyring | HostCheck) -> Observation:
    """`labels` are those of the operator's tools. A port of its own listens from here on. Raises `CannotStart`."""
    if not settings.metrics.enabled:
        return Observation()
    guard, port = _guard(settings, door), settings.metrics.port
    if port is None and settings.server.workers > 1:
        return Observation(extra=MetricsElsewhere(guard))
    from antwort.telemetry.metrics import Metrics  # only here: `prometheus_client` takes 30 ms to load

    metrics = Metrics(models=_models(settings), labels=labels, keys=[key.name for key in settings.auth.keys])
    endpoint = MetricsEndpoint(metrics, guard)
    if port is None:
        return Observation(metrics, endpoint)
    return Observation(metrics, port=_listen(settings.metrics.host, port, endpoint))


def metrics_for_strangers(settings: Settings) -> Verdict:
    """What somebody finds who comes to the metrics without a key."""
    return verdict(
        is_public=_is_public(settings),
        has_key=settings.metrics.key is not None,
        is_key=False,
        has_readers=_has_readers(settings),
        is_reader=False,
    )


def _is_public(settings: Settings) -> bool:
    """Where keys are asked for, the server may be public by way of a proxy, whatever it listens on itself. A port of
    their own is where the operator has put it.
    """
    is_alone = only_near(settings) and not keys_required(settings)
    return settings.metrics.port is None and not is_alone


def _has_readers(settings: Settings) -> bool:
    return keys_required(settings) and any(key.metrics for key in settings.auth.keys)


def _guard(settings: Settings, door: Keyring | HostCheck) -> Guard:
    own, metrics = settings.metrics.key, settings.metrics
    is_ours = metrics.port is None or is_loopback(metrics.host)
    return Guard(
        is_public=_is_public(settings),
        key=own.reveal() if own is not None else None,
        readers=door.may_read_metrics if isinstance(door, Keyring) and _has_readers(settings) else None,
        doorway=door.identify if isinstance(door, HostCheck) and is_ours else None,
    )


def _listen(host: str, port: int, endpoint: MetricsEndpoint) -> MetricsPort:
    try:
        return MetricsPort(endpoint, host, port)
    except OSError as exc:
        fix = (
            "choose another with metrics.port" if exc.errno == errno.EADDRINUSE else "see metrics.host and metrics.port"
        )
        raise CannotStart(f"Cannot listen on port {port} of {host} for the metrics: {reason(exc)}; {fix}.") from exc


def _models(settings: Settings) -> Iterable[str]:
    """The names of models that the operator wrote; those that backends list are learned as they are used."""
    yield from (settings.default_model,) if settings.default_model else ()
    for alias, name in settings.routing.aliases.items():
        yield from (alias, name)
    for route in settings.routing.routes:
        yield route.model
        yield from (target.model for target in route.to if target.model is not None)
