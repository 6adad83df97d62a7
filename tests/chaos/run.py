"""The chaos suite: many runs under way, while servers and the database are killed and stopped at random.

Of five stories, three are told in the background, one is a tool loop in the foreground, and one has a paused turn.

PYTHONPATH=tests python -m chaos.run --seconds 120 --runs 200 --seed 7

The same seed makes the same plan of faults. It is printed, and so is the verdict; the exit status says whether it is
good.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from chaos import followups
from chaos.client import Client, Manner, Told
from chaos.faults import MANY, ONE, Conditions, Fault, FaultKind, plan_of
from chaos.fleet import Fleet, Home, Pace, fleet
from chaos.followups import PLANS, Chain, Plan
from chaos.ledger import read, read_inferences
from chaos.record import logs
from chaos.report import Outcome, figures, table
from chaos.story import Scene
from chaos.verdict import Foreground, judge

HOMES: tuple[Home, ...] = ("sqlite", "postgres")
SCENES: tuple[Scene, ...] = ("story", "loop", "story", "pause", "story")
"""One after the other."""
_KILL_PATIENCE_SECONDS = 60.0
"""For which a kill waits for the loop that it is to cut."""


class Scale(NamedTuple):
    seconds: float
    """That new runs are begun and things go wrong, at least: a kill waits for a loop that it can cut."""
    runs: int
    """Under way at once."""
    pace: Pace
    pause: float
    """Seconds between two faults, on the average."""
    kinds: Mapping[Home, Sequence[FaultKind]] = {"sqlite": ONE, "postgres": MANY}
    """What goes wrong, each as often as it is named before any comes again."""
    settling: float = 300.0
    """Seconds that the runs have to end when nothing goes wrong any more."""


async def chaos(home: Home, scale: Scale, seed: int, folder: Path, *, aloud: bool = False) -> Outcome:
    with fleet(home, folder, scale.runs, scale.pace) as machines:
        await machines.ready()
        conditions = Conditions(scale.kinds[home], len(machines.servers), scale.seconds, scale.pace.lease, scale.pause)
        plan = plan_of(seed, conditions)
        began = time.monotonic()
        told, chains = await _under_way(machines, scale, seed, plan, aloud=aloud)
        took = time.monotonic() - began
        await machines.ready()
        await _look_again(machines, told, chains, seed)
        statuses = [await asyncio.to_thread(server.stop) for server in machines.servers]
        await _look_up(machines, told)
        foreground = Foreground(chains, read_inferences(machines.inferences), machines.faults)
        verdict = judge(told, read(machines.ledger), machines.stood_still, foreground)
        return Outcome(
            home=home,
            seed=seed,
            at_once=scale.runs,
            seconds=took,
            lease=scale.pace.lease,
            plan=plan,
            verdict=verdict,
            complaints=[*machines.complaints(), *(f"exit status {status}" for status in statuses if status)],
        )


async def _under_way(
    machines: Fleet, scale: Scale, seed: int, plan: Sequence[Fault], *, aloud: bool
) -> tuple[list[Told], list[Chain]]:
    told: list[Told] = []
    chains: list[Chain] = []
    stories = count()
    end = time.monotonic() + scale.seconds
    going_wrong = asyncio.create_task(_go_wrong(machines, plan, chains, aloud=aloud))

    async def client() -> None:
        """One story after the other, also for as long as a kill waits for a loop."""
        while time.monotonic() < end or not going_wrong.done():
            number = next(stories)
            if (scene := scene_of(number)) == "story":
                told.append(run := Told(story=number, manner=_manner(seed, number)))
                await Client(machines.ports, seed).tell(run)
            else:
                steps = plan_of_pause(seed, number) if scene == "pause" else ()
                chains.append(chain := Chain(story=number, scene=scene, plan=steps))
                await followups.tell(chain, machines.ports, seed)

    clients = [asyncio.create_task(client()) for _ in range(scale.runs)]
    looking = asyncio.create_task(machines.look_after())
    await going_wrong
    _, late = await asyncio.wait(clients, timeout=max(end - time.monotonic(), 0) + scale.settling)
    for task in (*late, looking):
        task.cancel()
    for task in (*clients, looking):
        with suppress(asyncio.CancelledError):
            await task
    return told, chains


async def _go_wrong(machines: Fleet, plan: Sequence[Fault], chains: Sequence[Chain], *, aloud: bool) -> None:
    """One fault after the other. A kill waits for a loop that it cuts in its second turn."""
    began = time.monotonic()
    for fault in plan:
        await asyncio.sleep(max(began + fault.at - time.monotonic(), 0))
        latest = time.monotonic() + _KILL_PATIENCE_SECONDS
        while fault.kind == "kill" and time.monotonic() < latest:
            if any(chain.is_in_second_turn(machines.ports[fault.server]) for chain in chains):
                break
            await asyncio.sleep(0.01)
        if aloud:
            print(f"  {time.monotonic() - began:6.1f} s: {fault}", file=sys.stderr, flush=True)  # noqa: T201 - a program
        await machines.suffer(fault)


def scene_of(number: int) -> Scene:
    return SCENES[number % len(SCENES)]


def plan_of_pause(seed: int, number: int) -> Plan:
    """One plan after the other, so that all come also where few stories are told."""
    return PLANS[(seed + number // len(SCENES)) % len(PLANS)]


def _manner(seed: int, number: int) -> Manner:
    fate = random.Random(f"{seed}.{number}.manner").random()
    return "cancel" if fate < 0.1 else "poll" if fate < 0.2 else "stream" if fate < 0.6 else "follow"


async def _look_again(machines: Fleet, told: Sequence[Told], chains: Sequence[Chain], seed: int) -> None:
    """So many at a time that none times out."""
    client, places = Client(machines.ports, seed), asyncio.Semaphore(16)

    async def look(looking: Awaitable[None]) -> None:
        async with places:
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await looking

    await asyncio.gather(
        *(look(client.look_again(run)) for run in told if run.response_id is not None),
        *(look(followups.look_again(chain, machines.ports, seed)) for chain in chains),
    )


async def _look_up(machines: Fleet, told: Sequence[Told]) -> None:
    """Of what is on record, once nobody writes any more."""
    found = await logs(machines.folder, machines.dsn, [run.response_id for run in told if run.response_id])
    for run in told:
        run.log = found.get(run.response_id or "", [])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.run", description=__doc__)
    parser.add_argument("--home", action="append", choices=HOMES, help="of the runs; may be given again; all")
    parser.add_argument("--seconds", type=float, default=120.0, help="that things go wrong, in each home")
    parser.add_argument("--runs", type=int, default=200, help="under way at once")
    parser.add_argument("--seed", type=int, default=None, help="of the plan; one at random")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds between two pieces of an answer")
    parser.add_argument("--work", type=float, default=0.8, help="seconds that a call takes, on the average")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two faults, on the average")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the figures go: chaos.json and chaos.md")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where all that was written stays")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)  # noqa: T201 - a program
    scale = Scale(asked.seconds, asked.runs, Pace(asked.pace, asked.work, asked.lease), asked.pause)
    outcomes = [_played(home, scale, seed, asked.keep) for home in asked.home or HOMES]
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "chaos.json").write_text(json.dumps([figures(each) for each in outcomes], indent=1) + "\n")
        (asked.out / "chaos.md").write_text(table(outcomes) + "\n")
    print(table(outcomes))  # noqa: T201
    for each in outcomes:
        for breach in each.verdict.examples():
            print(f"{each.home}: {breach}", file=sys.stderr)  # noqa: T201
        for line in each.complaints[:20]:
            print(f"{each.home}: {line}", file=sys.stderr)  # noqa: T201
    return 0 if all(each.verdict.is_good for each in outcomes) else 1


def _played(home: Home, scale: Scale, seed: int, keep: Path | None) -> Outcome:
    print(home, file=sys.stderr, flush=True)  # noqa: T201
    if keep is not None:
        (keep / home).mkdir(parents=True, exist_ok=True)
        return asyncio.run(chaos(home, scale, seed, keep / home, aloud=True))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(chaos(home, scale, seed, Path(folder), aloud=True))


if __name__ == "__main__":
    sys.exit(main())
