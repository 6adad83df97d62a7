"""Values that are hard on programs: odd texts, huge numbers, deep nesting. Hypothesis strategies."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from hypothesis import strategies as st

Strategy: TypeAlias = st.SearchStrategy[Any]

ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\u2028\u2029\x85",
    "data: [DONE]\n\n",
    "event: error\ndata: {}\r\n\r\n",
    "\ud800",
    "\U0001f469\u200d\U0001f680" * 3,
    "e\u0301\u0323" * 20,
    "\u202eabc\u202c",
    "</script><script>",
    "{" * 50,
    '{"a": "\\ud83d"}',
    "A" * 5000,
    "\ufeff",
    "<think>hm</think>",
)
texts: Strategy = st.one_of(st.text(max_size=30), st.sampled_from(ODD_TEXTS))
short: Strategy = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
numbers: Strategy = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1, 1.0, 0.5, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -1e308, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
)


DEEP = "@deep"
"""Stands for a value that is nested so many levels deep, `@deep:250`: too deep to be held as a value."""


def deepened(body: bytes) -> bytes:
    """JSON with what stands for deep values replaced by them."""
    return re.sub(rb'"@deep:(\d+)"', lambda found: _nested(int(found[1])), body)


def _nested(depth: int) -> bytes:
    half = depth // 2
    return b'{"a":[' * half + b"1" + b"]}" * half


deep: Strategy = st.sampled_from([6, 60, 150, 250, 2000, 100_000]).map(lambda depth: f"{DEEP}:{depth}")
anything: Strategy = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
json_texts: Strategy = st.sampled_from(
    ["{}", '{"a": 1}', '{"input": "x"}', "[]", "null", "", "{", '"x"', '{"a": "\\u0000"}']
)
"""What models write as arguments."""


def maybe(strategy: Strategy, wild: Strategy = anything, *, odds: int = 60) -> Strategy:
    """The strategy, and once in a while something that it should not be."""
    return st.integers(0, odds).flatmap(lambda roll: wild if roll == odds // 2 else strategy)
