"""PostgreSQL: a database that several processes share, and the store over it.

A writer, a second writer for urgent operations and a few readers are threads with a connection each. An acknowledged
commit is on disk as far as the server is configured so (`synchronous_commit` is not changed). Against a server that is
gone, hangs or comes back: every wait is bounded, a lost connection is opened again, and after a failed attempt to
connect there is a pause during which every operation fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from random import uniform
from time import monotonic, sleep
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg.types.array import ListBinaryDumper

from antwort.concurrency import backoff
from antwort.errors import StoreFault, StoreUnavailable
from antwort.storage.database import (
    CLOSED_QUEUE,
    UNKNOWN_FAULT,
    Connection,
    Database,
    Dialect,
    Job,
    Operation,
    TransactionFailed,
    TransactionQueue,
    Value,
    Values,
    to_postgres,
)
from antwort.storage.sql_store import SqlStore

T = TypeVar("T")
RV = TypeVar("RV")

READERS = 4
CONNECT_SECONDS = 3
ANSWER_SECONDS = 7.0
"""Timeout for an answer. The server's own, `STATEMENT_SECONDS`, is shorter: this is for a server that hangs."""
STATEMENT_SECONDS = 5.0
LOCK_SECONDS = 3.0
"""How long a statement waits for rows that another transaction holds."""
IDLE_SECONDS = 5.0
"""How long a process that hangs within a transaction may hold its rows."""
CLOSING_SECONDS = 3.0
"""How long `close` waits for accepted writes."""
MIGRATION_SECONDS = 600.0
"""How long a change of the tables may take."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 1.0

_LOOKUPS = 7
"""Attempts to find out whether a transaction was committed: for about 8 seconds."""
_ATTEMPTS = 6
_RETRY_SECONDS = 0.01
_READS_PER_TRANSACTION = 16
_ROWS_PER_STATEMENT = 500
"""So that the timeout is for an answer of known size."""
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


class PostgresStore(SqlStore):
    """Responses in a PostgreSQL database that several processes share."""

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Open the store in the database at `dsn`, whose tables are created or migrated if necessary."""
        return await cls.open_database(PostgresDatabase(dsn))


class PostgresDatabase(Database):
    dialect: Dialect = "postgresql"
    durability = "disk"
    _urgent_writer = CLOSED_QUEUE

    def __init__(
        self,
        dsn: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        retry_seconds: tuple[float, float] = (FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS),
    ) -> None:
        """`retry_seconds`: the first and the longest pause after a failed attempt to connect; it doubles in between.

        Raises `StoreFault` for an invalid address. The message never repeats it: it may hold a password.
        """
        super().__init__()
        given = None
        with suppress(psycopg.Error):  # its message repeats the address
            given = conninfo_to_dict(dsn)
        if given is None:
            raise StoreFault("The address of the database cannot be read.")
        if "://" in dsn and "@" in str(given.get("host")):  # a part of the password that would be reported as the host
            raise StoreFault("The address of the database cannot be read: an `@` in the password is written %40.")
        self._address = make_conninfo("", **{**_DEFAULTS, **given})
        self._answer_seconds, self.retry_seconds = answer_seconds, retry_seconds
        self.reached_at = 0.0
        """When a session connected last: where one gets through, the others need not wait any longer."""

    def write_urgent(self, operation: Operation[T]) -> Awaitable[T]:
        return self._urgent_writer.submit(operation)

    async def write_once(self, operation: Operation[T], is_done: Callable[[Connection, T], bool]) -> T:
        results: list[T] = []

        def write(connection: Connection) -> T:
            results[:] = [operation(connection)]
            return results[0]

        def write_if_missing(connection: Connection) -> T:
            return results[0] if results and is_done(connection, results[0]) else write(connection)

        try:
            return await self.write(write)
        except StoreFault as fault:
            if not fault.is_ambiguous:
                raise
        for pause in islice(backoff(0.1, 2.5), _LOOKUPS):
            try:
                return await self.write(write_if_missing)
            except StoreFault:
                await asyncio.sleep(pause)
        return await self.write(write_if_missing)

    def connect(self) -> BoundedConnection:
        """Open a connection of the caller's own, in autocommit mode. Raises `StoreFault`."""
        try:
            return self.connect_raw()
        except psycopg.Error as exc:
            raise store_fault(exc) from exc

    def connect_for_migration(self) -> BoundedConnection:
        """Open a connection with long timeouts that begins transactions itself."""
        raw = self.connect()
        raw.execute(b"SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        raw.autocommit = False
        raw.answer_seconds = MIGRATION_SECONDS
        return raw

    def connect_raw(self) -> BoundedConnection:
        raw = BoundedConnection.connect(self._address, autocommit=True)
        raw.answer_seconds = self._answer_seconds
        try:
            raw.execute(_SETTINGS)
        except psycopg.Error:
            raw.close()
            raise
        return raw

    def _open(self) -> None:
        writer = _PostgresSession(self, _WRITE)
        try:
            writer.connect()
        except TransactionFailed as failure:
            raise failure.make_fault() from failure.__cause__
        self._writer = TransactionQueue("writer", [writer])
        readers = [_PostgresSession(self, _READ) for _ in range(READERS)]
        self._reader = TransactionQueue("reader", readers, _READS_PER_TRANSACTION)
        self._urgent_writer = TransactionQueue("urgent-writer", [_PostgresSession(self, _WRITE)])

    def _close(self) -> None:
        queues = (self._writer, self._reader, self._urgent_writer)
        deadline = monotonic() + CLOSING_SECONDS
        are_done = [queue.stop(deadline) for queue in queues]
        if all(are_done):  # a thread that waits for a server that hangs still uses its connection
            for queue in queues:
                queue.close_sessions()


class BoundedConnection(psycopg.Connection[TupleRow]):
    """A connection of the driver on which every wait is bounded. After a timeout it cannot be used any more: its state
    is unknown.
    """

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, self.answer_seconds if timeout is None else timeout)


class PostgresConnection:
    """The `Connection` that operations are given."""

    dialect: Dialect = "postgresql"
    newest_key = 0

    def __init__(self, raw: BoundedConnection) -> None:
        self._raw = raw
        raw.adapters.register_loader("text", _TextLoader)
        raw.adapters.register_dumper(list, ListBinaryDumper)  # as text, each byte of a list of bytes is spelled out

    def execute(self, statement: str, values: Values = (), /) -> psycopg.Cursor[TupleRow]:
        cursor = self._raw.cursor(binary=True)
        try:
            return cursor.execute(to_postgres(statement), values)
        except psycopg.DataError as exc:
            if exc.sqlstate is not None:
                raise
            return cursor.execute(to_postgres(statement), _without_nul(values))

    def executemany(self, statement: str, values: Sequence[Values], /) -> None:
        if len(values) == 1:
            self.execute(statement, values[0])
            return
        for start in range(0, len(values), _ROWS_PER_STATEMENT):
            rows = [_without_nul(row) for row in values[start : start + _ROWS_PER_STATEMENT]]
            self._raw.cursor().executemany(to_postgres(statement), rows)

    def begin(self, statement: bytes) -> None:
        self._raw.execute(statement)

    def commit(self) -> None:
        """Raises when the server rolls back: that is how it ends a failed transaction, without an error."""
        if self._raw.execute(b"COMMIT").statusmessage != "COMMIT":
            raise psycopg.InternalError("the transaction was rolled back")

    def roll_back(self) -> None:
        if self._raw.info.transaction_status is not pq.TransactionStatus.IDLE:
            self._raw.execute(b"ROLLBACK")

    def close(self) -> None:
        self._raw.close()


# PostgreSQL stores no NUL in a text. What clients choose freely, such as the id of an item, may have one: it is
# replaced by a noncharacter, which no text contains that is meant to be read.
_NUL, _REPLACEMENT = "\0", "\U0010fffe"


def _without_nul(values: Values) -> Values:
    def replaced(value: Value) -> Value:
        return value.replace(_NUL, _REPLACEMENT) if isinstance(value, str) else value

    if isinstance(values, Mapping):
        return {name: replaced(value) for name, value in values.items()}
    return [replaced(value) for value in values]


class _TextLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return text.replace(_REPLACEMENT, _NUL) if _REPLACEMENT in text else text


class _PostgresSession:
    """Transactions over a connection that is opened again when it was lost."""

    def __init__(self, database: PostgresDatabase, begin: bytes) -> None:
        self._database, self._begin = database, begin
        self._pauses = backoff(*database.retry_seconds)
        self._connection: PostgresConnection | None = None
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._last_error: Exception | None = None

    def transact(self, jobs: Sequence[Job[Any]]) -> None:
        """Several attempts: another transaction may have been in the way, or the connection may have been lost."""
        for attempt in range(1, _ATTEMPTS + 1):
            is_last = attempt == _ATTEMPTS
            try:
                self._attempt(jobs)
            except psycopg.Error as exc:
                if self._connection is None:  # lost before the commit, perhaps long ago: nothing was written
                    if is_last or isinstance(exc, _WaitTimeout):
                        raise TransactionFailed(partial(store_fault, exc)) from exc
                elif is_last or not _may_succeed(exc, is_single=len(jobs) == 1):
                    raise
            else:
                return
            sleep(uniform(0, attempt * _RETRY_SECONDS))  # noqa: S311  # so that two conflicting transactions do not meet again

    def fault_of(self, error: Exception) -> Exception:
        return store_fault(error) if isinstance(error, psycopg.Error) else error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connect(self) -> PostgresConnection:
        """Raises `TransactionFailed`. The pause after a failed attempt is at least as long as the attempt took."""
        if self._connection is not None:
            return self._connection
        now = monotonic()
        if self._last_error is not None and now < self._retry_at and self._database.reached_at < self._failed_at:
            raise TransactionFailed(partial(store_fault, self._last_error))
        try:
            self._connection = PostgresConnection(self._database.connect_raw())
        except psycopg.Error as exc:
            self._last_error, self._failed_at = exc, (end := monotonic())
            self._retry_at = end + max(next(self._pauses), end - now)
            raise TransactionFailed(partial(store_fault, exc)) from exc
        self._last_error, self._pauses = None, backoff(*self._database.retry_seconds)
        self._database.reached_at = monotonic()
        return self._connection

    def _attempt(self, jobs: Sequence[Job[Any]]) -> None:
        connection = self.connect()
        try:
            connection.begin(self._begin)
            for job in jobs:
                job.result = job.operation(connection)
        except Exception as exc:
            self._undo(connection, exc)
            raise
        try:
            connection.commit()
        except psycopg.Error as exc:
            self._undo(connection, exc)
            if self._connection is None:
                is_ambiguous = self._begin is _WRITE
                raise TransactionFailed(partial(store_fault, exc, UNKNOWN, is_ambiguous=is_ambiguous)) from exc
            raise

    def _undo(self, connection: PostgresConnection, exc: Exception) -> None:
        """End the transaction, or close the connection: after a timeout its state is unknown, and a server that became
        read-only follows another one by now.
        """
        is_read_only = self._begin is _WRITE and isinstance(exc, errors.ReadOnlySqlTransaction)
        with suppress(psycopg.Error):
            if not (is_read_only or isinstance(exc, _WaitTimeout)):
                connection.roll_back()
                return
        self.close()


# ---- faults ----

UNREACHABLE = "The database cannot be reached."
TOO_SLOW = "The database took too long to answer."
UNKNOWN = "The database was lost before it had confirmed a change."

_WaitTimeout = errors._WaitTimeout  # noqa: SLF001  # it has no other name
_TIMEOUTS = (errors.QueryCanceled, errors.LockNotAvailable, errors.ConnectionTimeout, _WaitTimeout)
_MESSAGES: tuple[tuple[tuple[type[psycopg.Error], ...], str], ...] = (
    (_TIMEOUTS, TOO_SLOW),
    ((errors.DiskFull,), "The database is full: its disk has no room left."),
    ((errors.ReadOnlySqlTransaction,), "The database may not be written."),
    ((errors.InsufficientPrivilege,), "The database does not permit it."),
    ((psycopg.OperationalError,), UNREACHABLE),
)
_REASONS = (
    (("connection refused",), "connection refused"),
    (("timeout expired",), "timed out"),
    (("translate host name", "name or service not known"), "its name is not known"),
    (("no route to host", "network is unreachable"), "there is no way to it"),
    (("authentication failed", "no password supplied", "pg_hba.conf"), "it does not let this user in"),
    (("starting up", "not yet accepting connections"), "it starts"),
    (("shutting down", "terminating connection", "administrator command"), "it is shut down"),
    (("too many clients", "connection slots"), "it has no connection left"),
    (("does not exist",), "there is no such database or user"),
    (("ssl", "certificate"), "TLS could not be agreed on"),
    (("closed the connection", "connection is lost", "connection reset"), "the connection was lost"),
)


def store_fault(exc: Exception, message: str | None = None, *, is_ambiguous: bool = False) -> StoreFault:
    """Return the fault that clients get: it names no address and no statement. Its `why`, for the log, is in
    our own words too, as far as they are known: the driver's name hosts, users and databases.
    """
    found = message or next((text for kinds, text in _MESSAGES if isinstance(exc, kinds)), None)
    fault = StoreFault(UNKNOWN_FAULT) if found is None else StoreUnavailable(found)
    fault.__cause__, fault.is_ambiguous = exc, is_ambiguous
    if isinstance(exc, _TIMEOUTS):
        fault.why = "timed out"
    else:
        details = str(exc).lower()
        reasons = (reason for signs, reason in _REASONS if any(sign in details for sign in signs))
        fault.why = next(reasons, type(exc).__name__)
    return fault


def _may_succeed(exc: Exception, *, is_single: bool) -> bool:
    """Return whether the same transaction may succeed at once: it lost a race against another one. `is_single`: it has
    one operation. Then a row that another process wrote first is seen by the next attempt.
    """
    if isinstance(exc, errors.SerializationFailure | errors.DeadlockDetected):
        return True
    return is_single and isinstance(exc, errors.UniqueViolation | errors.ForeignKeyViolation)
