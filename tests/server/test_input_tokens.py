"""`POST /v1/responses/input_tokens`: how many tokens the model would get to read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.errors import ContextTooLong
from antwort.identity import Identity
from antwort.server.exchange import Scope
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits, Quotas
from antwort.testing.scripted import ScriptedProvider, answer, say, tokens
from engine_kit import WEATHER, engine_of
from raw_http import connected
from serving import HELLO, RESPONSES, Serving, serving, until
from window_kit import SmallModel, words

COUNT = f"{RESPONSES}/input_tokens"


async def count(server: Serving, **fields: Any) -> int:
    reply = await server.ask("POST", COUNT, {**HELLO, **fields})
    assert reply.status == 200, reply.body
    told = reply.json()
    assert list(told) == ["object", "input_tokens"]
    assert told["object"] == "response.input_tokens"
    tokens: int = told["input_tokens"]
    return tokens


async def test_it_is_what_the_backends_tokenizer_says_of_all_that_would_be_sent() -> None:
    model = SmallModel(1000)
    async with serving(engine_of(model)) as server:
        assert await count(server, input="one two three") == 3
        assert await count(server, input="one two three", instructions="four five") == 5
        assert await count(server, input=[{"role": "user", "content": "one"}], stream=True, background=True) == 1
        response = (await server.ask("POST", RESPONSES, {**HELLO, "input": "one two three"})).json()
        assert await count(server, input="six", previous_response_id=response["id"]) == 6
    assert len(model.requests) == 1


async def test_without_a_tokenizer_it_is_an_estimate_that_learns() -> None:
    text = words(200)
    provider = ScriptedProvider(*[answer(say("Hi."), usage=tokens(1234, 1))] * 20)
    async with serving(engine_of(provider)) as server:
        first = await count(server, input=text)
        with_tools = await count(server, input=text, tools=[WEATHER])
        for number in range(20):  # a conversation counts once, however often it is heard of
            await server.ask("POST", RESPONSES, {**HELLO, "input": f"{number} {text}"})
        last = await count(server, input=text)
    assert first < with_tools
    assert abs(last - 1234) < 150 < abs(first - 1234)


async def test_nothing_is_kept() -> None:
    async with serving(engine_of(SmallModel(1000))) as server:
        await count(server)
        assert (await server.ask("GET", RESPONSES)).json()["data"] == []


async def test_with_truncation_it_is_what_would_be_sent() -> None:
    model = SmallModel(400)
    async with serving(engine_of(model)) as server:
        first = (await server.ask("POST", RESPONSES, {**HELLO, "input": words(300)})).json()
        more = {"input": words(200), "previous_response_id": first["id"]}
        assert await count(server, **more) == 502
        sent = await count(server, **more, truncation="auto")
        assert 200 < sent < 400
        await server.ask("POST", RESPONSES, {**HELLO, **more, "truncation": "auto"})
        assert await count(server, input=words(900), truncation="auto") == 900
    assert await model.count(model.requests[-1]) == sent


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"input": 5}, 400, "invalid_value"),
        ({"previous_response_id": "resp_none"}, 404, "previous_response_not_found"),
        ({"input": []}, 400, "missing_required_parameter"),
    ],
)
async def test_what_a_response_would_be_refused_for_is_refused_here(
    fields: dict[str, Any], status: int, code: str
) -> None:
    async with serving(engine_of(SmallModel(1000))) as server:
        reply = await server.ask("POST", COUNT, {**HELLO, **fields})
        assert (reply.status, reply.error["code"]) == (status, code)
        assert (await server.ask("GET", COUNT)).status == 405


async def test_a_request_that_is_too_long_is_answered_with_a_400_that_says_how_long() -> None:
    async with serving(engine_of(SmallModel(400))) as server:
        for stream in (False, True):
            reply = await server.ask("POST", RESPONSES, {**HELLO, "input": words(500), "stream": stream})
            assert (reply.status, reply.error["code"]) == (400, ContextTooLong.code)
            assert (reply.error["type"], reply.error["param"]) == ("invalid_request_error", "input")
            assert "500 tokens" in reply.error["message"]
            assert "400" in reply.error["message"]


async def test_counting_takes_a_place_and_no_tokens() -> None:
    model = SmallModel(400)
    model.hold = asyncio.Event()
    quotas = Quotas({"ann": KeyLimits(concurrent=1, tokens_per_minute=10)})

    def ann(_: Scope) -> Identity:
        return Identity(key="ann")

    engine = engine_of(model)
    async with serving(engine, Transport(engine, identify=ann, quotas=quotas)) as server:
        counting = asyncio.create_task(server.ask("POST", COUNT, {**HELLO, "input": words(50)}))
        await until(lambda: model.counted == 1)
        busy = await server.ask("POST", COUNT, HELLO)
        assert (busy.status, busy.error["code"]) == (429, "rate_limit_exceeded")
        model.hold.set()
        reply = await counting
        assert reply.json()["input_tokens"] == 50
        assert reply.headers["x-ratelimit-remaining-tokens"] == "10"
        assert (await server.ask("POST", COUNT, HELLO)).status == 200


async def test_a_client_that_leaves_stops_the_count() -> None:
    model = SmallModel(400)
    model.hold = asyncio.Event()
    async with serving(engine_of(model)) as server:
        async with connected(server.port) as wire:
            wire.send("POST", COUNT, HELLO)
            await until(lambda: model.counted == 1)
        await until(lambda: model.waiting == 0)
