"""The metrics of a server: what is counted as it happens, and what is looked up when they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.errors import RateLimited
from antwort.providers.base import InferenceRecord
from antwort.server.exchange import Exchange
from antwort.storage.run_log import Load
from antwort.telemetry import families
from antwort.telemetry.families import Family
from antwort.telemetry.labels import OTHER, REASONS, STATUSES, Names, code_of, method_of, route_of
from antwort.tools.base import HOUSE_LABEL
from antwort.version import __version__

_OPENMETRICS = "application/openmetrics-text"
CHAT = "chat"  # the operation's name in the conventions
LOAD_SECONDS = 1.0
"""For which a reader of the metrics waits for the load of the run log."""
_ENDED = ("completed", "incomplete", "failed", "cancelled", "requires_action")

Key: TypeAlias = tuple[str, ...]
"""The values of labels, in the order of the family's."""
Count: TypeAlias = Callable[[float], None]


class Series(dict[Key, Count]):
    """`series[key](value)` counts or observes a value under the labels `key`. Each child is looked up once: a lookup
    takes longer than counting (0.7 us; `inc` 0.3, `observe` 0.6).
    """

    def __init__(self, family: Family, registry: CollectorRegistry, begin: Iterable[Key] = ()) -> None:
        """Counters to `begin` with are 0 from the start."""
        super().__init__()
        name, text, labels = family.name, family.help, family.labels
        self._metric: Counter | Histogram = (
            Counter(name, text, labels, registry=registry)
            if family.kind == "counter"
            else Histogram(name, text, labels, registry=registry, buckets=family.bounds)
        )
        for key in begin:
            self[key](0)

    def __missing__(self, key: Key) -> Count:
        child = self._metric.labels(*key) if key else self._metric
        self[key] = count = child.inc if isinstance(child, Counter) else child.observe
        return count


class Metrics:
    """Count what the callbacks report."""

    def __init__(self, *, models: Iterable[str] = (), labels: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
        """The names that are the operator's own: models that the settings name, labels of tool servers, API keys. A
        name that is not known shows as `other`, because a client may have made it up.
        """
        self.gauges = Gauges()
        self.registry = registry = CollectorRegistry()
        self.is_listed: Callable[[str], bool] = frozenset[str]().__contains__
        """Whether a backend lists a model; called for every unknown name."""
        self._models, self._keys = Names(models), Names(keys)
        self._labels, self._tools = Names((HOUSE_LABEL, *labels)), Names()
        self._requests = Series(families.REQUESTS, registry)
        self._request_errors = Series(families.REQUEST_ERRORS, registry)
        self._key_limits = Series(families.KEY_LIMITS, registry)
        self._responses = Series(families.RESPONSES, registry, [(status, "") for status in _ENDED])
        self._response_seconds = Series(families.RESPONSE_TIME, registry)
        self._first_token = Series(families.FIRST_TOKEN, registry)
        self._turns = Series(families.TURNS, registry)[()]
        self._truncated = Series(families.TRUNCATED, registry)[()]
        self._inferences = Series(families.INFERENCES, registry)
        self._inference_seconds = Series(families.INFERENCE_TIME, registry)
        self._first_chunk = Series(families.FIRST_CHUNK, registry)
        self._tokens = Series(families.TOKENS, registry)
        self._calls = Series(families.CALLS, registry)
        self._call_seconds = Series(families.CALL_TIME, registry)
        self.store_seconds = Series(families.STORE_TIME, registry)
        self.run_log_seconds = Series(families.RUN_LOG_TIME, registry)
        self.run_wait = Series(families.RUN_WAIT, registry)[()]
        self.run_claims = Series(families.RUN_CLAIMS, registry, [("new",), ("handed_over",), ("taken_over",)])
        self.runs_left = Series(families.RUN_LEFT, registry, [("handed_over",), ("lost",)])
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=registry)

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics as text, and its content type: OpenMetrics where it is accepted, else Prometheus' own."""
        snapshot = Snapshot(self.registry, self.gauges.read(await self.gauges.find_load()))
        # Not what the client wrote: it would be repeated in our answer, and not all of it is understood.
        encode, kind = choose_encoder(f"{_OPENMETRICS}; version=1.0.0" if _OPENMETRICS in accept else "")
        return await asyncio.to_thread(encode, snapshot), kind  # it takes a while

    # ---- callbacks ----

    def learn(self, *, models: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
        """Add names that are the operator's own."""
        self._models.learn(models)
        self._keys.learn(keys)

    def request(self, exchange: Exchange, seconds: float) -> None:
        """For `Transport(on_request=…)`."""
        self._requests[method_of(exchange.method), route_of(exchange.path), str(exchange.status)](seconds)
        if exchange.code is not None:
            self._request_errors[(code_of(exchange.code),)](1)
            if exchange.code == RateLimited.code and exchange.run is None and exchange.identity.key:
                self._key_limits[(self._keys.of(exchange.identity.key),)](1)

    def response(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`."""
        response, model = ended.response, self.model(ended.response.model)
        reason = response.incomplete_details.reason if response.incomplete_details else ""
        status = response.status if response.status in STATUSES else OTHER
        self._responses[status, reason if reason in REASONS else OTHER](1)
        self._response_seconds[CHAT, model, code_of(response.error.code) if response.error else ""](ended.seconds)
        self._turns(ended.turns)
        if ended.truncated:
            self._truncated(ended.truncated)
        if ended.first is not None and ended.plan.request.stream:
            self._first_token[CHAT, model](ended.first)

    def inference(self, record: InferenceRecord) -> None:
        """For `Fleet(on_inference=…)`."""
        backend, model, error = record.backend, self.model(record.model), record.error
        if error and error != "cancelled":
            error = code_of(error)
        self._inferences[backend, error or "ok"](1)
        self._inference_seconds[CHAT, backend, model, error](record.seconds)
        if record.first_delta_seconds is not None:
            self._first_chunk[CHAT, backend, model](record.first_delta_seconds)
        if record.usage is not None:
            self._tokens[CHAT, backend, model, "input"](record.usage.input_tokens)
            self._tokens[CHAT, backend, model, "output"](record.usage.output_tokens)

    def call(self, called: CallRecord) -> None:
        """For `Engine(on_call=…)`. Refused calls took no time."""
        label, end = called.label, called.end
        if label is None or called.is_local or label in self._labels.known:
            tool, label = self._tool(called)
        else:
            tool = label = OTHER
        self._calls[tool, label, end](1)
        if end != "refused":
            self._call_seconds[tool, label, "" if end == "ok" else end](called.seconds)

    # ---- names that may be labels ----

    def model(self, name: str) -> str:
        """Return the name of a model as a label. A name that a backend lists is learned when it is first used: lists
        may be longer than the bound on names.
        """
        if name in self._models.known:
            return name
        if self.is_listed(name):
            self._models.learn([name])
        return self._models.of(name)

    def _tool(self, called: CallRecord) -> tuple[str, str]:
        """Return tool and server as labels. Functions of this process and tools that ran at the operator's servers have
        names of the operator's; a name that never ran is whatever the model wrote.
        """
        if called.is_local:
            self._labels.learn([called.label] if called.label else [])
        label = "" if called.label is None else self._labels.of(called.label)
        if called.end != "refused" and (called.is_local or label not in ("", OTHER)):
            self._tools.learn([called.tool])
        return (self._tools.of(called.tool) if label != OTHER else OTHER), label


# ---- what is looked up ----


class ObservedBackend(Protocol):
    """The state of a backend."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """`ok`, `open` (a circuit breaker is), or another word."""


class ObservedServer(Protocol):
    """The state of an MCP server of the operator's; without a label, of all others together."""

    @property
    def label(self) -> str | None: ...

    @property
    def is_up(self) -> bool | None: ...

    @property
    def failures(self) -> int: ...


class Gauges:
    """Where to look up what is not counted, once it exists: on the event loop, so it must be quick."""

    requests: Callable[[], int] = int
    streams: Callable[[], int] = int
    sockets: Callable[[], int] = int
    runs: Callable[[], int] = int
    sessions: Callable[[], int] = int
    """With MCP servers."""
    backends: Callable[[], Iterable[ObservedBackend]] = tuple
    servers: Callable[[], Iterable[ObservedServer]] = tuple
    load: Callable[[], Awaitable[Load]] | None = None
    """Of the run log."""

    async def find_load(self) -> Load | None:
        """Return the load of the run log; one that does not come in time is unknown."""
        if self.load is not None:
            with suppress(Exception):  # whatever it is, the users of the run log report it
                async with asyncio.timeout(LOAD_SECONDS):
                    return await self.load()
        return None

    def read(self, load: Load | None = None) -> list[Metric]:
        """Return the values of now."""
        loads = [] if load is None else [load]
        backends, servers = [*self.backends()], [*self.servers()]
        return [
            _looked_up(families.ACTIVE, [((), self.requests())]),
            _looked_up(families.STREAMS, [((), self.streams())]),
            _looked_up(families.SOCKETS, [((), self.sockets())]),
            _looked_up(families.RUNS, [((), self.runs())]),
            _looked_up(families.BACKEND_UP, [((each.name,), each.state == "ok") for each in backends]),
            _looked_up(families.CIRCUIT_OPEN, [((each.name,), each.state == "open") for each in backends]),
            _looked_up(
                families.MCP_UP,
                [((each.label or OTHER,), each.is_up) for each in servers if each.is_up is not None],
            ),
            _looked_up(families.MCP_FAILURES, [((each.label or OTHER,), each.failures) for each in servers]),
            _looked_up(families.MCP_SESSIONS, [((), self.sessions())]),
            _looked_up(families.RUNS_QUEUED, [((), load.queued) for load in loads]),
            _looked_up(families.RUNS_HELD, [((), load.running) for load in loads]),
            _looked_up(families.OLDEST_RUN, [((), load.oldest) for load in loads]),
            _looked_up(families.BUILD, [((__version__,), 1)]),
        ]


def _looked_up(family: Family, values: Sequence[tuple[Key, float]]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for key, value in values:
        metric.add_metric(key, value)
    return metric


class Snapshot(Collector):
    """All metrics at one moment."""

    def __init__(self, registry: CollectorRegistry, looked_up: Sequence[Metric]) -> None:
        self._registry, self._looked_up = registry, looked_up

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, without the times at which their series were made: the library adds a metric for each."""
        yield from self._looked_up
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
