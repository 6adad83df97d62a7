"""Responses that are made in the background, over HTTP: asked for, read, picked up again, cancelled and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from antwort.api.events import StreamEvent
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import (
    Answer,
    ScriptedProvider,
    StreamChecker,
    ToolServerFake,
    answer,
    call,
    check_frames,
    say,
    tokens,
)
from antwort.testing.frames import read_frames
from antwort.tools.base import ToolCall, ToolContext, ToolExecutor
from engine_kit import CLOCK, SERVER, WEATHER, replies, weather_tool
from key_kit import a_key, bearing
from raw_http import Reply, connected
from serving import HELLO, RESPONSES, Serving, serving, until

LATER: dict[str, Any] = {**HELLO, "background": True}
FINAL = ("completed", "incomplete", "failed", "cancelled", "requires_action")


def scripted(*answers: Answer, executors: Sequence[ToolExecutor] = (), **settings: Any) -> Engine:
    provider = ScriptedProvider(*answers)
    return Engine(provider, store=MemoryStore(), executors=executors, settings=EngineSettings(**settings))


async def seen(
    server: Serving,
    response_id: str,
    claim: Callable[[dict[str, Any]], bool],
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The response, asked for until the claim holds of it."""
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = (await server.ask("GET", f"{RESPONSES}/{response_id}", None, headers)).json()
            if claim(found):
                return found


async def ended(server: Serving, response_id: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    return await seen(server, response_id, lambda found: found["status"] in FINAL, headers)


async def events_of(server: Serving, response_id: str, after: int | None = None) -> list[tuple[int, StreamEvent]]:
    query = "" if after is None else f"&starting_after={after}"
    reply = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true{query}")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return [*read_frames(reply.body)]


def checked(events: Sequence[tuple[int, StreamEvent]]) -> Response:
    checker = StreamChecker()
    for number, event in events:
        checker.feed(number, event)
    return checker.finish()


# ---- asked for ----


@pytest.mark.proves("CP-022", "CP-024")
async def test_a_background_response_is_queued_at_once_and_read_when_it_has_ended() -> None:
    hold = asyncio.Event()
    async with serving(scripted(answer(hold, say("Hello there")))) as server:
        reply = await server.ask("POST", RESPONSES, {**LATER, "metadata": {"of": "ann"}})
        queued = reply.json()
        assert (reply.status, queued["status"], queued["background"], queued["output"]) == (200, "queued", True, [])
        assert (queued["metadata"], queued["store"], queued["completed_at"]) == ({"of": "ann"}, True, None)
        hold.set()
        done = await ended(server, queued["id"])
    assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", "Hello there")
    fresh = ("status", "output", "usage", "completed_at")
    assert {key: done[key] for key in done if key not in fresh} == {
        key: queued[key] for key in queued if key not in fresh
    }


async def test_a_background_stream_has_every_event_from_the_first_on() -> None:
    async with serving(scripted(answer(say("Hello there")))) as server:
        reply = await server.ask("POST", RESPONSES, {**LATER, "stream": True})
        kept = (await server.ask("GET", f"{RESPONSES}/{check_frames(reply.body).id}")).json()
    names = [line for line in reply.body.decode().split("\n") if line.startswith("event: ")]
    assert names[:3] == ["event: response.created", "event: response.queued", "event: response.in_progress"]
    assert (kept["status"], kept["background"]) == ("completed", True)


async def test_a_client_that_leaves_its_background_stream_changes_nothing() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(say("Hello"), hold, say(" there")))
    async with serving(engine) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, {**LATER, "stream": True})
            await wire.head()
            first = await wire.chunk()
            wire.vanish()
        response_id = first.decode().split('"id":"')[1].split('"')[0]
        await until(lambda: len(server.server.server_state.connections) == 0)
        hold.set()
        done = await ended(server, response_id)
        events = await events_of(server, response_id)
    assert done["status"] == "completed"
    assert [number for number, _ in events] == [*range(len(events))]
    assert checked(events).id == response_id


@pytest.mark.proves("RULING-7")
async def test_what_is_wrong_with_the_request_is_told_at_once_and_nothing_is_kept() -> None:
    async with serving(scripted()) as server:
        unstored = await server.ask("POST", RESPONSES, {**LATER, "store": False})
        missing = await server.ask("POST", RESPONSES, {**LATER, "previous_response_id": "resp_none"})
        listed = (await server.ask("GET", RESPONSES)).json()
    assert (unstored.status, unstored.error["param"]) == (400, "background")
    assert (missing.status, missing.error["param"]) == (404, "previous_response_id")
    assert listed["data"] == []


async def test_where_background_is_off_it_is_refused() -> None:
    async with serving(scripted(background=BackgroundSettings(enabled=False))) as server:
        reply = await server.ask("POST", RESPONSES, LATER)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unsupported_parameter", "background")


async def test_a_full_queue_says_when_to_come_again() -> None:
    engine = scripted(background=BackgroundSettings(queue=1, at_once=0))
    async with serving(engine) as server:
        first = await server.ask("POST", RESPONSES, LATER)
        second = await server.ask("POST", RESPONSES, LATER)
        listed = (await server.ask("GET", RESPONSES)).json()
    assert (first.status, second.status, second.error["code"]) == (200, 429, "queue_full")
    assert (second.headers["retry-after"], second.error["type"]) == ("5", "rate_limit_error")
    assert len(listed["data"]) == 1


# ---- read while it runs, and after ----


async def test_a_run_under_way_is_shown_as_far_as_it_is_on_record() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(call("weather", city="Rome")), answer(hold, say("Fine")), executors=[weather_tool()])
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, {**LATER, "tools": [WEATHER]})).json()["id"]
        half = await seen(server, response_id, lambda found: len(found["output"]) == 2)
        listed = (await server.ask("GET", f"{RESPONSES}?status=in_progress")).json()["data"]
        hold.set()
        done = await ended(server, response_id)
    assert (half["status"], [item["type"] for item in half["output"]]) == (
        "in_progress",
        ["function_call", "function_call_output"],
    )
    assert [(each["id"], each["status"], len(each["output"])) for each in listed] == [(response_id, "in_progress", 2)]
    assert done["output"][:2] == half["output"]


@pytest.mark.proves("CP-028")
async def test_a_stream_can_be_picked_up_behind_every_event_also_when_it_is_over() -> None:
    async with serving(scripted(answer(say("Hello out there")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        await ended(server, response_id)
        whole = await events_of(server, response_id)
        assert checked(whole).status == "completed"
        for number, _ in whole:
            assert await events_of(server, response_id, number) == whole[number + 1 :]


async def test_one_who_comes_back_follows_to_the_end() -> None:
    hold = asyncio.Event()
    async with serving(scripted(answer(say("Hello"), hold, say(" there")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        async with connected(server.port) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true")
            await wire.head()
            body = b""
            while b"output_text.delta" not in body:
                body += await wire.chunk()
            wire.vanish()
        seen = [*read_frames(body + b"data: [DONE]\n\n")]
        following = asyncio.create_task(events_of(server, response_id, seen[-1][0]))
        await until(lambda: len(server.engine.live_runs) == 1)
        hold.set()
        rest = await following
    assert checked([*seen, *rest]).status == "completed"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=99", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=", "starting_after"),
        ("stream=true&starting_after=1.0", "starting_after"),
        (f"stream=true&starting_after={'9' * 40}", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("stream=false&starting_after=1", "starting_after"),
        ("stream=perhaps", "stream"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(query: str, param: str) -> None:
    async with serving(scripted(answer(say("Hello")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        await ended(server, response_id)
        reply = await server.ask("GET", f"{RESPONSES}/{response_id}?{query}")
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, "invalid_value")


async def test_what_the_sdk_sends_along_is_harmless() -> None:
    async with serving(scripted(answer(say("Hello")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        done = await ended(server, response_id)
        query = "include=reasoning.encrypted_content&include_obfuscation=false"
        plain = await server.ask("GET", f"{RESPONSES}/{response_id}?{query}&stream=false")
        streamed = await server.ask("GET", f"{RESPONSES}/{response_id}?{query}&stream=true&starting_after=0")
        head = await server.ask("HEAD", f"{RESPONSES}/{response_id}?stream=true")
    assert plain.json() == done
    assert next(read_frames(streamed.body))[0] == 1
    assert (head.status, head.body, head.headers["content-type"]) == (200, b"", "text/event-stream; charset=utf-8")


async def test_a_response_that_was_not_streamed_has_events_from_the_beginning_only() -> None:
    async with serving(scripted(answer(say("Hello there")))) as server:
        made = (await server.ask("POST", RESPONSES, HELLO)).json()
        events = await events_of(server, made["id"])
        reply = await server.ask("GET", f"{RESPONSES}/{made['id']}?stream=true&starting_after=0")
    assert checked(events).id == made["id"]
    assert (reply.status, reply.error["param"]) == (400, "starting_after")
    assert "leave it out" in reply.error["message"]


async def test_events_of_a_response_that_is_not_streamed_come_when_it_has_ended() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(hold, say("Hello there")))
    app = Transport(engine)
    async with serving(engine, app) as server:
        asking = asyncio.create_task(server.ask("POST", RESPONSES, HELLO))
        await until(lambda: len(engine.live_runs) == 1)
        (response_id,) = engine.live_runs
        following = asyncio.create_task(events_of(server, response_id))
        await until(lambda: app.streams == 1)
        hold.set()
        events, reply = await following, await asking
    assert checked(events).id == reply.json()["id"]


# ---- cancelled, deleted ----


@pytest.mark.proves("RULING-9")
async def test_cancelling_reaches_the_model() -> None:
    engine = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        await until(lambda: any(run.response.output for run in engine.live_runs.values()))
        replies = [await server.ask("POST", f"{RESPONSES}/{response_id}/cancel") for _ in range(2)]
        events = await events_of(server, response_id)
        kept = await ended(server, response_id)
    assert [reply.status for reply in replies] == [200, 200]
    assert replies[0].json() == replies[1].json() == kept
    assert (kept["status"], [item["status"] for item in kept["output"]]) == ("cancelled", ["incomplete"])
    assert checked(events).status == "cancelled"


async def test_cancelling_reaches_the_tool() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def dig(call: ToolCall, context: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    engine = scripted(answer(call("dig")), executors=[ToolServerFake("depot", dig=dig)])
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, {**LATER, "tools": [SERVER]})).json()["id"]
        await begun.wait()
        reply = await server.ask("POST", f"{RESPONSES}/{response_id}/cancel")
        assert stopped.is_set()
    assert reply.json()["status"] == "cancelled"


@pytest.mark.proves("CP-024")
async def test_one_that_waits_is_cancelled_without_having_begun() -> None:
    engine = scripted(background=BackgroundSettings(at_once=0))
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        reply = await server.ask("POST", f"{RESPONSES}/{response_id}/cancel")
        events = await events_of(server, response_id)
    assert (reply.json()["status"], reply.json()["output"]) == ("cancelled", [])
    assert checked(events).status == "cancelled"


async def test_one_that_waits_behind_others_is_cancelled_without_a_place() -> None:
    hold = asyncio.Event()
    engine = scripted(answer(hold, say("Hello")), background=BackgroundSettings(at_once=1))
    async with serving(engine) as server:
        first = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        await until(lambda: len(engine.live_runs) == 1)
        second = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        reply = await server.ask("POST", f"{RESPONSES}/{second}/cancel")
        assert reply.json()["status"] == "cancelled"
        hold.set()
        assert (await ended(server, first))["status"] == "completed"


@pytest.mark.proves("RULING-7")
async def test_a_finished_one_is_not_changed_by_a_cancel() -> None:
    async with serving(scripted(answer(say("Hello")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        done = await ended(server, response_id)
        reply = await server.ask("POST", f"{RESPONSES}/{response_id}/cancel")
    assert (reply.status, reply.json()) == (200, done)


async def test_deleting_a_running_one_ends_it() -> None:
    engine = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        await until(lambda: any(run.response.output for run in engine.live_runs.values()))
        gone = await server.ask("DELETE", f"{RESPONSES}/{response_id}")
        after = [
            await server.ask(*way)
            for way in (
                ("GET", f"{RESPONSES}/{response_id}"),
                ("GET", f"{RESPONSES}/{response_id}?stream=true"),
                ("POST", f"{RESPONSES}/{response_id}/cancel"),
                ("DELETE", f"{RESPONSES}/{response_id}"),
            )
        ]
        await until(lambda: not engine.live_runs)
    assert gone.json() == {"id": response_id, "object": "response", "deleted": True}
    assert [reply.status for reply in after] == [404, 404, 404, 404]


async def test_deleting_one_that_waits_leaves_nothing_to_be_made() -> None:
    engine = scripted(background=BackgroundSettings(at_once=0))
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        gone = await server.ask("DELETE", f"{RESPONSES}/{response_id}")
        listed = (await server.ask("GET", RESPONSES)).json()
    assert (gone.status, listed["data"]) == (200, [])


# ---- continued ----


@pytest.mark.proves("RULING-6")
async def test_one_that_has_not_ended_cannot_be_continued_and_then_can() -> None:
    hold = asyncio.Event()
    async with serving(scripted(answer(hold, say("Hello")), answer(say("More")))) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        early = await server.ask("POST", RESPONSES, {**LATER, "previous_response_id": response_id})
        hold.set()
        await ended(server, response_id)
        late = (await server.ask("POST", RESPONSES, {**LATER, "previous_response_id": response_id})).json()
        done = await ended(server, late["id"])
    assert (early.status, early.error["code"]) == (409, "response_in_progress")
    assert (done["status"], done["previous_response_id"]) == ("completed", response_id)


async def test_calls_of_the_client_are_handed_out_and_answered() -> None:
    body = {**LATER, "tools": [CLOCK, WEATHER]}
    engine = scripted(answer(call("clock")), answer(say("It is late")), executors=[weather_tool()])
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, body)).json()["id"]
        waiting = await ended(server, response_id)
        output = {"type": "function_call_output", "call_id": waiting["output"][0]["call_id"], "output": "12:00"}
        body |= {"previous_response_id": response_id, "input": [output]}
        done = await ended(server, (await server.ask("POST", RESPONSES, body)).json()["id"])
    assert (waiting["status"], done["status"]) == ("requires_action", "completed")


async def test_what_waits_for_approval_is_approved_in_the_background() -> None:
    guarded = {**SERVER, "require_approval": "always"}
    server_of_tools = ToolServerFake("depot", ship=replies("shipped"))
    engine = scripted(answer(call("ship")), answer(say("Done")), executors=[server_of_tools])
    async with serving(engine) as server:
        response_id = (await server.ask("POST", RESPONSES, {**LATER, "tools": [guarded]})).json()["id"]
        waiting = await ended(server, response_id)
        asked = waiting["output"][-1]
        decision = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        body = {**LATER, "tools": [guarded], "previous_response_id": response_id, "input": [decision]}
        done = await ended(server, (await server.ask("POST", RESPONSES, body)).json()["id"])
    assert (waiting["status"], asked["type"]) == ("requires_action", "mcp_approval_request")
    assert [(item["type"], item.get("output")) for item in done["output"]][-2:] == [
        ("mcp_call", "shipped"),
        ("message", None),
    ]


async def test_one_that_is_cut_short_is_incomplete() -> None:
    async with serving(scripted(answer(say("Hello"), finish="length"))) as server:
        done = await ended(server, (await server.ask("POST", RESPONSES, LATER)).json()["id"])
    assert (done["status"], done["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")


# ---- the same request once more ----

KEY = {"idempotency-key": "one-and-the-same"}


@pytest.mark.proves("MISTAKE-30")
async def test_the_same_key_gives_the_same_response_as_it_stands() -> None:
    hold = asyncio.Event()
    provider = ScriptedProvider(answer(hold, say("Hello")))
    engine = Engine(provider, store=MemoryStore())
    async with serving(engine) as server:
        first = await server.ask("POST", RESPONSES, LATER, KEY)
        await until(lambda: provider.under_way == 1)
        second = await server.ask("POST", RESPONSES, LATER, KEY)
        hold.set()
        await ended(server, first.json()["id"])
        third = await server.ask("POST", RESPONSES, LATER, KEY)
    replies = [first, second, third]
    assert len({reply.json()["id"] for reply in replies}) == 1
    assert [reply.json()["status"] for reply in replies] == ["queued", "in_progress", "completed"]
    assert [reply.headers.get("idempotent-replayed") for reply in replies] == [None, "true", "true"]
    assert len(provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_many_at_once_with_one_key_are_one_run() -> None:
    provider = ScriptedProvider(answer(say("Hello")))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        replies = await asyncio.gather(*(server.ask("POST", RESPONSES, LATER, KEY) for _ in range(20)))
        await ended(server, replies[0].json()["id"])
    assert {reply.status for reply in replies} == {200}
    assert len({reply.json()["id"] for reply in replies}) == 1
    assert [reply.headers.get("idempotent-replayed") for reply in replies].count(None) == 1
    assert len(provider.requests) == 1


async def test_the_same_streamed_request_once_more_is_the_same_stream() -> None:
    async with serving(scripted(answer(say("Hello")))) as server:
        replies = [await server.ask("POST", RESPONSES, {**LATER, "stream": True}, KEY) for _ in range(2)]
    assert replies[0].body == replies[1].body


async def test_another_body_under_the_key_is_refused_whether_it_is_in_the_background_or_not() -> None:
    async with serving(scripted(answer(say("Hello")), answer(say("Hello")))) as server:
        await server.ask("POST", RESPONSES, LATER, KEY)
        await server.ask("POST", RESPONSES, {**HELLO, "store": False}, {"idempotency-key": "another"})
        refused = [
            await server.ask("POST", RESPONSES, HELLO, KEY),
            await server.ask("POST", RESPONSES, {**LATER, "input": "Bye"}, KEY),
            await server.ask("POST", RESPONSES, LATER, {"idempotency-key": "another"}),
        ]
    assert {(reply.status, reply.error["code"]) for reply in refused} == {(409, "idempotency_key_reused")}


async def test_the_key_of_one_that_was_deleted_is_free() -> None:
    async with serving(scripted(answer(say("Hello")), answer(say("Hello")))) as server:
        first = (await server.ask("POST", RESPONSES, LATER, KEY)).json()["id"]
        await server.ask("DELETE", f"{RESPONSES}/{first}")
        second = await server.ask("POST", RESPONSES, LATER, KEY)
        await ended(server, second.json()["id"])
    assert second.json()["id"] != first
    assert "idempotent-replayed" not in second.headers


async def test_a_full_queue_leaves_the_key_free() -> None:
    engine = scripted(background=BackgroundSettings(queue=1, at_once=0))
    async with serving(engine) as server:
        first = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        full = await server.ask("POST", RESPONSES, LATER, KEY)
        await server.ask("POST", f"{RESPONSES}/{first}/cancel")
        then = await server.ask("POST", RESPONSES, LATER, KEY)
    assert (full.status, then.status, then.headers.get("idempotent-replayed")) == (429, 200, None)


# ---- what a key may use ----


def limited(*answers: Answer, **limits: int) -> tuple[Engine, Transport]:
    ring = Keyring([a_key("sk-ann", "ann", limits=KeyLimits(**limits))])
    engine = Engine(ScriptedProvider(*answers), store=MemoryStore(), on_end=[ring.quotas.count])
    return engine, Transport(engine, identify=ring.identify, quotas=ring.quotas)


async def asked(server: Serving, method: str, path: str, body: dict[str, Any] | None = None) -> Reply:
    return await server.ask(method, path, body, bearing("sk-ann"))


async def test_a_background_response_takes_a_place_while_it_is_asked_for_and_not_while_it_is_made() -> None:
    answers = [answer(asyncio.Event()), answer(asyncio.Event())]
    async with serving(*limited(*answers, concurrent=1, requests_per_minute=2)) as server:
        replies = [await asked(server, "POST", RESPONSES, LATER) for _ in range(3)]
        for reply in replies[:2]:
            await asked(server, "POST", f"{RESPONSES}/{reply.json()['id']}/cancel")
    assert [reply.status for reply in replies] == [200, 200, 429]


async def test_its_tokens_count_when_it_has_ended() -> None:
    engine, app = limited(answer(say("Hello"), usage=tokens(90, 20)), tokens_per_minute=100)
    async with serving(engine, app) as server:
        response_id = (await asked(server, "POST", RESPONSES, LATER)).json()["id"]
        await ended(server, response_id, bearing("sk-ann"))
        await until(lambda: engine.live == 0)
        refused = await asked(server, "POST", RESPONSES, LATER)
    assert (refused.status, refused.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
