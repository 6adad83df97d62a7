"""A server that stops while responses are made in the background, and the next one on the same data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from antwort import SqliteStore
from antwort.api.events import TERMINAL
from antwort.engine.engine import Engine
from antwort.testing import Answer, ScriptedProvider, StreamChecker, answer, say
from antwort.testing.frames import read_frames
from raw_http import connected
from serving import HELLO, RESPONSES, serving

LATER: dict[str, Any] = {**HELLO, "background": True}


async def opened(path: Path, *answers: Answer) -> Engine:
    return Engine(ScriptedProvider(*answers), store=await SqliteStore.open(path))


async def test_who_reads_when_the_server_stops_is_let_go_and_reads_on_at_the_next_one(tmp_path: Path) -> None:
    path, body = tmp_path / "antwort.db", b""
    engine = await opened(path, answer(say("Hello"), asyncio.Event()))
    async with serving(engine, drain=0.05) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        async with connected(server.port) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true")
            await wire.head()
            while b"output_text.delta" not in body:
                body += await wire.chunk()
            stopping = asyncio.create_task(server.server.shutdown([server.listening]))
            rest_of_it = await wire.reader.read()
            await stopping
    assert not rest_of_it.endswith(b"0\r\n\r\n")  # without the last chunk: it has not ended
    seen = [*read_frames(body + b"data: [DONE]\n\n")]
    assert not isinstance(seen[-1][1], TERMINAL)
    async with serving(await opened(path, answer(say("Hello once more")))) as server:
        rest = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true&starting_after={seen[-1][0]}")
        kept = (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
    checker = StreamChecker(takeover=True)
    for number, event in [*seen, *read_frames(rest.body)]:
        checker.feed(number, event)
    assert checker.finish().status == kept["status"] == "completed"
    assert [item["status"] for item in kept["output"]] == ["incomplete", "completed"]


async def test_who_reads_a_run_that_ends_with_the_process_reads_its_end() -> None:
    engine = Engine(ScriptedProvider(answer(say("Hello"), asyncio.Event())))
    async with serving(engine, drain=0.05) as server:
        response_id = (await server.ask("POST", RESPONSES, LATER)).json()["id"]
        reading = asyncio.create_task(server.ask("GET", f"{RESPONSES}/{response_id}?stream=true"))
        async with connected(server.port) as wire:
            wire.send("GET", f"{RESPONSES}/{response_id}?stream=true")
            await wire.head()
            while b"output_text.delta" not in await wire.chunk():
                pass
        await server.server.shutdown([server.listening])
        *_, (_, last) = read_frames((await reading).body)
    assert isinstance(last, TERMINAL)
    assert last.response.status == "failed"
