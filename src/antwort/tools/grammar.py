"""The grammars of free-form tools: whether they are sound, and whether a text fits.

A grammar comes from whoever sends a request, and the text from a model: neither is trusted. What may be asked of the
parser is bounded, and what it cannot decide within those bounds counts as right: a text is never refused
because checking it is too much work. The parser is asked to read and nothing else: what it says about what could come
next may be without end (`/a+/ "a"` goes on with an `a` for ever).
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from antwort.api.tools import GrammarInput

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_DEFINITION: Final = 16_384
"""Characters of a grammar."""
MAX_REGEX: Final = 4_096
"""Characters of a regular expression."""
MAX_RULES: Final = 256
"""Rules and terminals of a grammar. The parser walks from one to the next on its stack, which has an end."""
PATIENCE: Final = 0.05
"""Seconds that checking the texts of one response may take, all together: others wait meanwhile. What is left then is
let through. It is enough for some ten thousand characters."""

_STRIDE = 2  # bytes between two looks at the clock
_FORBIDDEN = frozenset({"&", "%json", "%lark", "%regex", "%llguidance", "%ignore_case"})
"""What the parser takes beyond Lark, and what it cannot bound."""
_LONGEST_FOUND, _LONGEST_PROBLEM = 20, 300


class Grammar:
    """A grammar that was read. That may take a moment, away from the interpreter's lock: a thread is the place for it.

    `problem` is what is wrong with it, in words for whoever sent it; None when nothing is. `pattern` holds a text to it
    where schemas have patterns; None where no pattern can.
    """

    def __init__(self, source: GrammarInput) -> None:
        self.source, self.pattern = source, None
        self.problem = _problem_of_size(source)
        if self.problem is None:
            self._matcher = _matcher(source)
            self.problem = _shortened(self._matcher.get_error()) or None
        if self.problem is None:
            self.pattern = _pattern(source)

    def mismatch(self, text: str, patience: float = PATIENCE) -> str | None:
        """Where the text leaves the grammar; None when it fits, or when it takes too long to say."""
        if self.problem is not None:
            return None
        matcher = self._matcher.deep_copy()
        data = text.encode(errors="replace")
        read = _read(matcher, data, time.perf_counter() + patience)
        if read is None or matcher.is_error() or (read == len(data) and matcher.is_accepting()):
            return None
        return _described(data, read)


@functools.lru_cache(maxsize=32)
def read_grammar(source: GrammarInput) -> Grammar:
    """Clients send the same ones again and again."""
    return Grammar(source)


class Checks:
    """The checks of one response: the time that is left for them, and what they found."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._left = patience
        self._found: dict[tuple[GrammarInput, str], str] = {}

    def mismatch(self, grammar: Grammar, text: str) -> str | None:
        """As the grammar says; what was found wrong once is known."""
        known = self._found.get((grammar.source, text))
        if known is not None or self._left <= 0:
            return known
        started = time.perf_counter()
        found = grammar.mismatch(text, self._left)
        self._left -= time.perf_counter() - started
        if found is not None:
            self._found[grammar.source, text] = found
        return found


# ---- what is not even read ----


def _problem_of_size(grammar: GrammarInput) -> str | None:
    is_regex = grammar.syntax == "regex"
    most = MAX_REGEX if is_regex else MAX_DEFINITION
    if len(grammar.definition) > most:
        return f"it is longer than {most} characters."
    return None if is_regex else _problem_of_words(grammar.definition)


def _problem_of_words(definition: str) -> str | None:
    from antwort.tools.lark import words_of  # of use to few

    rules, before = 0, ""
    for word in words_of(definition):
        if word.text in _FORBIDDEN or (word.text == "~" and before in _OPERATORS):
            return f"{word.text} is not offered here."
        if word.kind == "unclosed":
            return f"it has a {'regular expression' if word.text[0] == '/' else 'string'} without an end."
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


def _pattern(grammar: GrammarInput) -> str | None:
    from antwort.tools.patterns import lark_pattern, regex_pattern

    return (regex_pattern if grammar.syntax == "regex" else lark_pattern)(grammar.definition)


def _read(matcher: LLMatcher, data: bytes, deadline: float) -> int | None:
    """How many bytes fit; None when it takes too long to say."""
    read = 0
    while read < len(data):
        piece = data[read : read + _STRIDE]
        fitting = matcher.try_consume_tokens(list(piece))
        read += fitting
        if fitting < len(piece):
            break
        if time.perf_counter() > deadline:
            return None
    return read


# ---- what is said about it ----


def _described(data: bytes, read: int) -> str:
    before = data[:read].decode(errors="ignore")
    at = len(before.encode())  # the beginning of a character of several bytes
    rest = data[at : at + 4 * _LONGEST_FOUND].decode(errors="ignore")
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    found = f"at {_quoted(rest[:_LONGEST_FOUND])}" if rest else "where it ends"
    return f"line {line}, column {column}, {found}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def _shortened(problem: str) -> str:
    line = " ".join(problem.split())
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"
