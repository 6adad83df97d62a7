"""What is seen of a server from outside, as the settings say: its log lines and its metrics."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence

from antwort.config.addresses import is_loopback
from antwort.config.checks import keys_required
from antwort.config.problems import CannotStart
from antwort.config.settings import MetricsSettings, Settings
from antwort.config.sharing import only_near
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
from antwort.telemetry.log_events import log_call, log_content
from antwort.telemetry.metrics import Metrics, RunCounts
from antwort.telemetry.store import observed_runs, timed_store


class Observation:
    """Goes around the parts of a server and sits beside them. Without metrics it only writes log lines."""

    def __init__(self, metrics: Metrics | None, endpoint: Endpoint | None, port: MetricsPort | None) -> None:
        self.metrics, self.port = metrics, port
        self._endpoint = endpoint

    @property
    def on_inference(self) -> OnInference | None:
        return None if self.metrics is None else self.metrics.inference

    def store(self, store: ResponseStore) -> ResponseStore:
        return store if self.metrics is None else timed_store(store, self.metrics)

    def runs(self, runs: RunLog) -> tuple[RunLog, Callable[[RunSummary], None]]:
        """The run log for the engine, and a callback for each run that has ended."""
        counts = RunCounts() if self.metrics is None else self.metrics.runs
        counts.watch(runs.load)
        return observed_runs(runs, counts)

    @property
    def on_end(self) -> Sequence[Callable[[RunSummary], None]]:
        return (log_content,) if self.metrics is None else (log_content, self.metrics.response)

    @property
    def on_call(self) -> Sequence[Callable[[CallRecord], None]]:
        return (log_call,) if self.metrics is None else (log_call, self.metrics.call)

    @property
    def on_request(self) -> Sequence[Callable[[Exchange, float], None]]:
        return () if self.metrics is None else (self.metrics.request,)

    @property
    def extra(self) -> Mapping[str, Endpoint]:
        """What is to be read on the server's own port."""
        return {PATH: self._endpoint} if self._endpoint is not None and self.port is None else {}


def observe(settings: Settings, labels: Iterable[str], door: Keyring | HostCheck) -> Observation:
    """`labels` are those of the operator's tools. A port of its own listens from here on. Raises `CannotStart`."""
    metrics = settings.metrics
    if not metrics.enabled:
        return Observation(None, None, None)
    counted = Metrics(models=_models(settings), labels=labels, keys=[key.name for key in settings.auth.keys])
    if metrics.port is None and settings.server.workers > 1:
        return Observation(None, MetricsElsewhere(_guard(settings, door)), None)
    endpoint = MetricsEndpoint(counted, _guard(settings, door))
    return Observation(counted, endpoint, None if metrics.port is None else _listen(metrics, endpoint))


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


def _listen(metrics: MetricsSettings, endpoint: MetricsEndpoint) -> MetricsPort:
    host, port = metrics.host, metrics.port or 0
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
