"""All that the real server writes for standard tools, held against the standard's own types: in every ending, streamed,
whole and asked for again, under the strict setting and without.
"""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import InputImage, InputText, LogProb, TopLogProb
from antwort.errors import BackendError, Cancelled, DeadlinePassed, ModelNotFound, RateLimited, ShuttingDown
from antwort.providers.base import TextDelta
from antwort.testing import answer, call, refuse, say, think, tokens
from antwort.tools.base import Output
from antwort.tools.local import LocalExecutor
from engine_kit import CLOCK, WEATHER, weather_tool
from scenes import Played, Scene, body_of, engine_for, play
from serving import serving
from socket_kit import connected
from standard import validate_event, validate_response

SCHEMA = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PROBS = (LogProb(token="Hi", logprob=-0.5, bytes=(72, 105), top_logprobs=(TopLogProb(token="Hi", logprob=-0.5),)),)
FIELDS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": 1,
    "frequency_penalty": -1,
    "metadata": {"a": "b"},
    "instructions": "Be brief.",
    "tools": [WEATHER, CLOCK, {"type": "function", "name": "bare"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]},
    "parallel_tool_calls": False,
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "truncation": "auto",
    "service_tier": "flex",
    "safety_identifier": "somebody",
    "prompt_cache_key": "key",
    "top_logprobs": 2,
    "reasoning": {"effort": "minimal"},
}


def said(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **more}


TALK = [
    said("system", {"type": "input_text", "text": "Be kind."}),
    said("user", {"type": "input_image", "image_url": PIXEL}, {"type": "input_text", "text": "What is it?"}),
    said("assistant", {"type": "output_text", "text": "Let me see."}, phase="commentary"),
    {"type": "reasoning", "summary": [], "encrypted_content": None},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "sunny"}, {"type": "input_image", "image_url": PIXEL}],
    },
    said("assistant", {"type": "output_text", "text": "Sunny."}, phase="final_answer"),
    said("user", {"type": "input_text", "text": "And tomorrow?"}),
]


def pictures() -> LocalExecutor:
    async def weather(city: str) -> Output:
        return (InputText(text=city), InputImage(image_url=PIXEL, detail="original"))

    return LocalExecutor(weather)


def stumbling() -> LocalExecutor:
    async def weather(city: str) -> str:
        raise RuntimeError(city)

    return LocalExecutor(weather)


def runs_here(**more: Any) -> dict[str, Any]:
    return {"tools": [WEATHER], **more}


SCENES = [
    Scene("text", lambda: [answer(say("Hello there"), usage=tokens(3, 2))]),
    Scene("nothing", lambda: [answer()]),
    Scene("logprobs", lambda: [answer([TextDelta("Hi", PROBS)])], {"include": ["message.output_text.logprobs"]}),
    Scene("a refusal", lambda: [answer(say("Hm."), refuse("I will not."))]),
    Scene("reasoning", lambda: [answer(think("Let me see"), say("42"))]),
    Scene(
        "reasoning, sealed as well",
        lambda: [answer(think("Let me see"), say("42"))],
        {"include": ["reasoning.encrypted_content"]},
    ),
    Scene("a summary", lambda: [answer(think("Hm"), say("42"))], {"reasoning": {"effort": "low", "summary": "auto"}}),
    Scene("a long talk", lambda: [answer(say("Rain."))], {"input": TALK}),
    Scene("a schema", lambda: [answer(say('{"a":1}'))], {"text": {"format": SCHEMA, "verbosity": "low"}}),
    Scene("any JSON", lambda: [answer(say("{}"))], {"text": {"format": {"type": "json_object"}}}),
    Scene("all settings", lambda: [answer(say("Ok"))], FIELDS),
    Scene("a forced function", lambda: [answer(call("clock"))], {"tools": [CLOCK], "tool_choice": "required"}),
    Scene("a call for the client", lambda: [answer(say("One moment."), call("clock"))], {"tools": [CLOCK]}),
    Scene(
        "a call for the client beside tools of ours",
        lambda: [answer(call("clock"), call("weather", city="Rome"))],
        {"tools": [CLOCK, WEATHER]},
        lambda: [weather_tool()],
        status="requires_action",
    ),
    Scene(
        "functions run here",
        lambda: [answer(call("weather", city="Paris"), call("weather", city="Rome")), answer(say("Sunny."))],
        runs_here(tool_choice={"type": "function", "name": "weather"}),
        lambda: [weather_tool()],
    ),
    Scene(
        "a function run here that answers in parts",
        lambda: [answer(call("weather", city="Paris")), answer(say("Sunny."))],
        runs_here(),
        lambda: [pictures()],
    ),
    Scene(
        "a function run here that fails",
        lambda: [answer(call("weather", city="Paris")), answer(say("Sorry."))],
        runs_here(),
        lambda: [stumbling()],
    ),
    Scene(
        "compacted on the way",
        lambda: [answer(say("They spoke of Paris.")), answer(say("Go on."))],
        {"input": TALK, "context_management": [{"type": "compaction", "compact_threshold": 1}]},
        kinds=("compaction", "message"),
    ),
    Scene("cut by length", lambda: [answer(say("And then"), finish="length")], status="incomplete"),
    Scene("cut by a filter", lambda: [answer(say("And"), finish="content_filter")], status="incomplete"),
    Scene(
        "the limit of turns",
        lambda: [answer(call("weather", city="Paris"))],
        runs_here(),
        lambda: [weather_tool()],
        status="incomplete",
        settings={"max_turns": 1},
    ),
    Scene(
        "the budget of tokens, and what the model has to say at its end",
        lambda: [answer(call("weather", city="Paris"), usage=tokens(40, 10)), answer(say("Sunny."))],
        runs_here(token_budget=100, max_turns=5, deadline=60),
        lambda: [weather_tool()],
        status="incomplete",
        settings={"final_answer": True},
    ),
    Scene(
        "getting nowhere",
        lambda: [answer(call("weather", city="Paris")) for _ in range(3)],
        runs_here(),
        lambda: [weather_tool()],
        status="incomplete",
        settings={"stuck_limit": 3},
    ),
    Scene("the deadline", lambda: [answer(think("Hm"), say("And"), DeadlinePassed())], status="incomplete"),
    Scene("cancelled", lambda: [answer(say("And"), call("clock"), Cancelled())], status="cancelled"),
    Scene("the backend fails", lambda: [answer(say("And"), BackendError("It failed."))], status="failed"),
    Scene("the backend is busy", lambda: [answer(say("And"), RateLimited("Slow down."))], status="failed"),
    Scene("the server stops", lambda: [answer(say("And"), ShuttingDown())], status="failed"),
    Scene(
        "the model is gone in the second turn",
        lambda: [answer(call("weather", city="Rome")), answer(ModelNotFound("scripted"))],
        runs_here(),
        lambda: [weather_tool()],
        status="failed",
    ),
]
REFUSED = Scene(
    "a refused and an unknown call",
    lambda: [answer(call("weather", city="Rome"), call("nobody")), answer(say("Neither."))],
    {"tools": [WEATHER, CLOCK], "allowed_tools": ["clock"]},
    lambda: [weather_tool()],
)
"""Without the strict setting these show as `mcp_call`, which the standard does not have."""

both_ways = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


def check(played: Played) -> None:
    for number, event in enumerate(played.events):
        assert event["sequence_number"] == number
        validate_event(event)
    validate_response(played.response)
    validate_response(played.stored)
    assert played.stored == played.response


@pytest.mark.proves("CP-022", "CP-029")
@both_ways
@pytest.mark.parametrize("scene", [*SCENES, REFUSED], ids=lambda scene: scene.name)
async def test_under_the_strict_setting_all_that_is_written_is_the_standards(scene: Scene, streamed: bool) -> None:
    played = await play(scene, streamed=streamed, strict=True)
    assert played.response["status"] == scene.status
    assert not scene.kinds or [item["type"] for item in played.response["output"]] == [*scene.kinds]
    check(played)


@pytest.mark.parametrize("scene", [*SCENES, REFUSED], ids=lambda scene: scene.name)
async def test_over_a_websocket_it_is_the_same(scene: Scene) -> None:
    async with serving(engine_for(scene, strict=True)) as server, connected(server.port, strict=True) as socket:
        body = body_of(scene, streamed=True)
        del body["stream"]
        response = await socket.ask(**body)
    assert response.status == scene.status
    for event in socket.heard:
        validate_event(event)
    validate_response(socket.heard[-1]["response"])


@pytest.mark.proves("CP-022", "CP-029")
@both_ways
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_without_it_all_is_the_standards_but_for_three_rulings(scene: Scene, streamed: bool) -> None:
    played = await play(scene, streamed=streamed)
    assert played.response["status"] == scene.status
    played.events[:] = map(_but_for_the_rulings, played.events)
    played.response, played.stored = map(_response_but_for_the_rulings, (played.response, played.stored))
    check(played)


def _but_for_the_rulings(event: dict[str, Any]) -> dict[str, Any]:
    """The events of reasoning go by the names that SDKs know, and what is echoed and what a tool has answered stays
    as it came, even where the standard cannot say it.
    """
    changed = {**event, "type": event["type"].replace("response.reasoning_text.", "response.reasoning.")}
    if "response" in event:
        changed["response"] = _response_but_for_the_rulings(event["response"])
    if "item" in event:
        changed["item"] = _item(event["item"])
    return changed


def _response_but_for_the_rulings(response: dict[str, Any]) -> dict[str, Any]:
    form, reasoning = response["text"]["format"], response["reasoning"]
    if form["type"] == "json_schema":
        assert form["schema"] == SCHEMA["schema"]
        response = {**response, "text": {**response["text"], "format": {**form, "schema": None}}}
    if reasoning is not None and reasoning["effort"] == "minimal":
        response = {**response, "reasoning": {**reasoning, "effort": None}}
    return {**response, "output": [_item(item) for item in response["output"]]}


def _item(item: dict[str, Any]) -> dict[str, Any]:
    parts = item.get("output")
    if not isinstance(parts, list):
        return item
    return {**item, "output": [{**part, "detail": "high"} if "detail" in part else part for part in parts]}


async def test_a_refused_call_is_a_function_call_with_an_output_under_the_strict_setting() -> None:
    strict, loose = await play(REFUSED, streamed=False, strict=True), await play(REFUSED, streamed=False)
    calls = ["function_call", "function_call", "function_call_output", "function_call_output", "message"]
    assert [item["type"] for item in strict.response["output"]] == calls
    assert [item["type"] for item in loose.response["output"]] == ["mcp_call", "mcp_call", "message"]
