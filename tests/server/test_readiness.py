"""One look for all who ask whether the server is ready."""

from __future__ import annotations

import asyncio

import pytest

from antwort.engine.engine import Engine
from antwort.errors import StoreFault
from antwort.server.exchange import REQUEST_ID
from antwort.server.readiness import SHARED, Readiness, Verdict
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from serving import serving, until


class Looked:
    """A look that takes as long as the test says."""

    def __init__(self) -> None:
        self.count, self.now, self.may_end = 0, 100.0, asyncio.Event()

    async def look(self) -> Verdict:
        self.count += 1
        await self.may_end.wait()
        return {"store": f"look {self.count}"}

    def clock(self) -> float:
        return self.now


async def test_all_who_ask_while_it_is_found_out_are_told_the_same() -> None:
    looked = Looked()
    readiness = Readiness(looked.look, looked.clock)
    asking = [asyncio.create_task(readiness.verdict()) for _ in range(100)]
    await until(lambda: bool(looked.count))
    asking[0].cancel()
    looked.may_end.set()
    assert await asyncio.gather(*asking[1:]) == [{"store": "look 1"}] * 99


async def test_a_look_is_made_for_nobodys_request() -> None:
    seen: list[str] = []

    async def look() -> Verdict:
        seen.append(REQUEST_ID.get())
        return {}

    REQUEST_ID.set("r1")
    await Readiness(look).verdict()
    assert seen == [""]


async def test_a_verdict_holds_for_a_moment_and_no_longer() -> None:
    looked = Looked()
    looked.may_end.set()
    readiness = Readiness(looked.look, looked.clock)
    told = []
    for pause in (0, SHARED / 2, SHARED / 2, 0):
        looked.now += pause
        told.append((await readiness.verdict())["store"])
    assert told == ["look 1", "look 1", "look 2", "look 2"]


async def test_a_look_that_goes_wrong_is_no_verdict() -> None:
    looked = Looked()

    async def broken() -> Verdict:
        looked.count += 1
        raise ValueError("broken")

    readiness = Readiness(broken, looked.clock)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await readiness.verdict()
    assert looked.count == 2


async def test_strangers_who_ask_again_and_again_cost_one_look() -> None:
    class Store(MemoryStore):
        looks = 0

        async def check(self) -> None:
            self.looks += 1
            raise StoreFault("The store is full.")

    store = Store()
    async with serving(Engine(ScriptedProvider(), store=store)) as server:
        replies = [await server.ask("GET", "/readyz") for _ in range(20)]
    assert {reply.status for reply in replies} == {503}
    assert store.looks < 20
