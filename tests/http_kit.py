"""What the tests of the HTTP client share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from antwort.net.client import HttpClient, Pool
from antwort.net.connection import Timeouts
from replay_backend import Answer, Backend, whole

PATIENCE = 5.0
OK = whole(b'{"ok": true}')
CLOSED_UNANSWERED = Answer(framing="raw", ending="cut")


@asynccontextmanager
async def client_of(
    backend: Backend, *, timeouts: Timeouts | None = None, pool: Pool | None = None
) -> AsyncGenerator[HttpClient, None]:
    client = HttpClient(backend.url.removesuffix("/v1"), timeouts=timeouts, pool=pool)
    try:
        yield client
    finally:
        await client.close()
        assert client.open_connections == client.idle_connections == 0


async def fetched(client: HttpClient, body: bytes | None = b"{}") -> bytes:
    async with await client.request("POST", "/x", body) as reply:
        return await reply.read(10**8)


async def until(claim: Callable[[], bool]) -> None:
    """Let the event loop turn until `claim` holds."""
    async with asyncio.timeout(PATIENCE):
        while not claim():  # noqa: ASYNC110 - what is claimed sets no event
            await asyncio.sleep(0)


async def gone(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        await backend.left.wait()


def others() -> int:
    """Tasks of this test besides itself and the server's."""
    return sum("accept" not in repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()})
