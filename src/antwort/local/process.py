"""One subprocess that runs a model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import Context
from pathlib import Path

from antwort.local.llama_server import ServerOptions

_log = logging.getLogger("antwort.local")
_content_log = logging.getLogger("antwort.content")
"""Disabled unless the operator wants requests and answers in the log."""

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("llama_server.py")))
"""Run as a script: it works however antwort was imported."""
GRACE_SECONDS = 2.0
_KEPT_LINES = 12
_LINE_LIMIT = 2000
_ERROR = re.compile(r"^[\d.]+ E \s*(?P<message>.+)$")
"""An error in llama.cpp's log: `0.00.004.292 E gguf_init_from_reader: failed to read header`."""
_INFO = re.compile(r"^[\d.]+ [ID] ")
_PROGRESS = re.compile(r"^[\d.]+ I (slot|srv|que)\s")
"""Lines about the progress of a request, which contain none of its text."""
_ASSERTION = re.compile(r"^\S+:\d+: GGML_ASSERT\(")


class ProcessEnded(Exception):
    """The subprocess has ended. The message says why, in a clause without any text from outside."""

    def __init__(self, why: str, last_lines: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.last_lines = tuple(last_lines)
        """The warnings and errors at the end of its log."""

    @property
    def error(self) -> str:
        """The first error among the last lines, from which the others usually follow. Empty: there is none."""
        found = (_ERROR.match(line) for line in self.last_lines)
        return next((each["message"] for each in found if each), "")


class ModelProcess:
    """`address` is its URL, once it is ready; `key` is the API key that requests must have."""

    def __init__(self, process: asyncio.subprocess.Process, key: str, grace_seconds: float = GRACE_SECONDS) -> None:
        self.key = key
        self.grace_seconds = grace_seconds
        """How long `stop` waits for the process to exit by itself."""
        self.address = ""
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._logging = asyncio.get_running_loop().create_task(self._copy_log(), context=Context())

    @classmethod
    async def start(cls, options: ServerOptions, command: Sequence[str] = COMMAND) -> ModelProcess:
        """Start it in a session of its own, so that it gets no Ctrl-C of our terminal. Raises `OSError`."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(options).encode() + b"\n")  # a process that ends first is noticed by `ready`
        return cls(process, options["key"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises `ProcessEnded`."""
        assert self._process.stdout is not None
        try:
            line = (await self._process.stdout.readline()).decode("ascii")
        except ValueError as exc:  # a line that is too long, or not ASCII
            raise ProcessEnded("its process does not say where it answers") from exc
        if not line.endswith("\n"):
            raise await self.ended()
        self.address = line.strip()
        self._last_lines.clear()

    async def ended(self) -> ProcessEnded:
        """Wait for its end, and return the reason."""
        await asyncio.wait({self._logging})
        status = await self._process.wait()
        if status >= 0:
            return ProcessEnded(f"its process ended with status {status}", self._last_lines)
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return ProcessEnded(f"its process was ended by {name}", self._last_lines)

    async def stop(self) -> None:
        """End it: with a grace period if it is ready, and at once if it is still loading."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(self.grace_seconds if self.address else 0):
                await self.ended()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.ended()
        with contextlib.suppress(OSError):
            await self._process.stdin.wait_closed()

    async def _copy_log(self) -> None:
        """Log llama.cpp's log: a line that may contain a part of a request goes to the content log."""
        assert self._process.stderr is not None
        rest = b""
        while True:
            data = await self._process.stderr.read(65536)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:_LINE_LIMIT]
            if not data and rest:
                lines = [rest]
            for each in lines:
                line = each[:_LINE_LIMIT].decode(errors="replace").rstrip()
                if self.address and not _PROGRESS.match(line) and not _ASSERTION.match(line):
                    _content_log.info("llama.cpp: %s", line)
                    continue
                if not _INFO.match(line):
                    self._last_lines.append(line)
                _log.debug("llama.cpp: %s", line)
            if not data:
                return
