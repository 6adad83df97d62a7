"""A stored stream can be read again, from any event on: while it is made, and when it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antwort.engine.settings import BackgroundSettings
from antwort.testing import Answer, ToolServerFake, answer, call, check_frames, say, think
from antwort.testing.frames import read_frames
from engine_kit import SERVER, replies
from raw_http import connected
from resume_kit import Home, checked, rest_of, served
from serving import HELLO, RESPONSES, STREAMED, until

HOMES = pytest.mark.parametrize("home", ["memory", "sqlite"])
WITH_TOOL: dict[str, Any] = {**STREAMED, "tools": [SERVER]}


def one_with_a_tool() -> tuple[list[Answer], list[ToolServerFake]]:
    depot = ToolServerFake("depot", lookup=replies("17 bolts"))
    return [answer(think("Let me see"), call("lookup", q="bolts")), answer(say("There are 17 bolts left"))], [depot]


@HOMES
async def test_a_stream_that_has_ended_is_read_again_from_every_number_on(home: Home, tmp_path: Path) -> None:
    answers, tools = one_with_a_tool()
    async with served(home, tmp_path, *answers, executors=tools) as server:
        first = (await server.ask("POST", RESPONSES, WITH_TOOL)).body
        response_id, sent = check_frames(first).id, [*read_frames(first)]
        again = (await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true")).body
        assert again == first
        for after in range(len(sent)):
            assert await rest_of(server, response_id, after) == sent[after + 1 :]


async def test_its_log_is_there_for_the_next_process(tmp_path: Path) -> None:
    async with served("sqlite", tmp_path, answer(say("Hello there"))) as server:
        first = (await server.ask("POST", RESPONSES, STREAMED)).body
    async with served("sqlite", tmp_path) as server:
        assert await rest_of(server, check_frames(first).id, 3) == [*read_frames(first)][4:]


@HOMES
async def test_others_read_along_from_any_number_while_it_is_made(home: Home, tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with served(home, tmp_path, answer(say("Hello there"), hold, say(" and good bye"))) as server:
        engine = server.engine
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await wire.head()
            seen = await wire.chunk()
            (run,) = engine.live_runs.values()
            await until(lambda: run.log.next == 6)
            others = [asyncio.ensure_future(rest_of(server, run.response_id, after)) for after in (None, 0, 3, 5)]
            await until(lambda: run.log.readers == 5)
            hold.set()
            while not seen.endswith(b"[DONE]\n\n"):
                seen += await wire.chunk()
        sent = [*read_frames(seen)]
        for start, other in zip((0, 1, 4, 6), others, strict=True):
            assert await other == sent[start:]
    assert checked(sent, engine).status == "completed"


async def test_one_who_has_left_comes_back_for_the_rest(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with served("memory", tmp_path, answer(say("Hello there"), hold, say(" and good bye"))) as server:
        engine = server.engine
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await wire.head()
            (run,) = engine.live_runs.values()
            await until(lambda: run.log.next == 6)
            wire.vanish()
        await until(lambda: not engine.live)
        rest = await rest_of(server, run.response_id, 5)
        whole = await rest_of(server, run.response_id)
    assert whole[6:] == rest
    assert checked(whole, engine).status == "cancelled"


@HOMES
async def test_a_number_that_was_not_sent_yet_is_refused(home: Home, tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with served(home, tmp_path, answer(say("Hello"), hold)) as server:
        engine = server.engine
        made = asyncio.ensure_future(server.ask("POST", RESPONSES, STREAMED))
        await until(lambda: any(run.log.next == 5 for run in engine.live_runs.values()))
        (response_id,) = engine.live_runs
        ahead = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=5")
        hold.set()
        last = len([*read_frames((await made).body)]) - 1
        beyond = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after={last + 1}")
        assert await rest_of(server, response_id, last) == []
    for reply in (ahead, beyond):
        assert (reply.status, reply.error["param"]) == (400, "starting_after")


async def test_of_a_stream_that_was_too_long_the_response_is_left(tmp_path: Path) -> None:
    text = " ".join(["word"] * 300)
    settings = BackgroundSettings(log_bytes=1000)
    async with served("memory", tmp_path, answer(say(text)), background=settings) as server:
        response_id = check_frames((await server.ask("POST", RESPONSES, STREAMED)).body).id
        refused = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=3")
        whole = await rest_of(server, response_id)
    assert (refused.status, refused.error["param"]) == (400, "starting_after")
    assert checked(whole, server.engine).output_text == text


async def test_of_one_that_was_not_streamed_the_events_are_made_from_the_response(tmp_path: Path) -> None:
    async with served("memory", tmp_path, answer(say("Hello there"))) as server:
        response_id = (await server.ask("POST", RESPONSES, HELLO)).json()["id"]
        refused = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=0")
        whole = await rest_of(server, response_id)
    assert (refused.status, refused.error["param"]) == (400, "starting_after")
    assert checked(whole, server.engine).output_text == "Hello there"


async def test_what_is_not_stored_cannot_be_read_again(tmp_path: Path) -> None:
    async with served("memory", tmp_path, answer(say("Hello there"))) as server:
        response_id = check_frames((await server.ask("POST", RESPONSES, {**STREAMED, "store": False})).body).id
        reply = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true")
    assert reply.status == 404


async def test_events_that_only_show_life_have_their_numbers_too(tmp_path: Path) -> None:
    """What is said beside the run, while it waits, is read again with what it says."""
    hold = asyncio.Event()
    settings: dict[str, Any] = {"keepalive": "in_progress", "keepalive_interval": 0.01}
    async with served("memory", tmp_path, answer(say("Hello"), hold, say(" there")), **settings) as server:
        engine = server.engine
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, STREAMED)
            await wire.head()
            seen = await wire.chunk()
            (run,) = engine.live_runs.values()
            while seen.count(b"event: response.in_progress") < 3:
                seen += await wire.chunk()
            hold.set()
            while not seen.endswith(b"[DONE]\n\n"):
                seen += await wire.chunk()
        sent = [*read_frames(seen)]
        assert await rest_of(server, run.response_id) == sent
        assert await rest_of(server, run.response_id, 4) == sent[5:]


@HOMES
async def test_a_request_sent_again_with_its_key_has_the_numbers_of_the_first(home: Home, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "one"}
    async with served(home, tmp_path, answer(say("Hello there"))) as server:
        first = (await server.ask("POST", RESPONSES, STREAMED, key)).body
        again = (await server.ask("POST", RESPONSES, STREAMED, key)).body
        await until(lambda: not len(server.engine.idempotency_keys))  # from now on, only the record knows of it
        later = (await server.ask("POST", RESPONSES, STREAMED, key)).body
        rest = await rest_of(server, check_frames(first).id, 4)
    assert again == later == first
    assert rest == [*read_frames(first)][5:]


async def test_a_long_stream_with_a_key_keeps_its_numbers_as_long_as_its_log_is_kept(tmp_path: Path) -> None:
    key, text = {"Idempotency-Key": "one"}, " ".join(["word"] * 5000)
    async with served("memory", tmp_path, answer(say(text))) as server:
        first = (await server.ask("POST", RESPONSES, STREAMED, key)).body
        again = (await server.ask("POST", RESPONSES, STREAMED, key)).body
        rest = await rest_of(server, check_frames(first).id, 4990)
    assert again == first
    assert rest == [*read_frames(first)][4991:]
