"""Changes of a list: each is followed, soon, and not more often than may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from antwort.tools.mcp.session import RefreshTimer
from session_kit import STREAM, TOOL, Asked, Send, event, puppet, result, session_with, until


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0
        self._loop = asyncio.new_event_loop()
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, callback, (), self._loop)
        self._timers.append((self.now + delay, handle, callback))
        return handle

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, handle, callback in due:
            if not handle.cancelled():
                callback()

    def close(self) -> None:
        self._loop.close()


class Listed:
    def __init__(self) -> None:
        self.clock = Clock()
        self.asked = 0
        self.changes = RefreshTimer(self._ask, 1.0, self.clock)

    def _ask(self) -> None:
        self.asked += 1
        self.changes.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clock.close()


def test_a_change_soon_after_a_list_is_followed_when_its_time_has_come() -> None:
    with Listed() as listed:
        listed.changes.begin()
        listed.changes.end()
        listed.clock.go_on(0.3)
        listed.changes.hear()
        listed.changes.hear()
        listed.clock.go_on(0.6)
        assert listed.asked == 0
        listed.clock.go_on(0.2)
        assert listed.asked == 1
        listed.changes.end()
        listed.clock.go_on(10)
        assert listed.asked == 1


def test_a_change_while_the_list_is_asked_for_is_followed_by_another() -> None:
    with Listed() as listed:
        listed.changes.begin()
        listed.clock.go_on(5)
        listed.changes.hear()
        listed.clock.go_on(5)
        assert listed.asked == 0  # it has not come yet
        listed.changes.end()
        listed.clock.go_on(0)
        assert listed.asked == 1


def test_a_change_long_after_the_last_list_is_followed_at_once() -> None:
    with Listed() as listed:
        listed.changes.begin()
        listed.changes.end()
        listed.clock.go_on(5)
        listed.changes.hear()
        listed.clock.go_on(0)
        assert listed.asked == 1


def test_a_change_that_will_be_in_the_list_anyway_is_not_followed() -> None:
    with Listed() as listed:
        listed.changes.begin()
        listed.changes.hear()
        listed.changes.cover()
        listed.changes.end()
        listed.clock.go_on(10)
        assert listed.asked == 0


def test_what_is_left_asks_for_nothing() -> None:
    with Listed() as listed:
        listed.changes.begin()
        listed.changes.end()
        listed.changes.hear()
        listed.changes.stop()
        listed.clock.go_on(10)
        assert listed.asked == 0


async def test_changes_in_a_row_are_all_in_a_list_that_nobody_has_asked_for() -> None:
    tools, sizes = [TOOL], []
    opened: asyncio.Future[Send] = asyncio.get_running_loop().create_future()

    async def stream(asked: Asked, send: Send) -> None:
        await send(STREAM)
        opened.set_result(send)
        await asyncio.Event().wait()

    async def listed(asked: Asked, send: Send) -> None:
        sizes.append(len(tools))
        await send(result(asked, {"tools": list(tools)}))

    changed = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    async with puppet(GET=stream, tools_list=listed) as server, session_with(server.spec) as session:
        await session.tools()
        say = await opened
        for name in "abc":
            tools.append({**TOOL, "name": name})
            await say(changed)
        await until(lambda: sizes[-1] == 4)
