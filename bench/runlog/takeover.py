"""How long a run stands still when its process is killed: from the kill to the first event that the next one makes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.client import Client, Told
from chaos.faults import Fault
from chaos.fleet import Fleet, Home, Pace, fleet
from chaos.ledger import read

RUNS = 30
_BEFORE = 4.0
"""Seconds that runs are under way before the kill."""
_STEADY = 1.0
"""Seconds that there may be between two events without it."""


async def takeovers(home: Home, lease: float) -> dict[str, float]:
    """A process of three with PostgreSQL; the only one, started again at once, with SQLite."""
    with tempfile.TemporaryDirectory() as folder, fleet(home, Path(folder), RUNS, Pace(0.2, 0.2, lease)) as machines:
        await machines.ready()
        runs = [Told(story=number, manner="follow") for number in range(RUNS)]
        clients = [asyncio.create_task(Client(machines.ports, 1).tell(run)) for run in runs]
        await asyncio.sleep(_BEFORE)
        busiest, orphans = max(
            ((at, _made_by(machines, server.name, runs)) for at, server in enumerate(machines.servers)),
            key=lambda each: len(each[1]),
        )
        killed = time.time()
        await machines.suffer(Fault(0.0, "kill", busiest, 0.0))
        await asyncio.gather(*clients)
        took = [each for run in orphans if (each := _stood_still(run, killed)) is not None]
        return {
            "lease": lease,
            "runs": len(took),
            "median_s": round(statistics.median(took), 1),
            "longest_s": round(max(took), 1),
        }


def _made_by(machines: Fleet, server: str, runs: Sequence[Told]) -> list[Told]:
    """Runs whose last call came from there."""
    last = {each.place.partition(".")[0]: each.server for each in read(machines.ledger)}
    return [run for run in runs if last.get(str(run.story)) == server]


def _stood_still(run: Told, killed: float) -> float | None:
    """What was on its way at the kill still arrives: the first event behind a silence counts."""
    before = killed
    for at in (event.at for event in run.seen if event.at > killed):
        if at - before > _STEADY:
            return at - killed
        before = at
    return None
