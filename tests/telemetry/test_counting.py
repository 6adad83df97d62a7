"""What is counted many at a time reads as if each had been counted when it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.telemetry.counting import Family, Histogram, Key

BOUNDS = (0.5, 1.0, 4.0)
TIMES = Family("times", "histogram", "Times.", ("who", "error"), BOUNDS)
KEYS = st.sampled_from([("a", ""), ("b", ""), ("a", "broken")])
TOLD = st.lists(st.tuples(KEYS, st.sampled_from([0, 0.5, 0.75, 1, 2, 4.0, 5.0])) | st.none(), max_size=20)


def placed(value: float) -> int:
    return next((number for number, bound in enumerate(BOUNDS) if value <= bound), len(BOUNDS))


@given(told=TOLD, times=st.integers(1, 60))
def test_nothing_is_lost_or_counted_twice_however_often_it_is_read(
    told: list[tuple[Key, float] | None], times: int
) -> None:
    histogram = Histogram(TIMES)
    expected: dict[Key, tuple[list[int], float]] = {}
    for each in told * times:
        if each is None:
            histogram.read()
            continue
        key, value = each
        histogram[key].add(value)
        counts, total = expected.get(key, ([0] * 4, 0.0))
        counts[placed(value)] += 1
        expected[key] = counts, total + value
    found = [(key, list(spread.counts), spread.sum) for key, spread in histogram.read().spreads]
    assert found == [(key, counts, total) for key, (counts, total) in expected.items()]


def test_what_is_kept_to_be_counted_is_bounded() -> None:
    histogram = Histogram(TIMES)
    for _ in range(10_000):
        histogram["a", ""].add(1.0)
        assert len(histogram["a", ""]._new) < 200
