"""What holds in every test: signals are obeyed, and each stream that a run sends passes the grammar checker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from antwort.api.events import Batch
from antwort.engine import live
from antwort.engine.journal import Held
from antwort.engine.live import LiveRun
from antwort.engine.pipe import Outlet
from antwort.testing import GrammarError, StreamChecker
from settings_kit import repeats_itself

pytest_plugins = ["local_model", "postgres"]


def pytest_configure() -> None:
    """What tests start obeys signals, whoever started the tests: a background job is told to ignore SIGINT, and a
    program under `nohup` SIGHUP. Programs inherit that; they do not inherit a handler.
    """
    for each in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, lambda *_: None)


class WatchedOutlet(Outlet):
    """An outlet that holds what it sends against the grammar."""

    def __init__(self, bound: int, checker: StreamChecker) -> None:
        super().__init__(bound)
        self.checker = checker
        self.faults: list[str] = []

    def kept_by(self, keep: Callable[[Batch], None] | None, text_bound: int) -> Self:
        self._keep, self._text_bound = keep, text_bound
        return self

    def publish(self, batch: Batch) -> None:
        before = self._next
        super().publish(batch)
        sent = [event for event in batch if not type(event).__name__.endswith(("Ended", "Compacted", "Abandoned"))]
        assert self._next == before + len(sent), "numbers follow what is sent"
        try:
            for number, event in enumerate(sent, start=before):
                self.checker.feed(number, event)
        except GrammarError as fault:
            self.faults.append(str(fault))


@pytest.fixture(autouse=True)
def every_stream_is_grammatical(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    runs: list[tuple[LiveRun, WatchedOutlet]] = []
    build = LiveRun.__init__

    def watched(self: LiveRun, plan: Any, *args: Any, held: Held | None = None, **more: Any) -> None:
        if held is not None:  # it goes on where another has stopped: those who read its log see it all
            build(self, plan, *args, held=held, **more)
            return
        outlet = WatchedOutlet(plan.settings.buffer_events, StreamChecker(keepalive=repeats_itself(plan.settings)))
        with monkeypatch.context() as patch:
            patch.setattr(live, "Outlet", lambda _, keep, text_bound: outlet.kept_by(keep, text_bound))
            build(self, plan, *args, **more)
        self._is_watched = True  # by the checker, also where nobody else learns of it before it has ended
        runs.append((self, outlet))

    monkeypatch.setattr(LiveRun, "__init__", watched)
    yield
    for run, outlet in runs:
        assert not outlet.faults, outlet.faults
        if run._ended.is_set and run._ended.error is None:
            outlet.checker.finish()
