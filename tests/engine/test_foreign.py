"""Items of kinds that are not ours: a call with its result is shown to the model, and nothing vanishes in silence."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import Limits
from antwort.api.item_parsing import read_item
from antwort.api.items import OpaqueItem
from antwort.engine.history.calls import CallView
from antwort.errors import InvalidField
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask, engine_of, sent
from plan_kit import STEADY

PICTURE = "data:image/png;base64,AA=="
USER = {"role": "user", "content": "Hello"}


async def shown(*items: dict[str, Any], before: tuple[dict[str, Any], ...] = ()) -> list[Any]:
    """The messages that the model sees of this input; of `before`, as that of an earlier response."""
    provider = ScriptedProvider(answer(say("Hm.")), answer(say("Yes.")))
    engine = engine_of(provider)
    earlier = (await engine.create(ask([*before]))).id if before else None
    await engine.create(ask([*items], previous_response_id=earlier))
    messages: list[Any] = sent(provider.requests[-1])["messages"]
    return messages


def as_call(message: Any) -> tuple[str, Any]:
    """The one call of a message of the assistant."""
    (call,) = message["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


SCREEN = {"type": "computer_screenshot", "image_url": PICTURE, "file_id": None}
PAIRS: list[tuple[dict[str, Any], dict[str, Any], tuple[str, Any], str]] = [
    (
        {"type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
        ("local_shell", {"action": {"command": ["ls"]}}),
        "a.txt",
    ),
    (
        {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"command": ["ls"]}},
        {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
        ("local_shell", {"action": {"command": ["ls"]}}),
        "a.txt",
    ),
    (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": None, "caller": None},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": "", "outcome": {}}]},
        ("shell", {"action": {"commands": ["ls"]}}),
        '[{"stdout":"a","stderr":"","outcome":{}}]',
    ),
    (
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": None},
        ("apply_patch", {"operation": {"type": "delete_file", "path": "a"}}),
        "failed",
    ),
    (
        {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "mail"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "send"}], "execution": "client"},
        ("tool_search", {"query": "mail"}),
        '[{"name":"send"}]',
    ),
    (
        {"type": "program", "id": "p", "call_id": "c", "code": "1+1", "fingerprint": "f"},
        {"type": "program_output", "id": "o", "call_id": "c", "result": "2", "status": "completed"},
        ("program", {"code": "1+1"}),
        "2",
    ),
    (
        {"type": "acme:ask call", "call_id": "c", "name": "ask", "arguments": '{"a":1}'},
        {"type": "acme:ask_output", "call_id": "c", "told": 5, "by": {"x": None}},
        ("ask", {"a": 1}),
        '{"told":5,"by":{"x":null}}',
    ),
    (
        {"type": "acme:ask", "call_id": "c", "arguments": [1]},
        {"type": "acme:ask_output", "call_id": "c"},
        ("acme_ask_bac6e204", {"arguments": [1]}),
        "",
    ),
]


@pytest.mark.parametrize(("call", "result", "seen", "said"), PAIRS, ids=[pair[1]["type"] for pair in PAIRS])
async def test_a_call_of_another_kind_is_shown_with_its_result(
    call: dict[str, Any], result: dict[str, Any], seen: tuple[str, Any], said: str
) -> None:
    _, asked, told, _ = await shown(USER, call, result, USER)
    assert as_call(asked) == seen
    assert told == {"role": "tool", "tool_call_id": "c", "content": said}


async def test_a_screenshot_is_shown_as_a_picture() -> None:
    call = {"type": "computer_call", "id": "cu", "call_id": "c", "action": {"type": "screenshot"}}
    result = {"type": "computer_call_output", "call_id": "c", "output": SCREEN}
    asked, told, picture = await shown(call, result)
    assert as_call(asked) == ("computer", {"action": {"type": "screenshot"}})
    assert told["content"] == "[input_image: shown in the next message]"
    assert picture["content"] == [{"type": "image_url", "image_url": {"url": PICTURE}}]


async def test_texts_and_pictures_of_a_result_stay_in_order() -> None:
    parts = [{"type": "input_text", "text": "before"}, SCREEN, {"stdout": "x"}]
    call = {"type": "shell_call", "call_id": "c", "action": {}}
    _, told, _ = await shown(call, {"type": "shell_call_output", "call_id": "c", "output": parts})
    assert told["content"] == 'before\n[input_image: shown in the next message]\n{"stdout":"x"}'


async def test_a_result_may_come_in_a_later_response() -> None:
    call = {"type": "shell_call", "call_id": "c", "action": {}}
    messages = await shown({"type": "shell_call_output", "call_id": "c", "output": "ok"}, before=(USER, call))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_function_call_may_be_answered_by_another_kind_of_result() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"}
    _, told = await shown(call, {"type": "shell_call_output", "call_id": "c", "output": "ok"})
    assert told == {"role": "tool", "tool_call_id": "c", "content": "ok"}


async def test_without_its_other_half_neither_a_call_nor_a_result_is_shown() -> None:
    call = {"type": "shell_call", "call_id": "c", "action": {}}
    result = {"type": "computer_call_output", "call_id": "d", "output": SCREEN}
    assert [message["role"] for message in await shown(USER, call, result)] == ["user"]


async def test_a_result_of_another_kind_is_no_call_that_could_be_answered() -> None:
    result = {"type": "shell_call_output", "call_id": "c", "output": "ok"}
    with pytest.raises(InvalidField) as caught:
        await shown(result, {"type": "function_call_output", "call_id": "c", "output": "ok"})
    assert (caught.value.code, caught.value.param) == ("unknown_call_id", "input[1].call_id")


# ---- what is left out ----

SEARCH = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}}


async def left_out(caplog: pytest.LogCaptureFixture, *items: dict[str, Any]) -> list[dict[str, Any]]:
    with caplog.at_level(logging.INFO, "antwort.engine"):
        await shown(USER, *items)
    return [vars(record)["fields"] for record in caplog.records if "left out" in record.getMessage()]


async def test_what_the_model_is_not_shown_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    hidden: list[dict[str, Any]] = [
        SEARCH,
        SEARCH,
        {"type": "image_generation_call", "result": "AA"},
        {"type": "compaction_trigger"},
    ]
    asked = {"type": "mcp_approval_request", "id": "r", "server_label": "d", "name": "n", "arguments": "{}"}
    approval = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}
    pair = ({"type": "shell_call", "call_id": "c", "action": {}}, {"type": "shell_call_output", "call_id": "c"})
    assert await left_out(caplog, *hidden, asked, approval, *pair) == [
        {"types": "web_search_call, image_generation_call, compaction_trigger", "items": 4}
    ]


async def test_half_of_a_call_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    assert await left_out(caplog, {"type": "shell_call", "call_id": "c", "action": {}}) == [
        {"types": "shell_call", "items": 1}
    ]


async def test_where_all_is_shown_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pair = ({"type": "shell_call", "call_id": "c", "action": {}}, {"type": "shell_call_output", "call_id": "c"})
    assert await left_out(caplog, {"role": "assistant", "content": "Hm."}, *pair) == []


async def test_what_is_left_out_of_known_items_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    cut = {"call_id": "c", "name": "f", "status": "incomplete"}
    items: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"type": "output_text", "text": "See"}, picture, picture]},
        {"type": "function_call", "arguments": "{", **cut},
        {"type": "custom_tool_call", "input": "x", **cut},
        {"role": "user", "content": [picture]},
    ]
    assert await left_out(caplog, *items) == [{"types": "input_image, function_call, custom_tool_call", "items": 4}]


async def test_a_second_call_under_one_id_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    call = {"type": "shell_call", "call_id": "c", "action": {}}
    answered = {"type": "shell_call_output", "call_id": "c", "output": "ok"}
    assert await left_out(caplog, call, answered, {**call, "type": "other_call"}) == [
        {"types": "other_call", "items": 1}
    ]


async def test_what_is_said_of_a_strangers_types_is_short(caplog: pytest.LogCaptureFixture) -> None:
    items = [{"type": f"{i}{'x' * 5000}"} for i in range(25)]
    ((fields),) = await left_out(caplog, *items)
    assert fields["items"] == 25
    assert len(fields["types"]) < 700
    assert fields["types"].endswith(", and 15 more")


async def test_what_an_earlier_request_brought_is_not_said_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "antwort.engine"):
        await shown(USER, before=(USER, SEARCH))
    assert sum("left out" in record.getMessage() for record in caplog.records) == 1


# ---- whatever comes ----

IDS = st.sampled_from(["a", "b", "c"])
CALLS = st.one_of(
    st.builds(lambda i: {"type": "function_call", "call_id": i, "name": "f", "arguments": "{}"}, IDS),
    st.builds(lambda i: {"type": "custom_tool_call", "call_id": i, "name": "g", "input": "x"}, IDS),
    st.builds(
        lambda i, out: {
            "type": "mcp_call",
            "id": i,
            "server_label": "d",
            "name": "n",
            "arguments": "{}",
            "output": out,
        },
        st.sampled_from(["m", "n"]),
        st.sampled_from([None, "x", [{"type": "input_image", "image_url": PICTURE}]]),
    ),
    st.builds(
        lambda i, kind: {"type": kind, "call_id": i, "action": {}},
        IDS,
        st.sampled_from(["shell_call", "local_shell_call", "computer_call", "tool_search_call", "program", "call"]),
    ),
)
RESULTS = st.builds(
    lambda i, kind, out: {"type": kind, "call_id": i, "output": out},
    IDS,
    st.sampled_from(
        ["function_call_output", "custom_tool_call_output", "shell_call_output", "computer_call_output", "_output"]
    ),
    st.sampled_from(["x", [{"type": "input_text", "text": "x"}], [{"type": "input_image", "image_url": PICTURE}]]),
)
OTHERS = st.sampled_from(
    [
        USER,
        SEARCH,
        {"role": "assistant", "content": "Hm."},
        {"role": "developer", "content": "Be brief."},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "local_shell_call_output", "id": "a", "output": "x"},
        {"type": "mcp_list_tools", "server_label": "d", "tools": []},
        {"type": "mcp_approval_request", "server_label": "d", "name": "n", "arguments": "{}"},
        {"type": "acme:note", "call_id": 5},
    ]
)


@STEADY
@given(st.lists(st.one_of(CALLS, RESULTS, OTHERS), max_size=14))
async def test_no_tool_message_is_orphaned_and_no_call_is_left_unanswered(items: list[dict[str, Any]]) -> None:
    with suppress(InvalidField):  # results that answer nothing, or twice, are refused by name
        check_pairs(await shown(*items))


def check_pairs(messages: list[Any]) -> None:
    due: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
        else:
            assert due == []
            due = [call["id"] for call in message.get("tool_calls", ())]
            assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in message.get("tool_calls", ()))
    assert due == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["call_id", "name", "arguments", "output", "result", "status", "tools", "action", "image_url"])


@STEADY
@given(st.text(min_size=1, max_size=20), st.dictionaries(KEYS, JSON))
def test_whatever_an_item_holds_it_can_be_read(kind: str, fields: dict[str, Any]) -> None:
    for each in (f"x:{kind}", f"x:{kind}_output"):
        item = read_item({**fields, "type": each}, "input[0]", Limits())
        assert isinstance(item, OpaqueItem)
        call = CallView.of(item)
        assert call is None or (call.call_id and call.name)
