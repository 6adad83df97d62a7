"""The standard's words: what the strict setting makes of what is written, and what is understood of it again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import standard
from antwort.api.decoding import Limits
from antwort.api.events import AnnotationAdded, ContentPartDone, ErrorEvent, StreamEvent
from antwort.api.item_parsing import read_input, read_item
from antwort.api.items import (
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputVideo,
    KnownItem,
    McpCall,
    McpListTools,
    Message,
    OpaqueItem,
    OutputText,
)
from antwort.api.requests import read_request
from antwort.api.responses import CompactedResponse, Model, ReasoningEcho, Response, ResponseError, Usage
from antwort.api.standard import OPENAI, STANDARD, own_kind, wording
from antwort.api.tools import OpaqueTool
from antwort.api.wire import Plain, encode, replace, to_plain
from antwort.errors import AntwortError, InvalidField, standard_type
from antwort.server.resources import item_list
from antwort.server.routes import Deleted, ToolsetList
from api.samples import EVENTS, ITEMS, RESPONSE, Json

FOREIGN = [item for item in ITEMS if item["type"] not in (*standard.ITEMS, "item_reference")]
_NAMES = st.sampled_from(["object", "output", "tools", "content", "type", "data", "error", "response", "item", "x"])
RESPONDED = msgspec.convert(RESPONSE, Response)


def written(value: object) -> Any:
    return json.loads(STANDARD.encode(value))


def names(samples: list[Json]) -> list[str]:
    return [f"{i} {sample['type']}" for i, sample in enumerate(samples)]


def test_the_setting_says_in_which_words() -> None:
    assert wording(strict=True) is STANDARD
    assert wording(strict=False) is OPENAI
    assert OPENAI.encode is encode


# ---- events ----


@pytest.mark.parametrize("sample", EVENTS, ids=names(EVENTS))
def test_an_event_is_the_standards_or_has_a_prefix(sample: Json) -> None:
    event: Any = msgspec.convert(sample, StreamEvent)
    plain = written(event)
    assert plain["type"] == STANDARD.name(type(event))
    assert next(iter(plain)) == "type"
    standard.validate_extended_event({**plain, "sequence_number": 1})


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ("response.reasoning_text.delta", "response.reasoning.delta"),
        ("response.reasoning_text.done", "response.reasoning.done"),
        ("response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta"),
        ("response.mcp_call.in_progress", "antwort:response.mcp_call.in_progress"),
        ("response.mcp_call_arguments.delta", "antwort:response.mcp_call_arguments.delta"),
        ("response.mcp_list_tools.failed", "antwort:response.mcp_list_tools.failed"),
        ("response.custom_tool_call_input.done", "antwort:response.custom_tool_call_input.done"),
    ],
)
def test_the_names_of_events(own: str, name: str) -> None:
    sample = next(event for event in EVENTS if event["type"] == own)
    event: Any = msgspec.convert(sample, StreamEvent)
    assert written(event) == {**to_plain(event), "type": name}


def test_an_error_event_has_the_standards_type() -> None:
    detail = {"type": "rate_limit_error", "code": "c", "message": "m", "param": None}
    event = written(ErrorEvent(code="c", message="m", param=None, error=detail))
    assert event["error"]["type"] == "too_many_requests"
    standard.validate_event({**event, "sequence_number": 0})


# ---- items ----


@pytest.mark.parametrize("sample", FOREIGN, ids=names(FOREIGN))
def test_an_item_that_the_standard_does_not_have_is_prefixed_and_read_again_as_it_was(sample: Json) -> None:
    item: Any = msgspec.convert(sample, KnownItem)
    plain = written(item)
    assert plain == {**to_plain(item), "type": f"antwort:{sample['type']}"}
    assert read_item(plain, "input[0]", Limits()) == item


@pytest.mark.parametrize("kind", ["web_search_call", "local_shell_call"])
def test_an_item_of_a_type_that_nobody_knows_is_prefixed_too(kind: str) -> None:
    item = read_item({"type": kind, "id": "x_1", "action": {"type": "search"}}, "input[0]", Limits())
    plain = written(item)
    assert plain == {"type": f"antwort:{kind}", "id": "x_1", "action": {"type": "search"}}
    assert read_item(plain, "input[0]", Limits()) == item


def test_somebody_elses_extension_stays_as_it_came() -> None:
    item = read_item({"type": "acme:telepathy", "id": "x_1"}, "input[0]", Limits())
    assert written(item) == {"type": "acme:telepathy", "id": "x_1"}
    assert own_kind("acme:telepathy") == "acme:telepathy"


@pytest.mark.parametrize("kind", ["aaa_call:", ":x", ":", "a b:c", "x\n:y", "a:b c", "antwort:x", "antwort:message"])
def test_what_only_looks_like_an_extension_is_prefixed(kind: str) -> None:
    item = OpaqueItem(kind, "x_1", {"type": kind, "id": "x_1"})
    assert written(item)["type"] == f"antwort:{kind}"
    assert written(replace(RESPONDED, tools=({"type": kind},)))["tools"] == [{"type": f"antwort:{kind}"}]


@given(st.text("ab: \n", min_size=1, max_size=6), st.sampled_from(["", "antwort:", "antwort:antwort:"]))
def test_whatever_its_type_an_item_is_read_again_as_it_was(name: str, before: str) -> None:
    item = read_item({"type": f"{before}{name}", "id": "x_1"}, "input[0]", Limits())
    plain = written(item)
    assert read_item(plain, "input[0]", Limits()) == item
    slug, _, rest = plain["type"].partition(":")
    assert slug.strip()
    assert rest


@pytest.mark.parametrize("kind", ["", "antwort:"])
def test_an_empty_type_is_refused(kind: str) -> None:
    for field in ("input", "tools"):
        with pytest.raises(InvalidField, match="must not be empty") as caught:
            read_request({"input": "x", field: [{"type": kind, "id": "x_1"}]}, Limits())
        assert caught.value.param == f"{field}[0].type"
    with pytest.raises(InvalidField) as caught:
        read_request({"input": "x", "tool_choice": {"type": kind}}, Limits())
    assert str(caught.value.param).startswith("tool_choice")


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["response", "list", "message", "mcp", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_TYPES = st.sampled_from(["foo", "web_search_call", "response", "list", "event"]) | st.from_regex(
    r"[a-z]{3,9}_call", fullmatch=True
)


@given(fields=st.dictionaries(_NAMES, _JSON), kind=_TYPES)
def test_an_item_that_nobody_knows_is_written_whatever_its_client_put_in_it(fields: Json, kind: str) -> None:
    item = OpaqueItem(kind, "x_1", {**fields, "type": kind})
    said = {**fields, "id": "x_1", "type": f"antwort:{kind}"}
    assert written(item) == said
    assert written(item_list((item,)))["data"] == [said]


def test_an_annotation_that_the_standard_does_not_have_is_prefixed_and_read_again_as_it_was() -> None:
    cited = {"type": "file_citation", "file_id": "f", "index": 1}
    part = OutputText(text="x", annotations=(cited, {"type": "url_citation"}, {"type": "acme:mark"}, {"note": 1}))
    item = Message(id="msg_1", role="assistant", content=(part,))
    said = [{**cited, "type": "antwort:file_citation"}, *part.annotations[1:]]
    plain = written(item)
    assert plain["content"][0]["annotations"] == said
    assert read_item(plain, "input[0]", Limits()) == item
    around: Any = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    assert written(ContentPartDone(part=part, **around))["part"]["annotations"] == said
    assert written(AnnotationAdded(annotation_index=0, annotation=cited, **around))["annotation"] == said[0]


def test_what_a_tool_answered_in_parts_is_made_of_the_standards_parts() -> None:
    parts = [
        {"type": "output_text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "original"},
        {"type": "input_file", "filename": "f.txt", "file_url": None},
        {"type": "input_video", "video_url": "https://example.org/v"},
    ]
    item = msgspec.convert({"id": "fco_1", "call_id": "c", "output": parts}, FunctionCallOutput)
    plain = written(item)
    standard.validate_item(plain)
    assert plain["output"] == [
        {"type": "input_text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"},
        {"type": "input_file", "filename": "f.txt"},
        {"type": "input_file", "file_url": "https://example.org/v"},
    ]


def test_what_a_client_has_said_is_made_of_the_standards_parts() -> None:
    content = (
        InputImage(image_url=None, file_id="f", detail="original"),
        InputFile(filename=None, file_id="f"),
        InputVideo(video_url="https://example.org/v"),
        OutputText(text="x"),
    )
    plain = written(Message(id="msg_1", role="user", content=content))
    standard.validate_item(plain)
    assert [part["type"] for part in plain["content"]] == ["input_image", "input_file", "input_video", "output_text"]


# ---- what a response echoes ----


def echoed(**changes: Any) -> Plain:
    plain: Plain = written(replace(RESPONDED, **changes))
    standard.validate_extended_response(plain)
    return plain


def test_a_schema_is_echoed_as_null_and_stays_where_it_is_kept() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"a": 1}, "description": None, "strict": True}
    text = {"format": form, "verbosity": "low"}
    assert echoed(text=text)["text"] == {"format": {**form, "schema": None}, "verbosity": "low"}
    assert form["schema"] == {"a": 1}


@pytest.mark.parametrize(
    ("effort", "said"), [("minimal", None), ("max", None), ("low", "low"), ("xhigh", "xhigh"), (None, None)]
)
def test_an_effort_that_the_standard_has_no_word_for_is_not_echoed(effort: str | None, said: str | None) -> None:
    assert echoed(reasoning=ReasoningEcho(effort=effort))["reasoning"] == {"effort": said, "summary": None}


def test_tools_of_other_types_are_prefixed() -> None:
    own = {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    tools = ({"type": "mcp", "server_label": "depot"}, own, {"type": "custom", "name": "patch"})
    assert [tool["type"] for tool in echoed(tools=tools)["tools"]] == ["antwort:mcp", "function", "antwort:custom"]


def test_tools_in_a_namespace_are_prefixed_like_others() -> None:
    inner = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    (tool,) = echoed(tools=({"type": "namespace", "name": "n", "tools": inner},))["tools"]
    assert [entry["type"] for entry in (tool, *tool["tools"])] == ["antwort:namespace", "function", "antwort:custom"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "name": "f"}),
        ({"type": "custom", "name": "patch"}, {"type": "antwort:custom", "name": "patch"}),
        ({"type": "mcp", "server_label": "depot"}, {"type": "antwort:mcp", "server_label": "depot"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_the_choice_of_tools(choice: str | Plain, said: str | Plain) -> None:
    assert echoed(tool_choice=choice)["tool_choice"] == said


def test_an_allowed_tool_of_another_type_is_prefixed() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "depot"}]}
    said = written(replace(RESPONDED, tool_choice=choice))["tool_choice"]
    assert said["tools"] == [{"type": "antwort:mcp", "server_label": "depot"}]


def test_why_a_response_failed_has_the_standards_type() -> None:
    error = ResponseError(code="backend_timeout", message="m", type="server_error")
    assert echoed(error=error)["error"] == {"code": "backend_timeout", "message": "m", "type": "model_error"}
    assert echoed(error=None)["error"] is None


# ---- lists, and what is no response at all ----


CALL = McpCall(id="mcp_1", server_label="depot", name="lookup", arguments="{}", status="completed", output="found")


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (item_list((CALL,)), "data"),
        (CompactedResponse(id="r", created_at=1, output=(CALL,), usage=Usage()), "output"),
        (ToolsetList(data=(McpListTools(id="mcpl_1", server_label="depot", tools=()),)), "data"),
    ],
    ids=["items", "compaction", "toolsets"],
)
def test_what_holds_items_holds_them_in_the_standards_words(value: object, entries: str) -> None:
    own, said = to_plain(value), written(value)
    assert said == {**own, entries: [{**item, "type": f"antwort:{item['type']}"} for item in own[entries]]}


@pytest.mark.parametrize(
    "value",
    [
        Deleted(id="resp_1"),
        Model(id="m"),
        {"status": "ok"},
        ["x"],
        {"object": "list", "data": [{"type": "mcp_call"}]},
        {"object": "response", "output": [{"type": "mcp_call"}]},
    ],
)
def test_what_is_none_of_these_stays_whatever_it_looks_like(value: object) -> None:
    assert written(value) == to_plain(value)


def test_what_is_in_the_standards_words_stays_as_it_is() -> None:
    once = written(RESPONDED)
    assert written(msgspec.convert({**once, "output": []}, Response)) == {**once, "output": []}
    assert standard_type("not_found", "x") == "not_found"


# ---- reading ----


def test_the_tools_of_a_strict_answer_can_be_sent_again() -> None:
    inner = {"type": "antwort:custom", "name": "g"}
    tools = [
        {"type": "antwort:mcp", "server_label": "depot"},
        {"type": "antwort:custom", "name": "patch"},
        {"type": "antwort:namespace", "name": "n", "tools": [{"type": "function", "name": "f"}, inner]},
        {"type": "antwort:web_search", "size": 1},
    ]
    plain: Any = json.loads(json.dumps(tools).replace("antwort:", ""))
    given, own = (read_request({"input": "x", "tools": each}, Limits()) for each in (tools, plain))
    assert given.tools == own.tools
    assert isinstance(given.tools[-1], OpaqueTool)
    assert given.tools[-1].type == "web_search"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "patch"},
        {"type": "mcp", "server_label": "depot"},
        {"type": "web_search"},
        {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "depot"}]},
    ],
)
def test_a_choice_in_the_standards_words_is_understood(choice: Plain) -> None:
    said = _prefixed(choice)
    assert said != choice
    given, own = (read_request({"input": "x", "tool_choice": each}, Limits()) for each in (said, choice))
    assert (given.tool_choice, given.allowed_tools) == (own.tool_choice, own.allowed_tools)


def _prefixed(choice: Plain) -> Plain:
    if choice["type"] == "allowed_tools":
        return {**choice, "tools": [_prefixed(tool) for tool in choice["tools"]]}
    return {**choice, "type": f"antwort:{choice['type']}"}


def test_too_many_tools_in_a_prefixed_namespace_are_too_many() -> None:
    inner = [{"type": "function", "name": f"f{i}"} for i in range(3)]
    tools = [{"type": "antwort:namespace", "name": "n", "tools": inner}]
    with pytest.raises(AntwortError, match="3 tools"):
        read_request({"input": "x", "tools": tools}, Limits(tools=2))


def test_what_came_in_is_kept_as_it_came() -> None:
    sent = {"type": "antwort:web_search_call", "id": "x_1"}
    (item,), (raw,) = read_input([sent], Limits())
    assert (to_plain(item)["type"], json.loads(raw)) == ("web_search_call", sent)
