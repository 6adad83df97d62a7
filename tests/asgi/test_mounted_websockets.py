"""WebSockets of an application that another's server runs, alone or as a part of another application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from antwort.asgi import Application, create_app
from antwort.engine.engine import Engine
from antwort.server.exchange import Message
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, say
from engine_kit import sent_messages, text_of
from mounted import in_fastapi, in_starlette, run_by_uvicorn
from serving import until
from socket_kit import connected


def scripted(*answers: Answer) -> tuple[Application, ScriptedProvider]:
    provider = ScriptedProvider(*answers)
    return create_app(Engine(provider, store=MemoryStore())), provider


@pytest.mark.parametrize("where", ["alone", "starlette", "fastapi"])
async def test_turns_go_on_from_each_other_wherever_the_application_stands(where: str) -> None:
    ai, provider = scripted(answer(say("one two")), answer(say("three")))
    app = ai if where == "alone" else in_starlette(ai) if where == "starlette" else in_fastapi(ai)
    prefix = "" if where == "alone" else "/ai"
    async with run_by_uvicorn(app, ws="auto") as port:
        async with connected(port, f"{prefix}/v1/responses") as socket:
            first = await socket.ask(store=False, input="a")
            second = await socket.ask(store=False, input="b", previous_response_id=first.id)
            assert text_of(second) == "three"
            await socket.create(previous_response_id="resp_unknown")
            assert (await socket.error())["code"] == "previous_response_not_found"
        with pytest.raises(InvalidStatus) as caught:
            async with connected(port, f"{prefix}/v1/models"):
                pass
        assert caught.value.response.status_code == 404
    assert [text for _, text in sent_messages(provider.requests[1])] == ["a", "one two", "b"]


async def test_a_client_that_goes_ends_its_run_under_any_server() -> None:
    ai, provider = scripted(answer(say("one"), asyncio.Event()))
    async with run_by_uvicorn(ai, ws="auto") as port:
        async with connected(port) as socket:
            await socket.create()
            await socket.until("response.output_text.delta")
            engine = ai.engine
        await until(lambda: engine.live == 0)
    assert provider.under_way == 0


async def test_a_server_that_stops_breaks_a_turn_off_and_the_run_ends() -> None:
    ai, provider = scripted(answer(say("one"), asyncio.Event()))
    async with contextlib.AsyncExitStack() as stack:
        async with run_by_uvicorn(ai, ws="auto") as port:
            socket = await stack.enter_async_context(connected(port))
            await socket.create()
            await socket.until("response.output_text.delta")
            engine = ai.engine
        assert (engine.live, provider.under_way) == (0, 0)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.hear()
        assert socket.wire.close_code == CloseCode.SERVICE_RESTART


# ---- without a server ----


class Host:
    """Another's server, as far as one connection sees it."""

    def __init__(self, *messages: Message) -> None:
        self.sent: list[Message] = []
        self.came: asyncio.Queue[Message] = asyncio.Queue()
        for message in ({"type": "websocket.connect"}, *messages):
            self.came.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def serve(self, app: Application) -> asyncio.Task[None]:
        scope = {"type": "websocket", "path": "/v1/responses", "query_string": b"", "headers": []}

        async def run() -> None:
            await app(scope, self.came.get, self.send)

        return asyncio.create_task(run())

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]


CREATE = {"type": "websocket.receive", "text": '{"type": "response.create", "model": "scripted", "input": "Hello"}'}


async def test_an_application_that_stops_closes_what_is_idle_and_lets_a_turn_end() -> None:
    go = asyncio.Event()
    ai, _ = scripted(answer(say("one"), go, say("two")))
    idle, busy = Host(), Host(CREATE)
    await ai.start()
    tasks = [idle.serve(ai), busy.serve(ai)]
    await until(lambda: any("output_text.delta" in message.get("text", "") for message in busy.sent))
    stopping = asyncio.create_task(ai.stop())
    await tasks[0]
    assert idle.sent[-1] == {"type": "websocket.close", "code": 1012, "reason": "server_shutting_down"}
    assert not tasks[1].done()
    go.set()
    await stopping
    await tasks[1]
    assert '"response.completed"' in busy.sent[-2]["text"]
    assert busy.sent[-1]["code"] == 1012


async def test_a_connection_that_its_server_breaks_off_ends_its_run() -> None:
    ai, provider = scripted(answer(say("one"), asyncio.Event()))
    host = Host(CREATE)
    await ai.start()
    before = asyncio.all_tasks()
    task = host.serve(ai)
    await until(lambda: any("output_text.delta" in message.get("text", "") for message in host.sent))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: ai.engine.live == 0 and provider.under_way == 0)
    await until(lambda: asyncio.all_tasks() <= before)
    await ai.stop()


async def test_an_application_that_was_stopped_refuses_in_words() -> None:
    ai, _ = scripted()
    await ai.start()
    await ai.stop()
    host = Host()
    scope = {
        "type": "websocket",
        "path": "/v1/responses",
        "query_string": b"",
        "headers": [],
        "extensions": {"websocket.http.response": {}},
    }
    await ai(scope, host.came.get, host.send)
    assert [message["type"] for message in host.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert host.sent[0]["status"] == 503


async def test_an_application_that_nobody_has_started_starts_at_its_first_connection() -> None:
    ai, _ = scripted(answer(say("one")))
    host = Host(CREATE, {"type": "websocket.disconnect", "code": 1000})
    await host.serve(ai)
    assert host.types[0] == "websocket.accept"
    assert ai.engine.is_open
    await ai.stop()


async def test_a_connection_that_has_ended_is_not_kept() -> None:
    ai, _ = scripted()
    await ai.start()
    task = Host({"type": "websocket.disconnect", "code": 1000}).serve(ai)
    ended = weakref.ref(task)
    await until(task.done)
    del task
    gc.collect()
    assert ended() is None
    await ai.stop()
