"""The header `Idempotency-Key` on `POST /v1/responses`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import parse_request
from antwort.asgi import create_app
from antwort.engine.engine import Engine
from antwort.engine.runs.idempotency import fingerprint
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendUnavailable
from antwort.identity import ANONYMOUS
from antwort.server.auth import Keyring
from antwort.server.cors import Cors
from antwort.server.exchange import Message
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.base import KeyClaim, NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, check_frames, say, tokens
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import ask
from key_kit import a_key, bearing
from keyed_kit import Slow
from mounted import in_fastapi, run_by_uvicorn
from raw_http import Reply, connected
from raw_http import ask as ask_at
from serving import HELLO, RESPONSES, STREAMED, serving, until

KEY = {"idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
HELD = ("idempotent-replayed", "x-should-retry", "retry-after")


def scripted(*answers: Answer, **settings: Any) -> tuple[ScriptedProvider, Engine]:
    provider = ScriptedProvider(*answers)
    return provider, Engine(provider, store=MemoryStore(), settings=EngineSettings(**settings))


def replayed(replies: Sequence[Reply]) -> list[str | None]:
    return [reply.headers.get("idempotent-replayed") for reply in replies]


@pytest.mark.proves("MISTAKE-30")
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_retried_post_gets_the_same_answer_and_runs_nothing(body: dict[str, Any], is_stored: bool) -> None:
    provider, engine = scripted(answer(say("Hello there")))
    async with serving(engine) as server:
        replies = [await server.ask("POST", RESPONSES, {**body, "store": is_stored}, KEY) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert replies[0].body == replies[1].body == replies[2].body
    assert replayed(replies) == [None, "true", "true"]
    assert len(provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
async def test_fifty_at_once_are_one_run_and_fifty_equal_answers_and_those_that_stream_are_another_request() -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(go, say("Hello there")))
    async with serving(engine) as server:
        asking = [asyncio.create_task(server.ask("POST", RESPONSES, HELLO, KEY)) for _ in range(50)]
        await until(lambda: provider.under_way == 1)
        streamed = await asyncio.gather(*(server.ask("POST", RESPONSES, STREAMED, KEY) for _ in range(10)))
        go.set()
        replies = await asyncio.gather(*asking)
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert sorted(replayed(replies), key=str) == [None, *["true"] * 49]
    assert {(reply.status, reply.error["code"]) for reply in streamed} == {(409, "idempotency_key_reused")}
    assert len(provider.requests) == 1


async def test_fifty_streams_at_once_are_fifty_times_the_same_events() -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say("Hello"), go, say("out there")))
    async with serving(engine) as server:
        asking = [asyncio.create_task(server.ask("POST", RESPONSES, STREAMED, KEY)) for _ in range(50)]
        await until(lambda: server.engine.live == 1)
        go.set()
        replies = await asyncio.gather(*asking)
    assert len({reply.body for reply in replies}) == 1
    assert check_frames(replies[0].body).output_text == "Helloout there"
    assert len(provider.requests) == 1


async def test_another_body_is_a_409_that_is_not_to_be_tried_again() -> None:
    _, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server:
        await server.ask("POST", RESPONSES, HELLO, KEY)
        reply = await server.ask("POST", RESPONSES, {**HELLO, "input": "Other"}, KEY)
    assert reply.status == 409
    assert reply.error == {
        "message": "This Idempotency-Key was used before, with another body. Use a new key for a new request.",
        "type": "invalid_request_error",
        "param": None,
        "code": "idempotency_key_reused",
    }
    assert [reply.headers.get(name) for name in HELD] == [None, "false", None]


async def test_a_response_that_another_process_makes_is_a_409_to_be_tried_again_in_a_moment() -> None:
    provider, store = ScriptedProvider(), MemoryStore()
    engine = Engine(provider, store=store)
    async with serving(engine) as server:
        plan = await engine.plan(ask())
        claim = KeyClaim(key="key", request_hash=fingerprint(ask()), now=0, expires_at=2**40)
        row = NewResponse(
            identity=ANONYMOUS, response=plan.response, request=b"{}", input=(), raw_input=(), claim=claim
        )
        await store.begin(row)
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": "Hello"}, {"idempotency-key": "key"})
    assert (reply.status, reply.error["code"]) == (409, "idempotency_key_in_use")
    assert [reply.headers.get(name) for name in HELD] == [None, "true", "1"]
    assert provider.requests == []


@pytest.mark.parametrize("key", ["a b", "x" * 256, "schlüssel"])
async def test_a_key_that_cannot_be_one_is_a_400(key: str) -> None:
    provider, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, HELLO, {"idempotency-key": key})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_idempotency_key", None)
    assert "Idempotency-Key" in reply.error["message"]
    assert provider.requests == []


async def test_an_empty_key_is_a_400_as_well() -> None:
    _, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server, connected(server.port) as wire:
        wire.writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: test\r\nidempotency-key:\r\n")
        wire.writer.write(b'content-type: application/json\r\ncontent-length: 13\r\n\r\n{"input":"x"}')
        reply = await wire.reply()
    assert reply.error["code"] == "invalid_idempotency_key"


async def keyed_by(port: int, *lines: bytes) -> Reply:
    """The answer to a request with these headers, written as they stand."""
    async with connected(port) as wire:
        wire.writer.write(
            b"".join([b"POST /v1/responses HTTP/1.1\r\nhost: test\r\n", *(line + b"\r\n" for line in lines)])
        )
        wire.writer.write(b'content-type: application/json\r\ncontent-length: 13\r\n\r\n{"input":"x"}')
        return await wire.reply()


async def test_of_two_keys_that_differ_nobody_knows_which_is_meant() -> None:
    provider, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server:
        reply = await keyed_by(server.port, b"idempotency-key: one", b"Idempotency-Key: two")
        assert (reply.status, reply.error["code"]) == (400, "invalid_idempotency_key")
        assert provider.requests == []
        same = await keyed_by(server.port, b"idempotency-key: one", b"idempotency-key: one")
        assert (same.status, len(provider.requests)) == (200, 1)


async def test_white_space_around_a_key_is_no_part_of_it() -> None:
    provider, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server:
        lines = (b"idempotency-key:one", b"idempotency-key: one ", b"idempotency-key:\t one \t")
        replies = [await keyed_by(server.port, line) for line in lines]
    assert replayed(replies) == [None, "true", "true"]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("key", ["one", "a b"])
async def test_where_keys_are_not_remembered_the_header_is_not_looked_at(key: str) -> None:
    provider, engine = scripted(answer(say("Hello")), answer(say("Again")), idempotency=0)
    async with serving(engine) as server:
        replies = [await server.ask("POST", RESPONSES, HELLO, {"idempotency-key": key}) for _ in range(2)]
    assert [reply.json()["status"] for reply in replies] == ["completed", "completed"]
    assert replayed(replies) == [None, None]
    assert len(provider.requests) == 2


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_retry_after_an_error_is_a_real_one(body: dict[str, Any]) -> None:
    provider, engine = scripted(answer(BackendUnavailable("The backend cannot be reached.")), answer(say("Hello")))
    async with serving(engine) as server:
        replies = [await server.ask("POST", RESPONSES, body, KEY) for _ in range(2)]
    assert [reply.status for reply in replies] == [503, 200]
    assert replayed(replies) == [None, None]
    assert len(provider.requests) == 2


async def test_a_wrong_request_leaves_its_key_free() -> None:
    _, engine = scripted(answer(say("Hello")))
    async with serving(engine) as server:
        assert (await server.ask("POST", RESPONSES, {**HELLO, "input": 7}, KEY)).status == 400
        assert (await server.ask("POST", RESPONSES, {**HELLO, "previous_response_id": "x"}, KEY)).status == 404
        assert (await server.ask("POST", RESPONSES, HELLO, KEY)).status == 200


# ---- leaving ----


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_leaves_does_not_disturb_another_with_the_same_key(body: dict[str, Any]) -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say("Hello"), go, say("there")))
    async with serving(engine) as server, connected(server.port) as first, connected(server.port) as second:
        first.send("POST", RESPONSES, body, KEY)
        await until(lambda: provider.under_way == 1)
        second.send("POST", RESPONSES, body, KEY)
        [run] = engine.live_runs.values()
        await until(lambda: len(run.clients) == 2)
        first.vanish()
        await until(lambda: len(run.clients) == 1)
        assert provider.under_way == 1
        go.set()
        reply = await second.reply()
    assert (reply.status, reply.headers.get("idempotent-replayed")) == (200, "true")
    assert len(provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_when_the_last_client_leaves_the_run_continues_and_the_retry_gets_its_response(
    body: dict[str, Any],
) -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say("Hello"), go, say(" there")))
    async with serving(engine) as server:
        before = asyncio.all_tasks()
        async with connected(server.port) as first, connected(server.port) as second:
            for wire in (first, second):
                wire.send("POST", RESPONSES, body, KEY)
            await until(lambda: provider.under_way == 1)
            [run] = engine.live_runs.values()
            await until(lambda: len(run.clients) == 2)
            first.vanish()
            second.vanish()
            await until(lambda: not run.clients)
        assert (provider.under_way, engine.live) == (1, 1)
        go.set()
        reply = await server.ask("POST", RESPONSES, body, KEY)
        assert b"Hello there" in reply.body
        assert run.response_id.encode() in reply.body
        await until(lambda: asyncio.all_tasks() <= before)
    assert replayed([reply]) == ["true"]
    assert len(provider.requests) == 1


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_when_all_clients_leave_while_it_is_planned_nothing_starts(body: dict[str, Any]) -> None:
    provider = Slow(answer(say("Hello")))
    engine = Engine(provider, store=MemoryStore())
    unnamed = {**body, "model": None}
    async with serving(engine) as server:
        before = asyncio.all_tasks()
        async with connected(server.port) as first, connected(server.port) as second:
            for wire in (first, second):
                wire.send("POST", RESPONSES, unnamed, KEY)
            await until(lambda: provider.asked == 1)
            first.vanish()
            second.vanish()
            async with asyncio.timeout(1.0):
                await until(lambda: asyncio.all_tasks() <= before)
        assert len(engine.idempotency_keys) == 0
        provider.go.set()
        reply = await server.ask("POST", RESPONSES, unnamed, KEY)
    assert (reply.status, replayed([reply])) == (200, [None])
    assert len(provider.requests) == 1


@pytest.mark.proves("MISTAKE-30")
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_was_cut_off_while_a_tool_ran_gets_the_same_response_and_no_second_call(
    body: dict[str, Any],
) -> None:
    begun, go, provider = (
        asyncio.Event(),
        asyncio.Event(),
        ScriptedProvider(answer(call("charge")), answer(say("Paid"))),
    )

    async def charge(asked: ToolCall, context: ToolContext) -> str:
        begun.set()
        await go.wait()
        return "charged"

    till = ToolServerFake("till", charge=charge)
    ring = Keyring([a_key("sk-ann", "ann", KeyLimits(concurrent=1))])
    engine = Engine(provider, executors=[till])
    order = {**body, "tools": [{"type": "mcp", "server_label": "till"}]}
    transport = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    async with serving(engine, transport) as server, connected(server.port) as first:
        headers = {**KEY, **bearing("sk-ann")}
        first.send("POST", RESPONSES, order, headers)
        await begun.wait()
        first.vanish()
        await until(lambda: transport.requests == 0)  # its place is free again
        again = asyncio.create_task(server.ask("POST", RESPONSES, order, headers))
        await until(lambda: transport.requests == 1)
        go.set()
        reply = await again
    assert (reply.status, replayed([reply]), b"Paid" in reply.body) == (200, ["true"], True)
    assert len(till.calls) == 1


async def test_a_client_that_reads_nothing_holds_neither_the_run_nor_the_others_back() -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say(" ".join(["word" * 50] * 4000)), go, say("end")), buffer_events=8)
    async with serving(engine) as server, connected(server.port, buffer=4096) as idle:
        idle.send("POST", RESPONSES, STREAMED, KEY)
        await idle.head()
        [run] = engine.live_runs.values()
        await until(lambda: run.log.next > 4000)
        reading = asyncio.create_task(server.ask("POST", RESPONSES, STREAMED, KEY))
        await until(lambda: len(run.clients) == 2)
        go.set()
        reply = await reading
        assert check_frames(reply.body).status == "completed"
        assert engine.live == 0
        idle.vanish()
    assert (replayed([reply]), len(provider.requests)) == (["true"], 1)


async def hosted(app: Transport, body: dict[str, Any]) -> tuple[int, bytes]:
    """The answer to a request that another's server hands us."""
    head = [(b"content-type", b"application/json"), (b"idempotency-key", b"key")]
    scope = {"type": "http", "method": "POST", "path": RESPONSES, "query_string": b"", "headers": head}
    come: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]
    sent: list[Message] = []

    async def receive() -> Message:
        return come.pop() if come else await asyncio.Event().wait()  # type: ignore[return-value]  # it never comes

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_request_that_a_host_breaks_off_does_not_break_off_another_with_the_same_key(
    body: dict[str, Any],
) -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say("Hello"), go))
    async with engine:
        app = Transport(engine)
        first, second = [asyncio.create_task(hosted(app, body)) for _ in range(2)]
        await until(lambda: provider.under_way == 1)
        [run] = engine.live_runs.values()
        await until(lambda: len(run.clients) == 2 and (app.streams == 2 or body is HELLO))
        first.cancel()
        status, said = await first
        if body is HELLO:
            assert (status, json.loads(said)["error"]["code"]) == (503, "request_cancelled")
        else:
            assert b"[DONE]" not in said
        assert provider.under_way == 1
        go.set()
        status, said = await second
    assert status == 200
    assert b'"status":"completed"' in said


# ---- what is seen of it ----


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {**record.__dict__["said"], **record.__dict__["fields"]}


async def test_the_line_of_a_replay_says_so_and_counts_no_tokens_twice(caplog: pytest.LogCaptureFixture) -> None:
    _, engine = scripted(answer(say("Hello"), usage=tokens(5, 7)))
    async with serving(engine) as server:
        with caplog.at_level(logging.INFO, "antwort.transport"):
            replies = [await server.ask("POST", RESPONSES, HELLO, KEY) for _ in range(2)]
    first, second = [fields_of(record) for record in caplog.records if record.name == "antwort.transport"]
    assert "replayed" not in first
    assert (first["output_tokens"], first["turns"]) == (7, 1)
    assert second["replayed"] is True
    assert (second["model"], second["response_status"]) == ("scripted", "completed")
    assert not {"input_tokens", "output_tokens", "turns"} & second.keys()
    assert second["response_id"] == replies[0].json()["id"]
    assert KEY["idempotency-key"] not in caplog.text


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_the_line_of_one_who_saw_the_end_says_what_it_took_when_the_one_who_started_it_has_left(
    body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()
    provider, engine = scripted(answer(say("Hello"), go, usage=tokens(5, 7)))
    with caplog.at_level(logging.INFO, "antwort.transport"):
        async with serving(engine) as server, connected(server.port) as first, connected(server.port) as second:
            first.send("POST", RESPONSES, body, KEY)
            await until(lambda: provider.under_way == 1)
            second.send("POST", RESPONSES, body, KEY)
            [run] = engine.live_runs.values()
            await until(lambda: len(run.clients) == 2)
            first.vanish()
            await until(lambda: len(run.clients) == 1 and len(caplog.records) == 1)
            go.set()
            await second.reply()
    left, stayed = [fields_of(record) for record in caplog.records if record.name == "antwort.transport"]
    assert (left["status"], left["response_id"]) == (499, stayed["response_id"])
    assert not {"replayed", "input_tokens", "output_tokens", "turns"} & left.keys()
    assert (stayed["replayed"], stayed["output_tokens"], stayed["turns"]) == (True, 7, 1)


async def test_a_replay_is_a_request_of_its_key_and_uses_no_tokens() -> None:
    ring = Keyring([a_key("sk-ann", "ann", KeyLimits(requests_per_minute=3, tokens_per_minute=12))])
    provider = ScriptedProvider(answer(say("Hello"), usage=tokens(5, 6)))
    engine = Engine(provider, store=MemoryStore(), on_end=[ring.quotas.count])
    transport = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    async with serving(engine, transport) as server:
        headers = {**KEY, **bearing("sk-ann")}
        replies = [await server.ask("POST", RESPONSES, HELLO, headers) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0", "0"]
    assert [reply.headers["x-ratelimit-remaining-tokens"] for reply in replies[1:]] == ["1", "1", "1"]


async def test_a_page_may_read_that_an_answer_is_a_replay() -> None:
    provider, engine = scripted(answer(say("Hello")))
    transport = Transport(engine, cors=Cors(["https://app.example"]))
    async with serving(engine, transport) as server:
        reply = await server.ask("POST", RESPONSES, HELLO, {**KEY, "origin": "https://app.example"})
    assert "idempotent-replayed" in reply.headers["access-control-expose-headers"]
    assert len(provider.requests) == 1


async def test_an_engine_that_a_program_mounts_has_keys_too() -> None:
    provider, engine = scripted(answer(say("Hello")))
    async with run_by_uvicorn(in_fastapi(create_app(engine)), loop="asyncio") as port:
        replies = [await ask_at(port, "POST", f"/ai{RESPONSES}", HELLO, KEY) for _ in range(2)]
    assert replies[0].body == replies[1].body
    assert replayed(replies) == [None, "true"]
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("body", "digest"),
    [
        ({"model": "m", "input": "x"}, "0aad4bc6514cf151c229cfe28fd07d9bddd2fb9da7f14ab08b494a28df0fefb0"),
        (
            {
                "model": "m",
                "input": "x",
                "unknown": 1,
                "store": False,
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            },
            "84cc33362a584fc0633ae1e67172f556185bc40144f5ab51471f097f8118f109",
        ),
    ],
)
def test_a_request_has_the_same_fingerprint_in_every_version(body: dict[str, Any], digest: str) -> None:
    """It is stored with the key: a request that is sent again after an update must still be the same."""
    assert fingerprint(parse_request(json.dumps(body).encode(), Limits())).hex() == digest
