"""The server that the chat is held with: one that is running, or one that is started for the chat."""

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

from antwort.chat.client import ChatError, ServerClient
from antwort.chat.formatting import one_line, sanitize

Report = Callable[[str], None]
"""Called with a line about what is being waited for."""

USUAL_URL = "http://127.0.0.1:8080"
_LISTENS = re.compile(r"listens on (http://\S+)$")
_LAST_LINE = "  try "
_STOP_SECONDS = 5.0
_FLAGS = ("--host", "127.0.0.1", "--port", "0", "--memory", "--drain", "0", "--log-level", "warning")


class CannotServe(ChatError):
    """The server did not start. The message is what it printed itself."""


class OwnServer:
    """`antwort serve` with `flags`, as a subprocess on a free loopback port, with a key of its own."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._flags = flags
        self.key = f"sk-chat-{secrets.token_urlsafe(32)}"
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._errors: deque[str] = deque(maxlen=20)
        self._readers: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, report: Report) -> None:
        """Start it, and wait until it is ready. Raises `CannotServe`, and then leaves no process behind."""
        try:
            await self._start(report)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _start(self, report: Report) -> None:
        self.url = ""
        self._errors.clear()
        try:  # it ends when its standard input is closed, also if this process is killed
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "antwort.cli.die_with_parent", "serve", *self._flags, *_FLAGS),
                *("--set", "metrics.enabled=false"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "ANTWORT_AUTH_KEYS": json.dumps([{"name": "chat", "key": self.key}])},
                start_new_session=True,  # it gets no Ctrl-C of our terminal
            )
        except OSError as exc:
            raise CannotServe(f"No server can be started: {exc.strerror}.") from exc
        assert process.stdout is not None
        assert process.stderr is not None

        def note(line: str) -> None:
            self._errors.append(line)
            report(one_line(line))

        errors = self._read(process.stderr, note)
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            if found := _LISTENS.search(line):
                self.url = found[1]
            if self.url and line.startswith(_LAST_LINE):
                self._read(process.stdout, lambda _: None)
                return
            report(one_line(line))
        await errors
        status = await process.wait()
        message = "\n".join(self._errors).strip().removeprefix("antwort: ")
        raise CannotServe(sanitize(message) or f"The server ended with the status {status} before it answered.")

    def _read(self, output: asyncio.StreamReader, note: Callable[[str], None]) -> asyncio.Task[None]:
        """Read the output in the background, so that the server is never blocked."""

        async def read() -> None:
            while True:
                try:
                    raw = await output.readline()
                except ValueError:  # a line that is too long is skipped
                    continue
                if not raw:
                    return
                note(raw.decode(errors="replace").rstrip("\n"))

        task = asyncio.create_task(read())
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return task


class ChatServer:
    """The server and what it offers. One of our own that has died is started again by `ready`."""

    def __init__(self, client: ServerClient, own: OwnServer | None = None) -> None:
        self.client = client
        self.models: list[str] = []
        self.tools: dict[str, tuple[str, ...]] = {}
        """The names of the tools by their labels."""
        self._own = own

    @property
    def is_own(self) -> bool:
        return self._own is not None

    async def ready(self, report: Report) -> None:
        """Raises `ChatError`."""
        if self._own is not None and not self._own.is_running:
            await self.client.close()
            await self._own.start(report)
            self.client = ServerClient(self._own.url, self._own.key)

    async def refresh(self, report: Report) -> None:
        """List its models and tools. Raises `ChatError`."""
        await self.ready(report)
        self.models = await self.client.models()
        self.tools = await self.client.tools()

    async def close(self) -> None:
        await self.client.close()
        if self._own is not None:
            await self._own.stop()


def server_at(url: str, key: str | None) -> ChatServer:
    """Raises `ChatError` for an invalid address."""
    try:
        return ChatServer(ServerClient(url, key))
    except ValueError as exc:
        raise ChatError(f"{url!r} is not the address of a server, such as {USUAL_URL}.") from exc


async def usual_server(key: str | None, url: str = USUAL_URL) -> ChatServer | None:
    """Return the server at the usual address, if antwort answers there. Another program does not get the key."""
    without_key = ServerClient(url)
    try:
        return ChatServer(ServerClient(url, key)) if await without_key.is_antwort() else None
    finally:
        await without_key.close()


async def own_server(flags: Sequence[str], report: Report) -> ChatServer:
    """Start a server with these flags of `antwort serve`. Raises `ChatError`."""
    own = OwnServer(flags)
    await own.start(report)
    return ChatServer(ServerClient(own.url, own.key), own)
