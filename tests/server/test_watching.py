"""What is planned for a client is broken off when it leaves; what does not have to wait is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from antwort.server.exchange import ClientGone, Exchange
from antwort.server.respond import DisconnectWatch, unless_gone


class Connection:
    """A connection of our own server. It may have been closed before anybody asked."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.gone: Callable[[], None] | None = None
        self._is_closed = is_closed

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        self.gone = on_disconnect
        if self._is_closed:
            on_disconnect()


def exchange_on(line: Connection) -> Exchange:
    scope = {"method": "POST", "path": "/", "headers": [], "antwort.connection": line}

    async def receive() -> dict[str, object]:
        raise AssertionError("our own server tells")

    async def send(_: object) -> None:
        raise AssertionError("nothing is said")

    return Exchange(scope, receive, send, linger=1.0)


async def test_what_does_not_wait_is_there_at_once() -> None:
    async def plan() -> str:
        return "a plan"

    assert await unless_gone(exchange_on(Connection()), plan()) == "a plan"


async def test_what_is_wrong_is_raised_as_it_is() -> None:
    async def plan(*, waits: bool) -> str:
        if waits:
            await asyncio.sleep(0)
        raise LookupError("no such model")

    for waits in (False, True):
        with pytest.raises(LookupError, match="no such model"):
            await unless_gone(exchange_on(Connection()), plan(waits=waits))


async def test_nothing_is_begun_for_a_client_that_has_gone() -> None:
    begun: list[str] = []

    async def plan() -> None:
        begun.append("a plan")

    with pytest.raises(ClientGone):
        await unless_gone(exchange_on(Connection(is_closed=True)), plan())
    assert begun == []


async def test_a_client_that_leaves_breaks_off_what_waits_and_it_cleans_up() -> None:
    line, done = Connection(), list[str]()

    async def plan() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    task = asyncio.create_task(unless_gone(exchange_on(line), plan()))
    for _ in range(3):
        await asyncio.sleep(0)
    assert line.gone is not None
    line.gone()
    with pytest.raises(ClientGone):
        await asyncio.wait_for(task, 1)
    assert done == ["cleaned up"]
    assert not task.cancelling()


async def test_one_who_is_cancelled_is_cancelled() -> None:
    done: list[str] = []

    async def plan() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            done.append("cleaned up")

    task = asyncio.create_task(unless_gone(exchange_on(Connection()), plan()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["cleaned up"]


async def test_a_client_that_left_between_the_plan_and_the_run_is_not_forgotten() -> None:
    class Run:
        has_left = False

        def leave(self) -> None:
            self.has_left = True

    async def plan() -> str:
        return "a plan"

    line, run = Connection(), Run()
    watch = DisconnectWatch(exchange_on(line))
    assert await watch.unless_gone(plan()) == "a plan"
    assert line.gone is not None
    line.gone()
    watch.follow(run)  # type: ignore[arg-type] # all that is told to it
    assert run.has_left
