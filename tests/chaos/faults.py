"""What goes wrong, and when: a plan that follows from a seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

FaultKind: TypeAlias = Literal["kill", "stop", "database pause", "database kill"]

ONE: tuple[FaultKind, ...] = ("kill", "kill", "stop")
"""Of one process with SQLite, as often as they are wanted."""
MANY: tuple[FaultKind, ...] = ("kill", "kill", "kill", "stop", "stop", "database pause", "database kill")
"""Of several with PostgreSQL."""


class Fault(NamedTuple):
    at: float
    """Seconds after the beginning."""
    kind: FaultKind
    server: int
    """Which one it hits; of the database: none."""
    lasts: float
    """Seconds until it is started or set going again."""

    def __str__(self) -> str:
        whom = "" if self.kind.startswith("database") else f" of server {self.server}"
        return f"{self.at:6.1f} s  {self.kind}{whom} for {self.lasts:.1f} s"


class Conditions(NamedTuple):
    kinds: Sequence[FaultKind]
    servers: int
    seconds: float
    lease: float
    pause: float
    """Seconds between the end of one fault and the next one, on the average."""


def plan_of(seed: int, conditions: Conditions) -> list[Fault]:
    """One after the other. Each kind comes before any comes again as often as it is named."""
    fate = random.Random(f"{seed} {conditions.servers}")
    plan: list[Fault] = []
    left: list[FaultKind] = []
    at = conditions.pause * fate.uniform(0.5, 1.0)
    while round(at, 2) < conditions.seconds:
        if not left:
            left = list(conditions.kinds)
            fate.shuffle(left)
        kind = left.pop()
        lasts = _length(kind, conditions, fate)
        plan.append(Fault(round(at, 2), kind, fate.randrange(conditions.servers), round(lasts, 2)))
        at += lasts + conditions.pause * fate.uniform(0.5, 1.5)
    return plan


def _length(kind: FaultKind, conditions: Conditions, fate: random.Random) -> float:
    """A stop is longer than the lease: others have taken over by the time that it goes on."""
    if kind == "stop":
        return conditions.lease * fate.uniform(1.3, 2.0)
    if kind == "database pause":
        return conditions.lease * fate.uniform(0.5, 1.5)
    return fate.uniform(0.0, 1.0)
