"""One SQLite file with one writer, one reader and a checkpointer, each a thread with a connection of its own.

All that keeps records writes through the same writer. What it commits stands in the write-ahead log, from where the
checkpointer moves it into the file: copying takes longer than the commit, and nobody waits for it.

A commit outlives the end of the process, however it ends, and is not forced to the disk (`synchronous = NORMAL`): when
the machine loses power, the last commits before that can be lost. The file stays whole, and holds all earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from antwort.db.base import NO_WORDS, Dialect, Operation
from antwort.db.lanes import Job, Lane
from antwort.errors import StoreFault, StoreUnavailable

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

BUSY_SECONDS = 5.0
LOG_BYTES = 16 * 1024 * 1024
"""Of the write-ahead log: when it is larger, a checkpoint is made. Many small commits touch the same pages: moved into
the file less often, they are moved once for many.
"""
_LOG_PAGES_AT_MOST = 64 * 1024
"""When the log has so many, the commit makes the checkpoint itself: whoever writes more than can be moved must wait."""
_REST_PAGES = 256
"""So few that the writer copies them between two transactions, so that the log begins anew."""


class SqliteDatabase:
    """The records of one data folder."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Path, tuple[int, int]] = {}
        self._lock: int | None = None
        self._lanes: tuple[Lane, ...] = ()
        self._links: tuple[_Link, ...] = ()
        self._checkpointer: _Checkpointer | None = None

    async def open(self) -> None:
        """Raises `StoreFault` when the file cannot be used, or another process uses it."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def write(self, operation: Operation[T]) -> T:
        return await self._lane(0).submit(operation)

    async def hasten(self, operation: Operation[T]) -> T:
        return await self.write(operation)

    async def read(self, operation: Operation[T]) -> T:
        return await self._lane(1).submit(operation)

    def _lane(self, index: int) -> Lane:
        if not self._lanes:
            raise StoreFault("The store is closed.")
        return self._lanes[index]

    def _open(self) -> None:
        connections: list[_Link] = []
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.path.with_name(f"{self.path.name}.lock"))
            _make(self.path)
            for is_reader in (False, True, False):
                connections.append(connection := _connect(self.path))
                _configure(connection, is_reader=is_reader)
            self._files = {path: _identity(path) for path in (self.path, _log_of(self.path)) if path.exists()}
        except (sqlite3.Error, OSError) as exc:
            for connection in connections:
                connection.close()
            self._release()
            raise store_fault(exc) from exc
        writer, reader, copier = connections
        self._links = (writer, reader)
        self._checkpointer = checkpointer = _Checkpointer(copier, _log_of(self.path))
        self._lanes = (
            Lane("writer", [_Transactions(writer, "BEGIN IMMEDIATE", self._verify, checkpointer).run]),
            Lane("reader", [_Transactions(reader, "BEGIN", self._verify).run]),
        )

    def _close(self) -> None:
        lanes, self._lanes = self._lanes, ()
        links, self._links = self._links, ()
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
        for lane, link in reversed(list(zip(lanes, links, strict=True))):
            lane.close()
            link.close()  # the last one to close moves what is left in the log into the file
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _verify(self) -> None:
        """SQLite goes on writing into a file that has lost its name: what it commits there is gone with the process.

        So it is with the log, which holds the newest commits and stays as long as it is in use.
        """
        for path, identity in self._files.items():
            if _identity(path) != identity:
                raise FileNotFoundError(errno.ENOENT, "a file of the database was replaced")


class _Link(sqlite3.Connection):
    dialect: Dialect = "sqlite"


class _Transactions:
    """What a lane does with a connection."""

    def __init__(
        self, connection: _Link, begin: str, verify: Callable[[], None], checkpointer: _Checkpointer | None = None
    ) -> None:
        self.connection = connection
        self._begin = begin
        self._verify = verify
        self._checkpointer = checkpointer

    def run(self, jobs: list[Job[object]]) -> None:
        try:
            if self._checkpointer is not None:
                self._checkpointer.complete(self.connection)
            self.connection.execute(self._begin)
            if self._run(jobs):
                self.connection.execute("COMMIT")
                self._verify()
                if self._checkpointer is not None:
                    self._checkpointer.look()
        except Exception as exc:  # the thread must outlive it, and every waiter must hear of it
            self._roll_back()
            for job in jobs:
                job.error = store_fault(exc)

    def _run(self, jobs: list[Job[object]]) -> bool:
        """Whether all went well. When one fails, each is tried again in a transaction of its own."""
        try:
            for job in jobs:
                job.run(self.connection)
        except Exception as exc:
            self._roll_back()
            if len(jobs) > 1:
                for job in jobs:
                    self.run([job])
            else:
                jobs[0].error = store_fault(exc) if isinstance(exc, sqlite3.Error | OSError) else exc
            return False
        return True

    def _roll_back(self) -> None:
        # SQLite ends some failed transactions itself, and a connection that cannot even roll back will say so again.
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")


class _Checkpointer:
    """Moves what is in the write-ahead log into the file, beside the writer.

    The log begins anew with the first commit that finds all of it moved. Behind a writer that never rests there would
    always be something left: the writer itself moves the little that has come since.
    """

    def __init__(self, connection: _Link, log: Path) -> None:
        self._connection, self._log = connection, log
        self._is_due, self._is_nearly_done = Event(), Event()
        self._is_closed = False
        self._thread = Thread(target=self._work, name="antwort-checkpointer", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """After a commit. `journal_size_limit` cuts the log to that size when it begins anew."""
        if self._log.stat().st_size > LOG_BYTES:
            self._is_due.set()

    def complete(self, writer: _Link) -> None:
        """Between two transactions."""
        if self._is_nearly_done.is_set():
            self._is_nearly_done.clear()
            _checkpoint(writer)

    def close(self) -> None:
        self._is_closed = True
        self._is_due.set()
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while self._is_due.wait():
            self._is_due.clear()
            if self._is_closed:
                return
            if 0 < _checkpoint(self._connection) <= _REST_PAGES:  # otherwise the next commit says that it is due again
                self._is_nearly_done.set()


def _checkpoint(connection: _Link) -> int:
    """How many pages are left in the log: those that somebody still reads, and those that came meanwhile."""
    try:
        _, total, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error:  # nothing is lost: the next commit comes upon the same fault, and tells whoever waits for it
        return 0
    return int(total) - int(moved)


def _make(path: Path) -> None:
    """Nobody else may read it; SQLite gives the files beside it the same rights."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _connect(path: Path) -> _Link:
    return sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=_Link)


def _configure(connection: sqlite3.Connection, *, is_reader: bool) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # the log is there from the first query on
    if is_reader:
        connection.execute("PRAGMA query_only = ON")
        return
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES_AT_MOST}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    connection.execute("PRAGMA cache_size = -16000")


def _lock(path: Path) -> int | None:
    """A lock that goes with the process, however it ends. Windows has none of its kind; SQLite's own must do there."""
    if sys.platform == "win32":
        return None
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(lock)
        raise StoreFault("Another antwort process uses this data folder.") from exc
    except OSError:
        os.close(lock)
        raise
    return lock


# ---- faults ----

_LOCKED = "The store is locked by another process."
_FULL = "The store is full: its disk has no room left."
_READ_ONLY = "The store's files may not be written."
_GONE = "The store's file is gone or was replaced."
_DAMAGED = "The store's file is damaged or of another kind."
_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: "The store's file cannot be opened.",
    sqlite3.SQLITE_IOERR: "The store's file cannot be read or written.",
}
_SQLITE_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SYSTEM = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.ENOENT: _GONE,
}


def store_fault(exc: Exception) -> StoreFault:
    """What a client may know of `exc`: no path, no statement."""
    away, code = None, 0
    if isinstance(exc, sqlite3.Error):
        # Errors that the module raises itself have none. The low byte is the kind, the rest the detail.
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        away = _SQLITE.get(code)
    elif isinstance(exc, OSError):
        away = _SYSTEM.get(exc.errno or 0)
    fault = StoreFault(_DAMAGED if code in _SQLITE_DAMAGED else NO_WORDS) if away is None else StoreUnavailable(away)
    fault.__cause__ = exc
    return fault
