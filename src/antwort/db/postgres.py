"""A PostgreSQL that many processes share: a writer, a second one for what cannot wait, and a few readers in each,
threads with connections of their own.

A commit is on the disk when it is acknowledged, as far as the server is set so (`synchronous_commit` is left alone).
What it takes to stand a server that is gone, or hangs, or comes again: every wait has a limit, a connection that was
lost is made anew, and between two tries that failed there is a pause in which everybody is told so at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import uniform
from time import monotonic, sleep
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ReadOnlySqlTransaction

from antwort.db.base import Dialect, Operation
from antwort.db.lanes import Job, Lane
from antwort.db.postgres_faults import UNKNOWN, WaitTimeout, may_pass, store_fault
from antwort.db.postgres_link import ANSWER_SECONDS, PostgresLink, Raw
from antwort.errors import StoreFault

T = TypeVar("T")

READERS = 4
CONNECT_SECONDS = 3
STATEMENT_SECONDS = 5.0
LOCK_SECONDS = 3.0
"""As long as a statement waits for what another transaction holds."""
IDLE_SECONDS = 5.0
"""A process that stands still in the middle of a transaction keeps others from its rows for so long."""
CLOSING_SECONDS = 3.0
"""As long as what was accepted may still be written when it is closed."""
PATIENT_SECONDS = 600.0
"""As long as a change of the tables may take."""

_TRIES = 6
_APART = 0.01
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 1.0
_READS_AT_ONCE = 16
_DEFAULTS: dict[str, str | int] = {
    "application_name": "antwort",
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_SETTINGS = (
    f"SET statement_timeout = {STATEMENT_SECONDS * 1000:.0f};"
    f"SET lock_timeout = {LOCK_SECONDS * 1000:.0f};"
    f"SET idle_in_transaction_session_timeout = {IDLE_SECONDS * 1000:.0f};"
    "SET client_encoding = 'UTF8'"
).encode()
_WRITE = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresDatabase:
    dialect: Dialect = "postgresql"

    def __init__(
        self,
        dsn: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        retry_seconds: tuple[float, float] = (FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS),
    ) -> None:
        """`answer_seconds`: how long a server may take for one statement. `retry_seconds`: the first and the longest
        pause after a connection that could not be made; it doubles in between.

        Raises `StoreFault` for what is no address of a database. It is never repeated: it may hold a password.
        """
        given = None
        with suppress(psycopg.Error):  # whose words repeat it
            given = conninfo_to_dict(dsn)
        if given is None:
            raise StoreFault("The address of the database cannot be read.")
        if "://" in dsn and "@" in str(given.get("host")):  # a part of the password, which would be told as a host
            raise StoreFault("The address of the database cannot be read: an `@` in the password is written %40.")
        self._address = make_conninfo("", **{**_DEFAULTS, **given})
        self._answer_seconds, self._retry_seconds = answer_seconds, retry_seconds
        self._lanes: tuple[Lane, ...] = ()
        self._transactions: tuple[_Transactions, ...] = ()

    async def open(self) -> None:
        """Raises `StoreFault` when the server cannot be reached."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def write(self, operation: Operation[T]) -> T:
        return await self._lane(0).submit(operation)

    async def hasten(self, operation: Operation[T]) -> T:
        return await self._lane(2).submit(operation)

    async def read(self, operation: Operation[T]) -> T:
        return await self._lane(1).submit(operation)

    def connect(self) -> Raw:
        """A connection of the caller's own, in autocommit mode. Raises `StoreFault`."""
        try:
            return self._connect()
        except psycopg.Error as exc:
            raise store_fault(exc) from exc

    def connect_patiently(self) -> Raw:
        """One that waits long for an answer, as it takes to change a large table, and begins transactions itself."""
        raw = self.connect()
        raw.execute(b"SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        raw.autocommit = False
        raw.patience = PATIENT_SECONDS
        return raw

    def _connect(self) -> Raw:
        raw = Raw.connect(self._address, autocommit=True)
        raw.patience = self._answer_seconds
        try:
            raw.execute(_SETTINGS)
        except psycopg.Error:
            raw.close()
            raise
        return raw

    def _lane(self, index: int) -> Lane:
        if not self._lanes:
            raise StoreFault("The store is closed.")
        return self._lanes[index]

    def _open(self) -> None:
        reached = _Reached()
        writer = _Transactions(self._connect, _WRITE, reached, self._retry_seconds)
        try:
            writer.link()
        except _Down as down:
            raise down.fault() from down.exc
        readers = [_Transactions(self._connect, _READ, reached, self._retry_seconds) for _ in range(READERS)]
        second = _Transactions(self._connect, _WRITE, reached, self._retry_seconds)
        self._transactions = (writer, *readers, second)
        self._lanes = (
            Lane("writer", [writer.run]),
            Lane("reader", [reader.run for reader in readers], _READS_AT_ONCE),
            Lane("second", [second.run]),
        )

    def _close(self) -> None:
        """A server that hangs is not waited for long: whoever works on a connection then closes it in the end."""
        lanes, self._lanes = self._lanes, ()
        transactions, self._transactions = self._transactions, ()
        until = monotonic() + CLOSING_SECONDS
        are_done = [lane.close(until) for lane in lanes]
        if all(are_done):
            for each in transactions:
                each.close()


class _Down(Exception):
    """The database, and not an operation: it is so for all that wait."""

    def __init__(self, exc: Exception, words: str | None = None, *, is_ambiguous: bool = False) -> None:
        self.exc, self.words, self.is_ambiguous = exc, words, is_ambiguous

    def fault(self) -> StoreFault:
        fault = store_fault(self.exc, self.words)
        fault.is_ambiguous = self.is_ambiguous
        return fault


class _Reached:
    """When any of the lanes has got a connection: where one gets through, the others need not wait any longer."""

    at = 0.0


class _Transactions:
    """What a lane does over a connection, which is made anew when it was lost."""

    def __init__(
        self, connect: Callable[[], Raw], begin: bytes, reached: _Reached, retry_seconds: tuple[float, float]
    ) -> None:
        self._first_pause, self._longest_pause = retry_seconds
        self._connect = connect
        self._begin = begin
        self._reached = reached
        self._link: PostgresLink | None = None
        self._pause = 0.0
        self._failed_at = 0.0
        self._not_before = 0.0
        self._last: Exception | None = None

    def run(self, jobs: list[Job[object]]) -> None:
        """All of them in one transaction; where that fails for one of them, each in a transaction of its own."""
        try:
            self._try_again_and_again(jobs)
        except _Down as down:
            for job in jobs:
                job.error = down.fault()
        except Exception as exc:  # the thread must outlive it, and every waiter must hear of it
            if len(jobs) > 1:
                for job in jobs:
                    self.run([job])
            else:
                jobs[0].error = store_fault(exc) if isinstance(exc, psycopg.Error) else exc

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def link(self) -> PostgresLink:
        """Raises `_Down`. A try that failed is followed by a pause that is at least as long as it took."""
        if self._link is not None:
            return self._link
        now = monotonic()
        if self._last is not None and now < self._not_before and self._reached.at < self._failed_at:
            raise _Down(self._last)
        try:
            self._link = PostgresLink(self._connect())
        except psycopg.Error as exc:
            self._last, self._failed_at = exc, (end := monotonic())
            self._pause = min(max(self._pause * 2, self._first_pause), self._longest_pause)
            self._not_before = end + max(self._pause, end - now)
            raise _Down(exc) from exc
        self._last, self._pause = None, 0.0
        self._reached.at = monotonic()
        return self._link

    def _try_again_and_again(self, jobs: list[Job[object]]) -> None:
        tries = 1
        while not self._has_done(jobs, is_last=tries == _TRIES):
            sleep(uniform(0, tries * _APART))  # noqa: S311 - so that two who met do not meet again; nothing to guess
            tries += 1

    def _has_done(self, jobs: list[Job[object]], *, is_last: bool) -> bool:
        """False: it may go well the next time."""
        try:
            self._transact(jobs)
        except psycopg.Error as exc:
            if self._link is None:  # lost before the commit, perhaps long ago: nothing of it was written
                if is_last or isinstance(exc, WaitTimeout):
                    raise _Down(exc) from exc
            elif is_last or not may_pass(exc, is_alone=len(jobs) == 1):
                raise
            return False
        return True

    def _transact(self, jobs: list[Job[object]]) -> None:
        link = self.link()
        try:
            link.begin(self._begin)
            for job in jobs:
                job.run(link)
        except Exception as exc:
            self._undo(link, exc)
            raise
        try:
            link.commit()
        except psycopg.Error as exc:
            self._undo(link, exc)
            if self._link is None:
                raise _Down(exc, UNKNOWN, is_ambiguous=self._begin is _WRITE) from exc
            raise

    def _undo(self, link: PostgresLink, exc: Exception) -> None:
        """Afterwards there is no transaction, or no connection."""
        with suppress(psycopg.Error):
            if not self._is_unusable(exc):
                link.roll_back()
                return
        link.close()
        self._link = None

    def _is_unusable(self, exc: Exception) -> bool:
        """Nobody knows where the connection stands, or the server is one that follows another by now."""
        return isinstance(exc, WaitTimeout) or (self._begin is _WRITE and isinstance(exc, ReadOnlySqlTransaction))
