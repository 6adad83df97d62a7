"""The text of an emulated answer is parsed into calls and text, however it is cut into pieces."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import BackendCut
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.providers.tool_emulation.parser import EmulatedAnswerParser
from antwort.testing.scripted import tokens

ROME = '{"city": "R\\u00f6m \\"}]", "n": [1, {}]}'
CALLS = f'{{"calls": [{{"name": "weather", "arguments": {ROME}}}, {{"name": "b", "arguments": {{}}}}]}}'


def parsed(*pieces: str, finish: str = "stop", is_json: bool = False) -> list[Delta]:
    parser = EmulatedAnswerParser(is_json=is_json)
    out = [delta for piece in pieces for delta in parser.feed([TextDelta(piece)])]
    return out + parser.feed([Finished(finish)])


def joined(deltas: list[Delta]) -> list[Any]:
    """Neighbours that belong together as one: what is left does not depend on how the text was cut."""

    def place(delta: Delta) -> object:
        return delta.index if isinstance(delta, CallDelta) else type(delta)

    return [_as_one(list(group)) for _, group in groupby(deltas, place)]


def _as_one(group: list[Delta]) -> object:
    calls = [delta for delta in group if isinstance(delta, CallDelta)]
    texts = [delta.text for delta in group if isinstance(delta, TextDelta)]
    if isinstance(group[0], ReasoningDelta):
        return ReasoningDelta("".join(delta.text for delta in group if isinstance(delta, ReasoningDelta)))
    if calls:
        assert [bool(call.name) for call in calls] == [True] + [False] * (len(calls) - 1)
        return calls[0].name, "".join(call.arguments for call in calls)
    return "".join(texts) if texts else group[0]


def test_calls_come_out_as_calls_and_the_answer_ends_with_calls() -> None:
    assert joined(parsed(CALLS)) == [("weather", ROME), ("b", "{}"), Finished("tool_calls")]


def test_an_answer_comes_out_as_its_words() -> None:
    text = 'Räder\n"gut" \\ 😀 \u2028 /'
    for form in (json.dumps({"answer": text}), json.dumps({"answer": text}, ensure_ascii=False)):
        assert joined(parsed(form)) == [text, Finished("stop")]


def test_a_name_is_let_out_as_soon_as_it_is_whole_and_arguments_as_they_come() -> None:
    parser = EmulatedAnswerParser()
    pieces = ['{"calls":[{"na', 'me":"wea', 'ther"', ', "arguments": {"ci', 'ty": "Ro', 'me"}}', "]}"]
    seen = [parser.feed([TextDelta(piece)]) for piece in pieces]
    assert seen == [
        [],
        [],
        [CallDelta(0, "weather")],
        [CallDelta(0, "", '{"ci')],
        [CallDelta(0, "", 'ty": "Ro')],
        [CallDelta(0, "", 'me"}')],
        [],
    ]


def test_words_are_let_out_as_they_come_and_a_piece_with_escapes_is_one_delta() -> None:
    parser = EmulatedAnswerParser()
    pieces = ['{"answer": "', "It is\\n", "\\u00", "e9t\\u00e9 \\ud83d", '\\ude00"', "}"]
    seen = [parser.feed([TextDelta(piece)]) for piece in pieces]
    assert seen == [[], [TextDelta("It is\n")], [], [TextDelta("été ")], [TextDelta("😀")], []]


@pytest.mark.parametrize("text", [CALLS, '{"answer": "a\\ud83d\\ude00b\\n\\u00e9"}', "```json\n" + CALLS + "\n```\n"])
def test_every_cut_of_a_text_gives_the_same(text: str) -> None:
    whole = joined(parsed(text))
    assert joined(parsed(*text)) == whole
    for first in range(len(text) + 1):
        assert joined(parsed(text[:first], text[first:])) == whole


FORMS = st.sampled_from(
    [
        CALLS,
        '{"answer": "\\ud83d\\ude00 \\ud83d \\udE00 \\u12 \\x \\"',
        '{"answer": {"a": "}"}} and more',
        '{"calls": [{"arguments": {"a": 1}, "name": "late"}]} x',
        '{"calls": [{"name": "a", "arguments": {}} oops, {"name": "b"',
        '{"calls": [{"name": "a", "arguments": 5}]}',
        '{"calls": [{"name": ""',
        '{"calls": []}',
        '{"calls": [], "answer": "x", "more": [1]} }',
        '{"answer": "He said "no" and left"} ',
        '{"answer": "x"}{"answer": "y"}',
        '{"calls": [{"id": 1, "arguments": "{\\"a\\": 1}", "name": "f", "x": {}}, {"name": "g"}], "answer": null}',
        '<think>so </thi </think>\n{"answer": "x"}',
        "<think>so </think> words",
        '{"answer": true} ',
        '{"other": 1}',
        '``` {"calls"',
        " \n plain words",
        "",
    ]
)


@given(FORMS | st.text('{}[]",:\\`calsnwer \n', max_size=30), st.data(), st.sampled_from(["stop", "length"]))
def test_whatever_comes_is_read_without_a_fault_and_however_it_is_cut(
    text: str, data: st.DataObject, finish: str
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert _outcome([text], finish) == _outcome(pieces, finish)


def _outcome(pieces: list[str], finish: str) -> object:
    try:
        return joined(parsed(*pieces, finish=finish))
    except BackendCut as cut:
        return cut.code


@pytest.mark.parametrize(
    "text",
    [
        "Paris.",
        "  Paris",
        '{"city": "Paris"}',
        '{"calls": [{"name": ""',
        "[1]",
        "{}",
        "<b>Paris</b>",
        '{"calls": "no"}',
        '{"ans',
        "```sh\nls\n```",
    ],
)
def test_a_text_of_another_form_is_passed_on_as_it_is(text: str) -> None:
    assert joined(parsed(*text)) == [text, Finished("stop")]


def test_a_text_of_another_form_streams() -> None:
    assert EmulatedAnswerParser().feed([TextDelta("Pa")]) == [TextDelta("Pa")]


def test_arguments_that_come_before_their_name_are_held_until_it_is_there() -> None:
    text = '{"calls": [{"arguments": {"n": 1}, "name": "late"}]}'
    assert joined(parsed(*text)) == [("late", '{"n": 1}'), Finished("tool_calls")]


def test_space_and_a_block_of_code_around_the_form_are_none_of_it() -> None:
    assert joined(parsed("\n ```json\n", '{"answer": "yes"}', "\n``", "`\n")) == ["yes", Finished("stop")]


def test_words_behind_the_form_are_not_lost() -> None:
    assert joined(parsed(CALLS, "\nThat is all.")) == [
        ("weather", ROME),
        ("b", "{}"),
        "That is all.",
        Finished("tool_calls"),
    ]


@pytest.mark.parametrize("rest", [", or rather not", ', {"name": "b', ', {"arguments": {}}]}', "} x", ', "b"]}'])
def test_a_form_that_breaks_after_its_first_call_keeps_the_call_alone(rest: str) -> None:
    text = '{"calls": [{"name": "a", "arguments": {}}' + rest
    assert joined(parsed(*text)) == [("a", "{}"), Finished("tool_calls")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"calls": [], "answer": "hello"}', ["hello"]),
        ('{"calls": null, "answer": "hello"}', ["hello"]),
        ('{"answer": "hello", "calls": []}', ["hello"]),
        ('{"answer": "hello", "why": {"a": [1]}}', ["hello"]),
        ('{"answer": "hello"}}', ["hello"]),
        ('{"answer": "hello"}\n{"answer": "hello"}', ["hello"]),
        ('{"answer": "He said "no" and left"}', ['He said no" and left']),
        ('{"answer": null}', []),
        ('{"calls": []}', []),
        ('{"calls": [], "answ', []),
        ('{"calls": [{"name": "f", "arguments": {"a": 1}, "id": "x"}]}', [("f", '{"a": 1}')]),
        ('{"calls": [{"id": "x", "name": "f", "n": 1, "arguments": {"a": 1}}]}', [("f", '{"a": 1}')]),
        ('{"calls": [{"name": "f"}, {"name": "g", "arguments": null}]}', [("f", "{}"), ("g", "{}")]),
        ('{"calls": [{"name": "f", "arguments": "{\\"a\\": 1}"}]}', [("f", '{"a": 1}')]),
        ('{"calls": [{"arguments": "{\\"a\\": 1}", "name": "f"}]}', [("f", '{"a": 1}')]),
        ('{"calls": {"name": "f", "arguments": {}}}', [("f", "{}")]),
        ('{"calls": [{"name": "f", "arguments": {}}], "answer": null}', [("f", "{}")]),
        ('<think>\nhm </th\n</think>\n\n{"answer": "hello"}', [ReasoningDelta("\nhm </th\n"), "hello"]),
    ],
)
def test_what_is_nearly_of_the_form_is_read_as_it_is_meant_and_none_of_its_marks_shows(
    text: str, meant: list[Any]
) -> None:
    is_call = any(isinstance(each, tuple) for each in meant)
    end = Finished("tool_calls" if is_call else "stop")
    assert joined(parsed(*text)) == joined(parsed(text)) == [*meant, end]


def test_an_answer_of_null_beside_calls_is_none_though_the_client_asked_for_json() -> None:
    text = '{"calls": [{"name": "f", "arguments": {}}], "answer": null}'
    assert joined(parsed(*text, is_json=True)) == [("f", "{}"), Finished("tool_calls")]


@pytest.mark.parametrize("call", ['"name": "f", "arguments": "\\ud800"', '"arguments": "\\ud800", "name": "f"'])
def test_arguments_are_always_text_that_can_be_sent(call: str) -> None:
    ((_, arguments), _) = joined(parsed(*('{"calls": [{' + call + "}]}")))
    assert arguments.encode()


def test_half_a_pair_of_surrogates_is_no_character() -> None:
    said = joined(parsed(*'{"answer": "a\\ud83d b \\ude00\\ud83d"}'))[0]
    assert said == "a\N{REPLACEMENT CHARACTER} b \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert said.encode()


# ---- endings ----


@pytest.mark.parametrize("end", range(1, len(CALLS)))
def test_a_call_that_a_limit_cuts_off_never_ends_with_calls(end: int) -> None:
    *shown, last = joined(parsed(CALLS[:end], finish="length"))
    assert last == Finished("length")
    assert [call for call in shown if isinstance(call, str)] == []  # and nothing of the form shows as words


@pytest.mark.parametrize("end", [CALLS.index(', "arguments'), CALLS.index('"n"'), CALLS.index('}}, {"name')])
def test_a_call_that_ends_in_the_middle_without_a_reason_was_cut(end: int) -> None:
    with pytest.raises(BackendCut):
        parsed(CALLS[:end])


def test_calls_that_are_whole_count_though_the_form_is_not_closed() -> None:
    for end in ("", "}", "}]", "},", "}, {"):
        assert joined(parsed('{"calls": [{"name": "a", "arguments": {}' + end)) == [("a", "{}"), Finished("tool_calls")]


def test_an_answer_that_is_not_closed_is_what_came_of_it() -> None:
    assert joined(parsed('{"answer": "Par')) == ["Par", Finished("stop")]


def test_an_answer_of_a_limit_stays_one() -> None:
    assert joined(parsed('{"answer": "Par', finish="length")) == ["Par", Finished("length")]


def test_usage_and_reasoning_pass_through() -> None:
    parser, usage = EmulatedAnswerParser(), tokens(5, 7)
    batch: list[Delta] = [ReasoningDelta("hm"), TextDelta(CALLS), Finished("stop", usage)]
    out = parser.feed(batch)
    assert out[0] == ReasoningDelta("hm")
    assert out[-1] == Finished("tool_calls", usage)


# ---- an answer that is JSON ----


@pytest.mark.parametrize("value", ['{"a": "\\u00e9 }"}', '"a \\" b"', "[1, 2]", "-1.5e3", "null"])
def test_json_that_the_client_asked_for_is_told_as_it_is_written(value: str) -> None:
    for text in (f'{{"answer": {value}}}', f'{{"answer":{value}\n}}'):
        assert joined(parsed(*text, is_json=True)) == [value, Finished("stop")]


def test_an_answer_that_is_no_string_is_told_as_it_is_written() -> None:
    assert joined(parsed(*'{"answer": {"a": [1]} }')) == ['{"a": [1]}', Finished("stop")]
