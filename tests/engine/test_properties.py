"""Random scripts through the loop: texts, reasoning, parallel calls, failures, cancelling and resuming anywhere.

Every stream passes the grammar checker (tests/conftest.py holds it against all of them, too).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.events import MARKS, Batch, CallBegun
from antwort.api.items import CustomToolCall, FunctionCall, FunctionCallOutput, McpCall
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.api.wire import UNSET
from antwort.engine.engine import Engine
from antwort.engine.loop.fold import Run, fold
from antwort.engine.loop.steps import open_calls, waiting_calls
from antwort.engine.plan import Plan
from antwort.errors import BackendError, Cancelled
from antwort.identity import ANONYMOUS
from antwort.testing import (
    Answer,
    Piece,
    ScriptedProvider,
    ToolServerFake,
    answer,
    call,
    refuse,
    say,
    think,
    tokens,
)
from antwort.tools.base import ToolCall, ToolContext
from antwort.tools.local import LocalExecutor
from engine_kit import CLOCK, SERVER, WEATHER, ask, engine_of, name_of, shape_of, stream
from live_kit import checked, durable, ended, events_of, live_run, picked_up, played, resumed

BANNED = {"type": "function", "name": "banned"}
DIAL = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
EDITOR = {
    "type": "namespace",
    "name": "editor",
    "tools": [{"type": "custom", "name": "patch"}, {"type": "function", "name": "open"}],
}
TOOLS = [WEATHER, CLOCK, BANNED, SERVER, DIAL, EDITOR]
LIST = ["weather", "clock", "depot"]
ALLOWED = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [
        {"type": "function", "name": "weather"},
        {"type": "function", "name": "clock"},
        {"type": "mcp", "server_label": "depot"},
    ],
}


async def weather(city: str) -> str:
    if city == "Atlantis":
        raise LookupError("There is no such city.")
    return f"sunny in {city}"


async def lookup(asked: ToolCall, context: ToolContext) -> str:
    await asyncio.sleep(0)
    if "broken" in asked.arguments:
        raise RuntimeError("The depot is closed.")
    return f"found {asked.arguments}"


def executors() -> list[Any]:
    return [LocalExecutor(weather), ToolServerFake("depot", prefix="d_", lookup=lookup)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of tool failures are made here on purpose."""
    log = logging.getLogger("antwort")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


# ---- scripts ----

words = st.text(st.sampled_from("abc é\n"), min_size=1, max_size=12)
calls = st.one_of(
    st.builds(lambda city: call("weather", city=city), st.sampled_from(["Paris", "Atlantis"])),
    st.builds(lambda key: call("d_lookup", key=key), st.sampled_from(["k", "broken"])),
    st.builds(lambda: call("weather", '{"city')),
    st.builds(lambda: call("banned")),
    st.builds(lambda: call("nobody")),
)
client_calls = st.one_of(
    st.builds(lambda: call("clock")),
    st.builds(lambda: call("editor__open")),
    st.builds(lambda text: call("editor__patch", text), st.sampled_from(['{"input": "a\\nb"}', "raw", '{"input": "c'])),
)
free_form_calls = st.builds(lambda text: call("dial", input=text), st.sampled_from(["1", "one"]))
spoken = st.one_of(st.builds(say, words), st.builds(think, words), st.builds(refuse, words))


@st.composite
def answers(draw: st.DrawFn, *, fails: bool = True) -> Answer:
    parts = draw(st.lists(st.one_of(spoken, calls, client_calls, free_form_calls), max_size=4))
    ends: list[Any] = ["stop", "tool_calls", "length", "content_filter"]
    end = draw(st.sampled_from([*ends, "failure"] if fails else ends[:2]))
    usage = draw(st.sampled_from([None, tokens(3, 2)]))
    if end == "failure":
        return answer([[]], *parts, BackendError("The backend failed."))  # after its headers
    return merged(draw, answer(*parts, finish=end, usage=usage))


def merged(draw: st.DrawFn, pieces: Answer) -> list[Piece]:
    """Some deltas come together in one read."""
    together: list[Piece] = []
    for piece in pieces:
        last = together[-1] if together else None
        if isinstance(last, list) and not isinstance(piece, list | asyncio.Event | Exception) and draw(st.booleans()):
            last.append(piece)
        elif isinstance(piece, list | asyncio.Event | Exception):
            together.append(piece)
        else:
            together.append([piece])
    return together


scripts = st.lists(answers(), max_size=4)
choices = st.sampled_from(["auto", "required", "none", ALLOWED, {"type": "function", "name": "weather"}])
fields = st.fixed_dictionaries(
    {"tool_choice": choices},
    optional={
        "max_tool_calls": st.integers(1, 3),
        "parallel_tool_calls": st.booleans(),
        "reasoning": st.just({"summary": "auto"}),
        "max_output_tokens": st.integers(1, 6),
    },
)
knobs = st.fixed_dictionaries(
    {},
    optional={
        "mixed_turns": st.sampled_from(["pause", "execute"]),
        "requires_action": st.sampled_from(["status", "event", "completed"]),
        "refused_calls": st.sampled_from(["mcp_call", "function_call"]),
        "strict": st.booleans(),
        "max_turns": st.integers(1, 4),
    },
).filter(lambda knob: not (knob.get("strict") and knob.get("requires_action") == "event"))

CLOSING = answer(say("That is all."))


def provider_of(script: list[Answer]) -> ScriptedProvider:
    return ScriptedProvider(*[list(one) for one in script], *[list(CLOSING) for _ in range(12)])


def copy_of(script: list[Answer]) -> list[Answer]:
    return [[list(piece) if isinstance(piece, list) else piece for piece in one] for one in script]


# ---- what always holds ----


def check_calls(response: Response) -> None:
    """Each call has at most one result; a response that completed owes nothing but to the client."""
    results = [item.call_id for item in response.output if isinstance(item, FunctionCallOutput)]
    assert len(results) == len(set(results))
    for item in response.output:
        if isinstance(item, McpCall):
            assert item.output is None or item.error is None
        if isinstance(item, FunctionCall) and item.status == "incomplete":
            assert item.call_id not in results
    check_inputs(response)


def check_inputs(response: Response) -> None:
    """Inputs show as the text that they are, under the names that the client knows."""
    for item in response.output:
        if isinstance(item, CustomToolCall):
            whole = ("1", "one") if item.name == "dial" else ("a\nb", "raw", "c")
            assert item.input in whole or item.status == "incomplete"
            assert item.namespace == (UNSET if item.name == "dial" else "editor")


def check_grammars(response: Response, wanted: dict[str, Any], knob: dict[str, Any]) -> None:
    """Where the model can be told, a wrong input is the client's only after it was told of one, beside another call of
    the client's, or in an answer that was cut.
    """
    is_told = wanted["tool_choice"] != "none" and not knob.get("strict") and "max_turns" not in knob
    if not is_told or knob.get("refused_calls") == "function_call":
        return
    told = False
    for item in response.output:
        told = told or (isinstance(item, McpCall) and item.name == "dial" and item.error is not None)
        if isinstance(item, CustomToolCall) and item.input == "one" and item.status == "completed":
            assert told or is_beside_another(item, response) or response.status == "incomplete"


def is_beside_another(call: CustomToolCall, response: Response) -> bool:
    """A turn that leaves the client something to run is the last one."""
    others = [item for item in response.output if isinstance(item, FunctionCall | CustomToolCall) and item is not call]
    return any(
        item.name in ("clock", "open", "patch", "banned") or getattr(item, "input", "") == "1" for item in others
    )


@pytest.mark.proves("FR-024", "FR-027", "CP-024", "CP-005")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts, fields, knobs)
async def test_any_script_gives_a_grammatical_stream_and_the_same_response_unstreamed(
    script: list[Answer], wanted: dict[str, Any], knob: dict[str, Any]
) -> None:
    request = ask(tools=TOOLS, **wanted)
    streamed = await stream(engine_of(provider_of(copy_of(script)), *executors(), **knob), request)
    whole = await engine_of(provider_of(copy_of(script)), *executors(), **knob).create(request)
    assert shape_of(streamed.response) == shape_of(whole)
    assert streamed.response.status in FINAL
    check_calls(whole)
    check_grammars(whole, wanted, knob)


@pytest.mark.proves("EN-040", "RULING-11")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts, fields, st.integers(0, 40))
async def test_a_run_can_be_cancelled_at_any_point(script: list[Answer], wanted: dict[str, Any], after: int) -> None:
    provider = provider_of(copy_of(script))
    engine = engine_of(provider, *executors(), buffer_events=1)
    run = await engine.start(ask(tools=TOOLS, stream=True, **wanted))
    seen = 0
    while seen < after and (batches := await run.read()):
        seen += sum(len(batch.events) for batch in batches)
    cancelled = await engine.cancel(ANONYMOUS, run.response_id)
    while await run.read():
        pass
    assert cancelled.status in FINAL
    assert await engine.retrieve(ANONYMOUS, run.response_id) == cancelled
    assert provider.under_way == 0
    check_calls(cancelled)


# ---- resuming ----


async def plan_of(engine: Engine, wanted: dict[str, Any]) -> Plan:
    return await engine.plan(ask(tools=TOOLS, stream=True, **wanted), ANONYMOUS)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answers(fails=False), max_size=3), fields, knobs, st.data())
async def test_a_run_can_be_picked_up_at_any_point_and_comes_to_the_same_end(
    script: list[Answer], wanted: dict[str, Any], knob: dict[str, Any], data: st.DataObject
) -> None:
    plan = durable(await plan_of(engine_of(provider_of([]), *executors(), **knob), wanted))
    whole = await played(plan, provider_of(copy_of(script)))
    at = data.draw(st.integers(0, len(whole.batches) - 1), label="batches recorded")
    # No call counts as begun: one that is not repeated ends differently.
    recorded = [event for event in events_of(whole.batches[:at]) if not isinstance(event, CallBegun)]
    before, _ = picked_up(plan, recorded)
    rest = await ended(resumed(plan, provider_of(copy_of(script)[before.turns :]), recorded))
    _check_open_calls(before, rest.batches, plan)
    response = checked([*recorded, *rest.events])
    assert name_of(rest.events[-1]) == name_of(whole.events[-1])
    assert _finished(response) == _finished(whole.response)


def _finished(response: Response) -> list[Any]:
    """The answers and results: what was begun twice may have left reasoning and texts of the first try."""
    kept = [item for item in shape_of(response)["output"] if item["type"] not in ("reasoning", "message")]
    for item in kept:
        item.pop("call_id", None)
    return [item for item in kept if item["status"] != "incomplete"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answers(fails=False), max_size=3), fields)
async def test_the_response_is_the_fold_of_its_events(script: list[Answer], wanted: dict[str, Any]) -> None:
    plan = await plan_of(engine_of(provider_of([]), *executors()), wanted)
    live = live_run(plan, provider_of(copy_of(script)))
    recorded = await ended(live)
    run = fold(Run(plan.response), recorded.events)
    assert run == live.run
    assert run.response == recorded.response


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answers(fails=False), max_size=3), fields, knobs)
async def test_the_open_calls_of_the_fold_are_those_that_the_items_show(
    script: list[Answer], wanted: dict[str, Any], knob: dict[str, Any]
) -> None:
    """Between two steps; each ends with a mark."""
    plan = await plan_of(engine_of(provider_of([]), *executors(), **knob), wanted)
    recorded = await played(plan, provider_of(copy_of(script)))
    _check_open_calls(Run(plan.response), recorded.batches, plan)


def _check_open_calls(run: Run, batches: list[Batch], plan: Plan) -> None:
    for batch in batches:
        run = fold(run, batch)
        if isinstance(batch[-1], MARKS):
            _check_open_calls_of(run, plan)


def _check_open_calls_of(run: Run, plan: Plan) -> None:
    if not run.turns:
        assert not run.waiting
        assert not run.has_called
        return
    last = run.output[(0, *run.turn_ends)[-2] : run.turn_ends[-1]]
    assert waiting_calls(run, plan.toolbox) == open_calls(run, plan.toolbox)
    assert run.has_called == any(isinstance(item, FunctionCall | CustomToolCall | McpCall) for item in last)


async def test_a_signal_set_before_the_run_starts_ends_it_at_once() -> None:
    plan = await plan_of(engine_of(provider_of([]), *executors()), {})
    live = live_run(plan, provider_of([]))
    live.stop(Cancelled())
    assert (await ended(live)).response.status == "cancelled"
