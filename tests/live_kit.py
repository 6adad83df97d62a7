"""Drive a run without an engine: all that it records, and how it continues in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from antwort.api.events import TERMINAL, UNSENT, Batch, RunEvent
from antwort.api.responses import Response
from antwort.engine.loop.fold import Run
from antwort.engine.loop.item_builders import Seal
from antwort.engine.plan import Plan
from antwort.engine.runs.event_log import EventLog, new_observer
from antwort.engine.runs.live import LiveRun, RunHooks
from antwort.engine.runs.recovery import pick_up
from antwort.errors import HandedOver
from antwort.providers.base import Provider
from antwort.testing import ScriptedProvider, StreamChecker


class Collector:
    """A recorder that keeps the batches of a run. Where it `stops_at_inference`, the run is left to another process
    when the model is to be asked once more.
    """

    failure: Exception | None = None

    def __init__(self, *, stops_at_inference: bool = False) -> None:
        self.batches: list[Batch] = []
        self._stops_at_inference = stops_at_inference

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:
        self.batches.append(batch)
        return batch

    async def checkpoint(self, run: Run) -> None:
        if self._stops_at_inference:
            raise HandedOver

    async def record_again(self, run: Run) -> None: ...

    def leave(self, *, is_lost: bool = False) -> None: ...

    @property
    def events(self) -> list[RunEvent]:
        return events_of(self.batches)

    @property
    def response(self) -> Response:
        """As the terminal event has it."""
        last = self.batches[-1][-1]
        assert isinstance(last, TERMINAL)
        return last.response


def live_run(plan: Plan, provider: Provider | None = None, recorder: Collector | None = None, **where: Any) -> LiveRun:
    """A run of the plan; `where` says from which point on."""
    log = EventLog(recorder=recorder or Collector(), observer=None if where else new_observer(plan.settings))
    return LiveRun(plan, provider or ScriptedProvider(), log, RunHooks(on_end=lambda _: None), **where)


async def played(plan: Plan, provider: Provider) -> Collector:
    """What a run of the plan records from its beginning to its end."""
    return await ended(live_run(plan, provider))


async def ended(live: LiveRun) -> Collector:
    """What the run has recorded, when it is over."""
    await live.wait()
    assert isinstance(live.log.recorder, Collector)
    return live.log.recorder


# ---- in another process ----


def durable(plan: Plan) -> Plan:
    """The plan of a run that another process continues when its own dies."""
    return replace(plan, is_durable=True)


def picked_up(plan: Plan, events: Sequence[RunEvent], seal: Seal | None = None) -> tuple[Run, Batch]:
    """The run as it stands after these events, and what closes the items that were left open."""
    return pick_up(plan.response, events, seal)


def resumed(plan: Plan, provider: Provider, events: Sequence[RunEvent]) -> LiveRun:
    """A run that continues where another process has left it, with these events on record."""
    run, closing_events = picked_up(plan, events, plan.sealed.seal_for(plan.request))
    return live_run(plan, provider, run=run, opening=closing_events)


# ---- what was recorded ----


def events_of(batches: Sequence[Batch]) -> list[RunEvent]:
    return [event for batch in batches for event in batch]


def checked(events: Sequence[RunEvent]) -> Response:
    """The response at the end of a stream that processes have written one after the other."""
    checker = StreamChecker(takeover=True)
    for number, event in enumerate(event for event in events if not isinstance(event, UNSENT)):
        checker.feed(number, event)
    return checker.finish()
