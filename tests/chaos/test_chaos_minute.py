"""The chaos suite in short: `make chaos` plays it for longer, with more runs and another plan each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Home, Pace
from chaos.run import HOMES, Scale, chaos

SHORT = Scale(
    seconds=12.0,
    runs=40,
    pace=Pace(model=0.05, work=0.15, lease=2.0),
    pause=1.5,
    kinds={
        "sqlite": ("kill", "stop", "kill"),
        "postgres": ("kill", "stop", "database pause", "database kill"),
    },
)


WANTED = ("loops cut", "results shown by loops that were cut", "calls of paused turns run", "calls declined")


@pytest.mark.parametrize("home", HOMES)
async def test_no_run_is_lost_and_none_repeats_itself_whoever_is_killed(home: Home, tmp_path: Path) -> None:
    outcome = await chaos(home, SHORT, 8, tmp_path)
    assert outcome.verdict.is_good, "\n".join(map(str, outcome.verdict.examples()))
    counts = outcome.verdict.counts
    assert counts["runs"] + counts["loops in the foreground"] + counts["paused turns"] >= SHORT.runs
    assert all(counts[what] for what in WANTED), counts
    assert {fault.kind for fault in outcome.plan} == set(SHORT.kinds[home])
    assert not outcome.complaints, outcome.complaints[:10]
