"""A queue of operations and the threads that run them in transactions.

There is no batching delay: a thread takes everything that is queued, runs it in one transaction and then wakes the
waiting event loop once. A single operation does not wait for others, and a hundred at once cost little more
than one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Generic, Protocol, TypeVar

from antwort.errors import StoreFault
from antwort.storage.database import Connection, Operation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CLOSED = "The store is closed."


class Job(Generic[T_co]):
    """An operation and the future that waits for its outcome."""

    __slots__ = ("_operation", "_resolve", "future")

    def __init__(self, operation: Operation[T_co], future: asyncio.Future[T_co]) -> None:
        self._operation, self.future = operation, future
        self._resolve: Callable[[], object] = future.cancel

    def run(self, connection: Connection) -> None:
        self._resolve = partial(self.future.set_result, self._operation(connection))

    def fail(self, error: Exception) -> None:
        self._resolve = partial(self.future.set_exception, error)

    def resolve(self) -> None:
        if not self.future.done():  # otherwise its waiter was cancelled
            self._resolve()


class TransactionFailed(Exception):
    """The database failed, not an operation: running the jobs one by one would not help."""

    def __init__(self, make_fault: Callable[[], StoreFault]) -> None:
        self.make_fault = make_fault
        """Called for each job: an exception is raised in one place only."""


class DatabaseSession(Protocol):
    """The transactions of one thread over a connection of its own."""

    def transact(self, jobs: Sequence[Job[object]]) -> None:
        """Run all jobs in one transaction and commit it. Raises `TransactionFailed`, or the error of an operation or of
        the commit once everything is rolled back.
        """
        ...

    def fault_of(self, error: Exception) -> Exception:
        """Return the exception that the caller of an operation gets."""
        ...

    def close(self) -> None: ...


class TransactionQueue:
    """Runs operations in the order in which they come, on one thread for each session."""

    def __init__(self, name: str, sessions: Sequence[DatabaseSession], max_batch: int | None = None) -> None:
        """`max_batch`: operations in one transaction at most, so that each of several threads gets some."""
        self._sessions = sessions
        self._max_batch = max_batch
        self._queue: SimpleQueue[Job[object] | None] = SimpleQueue()
        self._lock = Lock()
        self._is_open = True
        # Daemons: a program that forgets to close must still be able to end, and a database survives that.
        self._threads = [
            Thread(target=self._work, args=(session,), name=f"antwort-{name}", daemon=True) for session in sessions
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = Job(operation, future)
        with self._lock:  # a job behind the end mark would never be run
            if not self._is_open:
                raise StoreFault(CLOSED)
            self._queue.put(job)
        return future

    def stop(self, deadline: float | None = None) -> bool:
        """Run what was accepted, until `deadline` on the monotonic clock. Return whether all of it is done."""
        with self._lock:
            self._is_open = False
            self._queue.put(None)
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def close_sessions(self) -> None:
        for session in self._sessions:
            session.close()

    def _work(self, session: DatabaseSession) -> None:
        while jobs := self._take():
            self._run(session, jobs)
            _wake(jobs)
            del jobs  # release a batch while waiting for the next

    def _take(self) -> list[Job[object]]:
        """Wait for a job and return it with all others that are queued; an empty list at the end."""
        jobs: list[Job[object]] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == self._max_batch:
                return jobs
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs
        self._queue.put(None)
        return jobs

    def _run(self, session: DatabaseSession, jobs: Sequence[Job[object]]) -> None:
        """Run all jobs in one transaction; when one of them fails, each in a transaction of its own."""
        try:
            session.transact(jobs)
        except TransactionFailed as failure:
            for job in jobs:
                job.fail(failure.make_fault())
        except Exception as exc:  # the thread must survive it, and every waiter must learn of it
            if len(jobs) == 1:
                jobs[0].fail(session.fault_of(exc))
                return
            for job in jobs:
                self._run(session, [job])


class QueuedDatabase:
    """A `Database` whose operations wait in queues: one for writes, one for reads."""

    _queues: tuple[TransactionQueue, ...] = ()
    """The writer's, the reader's, and others that the database has; empty while it is closed."""

    async def open(self) -> None:
        """Raises `StoreFault` when the database cannot be used."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def write(self, operation: Operation[T]) -> T:
        return await self._submit(0, operation)

    async def write_urgent(self, operation: Operation[T]) -> T:
        return await self.write(operation)

    async def read(self, operation: Operation[T]) -> T:
        return await self._submit(1, operation)

    def _submit(self, index: int, operation: Operation[T]) -> asyncio.Future[T]:
        if not self._queues:
            raise StoreFault(CLOSED)
        return self._queues[index].submit(operation)

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


def _wake(jobs: Sequence[Job[object]]) -> None:
    """Resolve the futures with one call for each event loop."""
    waiting: defaultdict[asyncio.AbstractEventLoop, list[Job[object]]] = defaultdict(list)
    for job in jobs:
        waiting[job.future.get_loop()].append(job)
    for loop, done in waiting.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, done)


def _resolve(jobs: Sequence[Job[object]]) -> None:
    for job in jobs:
        job.resolve()
