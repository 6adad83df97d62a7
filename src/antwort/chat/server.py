"""A server of our own: started for the chat, and gone with it however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from antwort.chat.client import ChatFault
from antwort.chat.scrub import in_one_line, scrub

_LISTENS = re.compile(r"listens on (http://\S+)$")
_LAST = "  try "
_ENOUGH = 5.0
"""Seconds that it has to end in order."""
_PLACE = ("--host", "127.0.0.1", "--port", "0", "--memory", "--drain", "0", "--log-level", "warning")

Report = Callable[[str], None]


class CannotServe(ChatFault):
    """The server did not start; the message is its own."""


class OwnServer:
    """`antwort serve` with `flags`, as a child on a free port of loopback. Nobody without its key can use it."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = flags
        self.key = f"sk-chat-{secrets.token_urlsafe(32)}"
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._errors: deque[str] = deque(maxlen=20)
        self._reading: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, report: Report) -> None:
        """Wait until it answers; `report` is told the last line it said. Nothing is left of one that does not, or that
        nobody waits for any more. Raises `CannotServe`.
        """
        try:
            await self._start(report)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, report: Report) -> None:
        self.url = ""
        self._errors.clear()
        # It ends when its standard input does: so it is gone with us even where we are killed.
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "antwort.cli.die_with_parent", "serve", *self._flags, *_PLACE),
                *("--set", "metrics.enabled=false"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "ANTWORT_AUTH_KEYS": json.dumps([{"name": "chat", "key": self.key}])},
                start_new_session=True,  # a Ctrl-C at the terminal is ours
            )
        except OSError as exc:
            raise CannotServe(f"No server can be started: {exc.strerror}.") from exc
        assert process.stdout is not None
        assert process.stderr is not None
        errors = self._follow(process.stderr, lambda line: self._note(line, report))
        if not await self._greeted(process.stdout, report):
            await errors
            raise CannotServe(await self._why_not(process))
        self._follow(process.stdout, lambda _: None)

    async def stop(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_ENOUGH):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _greeted(self, output: asyncio.StreamReader, report: Report) -> bool:
        """Whether it has said where it listens, and all else that it has to say."""
        async for raw in output:
            line = raw.decode(errors="replace").rstrip("\n")
            if found := _LISTENS.search(line):
                self.url = found[1]
            if self.url and line.startswith(_LAST):
                return True
            report(in_one_line(line))
        return False

    def _note(self, line: str, report: Report) -> None:
        self._errors.append(line)
        report(in_one_line(line))

    def _follow(self, output: asyncio.StreamReader, note: Callable[[str], None]) -> asyncio.Task[None]:
        task = asyncio.create_task(_read(output, note))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task

    async def _why_not(self, process: asyncio.subprocess.Process) -> str:
        status = await process.wait()
        said = "\n".join(self._errors).strip().removeprefix("antwort: ")
        return scrub(said) or f"The server ended with the status {status} before it answered."


async def _read(output: asyncio.StreamReader, note: Callable[[str], None]) -> None:
    """A line that is longer than the reader keeps is passed over."""
    while True:
        try:
            raw = await output.readline()
        except ValueError:
            continue
        if not raw:
            return
        note(raw.decode(errors="replace").rstrip("\n"))
