"""Writing lines to a stream that somebody else reads, or does not: nobody here waits for them."""

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
MOST_WAITING = 2**20
"""Bytes that are kept for a reader that has stopped reading."""
PAUSE = 0.005
"""Seconds from one write to the next, where lines may wait for each other."""
HEAP = 64
"""Lines that are written at once, whoever may still come."""
_LAST_WORDS = 1.0
"""Seconds that a reader has to take what is waiting when the program ends."""

_WELL = {level: logging.getLevelName(level).lower() for level in (logging.DEBUG, logging.INFO)}
"""The levels of what goes well, in words: those can be put off."""


class LineWriter(NoteTaker):
    """Writes records to a stream, as long as it takes them.

    A stream that is closed, broken or full loses lines, and nothing else happens. One that nobody reads is left to a
    thread, which waits in place of the server; lines beyond a bound are dropped, and counted in a line of their own
    when the reader is back.

    What is at work here can be interrupted by itself: the garbage collector runs whenever it likes, on any thread, and
    what it ends may have something to log. So nobody waits for a lock: what comes meanwhile is left to who has it.

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
        """What is to be written next, by whoever has the guard."""
        self._due: asyncio.AbstractEventLoop | None = None
        """The event loop that has been told to see to that."""
        self._gatherer: asyncio.AbstractEventLoop | None = None
        """The one whose lines may wait for each other."""
        self._next_time = 0.0
        """When they have waited long enough."""
        self._at_once: Callable[[float, str, str, str, Fields, Fields], bytes | None] | None = None
        """How a line is made of a note, where no record is needed for that."""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        _writers.add(self)

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802 - logging's own name
        super().setFormatter(fmt)
        self._at_once = fmt.at_once if type(fmt) is JsonFormatter and self._fd is not None else None

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock that `logging` takes around all of it: what needs one has its own."""
        wanted: bool | logging.LogRecord = self.filter(record) if self.filters else True
        if wanted:
            self.emit(wanted if isinstance(wanted, logging.LogRecord) else record)  # or another in its place
        return bool(wanted)

    def take(self, name: str, level: int, message: str, said: Fields, fields: Fields) -> bool:
        """What goes well, and can be put off, where no filter wants to see it before."""
        word, at_once, loop = _WELL.get(level), self._at_once, self._running_loop()
        if word is None or at_once is None or loop is None or level < self.level or self.filters:
            return False
        line = at_once(time(), word, name, message, said, fields)
        if line is None:
            return False
        ready = self._ready
        ready.append(line + b"\n")
        if self._due is not loop:
            self._put_off(loop)
        elif len(ready) >= HEAP:
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
        if loop is None or len(self._ready) >= HEAP:
            self.flush()
        elif len(line) > _PIECE:  # to gather those would be to keep much
            loop.call_soon(self.flush)
        elif self._due is not loop:
            self._put_off(loop)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Meanwhile, the lines of this event loop wait for each other where they come thick and fast. Whoever asks for
        that sees to it that it comes to an end before the event loop does.
        """
        self._gatherer = self._running_loop()
        try:
            yield
        finally:
            self._gatherer = self._due = None  # the time that was set may never come
            self.flush()

    def _put_off(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until the next turn of the event loop: all lines of one turn are written together, which takes less time.
        Where lines are gathered and some were written just now, until the pause after those is over.
        """
        self._due = loop  # only its own thread says so, and takes that back before it looks
        left = self._next_time - self._clock() if loop is self._gatherer else 0.0
        if left > 0:
            loop.call_later(left, self._on_time)
        else:
            loop.call_soon(self._on_time)

    def _on_time(self) -> None:
        self._due = None
        self.flush()

    def flush(self) -> None:
        """Write what is there, or leave it to who is writing: whoever that is looks again after letting go of the
        guard. What ends the program calls it, too.
        """
        ready, fd = self._ready, self._fd
        while ready and fd is not None and self._guard.acquire(blocking=False):  # who has it, and nobody else, takes
            try:
                data = b"".join(islice(iter(ready.popleft, None), len(ready)))
                rest = self._put(fd, data) if self._thread is None else data
                if rest:
                    self._keep_all(rest, data[: len(data) - len(rest)])
            except Exception:  # noqa: S110 - as in `handleError`
                pass
            finally:
                self._guard.release()
            self._next_time = self._clock() + PAUSE

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """There is no place left to say it."""

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(line)

    def _keep_all(self, rest: bytes, begun: bytes) -> None:
        for line in rest.splitlines(keepends=True):
            self._keep(line, is_begun=bool(begun) and not begun.endswith(b"\n"))
            begun = line

    def _put(self, fd: int, data: bytes) -> bytes:
        """Write what can be written without waiting; the rest."""
        while data:
            if self._poll is not None and not self._poll.poll(0):
                return data
            try:
                data = data[os.write(fd, data[:_PIECE]) :]
            except BlockingIOError:
                return data
        return b""

    def _keep(self, data: bytes, *, is_begun: bool) -> None:
        """The rest of a line that was begun is kept, however long it is: the next one must not be glued to it."""
        if self._size + len(data) > MOST_WAITING and not is_begun:
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
                self._put_patiently(data)
            except OSError:  # nobody will read it
                continue

    def _next(self) -> bytes | None:
        data = self._next_waiting()
        self.flush()  # what came meanwhile
        return data

    def _next_waiting(self) -> bytes | None:
        with self._guard:
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

    def _put_patiently(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            try:
                data = data[os.write(self._fd, data[:_PIECE]) :]
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)

    def close(self) -> None:
        self.flush()
        if self._guard.acquire(timeout=_LAST_WORDS):  # nobody else is writing now
            self._guard.release()
        self.flush()
        if (thread := self._thread) is not None:
            thread.join(_LAST_WORDS)
        super().close()

    def forget(self) -> None:
        """In a copy of the process: what waits there is written by who has it, and who was writing is not here."""
        self._ready.clear()
        self._waiting.clear()
        self._size = self._dropped = 0
        self._guard, self._thread = threading.Lock(), None
        self._due = self._gatherer = None


_writers: WeakSet[LineWriter] = WeakSet()


def _forget_all() -> None:
    for writer in list(_writers):
        writer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _can_wait(record: logging.LogRecord) -> bool:
    """Notes of what goes well."""
    return record.levelno < logging.WARNING and not record.args and not record.exc_info


def _never_waits(fd: int) -> bool:
    """Whether one need not ask before writing, or cannot: a file takes all there is, at once."""
    try:
        return not hasattr(select, "poll") or stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:  # closed
        return False


def _descriptor(stream: TextIO | None) -> int | None:
    """The descriptor behind a stream: written to directly, nothing is left in a buffer when the program ends."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None
