"""A client that leaves, and what its request or the settings say becomes of its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import socket_kit
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.providers.base import ChatRequest, Delta
from antwort.server.cors import ALLOWED
from antwort.testing import ScriptedProvider, answer, say
from antwort.testing.frames import read_frames
from raw_http import connected
from resume_kit import Home, checked, engine_in, rest_of, served
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

HOMES = pytest.mark.parametrize("home", ["memory", "sqlite"])
CONTINUE = {"Antwort-On-Disconnect": "continue"}
TALK = " there and good bye"


async def vanish(server: Serving, request: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    """Ask, and go away when the model has begun to speak; the id of the response."""
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, request, headers)
        await until(lambda: any(run.summary().first is not None for run in server.engine.live_runs.values()))
        (response_id,) = server.engine.live_runs
        wire.vanish()
    await until(lambda: not server.server.server_state.connections)
    return response_id


async def ended(server: Serving, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
            if found["status"] not in ("queued", "in_progress"):
                return found


@HOMES
@pytest.mark.parametrize("request_", [STREAMED, HELLO], ids=["streamed", "whole"])
async def test_a_response_that_is_to_go_on_is_made_to_its_end(
    home: Home, tmp_path: Path, request_: dict[str, Any]
) -> None:
    hold = asyncio.Event()
    async with served(home, tmp_path, answer(say("Hello"), hold, say(TALK))) as server:
        response_id = await vanish(server, request_, CONTINUE)
        assert server.engine.live_runs[response_id].is_durable
        early = (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
        following = asyncio.ensure_future(rest_of(server, response_id, 3))
        hold.set()
        done = await ended(server, response_id)
        whole = await rest_of(server, response_id)
        assert await following == whole[4:]
        assert checked(whole, server.engine).output_text == "Hello" + TALK
    assert (early["status"], done["status"]) == ("in_progress", "completed")
    assert done["output"][0]["content"][0]["text"] == "Hello" + TALK


async def test_a_request_that_was_left_is_not_under_way_any_more(tmp_path: Path) -> None:
    """Whoever waits for the server to be idle does not wait for the response."""
    hold = asyncio.Event()
    async with served("memory", tmp_path, answer(say("Hello"), hold)) as server:
        await vanish(server, HELLO, CONTINUE)
        assert server.engine.live == 1
        hold.set()
        await until(lambda: not server.engine.live)


@pytest.mark.parametrize(
    ("setting", "headers", "store", "status"),
    [
        ("cancel", None, True, "cancelled"),
        ("continue", None, True, "completed"),
        ("continue", {"Antwort-On-Disconnect": "cancel"}, True, "cancelled"),
        ("cancel", CONTINUE, True, "completed"),
    ],
)
async def test_the_request_counts_and_then_the_setting(
    tmp_path: Path, setting: Any, headers: dict[str, str] | None, *, store: bool, status: str
) -> None:
    hold, settings = asyncio.Event(), BackgroundSettings(on_disconnect=setting)
    async with served("memory", tmp_path, answer(say("Hello"), hold), background=settings) as server:
        response_id = await vanish(server, {**STREAMED, "store": store}, headers)
        if status == "cancelled":
            await until(lambda: not server.engine.live)
        hold.set()
        assert (await ended(server, response_id))["status"] == status


async def test_what_is_not_stored_ends(tmp_path: Path) -> None:
    async with served("memory", tmp_path, answer(say("Hello"), asyncio.Event())) as server:
        await vanish(server, {**STREAMED, "store": False}, CONTINUE)
        await until(lambda: not server.engine.live)


@pytest.mark.parametrize("value", ["Continue", "carry on"])
async def test_another_word_is_refused(tmp_path: Path, value: str) -> None:
    async with served("memory", tmp_path) as server:
        reply = await server.ask("POST", RESPONSES, HELLO, {"Antwort-On-Disconnect": value})
    assert (reply.status, reply.error["param"]) == (400, "Antwort-On-Disconnect")
    assert "'cancel' or 'continue'" in reply.error["message"]


async def test_where_nothing_is_made_in_the_background_nothing_can_go_on(tmp_path: Path) -> None:
    settings = BackgroundSettings(enabled=False)
    async with served("memory", tmp_path, answer(say("Hello")), background=settings) as server:
        reply = await server.ask("POST", RESPONSES, STREAMED, CONTINUE)
        other = await server.ask("POST", RESPONSES, STREAMED, {"Antwort-On-Disconnect": "cancel"})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (
        400,
        "Antwort-On-Disconnect",
        "unsupported_parameter",
    )
    assert other.status == 200


async def test_settings_that_contradict_each_other_are_refused() -> None:
    settings = EngineSettings(background=BackgroundSettings(enabled=False, on_disconnect="continue"))
    with pytest.raises(ValueError, match="on_disconnect cannot be `continue`"):
        Engine(ScriptedProvider(), settings=settings)


async def test_a_page_may_say_so() -> None:
    assert b"antwort-on-disconnect" in ALLOWED


async def test_with_a_key_the_next_request_reads_along_and_gets_the_rest(tmp_path: Path) -> None:
    hold = asyncio.Event()
    headers = {**CONTINUE, "Idempotency-Key": "one"}
    async with served("memory", tmp_path, answer(say("Hello"), hold, say(TALK))) as server:
        response_id = await vanish(server, STREAMED, headers)
        async with connected(server.port) as again:
            again.send("POST", RESPONSES, STREAMED, headers)
            head = await again.head()
            async with asyncio.timeout(10):
                seen = await again.chunk()
                hold.set()
                while not seen.endswith(b"[DONE]\n\n"):
                    seen += await again.chunk()
        assert (await ended(server, response_id))["status"] == "completed"
        assert [*read_frames(seen)] == await rest_of(server, response_id)
    assert head.headers["idempotent-replayed"] == "true"


async def test_with_a_key_a_client_that_comes_first_sees_all_events(tmp_path: Path) -> None:
    headers = {**CONTINUE, "Idempotency-Key": "one"}
    async with served("memory", tmp_path, answer(say("Hello" + TALK))) as server:
        reply = await server.ask("POST", RESPONSES, STREAMED, headers)
        events = [*read_frames(reply.body)]
    assert "idempotent-replayed" not in reply.headers
    assert checked(events, server.engine).output_text == "Hello" + TALK


async def test_the_setting_counts_for_a_websocket_too(tmp_path: Path) -> None:
    hold, settings = asyncio.Event(), BackgroundSettings(on_disconnect="continue")
    async with served("memory", tmp_path, answer(say("Hello"), hold, say(TALK)), background=settings) as server:
        async with socket_kit.connected(server.port) as socket:
            await socket.create()
            await until(lambda: any(run.summary().first is not None for run in server.engine.live_runs.values()))
            (response_id,) = server.engine.live_runs
            socket.wire.transport.abort()
        await until(lambda: not server.server.server_state.connections)
        hold.set()
        assert (await ended(server, response_id))["status"] == "completed"
        assert checked(await rest_of(server, response_id), server.engine).output_text == "Hello" + TALK


class Silent(ScriptedProvider):
    """Does not even begin to answer until it may."""

    def __init__(self, may_answer: asyncio.Event) -> None:
        super().__init__(*[answer(say("Hello"))] * 4)
        self._may_answer = may_answer

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        await self._may_answer.wait()
        async with aclosing(super().infer(request)) as batches:
            async for batch in batches:
                yield batch


async def test_a_client_that_leaves_before_the_backend_answers_is_no_error_where_its_response_has_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hold, settings = asyncio.Event(), BackgroundSettings(at_once=1)
    async with engine_in("memory", tmp_path, Silent(hold), background=settings) as engine, serving(engine) as server:
        async with connected(server.port) as one, connected(server.port) as other:
            for wire in (one, other):
                wire.send("POST", RESPONSES, STREAMED, CONTINUE)
            await until(lambda: server.engine.live == 2)
            names = list(server.engine.live_runs)
            one.vanish()
            other.vanish()
        await until(lambda: not server.server.server_state.connections)
        await until(lambda: server.engine.live == 1)  # the other waits for its place
        hold.set()
        assert [(await ended(server, name))["status"] for name in names] == ["completed", "completed"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
