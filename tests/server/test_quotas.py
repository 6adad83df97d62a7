"""What a key may use: pure, with a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.errors import RateLimited
from antwort.server.errors import Headers
from antwort.server.quotas import KeyLimits, Quota, Quotas, TokenBucket, duration


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def enter(quota: Quota) -> Headers:
    """A request that is over at once."""
    told: Headers = []
    with quota.slot(told):
        pass
    return told


def refused(quota: Quota) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        enter(quota)
    assert caught.value.retry_after is not None
    return caught.value


# ---- requests ----


@settings(deadline=None)
@given(
    size=st.integers(1, 200),
    waits=st.lists(st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 200)), max_size=60),
)
def test_no_span_of_time_lets_in_more_than_a_full_share_and_what_it_adds(size: int, waits: list[float]) -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=size), clock)
    entered: list[float] = []
    for wait in waits:
        clock.now += wait
        for _ in range(size // 2 + 1):
            try:
                enter(quota)
            except RateLimited:
                break
            entered.append(clock.now)
    # Of the nth at a time t, n less what was added by t may have grown by a full share at most, from any other on.
    ahead = [number - at * size / 60 for number, at in enumerate(entered)]
    assert all(now + 1 <= size + least + 1e-6 for now, least in zip(ahead, accumulate(ahead, min), strict=True))


@settings(deadline=None)
@given(size=st.integers(1, 10_000), used=st.integers(0, 20_000), passed=st.floats(0, 200))
def test_who_waits_as_long_as_told_is_let_in_and_who_waits_less_is_not(size: int, used: int, passed: float) -> None:
    clock = Clock()
    quota = Quota(KeyLimits(tokens_per_minute=size), clock)
    quota.spend(used)
    clock.now += passed
    if used - passed * size / 60 > size - 1 + 1e-6:
        wait = refused(quota).retry_after or 0
        clock.now += wait * 0.99
        if wait > 1e-3:
            refused(quota)
        clock.now += wait * 0.01
    enter(quota)


def test_a_refused_request_uses_nothing() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=1), clock)
    enter(quota)
    for _ in range(10):
        refused(quota)
    clock.now += 60
    enter(quota)


def test_a_refusal_says_what_is_used_up_and_for_how_long() -> None:
    quota = Quota(KeyLimits(requests_per_minute=20), Clock())
    for _ in range(20):
        enter(quota)
    refusal = refused(quota)
    assert refusal.message == "This API key may use 20 requests a minute. Please try again in 3s."
    assert refusal.retry_after == pytest.approx(3)
    assert (refusal.status, refusal.type, refusal.code) == (429, "rate_limit_error", "rate_limit_exceeded")


# ---- tokens ----


def test_the_response_that_goes_over_is_the_last_for_a_while() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(tokens_per_minute=600), clock)
    quota.spend(599)
    enter(quota)
    quota.spend(1201)
    assert refused(quota).retry_after == pytest.approx(120.1)  # the debt of 1200, and one more to have one
    assert refused(quota).message.endswith("Please try again in 120.1s.")  # Codex reads no minutes
    clock.now += 121
    enter(quota)


# ---- slots ----


@pytest.mark.parametrize("how", [KeyboardInterrupt, GeneratorExit, ValueError])
def test_a_slot_is_released_however_the_block_is_left(how: type[BaseException]) -> None:
    quota = Quota(KeyLimits(concurrent=1), Clock())

    def leave() -> None:
        with quota.slot([]):
            assert quota.under_way == 1
            assert refused(quota).message == "This API key may use 1 response at once. Please try again in 1s."
            raise how

    with pytest.raises(how):
        leave()
    assert quota.under_way == 0


def test_a_request_without_a_slot_is_not_counted_as_a_request() -> None:
    quota = Quota(KeyLimits(concurrent=1, requests_per_minute=2), Clock())
    with quota.slot([]):
        refused(quota)
    enter(quota)


# ---- what is told ----


def test_the_headers_say_how_much_is_left_and_when_it_is_full_again() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=60, tokens_per_minute=6000), clock)
    quota.spend(7000)
    told: Headers = []
    with pytest.raises(RateLimited), quota.slot(told):
        pass
    assert told == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"60"),
        (b"x-ratelimit-reset-requests", b"0ms"),
        (b"x-ratelimit-limit-tokens", b"6000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m10s"),
    ]
    clock.now += 60
    assert enter(quota)[1:3] == [(b"x-ratelimit-remaining-requests", b"59"), (b"x-ratelimit-reset-requests", b"1s")]


def test_a_key_without_limits_is_told_nothing_and_not_refused() -> None:
    quotas = Quotas({"a": KeyLimits()}, clock=Clock())
    assert [enter(quotas.of(name)) for name in ("a", "a", "unknown", "") for _ in range(100)] == [[]] * 400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0001, "1ms"), (0.12, "120ms"), (0.9999, "1s"), (8.64, "8.64s"), (60, "1m0s"), (3725.5, "62m5.5s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_bucket_holds_no_more_than_its_size_however_long_it_fills() -> None:
    clock = Clock()
    bucket = TokenBucket(5, clock)
    clock.now += 1e9
    assert (bucket.left, bucket.wait, bucket.reset) == (5, 0, 0)


def test_limits_that_change_count_what_is_in_use() -> None:
    clock = Clock()
    quotas = Quotas({"ann": KeyLimits(), "ben": KeyLimits(requests_per_minute=2)}, clock=clock)
    ann, ben = quotas.of("ann"), quotas.of("ben")
    enter(ben)
    with ann.slot([]):
        quotas.change({"ann": KeyLimits(concurrent=1), "ben": KeyLimits(requests_per_minute=2, concurrent=9)})
        assert quotas.of("ann") is ann
        refused(ann)
    enter(ann)
    enter(ben)
    refused(ben)  # the minute goes on
    quotas.change({"ann": KeyLimits(), "ben": KeyLimits(requests_per_minute=3)})
    assert [enter(ben) for _ in range(3)]
    refused(ben)


def test_a_key_that_is_gone_keeps_its_limits_for_what_it_has_open() -> None:
    """Its WebSockets, for example."""
    quotas = Quotas({"ann": KeyLimits(requests_per_minute=1)}, clock=Clock())
    enter(quotas.of("ann"))
    quotas.change({})
    refused(quotas.of("ann"))
    quotas.change({"ann": KeyLimits(requests_per_minute=1)})
    refused(quotas.of("ann"))
