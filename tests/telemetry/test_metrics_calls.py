"""Tool calls are counted by how they ended."""

from __future__ import annotations

import asyncio

from antwort.telemetry.metrics import Metrics
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolResult
from antwort.tools.limits import ToolLimits
from antwort.tools.local import LocalExecutor
from engine_kit import SERVER, WEATHER
from raw_http import connected
from serving import HELLO, RESPONSES, STREAMED, serving, until
from telemetry_kit import Wired, of, value


async def slow(city: str) -> str:
    await asyncio.Event().wait()
    return city


async def broken(city: str) -> str:
    raise ValueError(city)


def declared(name: str) -> dict[str, object]:
    return {**WEATHER, "name": name}


async def test_every_way_a_tool_call_can_end_is_counted() -> None:
    calls = [
        call("weather", city="Paris"),
        call("weather", town="Paris"),
        call("slow", city="Rome"),
        call("broken", city="Oslo"),
        call("unheard_of", city="Bonn"),
        call("forbidden", city="Bern"),
    ]
    provider = ScriptedProvider(answer(*calls), answer(say("Well.")))

    async def forbidden(city: str) -> str:
        return city

    async def weather(city: str) -> str:
        return f"sunny in {city}"

    tools = LocalExecutor(weather, slow, broken, forbidden)
    wired = Wired(provider, tools, settings={"tool_limits": ToolLimits(timeouts={"slow": 0.01})})
    names = ["weather", "slow", "broken", "forbidden"]
    allowed = [{"type": "function", "name": name} for name in names[:3]]
    body = {
        **HELLO,
        "tools": [declared(name) for name in names],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": allowed},
    }
    async with serving(wired.engine, wired.app) as server:
        assert (await server.ask("POST", RESPONSES, body)).json()["status"] == "completed"
    found = of(wired.samples(), "antwort_tool_calls_total")
    assert found == {
        ("ok", "", "weather"): 1,
        ("arguments", "", "weather"): 1,
        ("timeout", "", "slow"): 1,
        ("error", "", "broken"): 1,
        ("refused", "antwort", "other"): 2,
    }
    times = of(wired.samples(), "gen_ai_execute_tool_duration_seconds_count")
    assert times["timeout", "slow", ""] == 1
    assert ("refused", "other", "antwort") not in times


async def test_a_call_that_the_run_takes_with_it_is_counted_as_cancelled() -> None:
    wired = Wired(ScriptedProvider(answer(call("slow", city="Rome"))), LocalExecutor(slow))
    async with serving(wired.engine, wired.app) as server:
        async with connected(server.port) as wire:
            wire.send("POST", RESPONSES, {**STREAMED, "tools": [declared("slow")]})
            await wire.head()
            while b"function_call_arguments.done" not in await wire.chunk():
                pass
        await until(lambda: not wired.engine.live)
    assert of(wired.samples(), "antwort_tool_calls_total") == {("cancelled", "", "slow"): 1}


async def test_a_call_that_is_handed_to_the_client_is_counted_as_such() -> None:
    class Polite(LocalExecutor):
        async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
            raise ClientsTurn(call)

    wired = Wired(ScriptedProvider(answer(call("slow", city="Rome"))), Polite(slow))
    async with serving(wired.engine, wired.app) as server:
        reply = await server.ask("POST", RESPONSES, {**HELLO, "tools": [declared("slow")]})
    assert reply.json()["status"] == "requires_action"
    found = wired.samples()
    assert of(found, "antwort_tool_calls_total") == {("handed", "", "slow"): 1}
    assert value(found, "antwort_responses_total", status="requires_action", reason="") == 1


async def test_a_tool_of_a_server_is_counted_by_its_label_where_that_is_the_operators() -> None:
    async def stock(call: ToolCall, context: ToolContext) -> str:
        return "7"

    for known, expected in ((["depot"], ("ok", "depot", "stock")), ([], ("ok", "other", "other"))):
        provider = ScriptedProvider(answer(call("stock")), answer(say("Seven.")))
        metrics = Metrics(models=["scripted"], labels=known)
        wired = Wired(provider, ToolServerFake("depot", stock=stock), metrics=metrics)
        async with serving(wired.engine, wired.app) as server:
            await server.ask("POST", RESPONSES, {**HELLO, "tools": [SERVER]})
        assert of(wired.samples(), "antwort_tool_calls_total") == {expected: 1}
