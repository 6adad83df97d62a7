"""What the chaos suite has found, as figures and as a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from chaos.faults import Fault
from chaos.verdict import RULES, Verdict


class Outcome(msgspec.Struct, kw_only=True):
    home: str
    seed: int
    at_once: int
    seconds: float
    lease: float
    plan: list[Fault]
    verdict: Verdict
    complaints: list[str] = []
    """Of the servers, in their logs."""


def figures(outcome: Outcome) -> dict[str, Any]:
    broken = Counter(breach.rule for breach in outcome.verdict.breaches)
    return {
        "home": outcome.home,
        "seed": outcome.seed,
        "at_once": outcome.at_once,
        "seconds": round(outcome.seconds, 1),
        "lease": outcome.lease,
        "faults": dict(Counter(fault.kind for fault in outcome.plan)),
        "counts": dict(outcome.verdict.counts),
        "breaches": {rule: broken[rule] for rule in RULES},
        "complaints": len(outcome.complaints),
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """One column for each."""
    columns = [dict(_cells(outcome)) for outcome in outcomes]
    names = list(dict.fromkeys(name for column in columns for name in column))
    head = ["", *(outcome.home for outcome in outcomes)]
    rows = [[name, *(str(column.get(name, 0)) for column in columns)] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _cells(outcome: Outcome) -> list[tuple[str, object]]:
    told = figures(outcome)
    counts = outcome.verdict.counts
    return [
        *((name.replace("_", " "), told[name]) for name in ("seed", "at_once", "seconds", "lease")),
        *((f"fault: {kind}", number) for kind, number in sorted(told["faults"].items())),
        *sorted(counts.items()),
        *((f"**{rule}**", number) for rule, number in told["breaches"].items()),
    ]
