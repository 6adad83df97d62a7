"""Output within its limits, with a mark where something is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import InputFile, InputImage, InputText, InputVideo, OutputText, ResultPart, Text
from antwort.tools.output import cut_output

PLENTY = 1000


def parts_of(*parts: ResultPart, text_bytes: int = PLENTY, media_bytes: int = PLENTY) -> tuple[ResultPart, ...]:
    capped = cut_output(parts, text_bytes, media_bytes)
    assert isinstance(capped, tuple)
    return capped


@pytest.mark.parametrize("text", ["", "short", "x" * PLENTY, "ü" * (PLENTY // 2)])
def test_text_within_the_limit_is_unchanged(text: str) -> None:
    assert cut_output(text, PLENTY, 0) == text


@pytest.mark.proves("MISTAKE-21")
def test_longer_text_is_cut_and_says_so() -> None:
    assert cut_output("x" * 1500, PLENTY, 0) == "x" * 1000 + "\n[output cut: 1500 bytes, 1000 kept]"


def test_text_is_cut_between_characters() -> None:
    assert cut_output("aüüü", 4, 0) == "aü\n[output cut: 7 bytes, 3 kept]"


@given(st.text(), st.integers(0, 40))
def test_no_more_than_the_limit_is_kept_and_all_of_it_is_the_beginning(text: str, limit: int) -> None:
    capped = cut_output(text, limit, 0)
    assert isinstance(capped, str)
    kept, _, mark = capped.partition("\n[output cut")
    assert len(kept.encode()) <= limit or capped == text
    assert not mark or text.startswith(kept)
    assert bool(mark) == (len(text.encode()) > limit) or "[output cut" in text


@pytest.mark.parametrize(
    ("text", "sendable"), [("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("\udcff", "\ufffd")]
)
def test_half_a_surrogate_pair_is_replaced_since_it_cannot_be_sent(text: str, sendable: str) -> None:
    assert cut_output(text, PLENTY, 0) == sendable
    assert parts_of(Text(text=text)) == (Text(text=sendable),)


def test_the_texts_of_all_parts_share_the_limit() -> None:
    image = InputImage(image_url="data:")
    capped = parts_of(
        InputText(text="abc"), image, OutputText(text="defgh"), Text(text="gone"), image, Text(text="too"), text_bytes=5
    )
    assert capped == (
        InputText(text="abc"),
        image,
        OutputText(text="de\n[output cut: 15 bytes, 5 kept]"),
        image,
    )


def test_parts_that_fill_the_limit_exactly_are_unchanged() -> None:
    parts = (Text(text="abc"), Text(text="de"), Text(text=""))
    assert parts_of(*parts, text_bytes=5) == parts


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (InputImage(image_url="x" * 1200), "[image left out: 1204 bytes, where 1000 of 1000 were left]"),
        (InputFile(file_data="x" * 1200, filename="a"), "[file left out: 1201 bytes, where 1000 of 1000 were left]"),
        (InputVideo(video_url="x" * 1200), "[video left out: 1200 bytes, where 1000 of 1000 were left]"),
    ],
)
def test_a_huge_part_is_replaced_by_a_sentence(part: ResultPart, words: str) -> None:
    assert parts_of(Text(text="see:"), part) == (Text(text="see:"), InputText(text=words))


def test_parts_that_are_not_text_share_their_limit() -> None:
    images = [InputImage(image_url="x" * size) for size in (600, 600, 100)]
    first, second, third = parts_of(*images)
    assert (first, third) == (images[0], images[2])
    assert isinstance(second, InputText)


def test_no_parts_stay_no_parts() -> None:
    assert parts_of() == ()
