"""Changes of a list: each is followed, soon, and not more often than may be."""

from __future__ import annotations

import asyncio

from antwort.tools.mcp.session import RefreshTimer
from jumping_time import jumping_time
from session_kit import STREAM, TOOL, Asked, Send, event, puppet, result, session_with, until


class Listed:
    def __init__(self) -> None:
        self.asked = 0
        self.timer = RefreshTimer(self._ask, 1.0)

    def _ask(self) -> None:
        self.asked += 1
        self.timer.begin()


@jumping_time
async def test_a_change_soon_after_a_list_is_followed_when_its_time_has_come() -> None:
    listed = Listed()
    listed.timer.begin()
    listed.timer.end()
    await asyncio.sleep(0.3)
    listed.timer.mark_changed()
    listed.timer.mark_changed()
    await asyncio.sleep(0.6)
    assert listed.asked == 0
    await asyncio.sleep(0.2)
    assert listed.asked == 1
    listed.timer.end()
    await asyncio.sleep(10)
    assert listed.asked == 1


@jumping_time
async def test_a_change_while_the_list_is_asked_for_is_followed_by_another() -> None:
    listed = Listed()
    listed.timer.begin()
    await asyncio.sleep(5)
    listed.timer.mark_changed()
    await asyncio.sleep(5)
    assert listed.asked == 0  # it has not come yet
    listed.timer.end()
    await asyncio.sleep(0.01)
    assert listed.asked == 1


@jumping_time
async def test_a_change_long_after_the_last_list_is_followed_at_once() -> None:
    listed = Listed()
    listed.timer.begin()
    listed.timer.end()
    await asyncio.sleep(5)
    listed.timer.mark_changed()
    await asyncio.sleep(0.01)
    assert listed.asked == 1


@jumping_time
async def test_a_change_that_will_be_in_the_list_anyway_is_not_followed() -> None:
    listed = Listed()
    listed.timer.begin()
    listed.timer.mark_changed()
    listed.timer.mark_current()
    listed.timer.end()
    await asyncio.sleep(10)
    assert listed.asked == 0


@jumping_time
async def test_what_is_left_asks_for_nothing() -> None:
    listed = Listed()
    listed.timer.begin()
    listed.timer.end()
    listed.timer.mark_changed()
    listed.timer.stop()
    await asyncio.sleep(10)
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
