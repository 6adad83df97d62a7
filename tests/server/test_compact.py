"""`POST /v1/responses/compact`, over a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from antwort.api.wire import encode
from antwort.engine.engine import Engine
from antwort.errors import BackendUnavailable
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say, think, tokens
from compaction_kit import SUMMED, TALK, TRIGGER
from engine_kit import engine_of, sent_messages
from key_kit import a_key, bearing
from openapi_kit import faults
from raw_http import connected
from serving import HELLO, RESPONSES, serving, until
from standard import validate_compaction

COMPACT = f"{RESPONSES}/compact"
ASKED: dict[str, Any] = {"model": "scripted", "input": TALK}


@pytest.mark.parametrize("strict", [False, True], ids=["as it is", "strict"])
async def test_the_answer_is_the_standards_and_as_it_is_described(strict: bool) -> None:
    parts = [{"type": "input_text", "text": "Hello"}], [{"type": "output_text", "text": "Hi", "annotations": []}]
    talk = [{"role": "user", "content": parts[0]}, {"role": "assistant", "content": parts[1]}]
    async with serving(engine_of(ScriptedProvider(SUMMED), strict=strict)) as server:
        body = {"model": "scripted", "prompt_cache_key": "k", "input": [*TALK, *talk]}
        reply = await server.ask("POST", COMPACT, body)
    assert reply.status == 200
    plain = reply.json()
    validate_compaction(plain)
    assert faults("CompactedResponse", plain) == []
    assert faults("CompactResponse", body) == []
    assert plain["object"] == "response.compaction"
    assert [item["type"] for item in plain["output"]] == ["message", "message", "compaction"]


async def test_the_usage_is_there_where_the_backend_tells_none() -> None:
    async with serving(engine_of(ScriptedProvider(answer(say("Ada."))))) as server:
        plain = (await server.ask("POST", COMPACT, ASKED)).json()
    assert (plain["usage"]["total_tokens"], plain["usage"]["input_tokens_details"]["cached_tokens"]) == (0, 0)


@pytest.mark.parametrize("body", [{"input": TALK}, {"model": None, "input": TALK}, {"model": "", "input": TALK}])
async def test_without_a_model_it_is_refused_even_where_there_is_a_default(body: dict[str, Any]) -> None:
    async with serving(engine_of(ScriptedProvider(SUMMED), default_model="scripted")) as server:
        reply = await server.ask("POST", COMPACT, body)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "model", "missing_required_parameter")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"model": "scripted"}, "input", "missing_required_parameter"),
        ({"model": "scripted", "input": 5}, "input", "invalid_value"),
        ({"model": 5, "input": TALK}, "model", "invalid_value"),
        ({**ASKED, "prompt_cache_key": "k" * 65}, "prompt_cache_key", "invalid_value"),
        ({**ASKED, "input": [{"type": "compaction"}]}, "input[0].encrypted_content", "missing_required_parameter"),
        (
            {**ASKED, "input": [*TALK, {"type": "compaction", "encrypted_content": "zz"}]},
            "input[4].encrypted_content",
            "invalid_encrypted_content",
        ),
        ([], None, "invalid_json"),
    ],
)
async def test_what_is_wrong_is_named(body: Any, param: str | None, code: str) -> None:
    async with serving(engine_of(ScriptedProvider(SUMMED))) as server:
        reply = await server.ask("POST", COMPACT, encode(body), {"content-type": "application/json"})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)


async def test_fields_that_clients_send_besides_are_not_looked_at() -> None:
    more = {"tools": 5, "reasoning": "x", "text": [], "stream": "?", "tool_choice": {}, "parallel_tool_calls": 0}
    async with serving(engine_of(ScriptedProvider(SUMMED))) as server:
        assert (await server.ask("POST", COMPACT, {**ASKED, **more})).status == 200


async def test_an_unknown_response_is_not_there() -> None:
    async with serving(engine_of(ScriptedProvider(SUMMED))) as server:
        reply = await server.ask("POST", COMPACT, {"model": "scripted", "previous_response_id": "resp_1"})
    assert (reply.status, reply.error["code"]) == (404, "previous_response_not_found")


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
async def test_it_is_no_response_that_could_be_read(method: str) -> None:
    async with serving(engine_of(ScriptedProvider())) as server:
        assert (await server.ask(method, COMPACT)).status == 405


async def test_a_backend_that_is_down_is_an_error_with_its_status() -> None:
    down = [BackendUnavailable("The backend cannot be reached.")]
    async with serving(engine_of(ScriptedProvider(down), hold_back=0)) as server:
        reply = await server.ask("POST", COMPACT, ASKED)
    assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")


async def test_a_model_that_says_nothing_is_an_error() -> None:
    async with serving(engine_of(ScriptedProvider(answer(think("Hm.")))), None) as server:
        reply = await server.ask("POST", COMPACT, ASKED)
    assert (reply.status, reply.error["code"]) == (502, "backend_error")


async def test_a_client_that_leaves_stops_the_summary() -> None:
    provider = ScriptedProvider(answer(say("Ada"), asyncio.Event()))
    async with serving(engine_of(provider)) as server:
        async with connected(server.port) as wire:
            wire.send("POST", COMPACT, ASKED)
            await until(lambda: provider.under_way == 1)
            wire.vanish()
            await until(lambda: provider.under_way == 0)
        await until(lambda: server.engine.live == 0)


async def test_it_takes_a_place_and_its_tokens_count() -> None:
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=1000)
    ring = Keyring([a_key("sk-ann", "ann", identity=Identity("acme", "ann", key="ann"), limits=limits)])
    provider = ScriptedProvider(answer(say("Ada."), usage=tokens(900, 200)))
    engine = Engine(provider, store=MemoryStore(), on_end=[ring.quotas.count])
    async with serving(engine, Transport(engine, identify=ring.identify, quotas=ring.quotas)) as server:
        reply = await server.ask("POST", COMPACT, ASKED, bearing("sk-ann"))
        assert (reply.status, dict(reply.headers)["x-ratelimit-remaining-requests"]) == (200, "1")
        late = await server.ask("POST", COMPACT, ASKED, bearing("sk-ann"))
    assert (late.status, late.error["code"]) == (429, "rate_limit_exceeded")


async def test_openais_own_client_compacts_and_goes_on() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")), SUMMED)
    async with (
        serving(engine_of(provider)) as server,
        AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        window = await client.responses.compact(model="scripted", input=TALK)  # type: ignore[arg-type]  # plain dicts
        # OpenAI shows messages of the user there as well, of which its own types do not know.
        output = [item.model_dump(exclude_none=True, warnings=False) for item in window.output]
        again = [*output, {"role": "user", "content": "And?"}]
        response = await client.responses.create(model="scripted", input=again)  # type: ignore[arg-type]  # the same
        compacted = await client.responses.create(model="scripted", input=[*TALK, TRIGGER])  # type: ignore[list-item]
    assert (window.object, window.usage.output_tokens, response.output_text) == ("response.compaction", 4, "Tea.")
    assert [item.type for item in compacted.output] == ["compaction"]
    assert [role for role, _ in sent_messages(provider.requests[1])] == ["user", "assistant", "user"]


async def test_a_response_that_compacts_itself_is_the_same_streamed_and_not() -> None:
    body = {**HELLO, "input": [*TALK, TALK[2]], "context_management": [{"type": "compaction", "compact_threshold": 40}]}

    def engine() -> Any:
        return engine_of(ScriptedProvider(SUMMED, answer(say("Tea.")), counts=lambda _: 5000))

    async with serving(engine()) as server:
        whole = (await server.ask("POST", RESPONSES, body)).json()
    async with serving(engine()) as server:
        streamed = (await server.ask("POST", RESPONSES, {**body, "stream": True})).body.decode()
    assert [item["type"] for item in whole["output"]] == ["compaction", "message"]
    assert "context_management" not in whole
    assert streamed.index('"type":"compaction"') < streamed.index("response.output_text.delta")
