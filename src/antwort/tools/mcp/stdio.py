"""Stdio: a subprocess that speaks MCP on its standard input and output.

It has a process group of its own, all of which is killed when the session ends. Its output is read line by line, and at
most the longest allowed message is buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from antwort.notes import note
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import BROKEN, JsonRpcMessage, Request, Unsent
from antwort.tools.mcp.throttle import Flooded
from antwort.tools.mcp.transport import DuplexTransport

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import McpConnection

_log = logging.getLogger(__name__)

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that programs need to run. The rest of the environment may hold secrets."""
_MAX_LINES = 64
"""Most buffered lines; above that, reading stops."""
_MAX_UNREAD_BYTES = 8 * 2**20
"""Most bytes that the program has not read; above that, it counts as hung."""
_MAX_LOGGED_BYTES = 64 * 1024
"""Bytes of its standard error that go to the log."""
_STDERR_TAIL_BYTES = 1_000
"""Bytes at the end of its standard error that are part of the error when it fails."""
_DRAIN_SECONDS = 0.25
"""Time for reading the rest of the output after the program has ended."""
_EXIT_SECONDS = 1.0
"""Seconds for the program to exit on its own, and again after SIGTERM."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class StdioTransport(DuplexTransport):
    """The transport of one connection. It ends with its program."""

    def __init__(self, spec: ServerSpec, connection: McpConnection) -> None:
        super().__init__(connection)
        self._spec = spec
        self._pipes = _Pipes(spec)
        self._transport: asyncio.SubprocessTransport | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        spec = self._spec
        try:
            self._transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self._pipes, *spec.command, env=environment(spec.env), cwd=spec.folder, start_new_session=True
            )
        except (OSError, ValueError) as exc:
            self.details = _not_started(spec, exc)
            raise NotReached("The program of the MCP server cannot be started.") from exc
        self._reader = asyncio.create_task(self._read())

    async def send(self, request: Request) -> None:
        # Each message is one line, and the model may have written line breaks between the values of the arguments.
        if not self._pipes.write(request.body.translate(_ONE_LINE) + b"\n"):
            raise Unsent

    async def notify(self, message: JsonRpcMessage) -> None:
        if not self._pipes.write(msgspec.json.encode(message) + b"\n"):
            raise ServerUnavailable(BROKEN)

    async def notify_safely(self, message: JsonRpcMessage) -> None:
        self._pipes.write(msgspec.json.encode(message) + b"\n")

    async def close(self) -> None:
        """End the program and its whole process group: by the end of its input, then by SIGTERM, then by SIGKILL."""
        transport, pipes = self._transport, self._pipes
        if transport is None:
            return
        has_left = pipes.has_left
        pipes.close()
        group = transport.get_pid()
        try:
            for signalled in (None, signal.SIGTERM, signal.SIGKILL):
                if signalled is not None:
                    _signal(group, signalled)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_SECONDS):
                        await pipes.exited.wait()
                        break
        finally:
            _signal(group, signal.SIGKILL)
            transport.close()
            self._transport = None
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])
            self.details = _exit_details(transport.get_returncode() if has_left else None, pipes.stderr_tail)

    async def _read(self) -> None:
        try:
            while (line := await self._pipes.line()) is not None:
                await asyncio.sleep(0)  # let other tasks run, also when lines come faster than they are handled
                if not await self.receive(line):
                    text = "An MCP server's program wrote a line that is no message."
                    note(_log, logging.DEBUG, text, server=self._spec.label)
        except Flooded:
            pass  # it is in the log
        except ServerUnavailable:
            self._pipes.warn_of_length()
        finally:
            self._pipes.finish()
            self._connection.end()
            self.fail_all()


class _Pipes(asyncio.SubprocessProtocol):
    """The pipes of the program, as the event loop serves them."""

    def __init__(self, spec: ServerSpec) -> None:
        self._label, self._max_bytes = spec.label, spec.largest
        self._transport: asyncio.SubprocessTransport | None = None
        self._lines: deque[bytes] = deque()
        self._chunks: list[bytes] = []
        self._open_bytes = self._logged_bytes = 0
        self._is_paused = self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self.stderr_tail = b""
        self.has_left = False
        """Whether the program exited, or closed its output, on its own."""
        self.exited = asyncio.Event()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._split(data)
            return
        self.stderr_tail = (self.stderr_tail + data[-_STDERR_TAIL_BYTES:])[-_STDERR_TAIL_BYTES:]
        if self._logged_bytes < _MAX_LOGGED_BYTES:
            self._logged_bytes += len(data)
            text = data[:_MAX_LOGGED_BYTES].decode(errors="replace").rstrip()
            message = "An MCP server's program wrote to its standard error."
            note(_log, logging.DEBUG, message, server=self._label, text=text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc  # the reason does not matter
        if fd == 1:
            self.has_left = True
            self.finish()
        elif fd == 0:
            self._expect_end()

    def process_exited(self) -> None:
        self.exited.set()
        self._expect_end()

    def _expect_end(self) -> None:
        """Read the rest of the output, with a time limit: processes that the program has started may keep it open."""
        self.has_left = True
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.finish)

    # ---- called by the transport ----

    async def line(self) -> bytes | None:
        """Return the next line that is not blank; None at the end."""
        while not self._lines:
            if self._is_over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        line = self._lines.popleft()
        if self._is_paused and len(self._lines) < _MAX_LINES // 2:
            self._is_paused = False
            self._output().resume_reading()
        return line

    def write(self, data: bytes) -> bool:
        """Write to the program. Return False if it has ended, or does not read."""
        pipe = self._input()
        if self._is_over or pipe is None or pipe.is_closing() or pipe.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.finish()
            return False
        pipe.write(data)
        return True

    def close(self) -> None:
        """Close its standard input, so that it ends."""
        self.finish()
        pipe = self._input()
        if pipe is not None:
            pipe.close()

    def finish(self) -> None:
        """Read no more than is buffered."""
        self._is_over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def warn_of_length(self) -> None:
        note(_log, logging.WARNING, "An MCP server's program wrote a message that is too long.", server=self._label)

    # ---- internals ----

    def _split(self, data: bytes) -> None:
        if self._is_over:
            return
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._chunks, lines[0]])
            self._chunks, self._open_bytes = [], 0
        if rest:
            self._chunks.append(rest)
            self._open_bytes += len(rest)
        if self._open_bytes > self._max_bytes or any(len(line) > self._max_bytes for line in lines):
            self.warn_of_length()
            self._lines.clear()
            self._chunks = []
            self.finish()
            return
        self._lines += [line for line in lines if line.strip()]
        if blank := sum(len(line) + 1 for line in lines if not line.strip()):
            self._lines.append(b" " * blank)  # counts as one invalid line
        if len(self._lines) > _MAX_LINES and not self._is_paused:
            self._is_paused = True
            self._output().pause_reading()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _input(self) -> asyncio.WriteTransport | None:
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        return cast("asyncio.WriteTransport | None", pipe)

    def _output(self) -> asyncio.ReadTransport:
        assert self._transport is not None, "it has written"
        return cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))


def environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in _INHERITED if name in os.environ}, **more}


def _not_started(spec: ServerSpec, error: OSError | ValueError) -> str:
    """Return the reason. The system names the folder if that is missing."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "it cannot be a command"
    is_folder = isinstance(error, OSError) and spec.folder is not None and error.filename == spec.folder
    what = f"the folder {spec.folder!r}" if is_folder else f"the program {spec.command[0]!r}"
    return f"{what}: {reason}"


def _exit_details(status: int | None, stderr_tail: bytes) -> str:
    """Return how a program ended and the last lines of its standard error, without control characters."""
    lines = [
        "".join(c if c.isprintable() else " " for c in line).strip()
        for line in stderr_tail.decode(errors="replace").splitlines()
    ]
    wrote = f"its last words: {' / '.join(filter(None, lines))}" if any(lines) else ""
    if status is None:
        return wrote
    how = f"it ended with status {status}" if status >= 0 else f"it was ended by signal {-status}"
    return f"{how}; {wrote}" if wrote else how


def _signal(group: int, signalled: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signalled)
