"""All sessions together: one for each server and name, bounded, and nothing left of them at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from antwort.testing.mcp import served
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from mcp_kit import STDIO, mcp_process
from session_kit import PATIENCE, hangs, pooled, puppet, spec_of, until


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return set(map(int, listed.split()))


async def test_those_who_reach_the_same_server_in_the_same_name_share_a_session() -> None:
    async with served() as at, pooled() as pool:
        spec = spec_of(at)
        await asyncio.gather(*(pool.get(spec).tools() for _ in range(5)))
        await pool.get(replace(spec)).call("echo", '{"text": "hi"}', key="k")
        assert at.server.record.count("opened") == 1
        assert len(pool) == 1


@pytest.mark.parametrize(
    "other",
    [{"owner": ("tenant", "ann")}, {"headers": {"Authorization": "Bearer b"}}, {"owner": ("tenant", "bob")}],
)
async def test_another_name_or_other_credentials_mean_another_session(other: dict[str, object]) -> None:
    async with served() as at, pooled() as pool:
        spec = spec_of(at)
        for each in (spec, replace(spec, **other)):
            await pool.get(each).tools()
        assert at.server.record.count("opened") == 2


async def test_beyond_the_limit_the_session_that_was_not_used_for_longest_makes_room() -> None:
    async with puppet() as server, pooled(limit=2) as pool:
        specs = [replace(server.spec, label=label, owner=("tenant", "ann")) for label in "abc"]
        for spec in specs:
            await pool.get(spec).tools()
        assert len(pool) == 2
        await server.until("DELETE")
        assert server.seen("DELETE")[0].headers["mcp-session-id"] == "s1"
        await pool.get(specs[0]).tools()  # made again
        assert server.sessions == 4


async def test_a_session_in_use_never_makes_room() -> None:
    async with served() as at, pooled(limit=1) as pool:
        spec = replace(spec_of(at), owner=("tenant", "ann"))
        holding = asyncio.create_task(pool.get(spec).call("hold", '{"name": "x"}', key="k"))
        await at.server.record.until_seen("called", "hold")
        for label in "ab":
            await pool.get(replace(spec, label=label)).tools()
        assert pool.open_sessions == len(pool) == 1
        at.server.latch("x").set()
        assert not (await holding).is_error


async def test_after_many_at_once_no_more_are_kept_than_may_be() -> None:
    async with served() as at, pooled(limit=3) as pool:
        sessions = [pool.get(replace(spec_of(at), owner=("tenant", f"user {i}"))) for i in range(10)]
        holding = [asyncio.create_task(session.call("hold", '{"name": "x"}', key="k")) for session in sessions]
        await at.server.record.until_seen("called", "hold", 10)
        assert len(pool) == 10
        at.server.latch("x").set()
        await asyncio.gather(*holding)
        assert len(pool) == 3


async def test_an_idle_session_is_left_and_an_operators_list_is_kept() -> None:
    async with puppet() as server, pooled(idle=0.01) as pool:
        session = pool.get(server.spec)
        listed = await session.tools()
        await server.until("DELETE")
        await until(lambda: pool.open_sessions == 0)
        assert await session.tools() is listed
        assert len(server.seen("tools/list")) == 1
        await session.call("do", "{}", key="k")
        assert server.sessions == 2


async def test_whoever_asks_while_an_idle_session_is_left_gets_a_fresh_one() -> None:
    async with puppet(DELETE=hangs) as server, pooled(idle=0.01) as pool:
        session = pool.get(server.spec)
        await session.call("do", "{}", key="k")
        await server.until("DELETE")
        assert not (await session.call("do", "{}", key="k")).is_error
        assert server.sessions == 2


async def test_what_a_request_has_brought_is_forgotten_with_its_idle_session() -> None:
    async with puppet() as server, pooled(idle=0.01) as pool:
        await pool.get(replace(server.spec, owner=("tenant", "ann"))).tools()
        await until(lambda: len(pool) == 0)
        await server.until("DELETE")


async def test_a_closed_pool_says_so_at_once() -> None:
    async with puppet() as server, pooled() as pool:
        session = pool.get(server.spec)
        await pool.close()
        with pytest.raises(ServerUnavailable, match="being closed"):
            await session.tools()
        assert server.asked == []


async def test_closing_leaves_no_task_no_process_and_no_socket(tmp_path: Path) -> None:
    (other := tmp_path / "sse").mkdir()
    async with mcp_process(tmp_path) as web, mcp_process(other, path="sse") as older:
        before = (len(asyncio.all_tasks()), open_files(), children())
        async with pooled() as pool:
            for spec in (
                ServerSpec(label="web", url=web.url),
                ServerSpec(label="sse", url=older.url, transport="sse"),
                ServerSpec(label="program", command=STDIO, transport="stdio", connect=PATIENCE),
            ):
                assert len((await pool.get(spec).tools()).tools) > 10
                assert not (await pool.get(spec).call("echo", '{"text": "hi"}', key="k")).is_error
            assert pool.open_sessions == 3
            assert len(children()) == len(before[2]) + 1
        await until(lambda: (len(asyncio.all_tasks()), open_files(), children()) == before)


async def test_closing_does_not_wait_for_a_server_that_hangs() -> None:
    async def hang(asked: object, send: object) -> None:
        await asyncio.Event().wait()

    async with puppet(tools_call=hang, DELETE=hang) as server, pooled() as pool:
        calling = asyncio.create_task(pool.get(server.spec).call("do", "{}", key="k"))
        await server.until("tools/call")
        await pool.close()
        with pytest.raises(ServerUnavailable):
            await calling


@pytest.mark.parametrize("way", ["newest", "sse"])
async def test_nothing_of_what_is_said_to_a_server_comes_into_the_log(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with served() as at, pooled() as pool:
        session = pool.get(spec_of(at, way))
        await session.tools()
        await session.call("echo", '{"text": "a secret"}', key="k")
    assert not any("secret" in record.message or str(at.port) in record.message for record in caplog.records)


def test_nothing_of_the_client_needs_the_sdk() -> None:
    names = {"mcp", "mcp_types", "anyio", "httpx2", "pydantic"}
    script = f"import sys, antwort.tools.mcp.pool, antwort.tools.mcp.executor; print({names} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
