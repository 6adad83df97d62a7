"""The metrics of a server: callbacks that count, and a reading of them all."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.errors import RateLimited
from antwort.providers.base import InferenceRecord
from antwort.server.exchange import Exchange
from antwort.storage.run_log import Load
from antwort.telemetry import families
from antwort.telemetry.counting import Counter, Gauge, Histogram, Key, Metric, Reading, Series
from antwort.telemetry.labels import OTHER, REASONS, STATUSES, Names, code_of, method_of, route_of
from antwort.tools.base import HOUSE_LABEL
from antwort.version import __version__

CHAT = "chat"  # the operation's name in the conventions
_ENDED = ("completed", "incomplete", "failed", "cancelled", "requires_action")
_LOAD_SECONDS = 1.0
"""How long a reader of the metrics waits for the load of the run log."""


class BackendStatus(Protocol):
    """The state of a backend."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """`ok`, `open` (a circuit breaker is), or another word."""


class ServerStatus(Protocol):
    """The state of an MCP server of the operator's; without a label, of all others together."""

    @property
    def label(self) -> str | None: ...

    @property
    def is_up(self) -> bool | None: ...

    @property
    def failures(self) -> int: ...


def _none() -> int:
    return 0


def _no_servers() -> Sequence[ServerStatus]:
    return ()


def _no_backends() -> Sequence[BackendStatus]:
    return ()


def _nobody_lists(model: str) -> bool:  # noqa: ARG001 - the shape of the question
    return False


class Metrics:
    """Count what callbacks report, and look up the rest in what `watch` is given once it exists."""

    def __init__(self, *, models: Iterable[str] = (), labels: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
        """The names that are the operator's own: models that the settings name, labels of tool servers, API keys. A
        name that is not known shows as `other`, because a client may have made it up.
        """
        self.models = Names(models)
        self._labels, self._tools, self._keys = Names((HOUSE_LABEL, *labels)), Names(), Names(keys)
        self._streams: Callable[[], int] = _none
        self._requests_open: Callable[[], int] = _none
        self._sockets: Callable[[], int] = _none
        self._runs: Callable[[], int] = _none
        self._backends: Callable[[], Iterable[BackendStatus]] = _no_backends
        self._servers: Callable[[], Iterable[ServerStatus]] = _no_servers
        self._sessions: Callable[[], int] = _none
        self._is_listed: Callable[[str], bool] = _nobody_lists
        self._requests = Histogram(families.REQUESTS)
        self._request_errors = Counter(families.REQUEST_ERRORS)
        self._key_limits = Counter(families.KEY_LIMITS)
        self._responses = Counter(families.RESPONSES, [(status, "") for status in _ENDED])
        self._response_time = Histogram(families.RESPONSE_TIME)
        self._first_token = Histogram(families.FIRST_TOKEN)
        self._turns = Histogram(families.TURNS)
        self.inference_time = Histogram(families.INFERENCE_TIME)
        self.inferences = Gauge(families.INFERENCES, self._inference_counts)
        self.first_chunk = Histogram(families.FIRST_CHUNK)
        self.tokens = Histogram(families.TOKENS)
        self._inferences: dict[Key, tuple[Series, Series, Series]] = {}
        """By backend and model: seconds of successful inferences, input and output tokens."""
        self._truncated = Counter(families.TRUNCATED, [()])
        self._call_time = Histogram(families.CALL_TIME)
        self._calls = Counter(families.CALLS)
        self.store_time = Histogram(families.STORE_TIME)
        self.runs = RunCounts()

    def watch(
        self,
        *,
        streams: Callable[[], int] = _none,
        requests: Callable[[], int] = _none,
        sockets: Callable[[], int] = _none,
        runs: Callable[[], int] = _none,
        backends: Callable[[], Iterable[BackendStatus]] = _no_backends,
        is_listed: Callable[[str], bool] = _nobody_lists,
    ) -> None:
        """Set where to look up gauges; called when the metrics are read, so they must be quick. `is_listed` returns
        whether a backend lists a model, and is called for every unknown name.
        """
        self._streams, self._requests_open, self._runs, self._backends = streams, requests, runs, backends
        self._sockets, self._is_listed = sockets, is_listed

    def watch_servers(self, servers: Callable[[], Iterable[ServerStatus]], sessions: Callable[[], int]) -> None:
        """Set where to look up MCP servers and the number of open sessions with them."""
        self._servers, self._sessions = servers, sessions

    # ---- callbacks ----

    def request(self, exchange: Exchange, seconds: float) -> None:
        """For `Transport(on_request=…)`."""
        key = (method_of(exchange.method), route_of(exchange.path), str(exchange.status))
        self._requests[key].add(seconds)
        if exchange.code is not None:
            self._request_errors[(code_of(exchange.code),)] += 1
            if exchange.code == RateLimited.code and exchange.run is None and exchange.identity.key:
                self._key_limits[(self._keys.of(exchange.identity.key),)] += 1

    def response(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`."""
        response, model = ended.response, self.model(ended.response.model)
        reason = response.incomplete_details.reason if response.incomplete_details else ""
        status = response.status if response.status in STATUSES else OTHER
        self._responses[(status, reason if reason in REASONS else OTHER)] += 1
        error = code_of(response.error.code) if response.error else ""
        self._response_time[(CHAT, model, error)].add(ended.seconds)
        self._turns[()].add(ended.turns)
        if ended.truncated:
            self._truncated[()] += ended.truncated
        if ended.first is not None and ended.plan.request.stream:
            self._first_token[(CHAT, model)].add(ended.first)

    def inference(self, record: InferenceRecord) -> None:
        """For `Fleet(on_inference=…)`."""
        key = (CHAT, record.backend, self.model(record.model))
        if (series := self._inferences.get(key)) is None:
            series = self._inferences[key] = (
                self.inference_time[(*key, "")],
                self.tokens[(*key, "input")],
                self.tokens[(*key, "output")],
            )
        seconds, input_tokens, output_tokens = series
        if record.error:
            error = record.error if record.error == "cancelled" else code_of(record.error)
            self.inference_time[(*key, error)].add(record.seconds)
        else:
            seconds.add(record.seconds)
        if record.first_delta_seconds is not None:
            self.first_chunk[key].add(record.first_delta_seconds)
        if record.usage is not None:
            input_tokens.add(record.usage.input_tokens)
            output_tokens.add(record.usage.output_tokens)

    def _inference_counts(self) -> list[tuple[Key, float]]:
        """Count the inferences by backend and outcome, as their times already do."""
        counts = Tally[Key]()
        for (_, backend, _, error), spread in self.inference_time.read().spreads:
            counts[backend, error or "ok"] += sum(spread.counts)
        return [*counts.items()]

    def call(self, called: CallRecord) -> None:
        """For `Engine(on_call=…)`. Refused calls took no time."""
        label, end = called.label, called.end
        if label is None or called.is_local or label in self._labels.known:
            tool, label = self._tool(called)
        else:
            tool = label = OTHER
        self._calls[(tool, label, end)] += 1
        if end != "refused":
            self._call_time[(tool, label, "" if end == "ok" else end)].add(called.seconds)

    # ---- names that may be labels ----

    def model(self, name: str) -> str:
        """Return the name of a model as a label. A name that a backend lists is learned when it is first used: lists
        may be longer than the bound on names.
        """
        if name in self.models.known:
            return name
        if self._is_listed(name):
            self.models.learn([name])
        return self.models.of(name)

    def _tool(self, called: CallRecord) -> Key:
        """Return tool and server as labels. Functions of this process and tools that ran at the operator's servers have
        names of the operator's; a name that never ran is whatever the model wrote.
        """
        if called.is_local:
            self._labels.learn([called.label] if called.label else [])
        label = "" if called.label is None else self._labels.of(called.label)
        if called.end != "refused" and (called.is_local or label not in ("", OTHER)):
            self._tools.learn([called.tool])
        return (self._tools.of(called.tool) if label != OTHER else OTHER), label

    # ---- reading ----

    def read(self) -> list[Reading]:
        return [metric.read() for metric in self._all()]

    def _all(self) -> Iterable[Metric]:
        backends = tuple(self._backends())
        yield self._requests
        yield Gauge(families.ACTIVE, lambda: [((), self._requests_open())])
        yield Gauge(families.STREAMS, lambda: [((), self._streams())])
        yield Gauge(families.SOCKETS, lambda: [((), self._sockets())])
        yield from (self._request_errors, self._key_limits)
        yield from (self._responses, self._response_time, self._first_token, self._turns)
        yield Gauge(families.RUNS, lambda: [((), self._runs())])
        yield from (self.inferences, self.inference_time, self.first_chunk, self.tokens, self._truncated)
        yield Gauge(families.BACKEND_UP, lambda: [((each.name,), each.state == "ok") for each in backends])
        yield Gauge(families.CIRCUIT_OPEN, lambda: [((each.name,), each.state == "open") for each in backends])
        yield from (self._calls, self._call_time)
        servers = tuple(self._servers())
        known = [((each.label or OTHER,), each.is_up) for each in servers if each.is_up is not None]
        yield Gauge(families.MCP_UP, lambda: known)
        yield Gauge(families.MCP_FAILURES, lambda: [((each.label or OTHER,), each.failures) for each in servers])
        yield Gauge(families.MCP_SESSIONS, lambda: [((), self._sessions())])
        yield from self.runs.all()
        yield self.store_time
        yield Gauge(families.BUILD, lambda: [((__version__,), 1)])


class RunCounts:
    """What is counted of the run log."""

    def __init__(self) -> None:
        self.wait = Histogram(families.RUN_WAIT)
        self.claims = Counter(families.RUN_CLAIMS, [("new",), ("handed_over",), ("taken_over",)])
        self.left = Counter(families.RUN_LEFT, [("handed_over",), ("lost",)])
        self.time = Histogram(families.RUN_LOG_TIME)
        self._load: Callable[[], Awaitable[Load]] | None = None
        self._known: Load | None = None

    def watch(self, load: Callable[[], Awaitable[Load]]) -> None:
        """Set the function that returns the load of the run log."""
        self._load = load

    async def look(self) -> None:
        """Ask for the load before the metrics are read. Without an answer in time it is unknown."""
        self._known = None
        if self._load is not None:
            with suppress(Exception):  # whatever it is, the users of the run log report it
                async with asyncio.timeout(_LOAD_SECONDS):
                    self._known = await self._load()

    def all(self) -> Iterable[Metric]:
        known = () if self._known is None else (self._known,)
        yield Gauge(families.RUNS_QUEUED, lambda: [((), load.queued) for load in known])
        yield Gauge(families.RUNS_HELD, lambda: [((), load.running) for load in known])
        yield Gauge(families.OLDEST_RUN, lambda: [((), load.oldest) for load in known])
        yield from (self.wait, self.claims, self.left, self.time)
