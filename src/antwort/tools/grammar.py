"""The grammars of free-form tools: whether they are sound, and whether a text fits.

A grammar comes from whoever sends a request, and the text from a model: neither is trusted. What may be asked of the
parser is bounded, and what it cannot decide within those bounds counts as right: a text is never refused
because checking it is too much work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Final

from antwort.api.tools import GrammarInput
from antwort.tools.lark import words_of
from antwort.tools.patterns import lark_pattern, regex_pattern

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_DEFINITION: Final = 16_384
"""Characters of a grammar."""
MAX_REGEX: Final = 4_096
"""Characters of a regular expression."""
MAX_RULES: Final = 256
"""Rules and terminals of a grammar. The parser walks from one to the next on its stack, which has an end."""
PATIENCE: Final = 0.25
"""Seconds that checking a text may take. One that takes longer is let through."""

_STRIDE = 16  # bytes between two looks at the clock
_FORBIDDEN = frozenset({"&", "%json", "%lark", "%regex", "%llguidance", "%ignore_case"})
"""What the parser takes beyond Lark, and what it cannot bound."""
_MOST_EXPECTED, _LONGEST_EXPECTED, _LONGEST_FOUND, _LONGEST_PROBLEM = 4, 40, 20, 300


def check_grammar(grammar: GrammarInput) -> str | None:
    """What is wrong with the grammar, in words for whoever sent it; None when nothing is.

    The first look at a grammar may take a moment, away from the interpreter's lock: a thread is the place for it.
    """
    if problem := _problem_of_size(grammar):
        return problem
    error = _matcher(grammar).get_error()
    return _shortened(error) if error else None


def mismatch(grammar: GrammarInput, text: str) -> str | None:
    """Where the text leaves the grammar and what would have gone on there; None when it fits."""
    if check_grammar(grammar):
        return None
    matcher = _matcher(grammar).deep_copy()
    data = text.encode(errors="replace")
    read = _read(matcher, data)
    if read is None or matcher.is_error() or (read == len(data) and matcher.is_accepting()):
        return None
    return _described(matcher, data, read)


def fits(grammar: GrammarInput, text: str) -> bool:
    return mismatch(grammar, text) is None


def pattern_for(grammar: GrammarInput) -> str | None:
    """A pattern for a JSON Schema that holds a text to the grammar, or None where no pattern can."""
    if _problem_of_size(grammar):
        return None
    return regex_pattern(grammar.definition) if grammar.syntax == "regex" else lark_pattern(grammar.definition)


def _problem_of_size(grammar: GrammarInput) -> str | None:
    is_regex = grammar.syntax == "regex"
    most = MAX_REGEX if is_regex else MAX_DEFINITION
    if len(grammar.definition) > most:
        return f"it is longer than {most} characters."
    return None if is_regex else _problem_of_words(grammar.definition)


@functools.lru_cache(maxsize=64)
def _problem_of_words(definition: str) -> str | None:
    rules, before = 0, ""
    for word in words_of(definition):
        if word.text in _FORBIDDEN or (word.text == "~" and before in _OPERATORS):
            return f"{word.text} is not offered here."
        if word.kind == "regex" and len(word.text) > MAX_REGEX:
            return f"it has a regular expression of more than {MAX_REGEX} characters."
        rules += word == ("mark", ":")
        before = word.text if word.kind != "line" else before
    return f"it has more than {MAX_RULES} rules." if rules > MAX_RULES else None


_OPERATORS = frozenset({":", "|", "(", "[", "~", "&", ""})
"""What a `~` behind means the opposite of a terminal, which is not Lark's, and not a repetition."""


# ---- the parser ----


@functools.cache
def _tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


@functools.lru_cache(maxsize=32)
def _matcher(grammar: GrammarInput) -> LLMatcher:
    """The grammar, ready to read from the start. It is stateful: each text is read by a copy."""
    from llguidance import LLMatcher, LLParserLimits

    is_regex = grammar.syntax == "regex"
    compiled = (LLMatcher.grammar_from_regex if is_regex else LLMatcher.grammar_from_lark)(grammar.definition)
    limits = LLParserLimits(
        max_items_in_row=1_000,
        initial_lexer_fuel=100_000,
        step_lexer_fuel=10_000,
        step_max_items=10_000,
        max_lexer_states=5_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )
    return LLMatcher(_tokenizer(), compiled, log_level=0, limits=limits)


def _read(matcher: LLMatcher, data: bytes) -> int | None:
    """How many bytes fit; None when it takes too long to say."""
    deadline = perf_counter() + PATIENCE
    read = 0
    while read < len(data):
        piece = data[read : read + _STRIDE]
        fitting = matcher.try_consume_tokens(list(piece))
        read += fitting
        if fitting < len(piece):
            break
        if perf_counter() > deadline:
            return None
    return read


# ---- what is said about it ----


def _described(matcher: LLMatcher, data: bytes, read: int) -> str:
    before = data[:read].decode(errors="ignore")
    at = len(before.encode())
    matcher.rollback(read - at)  # to the beginning of a character of several bytes
    rest = data[at:].decode(errors="ignore")
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    found = f"at {_quoted(rest[:_LONGEST_FOUND])}" if rest else "where it ends"
    expected = " or ".join(_expected(matcher))
    return f"line {line}, column {column}, {found}" + (f"; expected {expected}" if expected else "")


def _expected(matcher: LLMatcher) -> list[str]:
    """What could have come instead, where that is a short list."""
    options = list(_options(matcher))
    if not options or len(options) > _MOST_EXPECTED:
        return []
    return [_quoted(_continued(matcher, option)) if option < 256 else "the end" for option in options]


def _options(matcher: LLMatcher) -> Iterator[int]:
    """The bytes that go on from here; what is no byte stands for the end."""
    mask = matcher.compute_bitmask()
    return (at for at in range(len(mask) * 8) if mask[at // 8] >> (at % 8) & 1)


def _continued(matcher: LLMatcher, option: int) -> str:
    """A byte, and all that must follow it."""
    ahead = matcher.deep_copy()
    ahead.consume_token(option)
    return (bytes([option]) + ahead.compute_ff_bytes()).decode(errors="replace")[:_LONGEST_EXPECTED]


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def _shortened(problem: str) -> str:
    line = " ".join(problem.split())
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"
