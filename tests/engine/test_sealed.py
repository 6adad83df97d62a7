"""Reasoning that is given out sealed: where it shows, and for whom it opens."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from antwort.api.events import OutputItemAdded, OutputItemDone
from antwort.api.items import Reasoning, ReasoningText, SummaryText
from antwort.api.wire import UNSET, to_plain
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.engine.loop.fold import fold
from antwort.engine.loop.turn import Turn
from antwort.engine.runs.recovery import pick_up
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendError, InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ReasoningDelta
from antwort.storage.base import Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say, think
from engine_kit import CLOCK, Outcome, ask, items_of, only, sent, stream
from plan_kit import plan_of
from turn_kit import shown

INCLUDE = ["reasoning.encrypted_content"]
SECRET = "a secret of some length"
EVERYONE_ELSE = Identity("other", "")


def engine_with(provider: ScriptedProvider, *secrets: str, store: MemoryStore | None = None) -> Engine:
    return Engine(provider, store=store, vault=Vault(secrets) if secrets else None)


async def sealed_thought(text: str = "Hm.", *secrets: str, tenant: str = "default", **fields: Any) -> dict[str, Any]:
    """A reasoning item as a client gets it."""
    provider = ScriptedProvider(answer(think(text), say("Yes.")))
    asked = ask(include=INCLUDE, store=False, **fields)
    response = await engine_with(provider, *(secrets or (SECRET,))).create(asked, Identity(tenant))
    plain: dict[str, Any] = to_plain(only(response, Reasoning))
    return plain


async def replayed(*items: dict[str, Any], identity: Identity = ANONYMOUS, secrets: tuple[str, ...] = (SECRET,)) -> Any:
    """What the model reads as its own reasoning when a client sends these before an answer of the assistant."""
    provider = ScriptedProvider(answer(say("Ok.")))
    said = {"role": "assistant", "content": "Yes."}
    request = ask([{"role": "user", "content": "Hello"}, *items, said, {"role": "user", "content": "Go on"}])
    await engine_with(provider, *secrets).create(request, identity)
    message = sent(provider.requests[0])["messages"][1]
    assert (message["role"], message["content"]) == ("assistant", "Yes.")
    return message.get("reasoning_content")


# ---- giving it out ----


def thoughts(outcome: Outcome, kind: type[OutputItemAdded | OutputItemDone]) -> list[Reasoning]:
    items = [event.item for event in outcome.events if isinstance(event, kind)]
    return [item for item in items if isinstance(item, Reasoning)]


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("strict", [True, False])
async def test_reasoning_is_sealed_when_it_is_whole_and_where_it_was_asked_for(store: bool, strict: bool) -> None:
    provider = ScriptedProvider(answer(think("Let me see."), say("Yes.")))
    engine = Engine(provider, settings=EngineSettings(strict=strict))
    outcome = await stream(engine, ask(include=INCLUDE, store=store, stream=True))
    (added,) = thoughts(outcome, OutputItemAdded)
    (done,) = thoughts(outcome, OutputItemDone)
    assert added.encrypted_content is UNSET
    assert isinstance(done.encrypted_content, str)
    assert (done.summary, done.content) == ((), (ReasoningText(text="Let me see."),))
    assert only(outcome.response, Reasoning) == done


async def test_not_streamed_it_is_there_as_well() -> None:
    engine = engine_with(ScriptedProvider(answer(think("Hm."), say("Yes."))))
    response = await engine.create(ask(include=INCLUDE, store=False))
    assert isinstance(only(response, Reasoning).encrypted_content, str)


@pytest.mark.parametrize("include", [None, [], ["message.output_text.logprobs", "something.new"]])
async def test_where_nobody_asked_for_it_it_is_not_there(include: list[str] | None) -> None:
    engine = engine_with(ScriptedProvider(answer(think("Hm."), say("Yes."))))
    response = await engine.create(ask(include=include, store=False))
    assert "encrypted_content" not in to_plain(only(response, Reasoning))


async def test_a_summary_that_was_asked_for_stands_beside_it() -> None:
    item = await sealed_thought("Let me see.", reasoning={"summary": "auto"})
    assert item["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert "content" not in item
    assert await replayed(item) == "Let me see."


async def test_each_turn_seals_its_own() -> None:
    provider = ScriptedProvider(answer(think("One."), call("clock")), answer(think("Two."), say("Noon.")))
    engine = engine_with(provider, SECRET)
    first = await engine.create(ask(tools=[CLOCK], include=INCLUDE, store=False))
    outputs = [to_plain(item) for item in first.output]
    call_id = outputs[1]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "noon"}
    second = await engine.create(ask([*outputs, result], tools=[CLOCK], include=INCLUDE, store=False))
    assert [await replayed(to_plain(only(response, Reasoning))) for response in (first, second)] == ["One.", "Two."]


async def test_reasoning_that_broke_off_is_sealed_as_far_as_it_came() -> None:
    engine = engine_with(ScriptedProvider(answer([], think("Let me"), BackendError("Gone."))), SECRET)
    response = await engine.create(ask(include=INCLUDE))
    item = only(response, Reasoning)
    assert item.status == "incomplete"
    assert await replayed(to_plain(item)) == "Let me"


async def test_what_another_process_left_reopened_items_is_closed_sealed() -> None:
    plan = await plan_of(ask())
    turn = Turn(0, shown)
    turn.feed(ReasoningDelta("Let me"))
    run, closing_events = pick_up(plan.response, turn.take(), seal=lambda text: f"sealed {text}")
    (item,) = items_of(fold(run, closing_events).response, Reasoning)
    assert (item.status, item.encrypted_content) == ("incomplete", "sealed Let me")


# ---- bringing it back ----


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"id": "rs_made_by_the_client"},
        {"id": None},
        {"content": None},
        {"content": []},
        {"status": None},
        {"summary": [{"type": "summary_text", "text": "Something else."}]},
        {"content": [{"type": "reasoning_text", "text": "Something else."}]},
    ],
)
async def test_what_is_sealed_counts_over_what_else_the_item_says(changes: dict[str, Any]) -> None:
    assert await replayed({**await sealed_thought("Let me see."), **changes}) == "Let me see."


async def test_nothing_is_needed_but_the_key() -> None:
    item = await sealed_thought("Hm.", SECRET)
    assert await replayed({"type": "reasoning", "encrypted_content": item["encrypted_content"]}) == "Hm."


async def test_an_older_key_still_opens() -> None:
    item = await sealed_thought("Hm.", "an older secret, once the first")
    assert await replayed(item, secrets=(SECRET, "an older secret, once the first")) == "Hm."


@pytest.mark.parametrize("absent", [{}, {"encrypted_content": None}, {"encrypted_content": ""}])
@pytest.mark.parametrize(
    "said",
    [
        {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
        {"content": None, "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"content": [{"type": "text", "text": "Hm."}]},
        {"content": "Hm."},
    ],
)
async def test_reasoning_that_is_not_sealed_is_replayed_as_text(absent: Any, said: Any) -> None:
    assert await replayed({"type": "reasoning", **said, **absent}) == "Hm."


async def test_reasoning_that_says_nothing_is_no_fault() -> None:
    assert await replayed({"type": "reasoning", "id": "rs_1", "summary": []}) is None


async def refused(item: dict[str, Any], *secrets: str, identity: Identity = ANONYMOUS) -> str:
    provider = ScriptedProvider()
    items = [{"role": "user", "content": "Hello"}, item]
    with pytest.raises(InvalidField) as caught:
        await engine_with(provider, *(secrets or (SECRET,))).create(ask(items, store=False), identity)
    fault = caught.value
    assert (fault.status, fault.code) == (400, "invalid_encrypted_content")
    assert fault.param == "input[1].encrypted_content"
    assert provider.requests == []
    return fault.message


async def test_what_cannot_be_opened_is_refused_whatever_is_wrong_with_it() -> None:
    item = await sealed_thought()
    token = item["encrypted_content"]
    said = {
        await refused({**item, "encrypted_content": token[:-2] + ("AA" if token[-2:] != "AA" else "BB")}),
        await refused({**item, "encrypted_content": "gAAAAABo-from-elsewhere"}),
        await refused({**item, "encrypted_content": Vault([SECRET]).seal("compaction", "default", b"Hm.")}),
        await refused(item, "a secret of another server"),
        await refused(item, identity=EVERYONE_ELSE),
        await refused(await sealed_thought("Hm.", SECRET, tenant="other")),
    }
    assert len(said) == 1
    (message,) = said
    assert "leave the item away" in message
    assert token not in message


async def test_sealed_reasoning_that_is_no_text_names_the_field() -> None:
    with pytest.raises(InvalidField) as caught:
        ask([{"type": "reasoning", "encrypted_content": 5}])
    assert caught.value.param == "input[0].encrypted_content"


async def test_an_engine_without_a_vault_of_its_own_opens_what_it_sealed() -> None:
    provider = ScriptedProvider(answer(think("Hm."), say("Yes.")), answer(say("Ok.")))
    engine = engine_with(provider)
    first = await engine.create(ask(include=INCLUDE, store=False))
    await engine.create(ask([*(to_plain(item) for item in first.output), {"role": "user", "content": "Go on"}]))
    assert sent(provider.requests[1])["messages"][0]["reasoning_content"] == "Hm."


# ---- what was stored ----


async def test_it_is_kept_as_it_came() -> None:
    item = await sealed_thought()
    engine = engine_with(ScriptedProvider(answer(say("Ok."))), SECRET)
    response = await engine.create(ask([{**item, "id": "rs_mine", "content": None}]))
    (kept,) = (await engine.input_items(ANONYMOUS, response.id, Page())).items
    assert kept == Reasoning(id="rs_mine", encrypted_content=item["encrypted_content"])


NOT_SAID: dict[str, Any] = {"content": None, "summary": []}


async def replayed_by_id(item: dict[str, Any], *secrets: str) -> list[Any]:
    """What the model reads of reasoning that an earlier request brought, once the server has other keys."""
    store = MemoryStore()
    said = [item, {"role": "assistant", "content": "Yes."}]
    first = await engine_with(ScriptedProvider(answer(say("Ok."))), SECRET, store=store).create(ask(said))
    provider = ScriptedProvider(answer(say("Bye.")))
    await engine_with(provider, *secrets, store=store).create(ask("Go on", previous_response_id=first.id))
    messages: list[Any] = sent(provider.requests[0])["messages"]
    return messages


async def test_stored_input_is_opened_again() -> None:
    messages = await replayed_by_id({**await sealed_thought("Hm."), **NOT_SAID}, SECRET)
    assert (messages[0]["reasoning_content"], messages[0]["content"]) == ("Hm.", "Yes.")


async def test_stored_input_that_cannot_be_opened_any_more_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "antwort.engine"):
        messages = await replayed_by_id({**await sealed_thought(), **NOT_SAID}, "a secret of another server")
    assert [(message["role"], message["content"]) for message in messages] == [
        ("assistant", "Yes."),
        ("assistant", "Ok."),
        ("user", "Go on"),
    ]
    assert "reasoning_content" not in messages[0]
    (record,) = caplog.records
    assert "left out stored reasoning" in record.getMessage()


async def test_what_it_says_in_clear_counts_where_it_cannot_be_opened_any_more() -> None:
    (message, *_) = await replayed_by_id(await sealed_thought("Hm."), "a secret of another server")
    assert message["reasoning_content"] == "Hm."


async def test_our_own_stored_reasoning_needs_no_key() -> None:
    store = MemoryStore()
    first = await engine_with(ScriptedProvider(answer(think("Hm."), say("Yes."))), store=store).create(
        ask(include=INCLUDE)
    )
    for follow_up in (
        ask("Go on", previous_response_id=first.id),
        ask([*({"type": "item_reference", "id": item.id} for item in first.output), {"role": "user", "content": "x"}]),
    ):
        provider = ScriptedProvider(answer(say("Bye.")))
        await engine_with(provider, SECRET, store=store).create(follow_up)
        said = [message for message in sent(provider.requests[0])["messages"] if message["role"] == "assistant"]
        assert [message.get("reasoning_content") for message in said] == ["Hm."]


async def test_a_reference_to_sealed_input_opens_it() -> None:
    item = {**await sealed_thought("Hm."), "id": "rs_mine", **NOT_SAID}
    store = MemoryStore()
    await engine_with(ScriptedProvider(answer(say("Ok."))), SECRET, store=store).create(ask([item]))
    said = [{"type": "item_reference", "id": "rs_mine"}, {"role": "assistant", "content": "Yes."}]
    for secret, seen in ((SECRET, "Hm."), ("a secret of another server", None)):
        provider = ScriptedProvider(answer(say("Bye.")))
        await engine_with(provider, secret, store=store).create(ask(said, store=False))
        assert sent(provider.requests[0])["messages"][0].get("reasoning_content") == seen


def test_a_summary_item_reads_back_as_it_was_written() -> None:
    item = Reasoning(id="rs_1", summary=(SummaryText(text="Hm."),), encrypted_content="av1.x")
    assert to_plain(item) == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "av1.x",
        "status": "completed",
    }
