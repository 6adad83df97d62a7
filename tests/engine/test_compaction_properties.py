"""Whatever was said, whatever the model answers, and wherever a run breaks off: compaction leaves a conversation that a
backend takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antwort.api.decoding import at_once
from antwort.api.events import ResponseCreated, TurnEnded
from antwort.api.items import Compaction, CustomToolCall, CustomToolCallOutput, InputItem, InputText, Message
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.crypto import Vault
from antwort.engine.context.compaction import split_item_steps
from antwort.engine.context.compaction_item import Memory
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.loop.fold import Run, fold
from antwort.engine.plan import History
from antwort.engine.prompt.chat_request import chat_request
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.storage.run_log import EventRecord
from antwort.testing import Answer, ScriptedProvider, answer, call, say, tokens
from antwort.tools.local import LocalExecutor, tool
from compaction_kit import TALK, threshold
from engine_kit import SERVER, WEATHER, ask, kinds, shape_of
from jumping_time import jumping_time
from plan_kit import STEADY, called, depot, plan_of, result, run_of, said, server_called, thought
from takeover_kit import Log, Watched, begin, engine_on, events_of, records_of

PLAN = asyncio.run(plan_of(ask(tools=[WEATHER, SERVER]), depot(), items=()))
SEALED = SealedItems(Vault(["a secret of the tests"]), ANONYMOUS)

# ---- translation ----


def asked(text: str, role: Any = "user") -> Message:
    return Message(id="msg_u", role=role, content=(InputText(text=text),))


_turns = st.lists(
    st.one_of(
        st.just([asked("?")]),
        st.just([asked("Be brief.", "system")]),
        st.just([said("!")]),
        st.just([thought("hm"), said("!")]),
        st.integers(1, 3).map(lambda n: [called(n), result(n)]),
        st.integers(1, 3).map(lambda n: [thought("hm"), called(n), called(n + 10), result(n), result(n + 10)]),
        st.integers(1, 3).map(lambda n: [called(n)]),
        st.integers(1, 3).map(lambda n: [server_called(n, status="completed", output="3 left")]),
        st.integers(1, 3).map(
            lambda n: [
                CustomToolCall(id="c", call_id=f"k{n}", name="patch", input="x"),
                CustomToolCallOutput(id="o", call_id=f"k{n}", output="y"),
            ]
        ),
    ),
    max_size=6,
).map(lambda turns: tuple(item for turn in turns for item in turn))


def compacted(items: Sequence[InputItem], budget: int, summary: str) -> Compaction:
    talk = [item for item in items if getattr(item, "role", "") != "system"]
    recent = at_once(split_item_steps(talk, budget, lambda _: 1))[1]
    memory = Memory(tuple(item for item in items if getattr(item, "role", "") == "system"), summary, recent)
    return Compaction(id="cmp_1", encrypted_content=SEALED.memories.seal(memory))


def messages_of(*stretches: tuple[InputItem, ...]) -> list[ChatMessage]:
    history = History(stretches, (), frozenset(range(len(stretches))))
    plan = replace(PLAN, history=history, sealed=SEALED)
    return chat_request(run_of(plan), plan).messages


def check_pairs(found: Sequence[ChatMessage]) -> None:
    """Each result stands behind the message that calls for it, and each call has one."""
    waiting: list[str] = []
    for message in found:
        if message.role == "tool":
            assert message.tool_call_id in waiting
            waiting.remove(str(message.tool_call_id))
            continue
        assert not waiting
        waiting = [call.id for call in message.tool_calls or ()]
    assert not waiting


@STEADY
@given(_turns, _turns, st.integers(0, 8), st.sampled_from(["", "They met."]), st.booleans())
def test_after_a_compaction_no_call_and_no_result_stands_alone(
    before: tuple[InputItem, ...], after: tuple[InputItem, ...], budget: int, summary: str, is_left_away: bool
) -> None:
    item = compacted(before, budget, summary)
    found = messages_of((item, *after) if is_left_away else (*before, item, *after))
    check_pairs(found)
    assert sum("They met." in str(message.content) for message in found) == bool(summary)


@STEADY
@given(_turns, _turns, st.integers(0, 8))
def test_whether_what_came_before_is_sent_or_not_the_model_hears_the_same(
    before: tuple[InputItem, ...], after: tuple[InputItem, ...], budget: int
) -> None:
    item = compacted(before, budget, "They met.")
    assert messages_of((item, *after)) == messages_of((*before, item, *after)) == messages_of(before, (item, *after))


# ---- the loop ----

_answers = st.lists(
    st.one_of(
        st.just(answer(call("weather", city="Rome"), usage=tokens(5, 5))),
        st.just(answer(call("weather", city="Rome"), call("weather", city="Oslo"))),
    ),
    max_size=3,
)
_sizes = st.lists(st.sampled_from([10, 5000]), min_size=8, max_size=8)


class Model(ScriptedProvider):
    """Answers by how many turns there were, and sums up when it is asked to: so it can be asked anew at any point."""

    def __init__(self, script: Sequence[Answer], sizes: Sequence[int], turns: int = 0) -> None:
        closing = [answer(say("That is all.")) for _ in range(8)]
        super().__init__(*[list(each) for each in (*script, *closing)][turns:])
        self._sizes, self._turns = sizes, turns

    def infer(self, request: ChatRequest) -> Any:
        if "You keep the memory" in str(request.messages[0].content):
            self._answers.insert(0, list(answer(say("They met."), usage=tokens(7, 3))))
        else:
            self._turns += 1
        check_pairs(request.messages)
        return super().infer(request)

    async def count(self, request: ChatRequest) -> int | None:
        return self._sizes[self._turns]


@tool(idempotent=True)
async def weather(city: str) -> str:
    return f"sunny in {city}"


def process(log: Log, model: Model) -> Watched:
    return engine_on(log, model, LocalExecutor(weather))


def question() -> CreateRequest:
    fields = {"tools": [WEATHER], "context_management": [threshold(40)], "stream": True}
    return ask([*TALK, {"role": "user", "content": "Warm in Rome?"}], **fields)


async def recorded(script: Sequence[Answer], sizes: Sequence[int]) -> tuple[Response, list[EventRecord]]:
    """A whole run, and its records."""
    async with process(log := Log(), Model(script, sizes)) as engine:
        response_id = await begin(engine, question())
        return await engine.ended(response_id), await records_of(log, response_id, follow=False)


@STEADY
@given(_answers, _sizes, st.data())
@jumping_time
async def test_a_run_that_compacts_can_be_picked_up_at_any_point(
    script: list[Answer], sizes: list[int], data: st.DataObject
) -> None:
    whole, records = await recorded(script, sizes)
    at = data.draw(st.integers(1, len(records) - 1), label="batches recorded")
    async with process(log := Log(), Model(script, sizes)) as first:
        response_id = await begin(first, question(), dies_at=at)
        assert log.died.is_set()
        events = events_of(await records_of(log, response_id, follow=False))
        turns = sum(isinstance(event, TurnEnded) for event in events)
        async with process(log, Model(script, sizes, turns)) as second:
            found = await second.ended(response_id)
    assert finished(found) == finished(whole)
    assert found.usage == whole.usage


def finished(response: Response) -> list[str]:
    return [
        kind
        for kind, item in zip(kinds(response), shape_of(response)["output"], strict=True)
        if item["status"] != "incomplete"
    ]


@STEADY
@given(_answers, _sizes)
@jumping_time
async def test_the_response_is_the_fold_of_its_events_and_is_compacted_once_for_each_turn(
    script: list[Answer], sizes: list[int]
) -> None:
    response, records = await recorded(script, sizes)
    begun, *events = events_of(records)
    assert isinstance(begun, ResponseCreated)
    assert fold(Run(begun.response), [begun, *events]).response == response
    turns = len(script) + 1
    assert kinds(response).count("compaction") == sum(size == 5000 for size in sizes[:turns])
