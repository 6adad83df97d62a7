"""A program of the operator's that speaks MCP on its standard input and output.

It has a process group of its own, and nothing of that is left when the session ends. What it writes is read line by
line and never held beyond the longest message; the SDK's own way of doing this has no such bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, cast

import anyio
from mcp.shared.message import SessionMessage

from antwort.notes import note
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable
from antwort.tools.mcp.reading import MessageReader, Unread
from antwort.tools.mcp.unsolicited_traffic import Flooded, Unsolicited

_log = logging.getLogger(__name__)

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""What programs need to run. The rest may be secrets of this process's."""
_WAITING = 64
"""Lines that nobody has taken yet, above which no more are read."""
_UNREAD = 8 * 2**20
"""Bytes that the program has not read, above which it is taken for hung."""
_TOLD = 64 * 1024
"""Bytes of its standard error that go to the log."""
_LAST = 1_000
"""Bytes of its standard error that are repeated where it does not run."""
_READING_ON = 0.25
"""Seconds in which what a program wrote before it ended is read."""
_GRACE = 1.0
"""Seconds for ending by itself, and again when it is told to."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in _INHERITED if name in os.environ}, **more}


@asynccontextmanager
async def program(
    spec: ServerSpec, unsolicited: Unsolicited, explain: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[tuple[Inbox, Outbox], None]:
    """Raises `NotReached` when it cannot be started. `explain` is told, in the end, what its operator may want to know:
    why it could not be, how it ended, and what it wrote last.
    """
    loop = asyncio.get_running_loop()
    talk = Talk(spec.label, spec.largest, MessageReader(unsolicited))
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: talk, *spec.command, env=environment(spec.env), cwd=spec.folder, start_new_session=True
        )
    except (OSError, ValueError) as exc:
        explain(_not_started(spec, exc))
        raise NotReached("The program of the MCP server cannot be started.") from exc
    try:
        yield Inbox(talk), Outbox(talk)
    finally:
        with anyio.CancelScope(shield=True):  # every wait in there is bounded
            has_left = talk.has_left
            await _end(transport, talk)
            explain(_last_words(transport.get_returncode() if has_left else None, talk.last))


def _not_started(spec: ServerSpec, error: OSError | ValueError) -> str:
    """The system names the folder where that is what is missing."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "it cannot be a command"
    is_folder = isinstance(error, OSError) and spec.folder is not None and error.filename == spec.folder
    what = f"the folder {spec.folder!r}" if is_folder else f"the program {spec.command[0]!r}"
    return f"{what}: {reason}"


def _last_words(status: int | None, last: bytes) -> str:
    lines = [_scrubbed(line) for line in last.decode(errors="replace").splitlines() if line.strip()]
    wrote = f"its last words: {' / '.join(lines)}" if lines else ""
    if status is None:
        return wrote
    how = f"it ended with status {status}" if status >= 0 else f"it was ended by signal {-status}"
    return f"{how}; {wrote}" if wrote else how


def _scrubbed(line: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in line).strip()


async def _end(transport: asyncio.SubprocessTransport, talk: Talk) -> None:
    """It may end by itself, then it is told to, then it is made to. What it has started goes with it."""
    talk.close()
    group = transport.get_pid()
    for signalled in (None, signal.SIGTERM, signal.SIGKILL):
        if signalled is not None:
            _signal(group, signalled)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await talk.exited.wait()
                break
    _signal(group, signal.SIGKILL)
    transport.close()


def _signal(group: int, signalled: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signalled)


class Talk(asyncio.SubprocessProtocol):
    """Its pipes, as the event loop serves them."""

    def __init__(self, label: str, largest: int, reader: MessageReader) -> None:
        self.reader = reader
        self._label = label
        self._largest = largest
        self._transport: asyncio.SubprocessTransport | None = None
        self._open: list[bytes] = []
        self._open_size = 0
        self._told = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.lines: deque[bytes] = deque()
        self.last = b""
        self.has_left = False
        """Whether it ended, or closed its output, before it was told to."""
        self.is_over = False
        self.exited = asyncio.Event()

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._read(data)
            return
        self.last = (self.last + data[-_LAST:])[-_LAST:]
        if self._told < _TOLD:
            self._told += len(data)
            text = data[:_TOLD].decode(errors="replace").rstrip()
            note(
                _log,
                logging.DEBUG,
                "An MCP server's program wrote to its standard error.",
                server=self._label,
                text=text,
            )

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc  # why does not matter
        if fd == 1:
            self.has_left = True
            self.finish()
        elif fd == 0:
            self._expect_the_end()

    def process_exited(self) -> None:
        self.exited.set()
        self._expect_the_end()

    def _expect_the_end(self) -> None:
        """What it wrote before is still to be read. Its output may stay open in the hands of what it has started."""
        self.has_left = True
        asyncio.get_running_loop().call_later(_READING_ON, self.finish)

    # called by the session

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def take(self) -> list[SessionMessage]:
        """What the next line says, which may be nothing."""
        line = self.lines.popleft()
        if self._is_paused and len(self.lines) < _WAITING // 2:
            self._is_paused = False
            self._output().resume_reading()
        await asyncio.sleep(0)  # it may talk faster than it is read, and others want to be heard
        try:
            return await self.reader.read(line)
        except Unread:
            note(_log, logging.DEBUG, "An MCP server's program wrote a line that is no message.", server=self._label)
        except Flooded:
            self._give_up()
        except ServerUnavailable:
            self._give_up("An MCP server's program wrote a message that is too long.")
        return []

    def write(self, data: bytes) -> bool:
        """Whether it goes there: not to a program that has ended, nor to one that reads nothing."""
        pipe = self._input()
        if self.is_over or pipe is None or pipe.is_closing() or pipe.get_write_buffer_size() > _UNREAD:
            self.finish()
            return False
        pipe.write(data)
        return True

    def close(self) -> None:
        """Its standard input ends: it should, too."""
        self.finish()
        pipe = self._input()
        if pipe is not None:
            pipe.close()

    def finish(self) -> None:
        self.is_over = True
        self._wake()

    # within

    def _read(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if self.is_over:
            return
        if lines:
            lines[0] = b"".join([*self._open, lines[0]])
            self._open, self._open_size = [], 0
        if rest:
            self._open.append(rest)
            self._open_size += len(rest)
        if self._open_size > self._largest or any(len(line) > self._largest for line in lines):
            self._give_up("An MCP server's program wrote a message that is too long.")
            return
        self.lines += [line for line in lines if line.strip()]
        if blank := sum(len(line) + 1 for line in lines if not line.strip()):
            self.lines.append(b" " * blank)  # as one line that is no message
        if len(self.lines) > _WAITING and not self._is_paused:
            self._is_paused = True
            self._output().pause_reading()
        self._wake()

    def _give_up(self, text: str | None = None) -> None:
        """`text` is for the log, where nobody else has told it."""
        if text is not None and not self.is_over:
            note(_log, logging.WARNING, text, server=self._label)
        self.lines.clear()
        self.finish()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _input(self) -> asyncio.WriteTransport | None:
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        return cast("asyncio.WriteTransport | None", pipe)

    def _output(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))


class _Stream:
    """One direction, as the SDK takes it."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def aclose(self) -> None:
        self._talk.finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Inbox(_Stream):
    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self._read: deque[SessionMessage] = deque()

    async def receive(self) -> SessionMessage | Exception:
        while not self._read:
            if self._talk.lines:
                self._read += await self._talk.take()
            elif self._talk.is_over:
                raise anyio.EndOfStream
            else:
                await self._talk.wait()
        return self._read.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outbox(_Stream):
    async def send(self, item: SessionMessage, /) -> None:
        self._talk.reader.expect(item)
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        if not self._talk.write(data.encode() + b"\n"):
            raise anyio.BrokenResourceError
