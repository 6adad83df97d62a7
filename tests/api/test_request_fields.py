"""The other fields of a request: defaults, nulls, tools, choices, and fields nobody knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import CreateRequest, TextFormat, TextOptions, parse_request
from antwort.api.tools import AllowedTools, ForcedFunction, ForcedServer, FunctionTool, McpTool, NamedTool, OpaqueTool
from antwort.errors import InvalidField


def ask(**fields: object) -> CreateRequest:
    return parse_request(json.dumps(fields).encode(), Limits())


EMPTY = parse_request(b"{}", Limits())
OURS = {
    *("input", "raw_input", "additional", "tools", "tool_choice", "allowed_tools", "conversation"),
    *("raw", "unknown_fields"),
}
PLAIN: dict[str, Any] = {
    "model": "small",
    "previous_response_id": "resp_1",
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "temperature": 0.5,
    "top_p": 1,
    "presence_penalty": -2,
    "frequency_penalty": 2.0,
    "parallel_tool_calls": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "background": False,
    "max_output_tokens": 16,
    "max_tool_calls": 1,
    "max_turns": 3,
    "deadline": 1.5,
    "token_budget": 1000,
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "s" * 64,
    "prompt_cache_key": "k",
    "truncation": "auto",
    "instructions": "be brief",
    "store": False,
    "service_tier": "flex",
    "top_logprobs": 20,
    "user": "u",
    "generate": False,
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
}


def test_a_request_may_hold_nothing_at_all() -> None:
    assert all(getattr(EMPTY, name) is None for name in CreateRequest.__struct_fields__ if name not in OURS)
    assert (EMPTY.tools, EMPTY.tool_choice, EMPTY.allowed_tools, EMPTY.conversation) == ((), "auto", None, None)


def test_every_field_of_the_standard_is_read() -> None:
    request = ask(**PLAIN)
    assert set(PLAIN) | OURS == set(CreateRequest.__struct_fields__)
    assert all(getattr(request, name) is not None for name in PLAIN)
    assert (request.temperature, request.top_p, request.stream, request.top_logprobs) == (0.5, 1.0, True, 20)
    assert request.reasoning is not None
    assert (request.reasoning.effort, request.reasoning.summary) == ("low", "auto")


@pytest.mark.parametrize("name", [*PLAIN, "input", "tools", "tool_choice", "allowed_tools", "conversation", "prompt"])
def test_null_means_unset(name: str) -> None:
    request = ask(**{name: None})
    assert all(
        getattr(request, field) == getattr(EMPTY, field) for field in request.__struct_fields__ if field != "raw"
    )


def test_fields_that_nobody_knows_are_accepted() -> None:
    request = ask(input="hi", client_metadata={"a": 1}, moderation=None, another=[{"x": 1}], raw=5, raw_input=7)
    assert len(request.input) == 1
    assert b"client_metadata" in request.raw


@pytest.mark.proves("CP-018")
def test_a_response_is_stored_unless_the_request_says_otherwise() -> None:
    assert EMPTY.is_stored
    assert ask(store=True).is_stored
    assert ask(store=None).is_stored
    assert not ask(store=False).is_stored


def test_what_is_not_offered_is_said_so() -> None:
    with pytest.raises(InvalidField, match="not offered") as caught:
        ask(prompt={"id": "x"})
    assert (caught.value.param, caught.value.code) == ("prompt", "unsupported_parameter")


def test_a_schema_for_the_answer_is_read() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"}
    text = ask(text={"format": form}).text
    assert text is not None
    assert (text.format.name, text.format.schema, text.format.strict) == ("n", {"type": "object"}, True)


@pytest.mark.parametrize("form", [{}, {"name": "n", "strict": True}, {"name": None, "schema": None}])
def test_a_schema_that_is_left_out_asks_for_any_json(form: dict[str, object]) -> None:
    text = ask(text={"format": {"type": "json_schema", **form}, "verbosity": "low"}).text
    assert text == TextOptions(format=TextFormat(type="json_object"), verbosity="low")


def test_a_schema_needs_no_name() -> None:
    text = ask(text={"format": {"type": "json_schema", "schema": {"type": "object"}}}).text
    assert text is not None
    assert (text.format.name, text.format.schema) == ("response", {"type": "object"})


# ---- tools ----


def test_tools_are_an_open_set() -> None:
    request = ask(
        tools=[
            {"type": "function", "name": "add", "parameters": None},
            {"type": "mcp", "server_label": "depot"},
            {"type": "web_search", "external_web_access": False},
        ]
    )
    function, server, other = request.tools
    assert function == FunctionTool(name="add")
    assert server == McpTool(server_label="depot")
    assert other == OpaqueTool("web_search", {"type": "web_search", "external_web_access": False})


def test_a_function_nested_as_in_chat_completions_is_understood() -> None:
    nested = {"name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
    (tool,) = ask(tools=[{"type": "function", "function": nested}]).tools
    assert tool == FunctionTool(name="add", description="adds", parameters={"type": "object"}, strict=True)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128])
def test_a_function_may_have_any_sensible_name(name: str) -> None:
    (tool,) = ask(tools=[{"type": "function", "name": name}]).tools
    assert isinstance(tool, FunctionTool)
    assert tool.name == name


@pytest.mark.proves("FR-005")
@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "add"}, ForcedFunction(name="add")),
        ({"type": "function", "function": {"name": "add"}}, ForcedFunction(name="add")),
        ({"type": "mcp", "server_label": "depot"}, ForcedServer(server_label="depot")),
        ({"type": "mcp", "server_label": "depot", "name": "add"}, ForcedServer(server_label="depot", name="add")),
    ],
)
def test_a_tool_choice_is_read_in_all_its_shapes(sent: object, read: object) -> None:
    request = ask(tool_choice=sent)
    assert request.tool_choice == request.choice_mode == read
    assert request.allowed_tools is None


ADD = NamedTool(type="function", name="add")
DEPOT = NamedTool(type="mcp", server_label="depot")


@pytest.mark.proves("FR-010")
@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (["add"], (ADD,)),
        ([{"type": "function", "name": "add"}, {"type": "mcp", "server_label": "depot"}], (ADD, DEPOT)),
        (["add", {"type": "mcp", "server_label": "depot"}], (ADD, DEPOT)),
        ([], None),
        (None, None),
    ],
)
def test_the_allowed_list_may_stand_by_itself(sent: object, read: object) -> None:
    assert ask(allowed_tools=sent).allowed_tools == read


@pytest.mark.parametrize(
    ("mode", "read"), [({}, "auto"), ({"mode": "required"}, "required"), ({"mode": "none"}, "none")]
)
def test_the_allowed_list_may_stand_in_the_choice(mode: dict[str, str], read: str) -> None:
    tools = [{"type": "function", "name": "add"}, {"type": "mcp", "server_label": "depot"}]
    request = ask(tool_choice={"type": "allowed_tools", "tools": tools, **mode})
    assert isinstance(request.tool_choice, AllowedTools)
    assert (request.choice_mode, request.allowed_tools) == (read, (ADD, DEPOT))


def test_what_both_lists_allow_is_allowed() -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]}
    assert ask(tool_choice=choice, allowed_tools=["sub"]).allowed_tools == ()
    assert ask(tool_choice=choice, allowed_tools=["sub", "add"]).allowed_tools == (ADD,)
    assert ask(tool_choice=choice, allowed_tools=[]).allowed_tools == (ADD,)
