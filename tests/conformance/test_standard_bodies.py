"""What the engine writes for standard tools under the strict setting is what the standard's own types accept."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import to_plain
from antwort.errors import BackendError
from antwort.testing import Answer, ScriptedProvider, answer, call, refuse, say, think, tokens
from engine_kit import CLOCK, WEATHER, ask, engine_of, stream, weather_tool
from standard import validate_event, validate_response

SCHEMA = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
CASES: dict[str, tuple[list[Answer], dict[str, Any]]] = {
    "text": ([answer(say("Hello there"), usage=tokens(3, 2))], {}),
    "refusal": ([answer(say("Hm."), refuse("I will not."))], {}),
    "reasoning": ([answer(think("Let me see"), say("42"))], {}),
    "summary": ([answer(think("Let me see"), say("42"))], {"reasoning": {"effort": "low", "summary": "auto"}}),
    "a function of the client": ([answer(say("One moment."), call("clock"))], {"tools": [CLOCK]}),
    "a function run here": (
        [answer(call("weather", city="Paris"), call("weather", city="Rome")), answer(say("Sunny."))],
        {"tools": [WEATHER], "tool_choice": "required"},
    ),
    "a refused and an unknown call": (
        [answer(call("weather", city="Rome"), call("nobody")), answer(say("Neither."))],
        {"tools": [WEATHER, CLOCK], "allowed_tools": ["clock"]},
    ),
    "cut by length": ([answer(say("And then"), finish="length")], {"max_output_tokens": 16}),
    "a failure": ([answer([[]], say("And then"), BackendError("The backend failed."))], {}),
    "structured output": ([answer(say('{"a":1}'))], {"text": {"format": SCHEMA, "verbosity": "low"}}),
    "all settings": (
        [answer(say("Ok"))],
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "metadata": {"a": "b"},
            "instructions": "Be brief.",
            "tools": [WEATHER, CLOCK],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]},
            "parallel_tool_calls": False,
            "max_tool_calls": 3,
            "truncation": "auto",
            "service_tier": "flex",
            "safety_identifier": "somebody",
            "prompt_cache_key": "key",
            "top_logprobs": 2,
        },
    ),
}


@pytest.mark.proves("CP-022", "CP-029")
@pytest.mark.parametrize("case", CASES)
async def test_bodies_and_events_validate_against_the_standards_own_types(case: str) -> None:
    answers, fields = CASES[case]
    provider = ScriptedProvider(*[list(one) for one in answers])
    engine = engine_of(provider, weather_tool(), strict=True)
    outcome = await stream(engine, ask(**fields))
    for number, event in enumerate(outcome.events):
        validate_event({**to_plain(event), "sequence_number": number})
    validate_response(to_plain(outcome.response))


@pytest.mark.proves("CP-022", "CP-029")
async def test_a_body_that_is_not_streamed_validates_too() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hello"))), strict=True)
    validate_response(to_plain(await engine.create(ask())))
