"""What a failed inference says about the backend, about asking another one, and about all that were asked."""

from __future__ import annotations

from itertools import permutations

import pytest

from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    ModelNotFound,
    NotFound,
    QuotaUsedUp,
    RateLimited,
)
from antwort.providers.errors import CONNECT_TIMEOUT, CONNECTION_CLOSED, AnsweredTimeout, NotReady
from antwort.providers.retry_policy import (
    circuit_open,
    is_connection_failure,
    is_interrupted,
    is_short_wait,
    may_fail_over,
    most_useful_error,
)

BUSY = RateLimited("busy", retry_after=7)
LOADING = NotReady("loading", retry_after=3)
GONE = BackendUnavailable("gone")
CLOSED_UP = BackendUnavailable("closed", code=CONNECTION_CLOSED)
DARK = BackendTimeout("dark", code=CONNECT_TIMEOUT)
SLOW = BackendTimeout("slow")
ANSWERED_SLOW = AnsweredTimeout("slow, it says")
BROKEN = BackendError("broken")
CUT = BackendCut("cut")
OPEN = circuit_open(4)
NO_MODEL = ModelNotFound("m")
NO_PATH = NotFound("path")
BAD = BackendRefused("bad")
LONG = ContextTooLong("long")
LONGEST = ContextTooLong("longest", limit=4096)
SPENT = QuotaUsedUp("spent")
SWAMPED = BackendOverloaded("swamped", retry_after=3)


@pytest.mark.parametrize(
    ("error", "elsewhere", "interrupted", "unconnected"),
    [
        (GONE, True, False, True),
        (CLOSED_UP, True, True, False),
        (LOADING, True, False, False),
        (DARK, True, True, True),
        (SLOW, True, True, False),
        (ANSWERED_SLOW, True, False, False),
        (BROKEN, True, False, False),
        (CUT, True, True, False),
        (BUSY, True, False, False),
        (SPENT, True, False, False),
        (SWAMPED, True, False, False),
        (NO_MODEL, True, False, False),
        (NO_PATH, True, False, False),
        (BAD, False, False, False),
        (LONG, True, False, False),
    ],
    ids=str,
)
def test_what_an_error_says(error: AntwortError, elsewhere: bool, interrupted: bool, unconnected: bool) -> None:
    said = (may_fail_over(error), is_interrupted(error), is_connection_failure(error))
    assert said == (elsewhere, interrupted, unconnected)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([GONE, BUSY], BUSY),
        ([RateLimited("later", retry_after=60), BUSY, RateLimited("who knows")], BUSY),
        ([GONE, LOADING, BROKEN], LOADING),
        ([BROKEN, GONE], GONE),
        ([NO_MODEL, DARK], DARK),
        ([BROKEN, SLOW], SLOW),
        ([OPEN, BROKEN], BROKEN),
        ([OPEN, NO_MODEL], OPEN),
        ([OPEN, circuit_open(9)], OPEN),
        ([NO_MODEL], NO_MODEL),
        ([SPENT, BUSY], BUSY),
        ([SPENT, GONE, SWAMPED], SWAMPED),
        ([SPENT, NO_MODEL], SPENT),
        ([BUSY, GONE, LONG, ContextTooLong("longer", limit=512), LONGEST], LONGEST),
    ],
)
def test_the_most_telling_error_is_told_whatever_came_last(errors: list[AntwortError], expected: AntwortError) -> None:
    for any_order in permutations(errors):
        assert most_useful_error(any_order) is expected


def test_what_says_that_it_is_over_in_a_moment_passes_soon() -> None:
    assert all(map(is_short_wait, [BUSY, RateLimited("who knows"), LOADING, SWAMPED]))
    never = [GONE, DARK, SLOW, BROKEN, OPEN, SPENT, LONG, NO_MODEL, RateLimited("tomorrow", retry_after=3600)]
    assert not any(map(is_short_wait, never))


def test_of_two_alike_the_first_is_told() -> None:
    assert most_useful_error([CUT, BROKEN]) is CUT
    assert most_useful_error([BROKEN, CUT]) is BROKEN


def test_an_open_circuit_breaker_says_for_how_long() -> None:
    assert (OPEN.status, OPEN.code, OPEN.retry_after) == (503, "backend_circuit_open", 4)
