"""Ids: a prefix and nothing else to be read."""

from __future__ import annotations

import os
import re

import pytest

from antwort import ids
from antwort.ids import new_id


def test_an_id_is_its_prefix_and_128_random_bits() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{32}", new_id("resp"))


def test_no_two_ids_are_the_same() -> None:
    made = {new_id("x") for _ in range(10_000)}
    assert len(made) == 10_000


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_a_forked_child_does_not_hand_out_its_parents_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, at = (new_id("x"), ids._pool)[1], ids._at
    ids._forget()
    child = new_id("x")
    monkeypatch.setattr(ids, "_pool", pool)
    monkeypatch.setattr(ids, "_at", at)
    assert child != new_id("x")
