"""What SQLite and PostgreSQL share: operations in transactions, and the SQL that both run.

An operation is a plain function that works inside a transaction, on a thread. Its statements are written as SQLite
reads them, with `:name` or `?` where a value goes; `to_postgres` translates them. What PostgreSQL needs besides stands
in a comment, `/*pg: FOR UPDATE */`, and what it needs instead behind the other one: `/*sqlite*/ rowid /*pg: key */`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from antwort.errors import InvalidField, StoreFault
from antwort.storage.base import Page

T = TypeVar("T")
P = ParamSpec("P")
Client = TypeVar("Client", bound="DatabaseClient")

Dialect: TypeAlias = Literal["sqlite", "postgresql"]
Durability: TypeAlias = Literal["process", "system", "disk"]
"""What a committed transaction survives: nothing, the end of the process, the end of the machine."""
Value: TypeAlias = str | int | float | bytes | list[int] | list[str] | list[bytes] | None
"""A value of a column. A truth value is passed as `bool` and tested by its name alone (`AND is_on`). Lists are for
PostgreSQL only.
"""
Values: TypeAlias = Mapping[str, Value] | Sequence[Value]

UNKNOWN_FAULT = "The store could not be read or written."
"""The message of a fault that has no more specific one."""


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    newest_key: int
    """The key of the newest response that this connection has written, deleted or not; 0: it has written none."""

    @property
    def dialect(self) -> Dialect: ...

    def execute(self, statement: str, values: Values = ..., /) -> Cursor: ...

    def executemany(self, statement: str, values: Sequence[Values], /) -> object: ...


Operation: TypeAlias = Callable[[Connection], T]
"""Runs inside a transaction, and may be run again after a rollback."""


# ---- transactions ----

# There is no batching delay: what one turn of the event loop asks for is queued together. A thread takes everything
# that is queued, runs it in one transaction and then wakes the waiting event loop once. A single operation does not
# wait for others, and a hundred at once cost little more than one.

CLOSED = "The store is closed."


class Job(msgspec.Struct, Generic[T], eq=False):
    """An operation, its outcome, and the future that waits for it."""

    operation: Operation[T]
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None


class TransactionFailed(Exception):
    """The database failed, not an operation: running the jobs one by one would not help."""

    def __init__(self, make_fault: Callable[[], StoreFault]) -> None:
        self.make_fault = make_fault
        """Called for each job: an exception is raised in one place only."""


class DatabaseSession(Protocol):
    """The transactions of one thread over a connection of its own."""

    def transact(self, jobs: Sequence[Job[Any]]) -> None:
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

    def __init__(self, name: str, sessions: Sequence[DatabaseSession], max_batch: int = sys.maxsize) -> None:
        """`max_batch`: operations in one transaction at most, so that each of several threads gets some."""
        self._sessions = sessions
        self._max_batch = max_batch
        self._submitted: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        """The jobs of the current turn of each event loop."""
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        """None marks the end."""
        self._lock = Lock()
        self._is_open = True
        # Daemons: a program that forgets to close must still be able to end, and a database survives that.
        self._threads = [
            Thread(target=self._work, args=(session,), name=f"antwort-{name}", daemon=True) for session in sessions
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:  # a job behind the end mark would never be run
            if not self._is_open:
                raise StoreFault(CLOSED)
            if loop in self._submitted:
                self._submitted[loop].append(Job(operation, future))
            else:
                for closed in [each for each in self._submitted if each.is_closed()]:  # before its next turn
                    self._put(self._submitted.pop(closed))
                self._submitted[loop] = [Job(operation, future)]
                loop.call_soon(self._hand_over, loop)
        return future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._put(self._submitted.pop(loop, ()))

    def _put(self, jobs: Iterable[Job[Any]]) -> None:
        for job in jobs:
            self._queue.put(job)

    def stop(self, deadline: float | None = None) -> bool:
        """Run what was accepted, until `deadline` on the monotonic clock. Return whether all of it is done."""
        with self._lock:
            self._is_open = False
            self._put(chain(*self._submitted.values()))
            self._submitted.clear()
            self._queue.put(None)
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def close_sessions(self) -> None:
        for session in self._sessions:
            session.close()

    def _work(self, session: DatabaseSession) -> None:
        while jobs := self._take():
            _run(session, jobs)
            _wake(jobs)
            del jobs  # release a batch while waiting for the next

    def _take(self) -> list[Job[Any]]:
        """Wait for a job and return it with all others that are queued; an empty list at the end."""
        jobs: list[Job[Any]] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == self._max_batch:
                return jobs
            try:
                job = self._queue.get_nowait()
            except Empty:
                return jobs
        self._queue.put(None)  # for the next call, or another thread
        return jobs


def _run(session: DatabaseSession, jobs: Sequence[Job[Any]]) -> None:
    """Run all jobs in one transaction; when one of them fails, each in a transaction of its own."""
    try:
        session.transact(jobs)
    except TransactionFailed as failure:
        for job in jobs:
            job.error = failure.make_fault()
    except Exception as exc:  # the thread must survive it, and every waiter must learn of it
        if len(jobs) == 1:
            jobs[0].error = session.fault_of(exc)
            return
        for job in jobs:
            _run(session, [job])


def _wake(jobs: Sequence[Job[Any]]) -> None:
    """Resolve the futures with one call for each event loop."""
    waiting: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in jobs:
        waiting[job.future.get_loop()].append(job)
    for loop, done in waiting.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, done)


def _resolve(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        if job.future.done():  # its waiter was cancelled
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


CLOSED_QUEUE = TransactionQueue("closed", [])
CLOSED_QUEUE.stop()


class Database:
    """`open` it before use and `close` it at the end. Every failure of the database is a `StoreFault`."""

    dialect: Dialect
    durability: Durability
    _writer = _reader = CLOSED_QUEUE

    def __init__(self) -> None:
        self.staging = asyncio.Lock()
        """Held while a piece of a large response is written: the writer puts all that waits into one transaction."""

    async def open(self) -> None:
        """Raises `StoreFault` when the database cannot be used."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        """Write what was accepted, then refuse everything."""
        await asyncio.to_thread(self._close)

    def write(self, operation: Operation[T]) -> Awaitable[T]:
        """Return the result of `operation` once its changes are committed.

        An operation that raises is rolled back alone, not with the others of its transaction. One that was accepted is
        run even when its caller was cancelled.
        """
        return self._writer.submit(operation)

    def write_urgent(self, operation: Operation[T]) -> Awaitable[T]:
        """Do what `write` does, for short operations that must not wait for long ones: on a second connection where the
        database takes several writers. An urgent operation must not wait for a row that `write` has locked, nor the
        reverse: use `SKIP LOCKED`.
        """
        return self.write(operation)

    def write_once(self, operation: Operation[T], is_done: Callable[[Connection, T], bool]) -> Awaitable[T]:  # noqa: ARG002 - for a database whose answer to a commit can be lost
        """Commit an operation that must not be committed twice, and return its result. When the answer to a commit is
        lost, look up whether it was written, for some seconds, and write it if not.

        `is_done` gets the result of the operation in that transaction. The transaction may still be open: `is_done`
        should wait for it by a row that both lock.
        """
        return self.write(operation)

    def read(self, operation: Operation[T]) -> Awaitable[T]:
        """Return the result of `operation`. All its queries see the same state, with every write awaited before."""
        return self._reader.submit(operation)

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class DatabaseClient:
    """Base of classes whose methods are operations on one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def _read(self, operation: Operation[T]) -> Awaitable[T]:
        return self.database.read(operation)

    def _write(self, operation: Operation[T]) -> Awaitable[T]:
        return self.database.write(operation)


def reading(
    operation: Callable[Concatenate[Client, Connection, P], T],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """Make an async method of an operation, which is called with a connection in a transaction that reads."""

    @wraps(operation)
    async def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda connection: operation(self, connection, *args, **kwargs))

    return method


def writing(
    operation: Callable[Concatenate[Client, Connection, P], T],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """Do the same as `reading` with a transaction that writes."""

    @wraps(operation)
    async def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(lambda connection: operation(self, connection, *args, **kwargs))

    return method


# ---- SQL ----

_LONGEST_QUOTE = 100
"""Characters of an id that an error repeats to the client."""


_FOR_POSTGRES = re.compile(r"(?:/\*sqlite\*/.*?)?/\*pg:(.*?)\*/", re.DOTALL)
_TOKENS = re.compile(
    r"""
      (?P<string> '(?:[^']|'')*' )
    | (?P<cast> :: )
    | (?P<is> \bIS \s+ (?= [:?] ) )
    | \bCROSS \s+ (?P<join> JOIN \s+ \w+ (?: \s+ AS \s+ \w+ )? \s+ ON \b )
    | :(?P<name> [a-z_]\w* )
    | (?P<placeholder> \? )
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1000)
def to_postgres(statement: str) -> bytes:
    """Return the statement as psycopg takes it."""

    def translate(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "name":
                return f"%({found['name']})s"
            case "placeholder":
                return "%s"
            case "is":  # also true for two nulls
                return "IS NOT DISTINCT FROM "
            case "join":  # CROSS keeps SQLite from reordering the loops
                return found["join"]
            case _:
                return found[0]

    return _TOKENS.sub(translate, _FOR_POSTGRES.sub(r"\1", statement).replace("%", "%%")).encode()


def sql_order(page: Page) -> str:
    """Return the direction in which rows are read: a page that ends at `before` is read backwards."""
    return "ASC" if (page.order == "asc") == page.is_forward else "DESC"


def page_terms(connection: Connection, page: Page, columns: Sequence[str], place: str, values: dict[str, Value]) -> str:
    """Return the conditions for rows between `after` and `before`, by places in an index: a page is never found by
    counting from the start. `place` selects the columns of the row whose id is `:cursor`; what it finds is added to
    `values`.
    """
    terms = ""
    for param, cursor, is_beyond in (("after", page.after, True), ("before", page.before, False)):
        if cursor is None:
            continue
        is_greater = (page.order == "asc") == is_beyond
        # An id may stand in a list twice: then `after` means its last place, so that paging moves on.
        query = place.format(last_first="DESC" if is_greater else "ASC")
        row = connection.execute(query, values | {"cursor": cursor}).fetchone()
        if row is None:
            raise InvalidField(param, f"there is nothing with id {cursor[:_LONGEST_QUOTE]!r} in this list.")
        names = [f"{param}_{column}" for column in columns]
        values |= zip(names, row, strict=True)
        terms += f" AND ({', '.join(columns)}) {'>' if is_greater else '<'} ({', '.join(f':{each}' for each in names)})"
    return terms
