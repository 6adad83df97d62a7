"""Streams that are read again: how much is held for those who read slowly, and how many there may be."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from antwort.api.events import ResponseCreated
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import TextDelta
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.protocol import HttpProtocol
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, check_frames, say
from antwort.testing.frames import read_frames
from antwort.tools.base import ToolCall, ToolContext
from key_kit import SECRET, a_key, bearing
from raw_http import Reply, connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until, until_quiet

ANN = bearing(SECRET)
CONTINUE = {**ANN, "Antwort-On-Disconnect": "continue"}
BLOB = 100_000
"""Characters of a result."""


def limited(*answers: Answer, **limits: int) -> Transport:
    ring = Keyring([a_key(limits=KeyLimits(**limits))])
    engine = Engine(ScriptedProvider(*answers), store=MemoryStore())
    return Transport(engine, identify=ring.identify, quotas=ring.quotas)


def blobs(count: int, *rest: Answer) -> Engine:
    """An engine whose next response has so many results of `BLOB` characters."""

    async def blob(asked: ToolCall, _: ToolContext) -> str:
        return json.loads(asked.arguments)["mark"] * BLOB  # type: ignore[no-any-return]

    calls = answer(*[call("blob", mark=chr(97 + at % 26), at=at) for at in range(count)])
    provider = ScriptedProvider(calls, *(rest or (answer(say("Done")),)))
    return Engine(provider, executors=[ToolServerFake("store", blob=blob)], settings=EngineSettings())


BLOBS: dict[str, Any] = {**STREAMED, "tools": [{"type": "mcp", "server_label": "store"}]}


def unsent(server: Serving) -> int:
    """Bytes that are written and not yet sent, on any connection."""
    connections = [each for each in server.server.server_state.connections if isinstance(each, HttpProtocol)]
    return max([each.transport.get_write_buffer_size() for each in connections], default=0)


def stream_of(response_id: str, after: int | None = None) -> str:
    return f"{RESPONSES}/{response_id}?stream=true" + ("" if after is None else f"&starting_after={after}")


def response_of(reply: Reply) -> str:
    return next(event.response.id for _, event in read_frames(reply.body) if isinstance(event, ResponseCreated))


# ---- how much is held for one ----


@pytest.mark.parametrize("background", [False, True], ids=["packed", "in records"])
async def test_a_follower_that_reads_nothing_is_written_no_more_than_it_takes(background: bool) -> None:
    """Neither the log nor the last event, which repeats all of it."""
    engine = blobs(40)
    async with serving(engine) as server, AsyncExitStack() as stack:
        made = await server.ask("POST", RESPONSES, {**BLOBS, "background": background})
        response_id, sent = response_of(made), made.body
        for after in (None, sent.count(b"event: ") - 2):
            wire = await stack.enter_async_context(connected(server.port, buffer=4096))
            wire.send("GET", stream_of(response_id, after))
            await wire.head()
            assert 0 < await until_quiet(lambda: unsent(server), 200) < 2 * BLOB
            wire.vanish()
        assert (await server.ask("GET", stream_of(response_id))).body == sent
    assert len(check_frames(sent).output) == 42


async def test_a_follower_of_a_run_under_way_that_reads_nothing_is_written_no_more_than_it_takes() -> None:
    hold = asyncio.Event()
    engine = blobs(40, answer(say("Done"), hold))
    async with serving(engine) as server, connected(server.port) as first:
        first.send("POST", RESPONSES, BLOBS)
        await until(lambda: any(run.summary().turns == 1 for run in engine.live_runs.values()))
        (response_id,) = engine.live_runs
        async with connected(server.port, buffer=4096) as wire:
            wire.send("GET", stream_of(response_id))
            await wire.head()
            follower = [each for each in server.server.server_state.connections if isinstance(each, HttpProtocol)][-1]
            await until(lambda: follower.is_behind)
            assert await until_quiet(follower.transport.get_write_buffer_size, 200) < 2 * BLOB
            wire.vanish()
        hold.set()
        await first.reply()


async def test_a_slow_reader_of_large_events_holds_the_backend_back() -> None:
    """Long before there are as many events as are kept for it."""
    taken = 0

    class Counting(ScriptedProvider):
        async def infer(self, request: Any) -> Any:
            nonlocal taken
            async for batch in super().infer(request):
                taken += 1
                yield batch

    provider = Counting(answer([TextDelta("x" * BLOB)] * 100))
    async with serving(Engine(provider, store=MemoryStore())) as server, connected(server.port, buffer=4096) as wire:
        wire.send("POST", RESPONSES, {**STREAMED, "store": False})
        assert await until_quiet(lambda: taken) < 50
        wire.vanish()
        await until(lambda: not provider.under_way)


# ---- how many there may be ----


async def test_followers_count_against_the_limit_of_their_key() -> None:
    hold = asyncio.Event()
    app = limited(answer(say("Hello"), hold), concurrent=1)
    async with serving(app._engine, app) as server, connected(server.port) as asked, connected(server.port) as first:
        asked.send("POST", RESPONSES, STREAMED, ANN)
        await asked.head()
        (response_id,) = server.engine.live_runs
        first.send("GET", stream_of(response_id), headers=ANN)
        await first.head()
        over = await server.ask("GET", stream_of(response_id), headers=ANN)
        assert (over.status, over.error["code"], over.headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
        assert over.error["message"].startswith("This API key may use 1 stream read again at once.")
        assert (await server.ask("GET", f"{RESPONSES}/{response_id}", headers=ANN)).status == 200
        first.vanish()
        await until(lambda: app.streams == 1)
        hold.set()
        again = await server.ask("GET", stream_of(response_id), headers=ANN)
        assert check_frames(again.body).output_text == "Hello"


async def test_a_key_can_have_another_limit_for_followers() -> None:
    hold = asyncio.Event()
    app = limited(answer(say("Hello"), hold), concurrent=1, followers=3)
    async with serving(app._engine, app) as server, AsyncExitStack() as stack:
        statuses: list[int] = []
        asked = await stack.enter_async_context(connected(server.port))
        asked.send("POST", RESPONSES, STREAMED, ANN)
        await asked.head()
        (response_id,) = server.engine.live_runs
        for _ in range(4):
            wire = await stack.enter_async_context(connected(server.port))
            wire.send("GET", stream_of(response_id), headers=ANN)
            statuses.append((await wire.head()).status)
        hold.set()
    assert statuses == [200, 200, 200, 429]


async def test_the_server_has_a_limit_for_all_followers() -> None:
    hold = asyncio.Event()
    engine = Engine(ScriptedProvider(answer(say("Hello"), hold)), store=MemoryStore())
    async with (
        serving(engine, Transport(engine, followers=1)) as server,
        connected(server.port) as asked,
        connected(server.port) as first,
    ):
        asked.send("POST", RESPONSES, STREAMED)
        await asked.head()
        (response_id,) = engine.live_runs
        first.send("GET", stream_of(response_id))
        head = await first.head()
        over = await server.ask("GET", stream_of(response_id))
        assert (over.status, over.error["code"], over.headers["retry-after"]) == (503, "too_many_followers", "5")
        assert "server.followers" in over.error["message"]
        hold.set()
        await first.rest(head)
        assert (await server.ask("GET", stream_of(response_id))).status == 200


# ---- runs that go on without their clients ----


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_run_that_goes_on_without_its_client_keeps_its_place(body: dict[str, Any]) -> None:
    hold = asyncio.Event()
    app = limited(answer(say("Hello"), hold, say(" there")), answer(say("Next")), concurrent=1)
    async with serving(app._engine, app) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, body, CONTINUE)
            await until(lambda: any(run.summary().first is not None for run in server.engine.live_runs.values()))
            wire.vanish()
        await until(lambda: app.requests == 0)
        assert (await server.ask("POST", RESPONSES, body, ANN)).status == 429
        hold.set()
        await until(lambda: server.engine.live == 0)
        assert (await server.ask("POST", RESPONSES, body, ANN)).status == 200
