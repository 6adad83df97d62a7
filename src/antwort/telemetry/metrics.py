"""What is counted, and when. One object for a server; nothing is shared between two in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.runs.live import RunSummary
from antwort.errors import RateLimited
from antwort.providers.base import InferenceRecord
from antwort.telemetry import families
from antwort.telemetry.counting import AT_ONCE, Counter, CounterBeside, Gauge, Histogram, Key, Metric, Reading
from antwort.telemetry.labels import OTHER, REASONS, STATUSES, Names, code_of, method_of, route_of
from antwort.telemetry.run_counts import RunCounts
from antwort.tools.base import HOUSE_LABEL
from antwort.transport.exchange import Exchange
from antwort.version import __version__

CHAT = "chat"  # what the conventions call the operation


class BackendStatus(Protocol):
    """How a backend stands, as far as is known."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """`ok`, `open` (a circuit breaker is), or another word."""


class ServerStatus(Protocol):
    """How an MCP server of the operator's stands; without a label, all others together."""

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
    """Counts what it is told. Made at the start, before what it looks at is there: `watch` says where to look."""

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
        self.inferences = CounterBeside(families.INFERENCES, self.inference_time, _inference)
        self.first_chunk = Histogram(families.FIRST_CHUNK)
        self.tokens = Histogram(families.TOKENS)
        self._inferences: dict[Key, tuple[list[float], list[float], list[float]]] = {}
        """The new values of each backend and model: seconds of those that ended well, input and output tokens."""
        self._truncated = Counter(families.TRUNCATED, [()])
        self._call_time = Histogram(families.CALL_TIME)
        self._calls = CounterBeside(families.CALLS, self._call_time, _call)
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
        """Where to look for what stands elsewhere; asked when the metrics are read, so it must be quick. `is_listed`
        says whether a backend lists a model, and is asked for every name that is not known.
        """
        self._streams, self._requests_open, self._runs, self._backends = streams, requests, runs, backends
        self._sockets, self._is_listed = sockets, is_listed

    def watch_servers(self, servers: Callable[[], Iterable[ServerStatus]], sessions: Callable[[], int]) -> None:
        """The same for MCP servers, and for how many sessions with them are open."""
        self._servers, self._sessions = servers, sessions

    # ---- what has happened ----

    def request(self, exchange: Exchange, seconds: float) -> None:
        """For `Transport(on_request=…)`."""
        key = (method_of(exchange.method), route_of(exchange.path), str(exchange.status))
        self._requests.add(key, seconds)
        if exchange.code is not None:
            self._request_errors.add((code_of(exchange.code),))
            if exchange.code == RateLimited.code and exchange.run is None and exchange.identity.key:
                self._key_limits.add((self._keys.of(exchange.identity.key),))

    def response(self, ended: RunSummary) -> None:
        """For `Engine(on_end=…)`."""
        response, model = ended.response, self.model(ended.response.model)
        reason = response.incomplete_details.reason if response.incomplete_details else ""
        status = response.status if response.status in STATUSES else OTHER
        self._responses.add((status, reason if reason in REASONS else OTHER))
        error = code_of(response.error.code) if response.error else ""
        self._response_time.add((CHAT, model, error), ended.seconds)
        self._turns.add((), ended.turns)
        if ended.truncated:
            self._truncated.add((), ended.truncated)
        if ended.first is not None and ended.plan.request.stream:
            self._first_token.add((CHAT, model), ended.first)

    def inference(self, record: InferenceRecord) -> None:
        """For `Fleet(on_inference=…)`."""
        key = (CHAT, record.backend, self.model(record.model))
        if (series := self._inferences.get(key)) is None:
            series = self._inferences[key] = (
                self.inference_time.new_values((*key, "")),
                self.tokens.new_values((*key, "input")),
                self.tokens.new_values((*key, "output")),
            )
        seconds, input_tokens, output_tokens = series
        if record.error:
            error = record.error if record.error == "cancelled" else code_of(record.error)
            self.inference_time.add((*key, error), record.seconds)
        else:
            seconds.append(record.seconds)
        if record.first_delta_seconds is not None:
            self.first_chunk.add(key, record.first_delta_seconds)
        if record.usage is not None:
            input_tokens.append(record.usage.input_tokens)
            output_tokens.append(record.usage.output_tokens)
        if len(seconds) >= AT_ONCE or len(input_tokens) >= AT_ONCE:
            self.inference_time.count()
            self.tokens.count()

    def call(self, called: CallRecord) -> None:
        """For `Engine(on_call=…)`. Those that were refused took no time."""
        label, end = called.label, called.end
        if label is None or called.is_local or label in self._labels.known:
            tool, label = self._tool(called)
        else:
            tool = label = OTHER
        if end == "refused":
            self._calls.add((tool, label, end))
        else:
            self._call_time.add((tool, label, "" if end == "ok" else end), called.seconds)

    # ---- names that may be labels ----

    def model(self, name: str) -> str:
        """The name of a model as a label. One that a backend lists is learned when it is first used: a list may be
        longer than there is room for.
        """
        if name in self.models.known:
            return name
        if self._is_listed(name):
            self.models.learn([name])
        return self.models.of(name)

    def _tool(self, called: CallRecord) -> Key:
        """A function of this process has a name of the operator's, and so does a tool that ran at a server of theirs; a
        name that was never run is whatever the model wrote.
        """
        if called.is_local:
            self._labels.learn([called.label] if called.label else [])
        label = "" if called.label is None else self._labels.of(called.label)
        if called.end != "refused" and (called.is_local or label not in ("", OTHER)):
            self._tools.learn([called.tool])
        return (self._tools.of(called.tool) if label != OTHER else OTHER), label

    # ---- reading ----

    def read(self) -> list[Reading]:
        """All of it, as it stands."""
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


_ENDED = ("completed", "incomplete", "failed", "cancelled", "requires_action")


def _inference(timed: Key) -> Key:
    _, backend, _, error = timed
    return backend, error or "ok"


def _call(timed: Key) -> Key:
    tool, label, error = timed
    return tool, label, error or "ok"
