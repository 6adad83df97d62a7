"""A backend that fails too often is left alone, and given one chance at a time to show that it is back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antwort.providers.breaker import ONE_ABSENCE, TRIAL_WAIT, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, *, is_absence: bool = False) -> Breaker:
    breaker = Breaker(3, 10.0, clock=clock)
    for _ in range(3):
        clock.now += ONE_ABSENCE
        breaker.failed(is_absence=is_absence)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(3, 10.0, clock=Clock())
    for _ in range(2):
        breaker.failed(breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (True, 0)
    breaker.failed(breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (False, 10)


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(2, 10.0, clock=Clock())
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert breaker.is_closed


def test_failures_to_reach_it_in_one_moment_are_one() -> None:
    """A request that is tried again, and all who wait when a backend dies, learn the same thing."""
    clock = Clock()
    breaker = Breaker(2, 10.0, clock=clock)
    for _ in range(9):
        breaker.failed(is_absence=True)
    assert breaker.is_closed
    clock.now += ONE_ABSENCE
    breaker.failed(is_absence=True)
    assert not breaker.is_closed


def test_failures_that_come_while_it_is_open_do_not_keep_it_open_longer() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 9
    breaker.failed()
    assert breaker.wait() == 1


def test_when_the_time_is_over_one_at_a_time_may_try() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    assert breaker.wait() == 0
    trial = breaker.enter()
    assert trial is not None
    assert breaker.wait() == TRIAL_WAIT
    breaker.leave(trial)
    assert breaker.wait() == 0


def test_a_trial_that_comes_to_nothing_keeps_the_next_waiting_no_longer_than_its_time_alone() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    hung = breaker.enter()
    clock.now += 10
    assert breaker.wait() == 0
    breaker.enter()
    breaker.failed(hung)
    breaker.leave(hung)
    assert breaker.wait() == TRIAL_WAIT


def test_a_trial_that_is_answered_closes_it_before_it_has_ended() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    breaker.answered(breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (True, 0)


def test_a_trial_that_fails_opens_it_for_as_long_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 12
    trial = breaker.enter()
    breaker.failed(trial)
    breaker.leave(trial)
    assert breaker.wait() == 10


def test_a_trial_that_breaks_off_after_it_was_answered_is_one_failure_and_no_more() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    trial = breaker.enter()
    breaker.answered(trial)
    breaker.failed(trial)
    breaker.leave(trial)
    assert breaker.is_closed
    for _ in range(2):
        breaker.failed()
    assert not breaker.is_closed


def test_a_trial_that_goes_on_is_none_any_more_when_it_opens_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    trial = breaker.enter()
    breaker.answered(trial)
    for _ in range(3):
        breaker.failed()
    assert breaker.wait() == 10
    clock.now += 4
    breaker.failed(trial)
    assert breaker.wait() == 6
    breaker.leave(trial)
    assert breaker.wait() == 6


def test_an_answer_that_began_before_it_opened_does_not_close_it() -> None:
    breaker = opened(Clock())
    breaker.answered(None)
    breaker.succeeded()
    assert not breaker.is_closed


def test_one_that_opened_because_nobody_was_there_closes_when_somebody_is_seen() -> None:
    breaker = opened(Clock(), is_absence=True)
    breaker.seen()
    assert (breaker.is_closed, breaker.wait()) == (True, 0)


def test_one_that_opened_because_inferences_failed_does_not_close_at_the_sight_of_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    breaker.failed(is_absence=True)
    breaker.seen()
    assert (breaker.is_closed, breaker.wait()) == (False, 10)
    clock.now += 10
    breaker.failed(breaker.enter(), is_absence=True)
    breaker.seen()
    assert breaker.is_closed


class BreakerMachine(RuleBasedStateMachine):
    """Any order of things: one trial at a time, and an answer to one always leads back to closed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(2, 5.0, clock=self.clock)
        self.under_way: list[object | None] = []

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.breaker.wait() == 0)
    @rule()
    def one_enters(self) -> None:
        trial = self.breaker.enter()
        assert (trial is None) == self.breaker.is_closed
        assert trial is None or self.breaker.wait() == TRIAL_WAIT
        self.under_way.append(trial)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), outcome=st.sampled_from(["answer", "cut", "failure", "absence", "nothing"]))
    def one_ends(self, data: st.DataObject, outcome: str) -> None:
        trial = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        was_closed = self.breaker.is_closed
        if outcome in ("answer", "cut"):
            self.breaker.answered(trial)
            assert self.breaker.is_closed == (was_closed or trial is not None)
        if outcome == "answer":
            self.breaker.succeeded()
        elif outcome != "nothing":
            self.breaker.failed(trial, is_absence=outcome == "absence")
        self.breaker.leave(trial)

    @rule()
    def somebody_has_seen_it(self) -> None:
        before = self.breaker.wait()
        self.breaker.seen()
        assert self.breaker.is_closed or self.breaker.wait() == before

    @invariant()
    def it_never_waits_longer_than_it_is_open(self) -> None:
        assert 0 <= self.breaker.wait() <= 5
        assert not self.breaker.is_closed or self.breaker.wait() == 0

    @precondition(lambda self: not self.under_way)
    @rule()
    def it_never_stays_shut_when_nobody_is_under_way(self) -> None:
        self.clock.now += 5
        assert self.breaker.wait() == 0


TestAnyOrder = BreakerMachine.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
