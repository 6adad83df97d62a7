"""A background run asks the backend the same as a foreground run, whichever way a program made its request."""

from __future__ import annotations

from typing import Any

import pytest

from antwort import CreateRequest, Engine
from antwort.api.requests import PlainFields
from antwort.api.responses import Response
from antwort.api.wire import replace, to_plain
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatRequest
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask, engine_of

CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
MAP = {"type": "custom", "name": "map", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "customers", "tools": [CLOCK]}
FIELDS: dict[str, Any] = {
    "model": "other",
    "include": ["reasoning.encrypted_content"],
    "metadata": {"topic": "weather"},
    "text": {"format": {"type": "json_schema", "name": "city", "schema": {"type": "object"}}, "verbosity": "low"},
    "temperature": 0.25,
    "top_p": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "parallel_tool_calls": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "max_output_tokens": 77,
    "max_tool_calls": 3,
    "max_turns": 2,
    "deadline": 5.0,
    "token_budget": 900,
    "reasoning": {"effort": "low"},
    "safety_identifier": "safe",
    "prompt_cache_key": "cached",
    "truncation": "auto",
    "instructions": "Be kind.",
    "service_tier": "flex",
    "top_logprobs": 2,
    "user": "ann",
    "context_management": [{"type": "compaction", "compact_threshold": 100_000}],
    "generate": True,
    "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello", "x_unknown": 1}],
    "tools": [CLOCK, MAP, NAMESPACE],
    "tool_choice": {"type": "function", "name": "clock"},
    "allowed_tools": ["clock"],
}
"""A value of each field of a request, as a client sends it."""
ELSEWHERE = {
    "background": "it is what the tests change",
    "store": "a background response is stored",
    "previous_response_id": "it is a column of the record",
    "conversation": "it needs one",
    "raw": "the fields count",
    "raw_input": "it goes with the input",
    "additional": "it is read from the input",
    "unknown_fields": "they have no effect",
}
NEEDS_TOOLS = ("tool_choice", "allowed_tools", "parallel_tool_calls", "max_tool_calls")


def test_each_field_has_a_value_here() -> None:
    assert set(CreateRequest.__struct_fields__) == FIELDS.keys() | ELSEWHERE.keys()
    assert set(PlainFields.__struct_fields__) <= FIELDS.keys() | ELSEWHERE.keys()


async def asked_in(request: CreateRequest, *, streamed: bool) -> tuple[ChatRequest, dict[str, Any]]:
    """Return what the backend was asked, and the response without what differs between any two."""
    provider = ScriptedProvider(answer(say("{}")), models=["scripted", "other"])
    async with engine_of(provider) as engine:
        response = await _run(engine, request, streamed=streamed)
    plain: dict[str, Any] = to_plain(response)
    for name in ("id", "created_at", "completed_at", "background", "output"):
        plain.pop(name, None)
    return provider.requests[0], plain


async def _run(engine: Engine, request: CreateRequest, *, streamed: bool) -> Response:
    if streamed:
        events = [event async for event in engine.respond(request)]
        response_id = events[0].response.id  # type: ignore[union-attr]
    else:
        response_id = (await engine.create(request)).id
    await engine.until_ended(ANONYMOUS, response_id)
    return await engine.retrieve(ANONYMOUS, response_id)


async def check_same(request: CreateRequest, *, streamed: bool) -> None:
    foreground = await asked_in(replace(request, background=None), streamed=streamed)
    background = await asked_in(replace(request, background=True), streamed=streamed)
    assert foreground == background


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", FIELDS)
async def test_a_field_that_was_changed_after_parsing_counts(name: str, streamed: bool) -> None:
    others = {"tools": FIELDS["tools"]} if name in NEEDS_TOOLS else {}
    wanted, given = ask(**{**others, name: FIELDS[name]}), ask("Hi", **others)
    changed = {name: getattr(wanted, name)}
    if name == "input":
        changed["raw_input"] = wanted.raw_input
    await check_same(replace(given, **changed), streamed=streamed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_field_that_was_removed_after_parsing_does_not_count(streamed: bool) -> None:
    wanted, given = ask(), ask(**{name: value for name, value in FIELDS.items() if name not in ("input", "model")})
    await check_same(replace(wanted, raw=given.raw), streamed=streamed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_without_json_counts_by_its_fields(streamed: bool) -> None:
    await check_same(replace(ask(**FIELDS), raw=b"{}"), streamed=streamed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_as_it_was_parsed_counts(streamed: bool) -> None:
    await check_same(ask(**FIELDS), streamed=streamed)
