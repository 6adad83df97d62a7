"""What the chaos suite plays follows from a seed, and what its model says from the messages alone."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from chaos.faults import MANY, ONE, Conditions, plan_of
from chaos.followups import PLANS
from chaos.ledger import Line, executions
from chaos.model import chunks
from chaos.run import plan_of_pause, scene_of
from chaos.story import (
    TURNS,
    UNSAFE,
    Heard,
    Scene,
    Turn,
    answer,
    arguments_at,
    heard,
    last_words,
    opening,
    turn_of,
)

CONDITIONS = Conditions(MANY, 3, 300.0, 5.0, 4.0)


@given(some.integers(0, 10**6))
def test_the_same_seed_makes_the_same_plan(seed: int) -> None:
    assert plan_of(seed, CONDITIONS) == plan_of(seed, CONDITIONS)


@given(some.integers(0, 10**6))
def test_faults_come_one_after_the_other_and_hit_a_server_that_is_there(seed: int) -> None:
    plan = plan_of(seed, CONDITIONS)
    assert all(one.at + one.lasts < other.at for one, other in pairwise(plan))
    assert all(0 <= fault.server < CONDITIONS.servers for fault in plan)
    assert all(fault.at < CONDITIONS.seconds for fault in plan)


@given(some.integers(0, 10**6))
def test_every_kind_of_fault_comes(seed: int) -> None:
    assert {fault.kind for fault in plan_of(seed, CONDITIONS)} == set(MANY)
    assert {fault.kind for fault in plan_of(seed, CONDITIONS._replace(kinds=ONE, servers=1))} == set(ONE)


@given(some.integers(0, 10**6))
def test_a_process_stands_still_for_longer_than_its_lease(seed: int) -> None:
    assert all(fault.lasts > CONDITIONS.lease for fault in plan_of(seed, CONDITIONS) if fault.kind == "stop")


def play(number: int, scene: Scene = "story") -> list[Turn]:
    """A story as it is told, each turn with all that came before."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening(number, scene)}]
    told: list[Turn] = []
    while not told or told[-1].calls:
        told.append(answer(heard(messages)))
        calls = [
            {"id": call.place, "function": {"name": call.kind, "arguments": arguments_at(call.place)}}
            for call in told[-1].calls
        ]
        messages.append({"role": "assistant", "content": "".join(told[-1].words), "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
    return told


@pytest.mark.parametrize("number", range(40))
def test_a_story_has_five_turns_with_calls_and_an_end(number: int) -> None:
    assert play(number) == [*(turn_of(number, at) for at in range(TURNS["story"])), Turn(last_words(number), ())]


@pytest.mark.parametrize("number", range(40))
def test_each_story_pays_and_no_place_comes_twice(number: int) -> None:
    calls = [call for turn in play(number) for call in turn.calls]
    assert any(call.kind == "pay" for call in calls)
    assert len({call.place for call in calls}) == len(calls)


@pytest.mark.parametrize("number", range(40))
def test_a_loop_has_three_turns_each_with_one_call_that_must_not_be_repeated(number: int) -> None:
    *turns, end = play(number, "loop")
    assert end == Turn(last_words(number), ())
    assert [sum(call.kind in UNSAFE for call in turn.calls) for turn in turns] == [1, 1, 1]


@pytest.mark.parametrize("number", range(40))
def test_a_pause_has_one_turn_with_calls_of_the_client_of_a_function_and_of_a_tool_server(number: int) -> None:
    turn, end = play(number, "pause")
    assert end == Turn(last_words(number), ())
    assert {"ask", "order", "pay"} <= {call.kind for call in turn.calls}


def test_forty_stories_have_all_scenes_and_fifty_have_all_plans_for_pauses() -> None:
    scenes = Counter(map(scene_of, range(40)))
    assert scenes == {"story": 24, "loop": 8, "pause": 8}
    assert {plan_of_pause(3, number) for number in range(50) if scene_of(number) == "pause"} == set(PLANS)


def test_the_model_hears_which_story_it_is_and_what_calls_came_to() -> None:
    asked = {"id": "1", "function": {"name": "pay", "arguments": arguments_at("7.0.0")}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": opening(7, "loop")},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "run_1"}]},
        {"role": "user", "content": "Go on."},
    ]
    assert heard(messages) == Heard("loop", 7, frozenset({"7.0.0"}), {"7.0.0": "run_1"})


def test_calls_that_were_asked_for_are_not_asked_for_again() -> None:
    number = next(n for n in range(100) if len(turn_of(n, 0).calls) > 1)
    first, *rest = turn_of(number, 0).calls
    asked = {"id": "1", "function": {"name": first.kind, "arguments": arguments_at(first.place)}}
    cut: list[dict[str, Any]] = [
        {"role": "user", "content": opening(number)},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    assert answer(heard(cut)).calls == tuple(rest)


def test_the_pieces_of_an_answer_are_its_turn() -> None:
    turn = turn_of(1, 0)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(turn)]
    assert tuple(delta["content"] for delta in deltas if "content" in delta) == turn.words
    arguments = [
        call["function"]["arguments"]
        for delta in deltas
        for call in delta.get("tool_calls", ())
        if call["function"]["arguments"]
    ]
    assert [json.loads(each)["place"] for each in arguments] == [call.place for call in turn.calls]


def test_a_call_that_was_broken_off_has_no_end() -> None:
    begun = Line("begun", "run_1", "pay", "1.0.0", "call_1", "0.1", 5.0)
    other = Line("begun", "run_2", "put", "1.0.1", "call_2", "0.1", 6.0)
    cancelled = Line("cancelled", "run_1", "pay", "1.0.0", "call_1", "0.1", 7.0)
    ended = Line("ended", "run_2", "put", "1.0.1", "call_2", "0.1", 8.0)
    found = executions([begun, other, cancelled, ended])
    assert [(each.run, each.begun, each.ended) for each in found] == [("run_1", 5.0, None), ("run_2", 6.0, 8.0)]
