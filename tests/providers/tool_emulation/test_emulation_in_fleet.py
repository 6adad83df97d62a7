"""Tool emulation inside a fleet: records of inferences, health, failover and token counts."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from antwort.api.wire import UNSET, replace
from antwort.errors import BackendCut, BackendRefused, BackendUnavailable
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    InferenceRecord,
    TextDelta,
)
from antwort.providers.fleet import Fleet, Member
from antwort.providers.tool_emulation.emulation import ToolCalling, ToolEmulation
from antwort.testing.scripted import Answer, ScriptedProvider, answer, call, say, tokens

REQUEST = ChatRequest(
    model="m",
    messages=[ChatMessage(role="user", content="Hi")],
    tools=[ChatTool(function=ChatToolFunction(name="now"))],
    stream=True,
)
REQUIRED = replace(REQUEST, tool_choice="required")
REFUSAL = BackendRefused("tools are not supported")
NOW = [TextDelta('{"calls": [{"name": "now", "arguments": {}}]}')]
NOW_PARSED: list[Delta] = [CallDelta(0, "now"), CallDelta(0, "", "{}")]


class Fixture:
    """A fleet of one backend whose tool calls are emulated."""

    def __init__(self, *answers: Answer, mode: ToolCalling = "auto") -> None:
        self.backend = ScriptedProvider(*answers, counts=lambda _: 12)
        self.records: list[InferenceRecord] = []
        self.member = Member(
            "b", self.backend, models=["m"], most=1, emulation=ToolEmulation(mode, self.backend.capabilities)
        )
        self.fleet = Fleet([self.member], on_inference=self.records.append)

    async def infer(self, request: ChatRequest) -> list[Delta]:
        return [delta async for batch in self.fleet.infer(request) for delta in batch]

    @property
    def outcomes(self) -> list[tuple[str, int | None]]:
        """The error and the tokens of each record."""
        return [(each.error, None if each.usage is None else each.usage.total_tokens) for each in self.records]


async def test_a_refused_request_and_the_constrained_one_are_recorded_each() -> None:
    fixture = Fixture([REFUSAL], answer(NOW, usage=tokens(3, 4)))
    assert await fixture.infer(REQUEST) == [*NOW_PARSED, Finished("tool_calls", tokens(3, 4))]
    assert fixture.outcomes == [(REFUSAL.code, None), ("", 7)]
    assert [record.first_delta_seconds is None for record in fixture.records] == [True, False]


async def test_both_answers_are_recorded_with_their_own_usage_when_a_required_call_is_asked_for_again() -> None:
    fixture = Fixture(answer(say("Words"), usage=tokens(1, 1)), answer(NOW, usage=tokens(3, 4)))
    assert (await fixture.infer(REQUIRED))[-1] == Finished("tool_calls", tokens(4, 5), is_sum=True)
    assert fixture.outcomes == [("", 2), ("", 7)]


async def test_an_answer_that_ends_inside_a_call_is_a_failure_whose_usage_is_recorded() -> None:
    cut = [TextDelta('{"calls": [{"name": "now", "arguments": {')]
    fixture = Fixture(answer(cut, finish="stop", usage=tokens(3, 4)), mode="constrained")
    with pytest.raises(BackendCut):
        await fixture.infer(REQUEST)
    assert fixture.outcomes == [("", 7)]


async def test_a_stopped_inference_is_recorded_once_as_cancelled() -> None:
    fixture = Fixture([REFUSAL], answer(NOW))
    async with aclosing(fixture.fleet.infer(REQUEST)) as batches:
        assert await anext(batches) == []
    assert [error for error, _ in fixture.outcomes] == [REFUSAL.code, "cancelled"]
    assert fixture.backend.under_way == 0


async def test_a_refusal_of_tools_that_is_worked_around_is_no_failure_of_the_backend() -> None:
    fixture = Fixture([REFUSAL], answer(NOW))
    await fixture.infer(REQUEST)
    assert (fixture.member.status.state, fixture.member.status.problem) == ("ok", None)
    assert fixture.member.slots is not None
    assert fixture.member.slots.take()


async def test_a_backend_that_is_lost_between_two_requests_fails_over() -> None:
    first, second = ScriptedProvider([REFUSAL], [BackendUnavailable("away")]), ScriptedProvider(answer(call("now")))
    fleet = Fleet(
        [
            Member("a", first, models=["m"], emulation=ToolEmulation("auto", first.capabilities)),
            Member("b", second, models=["m"]),
        ]
    )
    out = [delta async for batch in fleet.infer(REQUEST) for delta in batch]
    assert [delta.name for delta in out if isinstance(delta, CallDelta)] == ["now", ""]
    assert [request.tools is UNSET for request in first.requests] == [False, True]
    assert [request.tools for request in second.requests] == [REQUEST.tools]


@pytest.mark.parametrize(("mode", "is_rewritten"), [("constrained", True), ("auto", False)])
async def test_tokens_are_counted_of_the_request_as_it_would_be_sent(mode: ToolCalling, is_rewritten: bool) -> None:
    fixture = Fixture(mode=mode)
    assert await fixture.fleet.count(REQUEST) == 12
    assert [request.tools is UNSET for request in fixture.backend.counted] == [is_rewritten]


async def test_an_empty_batch_says_that_the_backend_has_answered_while_its_answer_is_held_back() -> None:
    fixture = Fixture(answer(say("No call.")), answer(NOW))
    batches = [batch async for batch in fixture.fleet.infer(REQUIRED)]
    assert batches[0] == []
    assert [delta for batch in batches for delta in batch][:2] == NOW_PARSED


async def test_a_slot_is_given_back_where_an_attempt_cannot_begin() -> None:
    def broken(_: str) -> Capabilities:
        raise RuntimeError("broken")

    member = Member("b", ScriptedProvider(), models=["m"], most=1, emulation=ToolEmulation("auto", broken))
    request = replace(REQUEST, tool_choice={"type": "allowed_tools", "tools": []})
    for _ in range(2):
        with pytest.raises(RuntimeError):
            _ = [batch async for batch in Fleet([member]).infer(request)]
    assert member.slots is not None
    assert member.slots.take()
