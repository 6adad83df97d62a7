"""A turn of a conversation: what the model hears of it, and what is added to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from antwort.api.events import Mark
from antwort.api.items import InputItem
from antwort.api.resources import Approval
from antwort.api.responses import ConversationRef, Response
from antwort.api.wire import UNSET, to_plain
from antwort.errors import (
    BackendUnavailable,
    ConversationNotFound,
    InvalidField,
    StoreFault,
    UnsupportedFeature,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import Capabilities
from antwort.storage.base import Entry, PackedLog, Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, answer, say, think
from conversation_kit import begun, said, user, words
from engine_kit import (
    ask,
    engine_of,
    sent_messages,
    stream,
    text_of,
)

OTHERS = Identity(tenant="other")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    opened = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")
    yield opened
    await opened.close()


# ---- what comes of a turn ----


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_turns_follow_each_other(store: ResponseStore, is_stored: bool) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(think("hm"), say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine, user("First of all"))
    for question in ("And then?", "And now?"):
        await engine.create(ask(question, conversation=conversation, store=is_stored))
    assert sent_messages(provider.requests[1]) == [
        ("user", "First of all"),
        ("user", "And then?"),
        ("assistant", "One"),
        ("user", "And now?"),
    ]
    items = await said(store, conversation)
    assert words(items) == [
        "user: First of all",
        "user: And then?",
        "assistant: One",
        "user: And now?",
        "reasoning",
        "assistant: Two",
    ]


@pytest.mark.parametrize("form", [lambda name: name, lambda name: {"id": name}], ids=["id", "object"])
async def test_a_response_says_of_which_conversation_it_is_a_turn(store: ResponseStore, form: Any) -> None:
    engine = engine_of(ScriptedProvider(answer(say("One"))), store=store)
    conversation = await begun(engine)
    outcome = await stream(engine, ask("And?", conversation=form(conversation)))
    assert outcome.response.conversation == ConversationRef(conversation)
    assert to_plain(outcome.response)["conversation"] == {"id": conversation}
    assert await engine.retrieve(ANONYMOUS, outcome.response.id) == outcome.response


async def test_a_response_that_is_none_of_a_conversation_does_not_speak_of_one() -> None:
    response = await engine_of(ScriptedProvider(answer(say("One")))).create(ask("And?"))
    assert response.conversation is UNSET
    assert "conversation" not in to_plain(response)


async def test_the_items_added_are_those_that_were_sent_and_shown(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(answer(think("hm"), say("Two"))), store=store)
    conversation = await begun(engine)
    strange = {"type": "something_else", "whatever": {"deep": [1]}, "id": "odd_1"}
    asked = [{**user("And?"), "id": "msg_mine"}, strange]
    response = await engine.create(ask(asked, conversation=conversation))
    items = await said(store, conversation)
    assert [item.id for item in items[:2]] == ["msg_mine", "odd_1"]
    assert to_plain(items[1]) == strange
    assert items[2:] == response.output
    listed = await engine.input_items(ANONYMOUS, response.id, Page(order="asc"))
    assert listed.items == items[:2]


async def test_a_turn_may_bring_no_input_where_something_was_said(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("One")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine, user("Go on."))
    await engine.create(ask(None, conversation=conversation))
    assert words(await said(store, conversation)) == ["user: Go on.", "assistant: One"]


async def test_a_new_conversation_and_no_input_say_nothing_to_the_model(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(), store=store)
    with pytest.raises(InvalidField, match="says nothing"):
        await engine.create(ask(None, conversation=await begun(engine)))
    assert len(engine.conversation_locks) == 0


async def test_instructions_hold_for_their_own_turn_only(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    await engine.create(ask("a", conversation=conversation, instructions="Be brief."))
    await engine.create(ask("b", conversation=conversation))
    assert sent_messages(provider.requests[1]) == [("user", "a"), ("assistant", "One"), ("user", "b")]


# ---- what is wrong with it ----


@pytest.mark.proves("RULING-6")
@pytest.mark.parametrize("identity", [ANONYMOUS, OTHERS, Identity(owner="someone")], ids=["nobody", "tenant", "owner"])
async def test_a_conversation_that_is_not_there_or_not_ones_own_is_not_found(
    store: ResponseStore, identity: Identity
) -> None:
    engine = engine_of(ScriptedProvider(), store=store)
    conversation = "conv_none" if identity is ANONYMOUS else await begun(engine)
    with pytest.raises(ConversationNotFound) as caught:
        await engine.create(ask("And?", conversation=conversation), identity)
    error = caught.value
    assert (error.status, error.code, error.param) == (404, "conversation_not_found", "conversation")
    assert len(engine.conversation_locks) == 0


async def test_a_picture_in_the_conversation_is_refused_for_a_model_that_takes_none(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(capabilities=Capabilities(vision=False)), store=store)
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    conversation = await begun(engine, picture)
    with pytest.raises(UnsupportedFeature) as caught:
        await engine.create(ask("And?", conversation=conversation))
    assert caught.value.param == "conversation"


async def test_a_turn_of_a_conversation_is_not_continued_without_it(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("One")), answer(say("Two")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine, user("First of all"))
    first = await engine.create(ask("And?", conversation=conversation))
    with pytest.raises(InvalidField, match=f"Go on with 'conversation': '{conversation}'") as caught:
        await engine.create(ask("So?", previous_response_id=first.id))
    assert caught.value.param == "previous_response_id"
    await engine.conversations.delete(conversation)
    await engine.create(ask("So?", previous_response_id=first.id))
    assert sent_messages(provider.requests[1]) == [("user", "And?"), ("assistant", "One"), ("user", "So?")]


# ---- which ends add ----


async def test_an_answer_that_was_cut_is_added_as_far_as_it_goes(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(answer(say("Once upon"), finish="length")), store=store)
    conversation = await begun(engine)
    response = await engine.create(ask("Tell me", conversation=conversation))
    assert response.status == "incomplete"
    assert words(await said(store, conversation)) == ["user: Tell me", "assistant: Once upon"]


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_turn_that_fails_adds_nothing_and_can_be_taken_again(store: ResponseStore, is_stored: bool) -> None:
    provider = ScriptedProvider(answer(say("Half"), BackendUnavailable("It is gone.")), answer(say("Whole")))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    request = ask("Tell me", conversation=conversation, store=is_stored)
    assert (await stream(engine, request)).response.status == "failed"
    assert await said(store, conversation) == ()
    assert text_of(await engine.create(request)) == "Whole"
    assert words(await said(store, conversation)) == ["user: Tell me", "assistant: Whole"]


async def test_a_turn_that_is_cancelled_adds_nothing(store: ResponseStore) -> None:
    provider = ScriptedProvider(answer(say("Half"), asyncio.Event()))
    engine = engine_of(provider, store=store)
    conversation = await begun(engine)
    run = await engine.start(ask("Tell me", conversation=conversation))
    await run.answered()
    assert (await engine.cancel(ANONYMOUS, run.response_id)).status == "cancelled"
    assert await said(store, conversation) == ()
    assert len(engine.conversation_locks) == 0


async def test_a_response_that_is_deleted_leaves_the_conversation_as_it_is(store: ResponseStore) -> None:
    engine = engine_of(ScriptedProvider(answer(say("One"))), store=store)
    conversation = await begun(engine)
    response = await engine.create(ask("And?", conversation=conversation))
    await engine.delete(ANONYMOUS, response.id)
    assert words(await said(store, conversation)) == ["user: And?", "assistant: One"]


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_turn_outlives_its_conversation(store: ResponseStore, is_stored: bool) -> None:
    go = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("Half"), go, say("Whole"))), store=store)
    conversation = await begun(engine)
    run = await engine.start(ask("Tell me", conversation=conversation, store=is_stored))
    await engine.conversations.delete(conversation)
    go.set()
    response = await run.result()
    assert response.status == "completed"
    assert await store.said(ANONYMOUS, conversation) is None
    if is_stored:
        assert await engine.retrieve(ANONYMOUS, response.id) == response


class Failing(MemoryStore):
    """Cannot write the end of a response while it is broken."""

    is_broken = True

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        if self.is_broken:
            raise StoreFault("The disk is full.")
        await super().finish(identity, response, marks, entries, approvals, log)

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        if self.is_broken:
            raise StoreFault("The disk is full.")
        return await super().add_entries(identity, conversation_id, entries, approvals)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_an_end_that_cannot_be_recorded_is_a_failure_and_adds_nothing_then_or_later(is_stored: bool) -> None:
    store = Failing()
    engine = engine_of(ScriptedProvider(answer(say("One")), answer(say("Two"))), store=store)
    conversation = await begun(engine)
    request = ask("And?", conversation=conversation, store=is_stored)
    outcome = await stream(engine, request)
    assert outcome.response.error is not None
    assert (outcome.response.status, outcome.response.error.code) == ("failed", "storage_error")
    store.is_broken = False
    if is_stored:
        assert (await engine.retrieve(ANONYMOUS, outcome.response.id)).status == "failed"  # written by now
    assert engine.live_runs.unrecorded == {}
    await engine.create(request)
    assert words(await said(store, conversation)) == ["user: And?", "assistant: Two"]
