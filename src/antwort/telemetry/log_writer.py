"""Write log lines to a stream without waiting for its reader."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import threading
from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import monotonic, time
from typing import TextIO
from weakref import WeakSet

from antwort.notes import Fields, NoteTaker
from antwort.telemetry.formatters import JsonFormatter

_PIECE = 4096
"""A pipe that has room at all takes so much at once (POSIX: at least 512)."""
MAX_BUFFERED_BYTES = 2**20
"""Bytes that are buffered for a reader that has stopped reading."""
BATCH_SECONDS = 0.005
"""Seconds from one write to the next while lines are batched."""
MAX_BATCH_LINES = 64
"""Lines that are written without waiting for more."""
_CLOSE_SECONDS = 1.0
"""Seconds that a reader has to take the buffered lines when the program ends."""

_DEFERRABLE = {level: logging.getLevelName(level).lower() for level in (logging.DEBUG, logging.INFO)}
"""The levels whose lines may wait for the next turn of the event loop, and their names."""


class LineWriter(NoteTaker):
    """Write records to a stream.

    A stream that is closed, broken or full loses lines, and nothing else happens. When its reader stops, a thread waits
    instead of the server; lines beyond a bound are dropped, and counted in a line of their own when the reader is back.

    This code can be interrupted by itself: the garbage collector runs at any time on any thread, and a finalizer may
    log. So nothing waits for the lock: lines that come meanwhile are written by the thread that holds it.

    `clock` returns the time in seconds, and `running_loop` the event loop of this thread, or None.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        clock: Callable[[], float] = monotonic,
        running_loop: Callable[[], asyncio.AbstractEventLoop | None] = _get_running_loop,  # the public one raises
    ) -> None:
        super().__init__()
        self._stream, self._clock, self._running_loop = stream, clock, running_loop
        self._fd = _descriptor(stream)
        self._poll = None if self._fd is None or _never_waits(self._fd) else select.poll()
        if self._poll is not None and self._fd is not None:
            self._poll.register(self._fd, select.POLLOUT)
        self._ready: deque[bytes] = deque()
        """Lines to write next, by the thread that holds the lock."""
        self._scheduled: asyncio.AbstractEventLoop | None = None
        """The event loop that has a flush scheduled."""
        self._batching_loop: asyncio.AbstractEventLoop | None = None
        """The event loop whose lines are batched."""
        self._next_time = 0.0
        """When the next batch is due."""
        self._format_note: Callable[[float, str, str, str, Fields, Fields], bytes | None] | None = None
        """Formats a note without a record."""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._write_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _writers.add(self)

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802 - logging's own name
        super().setFormatter(fmt)
        self._format_note = fmt.format_note if type(fmt) is JsonFormatter and self._fd is not None else None

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record without the lock that `logging` takes around everything."""
        wanted: bool | logging.LogRecord = self.filter(record) if self.filters else True
        if wanted:
            self.emit(wanted if isinstance(wanted, logging.LogRecord) else record)  # or another in its place
        return bool(wanted)

    def take(self, name: str, level: int, message: str, said: Fields, fields: Fields) -> bool:
        """Write a note without making a record of it, if it may wait and no filter wants the record."""
        word, at_once, loop = _DEFERRABLE.get(level), self._format_note, self._running_loop()
        if word is None or at_once is None or loop is None or level < self.level or self.filters:
            return False
        line = at_once(time(), word, name, message, said, fields)
        if line is None:
            return False
        ready = self._ready
        ready.append(line + b"\n")
        if self._scheduled is not loop:
            self._schedule(loop)
        elif len(ready) >= MAX_BATCH_LINES:
            self.flush()
        return True

    def emit(self, record: logging.LogRecord) -> None:
        line = b""
        try:
            text = self.format(record) + "\n"
            if self._fd is None:
                self._write(text)
                return
            line = text.encode("utf-8", "backslashreplace")
            self._ready.append(line)
        except Exception:
            self.handleError(record)
        loop = self._running_loop() if _can_wait(record) else None
        if loop is None or len(self._ready) >= MAX_BATCH_LINES:
            self.flush()
        elif len(line) > _PIECE:  # too much memory for a batch
            loop.call_soon(self.flush)
        elif self._scheduled is not loop:
            self._schedule(loop)

    @contextmanager
    def batching(self) -> Iterator[None]:
        """Batch the lines of this event loop under load. The context must end before the event loop does."""
        self._batching_loop = self._running_loop()
        try:
            yield
        finally:
            self._batching_loop = self._scheduled = None  # a scheduled flush may never run
            self.flush()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a flush for the next turn of the event loop, or while lines are batched for the time of the next
        batch: lines that are written together take less time.
        """
        self._scheduled = loop  # only its own thread sets this, and resets it before it flushes
        left = self._next_time - self._clock() if loop is self._batching_loop else 0.0
        if left > 0:
            loop.call_later(left, self._flush_scheduled)
        else:
            loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = None
        self.flush()

    def flush(self) -> None:
        """Write the lines, or leave them to the thread that holds the lock: it looks again after releasing it."""
        ready, fd = self._ready, self._fd
        while ready and fd is not None and self._write_lock.acquire(blocking=False):
            try:
                data = b"".join(islice(iter(ready.popleft, None), len(ready)))
                rest = self._put(fd, data) if self._thread is None else data
                if rest:
                    self._buffer_all(rest, data[: len(data) - len(rest)])
            except Exception:  # noqa: S110 - as in `handleError`
                pass
            finally:
                self._write_lock.release()
            self._next_time = self._clock() + BATCH_SECONDS

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the record; the stream is unavailable."""

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(line)

    def _buffer_all(self, rest: bytes, begun: bytes) -> None:
        for line in rest.splitlines(keepends=True):
            self._buffer(line, is_begun=bool(begun) and not begun.endswith(b"\n"))
            begun = line

    def _put(self, fd: int, data: bytes) -> bytes:
        """Write what can be written without waiting, and return the rest."""
        while data:
            if self._poll is not None and not self._poll.poll(0):
                return data
            try:
                data = data[os.write(fd, data[:_PIECE]) :]
            except BlockingIOError:
                return data
        return b""

    def _buffer(self, data: bytes, *, is_begun: bool) -> None:
        """Buffer a line within the bound, or the rest of one that was begun: no other line may be glued to it."""
        if self._size + len(data) > MAX_BUFFERED_BYTES and not is_begun:
            self._dropped += 1
            return
        self._waiting.append(data)
        self._size += len(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="antwort-log", daemon=True)
            self._thread.start()

    # ---- the thread that waits ----

    def _wait(self) -> None:
        while (data := self._next()) is not None:
            try:
                self._put_blocking(data)
            except OSError:  # the reader is gone
                continue

    def _next(self) -> bytes | None:
        data = self._next_waiting()
        self.flush()  # lines that came meanwhile
        return data

    def _next_waiting(self) -> bytes | None:
        with self._write_lock:
            if self._waiting:
                data = self._waiting.popleft()
                self._size -= len(data)
                return data
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                return self._about(dropped).encode()
            self._thread = None
            return None

    def _about(self, dropped: int) -> str:
        words = f"{dropped} lines of the log were lost: nobody read them"
        return self.format(logging.LogRecord("antwort.telemetry", logging.WARNING, "", 0, words, None, None)) + "\n"

    def _put_blocking(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            try:
                data = data[os.write(self._fd, data[:_PIECE]) :]
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)

    def close(self) -> None:
        self.flush()
        if self._write_lock.acquire(timeout=_CLOSE_SECONDS):  # no other thread is writing now
            self._write_lock.release()
        self.flush()
        if (thread := self._thread) is not None:
            thread.join(_CLOSE_SECONDS)
        super().close()

    def reset(self) -> None:
        """Reset in a forked process: the parent writes its lines, and its threads are not here."""
        self._ready.clear()
        self._waiting.clear()
        self._size = self._dropped = 0
        self._write_lock, self._thread = threading.Lock(), None
        self._scheduled = self._batching_loop = None


_writers: WeakSet[LineWriter] = WeakSet()


def _reset_all() -> None:
    for writer in list(_writers):
        writer.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


def _can_wait(record: logging.LogRecord) -> bool:
    """Return whether a record may wait for the next turn of the event loop."""
    return record.levelno < logging.WARNING and not record.args and not record.exc_info


def _never_waits(fd: int) -> bool:
    """Return whether the descriptor never blocks, as a file does, or cannot be polled."""
    try:
        return not hasattr(select, "poll") or stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:  # closed
        return False


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of a stream: nothing written to it directly stays in a buffer when the program ends."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None
