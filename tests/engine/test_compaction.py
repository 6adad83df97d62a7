"""A conversation is compacted into a window: what is in it, what goes on from it, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.items import Compaction, FunctionCall
from antwort.api.wire import UNSET, to_plain
from antwort.crypto import Vault
from antwort.engine.context.message_text import Recap
from antwort.engine.engine import Engine
from antwort.errors import (
    AntwortError,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    InvalidField,
    NotPermitted,
    ShuttingDown,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import Capabilities, ChatRequest
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, answer, call, say, think, tokens
from compaction_kit import (
    RECAP,
    SUMMED,
    TALK,
    TRIGGER,
    inside,
    kinds_of,
    output_like,
    output_of,
    texts,
)
from engine_kit import (
    CLOCK,
    ask,
    engine_of,
    sent_messages,
)
from serving import until

ADA = '{"role":"user","text":"My name is Ada."}\n{"role":"assistant","text":"Hello Ada."}'


async def test_what_was_said_is_summed_up_and_the_last_exchange_stays() -> None:
    provider = ScriptedProvider(SUMMED)
    window = await engine_of(provider).compact(model="scripted", input=TALK)
    assert (window.object, window.usage) == ("response.compaction", tokens(30, 4))
    assert [item["type"] for item in output_of(window)] == ["message", "message", "compaction"]
    assert texts(window.output) == ["I like tea.", "Noted."]
    (asked,) = provider.requests
    assert asked.tools is UNSET
    assert f"{ADA}\n</conversation>" in str(asked.messages[1].content)


async def test_what_goes_on_from_a_window_hears_the_summary_and_the_latest_turns() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    window = await engine.compact(model="scripted", input=[{"role": "system", "content": "Be brief."}, *TALK])
    await engine.create(ask([*output_of(window), {"role": "user", "content": "What do I like?"}]))
    assert sent_messages(provider.requests[1]) == [
        ("system", "Be brief."),
        ("user", f"{RECAP}\n\nI like tea."),
        ("assistant", "Noted."),
        ("user", "What do I like?"),
    ]
    assert isinstance(provider.requests[1].messages[1], Recap)


async def test_the_item_alone_is_enough_to_go_on() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    item = output_of(await engine.compact(model="scripted", input=TALK))[-1]
    bare = {"type": "compaction_summary", "encrypted_content": item["encrypted_content"]}
    await engine.create(ask([bare, {"role": "user", "content": "And?"}]))
    assert [role for role, _ in sent_messages(provider.requests[1])] == ["user", "assistant", "user"]


async def test_a_call_whose_output_has_annotations_may_stand_behind_the_item() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("ok")))
    engine = engine_of(provider, compaction_keep=0)
    window = to_plain(await engine.compact({"model": "scripted", "input": TALK}))["output"]
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "file_citation"}]}
    called = {"type": "mcp_call", "id": "mcp_x", "server_label": "s", "name": "n", "arguments": "{}", "output": "hi"}
    items = [*window, {**called, "content": [part]}, {"role": "user", "content": "go"}]
    assert (await engine.create(ask(items))).status == "completed"


async def test_fresh_instructions_in_front_take_the_place_of_those_that_are_sealed() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("Tea.")))
    engine = engine_of(provider)
    window = await engine.compact(model="scripted", input=[{"role": "developer", "content": "Old."}, *TALK])
    kept = {"role": "user", "content": "My name is Ada."}
    fresh = {"role": "developer", "content": "New."}
    await engine.create(ask([fresh, kept, output_of(window)[-1], {"role": "user", "content": "And?"}]))
    assert [text for _, text in sent_messages(provider.requests[1])] == [
        "New.",
        f"{RECAP}\n\nI like tea.",
        "Noted.",
        "And?",
    ]


async def test_a_compaction_of_a_compaction_folds_the_earlier_one_in() -> None:
    provider = ScriptedProvider(SUMMED, answer(say("All of it.")))
    engine = engine_of(provider)
    told = {"role": "system", "content": "Be brief."}
    first = await engine.compact(model="scripted", input=[told, *TALK])
    second = await engine.compact(model="scripted", input=[output_of(first)[-1], *TALK[:2]])
    assert '<summary>\n{"role":"summary","text":"Ada likes tea."}\n</summary>' in str(
        provider.requests[1].messages[1].content
    )
    (item,) = [item for item in second.output if isinstance(item, Compaction)]
    memory = inside(engine, item)
    assert (memory.summary, texts(memory.instructions)) == ("All of it.", ["Be brief."])


async def test_a_stored_conversation_is_compacted_by_its_last_response() -> None:
    provider = ScriptedProvider(answer(say("Hello Ada.")), SUMMED)
    engine = engine_of(provider)
    first = await engine.create(ask("My name is Ada."))
    window = await engine.compact(model="scripted", previous_response_id=first.id)
    assert kinds_of(window) == ["compaction"]
    assert ADA in str(provider.requests[1].messages[1].content)


async def test_nothing_of_a_window_is_stored() -> None:
    store = MemoryStore()
    engine = engine_of(ScriptedProvider(SUMMED), store=store)
    window = await engine.compact(model="scripted", input=TALK)
    assert await store.get(ANONYMOUS, window.id) is None


async def test_open_calls_stay_and_can_be_answered_afterwards() -> None:
    provider = ScriptedProvider(answer(call("clock")), SUMMED, answer(say("Noon.")))
    engine = engine_of(provider)
    first = await engine.create(ask(TALK[:2] + TALK[2:3], tools=[CLOCK]))
    window = await engine.compact(model="scripted", previous_response_id=first.id)
    (open_call,) = [item for item in window.output if isinstance(item, FunctionCall)]
    result = {"type": "function_call_output", "call_id": open_call.call_id, "output": "noon"}
    await engine.create(ask([output_of(window)[-1], result], tools=[CLOCK]))
    assert [role for role, _ in sent_messages(provider.requests[2])][-2:] == ["assistant", "tool"]
    assert sent_messages(provider.requests[2])[-1] == ("tool", "noon")


async def test_a_result_that_was_sent_before_its_call_stays_with_it() -> None:
    provider = ScriptedProvider(SUMMED)
    early = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
    late = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{}"}
    talk = [TALK[0], early, late, *TALK[1:3]]
    window = await engine_of(provider).compact(model="scripted", input=talk, tools=[CLOCK])
    (asked,) = provider.requests
    assert "noon" in str(asked.messages[1].content)
    assert not [item for item in window.output if isinstance(item, FunctionCall)]


async def test_a_result_for_a_call_that_was_summed_up_is_refused() -> None:
    engine = engine_of(ScriptedProvider(SUMMED))
    window = await engine.compact(model="scripted", input=TALK)
    result = {"type": "function_call_output", "call_id": "call_gone", "output": "x"}
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([*output_of(window), result]))
    assert (caught.value.param, caught.value.code) == ("input[3].call_id", "unknown_call_id")


async def test_what_is_not_in_the_standard_is_sealed_under_the_strict_setting() -> None:
    items = [
        *TALK,
        {"role": "user", "content": "Patch it."},
        {"type": "custom_tool_call", "call_id": "k", "name": "patch", "input": "+x"},
        {"type": "custom_tool_call_output", "call_id": "k", "output": "Done"},
        {"type": "shell_call", "call_id": "s", "action": {}},
        {"type": "shell_call_output", "call_id": "s", "output": "ok"},
    ]
    provider = ScriptedProvider(SUMMED, answer(say("Yes.")))
    engine = engine_of(provider, strict=True)
    window = await engine.compact(model="scripted", input=items)
    assert set(kinds_of(window)) == {"message", "compaction"}
    await engine.create(ask([output_of(window)[-1], {"role": "user", "content": "Well?"}]))
    assert [role for role, _ in sent_messages(provider.requests[1])][-5:] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
    ]


async def test_reasoning_is_shown_as_it_was_sent() -> None:
    provider = ScriptedProvider(answer(think("Hm."), say("Yes."), usage=None), SUMMED)
    engine = engine_of(provider)
    first = await engine.create(ask(TALK[2:3], include=["reasoning.encrypted_content"], store=False))
    thought = {**output_like(first.output[0]), "content": None}
    window = await engine.compact(model="scripted", input=[*TALK, *TALK[2:3], thought, output_like(first.output[1])])
    shown = [item for item in output_of(window) if item["type"] == "reasoning"]
    assert [item["encrypted_content"] for item in shown] == [thought["encrypted_content"]]
    assert "content" not in shown[0]


# ---- what is refused ----


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}], ids=["absent", "null", "empty"])
async def test_the_model_must_be_named_whatever_the_default_is(fields: dict[str, Any]) -> None:
    engine = engine_of(ScriptedProvider(SUMMED), default_model="scripted")
    with pytest.raises(InvalidField) as caught:
        await engine.compact(input=TALK, **fields)
    assert (caught.value.param, caught.value.code) == ("model", "missing_required_parameter")


@pytest.mark.parametrize(
    "items",
    [[], [{"role": "system", "content": "Be brief."}], [TRIGGER]],
    ids=["nothing", "instructions", "a trigger"],
)
async def test_where_nothing_was_said_there_is_nothing_to_compact(items: list[dict[str, Any]]) -> None:
    engine = engine_of(ScriptedProvider(SUMMED))
    with pytest.raises(InvalidField) as caught:
        await engine.compact(model="scripted", input=items, instructions="Be kind.")
    assert (caught.value.param, caught.value.code) == ("input", "missing_required_parameter")


async def test_a_model_that_may_not_be_used_sums_up_nothing() -> None:
    identity = Identity("acme", "ann", models=("other",))
    with pytest.raises(NotPermitted):
        await engine_of(ScriptedProvider(SUMMED)).compact({"model": "scripted", "input": TALK}, identity)


async def test_what_another_tenant_was_given_does_not_open() -> None:
    engine = engine_of(ScriptedProvider(SUMMED))
    window = await engine.compact({"model": "scripted", "input": TALK}, Identity("acme", "ann"))
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([TALK[0], output_of(window)[-1]]), Identity("other", "ann"))
    assert (caught.value.param, caught.value.code) == ("input[1].encrypted_content", "invalid_encrypted_content")


async def test_a_stored_compaction_whose_key_is_gone_is_not_forgotten_in_silence() -> None:
    store = MemoryStore()
    first = Engine(ScriptedProvider(SUMMED, answer(say("Tea."))), store=store, vault=Vault(["the first secret of all"]))
    window = await first.compact(model="scripted", input=TALK)
    kept = await first.create(ask([*output_of(window), {"role": "user", "content": "And?"}]))
    second = Engine(ScriptedProvider(), store=store, vault=Vault(["another secret entirely"]))
    with pytest.raises(InvalidField) as caught:
        await second.create(ask("And now?", previous_response_id=kept.id))
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "invalid_encrypted_content")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(), BackendError),
        (answer(think("Hm.")), BackendError),
        (answer(say("  <think> so </think> \n ")), BackendError),
        ([BackendUnavailable("The backend cannot be reached.")], BackendUnavailable),
        (answer(say("Half"), BackendError("It broke.")), BackendError),
    ],
    ids=["nothing", "thoughts", "thoughts in words", "down", "broken off"],
)
async def test_without_a_summary_there_is_no_window(reply: Answer, error: type[AntwortError]) -> None:
    engine = engine_of(ScriptedProvider(reply), hold_back=0)
    with pytest.raises(error):
        await engine.compact(model="scripted", input=TALK)


async def test_a_summary_that_takes_too_long_is_a_timeout() -> None:
    never = asyncio.Event()
    with pytest.raises(BackendTimeout):
        await engine_of(ScriptedProvider(answer(never)), deadline=0.01).compact(model="scripted", input=TALK)


async def test_leaving_stops_the_backend() -> None:
    provider = ScriptedProvider(answer(say("Ada"), asyncio.Event()))
    engine = engine_of(provider)
    task = asyncio.create_task(engine.compact(model="scripted", input=TALK))
    await until(lambda: provider.under_way == 1)
    task.cancel()
    await asyncio.wait([task])
    await engine.close()
    assert (provider.under_way, engine.live) == (0, 0)


async def test_a_server_that_stops_says_so() -> None:
    provider = ScriptedProvider(answer(say("Ada"), asyncio.Event()))
    engine = engine_of(provider)
    task = asyncio.create_task(engine.compact(model="scripted", input=TALK))
    await until(lambda: provider.under_way == 1)
    await engine.drain(0)
    with pytest.raises(ShuttingDown):
        await task


# ---- what is too long to be summed up at once ----


class Narrow(ScriptedProvider):
    """Refuses what is longer than its context, which it may keep to itself, and answers all else."""

    def __init__(self, context: int, *, says: bool) -> None:
        super().__init__(capabilities=Capabilities(context_length=context if says else None))
        self._context = context
        self.refused = 0

    def infer(self, request: ChatRequest) -> Any:
        size = sum(len(str(message.content)) for message in request.messages) // 4
        if size > self._context:
            self.refused += 1
            self._answers.insert(0, [ContextTooLong("Too long.")])
        else:
            self._answers.insert(0, list(answer(say(f"Summary {len(self.requests)}."), usage=tokens(size, 3))))
        return super().infer(request)


LONG = [
    message
    for n in range(20)
    for message in (
        {"role": "user", "content": f"Question {n}: " + "why " * 400},
        {"role": "assistant", "content": f"Answer {n}: " + "so " * 400},
    )
]


@pytest.mark.parametrize("says", [True, False], ids=["a known context", "an unknown context"])
async def test_a_conversation_longer_than_the_context_is_summed_up_in_pieces(says: bool) -> None:
    provider = Narrow(2000, says=says)
    window = await engine_of(provider).compact(model="scripted", input=LONG)
    answered = [request for request in provider.requests if size_of(request) <= 2000]
    assert len(answered) > 3
    assert (provider.refused > 0) is not says
    told = "".join(str(request.messages[1].content) for request in answered)
    assert all(f"Question {n}:" in told for n in range(15))
    assert all("<summary>" in str(request.messages[1].content) for request in answered[1:])
    assert window.usage.output_tokens == 3 * len(answered)


def size_of(request: ChatRequest) -> int:
    return sum(len(str(message.content)) for message in request.messages) // 4


async def test_a_context_in_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(ContextTooLong):
        await engine_of(Narrow(100, says=False)).compact(model="scripted", input=LONG)


async def test_another_model_may_be_set_to_sum_up() -> None:
    provider = ScriptedProvider(SUMMED)
    await engine_of(provider, compaction_model="small", compaction_summary=128).compact(model="scripted", input=TALK)
    assert (provider.requests[0].model, provider.requests[0].max_tokens) == ("small", 128)
