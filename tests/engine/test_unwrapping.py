"""The input of a free-form tool, out of what a backend writes for it, whatever the pieces and whatever it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.loop.custom_input import InputReader, input_of, wrapped
from plan_kit import STEADY

PATCH = '*** Begin Patch\n+x = "é"\t\\d 😀\n*** End Patch'


def pieces_of(text: str, cuts: set[int]) -> list[str]:
    places = sorted(cut for cut in cuts if cut <= len(text))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def read(pieces: list[str]) -> list[str]:
    reader = InputReader()
    return [*(reader.feed(piece) for piece in pieces), reader.finish()]


def escaped(char: str) -> str:
    """The character as escapes of UTF-16 units, as some backends write all that is not ASCII."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def loosely(text: str) -> str:
    """JSON with line ends and control characters as they are."""
    return '{"input": "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"}'


WRITERS: list[Callable[[str], str]] = [
    lambda text: json.dumps({"input": text}),
    lambda text: json.dumps({"input": text}, ensure_ascii=False, separators=(",", ":")),
    lambda text: json.dumps({"input": text, "reason": 'a "b"'}, indent=2),
    lambda text: '\n{\t"input" : "' + "".join(map(escaped, text)) + '"\r\n}\n',
    lambda text: json.dumps({"reason": ["why"], "input": text}),
    lambda text: json.dumps({"patch": text}),
    lambda text: json.dumps(text),
    loosely,
]
_texts = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\\"{}:,\n😀')), max_size=40)
_cuts = st.sets(st.integers(0, 300), max_size=12)


@STEADY
@given(text=_texts, write=st.sampled_from(WRITERS), cuts=_cuts)
def test_any_text_comes_out_of_any_writing_in_any_pieces(
    text: str, write: Callable[[str], str], cuts: set[int]
) -> None:
    assert "".join(read(pieces_of(write(text), cuts))) == text


@STEADY
@given(text=_texts, write=st.sampled_from(WRITERS[:4]), end=st.integers(0, 300), cuts=_cuts)
def test_what_was_cut_gives_the_beginning_of_the_text(
    text: str, write: Callable[[str], str], end: int, cuts: set[int]
) -> None:
    written = write(text)
    inside = written[: min(end, written.index("input") + len(json.dumps(text)) + 5)]
    found = "".join(read(pieces_of(inside, cuts)))
    assert text.startswith(found)


_json_like = st.text(st.sampled_from('{}[]":,\\ud83de00input \n1a'), max_size=60)


@STEADY
@given(written=st.one_of(_json_like, _json_like.map('{"input":"'.__add__), st.text(max_size=30)), cuts=_cuts)
def test_how_it_is_cut_into_pieces_changes_nothing_whatever_it_is(written: str, cuts: set[int]) -> None:
    assert "".join(read(pieces_of(written, cuts))) == input_of(written)


@STEADY
@given(
    value=st.recursive(st.none() | st.booleans() | st.integers() | _texts, lambda inner: st.lists(inner, max_size=3))
)
def test_a_value_that_is_no_text_gives_the_json_as_it_was_written(value: object) -> None:
    written = json.dumps({"input": value})
    assert input_of(written) == (value if isinstance(value, str) else written)


def test_text_goes_out_as_it_comes() -> None:
    pieces = ['{"in', 'put": "', "one ", "two\\", "n", "\\ud83d", "\\ude00", ' three"', "}"]
    assert read(pieces) == ["", "", "one ", "two", "\n", "", "😀", " three", "", ""]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("", ""),
        ("{}", ""),
        (" {\n}", ""),
        (PATCH, PATCH),
        ("  ls -l", "  ls -l"),
        ("[1, 2]", "[1, 2]"),
        ("{print $1}", "{print $1}"),
        ('"quoted" and more', '"quoted" and more'),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": "x', '{"a": "x'),
        ('{"input": 1, "a": "x"}', '{"input": 1, "a": "x"}'),
        ('{"input": "line\nnext\tend"}', "line\nnext\tend"),
        ('{"input": "x"}}', "x"),
        ('{"input": "x"}{"input": "x"}', "x"),
        ('{"input": "x", "more": {"a": "b"}}', "x"),
        ('{"input": "print("hi")"}', 'print("hi")'),
        ('{"input": "say("a\\n", "b")" }\n', 'say("a\n", "b")'),
        (r'{"input": "\d+\q\u12"}', r"\d+\q\u12"),
        (r'{"input": "\ud83d!\ude00\ud83d\ud83d\ude00"}', "\ufffd!\ufffd\ufffd😀"),
        (r'{"input": "\ud83d"}', "\ufffd"),
        (r'{"only": "\ud83d"}', "\ufffd"),
        ('{"input": "\ud83d' + '\ude00"}', "😀"),
        ('{"input": "\ude00"}', "\ufffd"),
        ('{"input":"x","a":' + "[" * 100_000, "x"),
        ('{"a":' + "[" * 100_000, '{"a":' + "[" * 100_000),
    ],
)
def test_what_models_really_write_is_understood(written: str, text: str) -> None:
    assert input_of(written) == text
    assert "".join(read([*written[:2000], written[2000:]])) == text


@STEADY
@given(text=_texts, write=st.sampled_from([*WRITERS, str]))
def test_what_is_sent_again_is_an_object_with_the_same_input(text: str, write: Callable[[str], str]) -> None:
    written = write(text)
    again = wrapped(written)
    assert isinstance(json.loads(again), dict)
    assert input_of(again) == input_of(written)


def test_an_object_is_sent_again_as_the_backend_wrote_it() -> None:
    written = '{ "patch" : "x" }'
    assert wrapped(written) == written
