"""Check the grammars of free-form tools, and texts against them.

Neither the grammar of a request nor the text of a model is trusted. The work of the parser is bounded, and a text that
it cannot decide about within the bounds passes: none is refused because to check it takes too long. The parser only
reads: what it knows about the text that could follow may be infinite (`/a+/ "a"` continues with an `a` for ever).
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from antwort.api.tools import GrammarInput
from antwort.schema.keywords import plain_pattern

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_DEFINITION: Final = 16_384
"""Characters of a grammar."""
MAX_REGEX: Final = 4_096
"""Characters of a regular expression."""
MAX_RULES: Final = 256
"""Rules and terminals of a grammar. The parser recurses from one to the next."""
MAX_SECONDS: Final = 0.05
"""For the checks of all texts of a response, during which the event loop waits: enough for some ten thousand
characters. Texts that are left then pass."""

_BYTES_PER_CHECK = 2  # of the clock
_FORBIDDEN = frozenset({"&", "%json", "%lark", "%regex", "%llguidance", "%ignore_case"})
"""Extensions of Lark for which the parser has no bounds."""
_LONGEST_FOUND, _LONGEST_PROBLEM = 20, 300

_WORD = re.compile(
    r"""(?P<skip>[ \t\f\r]+|//[^\n]*|\#[^\n]*)
    |(?P<line>\n\s*)
    |(?P<string>"(?:[^"\\\n]|\\.)*+"i?)
    |(?P<regex>/(?:[^/\\]|\\.)++/[a-z]*)
    |(?P<unclosed>"(?:[^"\\\n]|\\.)*+|/(?:[^/\\]|\\.)*+)
    |(?P<name>[!?]{0,2}[A-Za-z_][A-Za-z0-9_]*)
    |(?P<directive>%[a-z_]+)
    |(?P<number>[0-9]+)
    |(?P<mark>->|\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
"""Every alternative is possessive, so the time is linear."""


class Grammar:
    """A parsed grammar. To parse one takes a while without the interpreter's lock, so it is done in a thread.

    `problem` tells the client what is wrong with it; None if nothing is. `pattern` is the same as a pattern that every
    backend understands which decodes by JSON Schema; None if there is none.
    """

    def __init__(self, source: GrammarInput) -> None:
        self.source, self.pattern = source, None
        self.problem = _problem_of_size(source)
        if self.problem is None:
            self._matcher = _matcher(source)
            self.problem = _shortened(self._matcher.get_error()) or None
        if self.problem is None and source.syntax == "regex":
            self.pattern = _plain_pattern(source.definition)

    def mismatch(self, text: str, seconds: float = MAX_SECONDS) -> str | None:
        """Return where the text stops matching; None if it matches, or if that takes too long to find out."""
        if self.problem is not None:
            return None
        matcher = self._matcher.deep_copy()
        data = text.encode(errors="replace")
        read = _read(matcher, data, time.perf_counter() + seconds)
        if read is None or matcher.is_error() or (read == len(data) and matcher.is_accepting()):
            return None
        return _described(data, read)


@functools.lru_cache(maxsize=32)
def read_grammar(source: GrammarInput) -> Grammar:
    return Grammar(source)


class Checks(msgspec.Struct):
    """Check the texts of one response within the time for all of them."""

    seconds: float = MAX_SECONDS
    """What is left of it."""
    found: dict[tuple[GrammarInput, str], str] = {}

    def mismatch(self, grammar: Grammar, text: str) -> str | None:
        """Return where the text stops matching, as `Grammar.mismatch` does."""
        known = self.found.get((grammar.source, text))
        if known is not None or self.seconds <= 0:
            return known
        started = time.perf_counter()
        found = grammar.mismatch(text, self.seconds)
        self.seconds -= time.perf_counter() - started
        if found is not None:
            self.found[grammar.source, text] = found
        return found


# ---- bounds of a grammar ----


def _problem_of_size(grammar: GrammarInput) -> str | None:
    is_regex = grammar.syntax == "regex"
    most = MAX_REGEX if is_regex else MAX_DEFINITION
    if len(grammar.definition) > most:
        return f"it is longer than {most} characters."
    return None if is_regex else _problem_of_words(grammar.definition)


def _problem_of_words(definition: str) -> str | None:
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
"""Behind one of these, `~` negates a terminal, which is an extension of Lark, and does not repeat it."""


class Word(NamedTuple):
    kind: str
    text: str


def words_of(source: str) -> Iterator[Word]:
    """Yield the words of a Lark grammar, valid or not."""
    for found in _WORD.finditer(source):
        if found.lastgroup is not None and found.lastgroup != "skip":
            yield Word(found.lastgroup, found[0])


# ---- the parser ----


@functools.cache
def _tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _matcher(grammar: GrammarInput) -> LLMatcher:
    """Return a parser at the start of a text. It is stateful: each text is read by a copy."""
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


def _plain_pattern(regex: str) -> str | None:
    """Return a regular expression as a schema's pattern, anchored at both ends; None if decoders may disagree about it.

    It allows no more than the expression: `\\w` and `\\d` stand for ASCII characters.
    """
    body = regex.removeprefix("^")
    if body.endswith("$") and not body.endswith("\\$"):
        body = body[:-1]
    return None if "--" in body else plain_pattern(f"^(?:{body})$")  # `--` is a difference of character classes


def _read(matcher: LLMatcher, data: bytes, deadline: float) -> int | None:
    """Return how many bytes match; None if that takes too long."""
    read = 0
    while read < len(data):
        piece = data[read : read + _BYTES_PER_CHECK]
        fitting = matcher.try_consume_tokens(list(piece))
        read += fitting
        if fitting < len(piece):
            break
        if time.perf_counter() > deadline:
            return None
    return read


# ---- problems in words ----


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
