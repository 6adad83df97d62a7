"""The real application behind the real server, on a loopback port, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from antwort import Engine
from antwort.testing import check_frames
from antwort.testing.server import EngineServer, serve_engine
from antwort.testing.stream_checks import may_repeat_progress
from raw_http import Body, Reply, ask

Message: TypeAlias = dict[str, Any]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""


class Recorder:
    """Stands in front of an application and keeps the streams that it sends to their end."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if not _may_stream(scope):  # and so may be answered by the shorter way, in which nobody stands
            await self._app(scope, receive, send)
            return
        chunks: list[bytes] = []
        is_stream = is_ended = False

        async def keep(message: Message) -> None:
            nonlocal is_stream, is_ended
            if message["type"] == "http.response.start":
                is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            elif is_stream:
                chunks.append(message["body"])
                is_ended = not message["more_body"]
            await send(message)

        await self._app(scope, receive, keep)
        if is_ended and chunks[-1] and _is_whole(scope):  # the body of a client that left ends with nothing, or never
            self.bodies.append(b"".join(chunks))


def _may_stream(scope: Message) -> bool:
    return scope["type"] == "http" and (scope["method"] == "POST" or b"stream" in scope["query_string"])


def _is_whole(scope: Message) -> bool:
    """Not the rest of a stream, or only its head."""
    return scope["method"] != "HEAD" and b"starting_after=" not in scope["query_string"]


RESPONSES = "/v1/responses"
HELLO: dict[str, Any] = {"model": "scripted", "input": "Hello"}
STREAMED: dict[str, Any] = {**HELLO, "stream": True}


class Serving(EngineServer):
    """A server that answers, with plain requests to it."""

    async def ask(self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        return await ask(self.port, method, path, body, headers)


@asynccontextmanager
async def serving(engine: Engine, app: Any = None, *, drain: float = 0.5, **options: Any) -> AsyncIterator[Serving]:
    """Serve `app` in front of `engine`, and check every stream that it has sent against the grammar."""
    recorders: list[Recorder] = []

    def record(app: App) -> Recorder:
        recorders.append(recorder := Recorder(app))
        return recorder

    async with serve_engine(engine, app, drain_seconds=drain, middleware=record, **options) as running:
        yield Serving(running.engine, running.server, running.listening)
    for body in recorders[0].bodies:
        check_frames(body, keepalive=may_repeat_progress(engine.settings), strict=engine.settings.strict)


async def until(claim: Callable[[], bool], within: float = 5.0) -> None:
    """Let the loop turn until the claim is true; a claim that does not come true fails the test."""
    async with asyncio.timeout(within):
        while not claim():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


async def until_quiet(count: Callable[[], int], turns: int = 2000) -> int:
    """The count once it has stayed the same for that many turns of the loop."""
    last, still = count(), 0
    async with asyncio.timeout(30):
        while still < turns:
            await asyncio.sleep(0)
            still = still + 1 if count() == last else 0
            last = count()
    return last
