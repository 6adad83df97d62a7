"""Changes of a list: each is followed, soon, and not more often than may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from jumping_time import jumping_time
from session_kit import STREAM, TOOL, Asked, KitPool, Puppet, Send, event, pooled, puppet, result, session_with, until

CHANGED = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


@asynccontextmanager
async def announcing() -> AsyncGenerator[tuple[Puppet, KitPool, Callable[[], Awaitable[None]]], None]:
    """A server with a list, and what has it announce a change."""
    streams: list[Send] = []

    async def stream(asked: Asked, send: Send) -> None:
        await send(STREAM)
        streams.append(send)
        await asyncio.Event().wait()

    async with puppet(GET=stream) as server, pooled() as pool:

        async def announce() -> None:
            await until(lambda: len(streams) == server.sessions)
            await streams[-1](CHANGED)

        yield server, pool, announce


@jumping_time
async def test_a_change_soon_after_a_list_is_followed_when_its_time_has_come() -> None:
    async with announcing() as (server, pool, announce):
        await pool.get(server.spec).tools()
        await asyncio.sleep(0.3)
        await announce()
        await announce()
        await asyncio.sleep(0.6)
        assert len(server.seen("tools/list")) == 1
        await asyncio.sleep(0.2)
        assert len(server.seen("tools/list")) == 2
        await asyncio.sleep(10)
        assert len(server.seen("tools/list")) == 2


@jumping_time
async def test_a_change_while_the_list_is_asked_for_is_followed_by_another() -> None:
    async with announcing() as (server, pool, announce):
        go_on = asyncio.Event()

        async def slow(asked: Asked, send: Send) -> None:
            await go_on.wait()
            await send(result(asked, {"tools": [TOOL]}))

        server.acts["tools/list"] = slow
        listing = asyncio.create_task(pool.get(server.spec).tools())
        await server.until("tools/list")
        await announce()
        await asyncio.sleep(2)
        assert len(server.seen("tools/list")) == 1  # it has not come yet
        go_on.set()
        await listing
        await asyncio.sleep(0.01)
        assert len(server.seen("tools/list")) == 2


@jumping_time
async def test_a_change_long_after_the_last_list_is_followed_at_once() -> None:
    async with announcing() as (server, pool, announce):
        await pool.get(server.spec).tools()
        await asyncio.sleep(5)
        await announce()
        await asyncio.sleep(0.01)
        assert len(server.seen("tools/list")) == 2


@jumping_time
async def test_a_list_that_is_asked_for_over_a_new_connection_is_asked_for_once() -> None:
    async with announcing() as (server, pool, _):
        await pool.get(server.spec).tools()
        session = pool.session(server.spec)
        await session.close()
        await session.refresh()
        await asyncio.sleep(10)
        assert (server.sessions, len(server.seen("tools/list"))) == (2, 2)


@jumping_time
async def test_what_is_left_asks_for_nothing() -> None:
    async with announcing() as (server, pool, announce):
        await pool.get(server.spec).tools()
        await announce()
        await asyncio.sleep(0.3)
        await pool.session(server.spec).close()
        await asyncio.sleep(10)
        assert len(server.seen("tools/list")) == 1


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

    async with puppet(GET=stream, tools_list=listed) as server, session_with(server.spec) as session:
        await session.tools()
        say = await opened
        for name in "abc":
            tools.append({**TOOL, "name": name})
            await say(CHANGED)
        await until(lambda: sizes[-1] == 4)
