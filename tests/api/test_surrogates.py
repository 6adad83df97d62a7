"""Half of a surrogate pair becomes the replacement character; everything else stays as it was written."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import MAX_SURROGATES, repair_surrogates


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'"half \ud83d"', "half \N{REPLACEMENT CHARACTER}"),
        (rb'"\ude00 half"', "\N{REPLACEMENT CHARACTER} half"),
        (rb'"\uDE00\uD83D"', "\N{REPLACEMENT CHARACTER}" * 2),
        (rb'"\ud83d\ude00"', "\N{GRINNING FACE}"),
        (rb'"\uD83D\uDE00"', "\N{GRINNING FACE}"),
        (rb'"\ud83d\ud83d\ude00\ude00"', "\N{REPLACEMENT CHARACTER}\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"),
        (rb'"\ud83d-\ude00"', "\N{REPLACEMENT CHARACTER}-\N{REPLACEMENT CHARACTER}"),
        (rb'"\ud83d\u0041"', "\N{REPLACEMENT CHARACTER}A"),
        (rb'"\\ud83d"', r"\ud83d"),
        (rb'"\\\ud83d"', "\\\N{REPLACEMENT CHARACTER}"),
        (rb'"\ud83d\\ude00"', "\N{REPLACEMENT CHARACTER}\\ude00"),
        (rb'"\ud7ff\ue000"', "\ud7ff\ue000"),
        (b'"' + rb"\\" * 10_000 + rb'\ud83d"', "\\" * 10_000 + "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_lone_surrogate_becomes_the_replacement_character_and_a_pair_stays(written: bytes, read: str) -> None:
    assert msgspec.json.decode(repair_surrogates(written)) == read


_pieces = st.sampled_from(
    ["\\ud83d", "\\uDE00", "\\uD83D\\ude00", "\\\\", "\\n", "u", "d83d", "\\u0041", "é", "\\u00e9"]
)


@given(st.lists(_pieces).map("".join))
def test_what_is_repaired_reads_as_a_lenient_decoder_reads_it_with_halves_replaced(text: str) -> None:
    written = f'{{"{text}":["{text}"]}}'.encode()
    lenient = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", json.loads(f'"{text}"'))
    assert msgspec.json.decode(repair_surrogates(written)) == {lenient: [lenient]}


@pytest.mark.parametrize("text", [b"", b"{", rb'"\ud83', rb'"\ud8_1"', b'"\xff"', rb"\ud83", b'"half"'])
def test_what_has_no_lone_surrogate_comes_back_as_it_is(text: bytes) -> None:
    assert repair_surrogates(text) == text


def test_a_text_of_nothing_but_surrogates_is_not_looked_through() -> None:
    text = b'"' + rb"\ud83d" * (MAX_SURROGATES + 1) + b'"'
    assert repair_surrogates(text) is text
