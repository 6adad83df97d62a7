"""Grammars of free-form tools: what is wrong with them, and where a text leaves them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.tools import GrammarInput
from antwort.tools.grammar import MAX_DEFINITION, MAX_REGEX, MAX_RULES, Checks, read_grammar, words_of
from grammar_kit import PATCHES, fits, lark, mismatch, nearly, patches, pattern_for, problem_of, regex
from plan_kit import STEADY

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-    x\n+    y\n*** End Patch"


# ---- sound grammars, and others ----


@pytest.mark.parametrize(
    "grammar",
    [
        lark(PATCHES),
        lark('start: expr\nexpr: expr "+" expr | /[0-9]+/'),
        lark('start: "SELECT"i NAME\nNAME: /[a-z]+/\n%import common.WS\n%ignore WS'),
        lark('start: A~2..4 "x"~3\nA: "a" | "b"'),
        regex(r"\d{4}-\d{2}-\d{2}"),
        regex(r"^[\w.+-]+@[\w-]+\.[\w.]+$"),
        regex(r"(?i)yes|no"),
    ],
)
def test_a_sound_grammar_has_nothing_wrong_with_it(grammar: GrammarInput) -> None:
    assert problem_of(grammar) is None


def chain(length: int) -> str:
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(1, length - 1))
    return f'start: r1\n{rules}\nr{length - 1}: "a"'


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (lark("start: foo"), "unknown name"),
        (lark(""), "Empty grammar"),
        (lark('first: "a"'), "no start rule"),
        (lark("start: /(/"), "unclosed group"),
        (lark("start: T\nT: T"), "circular"),
        (lark("start: <|special|>"), "special token"),
        (lark('start: "a\nb: "c"'), "it has a string without an end."),
        (lark("start: /a\nb: c"), "it has a regular expression without an end."),
        (lark('start: T\nT: /a\n"/ & /"b/'), "& is not offered here."),
        (regex("("), "unclosed group"),
        (regex(r"(a)\1"), "backreferences are not supported"),
        (regex("a(?=b)"), "look-around"),
        (lark("start: A & B\nA: /a+/\nB: /b+/"), "& is not offered here."),
        (lark("start: T\nT: ~A\nA: /a+/"), "~ is not offered here."),
        (lark("start: T\nT: /b/ | ~ /a+/"), "~ is not offered here."),
        (lark('start: %json {"type": "object"}'), "%json is not offered here."),
        (lark("start: %regex {}"), "%regex is not offered here."),
        (lark(f'start: "{"a" * MAX_DEFINITION}"'), f"it is longer than {MAX_DEFINITION} characters."),
        (regex("a" * (MAX_REGEX + 1)), f"it is longer than {MAX_REGEX} characters."),
        (lark(f"start: /{'a?' * MAX_REGEX}/"), f"it has a regular expression of more than {MAX_REGEX} characters."),
        (lark(chain(MAX_RULES + 1)), f"it has more than {MAX_RULES} rules."),
    ],
)
def test_what_is_wrong_with_a_grammar_is_told(grammar: GrammarInput, problem: str) -> None:
    found = problem_of(grammar)
    assert found is not None
    assert problem in found
    assert len(found) < 400
    assert "\n" not in found


@pytest.mark.parametrize(
    "source", ['start: "&" | "~"', "start: /&~[~&]+/ // & ~", 'start: A~3\nA: "a"', chain(MAX_RULES)]
)
def test_what_only_looks_like_it_is_no_fault(source: str) -> None:
    assert problem_of(lark(source)) is None


# ---- texts ----


@pytest.mark.parametrize(
    ("grammar", "text", "place"),
    [
        (lark(PATCHES), PATCH, None),
        (lark(PATCHES), PATCH + "\n", None),
        (lark(PATCHES), "", "line 1, column 1, where it ends"),
        (lark(PATCHES), "*** Begin Patch\n", "line 2, column 1, where it ends"),
        (lark(PATCHES), "*** Begin Patch\n*** Change File: é.txt\n", 'line 2, column 5, at "Change File: é.txt\\n"'),
        (lark(PATCHES), PATCH + "\n\n", 'line 7, column 1, at "\\n"'),
        (regex("[0-9]+"), "12x", 'line 1, column 3, at "x"'),
        (regex("a\tb|é"), "a\tc", 'line 1, column 3, at "c"'),
        (regex("ä"), "ö", 'line 1, column 1, at "ö"'),
        (regex("(?s).*"), "any\r\nthing", None),
        (regex("abc"), "abcd", 'line 1, column 4, at "d"'),
    ],
)
def test_where_a_text_leaves_the_grammar_is_told(grammar: GrammarInput, text: str, place: str | None) -> None:
    assert mismatch(grammar, text) == place
    assert fits(grammar, text) is (place is None)


@STEADY
@given(text=patches)
def test_a_patch_fits(text: str) -> None:
    assert mismatch(lark(PATCHES), text) is None


@STEADY
@given(text=st.one_of(nearly(patches), st.text(max_size=20)), other=patches)
def test_what_one_text_came_to_says_nothing_about_the_next(text: str, other: str) -> None:
    before = mismatch(lark(PATCHES), text)
    assert mismatch(lark(PATCHES), other) is None
    assert mismatch(lark(PATCHES), text) == before


def test_half_of_a_surrogate_pair_is_only_another_letter() -> None:
    assert mismatch(regex("a+"), "a\ud83d") == 'line 1, column 2, at "?"'


# ---- what cannot be decided ----


@pytest.mark.parametrize(
    "grammar",
    [
        regex("((a{1,1000}){1,1000}){1,1000}"),
        lark('start: s\ns: s s s | s s | "a" |'),
        lark('start: (x~1..1000)~1..1000\nx: "a"'),
        lark(f'start: {" ".join(["x?"] * 2000)}\nx: "a"'),
        regex("a?" * 2000),
    ],
)
def test_a_grammar_that_asks_too_much_lets_everything_through(grammar: GrammarInput) -> None:
    assert mismatch(grammar, "a" * 3000 + "b") is None


def test_a_long_list_of_words_is_nothing_out_of_the_ordinary() -> None:
    grammar = lark("start: " + " | ".join(f'"{number}"' for number in range(900)))
    assert (problem_of(grammar), fits(grammar, "899"), fits(grammar, "900")) == (None, True, False)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a tenth of a second."""
    now = count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) / 10)


@pytest.mark.usefixtures("ticking")
def test_a_text_that_takes_too_long_is_let_through() -> None:
    assert mismatch(regex("a+"), "a" * 1000 + "b") is None
    assert mismatch(regex("a+"), "ab") is not None


def test_a_check_of_an_ambiguous_grammar_is_given_up_after_50_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes 10 ms."""
    now = count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) / 100)
    assert mismatch(lark('start: s\ns: s s | "a" |'), "a" * 2000 + "b") is None
    assert next(now) <= 9


@pytest.mark.usefixtures("ticking")
def test_all_texts_of_a_response_share_the_time_that_there_is() -> None:
    checks, digits = Checks(0.25), read_grammar(regex("[0-9]+"))
    found = [checks.mismatch(digits, text) for text in ("x", "1x", "12x")]
    assert found == ['line 1, column 1, at "x"', 'line 1, column 2, at "x"', None]
    assert checks.mismatch(digits, "1x") == found[1], "what was found is known"


# What goes on for ever after it: whoever asks the parser what could come is never answered.
ENDLESS = """
import faulthandler
faulthandler.dump_traceback_later(30, exit=True)
from grammar_kit import lark, mismatch
for source in ('start: /a+/ "a"', "start: /a+/ /a/", 'start: /a+/ /^a/', 'start: "x" start'):
    for text in ("", "b", "a", "aaab", "xx", "é"):
        assert mismatch(lark(source), text) is not None, (source, text)
"""


def test_a_grammar_without_an_end_keeps_nobody_waiting() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", ENDLESS], check=False, env=environment).returncode == 0


PLAIN = [r"[0-9]{3}", r"^\d+$", r"\w+-\w+|none", r"(?:yes|no),? [a-z ]{1,8}", r"\+?[0-9]{3,9}", r"a\$"]


@given(st.sampled_from(PLAIN).flatmap(lambda each: st.tuples(st.just(each), st.data())))
@STEADY
def test_a_pattern_allows_nothing_that_its_regular_expression_refuses(made: tuple[str, st.DataObject]) -> None:
    definition, data = made
    pattern = pattern_for(regex(definition))
    if pattern is None:
        assert definition == r"a\$"
        return
    assert fits(regex(definition), data.draw(st.from_regex(pattern, fullmatch=True)))


@pytest.mark.parametrize("definition", ["(?i)yes", "[a-z--b]+", ".*", "[^a]", r"\p{L}+", "a" * 200])
def test_only_a_plain_regular_expression_is_a_pattern(definition: str) -> None:
    assert problem_of(regex(definition)) is None
    assert pattern_for(regex(definition)) is None
    assert pattern_for(lark('start: "a"')) is None


def test_a_grammar_that_was_refused_is_not_held_against_anybody() -> None:
    assert mismatch(lark("start: A & B\nA: /a/\nB: /b/"), "c") is None
    assert mismatch(lark("start: foo"), "c") is None
    assert pattern_for(lark("start: A & B\nA: /a/\nB: /b/")) is None


def test_who_has_no_grammars_does_not_pay_for_them() -> None:
    code = "import sys, antwort.tools.grammar, antwort.engine.engine; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("source", ['"' + '\\"' * 5, "/" + "\\/\n" * 5, '"a', '"', "/"])
def test_what_is_not_closed_is_one_word(source: str) -> None:
    """Were it read again from each of its marks, a long one would take for ever."""
    assert list(words_of(source)) == [("unclosed", source)]


def test_marks_before_a_name_are_its_own_as_far_as_names_have_any() -> None:
    assert [word.text for word in words_of("????a ?!b !c")] == ["?", "?", "??a", "?!b", "!c"]
