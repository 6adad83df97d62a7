"""Keep-alives on the wire: comments for the connection, and `response.in_progress` for clients that count events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort import EngineSettings, LocalExecutor, Toolset
from antwort.testing import ScriptedProvider, answer, call, check_frames, say
from antwort.testing.frames import read_frames
from engine_kit import engine_of, name_of
from raw_http import connected
from serving import HELLO, RESPONSES, serving

SOON = 0.01
GOES_ON = "response.in_progress"
SIGN, COMMENT = b"event: response.in_progress\n", b": keep-alive\n\n"
FUNCTION = {"type": "function", "name": "dig"}
SERVER = {"type": "mcp", "server_label": "mine"}


class Mine:
    """A tool that digs until the gate is opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def dig(self) -> str:
        await self.gate.wait()
        return "gold"


async def streamed(engine: Any, gate: asyncio.Event, until: bytes, times: int, **fields: Any) -> bytes:
    """The body of a stream in which the gate opens when so many of these came."""
    body = b""
    async with serving(engine) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, {**HELLO, **fields, "stream": True})
        await wire.head()
        while not body.endswith(b"[DONE]\n\n"):
            body += await wire.chunk()
            if body.count(until) >= times:
                gate.set()
    return body


def events_of(body: bytes) -> list[tuple[int, Any]]:
    return [*read_frames(body)]


@pytest.mark.proves("RULING-10", "FR-023")
@pytest.mark.parametrize("tool", [FUNCTION, SERVER], ids=["a function", "a toolset"])
async def test_while_a_tool_works_the_response_is_said_to_go_on_in_numbered_events_without_output(tool: Any) -> None:
    mine = Mine()
    executor = LocalExecutor(mine.dig) if tool is FUNCTION else Toolset("mine", mine.dig)
    provider = ScriptedProvider(answer(say("Wait."), call("dig")), answer(say("Gold!")))
    engine = engine_of(provider, executor, progress_interval=SOON)
    body = await streamed(engine, mine.gate, SIGN, 4, tools=[tool])
    signs = [event.response for _, event in events_of(body) if name_of(event) == GOES_ON]
    assert len(signs) >= 4
    assert {(sign.status, sign.output) for sign in signs} == {("in_progress", ())}
    response = check_frames(body)
    assert (response.status, response.output_text) == ("completed", "Wait.Gold!")


@pytest.mark.proves("RULING-10", "FR-023")
async def test_while_the_model_is_silent_it_is_the_same() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(say("It"), gate, say(" is")))
    body = await streamed(engine_of(provider, longest_silence=SOON), gate, SIGN, 4)
    signs = [event.response.output for _, event in events_of(body) if name_of(event) == GOES_ON]
    assert set(signs) == {()}
    assert check_frames(body, keepalive=True).output_text == "It is"


@pytest.mark.proves("RULING-10")
async def test_they_are_recorded_with_their_numbers() -> None:
    mine, seen = Mine(), b""
    provider = ScriptedProvider(answer(call("dig")), answer(say("Gold!")))
    engine = engine_of(provider, Toolset("mine", mine.dig), progress_interval=SOON)
    async with serving(engine) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, {**HELLO, "tools": [SERVER], "stream": True, "background": True})
            await wire.head()
            while not seen.endswith(b"[DONE]\n\n"):
                seen += await wire.chunk()
                if seen.count(SIGN) >= 4:
                    mine.gate.set()
        response_id = check_frames(seen).id
        again = await server.ask("GET", f"{RESPONSES}/{response_id}?stream=true")
    assert events_of(again.body) == events_of(seen)


@pytest.mark.proves("RULING-10")
async def test_they_are_off_by_setting_and_comments_still_keep_the_connection_alive() -> None:
    mine = Mine()
    provider = ScriptedProvider(answer(call("dig")), answer(say("Gold!")))
    settings: dict[str, Any] = {"progress_interval": None, "longest_silence": None, "keepalive_interval": SOON}
    engine = engine_of(provider, Toolset("mine", mine.dig), **settings)
    body = await streamed(engine, mine.gate, COMMENT, 12, tools=[SERVER])
    assert (body.count(SIGN), check_frames(body).status) == (1, "completed")


@pytest.mark.proves("RULING-10")
def test_they_are_on_by_default_after_twenty_seconds_of_work_or_sixty_of_silence() -> None:
    settings = EngineSettings()
    assert (settings.progress_interval, settings.longest_silence, settings.keepalive) == (20.0, 60.0, "comment")
