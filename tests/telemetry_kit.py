"""A server with all of its telemetry, wired as the application wires it; also as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from antwort import ChatProvider, Engine, EngineSettings, Identity, LocalExecutor, MemoryStore
from antwort.identity import ANONYMOUS
from antwort.providers.base import Provider
from antwort.providers.fleet import Fleet, Member
from antwort.server.exchange import Scope
from antwort.server.http import Transport
from antwort.server.quotas import Quotas
from antwort.server.server import Server, listen
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import Load
from antwort.telemetry.endpoint import PATH, Guard, MetricsEndpoint
from antwort.telemetry.hooks import log_call, log_content, timed_store
from antwort.telemetry.logging import configure
from antwort.telemetry.metrics import Metrics, ObservedBackend, Snapshot
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.base import ToolExecutor

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""The value of each series, by its name and its labels, sorted."""


def anyone(_: Scope) -> Identity:
    return ANONYMOUS


def no_backends() -> Sequence[ObservedBackend]:
    return ()


class Wired:
    """An engine and a transport, both measured."""

    def __init__(
        self,
        provider: Provider,
        *executors: ToolExecutor,
        store: ResponseStore | None = None,
        metrics: Metrics | None = None,
        guard: Guard | None = None,
        identify: Callable[[Scope], Identity] = anyone,
        quotas: Quotas | None = None,
        backends: Callable[[], Iterable[ObservedBackend]] = no_backends,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(models=["scripted"])
        self.engine = Engine(
            Fleet([Member("b0", provider)], on_inference=self.metrics.inference),
            store=timed_store(store or MemoryStore(), self.metrics),
            executors=executors,
            settings=EngineSettings(**(settings or {})),
            on_end=[self.metrics.response, log_content],
            on_call=[self.metrics.call, log_call],
        )
        self.app = Transport(
            self.engine,
            identify=identify,
            quotas=quotas,
            on_request=[self.metrics.request],
            extra={PATH: MetricsEndpoint(self.metrics, guard or Guard(is_public=False))},
        )
        gauges = self.metrics.gauges
        gauges.streams, gauges.requests = lambda: self.app.streams, lambda: self.app.requests
        gauges.sockets, gauges.runs, gauges.backends = lambda: self.app.sockets, lambda: self.engine.live, backends

    def samples(self) -> Samples:
        return samples_in(self.metrics)


def samples_in(metrics: Metrics, load: Load | None = None) -> Samples:
    """What readers of the metrics get."""
    return samples_of(generate_latest(Snapshot(metrics.registry, metrics.gauges.read(load))).decode())


def samples_of(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def of(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    """The series of one name, by the values of their labels in the order of the labels' names."""
    return {tuple(text for _, text in labels): number for (each, labels), number in samples.items() if each == name}


# ---- a process of its own ----


TROUBLE = "canary-tool-error"  # a traceback shows the line that raises, and so not here


async def secretive(word: str) -> str:
    """A tool that is asked and answers with what must not be seen."""
    if word == "fail":
        raise ValueError(TROUBLE)
    return f"canary-tool-output {word}"


def script() -> ScriptedProvider:
    return ScriptedProvider(
        answer(call("secretive", word="canary-argument")),
        answer(call("secretive", word="fail"), call("made\nup=1", word="x")),
        answer(say("canary-answer")),
        *[answer(say("canary-answer")) for _ in range(50)],
    )


def provider() -> Provider:
    """The script, or the backend whose address is in the environment."""
    address = os.environ.get("BACKEND")
    return ChatProvider(f"{address}?key=canary-backend-query", api_key="canary-backend-key") if address else script()


async def serve(level: str, form: Literal["auto", "human", "json"], *, content: bool) -> None:
    configure(level, form, content=content)
    with listen("127.0.0.1", 0) as sock:
        wired = Wired(provider(), LocalExecutor(secretive))
        await wired.engine.open()
        os.write(1, b"%d\n" % sock.getsockname()[1])
        await Server(wired.app, drain=wired.engine.drain, drain_seconds=1).serve(sockets=[sock])
        await wired.engine.close()


if __name__ == "__main__":
    chosen: Any = sys.argv[2]
    asyncio.run(serve(sys.argv[1], chosen, content="content" in sys.argv))
