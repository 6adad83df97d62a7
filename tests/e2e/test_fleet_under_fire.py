"""Two backends with the same model, one killed under load: no request fails that had not sent a delta yet."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Literal, NamedTuple, TypeAlias

from antwort.app import App, build
from antwort.config import Settings
from antwort.config.settings import BackendSettings, RoutingSettings
from chat_backend import ChatBackend, Says
from serving import RESPONSES, Serving, serving, until

REQUESTS, AT_ONCE = 200, 32
Phase: TypeAlias = Literal["before headers", "after headers", "in the answer", "not held"]
PHASES: tuple[Phase, ...] = ("before headers", "after headers", "in the answer", "not held")


class Doomed(ChatBackend):
    """Three in four answers stop at one of the phases and wait there for the end."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[tuple[bool, Phase]] = Counter()
        self._asked: Counter[bool] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()

    async def kill(self) -> None:
        """As a process that dies: nothing listens any more, and every connection is reset."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self.__aexit__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await super()._serve(reader, writer)
        self._writers.discard(writer)

    async def _play(
        self, answer: Any, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        is_streamed = bool(request.get("stream"))
        phase = PHASES[self._asked[is_streamed] % len(PHASES)]
        self._asked[is_streamed] += 1
        if phase == "not held":
            return await super()._play(answer, request, reader, writer)
        writer.write(_beginning(phase, is_streamed=is_streamed))
        await writer.drain()
        self.held[is_streamed, phase] += 1
        await asyncio.Event().wait()
        raise AssertionError("held to the end")


def _beginning(phase: Phase, *, is_streamed: bool) -> bytes:
    """What of an answer has been sent when it stops in that phase."""
    if phase == "before headers":
        return b""
    kind = "text/event-stream" if is_streamed else "application/json"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 10000\r\n\r\n".encode()
    said = json.dumps({"choices": [{"delta": {"content": "Lost"}}]})
    said = f"data: {said}\n\n" if is_streamed else '{"choices": [{"mess'
    return head if phase == "after headers" else head + said.encode()


class Outcome(NamedTuple):
    is_streamed: bool
    status: str
    text: str
    has_delta: bool


async def ask(server: Serving, number: int) -> Outcome:
    is_streamed = number % 2 == 0
    body = {"model": "test-model", "input": "Hello", "stream": is_streamed, "store": number % 4 < 2}
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200, reply.body
    has_delta = b"event: response.output_text.delta" in reply.body
    if is_streamed:
        *_, last, done = (line[6:] for line in reply.body.splitlines() if line.startswith(b"data: "))
        assert done == b"[DONE]"
        response = json.loads(last)["response"]
    else:
        response = reply.json()
    text = "".join(part["text"] for item in response["output"] for part in item["content"])
    return Outcome(is_streamed, response["status"], text, has_delta)


async def load(server: Serving) -> list[Outcome]:
    """All requests, so many at once."""
    numbers = iter(range(REQUESTS))
    outcomes: list[Outcome] = []

    async def work() -> None:
        for number in numbers:
            outcomes.append(await ask(server, number))  # noqa: PERF401

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return outcomes


async def in_front_of(*backends: ChatBackend) -> App:
    """A server that looks after lost backends every 50 ms."""
    settings = Settings(
        backends=tuple(BackendSettings(name=f"b{at}", url=backend.url) for at, backend in enumerate(backends)),
        routing=RoutingSettings(health=0.05),
        memory=True,
    )
    app = await build(settings)
    await app.start()
    return app


async def test_a_backend_killed_under_load_fails_no_request_that_had_not_sent_a_delta() -> None:
    doomed = Doomed()
    async with doomed, ChatBackend(Says(["Hello", " from b"])) as other:
        app = await in_front_of(doomed, other)
        async with serving(app.engine, app.asgi) as server:
            under_load = asyncio.create_task(load(server))
            await until(lambda: doomed.held.total() == AT_ONCE, within=20)
            hit = doomed.held.copy()
            await doomed.kill()
            async with asyncio.timeout(20):
                outcomes = await under_load
    assert min(hit[is_streamed, phase] for is_streamed in (False, True) for phase in PHASES[:3]) >= 3
    assert len(outcomes) == REQUESTS
    failed = [outcome for outcome in outcomes if outcome.status != "completed"]
    assert failed == [Outcome(True, "failed", "Lost", has_delta=True)] * hit[True, "in the answer"]
    told = Counter(outcome.text for outcome in outcomes if outcome.status == "completed")
    assert told["Hello from b"] == len(other.requests)
    assert told.total() == REQUESTS - len(failed)
    assert set(told) == {"Hello there", "Hello from b"}


async def test_a_backend_that_is_back_gets_its_requests_again_without_a_client_paying_for_the_proof() -> None:
    async with ChatBackend(Says(["b"])) as second, AsyncExitStack() as alive:
        first = await alive.enter_async_context(ChatBackend(Says(["a"])))
        app = await in_front_of(first, second)
        async with serving(app.engine, app.asgi) as server:
            assert (await ask(server, 0)).text == "a"
            await alive.aclose()
            assert [(await ask(server, number)).text for number in range(4)] == ["b"] * 4
            asked = len(first.requests)
            async with first, asyncio.timeout(10):  # on the same port
                while (answer := await ask(server, 0)).text == "b":
                    assert len(first.requests) == asked
            assert (answer.status, answer.text) == ("completed", "a")
