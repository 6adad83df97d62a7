"""One life of the process that runs the model, seen from this side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextvars import Context
from pathlib import Path

from antwort.local.child import Order

_log = logging.getLogger("antwort.local")
_content_log = logging.getLogger("antwort.content")
"""Silent unless the operator wants to see what is asked and answered."""

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("child.py")))
"""As a script: so it needs nothing of antwort, from wherever antwort was imported."""
GRACE_SECONDS = 2.0
_LAST_WORDS = 12
_LONGEST_LINE = 2000
_ERROR = re.compile(r"^[\d.]+ E \s*(?P<said>.+)$")
"""An error in llama.cpp's log: `0.00.004.292 E gguf_init_from_reader: failed to read header`."""
_CHATTER = re.compile(r"^[\d.]+ [ID] ")
"""What it says when all is well."""
_STEPS = re.compile(r"^[\d.]+ I (slot|srv|que)\s")
"""What it says of the course of a request, and never of what is in it."""
_BROKEN = re.compile(r"^\S+:\d+: GGML_ASSERT\(")
"""The last that it says when it finds itself broken, which is a line of its own code."""


class Ended(Exception):
    """The process is no more. The message says why, in a clause, with nothing in it but what we know ourselves."""

    def __init__(self, why: str, last_words: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.last_words = tuple(last_words)
        """The end of its log, as far as it tells of anything wrong."""

    @property
    def error(self) -> str:
        """The first of its last words that is an error; the others follow from it, mostly. Empty: there is none."""
        found = (_ERROR.match(line) for line in self.last_words)
        return next((each["said"] for each in found if each), "")


class ModelProcess:
    """`address` is where it answers, once it does; `key` is what requests must bring."""

    def __init__(self, process: asyncio.subprocess.Process, key: str, grace_seconds: float = GRACE_SECONDS) -> None:
        self.key = key
        self.grace_seconds = grace_seconds
        """How long `stop` waits for the process to end by itself."""
        self.address = ""
        self._process = process
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._listening = asyncio.get_running_loop().create_task(self._listen(), context=Context())

    @classmethod
    async def start(cls, order: Order, command: Sequence[str] = CHILD) -> ModelProcess:
        """Raises `OSError`. It gets a session of its own: what is typed at our terminal is not for it."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")  # it is read, or it ends, and then that is what is told
        return cls(process, order["key"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def ready(self) -> None:
        """Wait until it answers. Raises `Ended`."""
        assert self._process.stdout is not None
        try:
            line = (await self._process.stdout.readline()).decode("ascii")
        except ValueError as exc:  # a line without an end, or not of our writing
            raise Ended("its process does not say where it answers") from exc
        if not line.endswith("\n"):
            raise await self.ended()
        self.address = line.strip()
        self._last_words.clear()

    async def ended(self) -> Ended:
        """Wait for its end; what came of it."""
        await asyncio.wait({self._listening})
        status = await self._process.wait()
        return Ended(_in_words(status), self._last_words)

    async def stop(self) -> None:
        """End it, if it has not ended. While it loads it hears nothing, and has nothing to lose."""
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

    async def _listen(self) -> None:
        """Its log becomes a part of ours, and the end of it is kept."""
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr):
            if self.address and not _STEPS.match(line) and not _BROKEN.match(line):
                _content_log.info("llama.cpp: %s", line)  # it may be about a request, and tell of what is in it
                continue
            if not _CHATTER.match(line):
                self._last_words.append(line)
            _log.debug("llama.cpp: %s", line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines without their ends, and without what is too long in them."""
    rest = b""
    while data := await stream.read(65536):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:_LONGEST_LINE]
        for line in whole:
            yield line[:_LONGEST_LINE].decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace")


def _in_words(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        return f"its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was ended by signal {-status}"
