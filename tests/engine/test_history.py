"""Conversations: previous_response_id, item references, and what a follow-up may bring."""

from __future__ import annotations

import asyncio

import pytest

from antwort.api.items import Message
from antwort.engine.prompt.messages import NO_RESULT
from antwort.engine.settings import BackgroundSettings
from antwort.errors import BackendError, Conflict, InvalidField, ItemNotFound, ResponseNotFound, UnsupportedFeature
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import Capabilities
from antwort.storage.base import Page
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    items_of,
    kinds,
    replies,
    sent,
    sent_messages,
    text_of,
    weather_tool,
)


@pytest.mark.proves("EN-015", "FR-021", "RULING-5")
async def test_history_comes_oldest_first_and_only_the_newest_instructions_apply() -> None:
    provider = ScriptedProvider(answer(say("One.")), answer(say("Two.")), answer(say("Three.")))
    engine = engine_of(provider)
    first = await engine.create(ask("a", instructions="Be brief."))
    second = await engine.create(ask("b", previous_response_id=first.id, instructions="Be kind."))
    third = await engine.create(ask("c", previous_response_id=second.id))
    assert sent_messages(provider.requests[1]) == [
        ("system", "Be kind."),
        ("user", "a"),
        ("assistant", "One."),
        ("user", "b"),
    ]
    assert [content for _, content in sent_messages(provider.requests[2])] == ["a", "One.", "b", "Two.", "c"]
    assert third.instructions is None


@pytest.mark.proves("EN-015", "CP-036")
async def test_a_parent_that_is_not_there_is_a_404_that_names_the_field() -> None:
    provider = ScriptedProvider()
    with pytest.raises(ResponseNotFound) as caught:
        await engine_of(provider).create(ask(previous_response_id="resp_nowhere"))
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")
    assert caught.value.code == "previous_response_not_found"
    assert provider.requests == []


@pytest.mark.proves("RULING-6", "MISTAKE-29")
@pytest.mark.parametrize("stranger", [Identity("other", "alice"), Identity("default", "bob"), ANONYMOUS])
async def test_parents_and_items_of_others_are_not_found(stranger: Identity) -> None:
    provider = ScriptedProvider(answer(say("Mine.")))
    engine = engine_of(provider)
    alice = Identity("default", "alice")
    first = await engine.create(ask("a"), alice)
    with pytest.raises(ResponseNotFound):
        await engine.create(ask("b", previous_response_id=first.id), stranger)
    with pytest.raises(ItemNotFound):
        await engine.create(ask([{"type": "item_reference", "id": first.output[0].id}]), stranger)
    with pytest.raises(ResponseNotFound):
        await engine.retrieve(stranger, first.id)
    with pytest.raises(ResponseNotFound):
        await engine.input_items(stranger, first.id, Page())
    with pytest.raises(ResponseNotFound):
        await engine.delete(stranger, first.id)
    assert (await engine.retrieve(alice, first.id)).status == "completed"


@pytest.mark.proves("RULING-6")
async def test_a_parent_that_still_runs_is_a_conflict() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Wait"), asyncio.Event())))
    run = await engine.start(ask(stream=True))
    await run.read()
    with pytest.raises(Conflict) as caught:
        await engine.create(ask("b", previous_response_id=run.response_id))
    assert (caught.value.status, caught.value.param) == (409, "previous_response_id")
    run.leave()
    await run.result()


@pytest.mark.proves("RULING-6")
async def test_a_failed_or_cancelled_parent_can_be_continued() -> None:
    provider = ScriptedProvider(answer([], say("Half"), BackendError("Gone.")), answer(say("Again.")))
    engine = engine_of(provider)
    first = await engine.create(ask("a"))
    assert first.status == "failed"
    second = await engine.create(ask("b", previous_response_id=first.id))
    assert text_of(second) == "Again."
    assert sent_messages(provider.requests[1]) == [("user", "a"), ("assistant", "Half"), ("user", "b")]


@pytest.mark.proves("RULING-6")
async def test_deleting_in_the_middle_of_a_chain_keeps_its_items_for_its_descendants() -> None:
    provider = ScriptedProvider(answer(say("One.")), answer(say("Two.")), answer(say("Three.")))
    engine = engine_of(provider)
    first = await engine.create(ask("a"))
    second = await engine.create(ask("b", previous_response_id=first.id))
    await engine.delete(ANONYMOUS, first.id)
    with pytest.raises(ResponseNotFound):
        await engine.retrieve(ANONYMOUS, first.id)
    await engine.create(ask("c", previous_response_id=second.id))
    assert [content for _, content in sent_messages(provider.requests[2])] == ["a", "One.", "b", "Two.", "c"]


@pytest.mark.proves("FR-021", "MISTAKE-01")
async def test_a_function_round_trip_by_id_puts_the_result_behind_its_call() -> None:
    provider = ScriptedProvider(answer(say("Let me see."), call("clock")), answer(say("It is noon.")))
    engine = engine_of(provider, weather_tool())
    first = await engine.create(ask(tools=[CLOCK]))
    assert first.status == "requires_action"
    (asked,) = function_calls(first)
    noon = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    second = await engine.create(ask([noon], previous_response_id=first.id, tools=[CLOCK]))
    assert text_of(second) == "It is noon."
    assert sent_messages(provider.requests[1]) == [("user", "Hello"), ("assistant", "Let me see."), ("tool", "noon")]


@pytest.mark.proves("FR-021", "RULING-3")
async def test_a_follow_up_without_outputs_tells_the_model_that_there_was_no_result() -> None:
    provider = ScriptedProvider(answer(call("clock")), answer(say("Never mind.")))
    engine = engine_of(provider, weather_tool())
    first = await engine.create(ask(tools=[CLOCK]))
    await engine.create(ask("Forget it.", previous_response_id=first.id))
    assert sent_messages(provider.requests[1]) == [
        ("user", "Hello"),
        ("assistant", None),
        ("tool", NO_RESULT),
        ("user", "Forget it."),
    ]


@pytest.mark.proves("RULING-3", "EDGE-5")
async def test_a_truncated_call_is_left_out_of_the_messages() -> None:
    provider = ScriptedProvider(answer(say("Hm."), call("weather", '{"ci'), finish="length"), answer(say("Ok.")))
    engine = engine_of(provider, weather_tool())
    first = await engine.create(ask(tools=[WEATHER]))
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=[WEATHER]))
    assert text_of(second) == "Ok."
    assert sent_messages(provider.requests[1]) == [("user", "Hello"), ("assistant", "Hm."), ("user", "Go on.")]


@pytest.mark.proves("RULING-3")
async def test_calls_left_under_tool_choice_none_are_not_run_later() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Ok.")))
    engine = engine_of(provider, weather_tool())
    first = await engine.create(ask(tools=[WEATHER], tool_choice="none"))
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=[WEATHER]))
    assert kinds(second) == ["message"]
    assert ("tool", NO_RESULT) in sent_messages(provider.requests[1])


@pytest.mark.proves("RULING-2")
async def test_an_output_for_a_call_nobody_made_is_a_400() -> None:
    provider = ScriptedProvider(answer(say("One.")))
    engine = engine_of(provider)
    first = await engine.create(ask("a"))
    stray = {"type": "function_call_output", "call_id": "call_nobody", "output": "x"}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask(["hm", stray][1:], previous_response_id=first.id))
    assert (caught.value.status, caught.value.param) == (400, "input[0].call_id")


async def test_a_history_sent_whole_needs_no_id() -> None:
    provider = ScriptedProvider(answer(say("Noon it is.")))
    items = [
        {"role": "user", "content": "What time is it?"},
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "one"}]},
    ]
    await engine_of(provider).create(ask(items))
    messages = sent(provider.requests[0])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in messages[2:]] == ["one", "two"]


async def test_an_item_reference_stands_for_the_item_and_survives_its_deletion() -> None:
    provider = ScriptedProvider(answer(say("One.")), answer(say("Two.")), answer(say("Three.")))
    engine = engine_of(provider)
    first = await engine.create(ask("a"))
    said = first.output[0]
    items = [
        {"role": "user", "content": "a"},
        {"type": "item_reference", "id": said.id},
        {"role": "user", "content": "b"},
    ]
    second = await engine.create(ask(items))
    assert sent_messages(provider.requests[1]) == [("user", "a"), ("assistant", "One."), ("user", "b")]
    await engine.delete(ANONYMOUS, first.id)
    await engine.create(ask("c", previous_response_id=second.id))
    assert [content for _, content in sent_messages(provider.requests[2])] == ["a", "One.", "b", "Two.", "c"]


async def test_a_reference_to_nothing_is_a_404_that_names_the_item() -> None:
    with pytest.raises(ItemNotFound) as caught:
        await engine_of(ScriptedProvider()).create(ask([{"role": "user", "content": "a"}, {"id": "msg_nowhere"}]))
    assert caught.value.param == "input[1].id"


async def test_items_of_a_type_nobody_knows_are_kept_and_given_back() -> None:
    engine = engine_of(ScriptedProvider(answer(say("One."))))
    riddle = {"type": "acme:riddle", "id": "r1", "deep": {"er": [1, None]}}
    response = await engine.create(ask([{"role": "user", "content": "a"}, riddle]))
    page = await engine.input_items(ANONYMOUS, response.id, Page(order="asc"))
    assert getattr(page.items[1], "fields", None) == riddle


@pytest.mark.proves("EN-021", "MISTAKE-32", "MISTAKE-33")
async def test_a_whole_turn_is_replayed_as_one_assistant_message_with_every_part() -> None:
    provider = ScriptedProvider(
        answer(think("Hm."), say("Both."), call("weather", city="a"), call("weather", city="b")),
        answer(say("Done.")),
        answer(say("Bye.")),
    )
    engine = engine_of(provider, weather_tool())
    two_parts = [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]
    first = await engine.create(ask([{"role": "user", "content": two_parts}], tools=[WEATHER]))
    await engine.create(ask("Thanks", previous_response_id=first.id))
    messages = sent(provider.requests[2])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert messages[0]["content"] == "x\ny"
    assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("Both.", "Hm.")
    assert len(messages[1]["tool_calls"]) == 2


async def test_turns_of_a_tool_server_stay_apart_when_they_are_replayed() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(
        answer(call("lookup", key="a")), answer(call("lookup", key="b")), answer(say("Ok.")), answer(say("Bye."))
    )
    engine = engine_of(provider, depot)
    first = await engine.create(ask(tools=[SERVER]))
    await engine.create(ask("Thanks", previous_response_id=first.id, tools=[SERVER]))
    roles = [role for role, _ in sent_messages(provider.requests[3])]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]


# ---- questions answered before the first inference ----


@pytest.mark.proves("EN-012", "CP-036")
async def test_images_for_a_backend_without_vision_are_refused_with_their_path() -> None:
    provider = ScriptedProvider(capabilities=Capabilities(vision=False))
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    content = [{"type": "input_text", "text": "What is it?"}, picture]
    with pytest.raises(UnsupportedFeature) as caught:
        await engine_of(provider).create(ask([{"role": "user", "content": content}]))
    assert (caught.value.status, caught.value.param) == (400, "input[0].content[1]")
    assert provider.requests == []


@pytest.mark.proves("RULING-4")
async def test_the_default_model_is_used_where_the_request_names_none() -> None:
    provider = ScriptedProvider(answer(say("Hi")), models=("a", "b"))
    response = await engine_of(provider, default_model="b").create(ask(model=None))
    assert (response.model, provider.requests[0].model) == ("b", "b")


@pytest.mark.proves("RULING-4")
async def test_the_only_model_is_used_where_nothing_names_one() -> None:
    provider = ScriptedProvider(answer(say("Hi")), models=("only",))
    assert (await engine_of(provider).create(ask(model=None))).model == "only"


@pytest.mark.proves("RULING-4")
async def test_without_a_model_and_with_a_choice_of_them_the_request_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider(models=("a", "b"))).create(ask(model=None))
    assert caught.value.param == "model"


@pytest.mark.proves("RULING-4")
async def test_a_model_that_is_not_listed_is_passed_on() -> None:
    provider = ScriptedProvider(answer(say("Hi")), models=("a",))
    await engine_of(provider).create(ask(model="unlisted"))
    assert provider.requests[0].model == "unlisted"


@pytest.mark.proves("RULING-7")
async def test_background_without_storing_is_a_400() -> None:
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider()).create(ask(background=True, store=False))
    assert caught.value.param == "background"


async def test_background_is_refused_openly() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        await engine_of(ScriptedProvider(), background=BackgroundSettings(enabled=False)).create(ask(background=True))
    assert caught.value.param == "background"


@pytest.mark.proves("CP-022")
async def test_settings_are_echoed_as_in_force() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))))
    response = await engine.create(
        ask(
            temperature=0.2,
            metadata={"a": "b"},
            tools=[WEATHER, {"type": "web_search"}],
            reasoning={"effort": "low"},
            text={"format": {"type": "json_object"}, "verbosity": "low"},
            max_output_tokens=99,
            service_tier="auto",
        )
    )
    assert (response.temperature, response.top_p, response.metadata) == (0.2, 1.0, {"a": "b"})
    assert [tool["name"] for tool in response.tools] == ["weather"]
    assert response.tools[0]["strict"] is None
    assert response.text == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert (response.max_output_tokens, response.service_tier) == (99, "default")
    assert response.reasoning is not None
    assert response.reasoning.effort == "low"
    assert items_of(response, Message)
