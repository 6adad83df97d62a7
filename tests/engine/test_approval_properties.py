"""Whatever clients send of calls that wait for approval: the chat is one that a backend takes, what was denied or not
decided never runs, and what was approved runs once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.items import McpApprovalRequest
from antwort.api.responses import Response
from antwort.errors import AntwortError, Conflict, InvalidField
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from approval_kit import ONE_GUARDED, again, check_pairs, decision
from engine_kit import CLOCK, ask, engine_of, items_of

STEADY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CALL = "0" * 31
IDS = ("1", "2")


def request(each: str) -> dict[str, Any]:
    head = {"type": "mcp_approval_request", "id": f"mcpr_{CALL}{each}", "server_label": "depot"}
    return {**head, "name": "ship", "arguments": f'{{"box":"{each}"}}'}


def given_for(each: str, *, approve: bool) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{CALL}{each}", "approve": approve}


def run(each: str, *, is_named: bool, result: dict[str, Any]) -> dict[str, Any]:
    head = {"type": "mcp_call", "server_label": "depot", "name": "ship", "arguments": f'{{"box":"{each}"}}'}
    named = {"approval_request_id": f"mcpr_{CALL}{each}"} if is_named else {"id": f"mcp_{CALL}{each}_run"}
    return {**head, **named, **result}


each_id = st.sampled_from(IDS)
ITEMS = st.one_of(
    st.builds(request, each_id),
    st.builds(given_for, each_id, approve=st.booleans()),
    st.builds(run, each_id, is_named=st.booleans(), result=st.sampled_from([{"output": "x"}, {"error": "no"}, {}])),
    st.sampled_from(
        [
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": "Well."},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "noon"},
        ]
    ),
)


def counting() -> tuple[ToolServerFake, Counter[str]]:
    ran: Counter[str] = Counter()

    async def ship(each: ToolCall, context: ToolContext) -> str:
        ran[each.arguments] += 1
        return "shipped"

    async def lookup(each: ToolCall, context: ToolContext) -> str:
        return "found"

    return ToolServerFake("depot", ship=ship, lookup=lookup), ran


@STEADY
@given(st.lists(ITEMS, min_size=1, max_size=10))
async def test_any_history_is_a_chat_and_runs_only_what_was_approved_and_has_not_run(
    items: list[dict[str, Any]],
) -> None:
    server, ran = counting()
    provider = ScriptedProvider(answer(say("Done.")))
    with suppress(InvalidField, Conflict):
        await engine_of(provider, server).create(ask(items, tools=[ONE_GUARDED, CLOCK], store=False))
    check_pairs(provider)
    for each in IDS:
        is_approved = given_for(each, approve=True) in items and request(each) in items
        has_run = any(item.get("type") == "mcp_call" and item["arguments"] == f'{{"box":"{each}"}}' for item in items)
        assert ran[f'{{"box":"{each}"}}'] <= (is_approved and not has_run)


# ---- whole conversations ----

Turn = tuple[str, bool | None]
TURNS = st.lists(
    st.tuples(st.sampled_from(["chain", "branch", "replay"]), st.sampled_from([True, False, None])),
    min_size=1,
    max_size=6,
)


@STEADY
@given(turns=TURNS, asks=st.integers(1, 3))
async def test_however_a_conversation_goes_on_no_approved_call_runs_twice(turns: list[Turn], asks: int) -> None:
    server, ran = counting()
    words = [answer(say("Done.")) for _ in turns]
    boxes = [call("ship", box=str(number)) for number in range(asks)]
    provider = ScriptedProvider(answer(call("lookup"), *boxes), *words)
    engine = engine_of(provider, server)
    first = latest = await engine.create(ask(tools=[ONE_GUARDED]))
    said: list[Any] = [{"role": "user", "content": "Hello"}, *again(first)]
    decided: dict[str, bool] = {}
    refusals: set[str] = set()
    for way, approve in turns:
        given = _decisions(first, approve, decided)
        fields = {"chain": {"previous_response_id": latest.id}, "branch": {"previous_response_id": first.id}}
        text: list[Any] = [{"role": "user", "content": "And?"}]
        try:
            if way == "replay":
                response = await engine.create(ask([*said, *given, *text], tools=[ONE_GUARDED]))
                said += [*given, *text, *again(response)]
            else:
                response = await engine.create(ask([*given, *text], **fields[way]))
                latest = response if way == "chain" else latest
        except AntwortError as error:
            refusals.add(error.code)
    check_pairs(provider)
    assert refusals <= {"approval_decided", "duplicate_approval"}
    assert all(number == 1 for number in ran.values())
    denied = {item.arguments for item in items_of(first, McpApprovalRequest) if decided.get(item.id) is False}
    assert not denied & ran.keys()


def _decisions(first: Response, approve: bool | None, decided: dict[str, bool]) -> list[Any]:
    """What the client says in this turn; what it said first is what counts."""
    if approve is None:
        return []
    requests = items_of(first, McpApprovalRequest)
    for each in requests:
        decided.setdefault(each.id, approve)
    return [decision(each, approve=approve) for each in requests]
