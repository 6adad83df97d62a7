"""MCP servers for tests: in a process of their own, to be killed and started again."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from antwort.testing.mcp.record import Entry, What, read_record

if TYPE_CHECKING:
    from antwort.testing.mcp import Served, TryServer

PATIENCE = 30.0
COMMAND = (sys.executable, "-m", "antwort.testing.mcp")
STDIO = (*COMMAND, "--transport", "stdio")


class McpProcess:
    """A server over HTTP. It keeps its port when it is started again, and its record goes on in the same file."""

    def __init__(self, folder: Path, *arguments: str, path: str = "mcp") -> None:
        self.port = 0
        self.file = folder / "record.jsonl"
        self._arguments, self._path = arguments, path
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self._path}"

    @property
    def record(self) -> list[Entry]:
        return read_record(self.file)

    def count(self, what: What, tool: str | None = None) -> int:
        return sum(entry.what == what and (tool is None or entry.tool == tool) for entry in self.record)

    async def start(self) -> Self:
        transport = "sse" if self._path == "sse" else "http"
        self._process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--transport", transport, "--port", str(self.port), "--record", str(self.file)),
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            greeting = (await self._process.stdout.readline()).decode()
        found = re.search(r":(\d+)/", greeting)
        assert found, f"the server did not start: {greeting!r}"
        self.port = int(found[1])
        return self

    async def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, if it has not ended by itself."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self.ended()

    async def ended(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(PATIENCE):
            await self._process.communicate()

    async def until_seen(self, what: What, tool: str | None = None, times: int = 1) -> None:
        """Wait for an entry in its record: a file has no event of its own, so it is read again."""
        await until_true(lambda: self.count(what, tool) >= times)


@asynccontextmanager
async def mcp_process(folder: Path, *arguments: str, path: str = "mcp") -> AsyncIterator[McpProcess]:
    server = await McpProcess(folder, *arguments, path=path).start()
    try:
        yield server
    finally:
        await server.kill()


async def until_true(claim: Callable[[], bool]) -> None:
    """Look again and again, for what another process makes true."""
    async with asyncio.timeout(PATIENCE):
        while not claim():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


@contextmanager
def served_beside(server: TryServer | None = None) -> Iterator[Served]:
    """The server in a thread and an event loop of its own, for those who bring their own loop."""
    from antwort.testing.mcp import served

    ready: Future[tuple[Served, Callable[[], object]]] = Future()

    async def serve() -> None:
        end, loop = asyncio.Event(), asyncio.get_running_loop()
        async with served(server) as running:
            ready.set_result((running, lambda: loop.call_soon_threadsafe(end.set)))
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    running, stop = ready.result(PATIENCE)
    try:
        yield running
    finally:
        stop()
        thread.join(PATIENCE)


def nobody_there() -> int:
    """A port on which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


def children(of: int) -> list[int]:
    """The processes that a process has started and not yet seen the end of."""
    found: list[int] = []
    for tasks in Path(f"/proc/{of}/task").glob("*/children"):
        found.extend(int(child) for child in tasks.read_text().split())
    return found
