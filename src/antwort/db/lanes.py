"""A queue of operations, and the threads that work it off.

There is no timed window: a thread takes all that is queued, in one transaction, and wakes the waiters of an event loop
with one call once that is done. So a single operation waits for nobody, and a hundred at once cost little more than
one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Generic, TypeAlias, TypeVar

from antwort.db.base import Connection, Operation
from antwort.errors import StoreFault

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Generic[T_co]):
    """An operation, and whoever waits for its outcome."""

    __slots__ = ("_operation", "_value", "error", "future")

    def __init__(self, operation: Operation[T_co], future: asyncio.Future[T_co]) -> None:
        self._operation = operation
        self._value: T_co | None = None
        self.future: asyncio.Future[T_co] = future
        self.error: Exception | None = None

    def run(self, connection: Connection) -> None:
        self._value = self._operation(connection)

    def settle(self) -> None:
        if self.future.done():  # whoever waited was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self._value)  # type: ignore[arg-type]  # `run` has set it, and it may be None


Transact: TypeAlias = Callable[[list[Job[object]]], None]
"""Runs all jobs it is given and commits, or sets their errors. It raises nothing."""


class Lane:
    """Operations in the order in which they come, worked off by one thread for each of `transacts`."""

    def __init__(self, name: str, transacts: Sequence[Transact], most: int | None = None) -> None:
        """`most`: how many operations a transaction may have. With several threads, so that each gets some."""
        self._queue: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._most = most
        self._is_open = True
        self._gate = Lock()
        # Daemons: a program that forgets to close must still be able to end, and a database survives that.
        self._threads = [
            Thread(target=self._work, args=(transact,), name=f"antwort-{name}", daemon=True) for transact in transacts
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = Job(operation, future)
        with self._gate:  # nothing may be queued behind the end mark: nobody would ever answer it
            if not self._is_open:
                raise StoreFault("The store is closed.")
            self._queue.put(job)
        return future

    def close(self, until: float | None = None) -> bool:
        """Returns when all that was accepted is done, or at that time on the monotonic clock; whether it is done."""
        with self._gate:
            self._is_open = False
            self._queue.put(None)
        for thread in self._threads:
            thread.join(None if until is None else max(until - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, transact: Transact) -> None:
        while jobs := self._take():
            transact(jobs)
            _wake(jobs)
            del jobs  # nothing of a batch is kept while waiting for the next

    def _take(self) -> list[Job[object]]:
        """All that is queued, waiting for the first; empty at the end."""
        jobs: list[Job[object]] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == self._most:
                return jobs
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs
        self._queue.put(None)
        return jobs


def _wake(jobs: list[Job[object]]) -> None:
    waiting: dict[asyncio.AbstractEventLoop, list[Job[object]]] = {}
    for job in jobs:
        waiting.setdefault(job.future.get_loop(), []).append(job)
    for loop, settled in waiting.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: list[Job[object]]) -> None:
    for job in jobs:
        job.settle()
