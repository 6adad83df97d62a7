"""Circuit breakers as state machines: closed, open, half-open with one trial at a time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antwort.providers.circuit_breaker import (
    FAILURE_INTERVAL_SECONDS,
    TRIAL_RETRY_SECONDS,
    CircuitBreakers,
)
from antwort.providers.models import MAX_MODEL_NAME_CHARS, MAX_TRACKED_MODELS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class One:
    """The circuit breaker of one model."""

    def __init__(self, failures: float, open_for: float, clock: Clock) -> None:
        self._breakers = CircuitBreakers(failures, open_for, clock)

    @property
    def is_closed(self) -> bool:
        return not self._breakers.has_open

    def wait(self) -> float:
        return self._breakers.wait("m")

    def enter(self) -> object | None:
        return self._breakers.enter("m")

    def leave(self, trial: object) -> None:
        self._breakers.leave("m", trial)

    def failed_to_connect(self, trial: object | None) -> None:
        self._breakers.failed_to_connect("m", trial)

    def open(self) -> None:
        self._breakers.open("m")


def opened(clock: Clock) -> One:
    breaker = One(3, 10.0, clock)
    breaker.open()
    return breaker


def test_connection_failures_in_a_row_open_it() -> None:
    clock = Clock()
    breaker = One(3, 10.0, clock)
    for _ in range(3):
        assert (breaker.is_closed, breaker.wait(), breaker.enter()) == (True, 0, None)
        breaker.failed_to_connect(None)
        clock.now += FAILURE_INTERVAL_SECONDS
    assert (breaker.is_closed, breaker.wait()) == (False, 9)


def test_connection_failures_within_a_second_are_one() -> None:
    clock = Clock()
    breaker = One(2, 10.0, clock)
    for _ in range(9):
        breaker.failed_to_connect(None)
    assert breaker.is_closed
    clock.now += FAILURE_INTERVAL_SECONDS
    breaker.failed_to_connect(None)
    assert not breaker.is_closed


def test_what_was_under_way_when_it_opened_does_not_prolong_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 9
    breaker.failed_to_connect(None)
    assert breaker.wait() == 1


def test_one_request_at_a_time_is_a_trial() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    assert breaker.wait() == 0
    trial = breaker.enter()
    assert breaker.wait() == TRIAL_RETRY_SECONDS
    breaker.leave(trial)
    assert breaker.wait() == 0


def test_a_trial_that_fails_to_connect_opens_it_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    trial = breaker.enter()
    breaker.failed_to_connect(trial)
    breaker.leave(trial)
    assert breaker.wait() == 10


def test_a_trial_that_hangs_makes_room_for_another_and_then_says_nothing_more() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    hung = breaker.enter()
    clock.now += 10
    assert breaker.wait() == 0
    breaker.enter()
    breaker.failed_to_connect(hung)
    breaker.leave(hung)
    assert breaker.wait() == TRIAL_RETRY_SECONDS


def test_each_model_has_its_own_and_an_answer_closes_them_all() -> None:
    breakers = CircuitBreakers(1, 10.0, Clock())
    breakers.failed_to_connect("a", None)
    assert ([breakers.wait(model) for model in "ab"], breakers.has_open) == ([10, 0], True)
    assert breakers.enter("b") is None
    breakers.close()
    assert (breakers.wait("a"), breakers.has_open) == (0, False)


def test_a_timeout_is_due_for_a_health_check_which_alone_opens_it() -> None:
    breakers = CircuitBreakers(5, 10.0, Clock())
    breakers.request_check("m", "ada", None)
    assert (set(breakers.awaiting_check), breakers.has_open) == ({"m"}, False)
    breakers.open_suspects()
    assert (set(breakers.awaiting_check), breakers.wait("m")) == (set(), 10)


def test_timeouts_count_once_for_each_tenant() -> None:
    clock = Clock()
    breakers = CircuitBreakers(5, 10.0, clock)
    for tenant, is_due in (("ada", True), ("ada", False), ("bob", True), ("bob", False)):
        breakers.request_check("m", tenant, None)
        assert bool(breakers.awaiting_check) is is_due
        breakers.close()  # the health check passes
    clock.now += 10
    breakers.request_check("m", "ada", None)
    assert breakers.awaiting_check


def test_a_trial_that_takes_too_long_is_looked_into_whoever_asked() -> None:
    breakers = CircuitBreakers(5, 10.0, Clock())
    breakers.request_check("m", "ada", None)
    breakers.open_suspects()
    breakers.request_check("m", "ada", breakers.enter("m"))
    assert set(breakers.awaiting_check) == {"m"}


def test_one_that_takes_any_number_of_failures_never_opens() -> None:
    clock = Clock()
    breakers = CircuitBreakers(inf, 10.0, clock)
    for _ in range(99):
        breakers.failed_to_connect("m", None)
        breakers.request_check("m", "ada", None)
        breakers.open_suspects()
        clock.now += 10
    assert not breakers.has_open


def test_invented_names_of_models_are_forgotten_again() -> None:
    breakers = CircuitBreakers(1, 10.0, Clock())
    for number in range(2 * MAX_TRACKED_MODELS):
        breakers.failed_to_connect(f"invented {number}", None)
    assert len(breakers._by_model) == MAX_TRACKED_MODELS
    assert breakers.wait("invented 0") == 0


def test_nothing_is_remembered_of_names_that_are_as_long_as_a_body() -> None:
    breakers = CircuitBreakers(1, 10.0, Clock())
    breakers.failed_to_connect("m" * (MAX_MODEL_NAME_CHARS + 1), None)
    assert not breakers._by_model
    breakers.request_check("m" * (MAX_MODEL_NAME_CHARS + 1), "ada", None)
    assert not breakers.awaiting_check
    breakers.failed_to_connect("m" * MAX_MODEL_NAME_CHARS, None)
    assert len(breakers._by_model) == 1


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens, in any order: nobody waits for longer than it is open, and after that one may pass."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = One(2, 5.0, self.clock)
        self.under_way: list[object | None] = []

    @rule(seconds=st.floats(0, 6))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.breaker.wait() == 0)
    @rule()
    def a_request_passes(self) -> None:
        trial = self.breaker.enter()
        assert (trial is None) == self.breaker.is_closed
        assert trial is None or self.breaker.wait() == pytest.approx(TRIAL_RETRY_SECONDS)
        self.under_way.append(trial)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), fails=st.booleans())
    def a_request_ends(self, data: st.DataObject, fails: bool) -> None:
        trial = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        was_open = not self.breaker.is_closed
        if fails:
            self.breaker.failed_to_connect(trial)
        if trial is not None:
            self.breaker.leave(trial)
        assert not (was_open and self.breaker.is_closed)

    @rule()
    def a_health_check_fails(self) -> None:
        self.breaker.open()
        assert self.breaker.wait() == pytest.approx(5)

    @invariant()
    def nobody_waits_for_longer_than_it_is_open(self) -> None:
        assert 0 <= self.breaker.wait() <= 5.0001
        assert not self.breaker.is_closed or self.breaker.wait() == 0

    def teardown(self) -> None:
        self.clock.now += 5.0001
        assert self.breaker.wait() == 0


TestAnyOrder = AnyOrder.TestCase
