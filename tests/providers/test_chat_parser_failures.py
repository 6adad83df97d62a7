"""Streams that fail: the deltas before the failure are delivered, and the failure is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.errors import AntwortError, BackendCut, BackendError, BackendRefused, ContextTooLong, RateLimited
from antwort.providers.base import Delta, Finished, TextDelta
from antwort.providers.chat_parser import ChatParser
from chunk_kit import DONE, Json, calls, delta, event, piece, read

# ---- failures ----


def failing(*events: bytes) -> tuple[list[Delta], AntwortError]:
    parser = ChatParser()
    deltas = [found for data in events for found in parser.feed(data)]
    with pytest.raises(AntwortError) as caught:
        parser.finish()
    return deltas, caught.value


@pytest.mark.proves("MISTAKE-06")
@pytest.mark.parametrize("end", [b"", b'data: {"choices": [{"del', b": bye\n\n", delta("")])
def test_a_stream_that_stops_without_a_reason_was_cut(end: bytes) -> None:
    deltas, error = failing(delta(content="Hi"), end)
    assert deltas == [TextDelta("Hi")]
    assert isinstance(error, BackendCut)


@pytest.mark.parametrize("last", [[], [delta("")], [calls(piece("f", "{}", index=0))]])
def test_done_without_a_reason_and_without_an_error_is_a_normal_end(last: list[bytes]) -> None:
    *said, end = read(delta(content="Hi"), *last, DONE)
    assert said[0] == TextDelta("Hi")
    assert end == Finished("stop")


@pytest.mark.proves("EN-036")
@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (
            {"error": {"message": "boom at http://10.0.0.1:8000", "type": "InternalServerError", "code": 500}},
            BackendError,
        ),
        ({"error": {"message": "boom", "code": "500"}}, BackendError),
        ({"error": {"message": "boom", "code": None}}, BackendError),
        ({"error": "boom"}, BackendError),
        ({"error": {}}, BackendError),
        ({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}, BackendRefused),
        ({"error": {"message": "slow down", "code": 429}, "choices": []}, RateLimited),
        ({"error": {"message": "slow down", "type": "rate_limit_error", "code": "x"}}, RateLimited),
        ({"error": {"message": "Context size has been exceeded.", "code": 500}}, ContextTooLong),
    ],
)
def test_an_error_chunk_fails_the_answer_though_done_follows(chunk: Json, expected: type[AntwortError]) -> None:
    deltas, error = failing(delta(content="Hi"), event(chunk), DONE)
    assert deltas == [TextDelta("Hi")]
    assert type(error) is expected
    assert "10.0.0.1" not in error.message


def test_an_error_behind_the_reason_to_finish_still_fails_the_answer() -> None:
    _, error = failing(delta("stop"), event({"error": {"message": "boom"}}), DONE)
    assert type(error) is BackendError


def test_an_aborted_inference_is_a_failure() -> None:
    deltas, error = failing(delta(content="Hi") + delta("abort") + DONE)
    assert deltas == [TextDelta("Hi")]
    assert type(error) is BackendError


@pytest.mark.parametrize(
    "junk",
    [b"data: {nonsense}\n\n", b'data: {"choices": 7}\n\n', b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'],
)
def test_a_chunk_that_cannot_be_understood_fails_the_answer(junk: bytes) -> None:
    deltas, error = failing(delta(content="Hi"), junk, delta("stop"), DONE)
    assert deltas == [TextDelta("Hi")]
    assert type(error) is BackendError
    assert isinstance(error.__cause__, ValueError)


EVENTS = st.lists(
    st.one_of(
        st.builds(lambda text: delta(content=text), st.text(max_size=5)),
        st.builds(lambda text: delta(reasoning=text), st.text(max_size=5)),
        st.builds(
            lambda at, name, arguments: calls(piece(name, arguments, index=at)),
            st.one_of(st.none(), st.integers(0, 2)),
            st.sampled_from([None, "f", "g"]),
            st.sampled_from([None, "{", {"x": 1}]),
        ),
        st.sampled_from([b": ping\n\n", delta("stop"), DONE, event({"error": "boom"}), b"data: {\n\n"]),
    ),
    max_size=8,
)


def outcome(pieces: list[bytes]) -> tuple[list[Delta], str]:
    parser = ChatParser()
    deltas = [found for data in pieces for found in parser.feed(data)]
    try:
        return deltas + parser.finish(), ""
    except AntwortError as error:
        return deltas, repr(error)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(events=EVENTS, data=st.data())
def test_however_a_stream_is_cut_into_reads_the_outcome_is_the_same(events: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    deltas, failure = outcome(pieces)
    assert (deltas, failure) == outcome([raw])
    assert sum(isinstance(found, Finished) for found in deltas) == (0 if failure else 1)
