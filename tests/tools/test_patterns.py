"""Grammars as patterns: they say the same, and what a pattern cannot say has none."""

from __future__ import annotations

import json
import re
import tracemalloc

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from antwort.api.tools import GrammarInput
from antwort.tools.patterns import lark_pattern, regex_pattern
from antwort.tools.regexes import LONGEST
from grammar_kit import PATCHES, fits, lark, nearly, patches, pattern_for, problem_of, regex
from plan_kit import STEADY


def is_valid(pattern: str, text: str) -> bool:
    return bool(jsonschema_rs.is_valid({"pattern": pattern}, text))


PATCH_PATTERN = pattern_for(lark(PATCHES)) or ""


def test_the_grammar_of_patches_has_a_pattern() -> None:
    line = "(?:[^\\n]+)\\n"
    assert PATCH_PATTERN.startswith(f"^(?:\\*\\*\\* Begin Patch\\n(?:\\*\\*\\* Add File: {line}")
    assert PATCH_PATTERN.endswith("\\*\\*\\* End Patch\\n?)$")


@STEADY
@given(text=st.one_of(patches, nearly(patches), nearly(nearly(patches))))
def test_a_pattern_takes_what_its_grammar_takes(text: str) -> None:
    assert is_valid(PATCH_PATTERN, text) == fits(lark(PATCHES), text)


def decoder(pattern: str) -> LLMatcher:
    """As backends decode by the schema of a tool's parameters, llama.cpp among them."""
    schema = {
        "type": "object",
        "properties": {"input": {"type": "string", "pattern": pattern}},
        "required": ["input"],
        "additionalProperties": False,
    }
    return LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)


DECODER = decoder(PATCH_PATTERN)


@STEADY
@given(text=st.one_of(patches, nearly(patches)))
def test_who_decodes_by_the_pattern_writes_what_the_grammar_takes(text: str) -> None:
    written = json.dumps({"input": text}, ensure_ascii=False).encode()
    state = DECODER.deep_copy()
    is_written = state.try_consume_tokens(list(written)) == len(written) and state.is_accepting()
    assert is_written == fits(lark(PATCHES), text)


# ---- by table: source, texts that fit, texts that do not ----

REGEXES = [
    (r"\d{4}-\d\d", ["2026-11"], ["2026-1", "x2026-11", "2026-11 ", ""]),
    (r"^[a-c]+$", ["abc"], ["abd", ""]),
    (r"a|b$", ["a", "b"], ["ab"]),
    (r"(?i)yes|no", ["YES", "No"], ["maybe"]),
    (r"(?i:ye)s", ["YEs"], ["YES"]),
    (r"(?P<year>\d+)(?<rest>x?)(?:y|z)", ["1xy", "22z"], ["xy"]),
    (r"a+?b*?c??", ["ab", "aac"], ["b"]),
    (r"[^\]x-z-]", ["a", "["], ["]", "y", "-", ""]),
    (r"[]a^-]+", ["]a^-"], ["b"]),
    (r"\.\*\\\/\-\[", [".*\\/-["], ["a"]),
    (r"\x41\u0042\u{43}\x{1F600}", ["ABC😀"], ["ABC"]),
    (r"\w+\s\S", ["ab_1 ?", "a\té"], ["a b?x1", "? a", "a \xa0", "a \u2003"]),
    (r"[^\sa]", ["b", "é"], ["a", " ", "\xa0", "\u3000"]),
    (r"[\w.]+[\s\d]", ["a.b1", "a "], ["."]),
    (r"[\s\S]{2}", ["\n\n", "ab"], ["a", "abc"]),
    (r".", ["a", "\r", "é", "\u2028"], ["\n", ""]),
    (r"(?s).", ["\n", "a"], ["ab"]),
    (r"a{2}b{1,}c{0,2}(de){2,3}", ["aabdede", "aabbccdedede"], ["abdede", "aabde"]),
    (r"(a|)(b|c)?", ["", "a", "ab", "c"], ["ba"]),
    (r"\t\n\r\f", ["\t\n\r\f"], ["tnrf"]),
    (r"é{2,3}", ["éé"], ["é"]),
    (r"(?:)", [""], ["a"]),
    (r'["\']+', ["\"'"], ["a"]),
]
GRAMMARS = [
    ('start: "a" "b"i', ["ab", "aB"], ["AB", "a", ""]),
    ('start: x+ y? z*\nx: "x"\ny: "y"\nz: "z"', ["x", "xxyzz"], ["y", ""]),
    ('start: ["a"] ("b" | "c")', ["b", "ac"], ["a"]),
    ('start: "a"~2 "b"~1..3', ["aab", "aabbb"], ["ab", "aabbbb"]),
    ('?start: _one\n!_one: TWO -> two\nTWO: "t" | "u"', ["t", "u"], ["v"]),
    ('start: "a"\n  | "b"\n  | "c" // last\n\n# done', ["a", "b", "c"], ["d"]),
    ('start: ("a"\n  | "b" -> second)+\n', ["ab", "b"], ["", "c"]),
    ('start:\n  | "a"\n  | "b"\n', ["a", "b", ""], ["ab"]),
    ('start: "0".."9" ("a".."f")*', ["0", "9af"], ["a", "0g"]),
    (r'start: "\n" "\"" "\\" "\u00e9" "+"', ['\n"\\é+'], ["n"]),
    (r"start: /a\/b/ /[x\/]+/i", ["a/bX/"], ["ab"]),
    ('start: "a" | \nother: "b"', ["a", ""], ["b"]),
    ("%import common.INT\n%import common (WS_INLINE, LETTER)\nstart: INT WS_INLINE LETTER", ["12 \tx"], ["1x", "1 2"]),
    *(
        (f"start: {name}\n%import common.{name}", good, bad)
        for name, good, bad in [
            ("DIGIT", ["7"], ["77", "x"]),
            ("HEXDIGIT", ["a", "F"], ["g"]),
            ("SIGNED_INT", ["-1", "+22", "3"], ["-", "1.0"]),
            ("DECIMAL", ["1.", ".5", "1.5"], ["1", "."]),
            ("LCASE_LETTER", ["a"], ["A"]),
            ("UCASE_LETTER", ["A"], ["a"]),
            ("WORD", ["aB"], ["a1", ""]),
            ("CNAME", ["_a1"], ["1a"]),
            ("WS", [" \t\n\r\f"], ["x", ""]),
            ("CR", ["\r"], ["\n"]),
            ("LF", ["\n"], ["\r\n"]),
            ("NEWLINE", ["\n", "\r\n\n"], ["\r", ""]),
        ]
    ),
]
CASES = [(regex(source), good, bad) for source, good, bad in REGEXES]
CASES += [(lark(source), good, bad) for source, good, bad in GRAMMARS]


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=[case[0].definition for case in CASES])
def test_grammar_and_pattern_say_the_same(grammar: GrammarInput, good: list[str], bad: list[str]) -> None:
    assert problem_of(grammar) is None
    pattern = pattern_for(grammar)
    assert pattern is not None
    for text in (*good, *bad):
        assert (text, fits(grammar, text), is_valid(pattern, text)) == (text, text in good, text in good)


# ---- random ones ----

_letters = st.sampled_from(["a", "b", r"\.", "[ab]", "[^a]", r"\d", ".", "(?:a|b)", "é"])
_repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}"])
_sequences = st.lists(st.builds("{}{}".format, _letters, _repeats), max_size=3).map("".join)
_sources = st.recursive(
    _sequences,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda several: f"({'|'.join(several)})"),
        st.builds("({}){}".format, inner, _repeats),
        st.builds("{}{}".format, inner, inner),
    ),
    max_leaves=4,
)


@STEADY
@given(source=_sources, data=st.data())
def test_random_expressions_say_the_same(source: str, data: st.DataObject) -> None:
    pattern = regex_pattern(source)
    assert pattern is not None
    texts = st.one_of(st.from_regex(pattern, fullmatch=True), st.text(st.sampled_from("ab.1é\n"), max_size=5))
    text = data.draw(nearly(texts.filter(str.isascii)))
    assert is_valid(pattern, text) == fits(regex(source), text)


@STEADY
@given(source=st.text(st.sampled_from("ab\\d[]()^$*+?{}1,|.-:<>=!Pi&~"), max_size=12), text=st.text(max_size=3))
def test_any_text_gives_a_pattern_that_holds_or_none(source: str, text: str) -> None:
    pattern = regex_pattern(source)
    assume(pattern is not None and problem_of(regex(source)) is None)
    assert pattern is not None
    re.compile(pattern)
    assert is_valid(pattern, text) <= fits(regex(source), text) or "[^" in pattern


@STEADY
@given(source=st.text(st.sampled_from('start: "a/\\|()[]?*+~1.>-%\n'), max_size=30))
def test_no_text_is_too_strange_to_be_looked_at(source: str) -> None:
    pattern = lark_pattern("start: " + source)
    assert pattern is None or re.compile(pattern).pattern == pattern


# ---- what has none ----


@pytest.mark.parametrize(
    "grammar",
    [
        regex(r"\bword\b"),
        regex(r"a(?=b)"),
        regex(r"(?<=a)b"),
        regex(r"(a)\1"),
        regex(r"\p{L}+"),
        regex("[[:alpha:]]"),
        regex("[a-c&&[b]]"),
        regex("(?x) a b"),
        regex("(?-u)a"),
        regex("a^b"),
        regex("a$b"),
        regex(r"[^\S]"),
        regex(r"[a-\d]"),
        regex(r"\W"),
        regex("(?i)[^s]"),
        regex("[+--]"),
        regex(r"a\D"),
        regex(r"[^\w-]"),
        regex(r"[^\d]"),
        regex("(?i)[a-z]"),
        regex("(?i)é"),
        regex("(a"),
        regex("a)"),
        regex("a{2,1}"),
        regex("a{99999}"),
        regex("a{x}"),
        regex("*a"),
        regex("[b-a]"),
        regex("[a"),
        regex("\\"),
        regex(r"\x4"),
        regex("(?P<x"),
        lark('start: "(" start ")" | "x"'),
        lark('start: a\na: b\nb: a | "x"'),
        lark('start: "a"\n%ignore " "'),
        lark('start: pair{"a"}\npair{x}: x x'),
        lark("start: WORD_AND_MORE\n%import common.WORD_AND_MORE"),
        lark("start: NUMBER\n%import common.NUMBER"),
        lark("start: W\n%import common.WORD -> W"),
        lark("start: A\n%declare A"),
        lark("start: missing"),
        lark('other: "a"'),
        lark('start: "a" "b'),
        lark('start: ("a"'),
        lark('start: "ab".."c"'),
        lark('start: "a"..'),
        lark('start: "c".."a"'),
        lark('start: "a"~x'),
        lark('start.2: "a"'),
        lark('start: (\n"a")'),
        lark(r'start: "\q"'),
        lark("start: /a/m"),
        lark('start: "a"\nstart: "b"'),
        lark('start: "a"{2,3}'),
        lark(f'start: {"(" * 60}"a"{")" * 60}'),
        lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + f'\nr40: "{"a" * 20}"'),
        lark(f'start: "{"a" * (LONGEST // 4)}"i'),
    ],
    ids=lambda grammar: grammar.definition[:40],
)
def test_what_a_pattern_cannot_say_has_none(grammar: GrammarInput) -> None:
    assert pattern_for(grammar) is None


def test_a_pattern_that_grows_too_long_is_given_up_at_once() -> None:
    rules = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(9))
    definition = f'start: {"r0 " * 3500}\n{rules}\nr9: "abcdefghijklm"'  # 23 MB, all written out
    tracemalloc.start()
    try:
        assert lark_pattern(definition) is None
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
