"""Report the events of every run of this process to an observer, such as the stream checker of `antwort.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from antwort.api.events import Batch
from antwort.engine.settings import LoopSettings


class StreamObserver(Protocol):
    """Follow the events of one run. Its methods must neither wait nor raise."""

    def on_batch(self, first: int, batch: Batch) -> None:
        """Take a batch before it is delivered. `first` is the number of its first event that is sent; marks, which
        are never sent, have no number.
        """
        ...

    def on_end(self) -> None:
        """Take note that the run has a result. It is not called for a run that was broken off or handed over."""
        ...


ObserverFactory: TypeAlias = Callable[[LoopSettings], StreamObserver]

_factory: ObserverFactory | None = None


@contextmanager
def observe_streams(factory: ObserverFactory) -> Iterator[None]:
    """Observe each run that begins within the context, streamed or not, with an observer of its own.

    A run that continues from the run log is not observed: its first events were sent elsewhere.
    """
    global _factory
    before, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = before


def new_observer(settings: LoopSettings) -> StreamObserver | None:
    """Return the observer of a run that begins now, or None where none is wanted."""
    return None if _factory is None else _factory(settings)
