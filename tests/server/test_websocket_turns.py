"""Responses on a WebSocket, one after the other, against the real server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

import pytest
from openai.types.responses import ResponseSteerFailedEvent

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import AntwortError, BackendCut, BackendUnavailable, RateLimited
from antwort.identity import Identity
from antwort.server.exchange import Scope
from antwort.server.http import Transport
from antwort.server.websocket import SocketLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, call, say, think
from engine_kit import sent_messages, text_of
from serving import RESPONSES, serving, until
from socket_kit import connected

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def scripted(*answers: Answer, **settings: Any) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    return Engine(provider, store=MemoryStore(), settings=EngineSettings(**settings)), provider


def said(provider: ScriptedProvider) -> list[tuple[str, Any]]:
    """What the last inference was sent."""
    return sent_messages(provider.requests[-1])


# ---- one after the other ----


async def test_a_response_is_its_events_each_a_message() -> None:
    engine, _ = scripted(answer(think("Hm"), say("Hello out there")))
    async with serving(engine) as server, connected(server.port) as socket:
        response = await socket.ask()
    assert (response.status, text_of(response), response.store) == ("completed", "Hello out there", True)
    assert [message["sequence_number"] for message in socket.heard] == [*range(len(socket.heard))]
    assert socket.heard[-1]["type"] == "response.completed"


async def test_responses_are_made_in_the_order_in_which_they_were_asked_for() -> None:
    first = asyncio.Event()
    engine, provider = scripted(answer(say("one"), first), answer(say("two")), answer(say("three")))
    async with serving(engine) as server, connected(server.port) as socket:
        for text in ("a", "b", "c"):
            await socket.create(input=text)
        await socket.until("response.output_text.delta")
        await socket.wire.ping()
        assert (len(provider.requests), engine.live) == (1, 1)
        first.set()
        await socket.until("response.completed")
        assert [text_of(await socket.turn()) for _ in range(2)] == ["two", "three"]
    assert [sent_messages(request)[-1][1] for request in provider.requests] == ["a", "b", "c"]


async def test_errors_of_messages_come_in_their_turn() -> None:
    first = asyncio.Event()
    engine, _ = scripted(answer(say("one"), first), answer(say("two")))
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.create()
        await socket.until("response.created")
        await socket.say("{")
        await socket.create()
        first.set()
        assert (await socket.until("response.completed"))["response"]["status"] == "completed"
        assert (await socket.error())["code"] == "invalid_json"
        assert text_of(await socket.turn()) == "two"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        (b"\x00", "invalid_json"),
        ("{}", "missing_required_parameter"),
        ('{"type": "response.cancel"}', "invalid_value"),
        ('{"type": "response.create", "input": 7}', "invalid_value"),
    ],
)
async def test_after_an_error_the_connection_goes_on(message: str | bytes, code: str) -> None:
    engine, _ = scripted(answer(say("Hello")))
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.say(message)
        error = await socket.error()
        assert (error["status"], error["code"]) == (400, code)
        assert (await socket.ask()).status == "completed"


async def test_what_needs_no_answer_gets_none() -> None:
    engine, _ = scripted(answer(say("one")), answer(say("two")))
    async with serving(engine) as server, connected(server.port) as socket:
        done = await socket.ask()
        await socket.say({"type": "response.processed", "response_id": done.id})
        assert text_of(await socket.ask()) == "two"


@pytest.mark.parametrize("strict", [False, True])
async def test_input_for_a_response_under_way_is_given_back_for_the_next_turn(strict: bool) -> None:
    first = asyncio.Event()
    engine, provider = scripted(answer(say("one"), first), answer(say("two")), strict=strict)
    given = [{"type": "message", "role": "user", "content": "Shorter."}]
    async with serving(engine) as server, connected(server.port, strict=strict) as socket:
        await socket.create()
        created = await socket.until("response.created")
        steer = {"input": given, "previous_response_id": created["response"]["id"]}
        await socket.say({"type": "response.steer", **steer})
        first.set()
        await socket.until("response.completed")
        failed = await socket.hear()
        assert text_of(await socket.ask(**failed["steer"])) == "two"
    kind = "invalid_request" if strict else "invalid_request_error"
    assert failed["type"] == ("antwort:" if strict else "") + "response.steer.failed"
    assert (failed["error"]["code"], failed["error"]["type"]) == ("steering_not_supported", kind)
    assert (failed["steer"], failed["sequence_number"]) == (steer, 0)
    assert said(provider)[-1] == ("user", "Shorter.")
    if not strict:
        ResponseSteerFailedEvent.model_validate(failed, strict=True)


async def test_events_carry_the_lane_that_they_were_asked_for_on() -> None:
    engine, _ = scripted(answer(say("one")))
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.ask(stream_id="left")
        assert {message["stream_id"] for message in socket.heard} == {"left"}
        await socket.create(stream_id="right", temperature=9)
        assert (await socket.hear())["stream_id"] == "right"
        await socket.create(stream_id="x" * 65)
        refused = await socket.hear()
        assert refused["error"]["param"] == "stream_id"
        assert "stream_id" not in refused, "what is refused is not repeated"


# ---- going on from an earlier one ----


async def test_a_response_that_is_not_stored_is_continued_on_its_connection() -> None:
    engine, provider = scripted(answer(say("OK")), answer(say("cobalt")), answer(say("still")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False, input="Remember: cobalt")
        second = await socket.ask(store=False, input="What?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        await socket.ask(store=False, input="And?", previous_response_id=second.id)
        assert (await server.ask("GET", f"{RESPONSES}/{second.id}")).status == 404
    assert said(provider) == [
        ("user", "Remember: cobalt"),
        ("assistant", "OK"),
        ("user", "What?"),
        ("assistant", "cobalt"),
        ("user", "And?"),
    ]


async def test_another_connection_knows_nothing_of_it_and_goes_on() -> None:
    engine, _ = scripted(answer(say("OK")), answer(say("fresh")))
    async with serving(engine) as server, connected(server.port) as socket, connected(server.port) as other:
        first = await socket.ask(store=False)
        await other.create(store=False, previous_response_id=first.id)
        error = await other.error()
        assert (error["status"], error["code"]) == (404, "previous_response_not_found")
        assert error["param"] == "previous_response_id"
        assert text_of(await other.ask(store=False)) == "fresh"


async def test_only_the_latest_is_remembered() -> None:
    engine, _ = scripted(answer(say("one")), answer(say("two")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        await socket.ask(store=False)
        await socket.create(store=False, previous_response_id=first.id)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_a_stored_response_is_continued_on_any_connection_until_it_is_deleted() -> None:
    engine, provider = scripted(answer(say("one")), answer(say("two")))
    async with serving(engine) as server, connected(server.port) as socket, connected(server.port) as other:
        first = await socket.ask()
        assert (await other.ask(store=False, previous_response_id=first.id)).status == "completed"
        assert [role for role, _ in said(provider)] == ["user", "assistant", "user"]
        assert (await server.ask("DELETE", f"{RESPONSES}/{first.id}")).status == 200
        await socket.create(previous_response_id=first.id)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_what_goes_on_from_an_unstored_response_can_be_stored_with_all_that_was_said() -> None:
    engine, provider = scripted(
        answer(say("one")), answer(say("two")), answer(say("three")), answer(say("four")), answer(say("five"))
    )
    async with serving(engine) as server, connected(server.port) as socket:
        root = await socket.ask(input="0")
        first = await socket.ask(store=False, input="a", previous_response_id=root.id)
        second = await socket.ask(input="b", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        kept = (await server.ask("GET", f"{RESPONSES}/{second.id}/input_items?order=asc")).json()["data"]
        assert [item["content"][0]["text"] for item in kept] == ["a", "two", "b"]
        third = await socket.ask(store=False, input="c", previous_response_id=second.id)
        assert third.status == "completed"
        body = {"model": "scripted", "input": "d", "previous_response_id": second.id}
        assert (await server.ask("POST", RESPONSES, body)).status == 200
    assert [text for _, text in said(provider)] == ["0", "one", "a", "two", "b", "three", "d"]


async def test_a_call_of_a_remembered_response_is_answered_and_another_is_refused() -> None:
    engine, provider = scripted(answer(call("weather", city="Paris")), answer(say("Sunny")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False, tools=[WEATHER])
        [made] = first.output
        output = {"type": "function_call_output", "call_id": getattr(made, "call_id", ""), "output": "sun"}
        done = await socket.ask(store=False, previous_response_id=first.id, input=[output], tools=[WEATHER])
        assert text_of(done) == "Sunny"
        wrong = {**output, "call_id": "call_unknown"}
        await socket.create(store=False, previous_response_id=done.id, input=[wrong])
        error = await socket.error()
        assert (error["code"], error["param"]) == ("unknown_call_id", "input[0].call_id")
    assert [role for role, _ in said(provider)] == ["user", "assistant", "tool"]


async def test_items_of_a_remembered_response_can_be_referred_to() -> None:
    engine, provider = scripted(answer(say("forty-two")), answer(say("yes")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        reference = {"type": "item_reference", "id": first.output[0].id}
        await socket.ask(store=False, input=[reference, {"role": "user", "content": "Sure?"}])
    assert said(provider) == [("assistant", "forty-two"), ("user", "Sure?")]


# ---- a continuation that fails ----


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "?"}]},
        {"temperature": 9},
        {"stream": False},
        {"stream_id": ""},
        {"tools": [{"type": "mcp", "server_label": "nobody"}]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_what_a_refused_request_was_to_continue_is_forgotten(wrong: dict[str, Any]) -> None:
    engine, _ = scripted(answer(say("OK")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        await socket.create(store=False, previous_response_id=first.id, **wrong)
        assert (await socket.error())["code"] != "previous_response_not_found"
        await socket.create(store=False, previous_response_id=first.id)
        assert (await socket.error())["code"] == "previous_response_not_found"


@pytest.mark.parametrize("how", ["early", "late"])
async def test_what_a_failed_response_was_to_continue_is_forgotten(how: str) -> None:
    failing = [BackendUnavailable("Gone.")] if how == "early" else answer(say("Well"), BackendCut("Cut."))
    engine, _ = scripted(answer(say("OK")), failing)
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        await socket.create(store=False, previous_response_id=first.id)
        if how == "early":
            assert (await socket.error())["status"] == 503
        else:
            assert (await socket.turn()).status == "failed"
        await socket.create(store=False, previous_response_id=first.id)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_a_failure_of_another_request_leaves_what_is_remembered() -> None:
    engine, _ = scripted(answer(say("OK")), answer(say("Well"), BackendCut("Cut.")), answer(say("on")))
    async with serving(engine) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        await socket.create(temperature=9)
        assert (await socket.error())["param"] == "temperature"
        await socket.create(store=False)
        assert (await socket.turn()).status == "failed"
        assert (await socket.ask(store=False, previous_response_id=first.id)).status == "completed"


async def test_a_conversation_that_is_too_large_is_forgotten() -> None:
    engine, _ = scripted(answer(say("OK")), answer(say("OK")))
    app = Transport(engine, websocket=SocketLimits(memory=3000))
    async with serving(engine, app) as server, connected(server.port) as socket:
        first = await socket.ask(store=False)
        second = await socket.ask(store=False, previous_response_id=first.id, input="x" * 2000)
        await socket.create(store=False, previous_response_id=second.id)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_a_turn_of_a_conversation_is_not_continued_without_it() -> None:
    engine, _ = scripted(answer(say("OK")))
    async with serving(engine) as server, connected(server.port) as socket:
        conversation = (await engine.conversations.create()).id
        first = await socket.ask(conversation=conversation)
        await socket.create(previous_response_id=first.id)
        error = await socket.error()
        assert (error["status"], error["param"]) == (400, "previous_response_id")
        assert conversation in error["message"]


# ---- failures ----


@pytest.mark.parametrize(
    ("kind", "status", "wait"),
    [(BackendUnavailable, 503, "2"), (RateLimited, 429, "2")],
)
async def test_a_failure_before_the_backend_answers_is_an_error_and_no_response(
    kind: type[AntwortError], status: int, wait: str
) -> None:
    engine, _ = scripted([kind("Not now.", retry_after=1.5)], answer(say("Hello")))
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.create()
        told = await socket.error()
        assert (told["status"], told["message"]) == (status, "Not now.")
        assert socket.heard[-1]["headers"]["retry-after"] == wait
        assert (await socket.ask()).status == "completed"


async def test_a_failure_in_mid_stream_is_a_failed_response() -> None:
    engine, _ = scripted(answer(say("Hello out"), BackendCut("The answer broke off.")), answer(say("Hello")))
    async with serving(engine) as server, connected(server.port) as socket:
        response = await socket.ask()
        assert response.error is not None
        assert (response.status, response.error.code) == ("failed", "backend_stream_cut")
        assert (await socket.ask()).status == "completed"


class Broken(MemoryStore):
    """Cannot read conversations, for a reason that is not for clients."""

    async def said(self, *_: object) -> NoReturn:
        raise ZeroDivisionError("a secret")


async def test_what_nobody_expected_is_told_without_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(ScriptedProvider(answer(say("Hello"))), store=Broken())
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.create(conversation="conv_" + "0" * 32)
        assert (await socket.error())["status"] == 500
        assert "secret" not in json.dumps(socket.heard)
        assert (await socket.ask()).status == "completed"
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]
    caplog.clear()


# ---- warming up ----


@pytest.mark.parametrize("store", [False, True])
async def test_a_request_that_generates_nothing_ends_at_once_and_is_continued(store: bool) -> None:
    engine, provider = scripted(answer(say("Hi")))
    async with serving(engine) as server, connected(server.port) as socket:
        warm = await socket.ask(store=store, generate=False, input="Be brief.", tools=[WEATHER])
        assert (warm.status, warm.output, warm.usage) == ("completed", (), None)
        assert [message["type"] for message in socket.heard] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert provider.requests == []
        await socket.ask(store=store, previous_response_id=warm.id, input="Hello", tools=[WEATHER])
    assert said(provider) == [("user", "Be brief."), ("user", "Hello")]


# ---- who it is for ----


async def test_two_identities_share_nothing() -> None:
    engine, _ = scripted(answer(say("mine")), answer(say("ours")))

    def identify(scope: Scope) -> Identity:
        return Identity("acme", dict(scope["headers"])[b"x-who"].decode())

    app = Transport(engine, identify=identify)
    async with (
        serving(engine, app) as server,
        connected(server.port, headers={"x-who": "ann"}) as ann,
        connected(server.port, headers={"x-who": "bob"}) as bob,
    ):
        first = await ann.ask()
        await bob.create(previous_response_id=first.id)
        assert (await bob.error())["code"] == "previous_response_not_found"
        reference = {"type": "item_reference", "id": first.output[0].id}
        await bob.create(input=[reference])
        assert (await bob.error())["code"] == "item_not_found"
        assert (await ann.ask(previous_response_id=first.id)).status == "completed"


async def test_a_response_is_cancelled_over_http_while_it_is_streamed() -> None:
    engine, provider = scripted(answer(say("Hello"), asyncio.Event()))
    async with serving(engine) as server, connected(server.port) as socket:
        await socket.create()
        created = await socket.until("response.created")
        await socket.until("response.output_text.delta")
        response_id = created["response"]["id"]
        assert (await server.ask("POST", f"{RESPONSES}/{response_id}/cancel")).json()["status"] == "cancelled"
        assert (await socket.until("response.incomplete"))["response"]["status"] == "cancelled"
        await until(lambda: provider.under_way == 0)
