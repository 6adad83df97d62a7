"""Items as real clients send them back, and as other servers have written them: nothing legal is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    Detail,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    McpToolInfo,
    Message,
    OpaqueItem,
    OutputText,
)
from antwort.api.requests import CreateRequest, parse_request
from antwort.api.wire import UNSET, to_plain
from antwort.errors import InvalidField

PICTURE = "data:image/png;base64,AA=="
CALL: dict[str, Any] = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
SERVER_CALL: dict[str, Any] = {"type": "mcp_call", "id": "m", "server_label": "d", "name": "n", "arguments": "{}"}


def ask(**fields: object) -> CreateRequest:
    return parse_request(json.dumps({"model": "m", **fields}).encode(), Limits())


def only(value: object) -> Any:
    (item,) = ask(input=[value]).input
    return item


# ---- calls and results ----


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": None, "status": None, "namespace": None, "caller": None},
        {"caller": {"type": "direct"}, "async": False},
        {"caller": {"type": "program", "caller_id": "call_0"}, "created_by": "x"},
    ],
)
def test_a_function_call_needs_no_id_and_may_say_more(more: dict[str, Any]) -> None:
    call = only({**CALL, **more})
    assert call == FunctionCall(id=call.id, call_id="call_1", name="f", arguments="{}")


def test_a_call_keeps_its_namespace() -> None:
    assert only({**CALL, "namespace": "agents"}).namespace == "agents"
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "namespace": "agents"}
    assert isinstance(only(custom), CustomToolCall)
    assert (only(custom).namespace, only({**custom, "namespace": None}).namespace) == ("agents", UNSET)


PARTS = [
    {"type": "input_text", "text": "see", "prompt_cache_breakpoint": {"mode": "explicit"}},
    {"type": "input_image", "image_url": PICTURE, "detail": "original", "file_id": None},
    {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,AA==", "detail": "auto"},
]


@pytest.mark.parametrize(
    ("kind", "made"),
    [("function_call_output", FunctionCallOutput), ("custom_tool_call_output", CustomToolCallOutput)],
)
def test_a_result_may_be_made_of_text_pictures_and_files(kind: str, made: type[FunctionCallOutput]) -> None:
    nothing = {"status": None, "name": None, "namespace": None, "caller": None}
    item = only({"type": kind, "id": "o", "call_id": "c", "output": PARTS, **nothing})
    assert item == made(
        id="o",
        call_id="c",
        output=(
            InputText(text="see"),
            InputImage(image_url=PICTURE, detail="original"),
            InputFile(filename="a.txt", file_data="data:text/plain;base64,AA=="),
        ),
    )


# ---- tool servers ----


def test_what_a_server_offered_may_be_null_but_for_the_names() -> None:
    tool = {"name": "add", "input_schema": None, "description": None, "annotations": None}
    item = only({"type": "mcp_list_tools", "id": "m", "server_label": "d", "tools": [tool], "error": None})
    assert item == McpListTools(id="m", server_label="d", tools=(McpToolInfo(name="add", input_schema={}),))


def test_annotations_that_are_no_object_say_nothing() -> None:
    tool = {"name": "add", "input_schema": {"type": "object"}, "annotations": []}
    (read,) = only({"type": "mcp_list_tools", "server_label": "d", "tools": [tool]}).tools
    assert read == McpToolInfo(name="add", input_schema={"type": "object"})


def test_a_list_that_could_not_be_had_is_empty() -> None:
    item = only({"type": "mcp_list_tools", "id": "m", "server_label": "d", "tools": None, "error": "unreachable"})
    assert item == McpListTools(id="m", server_label="d", tools=(), error="unreachable")


def test_nulls_of_a_servers_call_are_what_it_leaves_out() -> None:
    nulls = {"output": None, "error": None, "approval_request_id": None, "status": None, "call_id": None}
    assert only({**SERVER_CALL, **nulls}) == McpCall(id="m", server_label="d", name="n", arguments="{}")


@pytest.mark.parametrize("status", ["in_progress", "calling", "completed", "incomplete", "failed"])
def test_every_status_of_a_servers_call_is_known(status: str) -> None:
    assert only({**SERVER_CALL, "status": status}).status == status


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("no", "no"),
        ({"type": "http_error", "code": 500, "message": "no"}, "no"),
        ({"type": "mcp_protocol_error", "code": -32000, "message": "no"}, "no"),
        ({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}, {"type": "x"}]}, "no"),
        ({"type": "mcp_tool_execution_error", "content": "no"}, "no"),
        ({"type": "mcp_tool_execution_error", "content": [{"a": 1}]}, '[{"a":1}]'),
        ({"type": "something_else", "why": 5}, '{"type":"something_else","why":5}'),
    ],
)
def test_an_error_of_a_server_is_what_it_says(error: object, said: str) -> None:
    assert only({**SERVER_CALL, "error": error}).error_text == said
    assert only({"type": "mcp_list_tools", "server_label": "d", "tools": [], "error": error}).error == said


def test_an_error_that_was_written_here_comes_back_as_it_was_written() -> None:
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
    assert to_plain(only({**SERVER_CALL, "error": error}))["error"] == error


def test_an_output_of_a_server_that_comes_in_parts_is_kept_in_parts_and_shown_as_text() -> None:
    call = only({**SERVER_CALL, "output": ["first", *PARTS[:2], "last"]})
    assert call.output == "first\nsee\n[input_image]\nlast"
    assert call.content == (
        *(InputText(text="first"), InputText(text="see")),
        *(InputImage(image_url=PICTURE, detail="original"), InputText(text="last")),
    )
    assert only(to_plain(call)) == call, "a client may send it back as it got it"


def test_an_output_in_parts_that_cannot_be_names_the_part() -> None:
    with pytest.raises(InvalidField) as caught:
        only({**SERVER_CALL, "output": ["x", {"type": "input_smell"}]})
    assert caught.value.param == "input[0].output[1].type"


def test_approvals_are_read() -> None:
    asked = {"type": "mcp_approval_request", "id": "a", "server_label": "d", "name": "n", "arguments": "{}"}
    assert only({**asked, "status": None}) == McpApprovalRequest(id="a", server_label="d", name="n", arguments="{}")
    given = {"type": "mcp_approval_response", "id": "r", "approval_request_id": "a", "approve": True, "reason": None}
    assert only(given) == McpApprovalResponse(id="r", approval_request_id="a", approve=True)


# ---- messages ----


@pytest.mark.parametrize("detail", ["low", "high", "auto", "original"])
def test_every_detail_of_an_image_is_known(detail: Detail) -> None:
    part = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": detail}
    (image,) = only({"role": "user", "content": [part]}).content
    assert image == InputImage(image_url="https://example.org/a.png", detail=detail)


def test_an_answer_comes_back_with_all_that_was_said_of_it() -> None:
    prob = {"token": "a", "logprob": -1, "bytes": None, "top_logprobs": None}
    top = {**prob, "top_logprobs": [{"token": "b", "logprob": -2, "bytes": None}]}
    part = {"type": "output_text", "text": "a", "annotations": None, "logprobs": [prob, top], "parsed": {"a": 1}}
    (text,) = only({"type": "message", "role": "assistant", "id": "msg_1", "content": [part]}).content
    assert isinstance(text, OutputText)
    assert [(each.token, each.bytes, len(each.top_logprobs)) for each in text.logprobs] == [("a", (), 0), ("a", (), 1)]


def test_the_same_id_may_stand_twice() -> None:
    message = {"role": "user", "content": "x", "id": "msg_1"}
    assert [item.id for item in ask(input=[message, message]).input] == ["msg_1", "msg_1"]


@pytest.mark.parametrize("item", [{"role": "user", "content": "x"}, {"type": "acme:note"}, {"type": "item_reference"}])
def test_an_id_has_a_sane_length(item: dict[str, Any]) -> None:
    assert only({**item, "id": "x" * 512}).id == "x" * 512
    with pytest.raises(InvalidField) as caught:
        only({**item, "id": "x" * 513})
    assert (caught.value.param, caught.value.code) == ("input[0].id", "string_above_max_length")


# ---- kinds that are not ours ----

HOSTED: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": None},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": None, "container_id": "c", "outputs": None},
    {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "c", "output": "{}", "status": None},
    {"type": "computer_call", "id": "cu", "call_id": "c", "action": {"type": "wait"}, "pending_safety_checks": []},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
    {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "x"}, "execution": "client"},
    {"type": "tool_search_output", "call_id": "c", "tools": [], "execution": "client"},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": None},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "", "stderr": "", "outcome": {}}]},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None},
    {"type": "program", "id": "p", "call_id": "c", "code": "1", "fingerprint": "f"},
    {"type": "program_output", "id": "po", "call_id": "c", "result": "1", "status": "completed"},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "compaction_trigger"},
]


@pytest.mark.parametrize("item", HOSTED, ids=lambda item: item["type"])
def test_items_of_hosted_tools_are_accepted_and_kept(item: dict[str, Any]) -> None:
    request = ask(input=[item])
    (read,) = request.input
    assert isinstance(read, OpaqueItem)
    assert {**read.fields} == {**item, "id": read.id}
    assert json.loads(request.raw_input[0]) == item


def test_a_text_in_the_depth_of_such_an_item_has_a_length_too() -> None:
    small = Limits(part_bytes=64)
    for item, path in (
        ({"type": "computer_call_output", "output": {"image_url": "x" * 65}}, "input[0].output.image_url"),
        ({"type": "x", "command": ["ls", "x" * 65]}, "input[0].command[1]"),
    ):
        with pytest.raises(InvalidField) as caught:
            parse_request(json.dumps({"input": [item]}).encode(), small)
        assert (caught.value.param, caught.value.code) == (path, "string_above_max_length")


def test_a_reference_needs_no_type() -> None:
    assert only({"id": "msg_1"}) == only({"id": "msg_1", "type": None}) == ItemReference(id="msg_1")


# ---- fields that are accepted and mostly ignored ----

ODD: dict[str, list[Any]] = {
    "client_metadata": [{}, {"a": {"b": [1, None]}}, None],
    "prompt_cache_key": ["k" * 64, "", None],
    "prompt_cache_options": [{"mode": "explicit", "ttl": "30m"}, None],
    "prompt_cache_retention": ["24h", "in_memory", None],
    "safety_identifier": ["s" * 64, None],
    "service_tier": ["auto", "default", "flex", "priority", "scale", "something new", None],
    "stream_options": [{}, {"include_obfuscation": None}, {"include_usage": True}, None],
    "include": [[], ["something.new", "web_search_call.action.sources"], ["message.output_text.logprobs"], None],
    "truncation": ["auto", "disabled", None],
    "user": ["", "u", None],
    "max_tool_calls": [1, None],
    "top_logprobs": [0, 20, None],
    "moderation": [{"model": "x"}, "auto", None],
    "context_management": [[{"type": "compaction", "compact_threshold": 1000}], [{"type": "new"}], [], None],
    "access_programs": [{}, None],
    "metadata": [{}, {"a": ""}, None],
    "text": [{}, {"format": None, "verbosity": None}, {"format": {"type": "json_object", "schema": None}}, None],
    "reasoning": [{}, {"effort": None, "summary": None}, {"effort": "xhigh", "context": "auto"}, None],
    "something_new": [{"deep": [{"er": None}]}, 5, "x", None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ODD.items() for value in values])
def test_what_may_be_ignored_is_never_a_reason_to_refuse(field: str, value: object) -> None:
    request = ask(input="x", **{field: value})
    assert isinstance(request.input[0], Message)
    assert json.loads(request.raw)[field] == value


def test_unknown_fields_are_accepted_at_every_level() -> None:
    new = {"new": {"x": [1]}}
    request = ask(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "x", **new}], **new},
            {**CALL, **new},
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "y", **new}],
            },
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "z", **new}], **new},
        ],
        text={"format": {"type": "text", **new}, **new},
        reasoning={"effort": "low", **new},
        stream_options=new,
        tools=[{"type": "function", "name": "f", **new}],
        tool_choice={"type": "function", "name": "f", **new},
        **new,
    )
    assert len(request.input) == 4
