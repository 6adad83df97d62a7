"""What the tests of grammars share: a grammar of patches, and texts that fit it."""

from __future__ import annotations

from hypothesis import strategies as st

from antwort.api.tools import GrammarInput
from antwort.tools.grammar import read_grammar

PATCHES = r"""
// a patch is a list of files, between a first and a last line
start: "*** Begin Patch" LF file+ "*** End Patch" [LF]
file: added
  | "*** Delete File: " filename LF -> removed
  | "*** Update File: " filename LF [moved] [edits]
added: "*** Add File: " filename LF add_line+
add_line: "+" /(.*)/ LF -> line
moved: "*** Move to: " filename LF
edits: (edit LF)+ ["*** End of File" LF]
edit: /[-+ ].*/ | "@@" (" " filename)?
filename: /(.+)/
%import common.LF
"""


def lark(definition: str) -> GrammarInput:
    return GrammarInput(syntax="lark", definition=definition)


def regex(definition: str) -> GrammarInput:
    return GrammarInput(syntax="regex", definition=definition)


def problem_of(grammar: GrammarInput) -> str | None:
    return read_grammar(grammar).problem


def mismatch(grammar: GrammarInput, text: str) -> str | None:
    return read_grammar(grammar).mismatch(text)


def fits(grammar: GrammarInput, text: str) -> bool:
    return mismatch(grammar, text) is None


def pattern_for(grammar: GrammarInput) -> str | None:
    return read_grammar(grammar).pattern


_words = st.text(st.sampled_from("ab +-@*é"), min_size=1, max_size=6)
_added = st.builds("+{}\n".format, st.text(st.sampled_from("ab +-@*é"), max_size=6))
_changed = st.one_of(
    st.builds("{}{}\n".format, st.sampled_from("+- "), _words), st.just("@@\n"), st.builds("@@ {}\n".format, _words)
)
_hunks = st.one_of(
    st.builds(
        lambda name, lines: f"*** Add File: {name}\n{''.join(lines)}", _words, st.lists(_added, min_size=1, max_size=3)
    ),
    st.builds("*** Delete File: {}\n".format, _words),
    st.builds(
        lambda name, move, lines, end: f"*** Update File: {name}\n{move}{''.join(lines)}{end if lines else ''}",
        _words,
        st.sampled_from(["", "*** Move to: b\n"]),
        st.lists(_changed, max_size=3),
        st.sampled_from(["", "*** End of File\n"]),
    ),
)
patches = st.builds(
    lambda hunks, end: f"*** Begin Patch\n{''.join(hunks)}*** End Patch{end}",
    st.lists(_hunks, min_size=1, max_size=3),
    st.sampled_from(["", "\n"]),
)


@st.composite
def nearly(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text with at most one small wound."""
    text = draw(texts)
    at = draw(st.integers(0, len(text)))
    match draw(st.sampled_from(["none", "drop", "insert", "cut", "repeat"])):
        case "drop":
            return text[:at] + text[at + 1 :]
        case "insert":
            return text[:at] + draw(st.sampled_from("x\n +*@")) + text[at:]
        case "cut":
            return text[:at]
        case "repeat":
            return text[:at] + text[at // 2 :]
        case _:
            return text
