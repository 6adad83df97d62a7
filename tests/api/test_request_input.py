"""Input as clients send it: what they may leave out, and what they send in other words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.item_parsing import read_item
from antwort.api.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    ItemReference,
    McpListTools,
    Message,
    OpaqueItem,
    OutputText,
    Reasoning,
    ReasoningText,
    SummaryText,
    Text,
)
from antwort.api.requests import CreateRequest, parse_request, read_request
from antwort.api.wire import UNSET
from api.samples import ITEMS, Json


def ask(value: object) -> CreateRequest:
    return parse_request(json.dumps({"input": value}).encode(), Limits())


def only(value: object) -> Any:
    (item,) = ask([value]).input
    return item


pytestmark = pytest.mark.proves("MISTAKE-03")


@pytest.mark.parametrize("value", ["Hello", ""])
def test_a_string_is_a_message_of_the_user(value: str) -> None:
    (message,) = ask(value).input
    assert isinstance(message, Message)
    assert (message.role, message.content, message.status) == ("user", (InputText(text=value),), "completed")
    assert message.id.startswith("msg_")


@pytest.mark.parametrize("body", [b"{}", b'{"input":null}', b'{"input":[]}'])
def test_no_input_is_no_items(body: bytes) -> None:
    request = parse_request(body, Limits())
    assert request.input == request.raw_input == ()


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_a_message_needs_no_type(role: str) -> None:
    message = only({"role": role, "content": "hi"})
    assert isinstance(message, Message)
    assert message.role == role


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_string_content_is_an_input_text(role: str) -> None:
    assert only({"role": role, "content": "hi"}).content == (InputText(text="hi"),)


def test_string_content_of_the_assistant_is_an_output_text() -> None:
    assert only({"role": "assistant", "content": "hi"}).content == (OutputText(text="hi"),)


def test_text_parts_of_chat_completions_are_understood() -> None:
    assert only({"role": "user", "content": [{"type": "text", "text": "hi"}]}).content == (Text(text="hi"),)


def test_a_string_among_the_parts_is_a_text() -> None:
    assert only({"role": "user", "content": ["hi"]}).content == (InputText(text="hi"),)


def test_a_message_without_content_is_empty() -> None:
    assert only({"role": "user"}).content == only({"role": "user", "content": None}).content == ()


PICTURE = "data:image/png;base64,AA=="


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        ({"type": "input_image", "image_url": PICTURE}, "auto"),
        ({"type": "input_image", "image_url": PICTURE, "detail": None}, "auto"),
        ({"type": "input_image", "image_url": PICTURE, "detail": "high"}, "high"),
        ({"type": "input_image", "image_url": {"url": PICTURE}}, "auto"),
        ({"type": "input_image", "image_url": {"url": PICTURE, "detail": "low"}}, "low"),
        ({"type": "image_url", "image_url": PICTURE}, "auto"),
        ({"type": "image_url", "image_url": {"url": PICTURE}}, "auto"),
        ({"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}, "low"),
        ({"type": "image_url", "image_url": {"url": PICTURE, "detail": None}, "detail": "high"}, "high"),
    ],
)
def test_an_image_is_understood_in_all_its_shapes(part: Json, detail: str) -> None:
    (image,) = only({"role": "user", "content": [part]}).content
    assert isinstance(image, InputImage)
    assert (image.image_url, image.detail) == (PICTURE, detail)


def test_an_image_may_be_a_file() -> None:
    part = {"type": "input_image", "file_id": "file_1"}
    assert only({"role": "user", "content": [part]}).content == (InputImage(file_id="file_1"),)


def test_nulls_for_unset_fields_of_a_part_are_no_fault() -> None:
    part = {"type": "output_text", "text": "hi", "annotations": None, "logprobs": None}
    assert only({"role": "assistant", "content": [part]}).content == (OutputText(text="hi"),)
    file = {"type": "input_file", "file_id": "file_1", "filename": None}
    assert only({"role": "user", "content": [file]}).content == (InputFile(file_id="file_1"),)


def test_nulls_for_unset_fields_of_an_item_are_no_fault() -> None:
    message = only({"type": None, "id": None, "status": None, "phase": None, "role": "user", "content": "hi"})
    assert isinstance(message, Message)
    assert (message.status, message.phase) == ("completed", UNSET)
    reasoning = only({"type": "reasoning", "summary": [], "content": None, "encrypted_content": None})
    assert (reasoning.content, reasoning.encrypted_content) == (UNSET, UNSET)


def test_nulls_in_a_list_of_tools_are_no_fault() -> None:
    tool: Json = {"name": "add", "input_schema": {}, "description": None, "annotations": None}
    item = only({"type": "mcp_list_tools", "server_label": "depot", "tools": [tool]})
    assert isinstance(item, McpListTools)
    assert item.tools[0].description is UNSET


@pytest.mark.parametrize("phase", ["commentary", "final_answer"])
def test_the_phase_of_a_message_is_kept(phase: str) -> None:
    assert only({"role": "assistant", "content": "hi", "phase": phase}).phase == phase


@pytest.mark.parametrize("sample", ITEMS, ids=lambda sample: sample["type"])
def test_an_id_that_a_client_made_is_kept(sample: Json) -> None:
    assert only({**sample, "id": "my own"}).id == "my own"


@pytest.mark.parametrize(
    ("sample", "prefix"),
    [
        ({"type": "message", "role": "user", "content": ""}, "msg_"),
        ({"type": "function_call", "call_id": "c", "name": "n", "arguments": ""}, "fc_"),
        ({"type": "function_call_output", "call_id": "c", "output": ""}, "fco_"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": ""}, "ctc_"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": ""}, "ctco_"),
        ({"type": "reasoning", "summary": []}, "rs_"),
        ({"type": "compaction", "encrypted_content": "x"}, "cmp_"),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, "mcpl_"),
        ({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": ""}, "mcp_"),
        ({"type": "mcp_approval_request", "server_label": "s", "name": "n", "arguments": ""}, "mcpr_"),
        ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}, "mcpa_"),
        ({"type": "acme:note"}, "item_"),
    ],
)
@pytest.mark.parametrize("missing", [{}, {"id": None}, {"id": ""}])
@pytest.mark.proves("CP-003")
def test_an_item_without_an_id_gets_one(sample: Json, prefix: str, missing: Json) -> None:
    one, other = only({**sample, **missing}), only({**sample, **missing})
    assert one.id.startswith(prefix)
    assert one.id != other.id


def test_a_stored_item_keeps_the_id_it_was_stored_under() -> None:
    assert read_item({"role": "user", "content": "hi"}, "input[0]", Limits(), item_id="msg_7").id == "msg_7"
    assert read_item({"type": "acme:note", "id": "x"}, "input[0]", Limits(), item_id="item_7").id == "item_7"


@pytest.mark.parametrize(
    "value", [{"id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}, {"type": None, "id": "msg_1"}]
)
def test_a_reference_is_told_by_its_id(value: Json) -> None:
    assert only(value) == ItemReference(id="msg_1")


def test_a_call_may_come_without_a_status() -> None:
    call = only({"type": "function_call", "call_id": "c", "name": "n", "arguments": "not json {", "id": "fc_1"})
    assert call == FunctionCall(id="fc_1", call_id="c", name="n", arguments="not json {", status="completed")


@pytest.mark.parametrize(
    ("output", "read"),
    [
        ("3", "3"),
        ("", ""),
        ([], ()),
        ([{"type": "input_text", "text": "3"}], (InputText(text="3"),)),
        ([{"type": "output_text", "text": "3"}], (OutputText(text="3"),)),
        ([{"type": "text", "text": "3"}, "4"], (Text(text="3"), InputText(text="4"))),
        ([{"type": "image_url", "image_url": {"url": PICTURE}}], (InputImage(image_url=PICTURE),)),
    ],
)
def test_a_result_is_a_string_or_parts(output: object, read: object) -> None:
    item = only({"type": "function_call_output", "call_id": "c", "output": output, "id": "fco_1"})
    assert item == FunctionCallOutput(id="fco_1", call_id="c", output=read)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    ["hm", ["hm"], [{"type": "reasoning_text", "text": "hm"}], [{"type": "text", "text": "hm"}], [{"text": "hm"}]],
)
def test_reasoning_is_understood_in_all_its_shapes(content: object) -> None:
    item = only({"type": "reasoning", "content": content, "summary": content})
    assert isinstance(item, Reasoning)
    assert (item.content, item.summary) == ((ReasoningText(text="hm"),), (SummaryText(text="hm"),))


@pytest.mark.parametrize("empty", [None, [], ""])
@pytest.mark.parametrize("sealed", [None, ""])
def test_reasoning_that_is_empty_is_not_there(empty: object, sealed: str | None) -> None:
    item = only({"type": "reasoning", "summary": empty, "content": empty, "encrypted_content": sealed})
    assert (item.content, item.summary, item.encrypted_content) == (UNSET, (), UNSET)


@pytest.mark.parametrize(
    "sample",
    [
        {"type": "acme:note", "text": "hi"},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot"}, "id": "co_1"},
        {"type": "local_shell_call", "action": {"command": ["ls"]}, "status": None},
        {"type": "acme:list", "output": [1, "two", None]},
        {"type": "acme:role", "role": "narrator", "content": 5},
    ],
)
def test_an_item_of_an_unknown_type_is_kept_whole(sample: Json) -> None:
    item = only(sample)
    assert isinstance(item, OpaqueItem)
    assert item.type == sample["type"]
    assert {**item.fields} == {**sample, "id": item.id}


def test_fields_that_are_not_known_do_no_harm_and_are_kept_in_the_raw_item() -> None:
    value = {"role": "user", "content": [{"type": "input_text", "text": "hi", "cache": True}], "mood": "good"}
    request = ask([value])
    assert isinstance(request.input[0], Message)
    assert json.loads(request.raw_input[0]) == value


def test_each_item_is_kept_as_it_came() -> None:
    values: list[Json] = [{"role": "user", "content": "hi"}, {"type": "acme:note", "n": 2**70}]
    assert [json.loads(raw) for raw in ask(values).raw_input] == values
    assert json.loads(ask("hi").raw_input[0])["content"] == "hi"


def test_the_request_is_kept_as_it_came() -> None:
    body = b'{ "input" : "hi",\n"new_field": [1] }'
    assert parse_request(body, Limits()).raw == body
    assert json.loads(read_request({"input": "hi", "new_field": [1]}, Limits()).raw) == {
        "input": "hi",
        "new_field": [1],
    }


def test_what_was_given_is_not_changed() -> None:
    plain = {"input": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]}
    before = json.dumps(plain)
    read_request(plain, Limits())
    assert json.dumps(plain) == before
