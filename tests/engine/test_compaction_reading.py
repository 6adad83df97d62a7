"""A compaction comes back: what the model hears then, and what is run."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import to_plain
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities, ChatRequest
from antwort.storage.base import Page
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from compaction_kit import RECAP, SUMMED, TALK, TRIGGER, output_of, threshold
from engine_kit import CLOCK, SERVER, ask, engine_of, kinds, replies, sent_messages

PIRATE = {"role": "system", "content": "You are a pirate."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# ---- instructions ----


async def test_instructions_that_come_with_each_turn_are_sealed_and_heard_once() -> None:
    provider = ScriptedProvider(*(answer(say("Arr.")) for _ in range(3)), SUMMED, answer(say("Arr.")))
    engine = engine_of(provider)
    previous = None
    for turn in range(3):
        previous = (await engine.create(ask([PIRATE, user(f"{turn}?")], previous_response_id=previous))).id
    window = await engine.compact(model="scripted", previous_response_id=previous)
    await engine.create(ask([output_of(window)[-1], PIRATE, user("And?")]))
    assert sent_messages(provider.requests[-1]) == [
        ("system", "You are a pirate."),
        ("user", f"{RECAP}\n\n2?"),
        ("assistant", "Arr."),
        ("user", "And?"),
    ]


async def test_a_chain_with_instructions_in_each_turn_does_not_grow_for_ever() -> None:
    provider = Counting(*(answer(say("Ok.")) for _ in range(20)))
    engine = engine_of(provider)
    previous = None
    for turn in range(10):
        request = ask([PIRATE, user(f"{turn}?")], previous_response_id=previous, context_management=[threshold(40)])
        previous = (await engine.create(request)).id
    systems = [sum(role == "system" for role, _ in sent_messages(each)) for each in provider.requests]
    assert max(systems) <= 3


class Counting(ScriptedProvider):
    """What has more than five messages has very many tokens."""

    async def count(self, request: Any) -> int | None:
        return 1000 if len(request.messages) > 5 else 1


async def test_who_goes_back_to_an_earlier_instruction_after_a_compaction_has_it_hold() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Yes.")), SUMMED, answer(say("Yes.")))
    engine = engine_of(provider)
    english, german = ({"role": "system", "content": f"Answer in {language}."} for language in ("English", "German"))
    window = await engine.compact(model="scripted", input=[english, *TALK[:2], german, *TALK[2:]])
    gone_on = [output_of(window)[-1], english, {"role": "user", "content": "And?"}]
    await engine.create(ask(gone_on))
    told = [text for role, text in sent_messages(provider.requests[1]) if role == "system"]
    assert told[-1] == english["content"]
    again = await engine.compact(model="scripted", input=[*gone_on, {"role": "assistant", "content": "Yes."}])
    await engine.create(ask([output_of(again)[-1], {"role": "user", "content": "And now?"}]))
    told = [text for role, text in sent_messages(provider.requests[3]) if role == "system"]
    assert told == [german["content"], english["content"]]


async def test_instructions_are_not_lost_where_a_client_drops_a_part_of_what_came_before() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Ok.")))
    engine = engine_of(provider)
    talk = [PIRATE, *TALK[:2], {"role": "system", "content": "It is Tuesday."}, *TALK[2:]]
    window = await engine.compact(model="scripted", input=talk)
    await engine.create(ask([*talk[3:], output_of(window)[-1], user("And?")]))
    assert [text for role, text in sent_messages(provider.requests[1]) if role == "system"] == [
        "You are a pirate.",
        "It is Tuesday.",
    ]


# ---- what cannot be opened ----


async def test_only_the_last_compaction_has_to_open() -> None:
    old = Engine(ScriptedProvider(SUMMED), vault=Vault(["the first secret of all"]))
    lost = output_of(await old.compact(model="scripted", input=TALK))[-1]
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = Engine(provider, vault=Vault(["another secret entirely"]))
    known = output_of(await engine.compact(model="scripted", input=TALK))[-1]
    await engine.create(ask([lost, *TALK[:2], known, user("And?")]))
    assert sent_messages(provider.requests[1])[0] == ("user", f"{RECAP}\n\nI like tea.")
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([known, *TALK[:2], lost, user("And?")]))
    assert (caught.value.param, caught.value.code) == ("input[3].encrypted_content", "invalid_encrypted_content")


# ---- what does not fit ----


async def test_what_the_user_said_first_after_a_compaction_gives_way_when_it_does_not_fit() -> None:
    limits = Capabilities(context_length=1000)
    provider = ScriptedProvider(SUMMED, *(answer(say("Ok.")) for _ in range(2)), capabilities=limits, counts=words_in)
    engine = engine_of(provider)
    item = output_of(await engine.compact(model="scripted", input=TALK[:2]))[-1]
    first = await engine.create(ask([item, user("doc " * 700)], truncation="auto"))
    last = await engine.create(ask([user("more " * 350)], previous_response_id=first.id, truncation="auto"))
    assert last.status == "completed"
    ((role, text),) = sent_messages(provider.requests[-1])
    assert (role, text.startswith(RECAP), "doc" in text, text.count("more")) == ("user", True, False, 350)


def words_in(request: ChatRequest) -> int:
    return sum(len(str(message.content).split()) for message in request.messages)


# ---- calls that wait ----


@pytest.mark.parametrize("keep", [4096, 0])
@pytest.mark.parametrize("is_servers_first", [True, False])
@pytest.mark.parametrize("by", ["window", "item", "trigger"])
async def test_a_servers_call_that_waits_for_the_client_is_run_once_after_a_compaction(
    by: str, is_servers_first: bool, keep: int
) -> None:
    calls = [call("lookup", key="a"), call("clock")]
    made = answer(*(calls if is_servers_first else reversed(calls)))
    provider = ScriptedProvider(made, SUMMED, answer(say("Three.")))
    depot = ToolServerFake("depot", lookup=replies("3 left"))
    engine = engine_of(provider, depot, mixed_turns="pause", compaction_keep=keep)
    tools = {"tools": [SERVER, CLOCK]}
    first = await engine.create(ask([*TALK, user("How many?")], **tools))
    assert (first.status, depot.calls) == ("requires_action", [])
    (asked,) = [item for item in to_plain(first)["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": asked["call_id"], "output": "noon"}
    if by == "trigger":
        summed = await engine.create(ask([TRIGGER], previous_response_id=first.id, **tools))
        last = await engine.create(ask([result], previous_response_id=summed.id, **tools))
    else:
        shown = output_of(await engine.compact(model="scripted", previous_response_id=first.id))
        last = await engine.create(ask([*(shown if by == "window" else shown[-1:]), result], **tools))
    assert (last.status, len(depot.calls)) == ("completed", 1)
    assert "mcp_call" in kinds(last)
    heard = [text for role, text in sent_messages(provider.requests[-1]) if role == "tool"]
    assert heard == (["3 left", "noon"] if is_servers_first else ["noon", "3 left"])


# ---- in a conversation ----


async def test_what_asks_for_a_compaction_does_not_stay_in_the_conversation() -> None:
    engine = engine_of(ScriptedProvider(SUMMED))
    conversation = (await engine.conversations.create(items=TALK)).id
    response = await engine.create(ask([TRIGGER], conversation=conversation))
    page = await engine.conversations.items(conversation, Page(order="asc"))
    assert [to_plain(item)["type"] for item in page.items] == [*["message"] * 4, "compaction"]
    sent = await engine.input_items(ANONYMOUS, response.id, Page())
    assert [to_plain(item)["type"] for item in sent.items] == ["compaction_trigger"]
