"""Clients on WebSockets in a process of its own, to be stopped or killed.

python tests/socket_crowd.py PORT CONNECTIONS KIND

opens so many connections. KIND is `talking`: on each a turn is asked for, and the process says `ready` and the ids of
its responses when each has said its first words; or `idle`: each has had a turn that came to its end. Then it waits to
be ended. Every other response is not stored; its id stands behind a `-`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 30.0
_ENOUGH = {"talking": "response.output_text.delta", "idle": "response.completed"}


@dataclass
class Crowd:
    """The process, seen from the test."""

    pid: int
    stored: list[str]
    unstored: list[str]
    is_killed: bool = False

    def kill(self) -> None:
        """Not by asyncio, which would look whether it is dead yet, and then no longer be told."""
        if not self.is_killed:
            os.kill(self.pid, signal.SIGKILL)
        self.is_killed = True

    def freeze(self) -> None:
        """The connections stay open, and nobody is there."""
        os.kill(self.pid, signal.SIGSTOP)


@asynccontextmanager
async def crowd(port: int, connections: int, kind: str) -> AsyncIterator[Crowd]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__)), str(port), str(connections), kind),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Crowd(process.pid, [], [])
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            word, *ids = (await process.stdout.readline()).decode().split()
        assert word == "ready"
        made.stored += [each for each in ids if not each.startswith("-")]
        made.unstored += [each.removeprefix("-") for each in ids if each.startswith("-")]
        yield made
    finally:
        made.kill()
        await process.communicate()


# ---- the process itself ----


async def _told(port: int, number: int, kind: str) -> tuple[object, str]:
    """The connection, which must not be forgotten, and the id of its response."""
    from websockets.asyncio.client import connect

    wire = await connect(f"ws://127.0.0.1:{port}/v1/responses", proxy=None)
    is_stored = number % 2 == 0
    body = {"type": "response.create", "model": "test-model", "input": "Hello", "store": is_stored}
    await wire.send(json.dumps(body))
    made = ""
    while True:
        event = json.loads(await wire.recv())
        if event["type"] == "response.created":
            made = event["response"]["id"]
        if event["type"] == _ENOUGH[kind]:
            return wire, made if is_stored else f"-{made}"


async def _main(port: int, connections: int, kind: str) -> None:
    told = await asyncio.gather(*(_told(port, number, kind) for number in range(connections)))
    sys.stdout.write(f"ready {' '.join(made for _, made in told)}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
