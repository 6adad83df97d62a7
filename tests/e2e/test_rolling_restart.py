"""Three replicas on one PostgreSQL behind a balancer, replaced one after the other while clients are at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antwort.testing import check_frames
from chat_backend import Answer, ChatBackend, Says
from live_server import PATIENCE, LiveServer, launched
from raw_http import Body, Reply, connected
from round_robin import RoundRobin, round_robin

RESPONSES = "/v1/responses"
TEXT = "Hello out there"
CLIENTS = 3
"""Of each kind."""
PLACES = 2
"""For background responses, in each of the servers."""
SLOW = 3 * PLACES


class Backend(ChatBackend):
    """Of what is slow, nothing comes after the first piece as long as the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.slow = 0

    def shut(self) -> asyncio.Event:
        self.slow, self.gate = 0, asyncio.Event()
        return self.gate

    def answer(self, request: dict[str, Any]) -> Answer:
        is_slow = "slow" in str(request["messages"])
        self.slow += is_slow
        return Says(("Hello", " out", " there"), hold=self.gate if is_slow else None)


class Site:
    """What clients see, and what happens behind it."""

    def __init__(self, proxy: RoundRobin, backend: Backend, flags: tuple[str, ...], database: str) -> None:
        self.proxy, self.backend = proxy, backend
        self._flags, self._environment = flags, {"ANTWORT_DATABASE": database}
        self.servers: list[tuple[LiveServer, AsyncExitStack]] = []

    async def start(self) -> None:
        stack = AsyncExitStack()
        server = await stack.enter_async_context(launched(*self._flags, environment=self._environment))
        self.servers.append((server, stack))
        self.proxy.ports.append(server.port)

    async def replace_oldest(self) -> None:
        server, stack = self.servers.pop(0)
        async with stack:
            status, log = await server.stop()
        self.proxy.ports.remove(server.port)
        assert status == 0, log
        assert "Traceback" not in log
        await self.start()

    async def close(self) -> None:
        for _, stack in self.servers:
            await stack.aclose()

    async def ask(self, method: str, path: str, body: Body = None) -> Reply:
        """The answer, after as many tries as it takes. Whatever else than a reason to try again is wrong, and so is an
        answer that breaks off.
        """
        async with asyncio.timeout(PATIENCE):
            while (reply := await self._try(method, path, body)) is None or reply.status != 200:
                assert reply is None or (reply.status, "retry-after" in reply.headers) == (503, True), reply.body
        return reply

    async def _try(self, method: str, path: str, body: Body) -> Reply | None:
        """None where nobody answers."""
        async with connected(self.proxy.port) as wire:
            wire.send(method, path, body)
            try:
                reply = await wire.head()
            except (ConnectionError, asyncio.IncompleteReadError):
                return None
            return await wire.rest(reply)

    async def ended(self, name: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while (response := (await self.ask("GET", f"{RESPONSES}/{name}")).json())["status"] != "completed":
                assert response["status"] in ("queued", "in_progress"), response
        return dict(response)


@pytest.fixture
async def site(postgres_database: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with Backend() as backend, round_robin() as proxy:
        flags = ("--backend", backend.url, "--data", str(tmp_path), "--drain", "2", "--log-level", "warning")
        more = ("--set", f"background.at_once={PLACES}")
        site = Site(proxy, backend, (*flags, *more), postgres_database)
        try:
            for _ in range(3):
                await site.start()
            yield site
        finally:
            await site.close()


def asked(text: str, **fields: bool) -> dict[str, Any]:
    return {"model": "test-model", "input": text, **fields}


def said(response: dict[str, Any]) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


async def wait_for_answers(site: Site, is_over: asyncio.Event) -> int:
    """Whole and streamed, by turns; how many of each."""
    count = 0
    while not is_over.is_set():
        whole = (await site.ask("POST", RESPONSES, asked("whole"))).json()
        assert (whole["status"], said(whole)) == ("completed", TEXT)
        streamed = check_frames((await site.ask("POST", RESPONSES, asked("streamed", stream=True))).body)
        assert streamed.status == "completed"
        count += 1
    return count


async def come_back_for_answers(site: Site, is_over: asyncio.Event) -> int:
    count = 0
    while not is_over.is_set():
        later = (await site.ask("POST", RESPONSES, asked("later", background=True))).json()
        assert said(await site.ended(later["id"])) == TEXT
        count += 1
    return count


@pytest.mark.proves("TR-022")
async def test_replicas_are_replaced_under_load_and_no_run_is_lost_and_no_client_sees_more_than_a_reason_to_try_again(
    site: Site,
) -> None:
    is_over = asyncio.Event()
    clients = [
        asyncio.create_task(work(site, is_over))
        for work in (wait_for_answers, come_back_for_answers)
        for _ in range(CLIENTS)
    ]
    for _ in range(3):
        gate = site.backend.shut()
        slow = [(await site.ask("POST", RESPONSES, asked("slow", background=True))).json()["id"] for _ in range(SLOW)]
        await site.backend.until(lambda: site.backend.slow == SLOW)  # so that each server has its share of them
        await site.replace_oldest()
        await site.backend.until(lambda: site.backend.slow == SLOW + PLACES)  # what it had is made anew elsewhere
        gate.set()
        for name in slow:
            assert said(await site.ended(name)) == TEXT
    is_over.set()
    counts = await asyncio.gather(*clients)
    assert min(counts) >= 1
