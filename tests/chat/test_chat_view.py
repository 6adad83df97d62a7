"""An answer on its way to the screen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from antwort.chat.answer import CallPart, ChatAnswer, ProblemPart, ReasoningPart, TextPart, TokenUsage
from antwort.chat.markdown import PARSER
from antwort.chat.screen import ASCII, UNICODE, count_rows, glyphs_for, repaint
from chat_screen_kit import ThoughtOf, view_of

PIECES = [
    *("# ", "- ", "1. ", "10. ", "> ", "```", "```py\n", "\n", "\n\n", "**", "`", "word ", "|a|b|\n", "|-|-|\n", "|x|"),
    *("    code\n", "---\n", "===\n", "[x]: http://u\n", "<b>", "日本語", "🙂", "\t", "\r\n", "longword" * 9 + " "),
    *("[l](http://a/%1b[31m)", "<http://b/%9b2J>", "&#x202e;", "&#27;", "\x1b[2J", "\x1b]0;hi\x07", "![i](u)", "\x9b"),
]


def whole(text: str, width: int = 80, height: int = 24) -> list[str]:
    terminal = ThoughtOf(width, height)
    view, answer = view_of(terminal, TextPart(text))
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    return terminal.lines()


def grown(text: str, cuts: list[int], width: int, height: int) -> ThoughtOf:
    terminal = ThoughtOf(width, height)
    said = TextPart()
    view, answer = view_of(terminal, said)
    for number, cut in enumerate(sorted(cuts)):
        said.text = text[:cut]
        view.draw(number / 10)
    said.text = text
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    return terminal


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.integers(0, 200), max_size=30),
    st.sampled_from([(20, 5), (40, 10), (80, 24)]),
)
def test_text_that_grew_looks_as_if_it_had_come_at_once(text: str, cuts: list[int], size: tuple[int, int]) -> None:
    """However it was cut, and however little of it the terminal shows: nothing is lost, nothing stands twice."""
    seen = grown(text, cuts, *size)
    assert [line for line in seen.lines() if line] == [line for line in whole(text, *size) if line]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.lists(st.integers(0, 200), max_size=5))
def test_no_text_gives_the_terminal_orders(text: str, cuts: list[int]) -> None:
    written = grown(text, cuts, 40, 10).written
    ours = re.sub(r"\x1b\[(\d+A|J|2K)\r?", "", written)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ours)


@pytest.mark.parametrize("width", [1, 2, 5, 11])
def test_a_window_of_hardly_any_width_shows_what_it_can(width: int) -> None:
    assert whole("# One\n\n- two\n\n```py\nthree\n```\n\n|a|b|\n|-|-|\n|c|d|\n\n> four\n\n10. five", width)


def test_markdown_is_shown_without_its_marks_and_nothing_is_hidden() -> None:
    text = (
        "## Title\n\nSome **bold** `code` <b>tag</b>, a [link](https://x.example/y).\n\n1. one\n2. two\n\n![i](pic.png)"
    )
    assert whole(text)[1:-2] == [
        "Title",
        "",
        "Some bold code <b>tag</b>, a link (https://x.example/y).",
        "",
        "1. one",
        "2. two",
        "",
        "[i](pic.png)",
    ]


def test_a_picture_is_told_among_the_words_in_their_order() -> None:
    text = "Look ![a cat](u 'mine') here.\n\n- [![badge](b.svg)](l) and **![](i)**\n\n|a|\n|-|\n|![x](y) z|"
    assert whole(text)[1:-2] == [
        *('Look [a cat](u "mine") here.', "", " • [badge](b.svg) (l) and [image](i)", ""),
        *(" a", " ────────", " [x](y) z"),
    ]


def test_a_word_that_is_longer_than_its_column_is_broken_and_not_cut_off() -> None:
    shown = "".join(whole(f"|x|{'Header' * 9}|\n|-|-|\n|y|{'abcdefghij' * 7}|", 40)[1:-2])
    assert "".join(letter for letter in shown if letter.isalpha() and letter not in "xy") == (
        "Header" * 9 + "abcdefghij" * 7
    )


def test_a_link_tells_its_title() -> None:
    assert whole('[l](http://a "b")')[1] == 'l (http://a "b")'


def test_a_line_that_the_model_ends_is_a_line() -> None:
    assert whole("Rain falls\non the roof.\n\nSo.")[1:4] == ["Rain falls", "on the roof.", ""]


def test_the_terminal_is_not_told_of_links() -> None:
    assert "\x1b]8" not in grown("[click](https://evil.example)", [3, 9], 80, 24).written


def test_finished_blocks_are_written_once_and_only_the_growing_one_again() -> None:
    terminal = ThoughtOf()
    said = TextPart("First paragraph.\n\nSecond\none")
    view, _ = view_of(terminal, said)
    view.draw(0.0)
    for number in range(1, 5):
        said.text += f" and {number}"
        view.draw(number / 10)
    assert terminal.written.count("First paragraph.") == 1
    assert terminal.written.count("one") == 5


def test_every_word_is_shown_as_soon_as_it_is_there() -> None:
    """Also of a line that is not whole, before which nothing is finished."""
    terminal = ThoughtOf()
    view, _ = view_of(terminal, TextPart("One.\n\n- two\n- thr"))
    view.draw(0.0)
    assert terminal.lines()[:5] == ["", "One.", "", " • two", " • thr"]


def test_code_that_is_longer_than_the_window_scrolls_as_it_comes() -> None:
    terminal = ThoughtOf(height=10)
    said = TextPart("```\n" + "".join(f"line {number}\n" for number in range(30)))
    view, _ = view_of(terminal, said)
    view.draw(0.0)
    assert [line for line in terminal.lines() if "line" in line] == [f"  line {number}" for number in range(30)]


@pytest.mark.parametrize(
    "text",
    [
        "A word. " * 1500,
        "```py\n" + "".join(f"x{number} = {number}\n" for number in range(800)) + "```\n\nSo.",
        "|a|b|\n|-|-|\n" + "".join(f"|row {number}|value {number}|\n" for number in range(200)) + "\nSo.",
        "".join(f"> line {number} is quoted\n" for number in range(500)),
        "a" * 10_000,
    ],
    ids=["paragraph", "code", "table", "quote", "word"],
)
def test_a_long_block_costs_no_more_the_longer_it_grows_and_is_whole_at_the_end(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []

    parse = MarkdownIt.parse

    def noted(parser: MarkdownIt, source: str, *more: Any) -> list[Token]:
        if parser is PARSER:
            costs.append(len(source))
        return parse(parser, source, *more)

    monkeypatch.setattr(MarkdownIt, "parse", noted)
    seen = grown(text, list(range(0, len(text), 1000)), 80, 24)
    assert max(costs[:-2], default=0) <= 8000
    assert [line for line in seen.lines() if line] == [line for line in whole(text) if line]


@pytest.mark.parametrize("kind", [TextPart, ReasoningPart])
def test_the_end_of_a_long_block_is_seen_while_it_grows(kind: type[TextPart | ReasoningPart]) -> None:
    terminal = ThoughtOf()
    view, _ = view_of(terminal, kind("A word. " * 4000 + "The last."))
    view.draw(0.0)
    assert any(line.endswith("The last.") for line in terminal.lines())


# ---- calls, thoughts, figures ----


def test_a_call_is_shown_with_its_arguments_its_result_and_its_time() -> None:
    terminal = ThoughtOf()
    called = CallPart(name="calculate", label="demo", arguments='{"expression": "17 * 23"}', began=0.0)
    view, answer = view_of(terminal, called)
    view.draw(1.5)
    assert terminal.lines()[1] == '  ⠴ demo.calculate(expression: "17 * 23")  1.5 s'
    called.output = "391"
    called.end(2.0)
    answer.finish("completed", "", 2.0)
    view.finish(2.0)
    assert terminal.lines()[1:] == ['  ✓ demo.calculate(expression: "17 * 23")  2.0 s', "    391", "", "2.0 s"]


def test_calls_side_by_side_are_written_in_their_order() -> None:
    terminal = ThoughtOf()
    first, second = (
        CallPart(name="slow", began=0.0),
        CallPart(name="fast", began=0.0, output="done", is_done=True, ended=0.01),
    )
    view, answer = view_of(terminal, first, second)
    view.draw(0.5)
    assert terminal.lines()[1:4] == ["  ⠴ slow()  0.5 s", "  ✓ fast()  10 ms", "    done"]
    first.error = "it broke"
    first.end(1.0)
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    assert terminal.lines()[1:5] == ["  ✗ slow()  1.0 s", "    it broke", "  ✓ fast()  10 ms", "    done"]


def test_what_a_tool_says_is_shortened_and_gives_no_orders() -> None:
    terminal = ThoughtOf()
    output = "\n".join(f"\x1b[31mline {number}" for number in range(9))
    view, answer = view_of(terminal, CallPart(name="x\x1b[2J", arguments="not \x07json", output=output, is_done=True))
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    assert terminal.lines()[1:4] == ["  ✓ x␛[2J(not ␇json)", "    ␛[31mline 0", "    ␛[31mline 1"]
    assert terminal.lines()[8] == "    … 3 more lines"


def test_thoughts_calls_and_words_stand_apart() -> None:
    terminal = ThoughtOf()
    called = CallPart(name="f", output="1", is_done=True)
    view, answer = view_of(terminal, ReasoningPart("Hm."), called, TextPart("So."), ProblemPart("down"))
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    assert terminal.lines() == ["", "  Hm.", "", "  ✓ f()", "    1", "", "So.", "", "  ✗ down", "", "1.0 s"]


def test_words_that_come_while_a_call_still_runs_wait_behind_it() -> None:
    terminal = ThoughtOf()
    called, said = CallPart(name="f", began=0.0), TextPart("Meanwhile")
    view, answer = view_of(terminal, called, said)
    view.draw(0.0)
    called.output = "1"
    answer.finish("completed", "", 1.0)
    view.finish(1.0)
    assert terminal.lines()[1:5] == ["  ✗ f()  1.0 s", "    There was no result.", "", "Meanwhile"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (ChatAnswer(0.0, usage=TokenUsage(12, 40), first_token=1.0), ["12 tokens in · 40 out · 3.0 s · 20 tokens/s"]),
        (ChatAnswer(0.0), ["3.0 s"]),
    ],
)
def test_a_turn_ends_with_what_it_took(answer: ChatAnswer, shown: list[str]) -> None:
    terminal = ThoughtOf()
    view, ending = view_of(terminal)
    ending.usage, ending.first_token = answer.usage, answer.first_token
    ending.finish("completed", "", 3.0)
    view.finish(3.0)
    assert terminal.lines()[1:] == shown


def test_a_turn_that_went_wrong_says_so() -> None:
    terminal = ThoughtOf()
    view, answer = view_of(terminal, TextPart("Half a sen"))
    answer.finish("failed", "The backend \x1b[2Jis gone.", 3.0)
    view.finish(3.0)
    assert terminal.lines()[1:] == ["Half a sen", "", "The backend ␛[2Jis gone.", "3.0 s"]


def test_a_cancelled_turn_keeps_what_was_said() -> None:
    terminal = ThoughtOf()
    view, answer = view_of(terminal, TextPart("Half a sen"))
    view.draw(0.0)
    answer.finish("cancelled", "", 3.0)
    view.finish(3.0)
    assert terminal.lines()[1:] == ["Half a sen", "", "cancelled · 3.0 s"]


# ---- the lines that change ----


def test_a_terminal_without_every_character_gets_plain_signs() -> None:
    assert glyphs_for("utf-8") == UNICODE
    assert glyphs_for("ascii") == ASCII
    assert glyphs_for("no such encoding") == ASCII
    assert "".join(ASCII).isascii()


def test_only_lines_that_differ_are_written_again() -> None:
    assert repaint(["a", "b", "c"], [], ["a", "b", "d"], 80) == "\x1b[1A\r\x1b[2Kd\n"
    assert repaint(["a"], [], ["a", "b"], 80) == "b\n"
    assert repaint([], ["x"], ["a"], 80) == "x\na\n"
    assert repaint(["a", "b"], ["x"], ["b"], 80) == "\x1b[2A\r\x1b[Jx\nb\n"


def test_a_window_that_was_made_narrower_has_broken_lines() -> None:
    assert count_rows(["\x1b[2m12345\x1b[0m", "", "日本語"], 4) == 2 + 1 + 2
    assert repaint(["12345"], [], ["new"], 4) == "\x1b[2A\r\x1b[Jnew\n"
