"""API keys over a real server: who is let in, what a stranger is told, and what a key may use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256

import pytest
from openai import AsyncOpenAI, AuthenticationError

from antwort.engine.engine import Engine
from antwort.engine.runs.live import RunSummary
from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.exchange import Exchange, Message
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, demo_provider, say
from key_kit import SECRET, a_key, bearing
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

ANN = bearing(SECRET)
CALLS = {
    ("GET", RESPONSES),
    ("POST", RESPONSES),
    ("GET", f"{RESPONSES}/resp_1"),
    ("DELETE", f"{RESPONSES}/resp_1"),
    ("POST", f"{RESPONSES}/resp_1/cancel"),
    ("GET", f"{RESPONSES}/resp_1/input_items"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/scripted"),
    ("GET", "/nowhere"),
    ("PUT", RESPONSES),
    ("OPTIONS", RESPONSES),
    ("GET", "/%68ealthz"),
}


@asynccontextmanager
async def behind(ring: Keyring, *answers: Answer) -> AsyncIterator[Serving]:
    provider = ScriptedProvider(*answers) if answers else demo_provider()
    engine = Engine(provider, store=MemoryStore(), on_end=[ring.quotas.count])
    async with serving(engine, Transport(engine, identify=ring.identify, quotas=ring.quotas)) as server:
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with behind(Keyring([a_key()])) as running:
        yield running


# ---- who is let in ----


@pytest.mark.parametrize(
    "headers",
    [
        ANN,
        {"authorization": f"bearer {SECRET}"},
        {"Authorization": f"BEARER   {SECRET}  "},
        {"api-key": SECRET},
        {"x-api-key": SECRET},
        {"api-key": SECRET, "x-api-key": SECRET},
        {"authorization": f"Bearer {SECRET}", "api-key": "another"},
        {"authorization": "Basic dXNlcjpwYXNz", "x-api-key": SECRET},  # for a proxy on the way
        {"authorization": "", "api-key": SECRET, "x-api-key": " "},
    ],
)
async def test_a_key_is_taken_in_any_of_the_ways_that_clients_send_it(server: Serving, headers: dict[str, str]) -> None:
    assert (await server.ask("POST", RESPONSES, HELLO, headers)).status == 200


STRANGERS = {
    "no key": {},
    "an empty header": {"authorization": " "},
    "a wrong key": {"authorization": "Bearer sk-wrong"},
    "a wrong key elsewhere": {"x-api-key": "sk-wrong"},
    "a part of the key": {"authorization": f"Bearer {SECRET[:-1]}"},
    "the digest of the key": {"authorization": f"Bearer {sha256(SECRET.encode()).hexdigest()}"},
    "no scheme": {"authorization": SECRET},
    "another scheme": {"authorization": f"Basic {SECRET}"},
    "a scheme alone": {"authorization": "Bearer"},
    "two keys": {"authorization": f"Bearer {SECRET} {SECRET}"},
    "another scheme and a wrong key": {"authorization": f"Basic {SECRET}", "x-api-key": "sk-wrong"},
    "two plain keys": {"api-key": SECRET, "x-api-key": "sk-wrong"},
    "two plain keys, the other way round": {"api-key": "sk-wrong", "x-api-key": SECRET},
    "a wrong key first": {"authorization": "Bearer sk-wrong", "api-key": SECRET},
    "the header twice": {"authorization": f"Bearer {SECRET}", "Authorization": f"Bearer {SECRET}"},
}


@pytest.mark.proves("MISTAKE-27", "RULING-12")
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_gets_the_same_401_everywhere(server: Serving, stranger: str) -> None:
    bodies = set()
    for method, path in CALLS:
        reply = await server.ask(method, path, HELLO if method == "POST" else None, STRANGERS[stranger])
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert (reply.error["type"], reply.error["code"]) == ("authentication_error", "invalid_api_key")
        assert reply.headers["x-should-retry"] == "false"
        bodies.add(reply.body)
    [body] = bodies
    assert b"sk-" not in body
    assert server.engine.live == 0


@pytest.mark.proves("MISTAKE-27")
async def test_a_ring_without_keys_lets_nobody_in() -> None:
    async with behind(Keyring([])) as server:
        for headers in ({}, ANN, {"authorization": "Bearer "}, {"api-key": ""}):
            assert (await server.ask("GET", "/v1/models", None, headers)).status == 401


async def test_no_body_is_read_for_a_stranger(server: Serving) -> None:
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, b"{", {"content-length": "1000000"})
        async with asyncio.timeout(5):
            assert (await wire.reply()).status == 401


async def test_a_server_without_keys_ignores_the_one_that_a_client_must_send() -> None:
    async with serving(Engine(demo_provider(), store=MemoryStore())) as server:
        assert (await server.ask("POST", RESPONSES, HELLO, {"authorization": "Bearer none"})).status == 200


def test_neither_a_ring_nor_a_key_shows_the_secret() -> None:
    ring = Keyring([a_key()])
    assert SECRET not in f"{ring!r} {vars(ring)!r} {a_key()!r}"


def test_the_same_key_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="the same"):
        Keyring([a_key(), a_key(name="bob")])


async def test_a_client_library_is_let_in_by_its_key_and_told_why_it_is_not(server: Serving) -> None:
    async with AsyncOpenAI(base_url=server.url, api_key=SECRET) as client:
        made = await client.responses.create(model="scripted", input="Hello")
        assert (await client.responses.retrieve(made.id)).id == made.id
    async with AsyncOpenAI(base_url=server.url, api_key="sk-wrong") as client:
        with pytest.raises(AuthenticationError) as caught:
            await client.responses.create(model="scripted", input="Hello", stream=True)
        assert (caught.value.code, "sk-wrong" in str(caught.value)) == ("invalid_api_key", False)


# ---- what is open ----


@pytest.mark.parametrize("headers", [{}, ANN, {"authorization": "Bearer sk-wrong"}])
async def test_whether_the_server_lives_is_for_everybody_and_its_parts_for_those_let_in(
    server: Serving, headers: dict[str, str]
) -> None:
    assert (await server.ask("GET", "/healthz", None, headers)).json() == {"status": "ok"}
    ready = await server.ask("GET", "/readyz", None, headers)
    shown = {"store": "ok", "backend": "ok"} if headers is ANN else {}
    assert (ready.status, ready.json()) == (200, {"status": "ok", **shown})


async def test_another_endpoint_is_open_and_decides_for_itself() -> None:
    ring = Keyring([a_key(), a_key("sk-reader", "reader", metrics=True)])

    async def read(exchange: Exchange, subject: str) -> None:
        assert subject == ""
        if not ring.may_read_metrics(exchange.scope):
            raise NotAuthenticated("These are not for you.")
        await exchange.answer(b"up 1\n", kind=b"text/plain")

    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, identify=ring.identify, extra={"/metrics": read})) as server:
        for headers in ({}, ANN, {"authorization": "Bearer sk-wrong"}):
            assert (await server.ask("GET", "/metrics", None, headers)).error["message"] == "These are not for you."
        reply = await server.ask("GET", "/metrics", None, bearing("sk-reader"))
        assert (reply.body, reply.headers["content-type"]) == (b"up 1\n", "text/plain")
        assert (await server.ask("POST", "/metrics", {}, ANN)).status == 405


# ---- what a key may use ----


def limited(**limits: int) -> Keyring:
    return Keyring([a_key(limits=KeyLimits(**limits)), a_key("sk-other", "other")], clock=lambda: 0.0)


@pytest.mark.proves("RULING-12")
async def test_requests_over_the_limit_are_a_429_that_says_when_to_come_back() -> None:
    async with behind(limited(requests_per_minute=2)) as server:
        first = await server.ask("POST", RESPONSES, STREAMED, ANN)
        wrong = await server.ask("POST", RESPONSES, {"input": 5}, ANN)
        over = await server.ask("POST", RESPONSES, HELLO, ANN)
        assert (first.status, wrong.status, over.status) == (200, 400, 429)
        told = [reply.headers["x-ratelimit-remaining-requests"] for reply in (first, wrong, over)]
        assert told == ["1", "0", "0"]
        assert (over.headers["retry-after"], over.headers["x-ratelimit-reset-requests"]) == ("30", "1m0s")
        assert (over.error["type"], over.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert (await server.ask("GET", "/v1/models", None, ANN)).status == 200
        other = await server.ask("POST", RESPONSES, HELLO, bearing("sk-other"))
        assert other.status == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]


async def test_tokens_are_counted_when_a_response_ends() -> None:
    ring = limited(tokens_per_minute=3)
    async with behind(ring) as server:
        first = await server.ask("POST", RESPONSES, HELLO, ANN)
        assert first.json()["usage"]["total_tokens"] >= 3
        over = await server.ask("POST", RESPONSES, HELLO, ANN)
        assert (over.status, over.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
        assert (await server.ask("POST", RESPONSES, HELLO, bearing("sk-other"))).status == 200


async def test_a_response_whose_usage_never_came_is_counted_all_the_same() -> None:
    ring = limited(tokens_per_minute=1)
    told: list[RunSummary] = []
    provider = ScriptedProvider(*[answer(say("Hi"), ValueError("broken"))] * 2)
    engine = Engine(provider, store=MemoryStore(), on_end=[told.append, ring.quotas.count])
    async with serving(engine, Transport(engine, identify=ring.identify, quotas=ring.quotas)) as server:
        statuses = [(await server.ask("POST", RESPONSES, HELLO, ANN)).status for _ in range(2)]
    assert statuses == [200, 429]
    assert [(ended.response.usage, ended.plan.identity.key) for ended in told] == [(None, "ann")]


# ---- a place is given back, however a request ends ----


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_place_is_taken_until_the_answer_is_out(body: dict[str, object]) -> None:
    hold, ring = asyncio.Event(), limited(concurrent=1)
    async with behind(ring, answer(say("Hello"), hold), answer(say("Hello"))) as server:
        asking = asyncio.create_task(server.ask("POST", RESPONSES, body, ANN))
        await until(lambda: server.engine.live == 1)
        over = await server.ask("POST", RESPONSES, body, ANN)
        assert (over.status, over.headers["retry-after"]) == (429, "1")
        hold.set()
        assert (await asking).status == 200
        assert (await server.ask("POST", RESPONSES, body, ANN)).status == 200


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "streamed"])
async def test_a_client_that_leaves_gives_its_place_back(body: dict[str, object]) -> None:
    ring = limited(concurrent=1)
    async with behind(ring, answer(say("Hello"), asyncio.Event()), answer(say("Hello"))) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, body, ANN)
            await until(lambda: server.engine.live == 1)
            wire.vanish()
        await until(lambda: ring.quotas.of("ann").under_way == 0)
        assert (await server.ask("POST", RESPONSES, body, ANN)).status == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body_gives_its_place_back() -> None:
    ring = limited(concurrent=1)
    async with behind(ring) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, b"{", {**ANN, "content-length": "100"})
            await until(lambda: ring.quotas.of("ann").under_way == 1)
            wire.vanish()
        await until(lambda: ring.quotas.of("ann").under_way == 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"not json", 400), ({"model": "scripted", "input": "x", "previous_response_id": "resp_1"}, 404)],
)
async def test_a_request_that_fails_gives_its_place_back(body: bytes | dict[str, object], status: int) -> None:
    async with behind(limited(concurrent=1)) as server:
        for _ in range(2):
            assert (await server.ask("POST", RESPONSES, body, ANN)).status == status


async def test_a_response_that_is_cancelled_gives_its_place_back() -> None:
    ring = limited(concurrent=1)
    async with behind(ring, answer(say("Hello"), asyncio.Event()), answer(say("Hello"))) as server:
        asking = asyncio.create_task(server.ask("POST", RESPONSES, HELLO, ANN))
        await until(lambda: server.engine.live == 1)
        [response_id] = server.engine.live_runs
        assert (await server.ask("POST", f"{RESPONSES}/{response_id}/cancel", None, ANN)).status == 200
        assert (await asking).json()["status"] == "cancelled"
        assert (await server.ask("POST", RESPONSES, HELLO, ANN)).status == 200


async def test_a_request_that_is_cancelled_by_its_server_gives_its_place_back() -> None:
    """A server other than ours cancels the task that answers; the client is told why."""
    ring = limited(concurrent=1)
    engine = Engine(ScriptedProvider(answer(say("Hello"), asyncio.Event())), store=MemoryStore())
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas)
    messages: list[Message] = [{"type": "http.request", "body": json.dumps(HELLO).encode()}]
    headers = [(b"content-type", b"application/json"), (b"authorization", ANN["authorization"].encode())]
    scope = {"type": "http", "method": "POST", "path": RESPONSES, "query_string": b"", "headers": headers}

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    answering = asyncio.create_task(app(scope, receive, send))
    await until(lambda: engine.live == 1)
    assert ring.quotas.of("ann").under_way == 1
    answering.cancel()
    await answering
    assert ring.quotas.of("ann").under_way == 0
    assert sent[0]["status"] == 503
    await engine.close()


# ---- runs without their clients, and streams that are read again ----

CONTINUE = {"antwort-on-disconnect": "continue"}


async def leave_behind(server: Serving, headers: dict[str, str]) -> None:
    """Ask for a response that goes on without its client, and go away."""
    under_way = server.engine.live
    async with connected(server.port) as wire:
        wire.send("POST", RESPONSES, STREAMED, {**ANN, **CONTINUE, **headers})
        await until(lambda: server.engine.live > under_way)
        wire.vanish()
    await until(lambda: not server.server.server_state.connections)


async def test_a_response_that_goes_on_without_its_client_has_its_place_until_it_has_ended() -> None:
    hold, ring = asyncio.Event(), limited(concurrent=1)
    async with behind(ring, answer(say("Hello"), hold), answer(say("Hello"))) as server:
        await leave_behind(server, {})
        assert (await server.ask("POST", RESPONSES, HELLO, ANN)).status == 429
        hold.set()
        await until(lambda: ring.quotas.of("ann").under_way == 0)
        assert (await server.ask("POST", RESPONSES, HELLO, ANN)).status == 200


async def test_a_response_and_the_request_that_comes_back_to_it_have_one_place() -> None:
    hold, ring = asyncio.Event(), limited(concurrent=2)
    async with behind(ring, *[answer(say("Hello"), hold)] * 2) as server:
        for key in ("one", "two"):
            await leave_behind(server, {"idempotency-key": key})
        back = [
            asyncio.create_task(server.ask("POST", RESPONSES, STREAMED, {**ANN, "idempotency-key": key}))
            for key in ("one", "two")
        ]
        await until(lambda: ring.quotas.of("ann").under_way == 4)
        for key in ("", "one"):
            assert (await server.ask("POST", RESPONSES, STREAMED, {**ANN, "idempotency-key": key})).status == 429
        hold.set()
        assert [(await reply).status for reply in back] == [200, 200]
        await until(lambda: ring.quotas.of("ann").under_way == 0)


async def test_a_key_may_read_as_many_streams_again_as_it_may_have_responses_and_they_are_counted_apart() -> None:
    hold, ring = asyncio.Event(), limited(concurrent=1)
    async with behind(ring, answer(say("Hello"), hold)) as server:
        await leave_behind(server, {})
        (name,) = server.engine.live_runs
        stream = f"{RESPONSES}/{name}?stream=true"
        async with connected(server.port) as first:
            first.send("GET", stream, None, ANN)
            assert (await first.head()).status == 200
            assert (await server.ask("GET", stream, None, ANN)).status == 429
            assert (await server.ask("GET", f"{RESPONSES}/{name}", None, ANN)).status == 200
        await until(lambda: not server.server.server_state.connections)
        hold.set()
        assert (await server.ask("GET", stream, None, ANN)).status == 200


async def test_no_tenant_and_no_subject_of_one_shuts_the_others_out_from_reading_streams_again() -> None:
    """Of eight places, a tenant has at most four, and one of its subjects two."""
    people = {"ann": "acme", "amy": "acme", "abe": "acme", "bob": "other"}
    ring = Keyring([a_key(name, name, identity=Identity(tenant, name, key=name)) for name, tenant in people.items()])
    engine = Engine(ScriptedProvider(*[answer(say("Hello"), asyncio.Event())] * 4), store=MemoryStore())
    app = Transport(engine, identify=ring.identify, quotas=ring.quotas, followers=8)
    async with serving(engine, app) as server, AsyncExitStack() as open_ones:

        async def reads_again(who: str) -> int:
            wire = await open_ones.enter_async_context(connected(server.port))
            wire.send("GET", f"{RESPONSES}/{names[who]}?stream=true", None, bearing(who))
            return (await wire.head()).status

        names: dict[str, str] = {}
        for who in people:
            queued = await server.ask("POST", RESPONSES, {**HELLO, "background": True}, bearing(who))
            names[who] = queued.json()["id"]
        seen = [await reads_again(who) for who in ("ann", "ann", "ann", "amy", "amy", "abe", "bob", "bob")]
    assert seen == [200, 200, 503, 200, 200, 503, 200, 200]
