"""Ids: unique, opaque, and in the order of time."""

from __future__ import annotations

import re
from itertools import pairwise

from antwort.ids import new_id


def test_an_id_is_its_prefix_and_32_hexadecimal_digits() -> None:
    assert re.fullmatch("resp_[0-9a-f]{32}", new_id("resp"))


def test_no_two_ids_are_the_same() -> None:
    ids = [new_id("item") for _ in range(10_000)]
    assert len({*ids}) == len(ids)


def test_later_ids_begin_with_a_later_time_and_go_on_at_random() -> None:
    ids = [new_id("item").removeprefix("item_") for _ in range(10_000)]
    assert all(one[:12] <= other[:12] for one, other in pairwise(ids))
    assert len({each[12:] for each in ids}) == len(ids)
