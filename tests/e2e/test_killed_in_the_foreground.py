"""`kill -9` of a server with foreground responses: what it has done survives, and nothing that ran is run again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx import RemoteProtocolError
from openai import APIConnectionError, AsyncOpenAI

from chat_backend import Calls, ChatBackend, Refuses, Says, Stalls
from live_server import PATIENCE, LiveServer, launched

TOOLS = """
import pathlib, time
from antwort import tool

RAN = pathlib.Path({ran!r})

@tool
def step(n: int) -> str:
    "Do one step."
    with RAN.open("a") as file:
        file.write(f"{{n}}\\n")
    if n == {hangs}:
        time.sleep(60)
    return f"did {{n}}"
"""
HANGS = 9
STEP: Any = {"type": "function", "name": "step"}
ASK: Any = {"type": "function", "name": "ask"}


def steps(*numbers: int) -> Calls:
    return Calls([("step", json.dumps({"n": number})) for number in numbers])


class House:
    """A folder with tools and records, and the servers that work in it one after the other."""

    def __init__(self, folder: Path, backend: ChatBackend) -> None:
        self._folder, self._ran, self._tools = folder, folder / "ran", folder / "steps.py"
        self._tools.write_text(TOOLS.format(ran=str(self._ran), hangs=HANGS))
        self._arguments = ("--backend", backend.url, "--data", str(folder / "data"), "--tools", str(self._tools))

    @asynccontextmanager
    async def server(self) -> AsyncIterator[tuple[LiveServer, AsyncOpenAI]]:
        async with (
            launched(*self._arguments) as server,
            AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
        ):
            yield server, client

    @property
    def ran(self) -> list[int]:
        return [int(line) for line in self._ran.read_text().split()] if self._ran.exists() else []

    async def until_ran(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while number not in self.ran:  # noqa: ASYNC110 - a file of another process
                await asyncio.sleep(0.01)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[tuple[House, ChatBackend]]:
    async with ChatBackend() as backend:
        yield House(tmp_path, backend), backend


def read_by(backend: ChatBackend) -> list[Any]:
    return [message["content"] for message in backend.requests[-1]["messages"] if message["role"] == "tool"]


async def _to_its_end(request: Any) -> None:
    answer = await request
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            pass


async def killed_in_its_third_turn(rooms: House, backend: ChatBackend, *, stream: bool, on_disconnect: str) -> str:
    """The id of a response whose client was there when its server was killed."""
    backend.answers = [steps(0), steps(1, 2), Stalls(asyncio.Event())]
    async with rooms.server() as (server, client):
        headers = {"Antwort-On-Disconnect": on_disconnect}
        request: dict[str, Any] = {"model": "test-model", "input": "Go.", "tools": [STEP], "stream": stream}
        asking = asyncio.create_task(_to_its_end(client.responses.create(**request, extra_headers=headers)))
        await backend.until(lambda: len(backend.requests) == 3)
        response_id: str = (await client.get("/responses", cast_to=dict[str, Any]))["data"][0]["id"]
        await server.stop(signal.SIGKILL)
        with pytest.raises((APIConnectionError, RemoteProtocolError)):
            await asking
    return response_id


@pytest.mark.proves("RULING-15")
@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_is_to_go_on_is_completed_by_the_next_server_and_nothing_is_run_again(
    house: tuple[House, ChatBackend], stream: bool
) -> None:
    rooms, backend = house
    response_id = await killed_in_its_third_turn(rooms, backend, stream=stream, on_disconnect="continue")
    backend.answers = [Says(("Done.",))]
    async with rooms.server() as (_, client):
        events = [event async for event in await client.responses.retrieve(response_id, stream=True)]
        done = await client.responses.retrieve(response_id)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert (events[-1].type, done.status, done.output_text) == ("response.completed", "completed", "Done.")
    shown = [getattr(item, "output", None) for item in done.output]
    assert shown == [None, "did 0", None, None, "did 1", "did 2", None]
    assert read_by(backend) == ["did 0", "did 1", "did 2"]
    assert sorted(rooms.ran) == [0, 1, 2]


@pytest.mark.proves("RULING-15")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_failed_response_shows_every_finished_turn_and_a_follow_up_tells_the_model(
    house: tuple[House, ChatBackend], stream: bool
) -> None:
    rooms, backend = house
    response_id = await killed_in_its_third_turn(rooms, backend, stream=stream, on_disconnect="cancel")
    backend.answers = [Says(("Done.",))]
    async with rooms.server() as (_, client):
        failed = await client.responses.retrieve(response_id)
        assert failed.status == "failed"
        shown = [getattr(item, "output", None) for item in failed.output]
        assert shown == [None, "did 0", None, None, "did 1", "did 2"]
        done = await client.responses.create(model="test-model", input="Go on.", previous_response_id=failed.id)
        assert done.status == "completed"
    assert read_by(backend) == ["did 0", "did 1", "did 2"]
    assert sorted(rooms.ran) == [0, 1, 2]


async def pause(client: AsyncOpenAI, backend: ChatBackend, number: int) -> tuple[str, list[Any]]:
    """The id of a response that waits for its client, and the input that continues it."""
    backend.answers = [Calls([("step", json.dumps({"n": number})), ("ask", "{}")])]
    paused = await client.responses.create(model="test-model", input="Go.", tools=[STEP, ASK])
    (call_id,) = [item.call_id for item in paused.output if item.type == "function_call" and item.name == "ask"]
    return paused.id, [{"type": "function_call_output", "call_id": call_id, "output": "yes"}]


@pytest.mark.proves("RULING-3")
async def test_the_retries_of_a_client_library_run_a_paused_call_once(house: tuple[House, ChatBackend]) -> None:
    rooms, backend = house
    async with rooms.server() as (_, client):
        parent, given = await pause(client, backend, 5)
        backend.answers = [Refuses(503), Refuses(503), Says(("Done.",))]
        retrying = client.with_options(max_retries=4)
        done = await retrying.responses.create(model="test-model", input=given, previous_response_id=parent)
        assert done.status == "completed"
    assert read_by(backend) == ["did 5", "yes"]
    assert rooms.ran == [5]


@pytest.mark.proves("RULING-3", "RULING-15")
async def test_a_paused_call_that_was_running_when_the_server_was_killed_is_not_run_again(
    house: tuple[House, ChatBackend],
) -> None:
    rooms, backend = house
    async with rooms.server() as (server, client):
        parent, given = await pause(client, backend, HANGS)
        backend.answers = [Says(("Done.",))]
        follow_up = client.responses.create(model="test-model", input=given, previous_response_id=parent)
        asking = asyncio.create_task(_to_its_end(follow_up))
        await rooms.until_ran(HANGS)
        await server.stop(signal.SIGKILL)
        with pytest.raises(APIConnectionError):
            await asking
    async with rooms.server() as (_, client):
        done = await client.responses.create(model="test-model", input=given, previous_response_id=parent)
        assert done.status == "completed"
    assert "outcome is not known" in read_by(backend)[0]
    assert rooms.ran == [HANGS]
