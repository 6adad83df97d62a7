"""Conversations in a program: what `engine.conversations` does, without a server."""

from __future__ import annotations

import pytest

from antwort.api.items import Message, OpaqueItem
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.errors import ConversationNotFound, InvalidField, ItemNotFound
from antwort.identity import Identity
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from storage_cases import texts

ANN, BOB = Identity("acme", "ann"), Identity("acme", "bob")
HELLO = {"role": "user", "content": "Hello"}


def an_engine(*answers: str) -> Engine:
    script = [answer(say(text)) for text in answers]
    return Engine(ScriptedProvider(*script), store=MemoryStore(), clock=lambda: 1_700_000_000.9)


async def test_a_program_keeps_conversations_without_a_server() -> None:
    async with an_engine() as engine:
        kept = engine.conversations
        made = await kept.create(items=[HELLO], metadata={"topic": "weather"})
        assert (made.created_at, made.metadata) == (1_700_000_000, {"topic": "weather"})
        [added] = await kept.add(made.id, [{"role": "user", "content": "Bye"}])
        page = await kept.items(made.id, Page(order="asc"))
        assert texts(page.items) == ["Hello", "Bye"]
        assert await kept.item(made.id, added.id) == added
        assert await kept.delete_item(made.id, added.id) == made
        assert (await kept.update(made.id, None)).metadata == {}
        await kept.delete(made.id)
        with pytest.raises(ConversationNotFound):
            await kept.retrieve(made.id)


async def test_what_is_anothers_is_not_there() -> None:
    async with an_engine() as engine:
        kept = engine.conversations
        made = await kept.create(items=[{**HELLO, "id": "msg_1"}], identity=ANN)
        with pytest.raises(ConversationNotFound):
            await kept.retrieve(made.id, BOB)
        with pytest.raises(ConversationNotFound):
            await kept.update(made.id, {}, BOB)
        with pytest.raises(ConversationNotFound):
            await kept.delete(made.id, BOB)
        with pytest.raises(ConversationNotFound):
            await kept.items(made.id, Page(), BOB)
        with pytest.raises(ConversationNotFound):
            await kept.add(made.id, [HELLO], BOB)
        with pytest.raises(ConversationNotFound):
            await kept.item(made.id, "msg_1", BOB)
        with pytest.raises(ConversationNotFound):
            await kept.delete_item(made.id, "msg_1", BOB)
        assert texts((await kept.items(made.id, Page(), ANN)).items) == ["Hello"]


async def test_an_item_that_is_not_there_is_not_its_conversation() -> None:
    async with an_engine() as engine:
        made = await engine.conversations.create()
        with pytest.raises(ItemNotFound):
            await engine.conversations.item(made.id, "msg_1")
        with pytest.raises(ItemNotFound):
            await engine.conversations.delete_item(made.id, "msg_1")


async def test_a_reference_is_kept_as_what_it_stands_for() -> None:
    async with an_engine("Hello there") as engine:
        response = await engine.create(input=[{"type": "odd", "id": "odd_1", "x": None}, HELLO])
        wanted = [{"type": "item_reference", "id": name} for name in ("odd_1", response.output[0].id)]
        made = await engine.conversations.create(items=[*wanted, HELLO])
        odd, said, _ = (await engine.conversations.items(made.id, Page(order="asc"))).items
        assert isinstance(odd, OpaqueItem)
        assert odd.fields == {"type": "odd", "id": "odd_1", "x": None}
        assert isinstance(said, Message)
        assert said == response.output[0]


async def test_a_reference_to_what_is_anothers_stands_for_nothing() -> None:
    async with an_engine("Hello there") as engine:
        response = await engine.create(identity=ANN, input="Hello")
        wanted = [HELLO, {"type": "item_reference", "id": response.output[0].id}]
        with pytest.raises(ItemNotFound) as caught:
            await engine.conversations.create(items=wanted, identity=BOB)
        assert caught.value.param == "items[1].id"


async def test_an_item_of_one_conversation_can_be_copied_into_another() -> None:
    async with an_engine() as engine:
        kept = engine.conversations
        await kept.create(items=[{**HELLO, "id": "msg_1"}])
        other = await kept.create(items=[{"type": "item_reference", "id": "msg_1"}])
        assert texts((await kept.items(other.id, Page())).items) == ["Hello"]


async def test_items_that_cannot_be_read_are_named() -> None:
    async with an_engine() as engine:
        with pytest.raises(InvalidField, match=r"items\[1\]\.role"):
            await engine.conversations.create(items=[HELLO, {"role": "nobody", "content": "?"}])


@pytest.mark.parametrize("kind", ["compaction", "reasoning"])
async def test_what_is_sealed_is_added_only_where_it_can_be_opened(kind: str) -> None:
    async with an_engine("Summed up.") as engine:
        kept = engine.conversations
        made = await kept.create()
        sealed = {"type": kind, "encrypted_content": "not ours", "summary": []}
        for add in (lambda items: kept.create(items=items), lambda items: kept.add(made.id, items)):
            with pytest.raises(InvalidField) as caught:
                await add([HELLO, sealed])
            assert caught.value.code == "invalid_encrypted_content"
            assert caught.value.param == "items[1].encrypted_content"
        assert (await kept.items(made.id, Page())).items == ()


async def test_a_compaction_that_was_given_out_here_is_added_to_a_conversation_of_the_same_tenant() -> None:
    async with an_engine("Summed up.") as engine:
        said = [HELLO, {"role": "assistant", "content": "Hi"}]
        window = await engine.compact(model="scripted", input=said, identity=ANN)
        item = to_plain(window.output[-1])
        for identity in (ANN, BOB):
            made = await engine.conversations.create(items=[item], identity=identity)
            assert (await engine.conversations.items(made.id, Page(), identity)).items == window.output[-1:]
        with pytest.raises(InvalidField):
            await engine.conversations.create(items=[item], identity=Identity("other"))


async def test_keys_of_metadata_are_as_short_as_those_of_responses() -> None:
    async with an_engine() as engine:
        kept = engine.conversations
        made = await kept.create(metadata={"k" * 64: "x"})
        for wrong in ("k" * 65, ""):
            with pytest.raises(InvalidField, match="metadata"):
                await kept.create(metadata={wrong: "x"})
            with pytest.raises(InvalidField, match="metadata"):
                await kept.update(made.id, {wrong: "x"})
