"""What another process makes in the foreground is read there: the same request, passed on once, and its answer as it
comes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from antwort.app import peer_asker
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.errors import NotAuthenticated
from antwort.identity import ANONYMOUS, Identity
from antwort.server.http import Transport
from antwort.server.relay import RelayTokens
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import Traits
from antwort.testing import Answer, ScriptedProvider, answer, call, check_frames, say
from antwort.testing.frames import read_frames
from raw_http import connected
from run_log_kit import ForwardingLog
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until
from takeover_kit import Rows

NOWHERE = "http://127.0.0.1:1"


VAULT = Vault(["the same in all processes"])


class Shared(ForwardingLog):
    """Others may write it as well, for all that is known."""

    traits = Traits(durability="process", many=True)


class Knowing(Engine):
    """Believes that another process makes whatever it is asked for."""

    address: str | None = None

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        return self.address


@asynccontextmanager
async def served(
    *answers: Answer, address: str | None = None, store: MemoryStore | None = None, linger: float = 30.0
) -> AsyncIterator[Serving]:
    kept = store or MemoryStore()
    engine = Knowing(ScriptedProvider(*answers), store=kept, vault=VAULT, runs=Shared(kept))
    engine.address = address
    async with serving(engine, Transport(engine, ask=peer_asker(15.0), linger=linger)) as server:
        yield server


def proof(token: str) -> bytes:
    """As a process answers that can open what it was sent."""
    nonce = json.loads(VAULT.open("relay", "", token))["nonce"]
    return b"antwort-relayed: %b" % VAULT.seal("relay answer", "", nonce.encode()).encode()


@asynccontextmanager
async def raw(
    said: bytes, *, proves: bool = True, waits: asyncio.Event | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Another process that says the same to all and hangs up, or `waits` until whoever asked does, and sets that; its
    address, and the heads of what it was asked.
    """
    heads: list[bytes] = []
    over = asyncio.Event()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        token = heads[-1].decode().partition("antwort-relayed: ")[2].partition("\r\n")[0]
        first, _, rest = said.partition(b"\r\n")
        writer.write(b"\r\n".join([first, *([proof(token)] if proves else []), rest]))
        await writer.drain()
        if waits is not None:
            with suppress(ConnectionError):
                await reader.read()
            waits.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
        async with asyncio.timeout(5):
            await over.wait()
    finally:
        server.close()
        await server.wait_closed()


def of(server: Serving) -> str:
    return f"http://127.0.0.1:{server.port}"


async def test_a_stream_is_passed_on_as_it_comes_from_any_number_on() -> None:
    hold = asyncio.Event()
    async with served(answer(say("Hello"), hold, say(" there"))) as owner, served(address=of(owner)) as other:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: any(run.log.next == 5 for run in owner.engine.live_runs.values()))
        (response_id,) = owner.engine.live_runs
        async with connected(other.port) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=1")
            head = await wire.head()
            seen = await wire.chunk()
            hold.set()
            while not seen.endswith(b"[DONE]\n\n"):
                seen += await wire.chunk()
        whole = (await made).body
        assert (await other.ask("GET", f"{RESPONSES}/{response_id}?stream=true")).body == whole
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert [*read_frames(seen)] == [*read_frames(whole)][2:]


async def test_a_response_is_shown_as_it_stands_there_until_it_has_ended() -> None:
    hold, store = asyncio.Event(), MemoryStore()
    talk = answer(say("Hello"), hold, call("weather"))
    async with served(talk, store=store) as owner, served(address=of(owner), store=store) as other:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: any(run.log.next == 5 for run in owner.engine.live_runs.values()))
        (response_id,) = owner.engine.live_runs
        shown = [(await each.ask("GET", f"{RESPONSES}/{response_id}")).body for each in (owner, other)]
        hold.set()
        await made
        assert isinstance(other.engine, Knowing)
        other.engine.address = NOWHERE
        ended = [(await each.ask("GET", f"{RESPONSES}/{response_id}")).body for each in (owner, other)]
    assert shown[0] == shown[1]
    assert ended[0] == ended[1] != shown[0]
    assert b'"output":[{' in shown[0]


async def test_what_is_wrong_is_told_as_it_was_told_there() -> None:
    async with served(answer(say("Hello"))) as owner, served(address=of(owner)) as other:
        response_id = check_frames((await owner.ask("POST", RESPONSES, STREAMED)).body).id
        reply = await other.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=99")
    assert (reply.status, reply.error["param"]) == (400, "starting_after")


async def test_a_request_is_passed_on_once() -> None:
    async with served(answer(say("Hello"))) as one, served(address=of(one)) as other:
        assert isinstance(one.engine, Knowing)
        one.engine.address = of(other)
        missing = await one.ask("GET", f"{RESPONSES}/resp_none?stream=true")
    assert missing.status == 404


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}"


async def test_it_carries_who_asks_sealed_and_nothing_that_the_client_has_sent() -> None:
    async with raw(WHOLE) as (address, heads), served(address=address) as server:
        sent = {"Authorization": "Bearer sk-secret", "X-Request-ID": "mine", "Cookie": "a=b", "X-Long": "x" * 60_000}
        reply = await server.ask("GET", f"{RESPONSES}/resp_1?stream=true&include=a%20b", None, sent)
    assert (reply.status, reply.body, reply.headers["x-request-id"]) == (200, b"{}", "mine")
    assert reply.headers["retry-after"] == "7"
    assert "antwort-relayed" not in reply.headers
    line, *fields = heads[0].decode().strip().split("\r\n")
    assert line == "GET /v1/responses/resp_1?stream=true&include=a+b HTTP/1.1"
    named = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    assert named.keys() <= {"host", "x-request-id", "antwort-relayed", "accept", "user-agent", "accept-encoding"}
    assert (named["host"], named["x-request-id"]) == (address.removeprefix("http://"), "mine")
    assert b"default" not in heads[0]


async def test_whoever_cannot_open_it_is_not_believed() -> None:
    """The process that was there has gone, and a stranger listens in its place."""
    store = Rows()
    async with served(answer(say("Hello"), hold := asyncio.Event()), store=store) as owner:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: owner.engine.live == 1)
        (response_id,) = owner.engine.live_runs
        async with raw(WHOLE, proves=False) as (address, _), served(address=address, store=store) as server:
            reply = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true")
        hold.set()
        await made
    assert (reply.status, reply.error["code"]) == (503, "maker_unreachable")


def token(target: str, identity: Identity = ANONYMOUS, *, late: float = 0.0, vault: Vault = VAULT) -> dict[str, str]:
    issued, _ = RelayTokens(vault, lambda: time.time() - late).issue(identity, target)
    return {"Antwort-Relayed": issued}


async def test_the_owner_takes_who_asks_from_what_is_sealed() -> None:
    ada, target = Identity("default", "ada"), f"{RESPONSES}/resp_1"

    def nobody(_: object) -> Identity:
        raise NotAuthenticated("a key is missing")

    engine = Engine(ScriptedProvider(answer(say("Hello"))), vault=VAULT)
    response = await engine.create(input="Hello", model="scripted", identity=ada)
    async with serving(engine, Transport(engine, identify=nobody)) as server:
        target = f"{RESPONSES}/{response.id}"
        good = await server.ask("GET", target, None, token(target, ada))
        stranger = await server.ask("GET", target, None, token(target))
        refused = [
            await server.ask("GET", target, None, headers)
            for headers in (
                {"Antwort-Relayed": "1"},
                token(target, ada, late=61),
                token(target, ada, late=-61),
                token(target, ada, vault=Vault(["of somebody else entirely"])),
                token(target + "?stream=true", ada),
            )
        ]
        other = await server.ask("DELETE", target, None, token(target, ada))
    assert (good.status, good.json()["id"], stranger.status) == (200, response.id, 404)
    assert {(reply.status, reply.error["code"]) for reply in [*refused, other]} == {(401, "invalid_api_key")}
    assert all("antwort-relayed" not in reply.headers for reply in [*refused, other])
    assert "antwort-relayed" in good.headers


async def test_what_comes_first_is_told_without_the_rest() -> None:
    hold, store = asyncio.Event(), MemoryStore()
    async with (
        served(answer(say("Hello"), hold), store=store) as owner,
        served(address=of(owner), store=store) as other,
    ):
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: any(run.log.next == 5 for run in owner.engine.live_runs.values()))
        (response_id,) = owner.engine.live_runs
        stream = await other.ask("HEAD", f"{RESPONSES}/{response_id}?stream=true")
        heads = [await each.ask("HEAD", f"{RESPONSES}/{response_id}") for each in (owner, other)]
        hold.set()
        await made
    assert (stream.status, stream.headers["content-type"], stream.body) == (
        200,
        "text/event-stream; charset=utf-8",
        b"",
    )
    assert heads[0].headers["content-length"] == heads[1].headers["content-length"]


async def test_one_who_reads_nothing_is_not_waited_for_when_the_response_has_ended() -> None:
    store, hold = MemoryStore(), asyncio.Event()
    text = [piece for _ in range(3) for piece in say("x" * 2_000_000)]
    async with (
        served(answer(say("Hello"), hold, text), store=store) as owner,
        served(address=of(owner), store=store, linger=0.1) as other,
    ):
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: owner.engine.live == 1)
        (response_id,) = owner.engine.live_runs
        async with connected(other.port, buffer=4096) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true")
            await wire.head()
            hold.set()
            await made
            await until(lambda: not other.server.server_state.connections)


@pytest.mark.parametrize("address", [NOWHERE, "nonsense"])
async def test_where_nobody_answers_the_record_is_shown_as_it_stands(address: str) -> None:
    hold, store = asyncio.Event(), MemoryStore()
    async with served(answer(say("Hello"), hold), store=store) as owner, served(address=address, store=store) as other:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, HELLO))
        await until(lambda: owner.engine.live == 1)
        (response_id,) = owner.engine.live_runs
        reply = await other.ask("GET", f"{RESPONSES}/{response_id}")
        hold.set()
        await made
    assert (reply.status, reply.json()["status"]) == (200, "in_progress")


BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\n: hi\n\r\n"


@pytest.mark.parametrize("query", ["", "&starting_after=3"])
async def test_where_nobody_answers_a_stream_is_to_be_asked_for_again(query: str) -> None:
    """Nobody else knows which event had which number; whoever makes it may be back in a moment."""
    hold, store = asyncio.Event(), MemoryStore()
    async with served(answer(say("Hello"), hold), store=store) as owner, served(address=NOWHERE, store=store) as other:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, STREAMED))
        await until(lambda: owner.engine.live == 1)
        (response_id,) = owner.engine.live_runs
        reply = await other.ask("GET", f"{RESPONSES}/{response_id}?stream=true{query}")
        hold.set()
        whole = (await made).body
        again = await other.ask("GET", f"{RESPONSES}/{response_id}?stream=true{query}")
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "maker_unreachable", "1")
    assert [*read_frames(again.body)] == [*read_frames(whole)][4 if query else 0 :]


async def test_a_stream_that_breaks_off_there_breaks_off_here() -> None:
    async with raw(BEGUN) as (address, _), served(address=address) as server, connected(server.port) as wire:
        wire.send("GET", f"{RESPONSES}/resp_1?stream=true")
        await wire.head()
        assert await wire.chunk() == b": hi\n"
        with pytest.raises(asyncio.IncompleteReadError):
            await wire.chunk()


async def test_one_who_leaves_is_not_waited_for_there() -> None:
    gone = asyncio.Event()
    async with raw(BEGUN, waits=gone) as (address, _), served(address=address) as server:
        async with connected(server.port) as wire:
            wire.send("GET", f"{RESPONSES}/resp_1?stream=true")
            await wire.head()
            await wire.chunk()
            wire.vanish()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_without_a_way_to_ask_nobody_is_asked() -> None:
    engine = Knowing(ScriptedProvider(), store=MemoryStore())
    engine.address = NOWHERE
    async with serving(engine) as server:
        reply = await server.ask("GET", f"{RESPONSES}/resp_1")
    assert reply.status == 404
