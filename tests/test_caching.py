from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from antwort.caching import Cache


def test_the_value_that_was_put_first_is_dropped() -> None:
    cache = Cache[str, int](max_entries=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [*cache] == ["b", "c"]
    assert cache.get("a") is None


def test_a_value_that_is_put_again_is_the_last_and_replaces_the_first() -> None:
    cache = Cache[str, int](max_entries=2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        cache.put(key, value)
    assert {key: cache.get(key) for key in "abc"} == {"a": 3, "b": None, "c": 4}


def test_values_are_dropped_when_they_are_too_large_together() -> None:
    cache = Cache[str, str](max_entries=10, max_size=10)
    cache.put("a", "first", size=4)
    cache.put("b", "second", size=6)
    assert len(cache) == 2
    cache.put("c", "third", size=5)
    assert [*cache] == ["c"]


def test_a_value_larger_than_the_bound_is_not_cached_and_drops_no_other() -> None:
    cache = Cache[str, str](max_entries=10, max_size=10)
    cache.put("a", "small", size=4)
    cache.put("b", "large", size=11)
    assert [*cache] == ["a"]
    cache.put("a", "large", size=11)
    assert "a" not in cache


def test_only_the_size_may_be_bounded() -> None:
    cache = Cache[int, str](max_size=100)
    for number in range(200):
        cache.put(number, "x", size=1)
    assert (len(cache), cache.size) == (100, 100)


def test_a_discarded_value_leaves_its_room() -> None:
    cache = Cache[str, str](max_entries=10, max_size=10)
    cache.put("a", "x", size=6)
    cache.discard("a")
    cache.discard("a")
    cache.put("b", "y", size=4)
    cache.put("c", "z", size=6)
    assert [*cache] == ["b", "c"]
    cache.clear()
    assert len(cache) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.booleans())))
def test_the_bounds_hold_whatever_is_done(steps: list[tuple[str, int, bool]]) -> None:
    cache = Cache[str, int](max_entries=3, max_size=10)
    for key, size, is_put in steps:
        if is_put:
            cache.put(key, size, size=size)
            assert (cache.get(key) == size) is (size <= 10)
        else:
            cache.get(key)
        assert len(cache) <= 3
        assert sum(cache.get(each) or 0 for each in [*cache]) <= 10


def test_threads_may_fill_a_cache_at_the_same_time() -> None:
    cache = Cache[int, int](64)

    def fill(first: int) -> None:
        for key in range(first, first + 20_000):
            cache.put(key, key)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for filled in [pool.submit(fill, 100_000 * number) for number in range(4)]:
                filled.result()
    finally:
        sys.setswitchinterval(before)
    assert len(cache) == 64
