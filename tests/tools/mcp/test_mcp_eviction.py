"""Which sessions make room: nobody's but those of strangers, and of them those who ask for more first."""

from __future__ import annotations

import asyncio
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.conversion import MAX_UNTRUSTED_LIST_BYTES
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.pool import EvictionLimits, choose_evicted
from antwort.tools.mcp.servers import McpPolicy
from antwort.tools.mcp.session import McpSession
from session_kit import STREAM, TOOL, Asked, Send, event, hangs, pooled, puppet, says, tasks_left, until

ADA, BOB, CY = ("acme", "ada"), ("acme", "bob"), ("acme", "cy")
NEAR = AddressPolicy(loopback=True)


def guests(*said: tuple[tuple[str, str], int] | tuple[tuple[str, str], int, bool]) -> list[McpSession]:
    """Sessions of these owners, with lists of so many bytes, and whether they are idle."""
    made = []
    for owner, size, *rest in said:
        session = McpSession(ServerSpec(label="x", owner=owner, is_untrusted=True))
        session.brought_bytes, session.uses = size, int(rest == [False])
        made.append(session)
    return made


def left(there: list[McpSession], newcomer: tuple[str, str], **room: int) -> list[int]:
    return [there.index(session) for session in choose_evicted(there, newcomer, EvictionLimits(**room))]


def test_whoever_asks_for_more_gives_up_their_own_first() -> None:
    there = guests((BOB, 0), (ADA, 0), (BOB, 0), (ADA, 0))
    assert left(there, ADA, sessions=3) == [1]
    assert left(there, BOB, sessions=2) == [0, 2]


def test_whoever_has_none_of_their_own_takes_the_place_of_those_who_have_most() -> None:
    there = guests((BOB, 0), (ADA, 0), (ADA, 0), (CY, 0, False))
    assert left(there, CY, sessions=3) == [1]


def test_one_in_use_never_makes_room() -> None:
    assert left(
        guests((ADA, 9, False), (BOB, 9, False), (ADA, 9)), ADA, sessions=1, list_bytes=1, list_bytes_each=1
    ) == [2]


def test_an_identitys_lists_take_so_much_and_no_more() -> None:
    there = guests((ADA, 3), (BOB, 9), (ADA, 0), (ADA, 3), (ADA, 3))
    assert left(there, ADA, list_bytes_each=6) == [0], "what takes nothing helps nobody by leaving"
    assert left(there, CY, list_bytes_each=6) == [], "what others have is looked at when they come"


def test_all_lists_together_take_so_much_and_no_more() -> None:
    there = guests((BOB, 2), (ADA, 3), (ADA, 3), (CY, 2))
    assert left(there, CY, list_bytes=9) == [3]
    assert left(there[:3], CY, list_bytes=5) == [1]


OWNERS = st.sampled_from([ADA, BOB, CY])


@given(
    st.lists(st.tuples(OWNERS, st.integers(0, 9), st.booleans()), max_size=12),
    OWNERS,
    st.integers(1, 8),
    st.integers(0, 30),
)
def test_afterwards_there_is_room_or_all_are_in_use(
    said: list[tuple[tuple[str, str], int, bool]], newcomer: tuple[str, str], sessions: int, lists: int
) -> None:
    there = guests(*said)
    gone = choose_evicted(there, newcomer, EvictionLimits(sessions=sessions, list_bytes=lists))
    kept = [each for each in there if each not in gone]
    assert not any(each.uses for each in gone)
    assert len(kept) <= sessions or all(each.uses for each in kept)
    assert sum(each.brought_bytes for each in kept) <= lists or all(
        each.uses or not each.brought_bytes for each in kept
    )


# ---- in the pool ----


def strangers(spec: ServerSpec, owner: tuple[str, str] = ADA, **fields: object) -> ServerSpec:
    return replace(spec, owner=owner, is_untrusted=True, **fields)


async def test_strangers_never_push_out_what_is_the_operators() -> None:
    async with puppet() as server, pooled(limit=2) as pool:
        own = [replace(server.spec, label=f"own-{at}") for at in range(3)]
        lists = [await pool.get(spec).tools() for spec in own]
        for at in range(5):
            await pool.get(replace(server.spec, label=f"s{at}", owner=ADA)).tools()
        await server.until("DELETE", 3)
        assert len(pool) == 5
        assert [await pool.get(spec).tools() for spec in own] == lists
        assert not {"s1", "s2", "s3"} & {asked.headers["mcp-session-id"] for asked in server.seen("DELETE")}


async def test_one_who_opens_many_sessions_closes_their_own() -> None:
    async with puppet() as server, pooled(limit=3) as pool:
        await pool.get(replace(server.spec, owner=BOB)).tools()
        for at in range(6):
            await pool.get(replace(server.spec, label=f"s{at}", owner=ADA)).tools()
        await server.until("DELETE", 4)
        assert "s1" not in {asked.headers["mcp-session-id"] for asked in server.seen("DELETE")}


def heavy(size: int) -> dict[str, object]:
    return {**TOOL, "description": "x" * size}


async def test_a_strangers_list_is_cut_where_an_operators_is_not() -> None:
    tools = [{**heavy(MAX_UNTRUSTED_LIST_BYTES // 4), "name": f"t{at}"} for at in range(8)]
    async with puppet(tools_list=says({"tools": tools})) as server, pooled(reach=NEAR) as pool:
        assert len((await pool.get(server.spec).tools()).tools) == 8
        assert len((await pool.get(strangers(server.spec)).tools()).tools) == 3


async def test_the_lists_of_one_who_names_many_servers_do_not_add_up() -> None:
    listed = {"tools": [heavy(MAX_UNTRUSTED_LIST_BYTES - 1000)]}
    async with puppet(tools_list=says(listed)) as server, pooled(reach=NEAR) as pool:
        for at in range(9):
            await pool.get(strangers(server.spec, label=f"s{at}")).tools()
        assert len(pool) == 4


async def test_lists_that_grow_behind_the_back_of_who_named_their_servers_do_not_add_up_either() -> None:
    opened: list[Send] = []

    async def stream(asked: Asked, send: Send) -> None:
        await send(STREAM)
        opened.append(send)
        await asyncio.Event().wait()

    async with puppet(GET=stream) as server, pooled(reach=NEAR) as pool:
        specs = [strangers(server.spec, label=f"s{at}") for at in range(9)]
        for spec in specs:
            await pool.get(spec).tools()
        await until(lambda: len(opened) == 9)
        assert len(pool) == 9
        server.acts["tools/list"] = says({"tools": [heavy(MAX_UNTRUSTED_LIST_BYTES - 1000)]})
        for say in opened[1:]:
            await say(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        await server.until("tools/list", 17)
        while len(pool) > 5:
            await pool.get(specs[0]).tools()
            await asyncio.sleep(0)


async def test_what_a_stranger_says_of_itself_is_not_endless() -> None:
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    act = says({**greeting, "instructions": "x" * 300_000})
    async with puppet(initialize=act) as server, pooled(reach=NEAR) as pool:
        assert (await pool.get(server.spec).tools()).tools
        with pytest.raises(ServerUnavailable, match="too long"):
            await pool.get(strangers(server.spec)).tools()


async def test_a_list_of_a_strangers_that_nobody_waits_for_any_more_is_broken_off() -> None:
    async with puppet(tools_list=hangs) as server, pooled(reach=NEAR) as pool:
        session = pool.get(strangers(server.spec))
        first, second = (asyncio.create_task(session.tools()) for _ in range(2))
        await server.until("tools/list")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert "mcp list" in tasks_left(), "one still waits"
        second.cancel()
        await until(lambda: "mcp list" not in tasks_left())
        server.acts["tools/list"] = says({"tools": [TOOL]})
        assert len((await session.tools()).tools) == 1


async def test_what_the_pool_has_forgotten_nobody_else_keeps() -> None:
    policy = McpPolicy(declared=True, reach=NEAR, sessions=2)
    async with puppet() as server:
        executor, offered = McpExecutor(policy=policy), list[weakref.ref[object]]()
        for at in range(6):
            declared = McpTool(server_label=f"s{at}", server_url=server.spec.url)
            for tool in await executor.discover(declared, Identity("acme", "ada")) or ():
                offered.append(weakref.ref(tool))
            del tool
        await until(lambda: [made() is not None for made in offered] == [False] * 4 + [True] * 2)
        await executor.close()
