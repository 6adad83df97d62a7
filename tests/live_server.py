"""`antwort serve` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PATIENCE = 30.0


class LiveServer:
    def __init__(self, process: asyncio.subprocess.Process, port: int, greeting: list[str]) -> None:
        self.process, self.port, self.greeting = process, port, greeting

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send the signal; the exit status and what was logged."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


async def start(*arguments: str, environment: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antwort", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )


async def run(*arguments: str) -> tuple[int, str, str]:
    """A command to its end: exit status, output, errors."""
    process = await start(*arguments)
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@asynccontextmanager
async def launched(*arguments: str, environment: dict[str, str] | None = None) -> AsyncIterator[LiveServer]:
    """A server that answers, on a free port; ended at the latest when the block is left."""
    process = await start("serve", "--port", "0", *arguments, environment=environment)
    try:
        greeting = await _greeting(process)
        found = re.search(r"listens on http://\S+?:(\d+)$", greeting[0])
        assert found, greeting
        yield LiveServer(process, int(found[1]), greeting)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _greeting(process: asyncio.subprocess.Process) -> list[str]:
    """What it says at its start; the last line says what to try."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not lines or not lines[-1].startswith("  try "):
            line = await process.stdout.readline()
            assert line, f"the server did not start: {(await process.stderr.read()).decode()}"
            lines.append(line.decode().rstrip("\n"))
    return lines
