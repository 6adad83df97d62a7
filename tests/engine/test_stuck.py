"""Responses that get nowhere: turns that repeat each other, and turns of nothing but errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from antwort import Engine, EngineSettings
from antwort.api.items import InputImage
from antwort.api.responses import Response
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, check_frames, say
from antwort.tools.base import ToolCall, ToolContext, ToolResult
from antwort.tools.local import LocalExecutor
from antwort.tools.toolset import Toolset
from engine_kit import CLOCK, SERVER, ask, engine_of, function_calls, outputs, replies, sent_messages, stream, text_of
from serving import RESPONSES, serving

LOOK = {"type": "function", "name": "look"}
ANSWERED = answer(say("Done."))


class Course(msgspec.Struct):
    """How a response went."""

    reason: str
    """Why it was stopped; empty where the model came to its answer."""
    asked: int
    """How often the model was asked."""
    told: list[int]
    """After how many turns the model was told that it gets nowhere."""


async def look(at: str) -> str:
    """The same place always looks the same; at a small letter there is nothing to see."""
    if at.islower():
        raise LookupError(f"Nothing at {at}.")
    return f"{at} is calm."


def turns(text: str) -> list[Answer]:
    """`AB A x`: a turn that looks at A and B side by side, one that looks at A, and one that fails at x."""
    return [answer(*(call("look", at=each) for each in turn)) for turn in text.split()]


async def course(script: Iterable[Answer], **settings: Any) -> Course:
    provider = ScriptedProvider(*script, ANSWERED)
    limits = {"max_turns": 100, "stuck_limit": 5, **settings}
    async with engine_of(provider, LocalExecutor(look), **limits) as engine:
        response = (await stream(engine, ask(tools=[LOOK]))).response
    return course_of(response, provider)


def course_of(response: Response, provider: ScriptedProvider) -> Course:
    told = [at for at, asked in enumerate(provider.requests) if "Note of the server" in str(sent_messages(asked))]
    reason = "" if response.incomplete_details is None else response.incomplete_details.reason
    assert response.status == ("incomplete" if reason else "completed")
    return Course(reason, len(provider.requests), told)


@pytest.mark.proves("RULING-18")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A A", []),
        ("A A A", [3]),
        ("A A A A", [3, 4]),
        ("A A A B", [3]),
        ("A A A B A A", [3]),
        ("A A A B A A A", [3, 7]),
        ("AAAA A", []),  # side by side is one turn
        ("AAAA AAAA AAAA", [3]),
        ("AB AB AB", [3]),
        ("AB BA AB", [3]),  # in whatever order
        ("AB AB A", []),
        ("AB AB ABB", []),
        ("A B A B A B", []),  # each turn brings something else than the one before
        ("a b", []),
        ("a b c", [3]),
        ("ab c def g", [3, 4]),
        ("a b cA d", []),
        ("a b D e f", []),
        ("A A b c d", [5]),
    ],
)
async def test_the_model_is_told_after_three_such_turns_in_a_row(text: str, told: list[int]) -> None:
    script = turns(text)
    assert await course(script) == Course("", len(script) + 1, told)


@pytest.mark.proves("RULING-18")
@pytest.mark.parametrize("text", ["A A A A A A", "AB BA AB AB BA A", "a b c d e f", "B A A A A A A"])
async def test_the_response_ends_when_there_are_as_many_as_the_limit(text: str) -> None:
    ends = 6 if text.startswith("B") else 5
    assert await course(turns(text)) == Course("stuck", ends, [*range(ends - 2, ends)])


@pytest.mark.proves("RULING-18")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"stuck_limit": 0}, Course("", 13, [*range(3, 13)])),
        ({"stuck_after": None}, Course("", 13, [])),
        ({"stuck_after": None, "stuck_limit": 0}, Course("", 13, [])),
        ({"stuck_after": 2}, Course("stuck", 5, [2, 3, 4])),
        ({"stuck_after": 6}, Course("stuck", 5, [])),
        ({"stuck_limit": 12}, Course("stuck", 12, [*range(3, 12)])),
        ({"stuck_limit": 1}, Course("stuck", 2, [])),  # one turn alone repeats nothing
        # the turn limit is the reason where it comes first, or at the same time
        ({"max_turns": 4}, Course("max_turns", 4, [3])),
        ({"max_turns": 5}, Course("max_turns", 5, [3, 4])),
        ({"max_turns": 6}, Course("stuck", 5, [3, 4])),
    ],
)
async def test_both_numbers_are_settings(settings: dict[str, Any], expected: Course) -> None:
    assert await course(turns("A " * 12), **settings) == expected


@pytest.mark.proves("RULING-18")
@pytest.mark.parametrize(("more", "reason"), [({}, "max_turns"), ({"max_turns": 20}, "stuck")])
async def test_by_default_ten_equal_turns_are_the_end_and_the_turn_limit_is_the_reason(
    more: dict[str, Any], reason: str
) -> None:
    provider = ScriptedProvider(*turns("A " * 12))
    async with Engine(provider, executors=[LocalExecutor(look)], settings=EngineSettings(**more)) as engine:
        response = await engine.create(ask(tools=[LOOK]))
    assert course_of(response, provider) == Course(reason, 10, [*range(3, 10)])
    assert {item.output for item in outputs(response)} == {"A is calm."}  # what the model is told is in no item


@pytest.mark.proves("RULING-18")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_job_that_is_polled_until_it_is_done_is_ordinary(is_streamed: bool) -> None:
    said = iter(["pending"] * 8 + ["ready"])

    async def status(asked: ToolCall, context: ToolContext) -> str:
        return next(said)

    provider = ScriptedProvider(*[answer(call("status"))] * 9, answer(say("It is ready.")))
    body = {"model": "scripted", "input": "Wait for it.", "tools": [SERVER], "stream": is_streamed}
    async with serving(engine_of(provider, ToolServerFake("depot", status=status))) as server:
        reply = await server.ask("POST", RESPONSES, body)
    response = check_frames(reply.body) if is_streamed else msgspec.json.decode(reply.body, type=Response)
    assert (response.status, text_of(response)) == ("completed", "It is ready.")


@pytest.mark.proves("RULING-18")
async def test_over_http_the_reason_is_stuck() -> None:
    provider = ScriptedProvider(*turns("A " * 9))
    body = {"model": "scripted", "input": "Look.", "tools": [LOOK]}
    async with serving(engine_of(provider, LocalExecutor(look), stuck_limit=4)) as server:
        response = (await server.ask("POST", RESPONSES, body)).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "stuck"})
    assert len(provider.requests) == 4


@pytest.mark.parametrize(
    ("text", "limit", "note"),
    [
        (
            "A A A",
            5,
            (
                "The last 3 turns made the same calls and got the same results. Unless you wait for a result to "
                "change, do something else, or answer with what you have. After 5 such turns in a row the response "
                "ends."
            ),
        ),
        (
            "a b c",
            0,
            "The last 3 turns have brought nothing but errors. Do something else, or answer with what you have.",
        ),
    ],
)
async def test_what_the_model_is_told(text: str, limit: int, note: str) -> None:
    provider = ScriptedProvider(*turns(text), ANSWERED)
    await engine_of(provider, LocalExecutor(look), stuck_limit=limit).create(ask(tools=[LOOK]))
    assert str(sent_messages(provider.requests[-1])[-1][1]).endswith(f"\n\n[Note of the server: {note}]")


@pytest.mark.parametrize("last", ["A", "a"])
async def test_with_a_final_answer_the_model_says_what_it_has_before_the_end(last: str) -> None:
    provider = ScriptedProvider(*turns(f"{last} " * 5), answer(say("Calm, I think.")))
    engine = engine_of(provider, LocalExecutor(look), final_answer=True, stuck_limit=5)
    response = await engine.create(ask(tools=[LOOK]))
    assert (course_of(response, provider).reason, text_of(response)) == ("stuck", "Calm, I think.")


# ---- which calls are equal ----

FIRST = '{"a": 1, "b": [true, null, "x"]}'


@pytest.mark.parametrize(
    ("arguments", "is_same"),
    [
        (FIRST, True),
        ('{"b":[true,null,"x"],"a":1}', True),
        ('{"b": [true, null, "\\u0078"], "a": 1.0}', True),
        ('{"a": 1, "b": [1, null, "x"]}', False),
        ('{"a": true, "b": [true, null, "x"]}', False),
        ('{"a": "1", "b": [true, null, "x"]}', False),
        ('{"a": 1, "b": [null, true, "x"]}', False),
        ('{"a": 1, "b": {"true": null, "x": 1}}', False),
        ('{"a": 1, "b": [true, null, "x"]', False),
        ("", False),
    ],
)
async def test_arguments_are_the_same_when_they_say_the_same(arguments: str, is_same: bool) -> None:
    provider = ScriptedProvider(*[answer(call("stock", each)) for each in (FIRST, arguments, FIRST)], ANSWERED)
    response = await engine_of(provider, ToolServerFake("depot", stock=replies("3"))).create(ask(tools=[SERVER]))
    assert course_of(response, provider).told == ([3] if is_same else [])


async def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    deep, flat = "[" * 100_000, '{"a"'
    provider = ScriptedProvider(*[answer(call("look", each)) for each in (deep, deep, flat)], ANSWERED)
    response = await engine_of(provider, LocalExecutor(look)).create(ask(tools=[LOOK]))
    assert course_of(response, provider).told == [3], "all of them fail"


@pytest.mark.parametrize(
    "results",
    [
        ["1 %", "2 %", "3 %"],
        ["same", ToolResult("", "same", is_error=True), "same"],
        [(InputImage(image_url="data:a"),), (InputImage(image_url="data:b"),), (InputImage(image_url="data:a"),)],
    ],
    ids=["text", "error", "parts"],
)
@pytest.mark.parametrize("is_same", [True, False])
async def test_the_result_counts_in_text_in_parts_and_as_an_error(results: list[Any], is_same: bool) -> None:
    given = iter(results[:1] * 3 if is_same else results)

    async def stock(asked: ToolCall, context: ToolContext) -> ToolResult:
        result = next(given)
        return result if isinstance(result, ToolResult) else ToolResult(asked.id, result)

    provider = ScriptedProvider(*[answer(call("stock"))] * 3, ANSWERED)
    response = await engine_of(provider, ToolServerFake("depot", stock=stock)).create(ask(tools=[SERVER]))
    assert course_of(response, provider).told == ([3] if is_same else [])


async def test_the_tool_and_its_server_count() -> None:
    servers = [
        ToolServerFake(label, f"{label}_", stock=replies("3"), price=replies("3")) for label in ("depot", "shop")
    ]
    names = ["depot_stock", "shop_stock", "depot_price", "depot_stock"]
    provider = ScriptedProvider(*[answer(call(name)) for name in names], ANSWERED)
    tools = [{"type": "mcp", "server_label": label} for label in ("depot", "shop")]
    response = await engine_of(provider, *servers).create(ask(tools=tools))
    assert course_of(response, provider).told == []


async def test_a_call_of_an_earlier_response_that_is_run_first_belongs_to_no_turn() -> None:
    async def stock() -> str:
        return "3"

    tools = [{"type": "mcp", "server_label": "depot", "require_approval": "never"}, CLOCK]
    again = [answer(call("stock"))] * 3
    provider = ScriptedProvider(answer(call("stock"), call("clock")), *again, ANSWERED)
    async with engine_of(provider, Toolset("depot", stock)) as engine:
        paused = await engine.create(ask(tools=tools))
        (clock,) = function_calls(paused)
        told = {"type": "function_call_output", "call_id": clock.call_id, "output": "nine"}
        response = await engine.create(ask([told], tools=tools, previous_response_id=paused.id))
    assert course_of(response, provider) == Course("", 5, [4])
