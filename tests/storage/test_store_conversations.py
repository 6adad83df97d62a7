"""Conversations: items under one id, in the order in which they were added."""

from __future__ import annotations

import asyncio

import pytest

from antwort.api.items import FunctionCall, OpaqueItem
from antwort.api.responses import ConversationRef, Response
from antwort.api.status import IllegalTransition, ResponseStatus
from antwort.api.wire import replace
from antwort.errors import ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage.base import Entry, NewResponse, ResponseStore
from storage_cases import (
    COLLEAGUE,
    ME,
    STOPPED,
    STRANGER,
    answer,
    asked,
    ended,
    entries,
    message,
    open_conversation,
    said_in,
    tell,
    texts,
)

OTHERS = pytest.mark.parametrize("other", [COLLEAGUE, STRANGER], ids=["colleague", "stranger"])


def turn_of(conversation_id: str, text: str) -> NewResponse:
    new = asked(text)
    return replace(new, response=replace(new.response, conversation=ConversationRef(id=conversation_id)))


async def end_turn(
    store: ResponseStore, new: NewResponse, added: list[Entry], status: ResponseStatus = "completed"
) -> Response:
    response = ended(new, message("Sunny."), status=status)
    await store.finish(ME, response, STOPPED, added)
    return response


async def test_a_conversation_is_found_as_it_was_begun(store: ResponseStore) -> None:
    conversation = await open_conversation(store, "Hello", "Is anybody there?")
    assert await store.conversation(ME, conversation.id) == conversation
    assert await said_in(store, conversation.id) == ["Hello", "Is anybody there?"]


async def test_a_conversation_may_begin_with_nothing_said(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    assert await store.said(ME, conversation.id) == ()


async def test_what_nobody_began_is_not_found_by_anything(store: ResponseStore) -> None:
    assert await store.conversation(ME, "conv_none") is None
    assert await store.describe_conversation(ME, "conv_none", {}) is None
    assert await store.delete_conversation(ME, "conv_none") is False
    assert await store.said(ME, "conv_none") is None
    assert await store.conversation_item(ME, "conv_none", "msg_1") is None
    assert await store.add_entries(ME, "conv_none", entries("Hello")) is None
    assert await store.delete_entry(ME, "conv_none", "msg_1") is False


async def test_an_id_is_given_to_one_conversation_only(store: ResponseStore) -> None:
    await open_conversation(store, "first", conversation_id="conv_1")
    with pytest.raises(StoreFault):
        await open_conversation(store, "second", conversation_id="conv_1")
    assert await said_in(store, "conv_1") == ["first"]


async def test_new_metadata_takes_the_place_of_the_old(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    described = await store.describe_conversation(ME, conversation.id, {"mood": "grün"})
    assert described == replace(conversation, metadata={"mood": "grün"})
    assert await store.conversation(ME, conversation.id) == described


async def test_a_deleted_conversation_is_gone_with_its_items(store: ResponseStore) -> None:
    conversation = await open_conversation(store, {"role": "user", "content": "Hello", "id": "msg_1"})
    assert await store.delete_conversation(ME, conversation.id) is True
    assert await store.conversation(ME, conversation.id) is None
    assert await store.conversation_item(ME, conversation.id, "msg_1") is None
    assert await store.delete_conversation(ME, conversation.id) is False


async def test_an_id_may_be_used_again_after_its_conversation_is_deleted(store: ResponseStore) -> None:
    await open_conversation(store, "first", conversation_id="conv_1")
    await store.delete_conversation(ME, "conv_1")
    await open_conversation(store, "second", conversation_id="conv_1")
    assert await said_in(store, "conv_1") == ["second"]


async def test_what_is_added_stands_at_the_end(store: ResponseStore) -> None:
    conversation = await open_conversation(store, "one")
    added = await store.add_entries(ME, conversation.id, entries("two", "three"))
    assert added is not None
    assert await said_in(store, conversation.id) == ["one", "two", "three"]
    assert (await store.said(ME, conversation.id) or ())[1:] == added


async def test_items_of_any_kind_come_back_as_they_were_read(store: ResponseStore) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "x_ours": [1, None]}
    brought = entries(
        {"role": "user", "content": [picture, {"type": "input_text", "text": "What is it?"}]},
        {"type": "web_search_call", "id": "ws_1", "action": {"query": None}},
        {"type": "function_call_output", "call_id": "call_1", "output": [picture]},
    )
    call = FunctionCall(id="fc_1", call_id="call_2", name="look", arguments="{}")
    conversation = await open_conversation(store)
    await store.add_entries(ME, conversation.id, [*brought, *answer(call, message("A cat.", "msg_9"))])
    said = await store.said(ME, conversation.id)
    assert said == (*(entry.item for entry in brought), call, message("A cat.", "msg_9"))


@pytest.mark.parametrize("direction", ["input", "output"])
async def test_an_id_that_is_taken_gives_way_to_a_new_one(store: ResponseStore, direction: str) -> None:
    conversation = await open_conversation(store, {"role": "user", "content": "first", "id": "msg_1"})
    again = (
        entries({"role": "user", "content": "second", "id": "msg_1"})
        if direction == "input"
        else answer(message("second", "msg_1"))
    )
    added = await store.add_entries(ME, conversation.id, again)
    assert added is not None
    (item,) = added
    assert item.id != "msg_1"
    assert item.id.startswith("msg_")
    assert await store.conversation_item(ME, conversation.id, item.id) == item
    assert await said_in(store, conversation.id) == ["first", "second"]


async def test_two_with_one_id_that_come_together_are_told_apart(store: ResponseStore) -> None:
    odd = {"type": "odd", "id": "x", "said": 1}
    conversation = await open_conversation(store, odd, {**odd, "said": 2})
    said = await store.said(ME, conversation.id)
    assert said is not None
    first, second = said
    assert isinstance(second, OpaqueItem)
    assert (first.id, second.fields["said"]) == ("x", 2)
    assert second.id.startswith("item_")
    assert second.fields["id"] == second.id


async def test_an_id_may_stand_in_many_conversations(store: ResponseStore) -> None:
    item = {"role": "user", "content": "Hello", "id": "msg_1"}
    one, other = [await open_conversation(store, item) for _ in range(2)]
    await store.delete_conversation(ME, one.id)
    assert await store.conversation_item(ME, other.id, "msg_1") is not None


async def test_an_item_can_be_taken_out(store: ResponseStore) -> None:
    named = [{"role": "user", "content": name, "id": name} for name in ("a", "b", "c")]
    conversation = await open_conversation(store, *named)
    assert await store.delete_entry(ME, conversation.id, "b") is True
    assert await store.delete_entry(ME, conversation.id, "b") is False
    assert await said_in(store, conversation.id) == ["a", "c"]
    await store.delete_entry(ME, conversation.id, "c")
    await store.add_entries(ME, conversation.id, entries("d"))
    assert await said_in(store, conversation.id) == ["a", "d"]


@OTHERS
async def test_what_is_mine_is_nobody_elses(store: ResponseStore, other: Identity) -> None:
    conversation = await open_conversation(store, {"role": "user", "content": "secret", "id": "msg_1"})
    assert await store.conversation(other, conversation.id) is None
    assert await store.said(other, conversation.id) is None
    assert await store.conversation_item(other, conversation.id, "msg_1") is None
    assert await store.describe_conversation(other, conversation.id, {}) is None
    assert await store.add_entries(other, conversation.id, entries("heard")) is None
    assert await store.delete_entry(other, conversation.id, "msg_1") is False
    assert await store.delete_conversation(other, conversation.id) is False
    assert await store.conversation(ME, conversation.id) == conversation
    assert await said_in(store, conversation.id) == ["secret"]


@OTHERS
async def test_the_same_id_is_another_conversation_for_another(store: ResponseStore, other: Identity) -> None:
    await open_conversation(store, "mine", conversation_id="conv_1")
    await open_conversation(store, "theirs", conversation_id="conv_1", identity=other)
    await store.delete_conversation(other, "conv_1")
    assert await said_in(store, "conv_1") == ["mine"]


# ---- together with a response ----


async def test_the_end_of_a_response_adds_its_turn(store: ResponseStore) -> None:
    conversation = await open_conversation(store, "Hello")
    new = turn_of(conversation.id, "How is the weather?")
    await store.begin(new)
    response = await end_turn(store, new, [*entries("How is the weather?"), *answer(message("Sunny."))])
    assert await said_in(store, conversation.id) == ["Hello", "How is the weather?", "Sunny."]
    assert await store.get(ME, response.id) == response


async def test_a_response_ends_though_its_conversation_is_gone(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    new = turn_of(conversation.id, "Hello")
    await store.begin(new)
    await store.delete_conversation(ME, conversation.id)
    response = await end_turn(store, new, entries("Hello"))
    assert await store.get(ME, response.id) == response
    assert await store.conversation(ME, conversation.id) is None


async def test_the_conversation_of_another_gets_nothing_of_my_turn(store: ResponseStore) -> None:
    conversation = await open_conversation(store, "theirs", identity=STRANGER)
    new = turn_of(conversation.id, "mine")
    await store.begin(new)
    await end_turn(store, new, entries("mine"))
    assert await said_in(store, conversation.id, STRANGER) == ["theirs"]


async def test_a_response_that_cannot_end_adds_nothing(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    new = turn_of(conversation.id, "Hello")
    with pytest.raises(ResponseNotFound):
        await end_turn(store, new, entries("never begun"))
    await store.begin(new)
    await end_turn(store, new, entries("once"))
    with pytest.raises(IllegalTransition):
        await end_turn(store, new, entries("twice"))
    assert await said_in(store, conversation.id) == ["once"]


async def test_a_response_of_no_conversation_adds_to_none(store: ResponseStore) -> None:
    new = asked("Hello")
    await store.begin(new)
    response = await end_turn(store, new, entries("Hello"))
    assert await store.get(ME, response.id) == response


# ---- side by side ----


async def test_what_many_add_at_once_is_neither_lost_nor_doubled_nor_torn(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    new = [turn_of(conversation.id, str(number)) for number in range(25)]
    for turn in new:
        await store.begin(turn)

    async def add(number: int) -> None:
        added = entries(*[f"{number}.{at}" for at in range(4)])
        if number < len(new):
            await end_turn(store, new[number], added)
        else:
            await store.add_entries(ME, conversation.id, added)

    await asyncio.gather(*(add(number) for number in range(50)))
    said = await said_in(store, conversation.id)
    together = [said[at : at + 4] for at in range(0, len(said), 4)]
    assert sorted(together) == sorted([f"{number}.{at}" for at in range(4)] for number in range(50))


async def test_ids_are_told_apart_when_many_come_with_the_same(store: ResponseStore) -> None:
    conversation = await open_conversation(store)
    same = {"role": "user", "content": "Hello", "id": "msg_1"}
    await asyncio.gather(*(store.add_entries(ME, conversation.id, entries(same, same)) for _ in range(20)))
    said = await store.said(ME, conversation.id)
    assert said is not None
    assert len({item.id for item in said}) == 40


# ---- items by id ----


async def test_an_item_of_a_conversation_is_found_by_its_id(store: ResponseStore) -> None:
    item = {"role": "user", "content": "old", "id": "msg_1"}
    old = await open_conversation(store, item)
    new = await open_conversation(store, {**item, "content": "new"})
    assert texts([*(await store.items(ME, ["msg_1", "msg_none"])).values()]) == ["new"]
    await store.delete_conversation(ME, new.id)
    assert texts([*(await store.items(ME, ["msg_1"])).values()]) == ["old"]
    await store.delete_entry(ME, old.id, "msg_1")
    assert await store.items(ME, ["msg_1"]) == {}


async def test_an_item_of_a_response_comes_before_that_of_a_conversation(store: ResponseStore) -> None:
    await tell(store, "hi", message("of the response", "msg_1"))
    await open_conversation(store, {"role": "user", "content": "of the conversation", "id": "msg_1"})
    assert texts([*(await store.items(ME, ["msg_1"])).values()]) == ["of the response"]


@OTHERS
async def test_an_item_of_my_conversation_is_not_found_by_another(store: ResponseStore, other: Identity) -> None:
    await open_conversation(store, {"role": "user", "content": "secret", "id": "msg_1"})
    assert await store.items(other, ["msg_1"]) == {}
