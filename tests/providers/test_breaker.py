"""A backend that fails too often is left alone, and given one chance at a time to show that it is back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antwort.providers.breaker import TRIAL_WAIT, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, failures: int = 3) -> Breaker:
    breaker = Breaker(failures, 10.0, clock=clock)
    for _ in range(failures):
        breaker.failed(is_trial=False)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(3, 10.0, clock=Clock())
    for _ in range(2):
        breaker.failed(is_trial=breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (True, 0)
    breaker.failed(is_trial=breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (False, 10)


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(2, 10.0, clock=Clock())
    for _ in range(5):
        breaker.failed(is_trial=False)
        breaker.succeeded()
    assert breaker.is_closed


def test_failures_that_come_while_it_is_open_do_not_keep_it_open_longer() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 9
    breaker.failed(is_trial=False)
    assert breaker.wait() == 1


def test_when_the_time_is_over_one_at_a_time_may_try() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    assert breaker.wait() == 0
    assert breaker.enter()
    assert breaker.wait() == TRIAL_WAIT
    breaker.leave(is_trial=True)
    assert breaker.wait() == 0


def test_a_trial_that_is_answered_closes_it_before_it_has_ended() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    breaker.begun(is_trial=breaker.enter())
    assert (breaker.is_closed, breaker.wait()) == (True, 0)


def test_a_trial_that_fails_opens_it_for_as_long_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 12
    breaker.failed(is_trial=breaker.enter())
    breaker.leave(is_trial=True)
    assert breaker.wait() == 10


def test_a_trial_that_breaks_off_after_its_first_delta_is_one_failure_and_no_more() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    is_trial = breaker.enter()
    breaker.begun(is_trial=is_trial)
    breaker.failed(is_trial=is_trial)
    breaker.leave(is_trial=is_trial)
    assert breaker.is_closed
    for _ in range(2):
        breaker.failed(is_trial=False)
    assert not breaker.is_closed


def test_an_answer_that_began_before_it_opened_does_not_close_it() -> None:
    breaker = opened(Clock())
    breaker.begun(is_trial=False)
    breaker.succeeded()
    assert not breaker.is_closed


def test_an_invitation_ends_the_waiting_and_nothing_else() -> None:
    breaker = opened(Clock())
    breaker.invite()
    assert (breaker.is_closed, breaker.wait()) == (False, 0)
    assert breaker.enter()
    breaker.invite()
    assert breaker.wait() == TRIAL_WAIT


def test_an_invitation_to_a_closed_one_changes_nothing() -> None:
    breaker = Breaker(clock=Clock())
    breaker.invite()
    assert breaker.is_closed


class BreakerMachine(RuleBasedStateMachine):
    """Any order of things: at most one trial at a time, and a success always leads back to closed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(2, 5.0, clock=self.clock)
        self.under_way: list[bool] = []

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.breaker.wait() == 0)
    @rule()
    def one_enters(self) -> None:
        self.under_way.append(self.breaker.enter())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), outcome=st.sampled_from(["answer", "cut", "failure", "nothing"]))
    def one_ends(self, data: st.DataObject, outcome: str) -> None:
        is_trial = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        was_closed = self.breaker.is_closed
        if outcome in ("answer", "cut"):
            self.breaker.begun(is_trial=is_trial)
            assert self.breaker.is_closed == (was_closed or is_trial)
        if outcome == "answer":
            self.breaker.succeeded()
        elif outcome in ("cut", "failure"):
            self.breaker.failed(is_trial=is_trial)
        self.breaker.leave(is_trial=is_trial)

    @rule()
    def somebody_has_seen_it(self) -> None:
        self.breaker.invite()
        assert self.breaker.wait() in (0, TRIAL_WAIT)

    @invariant()
    def there_is_one_trial_at_most(self) -> None:
        assert sum(self.under_way) <= 1

    @invariant()
    def it_never_waits_longer_than_it_is_open(self) -> None:
        assert 0 <= self.breaker.wait() <= 5
        assert not self.breaker.is_closed or self.breaker.wait() == 0


TestAnyOrder = BreakerMachine.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
