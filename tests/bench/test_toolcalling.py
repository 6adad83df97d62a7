"""The tool-calling benchmark, without a model: its data is what it claims to be, and its judge is judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import jsonschema_rs
import pytest
from toolcalling.data import HALVES, KINDS, Expected, Question, load_questions, load_tools
from toolcalling.forms import Form, read
from toolcalling.judge import Call, Judge, Verdict
from toolcalling.measure import Asked, score, table
from toolcalling.modes import Reply
from toolcalling.run import contenders
from toolcalling.setting import ADAPTER
from toolcalling.through import calls_in
from toolcalling.variants import VARIANTS

from antwort.providers.base import CallDelta, Delta, Finished, TextDelta
from antwort.providers.tool_emulation.prompt import instructions
from antwort.providers.tool_emulation.tool_choice import AnswerOptions

TOOLS = load_tools()
NAMES = [tool.function.name for tool in TOOLS]
QUESTIONS = {half: load_questions(half) for half in HALVES}
ALL = [question for half in HALVES for question in QUESTIONS[half]]
JUDGE = Judge(TOOLS)


# ---- the data ----


def test_there_are_as_many_tools_and_questions_as_are_asked_for() -> None:
    kinds = Counter(question.kind for question in ALL)
    assert len(set(NAMES)) == len(NAMES) >= 14
    assert len(ALL) >= 160
    assert min(kinds["none"], kinds["two"]) >= 24


def test_every_tool_is_asked_for_in_both_halves_alike() -> None:
    dev, test = ({name: _asks(half).count(name) for name in NAMES} for half in HALVES)
    assert all(dev[name] + test[name] >= 8 for name in NAMES)
    assert all(abs(dev[name] - test[name]) <= 1 for name in NAMES)


def _asks(half: str) -> list[str]:
    return [name for question in QUESTIONS[half] for name in {call.name for call in question.calls}]


@pytest.mark.parametrize("kind", KINDS)
def test_both_halves_have_as_many_questions_of_a_kind(kind: str) -> None:
    dev, test = (sum(question.kind == kind for question in QUESTIONS[half]) for half in HALVES)
    assert dev == test


def test_no_question_is_asked_twice() -> None:
    asked = Counter(" ".join(question.ask.casefold().split()).strip("?!. ") for question in ALL)
    assert not [ask for ask, times in asked.items() if times > 1]


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_a_tool_is_described_with_each_of_its_parameters(tool: object) -> None:
    function = next(each.function for each in TOOLS if each is tool)
    assert isinstance(function.parameters, dict)
    assert jsonschema_rs.meta.is_valid(function.parameters)
    properties = function.parameters["properties"]
    assert function.description
    assert all(field["description"] for field in properties.values())
    assert set(function.parameters["required"]) <= set(properties)
    assert function.parameters["additionalProperties"] is False


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
def test_what_is_expected_is_allowed_by_the_tools_and_judged_right(question: Question) -> None:
    for calls in _right_answers(question):
        assert JUDGE.judge(question, calls) == Verdict(True, True, len(calls), len(calls))


def _right_answers(question: Question) -> Iterator[list[Call]]:
    """With all that may be there and with the least, each with the first and the last of what is listed."""
    for at in (0, -1):
        yield [_made(call, at, is_full=True) for call in question.calls]
        yield [_made(call, at, is_full=False) for call in question.calls]


def _made(call: Expected, at: int, *, is_full: bool) -> Call:
    given = {name.removesuffix("?"): value for name, value in call.arguments.items() if is_full or name[-1] != "?"}
    return Call(call.name, {name: _value(value, at) for name, value in given.items()})


def _value(wanted: object, at: int) -> object:
    one = wanted[at] if isinstance(wanted, list) else wanted
    return f"so {one[1:]} it is" if isinstance(one, str) and one[0] in "~*" else one


@pytest.mark.parametrize("question", [each for each in ALL if each.calls], ids=lambda question: question.id)
def test_no_answer_without_calls_or_with_a_call_too_many_is_right(question: Question) -> None:
    calls = next(_right_answers(question))
    assert not JUDGE.judge(question, []).tools
    assert not JUDGE.judge(question, [*calls, calls[0]]).tools


# ---- the judge ----

WEATHER = Question(
    "x", "Weather in Oslo?", (Expected("get_weather", {"city": ["Oslo", "Oslo, Norway"], "day?": "today"}),)
)
TIMER = Question("x", "Timer!", (Expected("set_timer", {"duration": 5, "unit": "minutes"}),))
MAIL = Question("x", "Mail!", (Expected("send_email", {"to": "Bo", "body": "~late", "subject?": "*"}),))
BOTH = Question("x", "Both!", (*WEATHER.calls, *TIMER.calls))
CHAT = Question("x", "Hi!", ())


def weather(**arguments: object) -> Call:
    return Call("get_weather", arguments)


def timer(**arguments: object) -> Call:
    return Call("set_timer", arguments)


def mail(**arguments: object) -> Call:
    return Call("send_email", arguments)


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        (CHAT, []),
        (WEATHER, [weather(city="Oslo")]),
        (WEATHER, [weather(city="  oslo. ")]),
        (WEATHER, [weather(city="OSLO, NORWAY", day="Today")]),
        (TIMER, [timer(duration=5.0, unit="minutes")]),
        (MAIL, [mail(to="bo", body="I will be LATE tonight.")]),
        (MAIL, [mail(to="Bo", body="late", subject="anything")]),
        (BOTH, [timer(duration=5, unit="minutes"), weather(city="Oslo")]),
    ],
)
def test_what_is_said_in_other_words_or_another_order_is_right(question: Question, calls: list[Call]) -> None:
    assert JUDGE.judge(question, calls) == Verdict(True, True, len(calls), len(calls))


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        (WEATHER, [weather(city="Bergen")]),
        (WEATHER, [weather(city="Oslo", day="Monday")]),
        (TIMER, [timer(duration=50, unit="minutes")]),
        (TIMER, [timer(duration=5, unit="hours")]),
        (MAIL, [mail(to="Bo", body="Hello")]),
        (MAIL, [mail(to="Bo", body="late", subject=" ")]),
        (BOTH, [timer(duration=5, unit="minutes"), weather(city="Rome")]),
    ],
)
def test_the_right_tool_with_a_wrong_argument_is_half_right(question: Question, calls: list[Call]) -> None:
    assert JUDGE.judge(question, calls) == Verdict(True, False, len(calls), len(calls))


@pytest.mark.parametrize(
    "call",
    [
        weather(),
        weather(city="Oslo", planet="Earth"),
        weather(city=7),
        Call("get_weather", None),
        timer(duration="5", unit="minutes"),
        timer(duration=5, unit="days"),
    ],
)
def test_a_call_that_its_schema_does_not_allow_is_neither_valid_nor_right(call: Call) -> None:
    question = WEATHER if call.name == "get_weather" else TIMER
    assert JUDGE.judge(question, [call]) == Verdict(True, False, 0, 1)


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        (CHAT, [weather(city="Oslo")]),
        (WEATHER, [timer(duration=5, unit="minutes")]),
        (WEATHER, [weather(city="Oslo"), timer(duration=5, unit="minutes")]),
        (BOTH, [weather(city="Oslo")]),
        (BOTH, [weather(city="Oslo"), weather(city="Oslo")]),
    ],
)
def test_other_tools_than_those_expected_are_wrong_though_valid(question: Question, calls: list[Call]) -> None:
    assert JUDGE.judge(question, calls) == Verdict(False, False, len(calls), len(calls))


def test_a_tool_that_is_not_offered_is_neither_right_nor_valid() -> None:
    assert JUDGE.judge(WEATHER, [Call("forecast", {"city": "Oslo"})]) == Verdict(False, False, 0, 1)


# ---- asking and adding up ----


def test_the_first_form_tells_what_antwort_tells() -> None:
    assert Form().told(TOOLS) == instructions(AnswerOptions(TOOLS))


@pytest.mark.parametrize("form", [Form(), Form(arguments_first=True), Form(lists_schemas=True, answer_first=True)])
def test_every_form_takes_the_right_answers_and_reads_them_back(form: Form) -> None:
    check = jsonschema_rs.validator_for(form.schema(TOOLS))
    for question in QUESTIONS["dev"]:
        calls = next(_right_answers(question))
        answer = (
            {"calls": [{"name": call.name, "arguments": call.arguments} for call in calls]}
            if calls
            else {"answer": "Hello."}
        )
        assert check.is_valid(answer)
        assert list(read(json.dumps(answer))) == calls


def test_examples_are_of_tools_that_are_not_offered() -> None:
    shown = json.dumps(Form(examples=4).body(TOOLS, "Hi!")["messages"][1:])
    assert "find_book" in shown
    assert not [name for name in NAMES if name in shown]


@pytest.mark.parametrize("examples", [2, 4])
def test_the_last_example_is_a_call_where_that_is_asked_for(examples: int) -> None:
    *_, answer, question = Form(examples=examples, ends_in_call=True).body(TOOLS, "Hi!")["messages"]
    assert "calls" in json.loads(answer["content"])
    assert question["content"] == "Hi!"


@pytest.mark.parametrize("text", ['{"calls": [{"name": "get_wea', '{\n "calls": ['])
def test_calls_that_are_cut_off_are_wrong_and_counted_by_themselves(text: str) -> None:
    assert JUDGE.judge(WEATHER, read(text)) == Verdict(False, False, 0, 0, cut=1)


def test_an_answer_that_is_cut_off_is_no_call() -> None:
    assert read('{"answer": "Once upon a ti') == ()


def test_calls_are_put_together_from_their_pieces() -> None:
    deltas: list[Delta] = [
        CallDelta(0, "get_weather", '{"city":'),
        CallDelta(0, "", '"Oslo"}'),
        CallDelta(1, "set_timer", "{}"),
        Finished("tool_calls"),
    ]
    assert calls_in(deltas) == (weather(city="Oslo"), timer())
    assert calls_in([TextDelta("Hi"), Finished("length")]) == ()


@pytest.mark.parametrize("more", [[], [CallDelta(1, "set_timer", '{"dura')]])
def test_what_the_limit_of_an_answer_cuts_off_is_never_right(more: list[CallDelta]) -> None:
    calls = calls_in([CallDelta(0, "get_weather", '{"city":"Oslo"}'), *more, Finished("length")])
    assert JUDGE.judge(WEATHER, calls) == Verdict(False, False, 1, 1, cut=1)


def test_scores_are_shares_by_kind_and_in_all() -> None:
    asked = [
        _asked(WEATHER, [weather(city="Oslo")]),
        _asked(TIMER, [timer(duration=9, unit="minutes")]),
        _asked(BOTH, [weather(city="Oslo"), Call("nothing", {})]),
        _asked(CHAT, [Call("get_weather", None, is_cut=True)]),
    ]
    told = score(asked)
    assert (told.tools, told.arguments, told.valid, told.calls, told.cut) == (0.5, 0.25, 0.75, 4, 1)
    assert told.by_kind == {"none": 0.0, "one": 1.0, "two": 0.0}
    assert (
        table("mode", {"native": told}).splitlines()[-1]
        == "| native | 50% | 25% | 75% of 4, 1 cut off | 0% | 100% | 0% | 1.0 |"
    )


def _asked(question: Question, calls: list[Call]) -> Asked:
    return Asked(question, Reply(tuple(calls), ""), JUDGE.judge(question, calls), 1.0)


def test_each_mode_is_measured_without_and_with_the_adapter() -> None:
    assert [(each.name, each.adapter) for each in contenders(["native", "constrained"], ADAPTER)] == [
        ("native", None),
        ("native, adapter", ADAPTER),
        ("constrained", None),
        ("constrained, adapter", ADAPTER),
    ]
    assert [each.name for each in contenders(["native"], None)] == ["native"]


def test_the_variants_differ_in_what_is_sent() -> None:
    forms = [vars(mode)["_form"] for mode in VARIANTS.values() if "_form" in vars(mode)]
    assert len(set(forms)) == len(forms) >= 8
