"""Three ways for a field to be absent: left out, null, and an empty list."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from antwort.api.events import OutputTextDelta
from antwort.api.items import FunctionCallOutput, McpCall, McpListTools, Message, OpaqueItem, OutputText, Reasoning
from antwort.api.responses import Model, Response, Usage
from antwort.api.tools import FunctionTool, McpTool, OpaqueTool, echo_tool
from antwort.api.wire import UNSET, encode, to_plain
from api.samples import FUNCTION, RESPONSE, SERVER

REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "store"),
    *("max_output_tokens", "max_tool_calls", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}


def written(value: msgspec.Struct | OpaqueItem | OpaqueTool) -> Any:
    return json.loads(encode(value))


@pytest.mark.proves("CP-022")
def test_a_response_has_all_keys_of_the_standard() -> None:
    plain = written(Response(id="resp_1", created_at=1, status="in_progress", model="small"))
    assert plain.keys() == REQUIRED
    assert len(REQUIRED) == 31


def test_what_the_standard_requires_and_allows_to_be_empty_is_null() -> None:
    nulls = {key for key, value in RESPONSE.items() if value is None}
    assert nulls == {
        *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "usage"),
        *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
    }


@pytest.mark.proves("CP-022")
def test_what_a_request_left_open_is_echoed_with_its_default() -> None:
    sampling = {key: RESPONSE[key] for key in ("temperature", "top_p", "presence_penalty", "frequency_penalty")}
    assert sampling == {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert RESPONSE["text"] == {"format": {"type": "text"}}
    assert (RESPONSE["service_tier"], RESPONSE["truncation"]) == ("default", "disabled")
    assert (RESPONSE["tool_choice"], RESPONSE["parallel_tool_calls"], RESPONSE["store"]) == ("auto", True, True)


def test_optional_fields_that_are_not_set_are_left_out() -> None:
    assert "phase" not in written(Message(id="msg_1", role="assistant", content=()))
    assert written(Reasoning(id="rs_1")).keys() == {"type", "id", "summary", "status"}
    assert "is_error" not in written(FunctionCallOutput(id="fco_1", call_id="c", output=""))
    call = McpCall(id="mcp_1", server_label="s", name="n", arguments="")
    assert written(call).keys() == {"type", "id", "server_label", "name", "arguments", "status", "output", "error"}
    assert "error" not in written(McpListTools(id="mcpl_1", server_label="s", tools=()))
    assert written(McpTool(server_label="s")) == {"type": "mcp", "server_label": "s"}


@pytest.mark.proves("CP-029")
def test_empty_lists_are_written_as_lists() -> None:
    assert RESPONSE["output"] == RESPONSE["tools"] == []
    assert RESPONSE["metadata"] == {}
    assert written(Message(id="msg_1", role="user", content=()))["content"] == []
    assert written(Reasoning(id="rs_1"))["summary"] == []
    assert written(Reasoning(id="rs_1", content=()))["content"] == []
    assert written(McpListTools(id="mcpl_1", server_label="s", tools=()))["tools"] == []
    text = written(OutputText(text="hi"))
    assert text["annotations"] == text["logprobs"] == []
    assert written(OutputTextDelta(item_id="m", output_index=0, content_index=0, delta=""))["logprobs"] == []


def test_usage_is_written_with_its_details_whole() -> None:
    assert written(Usage())["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert written(Usage())["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_model_is_written_as_openai_lists_it() -> None:
    assert written(Model(id="small")) == {"id": "small", "object": "model", "created": 0, "owned_by": "antwort"}


def test_a_value_of_the_protocol_cannot_be_changed() -> None:
    message = Message(id="msg_1", role="user", content=())
    with pytest.raises(AttributeError):
        setattr(message, "status", "incomplete")  # noqa: B010  # the type checker sees it too


def test_what_has_no_json_form_is_not_written() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        encode(object())


def test_opaque_values_are_equal_by_what_they_hold() -> None:
    one, other = OpaqueItem("x", "i", {"a": 1}), OpaqueItem("x", "i", {"a": 2})
    assert one == OpaqueItem("x", "i", {"a": 1})
    assert one != other
    assert len({one, OpaqueItem("x", "i", {"a": 1})}) == 1
    assert repr(one) == "OpaqueItem('x', 'i')"
    tool = OpaqueTool("x", {"a": 1})
    assert tool == OpaqueTool("x", {"a": 1})
    assert tool != OpaqueTool("x", {"a": 2})
    assert tool != one
    assert len({tool, OpaqueTool("x", {"a": 1})}) == 1
    assert repr(tool) == "OpaqueTool('x')"


# ---- echo ----


def test_a_function_is_echoed_with_all_its_keys() -> None:
    assert echo_tool(msgspec.convert(FUNCTION, FunctionTool)) == FUNCTION
    nothing = {"description": None, "parameters": None, "strict": None}
    assert echo_tool(FunctionTool(name="add")) == {"type": "function", "name": "add", **nothing}


def test_a_parameter_named_like_a_secret_is_echoed() -> None:
    parameters = {"type": "object", "properties": {"headers": {"type": "object"}}}
    assert echo_tool(FunctionTool(name="fetch", parameters=parameters))["parameters"] == parameters


def test_an_echo_never_repeats_credentials() -> None:
    server = msgspec.convert(SERVER, McpTool)
    assert (server.authorization, server.headers) == ("secret-token", {"X-Key": "secret-key"})
    for tool in (server, OpaqueTool("acme:server", SERVER)):
        assert "secret" not in encode(echo_tool(tool)).decode()
        assert echo_tool(tool)["server_label"] == "depot"


def test_unset_is_no_value() -> None:
    assert not UNSET
    assert to_plain(McpTool(server_label="s")) == {"type": "mcp", "server_label": "s"}
