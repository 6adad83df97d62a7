"""The limits that a request may set for itself, over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import engine_of
from serving import serving

HELLO = {"model": "scripted", "input": "Hello"}
RESPONSES = "/v1/responses"


@pytest.mark.proves("CP-030", "CP-036")
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"max_turns": 6}, "this server allows 5 at most, and a request may only ask for less."),
        ({"deadline": 30.5}, "this server allows 30 at most, and a request may only ask for less."),
        ({"token_budget": 2000}, "this server allows 1000 at most, and a request may only ask for less."),
    ],
)
async def test_more_than_the_operator_allows_is_a_400(fields: dict[str, float], problem: str) -> None:
    engine = engine_of(ScriptedProvider(), max_turns=5, deadline=30, token_budget=1000)
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, {**HELLO, **fields})
    (name,) = fields
    assert reply.status == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"], error["message"]) == (name, "invalid_value", f"Invalid '{name}': {problem}")


@pytest.mark.parametrize("strict", [False, True])
async def test_what_is_set_is_echoed_and_read_again(strict: bool) -> None:
    fields = {"max_turns": 3, "deadline": 12.5, "token_budget": 900}
    engine = engine_of(ScriptedProvider(answer(say("Hi"))), strict=strict)
    async with serving(engine) as server:
        made = (await server.ask("POST", RESPONSES, {**HELLO, **fields})).json()
        kept = (await server.ask("GET", f"{RESPONSES}/{made['id']}")).json()
    assert {name: made[name] for name in fields} == fields
    assert kept == made


async def test_a_deadline_that_is_over_before_anything_was_begun_is_a_400_that_names_it() -> None:
    class Slow(MemoryStore):
        async def said(self, *_: object) -> None:
            await asyncio.Event().wait()

    engine = engine_of(ScriptedProvider(), store=Slow())
    async with serving(engine) as server:
        conversation = (await server.ask("POST", "/v1/conversations", {})).json()["id"]
        reply = await server.ask("POST", RESPONSES, {**HELLO, "conversation": conversation, "deadline": 5e-324})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "deadline_too_short", "deadline")
    assert reply.headers["x-should-retry"] == "true"
