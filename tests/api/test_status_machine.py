"""Which status may follow which."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from antwort.api.status import FINAL, CallStatus, IllegalTransition, ResponseStatus, close, transition

STATUSES: tuple[ResponseStatus, ...] = get_args(ResponseStatus)
ALLOWED: set[tuple[ResponseStatus, ResponseStatus]] = {
    ("queued", "in_progress"),
    ("queued", "cancelled"),
    ("in_progress", "completed"),
    ("in_progress", "incomplete"),
    ("in_progress", "failed"),
    ("in_progress", "cancelled"),
    ("in_progress", "requires_action"),
}
ITEM_STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)


@pytest.mark.proves("CP-024")
def test_the_statuses_are_those_of_the_rule() -> None:
    assert set(STATUSES) == {
        *("queued", "in_progress", "completed", "incomplete", "failed", "cancelled", "requires_action")
    }
    assert set(STATUSES) - FINAL == {"queued", "in_progress"}


@pytest.mark.proves("CP-024", "FR-020")
@pytest.mark.parametrize(("old", "new"), list(product(STATUSES, STATUSES)))
def test_a_response_goes_only_where_it_may(old: ResponseStatus, new: ResponseStatus) -> None:
    if old == new or (old, new) in ALLOWED:
        assert transition(old, new) == new
    else:
        with pytest.raises(IllegalTransition, match=f"from {old} to {new}"):
            transition(old, new)


@pytest.mark.proves("CP-005", "CP-024")
@pytest.mark.parametrize(("old", "new"), list(product(ITEM_STATUSES, ITEM_STATUSES)))
def test_an_item_is_finished_once(old: CallStatus, new: CallStatus) -> None:
    if old in ("in_progress", "calling") and new in ("completed", "incomplete", "failed"):
        assert close(old, new) == new
    else:
        with pytest.raises(IllegalTransition, match=f"from {old} to {new}"):
            close(old, new)
