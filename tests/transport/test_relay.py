"""What another process makes in the foreground is read there: the same request, passed on once, and its answer as it
comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from antwort.engine.engine import Engine
from antwort.identity import Identity
from antwort.peers import peer_asker
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, call, check_frames, say
from antwort.testing.frames import read_frames
from antwort.transport.http import Transport
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

NOWHERE = "http://127.0.0.1:1"


class Knowing(Engine):
    """Believes that another process makes whatever it is asked for."""

    address: str | None = None

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        return self.address


@asynccontextmanager
async def served(
    *answers: Answer, address: str | None = None, store: MemoryStore | None = None
) -> AsyncIterator[Serving]:
    engine = Knowing(ScriptedProvider(*answers), store=store or MemoryStore())
    engine.address = address
    async with serving(engine, Transport(engine, ask=peer_asker(15.0))) as server:
        yield server


@asynccontextmanager
async def raw(said: bytes, *, waits: asyncio.Event | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Another process that says the same to all and hangs up, or `waits` until whoever asked does, and sets that; its
    address, and the heads of what it was asked.
    """
    heads: list[bytes] = []
    over = asyncio.Event()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(said)
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
        await until(lambda: any(run.said is not None and run.said.sent == 5 for run in owner.engine._live.values()))
        (response_id,) = owner.engine._live
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
        await until(lambda: any(run.said is not None and run.said.sent == 5 for run in owner.engine._live.values()))
        (response_id,) = owner.engine._live
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
        marked = await one.ask("GET", f"{RESPONSES}/resp_none?stream=true", None, {"Antwort-Relayed": "1"})
    assert (missing.status, marked.status) == (404, 404)


async def test_it_carries_who_asks_and_nothing_of_the_connection() -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with raw(whole) as (address, heads), served(address=address) as server:
        sent = {"Authorization": "Bearer sk-secret", "X-Request-ID": "mine", "TE": "trailers", "X-Own": "a b"}
        reply = await server.ask("GET", f"{RESPONSES}/resp_1?stream=true&include=a%20b", None, sent)
    assert (reply.status, reply.body, reply.headers["x-request-id"]) == (200, b"{}", "mine")
    line, *fields = heads[0].decode().strip().split("\r\n")
    assert line == "GET /v1/responses/resp_1?stream=true&include=a+b HTTP/1.1"
    named = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    assert named["host"] == address.removeprefix("http://")
    assert [named[name] for name in ("authorization", "x-request-id", "x-own", "antwort-relayed")] == [
        "Bearer sk-secret",
        "mine",
        "a b",
        "1",
    ]
    assert "te" not in named
    assert len(named) == len(fields)


@pytest.mark.parametrize("address", [NOWHERE, "nonsense"])
async def test_where_nobody_answers_the_record_is_shown_as_it_stands(address: str) -> None:
    hold, store = asyncio.Event(), MemoryStore()
    async with served(answer(say("Hello"), hold), store=store) as owner, served(address=address, store=store) as other:
        made = asyncio.ensure_future(owner.ask("POST", RESPONSES, HELLO))
        await until(lambda: owner.engine.live == 1)
        (response_id,) = owner.engine._live
        reply = await other.ask("GET", f"{RESPONSES}/{response_id}")
        hold.set()
        await made
    assert (reply.status, reply.json()["status"]) == (200, "in_progress")


BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\n: hi\n\r\n"


async def test_where_nobody_answers_the_rest_of_a_stream_is_to_be_asked_for_again() -> None:
    """Nobody else knows which event had the number; whoever makes it may be back in a moment."""
    async with served(answer(say("Hello")), address=NOWHERE) as server:
        response_id = (await server.ask("POST", RESPONSES, HELLO)).json()["id"]
        reply = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after=3")
    assert (reply.status, reply.error["code"]) == (500, "storage_error")


async def test_a_stream_that_breaks_off_there_ends_here_without_its_mark() -> None:
    async with raw(BEGUN) as (address, _), served(address=address) as server:
        reply = await server.ask("GET", f"{RESPONSES}/resp_1?stream=true")
    assert reply.body == b": hi\n"


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
