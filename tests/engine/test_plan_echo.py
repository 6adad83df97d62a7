"""The response as it starts: every setting echoed as in force."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.responses import ReasoningEcho, Response
from antwort.api.wire import encode, to_plain
from antwort.engine.plan import draft_response
from antwort.engine.settings import EngineSettings
from engine_kit import CLOCK, ask


def echo(**fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(draft_response(ask(**fields), "some-model", EngineSettings()))
    return plain


@pytest.mark.proves("CP-022", "CP-018", "CP-029")
def test_what_was_left_open_is_echoed_with_its_default_and_no_key_is_missing() -> None:
    plain = echo()
    assert plain.pop("id").startswith("resp_")
    assert isinstance(plain.pop("created_at"), int)
    assert plain == {
        "object": "response",
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": "some-model",
        "previous_response_id": None,
        "instructions": None,
        "output": [],
        "error": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": None,
        "usage": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


SET: dict[str, Any] = {
    "previous_response_id": "resp_1",
    "instructions": "Be brief.",
    "truncation": "auto",
    "parallel_tool_calls": False,
    "top_p": 0.0,
    "presence_penalty": 1.5,
    "frequency_penalty": -1.5,
    "top_logprobs": 4,
    "temperature": 0.0,
    "max_output_tokens": 77,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "store": False,
    "service_tier": "flex",
    "user": "u",
}


@pytest.mark.proves("CP-022")
def test_what_was_set_is_echoed_also_when_it_is_zero_or_false() -> None:
    plain = echo(**SET)
    assert {key: plain[key] for key in SET} == SET


@pytest.mark.proves("CP-022")
def test_two_responses_have_two_ids() -> None:
    assert echo()["id"] != echo()["id"]


def test_the_tier_is_the_one_in_force() -> None:
    assert echo(service_tier="auto")["service_tier"] == "default"


@pytest.mark.proves("CP-022")
@pytest.mark.parametrize(
    ("choice", "echoed"),
    [
        ("required", "required"),
        ({"type": "function", "name": "clock"}, {"type": "function", "name": "clock"}),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "clock"}]},
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "clock"}], "mode": "auto"},
        ),
    ],
)
def test_a_choice_is_echoed_whole(choice: Any, echoed: Any) -> None:
    assert echo(tools=[CLOCK], tool_choice=choice)["tool_choice"] == echoed


@pytest.mark.proves("CP-022")
def test_a_function_is_echoed_with_all_its_keys() -> None:
    assert echo(tools=[{"type": "function", "name": "f"}])["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]


def test_credentials_are_never_echoed() -> None:
    server = {
        "type": "mcp",
        "server_label": "depot",
        "server_url": "https://example.org/mcp",
        "authorization": "Bearer sesame",
        "headers": {"X-Key": "sesame"},
        "require_approval": "never",
    }
    response = draft_response(ask(tools=[server]), "m", EngineSettings())
    assert response.tools == (
        {
            "type": "mcp",
            "server_label": "depot",
            "server_url": "https://example.org",
            "require_approval": "never",
        },
    )
    assert b"sesame" not in encode(response)


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
FORM = {"type": "json_schema", "name": "n", "schema": SCHEMA}


@pytest.mark.proves("CP-022")
@pytest.mark.parametrize(
    ("text", "echoed"),
    [
        ({"format": {"type": "json_object"}}, {"format": {"type": "json_object"}}),
        ({"format": {"type": "json_schema"}}, {"format": {"type": "json_object"}}),
        ({"verbosity": "low"}, {"format": {"type": "text"}, "verbosity": "low"}),
        ({"format": FORM}, {"format": {**FORM, "description": None, "strict": False}}),
        (
            {"format": {**FORM, "strict": True, "description": "An x."}},
            {"format": {**FORM, "strict": True, "description": "An x."}},
        ),
    ],
)
def test_the_format_of_the_text_is_echoed_with_its_schema(text: Any, echoed: Any) -> None:
    assert echo(text=text)["text"] == echoed


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ({}, ReasoningEcho()),
        ({"effort": "low"}, ReasoningEcho(effort="low")),
        ({"summary": "auto"}, ReasoningEcho(summary="auto")),
        ({"generate_summary": "concise"}, ReasoningEcho(summary="concise")),
        ({"summary": "auto", "generate_summary": "concise"}, ReasoningEcho(summary="auto")),
    ],
)
def test_reasoning_is_echoed_in_todays_words(given: dict[str, str], echoed: ReasoningEcho) -> None:
    assert draft_response(ask(reasoning=given), "m", EngineSettings()).reasoning == echoed


def test_tools_that_were_dropped_are_not_echoed() -> None:
    response = draft_response(ask(tools=[{"type": "web_search"}, CLOCK]), "m", EngineSettings())
    assert [tool["name"] for tool in response.tools] == ["clock"]
    only_where_given = {"conversation", "user", "max_turns", "deadline", "token_budget"}
    assert set(to_plain(response)) == {*Response.__struct_fields__} - only_where_given
