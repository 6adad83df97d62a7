"""openai-python: connections that last, and conversations that grow long."""

from __future__ import annotations

import openai
import pytest

from clients.ground import MODEL, SMALL_MODEL
from clients.lasting import (
    NOT_STREAMED,
    THRESHOLD,
    check_compacted,
    check_cut,
    past_threshold,
    sand,
    told,
    too_long,
)
from clients.sockets import Refused, turn
from clients.trying import Client, NotApplicable, Play, Trial
from clients.with_openai import ADD, CASES, asked, client_of, remembered, results
from clients.with_openai_more import MORE


async def websocket(at: Trial) -> None:
    """Turns that continue each other, a call, errors that leave the connection as it is, and a warm-up."""
    if not at.streamed:
        raise NotApplicable(NOT_STREAMED)
    async with client_of(at) as client, client.responses.connect() as connection:
        first = await turn(connection, f"case:plain {told(at)}", store=False)
        second = await turn(connection, "case:remember", store=False, previous_response_id=first.id)
        assert second.output_text == remembered(at)
        prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        called = await turn(connection, prompt, tools=[ADD], store=False)
        ended = await turn(connection, results(called), tools=[ADD], store=False, previous_response_id=called.id)
        assert ended.output_text == "The tool says: 42."
        with pytest.raises(Refused) as unknown:
            await turn(connection, "case:plain", previous_response_id="resp_nobody")
        assert unknown.value.error["code"] == "previous_response_not_found"
        with pytest.raises(Refused) as wrong:
            await turn(connection, "case:plain", temperature=9)
        assert (wrong.value.status, wrong.value.error["param"]) == (400, "temperature")
        warm = await turn(connection, f"case:plain {told(at)}", store=False, generate=False)
        assert warm.output == []
        after = await turn(connection, "case:remember", store=False, previous_response_id=warm.id)
        assert after.output_text == f"user: case:plain {told(at)} | user: case:remember"


async def conversation(at: Trial) -> None:
    async with client_of(at) as client:
        said = {"type": "message", "role": "user", "content": f"case:plain {told(at)}"}
        made = await client.conversations.create(metadata={"topic": "walrus"}, items=[said])  # type: ignore[list-item] # as plain JSON
        assert made.metadata == {"topic": "walrus"}
        first = await asked(at, f"case:plain {told(at)}", conversation=made.id)
        assert first.conversation is not None
        assert first.conversation.id == made.id
        second = await asked(at, "case:remember", conversation={"id": made.id})
        assert second.output_text.count("My word is walrus.") >= 3
        items = [item async for item in client.conversations.items.list(made.id, order="asc", limit=2)]
        assert [item.type for item in items] == ["message"] * len(items)
        assert len(items) == (9 if at.streamed else 5)  # a streamed turn is asked twice
        only = await client.conversations.items.retrieve(items[0].id or "", conversation_id=made.id)
        assert only == items[0]
        await client.conversations.items.delete(items[0].id or "", conversation_id=made.id)
        left = [item.id async for item in client.conversations.items.list(made.id, order="asc")]
        assert left == [item.id for item in items[1:]]
        changed = await client.conversations.update(made.id, metadata={"topic": "sand"})
        assert (await client.conversations.retrieve(made.id)).metadata == changed.metadata == {"topic": "sand"}
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)


async def compaction(at: Trial) -> None:
    async with client_of(at) as client:
        *history, question = past_threshold(at)
        made = await client.responses.compact(model=MODEL, input=history)
        assert made.object == "response.compaction"
        assert [item.type for item in made.output].count("compaction") == 1
        window = [item.to_dict() for item in made.output]
    answer = await asked(at, [*window, question], store=False)
    check_compacted(at, answer.output_text)


async def auto_compaction(at: Trial) -> None:
    """The compacted history is an item of the answer, which goes on from it; so may the client."""
    managed = [{"type": "compaction", "compact_threshold": THRESHOLD}]
    history = past_threshold(at)
    first = await asked(at, history, store=False, context_management=managed)
    assert [item.type for item in first.output].count("compaction") == 1
    check_compacted(at, first.output_text)
    kept = [item.to_dict() for item in first.output]
    again = {"role": "user", "content": "case:remember"}
    second = await asked(at, [*history, *kept, again], store=False, context_management=managed)
    check_compacted(at, second.output_text)


async def input_tokens(at: Trial) -> None:
    if at.streamed:
        raise NotApplicable("a count is one number")
    async with client_of(at) as client:
        short = await client.responses.input_tokens.count(model=MODEL, input=at.mark)
        long = await client.responses.input_tokens.count(model=MODEL, input=f"{at.mark} {sand(500)}")
    assert (short.object, long.object) == ("response.input_tokens",) * 2
    assert 0 < short.input_tokens < long.input_tokens
    assert at.reached() == []


async def truncation(at: Trial) -> None:
    answer = await asked(at, too_long(at), model=SMALL_MODEL, truncation="auto", store=False)
    check_cut(answer.output_text)
    with pytest.raises(openai.BadRequestError) as caught:
        await asked(at, too_long(at), model=SMALL_MODEL, truncation="disabled", store=False)
    assert caught.value.code == "context_length_exceeded"


LONG: dict[str, Play] = {
    "websocket": websocket,
    "conversation": conversation,
    "compaction": compaction,
    "auto-compaction": auto_compaction,
    "input-tokens": input_tokens,
    "truncation": truncation,
}

OPENAI = Client("openai-python", "openai", {**CASES, **MORE, **LONG})
