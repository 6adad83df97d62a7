"""What a backend may do, well or badly. Hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.backend import HELLO, Call, Damage, Play, Refusal, Turn
from fuzz.values import anything, json_texts, numbers, texts
from hypothesis import strategies as st

_calls = st.builds(Call, st.integers(0, 5), st.one_of(json_texts, texts), st.integers(0, 9).map(lambda roll: roll == 0))
_usages = st.one_of(
    st.just(HELLO.usage),
    st.none(),
    st.fixed_dictionaries({"prompt_tokens": numbers, "completion_tokens": numbers}, optional={"total_tokens": numbers}),
    st.dictionaries(st.sampled_from(["prompt_tokens", "total_tokens", "x"]), anything, max_size=2),
)
_junk = st.sampled_from(
    [
        b"\xff\xfe\x00",
        b"not json at all",
        b"{",
        b"[]",
        b"null",
        b'{"choices": null}',
        b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"index": -5, "function": {"name": null}}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "}"}}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": "x"}}]}',
        b'{"error": {"message": "overloaded", "code": 503}}',
        b'{"error": "no"}',
        b'{"choices": [{"index": 7, "delta": {"content": "seven"}}]}',
        b"{" * 5000,
        b'{"choices": [{"delta": {"content": "\\ud800"}}]}',
        b"<html><body>502 Bad Gateway</body></html>",
        b": comment\n\nevent: x\ndata: 1\n\n",
    ]
)
_damages = st.sampled_from(("", "", "", "", "cut", "garbage", "odd chunk", "no end", "early end", "split"))


def _turn(words: list[str], thoughts: list[str], calls: list[Call], damage: Damage, junk: bytes) -> Turn:
    return Turn(thoughts, words, "", calls, "tool_calls" if calls else "stop", HELLO.usage, damage, junk)


turns = st.builds(
    _turn,
    st.lists(texts, max_size=4),
    st.one_of(st.just([]), st.lists(texts, max_size=2)),
    st.one_of(st.just([]), st.lists(_calls, max_size=3)),
    _damages,
    _junk,
)
odd_turns = st.builds(
    Turn,
    words=st.lists(texts, max_size=2),
    refusal=texts,
    calls=st.lists(_calls, max_size=2),
    finish=st.sampled_from(["stop", "length", "content_filter", "tool_calls", "function_call", None, "x"]),
    usage=_usages,
)
refusals = st.builds(
    Refusal,
    st.sampled_from([400, 401, 403, 404, 408, 413, 418, 422, 429, 500, 502, 503]),
    st.sampled_from(
        [
            b'{"error": {"message": "no", "type": "error", "code": null}}',
            b'{"error": {"message": "The maximum context length is 4096.", "code": "context_length_exceeded"}}',
            b'{"detail": [{"loc": ["body"], "msg": "bad"}]}',
            b"<html>",
            b"",
            b"\xff",
        ]
    ),
    st.sampled_from([(), (("retry-after", "1"),), (("retry-after", "x"),), (("retry-after", "99999999999999999999"),)]),
)
scripts: st.SearchStrategy[list[Play]] = st.lists(
    st.one_of(turns, turns, turns, turns, odd_turns, refusals), min_size=1, max_size=4
)


def misbehaves(script: Sequence[Play]) -> bool:
    """Whether the server may have to say that its backend failed."""
    return any(isinstance(play, Refusal) or play.damage or play.finish is None for play in script)
