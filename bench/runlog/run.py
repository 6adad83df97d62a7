"""What a run log costs, in each of its homes.

PYTHONPATH=bench:tests python -m runlog.run --out .bench/runs.json

Everything is on this machine, PostgreSQL as well, and shares its processors: read the figures as orders of magnitude.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runlog.homes import HOMES, Home, place
from runlog.measures import appends, handing_out, kept, replay
from runlog.report import table
from runlog.tail import tail
from runlog.takeover import takeovers

AT_ONCE = (1, 5, 100)
"""Events in an append."""


async def measured(home: Home, runs: int, finished: int, leases: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"append": {}}
    async with place(home) as there:
        for at_once in AT_ONCE:
            found["append"][at_once] = await appends(there, runs, 500 if at_once == 100 else 100, at_once)
        found["handing_out"] = await handing_out(there, 2000)
        found["replay"] = await replay(there, 5000)
        found["tail"] = await tail(there)
    async with place(home) as there:
        found["kept"] = await kept(there, finished, 100)
    if home != "memory":
        found["takeover"] = [await takeovers(home, lease) for lease in (leases if home == "postgres" else leases[:1])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m runlog.run", description=__doc__)
    parser.add_argument("--home", action="append", choices=HOMES, help="may be given again; all")
    parser.add_argument("--runs", type=int, default=200, help="that append side by side")
    parser.add_argument("--finished", type=int, default=10_000, help="runs that are kept")
    parser.add_argument("--lease", type=float, action="append", help="seconds, of takeovers; may be given again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the figures go, as JSON")
    asked = parser.parse_args()
    homes = asked.home or HOMES
    leases = asked.lease or (5.0, 20.0)
    figures: dict[str, dict[str, Any]] = {}
    for home in homes:
        figures[home] = asyncio.run(measured(home, asked.runs, asked.finished, leases))
        if asked.out:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures, asked.runs, asked.finished))


if __name__ == "__main__":
    main()
