"""Conversations by the clients that keep them: the official SDK, and the sessions of openai-agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import openai
import pytest
from agents import OpenAIConversationsSession, TResponseInputItem
from openai import AsyncOpenAI, OpenAI
from openai.types.conversations import Message
from openai.types.responses import ResponseInputItemParam


def says(text: str) -> ResponseInputItemParam:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def text_of(item: object) -> str:
    assert isinstance(item, Message)
    part = item.content[0]
    assert part.type == "input_text"
    return part.text


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as connected:
        yield connected


async def test_a_conversation_from_its_beginning_to_its_end(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[says("Hello")], metadata={"topic": "weather"})
    assert (made.object, made.metadata, made.id[:5]) == ("conversation", {"topic": "weather"}, "conv_")
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"topic": "travel"})
    assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"topic": "travel"})
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.retrieve(made.id)
    assert caught.value.code == "conversation_not_found"


async def test_items_are_added_read_and_taken_out(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    added = await client.conversations.items.create(conversation.id, items=[says("one"), says("two")])
    assert [text_of(item) for item in added.data] == ["one", "two"]
    assert (added.object, added.first_id, added.last_id) == ("list", added.data[0].id, added.data[1].id)
    first = await client.conversations.items.retrieve(
        added.first_id, conversation_id=conversation.id, include=["message.input_image.image_url"]
    )
    assert first == added.data[0]
    left = await client.conversations.items.delete(added.first_id, conversation_id=conversation.id)
    assert left == conversation
    assert [text_of(item) async for item in client.conversations.items.list(conversation.id)] == ["two"]


async def test_a_long_conversation_is_paged_through_either_way(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    for start in range(0, 60, 20):
        items = [says(str(number)) for number in range(start, start + 20)]
        await client.conversations.items.create(conversation.id, items=items)
    newest = client.conversations.items.list(conversation.id, limit=7)
    assert [text_of(item) async for item in newest] == [str(number) for number in range(59, -1, -1)]
    oldest = client.conversations.items.list(conversation.id, order="asc")
    assert [text_of(item) async for item in oldest] == [str(number) for number in range(60)]


async def test_what_fifty_add_at_once_is_all_there_and_whole(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()

    async def add(number: int) -> None:
        await client.conversations.items.create(conversation.id, items=[says(f"{number}.{at}") for at in range(3)])

    await asyncio.gather(*(add(number) for number in range(50)))
    said = [text_of(item) async for item in client.conversations.items.list(conversation.id, order="asc", limit=100)]
    together = [said[at : at + 3] for at in range(0, len(said), 3)]
    assert sorted(together) == sorted([f"{number}.{at}" for at in range(3)] for number in range(50))


async def test_more_than_twenty_items_at_once_are_refused_by_name(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.conversations.create(items=[says(str(number)) for number in range(21)])
    assert (caught.value.param, caught.value.code) == ("items", "too_many_items")


def ask(base_url: str) -> list[str]:
    with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
        conversation = client.conversations.create(items=[says("Hello")])
        client.conversations.items.create(conversation.id, items=[says("Still there?")])
        said = [text_of(item) for item in client.conversations.items.list(conversation.id, order="asc", limit=1)]
        client.conversations.delete(conversation.id)
        return said


async def test_the_client_that_waits_does_the_same(base_url: str) -> None:
    assert await asyncio.to_thread(ask, base_url) == ["Hello", "Still there?"]


# ---- openai-agents ----


async def kept_by(session: OpenAIConversationsSession, limit: int | None = None) -> list[dict[str, Any]]:
    """What the session gives back, as plain values."""
    return [dict(item) for item in await session.get_items(limit)]


def texts_of(items: Iterable[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


async def test_a_session_of_agents_is_kept_here(client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    items: list[TResponseInputItem] = [
        {"role": "user", "content": "What is the weather?"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
    ]
    await session.add_items(items)
    await session.add_items([{"role": "user", "content": str(number)} for number in range(30)])
    kept = await kept_by(session)
    assert [item["type"] for item in kept[:3]] == ["message", "function_call", "function_call_output"]
    assert texts_of(kept[3:]) == [str(number) for number in range(30)]
    assert texts_of(await kept_by(session, limit=2)) == ["28", "29"]
    popped = await session.pop_item()
    assert popped is not None
    assert dict(popped) == kept[-1]
    assert await kept_by(session) == kept[:-1]
    name = session.session_id
    await session.clear_session()
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(name)


async def test_what_a_session_gives_back_can_be_added_again(client: AsyncOpenAI) -> None:
    session, other = [OpenAIConversationsSession(openai_client=client) for _ in range(2)]
    await session.add_items([{"role": "user", "content": "Hello"}])
    items = await session.get_items()
    await other.add_items(items)
    assert await other.get_items() == items
    await session.add_items(items)
    first, second = await kept_by(session)
    assert first["id"] != second["id"]
    assert {**second, "id": first["id"]} == first
