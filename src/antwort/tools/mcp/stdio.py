"""Stdio: a subprocess that speaks MCP on its standard input and output.

It has a process group of its own, all of which is killed when the session ends. Its output is read no faster than its
messages are handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from antwort.notes import note
from antwort.tools.mcp.base import NotReached, ServerSpec, ServerUnavailable
from antwort.tools.mcp.messages import BROKEN, TOO_LONG, JsonRpcMessage, Request, Unsent
from antwort.tools.mcp.throttle import Flooded
from antwort.tools.mcp.transport import DuplexTransport

if TYPE_CHECKING:
    from antwort.tools.mcp.connection import McpConnection

_log = logging.getLogger(__name__)

_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that programs need to run. The rest of the environment may hold secrets."""
_MAX_UNREAD_BYTES = 8 * 2**20
"""Most bytes that the program has not read; above that, it counts as hung."""
_MAX_LOGGED_BYTES = 64 * 1024
"""Bytes of its standard error that go to the log."""
_STDERR_TAIL_BYTES = 1_000
"""Bytes at the end of its standard error that are part of the error when it fails."""
_DRAIN_SECONDS = 0.25
"""Time for reading the rest of the output after the program has ended."""
_MAX_REST_BYTES = 2**20
"""Most of that rest that is read ahead. A pipe holds less."""
_EXIT_SECONDS = 1.0
"""Seconds for the program to exit on its own, and again after SIGTERM."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class StdioTransport(DuplexTransport):
    """The transport of one connection. It ends with its program."""

    def __init__(self, spec: ServerSpec, connection: McpConnection) -> None:
        super().__init__(connection)
        self._spec = spec
        self._program: _Program | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        spec = self._spec
        try:
            _, self._program = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Program(spec.label),
                *spec.command,
                env=environment(spec.env),
                cwd=spec.folder,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            self.details = _not_started(spec, exc)
            raise NotReached("The program of the MCP server cannot be started.") from exc
        self._reader = asyncio.create_task(self._read(self._program))

    async def send(self, request: Request) -> None:
        # Each message is one line, and the model may have written line breaks between the values of the arguments.
        if self._program is None or not self._program.write(request.body.translate(_ONE_LINE) + b"\n"):
            raise Unsent

    async def notify(self, message: JsonRpcMessage) -> None:
        if self._program is None or not self._program.write(msgspec.json.encode(message) + b"\n"):
            raise ServerUnavailable(BROKEN)

    async def close(self) -> None:
        """End the program and its whole process group: by the end of its input, then by SIGTERM, then by SIGKILL."""
        program, self._program = self._program, None
        if program is None:
            return
        has_left = program.has_left
        program.close()
        try:
            for signalled in (None, signal.SIGTERM, signal.SIGKILL):
                if signalled is not None:
                    program.kill(signalled)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_SECONDS):
                        await program.exited.wait()
                        break
        finally:
            program.kill(signal.SIGKILL)
            program.transport.close()
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait([self._reader])
            status = program.transport.get_returncode() if has_left else None
            self.details = _exit_details(status, program.stderr_tail)

    async def _read(self, program: _Program) -> None:
        largest = self._spec.largest
        open_line: list[bytes] = []
        try:
            while data := await program.read():
                *lines, rest = data.split(b"\n")
                if lines:
                    lines[0] = b"".join([*open_line, lines[0]])
                    open_line = []
                open_line.append(rest)
                if sum(map(len, open_line)) > largest or any(len(line) > largest for line in lines):
                    raise ServerUnavailable(TOO_LONG)
                if blank := sum(len(line) + 1 for line in lines if not line.strip()):
                    await self._connection.skip(blank)  # they count as one invalid line
                for line in lines:
                    if line.strip():
                        await asyncio.sleep(0)  # others run, also when lines come faster than they are handled
                        if not await self.receive(line):
                            text = "An MCP server's program wrote a line that is no message."
                            note(_log, logging.DEBUG, text, server=self._spec.label)
        except Flooded:
            pass  # it is in the log
        except ServerUnavailable:
            text = "An MCP server's program wrote a message that is too long."
            note(_log, logging.WARNING, text, server=self._spec.label)
        finally:
            program.finish()
            self._connection.end()
            self.fail_all()


class _Program(asyncio.SubprocessProtocol):
    """A program and its pipes, as the event loop serves them. It is read one piece at a time."""

    transport: asyncio.SubprocessTransport

    def __init__(self, label: str) -> None:
        self._label = label
        self._piece = b""
        self._logged_bytes = 0
        self._is_over = False
        self._wakeup = asyncio.Event()
        self.stderr_tail = b""
        self.has_left = False
        """Whether the program exited, or closed its output, on its own."""
        self.exited = asyncio.Event()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._piece += data
            if not self.has_left or len(self._piece) > _MAX_REST_BYTES:
                self._output().pause_reading()
            self._wakeup.set()
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
        if not self._is_over:
            self._output().resume_reading()
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.finish)

    # ---- called by the transport ----

    async def read(self) -> bytes:
        """Return what it has written next; nothing at the end."""
        while not self._piece and not self._is_over:
            self._wakeup.clear()
            self._output().resume_reading()
            await self._wakeup.wait()
        piece, self._piece = self._piece, b""
        return piece

    def write(self, data: bytes) -> bool:
        """Write to the program. Return False if it has ended, or does not read."""
        pipe = cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))
        if self._is_over or pipe.is_closing() or pipe.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.finish()
            return False
        pipe.write(data)
        return True

    def close(self) -> None:
        """Close its standard input, so that it ends."""
        self.finish()
        cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0)).close()

    def finish(self) -> None:
        """Read no more than has come."""
        self._is_over = True
        self._wakeup.set()

    def kill(self, signalled: signal.Signals) -> None:
        """Send a signal to the program and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.transport.get_pid(), signalled)

    def _output(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self.transport.get_pipe_transport(1))


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
