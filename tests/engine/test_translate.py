"""Items become chat messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.events import TurnAbandoned
from antwort.api.item_parsing import read_item
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    InputVideo,
    McpListTools,
    Message,
    OpaqueItem,
    OutputText,
    Reasoning,
    Refusal,
    SummaryText,
)
from antwort.api.wire import replace
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import chat_request
from antwort.engine.prompt.messages import NO_RESULT
from antwort.providers.base import Capabilities
from engine_kit import CLOCK, SERVER, WEATHER, ask, sent, weather_tool
from plan_kit import called, depot, ended, plan_of, ran, result, run_of, said, server_called, thought

PICTURE = "data:image/png;base64,AA=="


def read(plain: dict[str, Any]) -> InputItem:
    """An item as a client sends it."""
    return read_item(plain, "input[0]", Limits())


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(text: str | None, *calls: tuple[int, str, str], **fields: Any) -> dict[str, Any]:
    """An assistant message; a call is its number, name and arguments."""
    plain: dict[str, Any] = {"role": "assistant", "content": text, **fields}
    if calls:
        plain["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, name, arguments in calls
        ]
    return plain


def tool(n: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{n}", "content": content}


async def translated(*items: InputItem, capabilities: Capabilities = Capabilities()) -> list[Any]:  # noqa: B008
    """The messages of a request with these input items."""
    return messages_of(await plan_of(ask(), items=items, capabilities=capabilities))


def messages_of(plan: Plan, *happened: Any) -> list[Any]:
    messages: list[Any] = sent(chat_request(run_of(plan, *happened), plan))["messages"]
    return messages


# ---- the order of things ----


@pytest.mark.proves("EN-015")
async def test_instructions_come_first_then_history_oldest_first_then_the_input_then_the_output() -> None:
    earlier = ((read(user("one")),), (said("two"),), (read(user("three")),), (said("four"),))
    plan = await plan_of(ask("five", instructions="Be brief.", tools=[WEATHER]), weather_tool(), earlier=earlier)
    assert messages_of(plan, called(1), ended(), result(1), ran(1)) == [
        {"role": "system", "content": "Be brief."},
        user("one"),
        assistant("two"),
        user("three"),
        assistant("four"),
        user("five"),
        assistant(None, (1, "weather", "{}")),
        tool(1, "sunny"),
    ]


@pytest.mark.proves("RULING-5", "EN-015")
async def test_without_instructions_of_its_own_a_request_has_none() -> None:
    plan = await plan_of(ask("two"), earlier=((read(user("one")),),))
    assert messages_of(plan) == [user("one"), user("two")]


@pytest.mark.proves("MISTAKE-03")
async def test_roles_and_texts_go_out_as_they_came() -> None:
    assert await translated(
        read({"role": "system", "content": "Be brief."}), read(user("Hi")), read({"role": "assistant", "content": "Hm"})
    ) == [{"role": "system", "content": "Be brief."}, user("Hi"), assistant("Hm")]


@pytest.mark.parametrize(("takes_it", "role"), [(True, "developer"), (False, "system")])
async def test_a_developer_is_the_system_for_backends_that_do_not_know_the_role(takes_it: bool, role: str) -> None:
    item = read({"role": "developer", "content": "Be brief."})
    capabilities = Capabilities(developer_role=takes_it)
    assert await translated(item, capabilities=capabilities) == [{"role": role, "content": "Be brief."}]


@pytest.mark.proves("MISTAKE-32")
async def test_all_parts_of_a_message_survive() -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    old = Message(
        id="msg_1", role="assistant", content=(OutputText(text="a"), Refusal(refusal="b"), OutputText(text="c"))
    )
    assert await translated(read(user(parts)), old) == [user("one\ntwo"), assistant("a\nb\nc")]


async def test_two_answers_in_a_row_are_one_message_and_stay_apart_in_it() -> None:
    assert await translated(said("Hello"), said("there"), read(user("Hm"))) == [assistant("Hello\nthere"), user("Hm")]


async def test_items_that_say_nothing_to_a_model_are_left_out() -> None:
    assert (
        await translated(
            OpaqueItem("web_search_call", "ws_1", {"type": "web_search_call"}),
            McpListTools(id="mcpl_1", server_label="depot", tools=()),
            read({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}),
        )
        == []
    )


async def test_an_answer_of_nothing_is_left_out() -> None:
    assert await translated(said(""), read(user("Hm"))) == [user("Hm")]


# ---- calls and results ----


@pytest.mark.proves("EDGE-3", "MISTAKE-14")
async def test_text_beside_calls_is_in_the_message_with_the_calls() -> None:
    plan = await plan_of(ask("Hi", tools=[WEATHER]), weather_tool())
    assert messages_of(plan, said("Let me look."), called(1), ended(), result(1), ran(1)) == [
        user("Hi"),
        assistant("Let me look.", (1, "weather", "{}")),
        tool(1, "sunny"),
    ]


async def test_text_after_a_call_is_in_the_same_message() -> None:
    assert await translated(called(1), said("Wait."), result(1)) == [
        assistant("Wait.", (1, "weather", "{}")),
        tool(1, "sunny"),
    ]


@pytest.mark.proves("MISTAKE-33", "FR-016")
async def test_calls_of_one_turn_are_one_message_with_the_results_in_the_order_of_the_calls() -> None:
    assert await translated(called(1), called(2), called(3), result(3, "c"), result(1, "a"), result(2, "b")) == [
        assistant(None, (1, "weather", "{}"), (2, "weather", "{}"), (3, "weather", "{}")),
        tool(1, "a"),
        tool(2, "b"),
        tool(3, "c"),
    ]


async def test_calls_after_results_are_another_turn() -> None:
    assert await translated(called(1), result(1, "a"), called(2), result(2, "b"), said("Done.")) == [
        assistant(None, (1, "weather", "{}")),
        tool(1, "a"),
        assistant(None, (2, "weather", "{}")),
        tool(2, "b"),
        assistant("Done."),
    ]


async def test_each_turn_of_the_run_is_a_message_of_its_own() -> None:
    plan = await plan_of(ask("Hi", tools=[WEATHER, SERVER]), weather_tool(), depot())
    first = (server_called(1, status="completed", output="3 left"), ended(), ran(1))
    second = (said("And"), called(2), ended(), result(2), ran(2))
    assert messages_of(plan, *first, *second) == [
        user("Hi"),
        assistant(None, (1, "depot_stock", "{}")),
        tool(1, "3 left"),
        assistant("And", (2, "weather", "{}")),
        tool(2, "sunny"),
    ]


@pytest.mark.proves("FR-021")
async def test_results_are_put_behind_their_calls_wherever_they_stand() -> None:
    earlier = ((read(user("one")),), (said("Hm."), called(1), called(2)))
    items = (read(user("By the way")), result(2, "b"), result(1, "a"))
    assert messages_of(await plan_of(ask(), earlier=earlier, items=items)) == [
        user("one"),
        assistant("Hm.", (1, "weather", "{}"), (2, "weather", "{}")),
        tool(1, "a"),
        tool(2, "b"),
        user("By the way"),
    ]


@pytest.mark.proves("RULING-3", "FR-021")
async def test_a_call_without_a_result_gets_a_note() -> None:
    assert await translated(called(1), called(2), result(2, "b"), read(user("Never mind"))) == [
        assistant(None, (1, "weather", "{}"), (2, "weather", "{}")),
        tool(1, NO_RESULT),
        tool(2, "b"),
        user("Never mind"),
    ]


@pytest.mark.proves("RULING-3", "EDGE-5")
async def test_a_call_that_was_cut_is_left_out() -> None:
    custom = CustomToolCall(id="ctc_1", call_id="call_3", name="patch", input="***", status="incomplete")
    cut = (called(1, arguments='{"ci', status="incomplete"), server_called(2, status="incomplete"), custom)
    assert await translated(said("Hm."), *cut, read(user("Go on"))) == [assistant("Hm."), user("Go on")]


async def test_what_a_takeover_abandoned_is_said_anew_and_so_left_out() -> None:
    plan = await plan_of(ask("Hi", tools=[WEATHER]), weather_tool())
    half = (thought("hm"), said("Let m", "incomplete"), called(1, arguments="{", status="incomplete"))
    assert messages_of(plan, *half, TurnAbandoned(start=0), called(2), ended(), result(2), ran(2)) == [
        user("Hi"),
        assistant(None, (2, "weather", "{}")),
        tool(2, "sunny"),
    ]


async def test_an_answer_that_was_cut_in_an_earlier_response_is_still_what_was_said() -> None:
    assert await translated(said("Once upon", "incomplete"), read(user("Go on"))) == [
        assistant("Once upon"),
        user("Go on"),
    ]


@pytest.mark.proves("MIXED-2")
async def test_a_call_that_a_later_response_ran_is_asked_once_with_the_later_result() -> None:
    left = server_called(1, status="completed")
    again = replace(server_called(1, status="completed", output="3 left"), id="mcp_9")
    plan = await plan_of(ask(tools=[SERVER]), depot(), earlier=((read(user("Hi")),), (left,)), items=())
    assert messages_of(plan, again, ran(1)) == [
        user("Hi"),
        assistant(None, (1, "depot_stock", "{}")),
        tool(1, "3 left"),
    ]


async def test_a_servers_call_goes_out_under_the_name_the_model_knows() -> None:
    failed = server_called(2, "price", status="failed", error="No price.")
    plan = await plan_of(ask("Hi", tools=[SERVER]), depot())
    assert messages_of(plan, server_called(1, status="completed", output="3"), failed, ended()) == [
        user("Hi"),
        assistant(None, (1, "depot_stock", "{}"), (2, "depot_price", "{}")),
        tool(1, "3"),
        tool(2, "No price."),
    ]


async def test_a_call_to_a_server_that_is_not_offered_any_more_keeps_the_servers_name() -> None:
    assert await translated(server_called(1, status="completed", output="3")) == [
        assistant(None, (1, "stock", "{}")),
        tool(1, "3"),
    ]


async def test_a_servers_call_from_elsewhere_goes_by_its_item() -> None:
    item = read({"type": "mcp_call", "id": "call_1", "server_label": "depot", "name": "stock", "arguments": "{}"})
    assert await translated(item) == [assistant(None, (1, "stock", "{}")), tool(1, NO_RESULT)]


@pytest.mark.proves("RULING-1")
async def test_a_refused_call_and_its_error_are_what_the_model_sees() -> None:
    plan = await plan_of(ask("Hi", tools=[WEATHER, CLOCK], allowed_tools=["weather"]), weather_tool())
    refused = server_called(1, "clock", label="antwort", status="failed", error="Not allowed.")
    assert messages_of(plan, refused, called(2), ended(), result(2), ran(2)) == [
        user("Hi"),
        assistant(None, (1, "clock", "{}"), (2, "weather", "{}")),
        tool(1, "Not allowed."),
        tool(2, "sunny"),
    ]


@pytest.mark.parametrize("arguments", ["", " null "])
async def test_empty_arguments_are_an_empty_object(arguments: str) -> None:
    assert await translated(called(1, arguments=arguments)) == [
        assistant(None, (1, "weather", "{}")),
        tool(1, NO_RESULT),
    ]


@pytest.mark.parametrize(
    "arguments", ['{"city": "Rome"', "{oops", "[1]", '"Rome"', "5", "{} {}", '{"city": NaN}', "[" * 100_000]
)
async def test_arguments_that_are_no_object_reach_the_backend_as_text_in_one(arguments: str) -> None:
    """Templates read them as an object, and backends refuse a conversation with others in it for good."""
    (message, _) = await translated(called(1, arguments=arguments))
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"input": arguments}


async def test_arguments_that_are_an_object_go_back_as_they_were_written() -> None:
    written = ' { "city":"R\\u006fme",\n"city": 1.50 }'
    (message, _) = await translated(called(1, arguments=written))
    assert message == assistant(None, (1, "weather", written))


async def test_a_clients_call_after_a_servers_answered_one_is_another_turn() -> None:
    done = server_called(1, "stock", output="3 left")
    assert await translated(done, called(2), result(2)) == [
        assistant(None, (1, "stock", "{}")),
        tool(1, "3 left"),
        assistant(None, (2, "weather", "{}")),
        tool(2, "sunny"),
    ]


async def test_a_paused_turn_after_a_servers_answered_call_is_another_turn() -> None:
    done, asked = server_called(1, "stock", output="3 left"), server_called(2, "stock", status="completed")
    assert await translated(done, asked, called(3), result(3)) == [
        assistant(None, (1, "stock", "{}")),
        tool(1, "3 left"),
        assistant(None, (2, "stock", "{}"), (3, "weather", "{}")),
        tool(2, NO_RESULT),
        tool(3, "sunny"),
    ]


async def test_a_turn_of_the_record_that_called_a_server_and_the_client_stays_one() -> None:
    plan = await plan_of(ask("And?"), earlier=((server_called(1, "stock", output="3 left"), called(2)), (result(2),)))
    assert messages_of(plan)[:1] == [assistant(None, (1, "stock", "{}"), (2, "weather", "{}"))]


async def test_a_result_without_its_call_is_not_sent() -> None:
    assert await translated(result(1), read(user("Hm"))) == [user("Hm")]


async def test_custom_calls_are_functions_with_one_input() -> None:
    items = (
        CustomToolCall(id="ctc_1", call_id="call_1", name="patch", input='a "b"'),
        CustomToolCallOutput(id="ctco_1", call_id="call_1", output="done"),
    )
    assert await translated(*items) == [assistant(None, (1, "patch", '{"input":"a \\"b\\""}')), tool(1, "done")]


# ---- pictures ----


async def test_a_picture_goes_with_its_text_in_the_same_message() -> None:
    parts = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "input_image", "image_url": "https://example.org/x.png", "detail": "low"},
    ]
    assert await translated(read(user(parts))) == [
        user(
            [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": PICTURE}},
                {"type": "image_url", "image_url": {"url": "https://example.org/x.png", "detail": "low"}},
            ]
        )
    ]


async def test_files_and_videos_have_their_own_shape() -> None:
    message = Message(
        id="msg_1",
        role="user",
        content=(
            InputFile(filename="a.pdf", file_data="data:application/pdf;base64,AA=="),
            InputFile(file_data="data:text/plain;base64,AA=="),
            InputVideo(video_url="https://example.org/x.mp4"),
        ),
    )
    assert await translated(message, capabilities=Capabilities(files=True)) == [
        user(
            [
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,AA=="}},
                {"type": "video_url", "video_url": {"url": "https://example.org/x.mp4"}},
            ]
        )
    ]


async def test_pictures_in_results_follow_all_results_in_a_message_of_the_user() -> None:
    output = FunctionCallOutput(
        id="fco_1", call_id="call_1", output=(InputText(text="A map:"), InputImage(image_url=PICTURE))
    )
    assert await translated(called(1), called(2), output, result(2, "b")) == [
        assistant(None, (1, "weather", "{}"), (2, "weather", "{}")),
        tool(1, "A map:\n[input_image: shown in the next message]"),
        tool(2, "b"),
        user([{"type": "image_url", "image_url": {"url": PICTURE}}]),
    ]


@pytest.mark.parametrize(
    "part",
    [
        InputImage(image_url=PICTURE),
        InputVideo(video_url="https://example.org/x.mp4"),
        InputFile(file_data="data:text/plain;base64,AA=="),
    ],
)
async def test_what_a_tool_gives_and_the_model_cannot_take_is_named_and_not_sent(part: Any) -> None:
    """A tool's picture must not make the backend refuse the whole conversation."""
    output = FunctionCallOutput(id="fco_1", call_id="call_1", output=(InputText(text="Look:"), part))
    messages = await translated(called(1), output, capabilities=Capabilities(vision=False, files=False))
    name = part.__struct_config__.tag
    assert messages == [assistant(None, (1, "weather", "{}")), tool(1, f"Look:\n[{name}: the model does not take it]")]


@pytest.mark.parametrize("part", [InputImage(file_id="file_1"), InputFile(file_id="file_1")])
async def test_what_a_tool_names_by_a_file_id_is_not_sent(part: Any) -> None:
    output = FunctionCallOutput(id="fco_1", call_id="call_1", output=(part,))
    name = part.__struct_config__.tag
    messages = await translated(called(1), output, capabilities=Capabilities(vision=True, files=True))
    assert messages[1:] == [tool(1, f"[{name}: the model does not take it]")]


# ---- reasoning ----


@pytest.mark.proves("EN-021")
@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("reasoning_content", {"reasoning_content": "hm"}),
        ("reasoning", {"reasoning": "hm"}),
        (None, {}),
    ],
)
async def test_reasoning_goes_back_in_the_field_that_the_backend_takes(field: Any, fields: dict[str, str]) -> None:
    messages = await translated(
        thought("hm"), said("Yes."), called(1), result(1), capabilities=Capabilities(reasoning_field=field)
    )
    assert messages == [assistant("Yes.", (1, "weather", "{}"), **fields), tool(1, "sunny")]


@pytest.mark.proves("EN-021")
async def test_reasoning_that_was_shown_as_a_summary_goes_back_too() -> None:
    item = Reasoning(id="rs_1", summary=(SummaryText(text="so "), SummaryText(text="it is")))
    assert await translated(item, said("Yes.")) == [assistant("Yes.", reasoning_content="so it is")]


@pytest.mark.proves("MISTAKE-11")
async def test_reasoning_stays_with_its_own_turn() -> None:
    items = (thought("one"), called(1), result(1), thought("two"), said("Done."))
    assert await translated(*items) == [
        assistant(None, (1, "weather", "{}"), reasoning_content="one"),
        tool(1, "sunny"),
        assistant("Done.", reasoning_content="two"),
    ]


@pytest.mark.parametrize("words", [(), (said(""),)], ids=["nothing else", "an empty message"])
async def test_a_turn_of_reasoning_alone_is_told(words: tuple[InputItem, ...]) -> None:
    items = (read(user("Hi")), thought("hm"), *words, read(user("Well?")))
    assert await translated(*items) == [user("Hi"), assistant("", reasoning_content="hm"), user("Well?")]


async def test_a_turn_of_reasoning_alone_is_left_out_where_the_backend_takes_none() -> None:
    capabilities = Capabilities(reasoning_field=None)
    assert await translated(thought("hm"), read(user("Well?")), capabilities=capabilities) == [user("Well?")]
