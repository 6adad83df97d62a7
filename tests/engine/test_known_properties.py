"""Whatever clients send again of what is there, in whatever form and order: the model hears each call once, with its
one result, and a conversation holds each item once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import FunctionCall
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.providers.base import CallDelta, ChatRequest, Delta, Finished, TextDelta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake
from antwort.tools.base import ToolCall, ToolContext
from conversation_kit import begun, said, user
from engine_kit import CLOCK, SERVER, ask, function_calls, sent
from plan_kit import STEADY

Plain: TypeAlias = dict[str, Any]
TOOLS = [SERVER, CLOCK]
FORMS = ("whole", "no id", "no status", "nulls", "bare", "rewritten", "reference")
DROPPED = {"no id": ("id",), "no status": ("status",), "bare": ("output", "error", "call_id")}


class Again(msgspec.Struct, frozen=True):
    """One item that is there already, sent once more."""

    which: int
    form: str
    at: int
    """Where among what is new."""


class Turn(msgspec.Struct, frozen=True):
    calls: tuple[str, ...]
    """What the model asks for; without any, it ends in words."""
    again: tuple[Again, ...]
    is_asked: bool
    """Whether the user says something, too."""
    is_steered: bool = False
    """Whether the user says it before the results."""


AGAIN = st.builds(Again, st.integers(0, 40), st.sampled_from(FORMS), st.integers(0, 10))
TURN = st.builds(
    Turn,
    st.lists(st.sampled_from(["clock", "stock"]), max_size=3).map(tuple),
    st.lists(AGAIN, max_size=6).map(tuple),
    st.booleans(),
    st.booleans(),
)


class Asking(ScriptedProvider):
    """Makes the calls of the turn, once; hears no result twice, and none without its call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: tuple[str, ...] = ()

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        check(sent(request)["messages"])
        calls, self.calls = self.calls, ()
        deltas = [CallDelta(at, name=name, arguments="{}") for at, name in enumerate(calls)]
        yield [*deltas, *([] if deltas else [TextDelta("Well.")]), Finished("tool_calls" if deltas else "stop")]


def check(messages: list[Plain]) -> None:
    due: list[str] = []
    calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0), "each result behind its call, in the order of the calls"
            assert message["content"].startswith(("noon", "3 left")), "and it is what the call came to"
            continue
        assert not due, "no call without a result"
        due = [each["id"] for each in message.get("tool_calls", ())]
        calls += due
    assert not due
    assert len(calls) == len({*calls}), "no call twice"


class Client:
    """Answers its calls, and sends again whatever the turns say."""

    def __init__(self, is_conversation: bool) -> None:
        self.provider, self.store = Asking(), MemoryStore()
        self.runs: Counter[str] = Counter()
        self.engine = Engine(self.provider, store=self.store, executors=[ToolServerFake("depot", stock=self._stock)])
        self.is_conversation = is_conversation
        self.seen: list[Plain] = []
        """All the items that it was shown or gave an id, as they are on record."""
        self.due: list[FunctionCall] = []

    async def _stock(self, call: ToolCall, context: ToolContext) -> str:
        self.runs[call.id] += 1
        return "3 left"

    async def play(self, turns: list[Turn]) -> None:
        async with self.engine:
            fields = {"conversation": await begun(self.engine)} if self.is_conversation else {}
            for number, turn in enumerate(turns):
                response = await self._take(number, turn, fields)
                if not self.is_conversation:
                    fields = {"previous_response_id": response.id}
            assert max(self.runs.values(), default=1) == 1
            if self.is_conversation:
                held = [to_plain(item) for item in await said(self.store, fields["conversation"])]
                listed = [item["id"] for item in self.seen if item["type"] == "mcp_list_tools"]
                there = [item["id"] for item in self.seen if item["id"] not in listed[1:]]
                assert [item["id"] for item in held] == there, "each of them once"

    async def _take(self, number: int, turn: Turn, fields: Plain) -> Response:
        new: list[Plain] = [
            {"type": "function_call_output", "id": f"fco_{call.call_id}", "call_id": call.call_id, "output": "noon"}
            for call in self.due
        ]
        if turn.is_asked or not new:
            new.insert(0 if turn.is_steered else len(new), {**user("And?"), "id": f"msg_{number}"})
        items = [*new]
        for again in turn.again if self.seen else ():
            at = again.at % (len(items) + 1)
            items[at:at] = self._with_answer(self._sent_again(again))
        self.provider.calls = turn.calls
        response = await self.engine.create(ask(items, tools=TOOLS, **fields))
        self.due = function_calls(response)
        self.seen += [*new, *(to_plain(item) for item in response.output)]
        return response

    def _with_answer(self, item: Plain) -> list[Plain]:
        """What the user said comes back with something of the model's behind it: alone, it would be said anew."""
        if item.get("role") != "user":
            return [item]
        behind = self.seen[[each["id"] for each in self.seen].index(item["id"]) :]
        models = (each for each in behind if each.get("role") == "assistant" or each["type"].endswith("_call"))
        return [item, next(models)]

    def _sent_again(self, again: Again) -> Plain:
        known = self.seen if self.is_conversation else [item for item in self.seen if item.get("role") != "user"]
        item = known[again.which % len(known)]
        if again.form == "reference":
            return {"type": "item_reference", "id": item["id"]}
        has_call_id = "call_id" in item and item["type"] in ("function_call", "mcp_call", "function_call_output")
        if again.form == "no id" and not has_call_id:
            return item  # nothing would tell what it is
        if again.form == "bare" and item["type"] != "mcp_call":
            return item
        if again.form == "nulls":
            return {**item, "namespace": None, "created_by": None, "status": None}
        if again.form == "rewritten" and "arguments" in item:
            return {**item, "arguments": json.dumps(json.loads(item["arguments"]), indent=1)}
        return {key: value for key, value in item.items() if key not in DROPPED.get(again.form, ())}


@pytest.mark.parametrize("is_conversation", [True, False], ids=["conversation", "chain"])
@STEADY
@given(turns=st.lists(TURN, min_size=1, max_size=5))
def test_what_is_sent_again_is_heard_once(is_conversation: bool, turns: list[Turn]) -> None:
    asyncio.run(Client(is_conversation).play(turns))
