"""Engines whose streams are read again, over each home of runs that a test needs no server for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from antwort import Engine, EngineSettings, MemoryStore, Response, SqliteStore, StreamEvent
from antwort.providers.base import Provider
from antwort.testing import Answer, ScriptedProvider, StreamChecker
from antwort.testing.frames import read_frames
from antwort.testing.stream_checks import may_repeat_progress
from antwort.tools.base import ToolExecutor
from serving import RESPONSES, Serving, serving

Home = Literal["memory", "sqlite"]
Seen = list[tuple[int, StreamEvent]]


@asynccontextmanager
async def engine_in(
    home: Home, folder: Path, provider: Provider, executors: Sequence[ToolExecutor] = (), **settings: Any
) -> AsyncIterator[Engine]:
    """It is closed by then, or closed here."""
    given = EngineSettings(**settings)
    store = MemoryStore() if home == "memory" else await SqliteStore.open(folder / "antwort.db")
    engine = Engine(provider, store=store, executors=executors, settings=given)
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def served(
    home: Home, folder: Path, *answers: Answer, executors: Sequence[ToolExecutor] = (), **settings: Any
) -> AsyncIterator[Serving]:
    """A server that plays the answers."""
    async with (
        engine_in(home, folder, ScriptedProvider(*answers), executors, **settings) as engine,
        serving(engine) as server,
    ):
        yield server


async def rest_of(server: Serving, response_id: str, after: int | None = None, **headers: str) -> Seen:
    """What is sent to one who reads the response again, behind that number."""
    query = "" if after is None else f"&starting_after={after}"
    reply = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true{query}", None, headers)
    assert reply.status == 200, reply.body
    return [*read_frames(reply.body)]


def checked(events: Seen, engine: Engine) -> Response:
    """A whole stream, however many readers it was put together of."""
    checker = StreamChecker(keepalive=may_repeat_progress(engine.settings))
    for number, event in events:
        checker.feed(number, event)
    return checker.finish()
