"""Check the streams of all engines of a test process against the grammar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from antwort.api.events import UNSENT, Batch
from antwort.engine.runs.event_log import observe_streams
from antwort.engine.settings import LoopSettings
from antwort.testing.grammar import StreamChecker
from antwort.testing.rules import GrammarError

_DEFAULT_SILENCE_SECONDS = LoopSettings().longest_silence or 0.0


@contextmanager
def check_streams() -> Iterator[None]:
    """Check each run that an engine of this process begins within the context, streamed or not.

        @pytest.fixture(autouse=True)
        def every_stream_is_grammatical():
            with check_streams():
                yield

    At the end, raises the first `GrammarError`. A run that has not ended by then is checked as far as it got.
    """
    observers: list[_CheckingObserver] = []

    def begin(settings: LoopSettings, is_takeover: bool) -> _CheckingObserver:
        checker = StreamChecker(keepalive=may_repeat_progress(settings), takeover=is_takeover)
        observers.append(observer := _CheckingObserver(checker))
        return observer

    with observe_streams(begin):
        yield
    for observer in observers:
        if observer.fault is not None:
            raise observer.fault


def may_repeat_progress(settings: LoopSettings) -> bool:
    """Return whether a stream may repeat `response.in_progress` while no tool runs, within the time a test takes."""
    silence = settings.longest_silence or _DEFAULT_SILENCE_SECONDS
    return settings.keepalive == "in_progress" or silence < _DEFAULT_SILENCE_SECONDS


class _CheckingObserver:
    """Feed the events of one run to a checker, and keep its first fault."""

    def __init__(self, checker: StreamChecker) -> None:
        self._checker = checker
        self.fault: GrammarError | None = None

    def on_batch(self, first: int, batch: Batch) -> None:
        if self.fault is not None:
            return
        sent = [event for event in batch if not isinstance(event, UNSENT)]
        try:
            for number, event in enumerate(sent, start=first):
                self._checker.feed(number, event)
        except GrammarError as fault:
            self.fault = fault

    def on_end(self) -> None:
        if self.fault is None:
            try:
                self._checker.finish()
            except GrammarError as fault:
                self.fault = fault
