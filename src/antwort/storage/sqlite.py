"""SQLite: a database in one file, and the store over it.

A writer, a reader and a checkpointer are threads with a connection each. Commits go to the write-ahead log; the
checkpointer copies them into the file, which takes longer than a commit and blocks no operation.

A commit survives the end of the process, however it ends, and is not forced to the disk (`synchronous = NORMAL`): when
the machine loses power, the last commits before that can be lost. The file stays whole, and holds all earlier ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from antwort.errors import StoreFault, StoreUnavailable
from antwort.storage.database import UNKNOWN_FAULT, Database, Dialect, Job, TransactionFailed, TransactionQueue
from antwort.storage.sql_store import SqlStore

if sys.platform != "win32":
    import fcntl

BUSY_SECONDS = 5.0
LOG_BYTES = 16 * 1024 * 1024
"""Size of the write-ahead log from which a checkpoint is made. Many small commits change the same pages: a rare
checkpoint copies such a page once for all of them.
"""
_AUTOMATIC_CHECKPOINT_PAGES = 64 * 1024
"""With so many pages in the log, the commit makes the checkpoint itself: a writer that is too fast has to wait."""
_REMAINING_PAGES = 256
"""So few that the writer copies them between two transactions, after which the log starts from its beginning."""


class SqliteStore(SqlStore):
    """The default store: responses in a SQLite file."""

    @classmethod
    async def open(cls, path: str | PathLike[str]) -> Self:
        """Open the store in the file at `path`, which is created or migrated if necessary."""
        return await cls.open_database(SqliteDatabase(Path(path)))


class SqliteDatabase(Database):
    dialect: Dialect = "sqlite"
    durability = "system"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._files: dict[str, os.stat_result] = {}
        self._lock: int | None = None
        self._checkpointer: _Checkpointer | None = None

    def _open(self) -> None:
        connections: list[SqliteConnection] = []
        log = self.path.with_name(f"{self.path.name}-wal")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.path.with_name(f"{self.path.name}.lock"))
            with contextlib.suppress(FileExistsError):  # SQLite gives the files beside it the same permissions
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            for is_reader in (False, True, False):
                connections.append(connection := connect(self.path))
                _configure(connection, is_reader=is_reader)
            self._files = {str(path): path.stat() for path in (self.path, log)}
        except (sqlite3.Error, OSError) as exc:
            for connection in connections:
                connection.close()
            self._release()
            raise store_fault(exc) from exc
        writer, reader, copier = connections
        self._checkpointer = checkpointer = _Checkpointer(copier)
        self._writer = TransactionQueue(
            "writer", [_Session(writer, "BEGIN IMMEDIATE", self._check_files, checkpointer)]
        )
        self._reader = TransactionQueue("reader", [_Session(reader, "BEGIN", self._check_files)])

    def _close(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
        for queue in (self._reader, self._writer):  # the last connection copies the rest of the log into the file
            queue.stop()
            queue.close_sessions()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_files(self) -> None:
        """Raise `FileNotFoundError` when the file or its log was deleted or replaced: SQLite would continue to write
        into the deleted file, whose content is lost when the process ends. Ask for a checkpoint if the log is large.
        """
        for path, known in self._files.items():
            found = os.stat(path)  # noqa: PTH116 - called after each transaction
            if found.st_ino != known.st_ino or found.st_dev != known.st_dev:
                raise FileNotFoundError(errno.ENOENT, "a file of the database was replaced")
        if found.st_size > LOG_BYTES and self._checkpointer is not None:  # the log is the last of them
            self._checkpointer.is_due.set()


class SqliteConnection(sqlite3.Connection):
    dialect: Dialect = "sqlite"
    newest_key = 0


class _Session:
    def __init__(
        self,
        connection: SqliteConnection,
        begin: str,
        check_files: Callable[[], None],
        checkpointer: _Checkpointer | None = None,
    ) -> None:
        self._connection, self._begin = connection, begin
        self._check_files, self._checkpointer = check_files, checkpointer

    def transact(self, jobs: Sequence[Job[Any]]) -> None:
        connection, error = self._connection, None
        try:
            if self._checkpointer is not None and self._checkpointer.is_nearly_done:
                self._checkpointer.is_nearly_done = False
                _checkpoint(connection)
            connection.execute(self._begin)
            try:
                for job in jobs:
                    job.result = job.operation(connection)
            except Exception as exc:
                error = exc
                self._roll_back()
            else:
                connection.execute("COMMIT")
                self._check_files()
        except Exception as exc:
            self._roll_back()
            raise TransactionFailed(partial(store_fault, exc)) from exc
        if error is not None:
            raise error

    def _roll_back(self) -> None:
        # SQLite ends some failed transactions itself, and a connection that cannot roll back fails again at the next.
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def fault_of(self, error: Exception) -> Exception:
        return store_fault(error) if isinstance(error, sqlite3.Error | OSError) else error

    def close(self) -> None:
        self._connection.close()


class _Checkpointer:
    """Copies the write-ahead log into the file, on a thread of its own.

    The log starts from its beginning with the first commit that finds all of it copied. While the writer never pauses,
    there would always be a rest: the writer copies the last few pages itself, between two transactions.
    """

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self.is_due = Event()
        self.is_nearly_done = False
        """Whether the writer is to copy the rest."""
        self._is_closed = False
        self._thread = Thread(target=self._work, name="antwort-checkpointer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self.is_due.set()
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while self.is_due.wait():
            self.is_due.clear()
            if self._is_closed:
                return
            if 0 < _checkpoint(self._connection) <= _REMAINING_PAGES:  # if more remain, the next commit asks again
                self.is_nearly_done = True


def _checkpoint(connection: SqliteConnection) -> int:
    """Return how many pages remain in the log: those that are being read, and those that were added meanwhile."""
    try:
        _, total, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error:  # nothing is lost, and the next commit reports the same fault
        return 0
    return int(total) - int(copied)


def connect(path: Path | str) -> SqliteConnection:
    return sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=SqliteConnection)


def _configure(connection: SqliteConnection, *, is_reader: bool) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # creates the log
    if is_reader:
        connection.execute("PRAGMA query_only = ON")
        return
    connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTOMATIC_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")  # cuts the log when it starts from its beginning
    connection.execute("PRAGMA cache_size = -16000")


def _lock(path: Path) -> int | None:
    """Take a lock that ends with the process, however that ends. Windows has no such lock: there, SQLite's own has to
    suffice.
    """
    if sys.platform == "win32":
        return None
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(lock)
        if isinstance(exc, BlockingIOError):
            raise StoreFault("Another antwort process uses this data folder.") from exc
        raise
    return lock


# ---- faults ----

_LOCKED = "The store is locked by another process."
_FULL = "The store is full: its disk has no room left."
_READ_ONLY = "The store's files may not be written."
_MESSAGES_BY_CODE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: "The store's file cannot be opened.",
    sqlite3.SQLITE_IOERR: "The store's file cannot be read or written.",
}
_MESSAGES_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.ENOENT: "The store's file is gone or was replaced.",
}


def store_fault(exc: Exception) -> StoreFault:
    """Return the fault that clients get: it names no path and no statement."""
    message, code = None, 0
    if isinstance(exc, sqlite3.Error):
        # Errors that the module raises itself have no code. The low byte is the kind, the rest the detail.
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        message = _MESSAGES_BY_CODE.get(code)
    elif isinstance(exc, OSError):
        message = _MESSAGES_BY_ERRNO.get(exc.errno or 0)
    if message is not None:
        fault: StoreFault = StoreUnavailable(message)
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        fault = StoreFault("The store's file is damaged or of another kind.")
    else:
        fault = StoreFault(UNKNOWN_FAULT)
    fault.__cause__ = exc
    return fault
