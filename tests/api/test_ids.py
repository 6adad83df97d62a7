"""Ids: a prefix and nothing else to be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from antwort.ids import new_id


def test_an_id_is_its_prefix_and_128_random_bits() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{32}", new_id("resp"))


def test_no_two_ids_are_the_same() -> None:
    made = {new_id("x") for _ in range(10_000)}
    assert len(made) == 10_000


_FORKED = """
import os
from antwort.ids import new_id
new_id("x")
is_child = os.fork() == 0
os.write(1, f"{new_id('x')}\\n".encode())
if not is_child:
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_a_forked_child_does_not_hand_out_its_parents_ids() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert len(set(done.stdout.split())) == 2
