"""The table of all metrics, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from antwort.telemetry.counting import Family
from antwort.telemetry.families import FAMILIES


def markdown() -> str:
    """What a page under the heading "Metrics" has to say: one row a metric, and the buckets of the histograms."""
    return "\n".join([*_table(), "", "## Buckets", "", *_buckets()])


def _table() -> Iterable[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


def _buckets() -> Iterable[str]:
    yield "| histogram | upper bounds |"
    yield "|---|---|"
    for family in FAMILIES:
        if family.kind == "histogram":
            yield f"| `{family.name}` | {_bounds(family)} |"


def _bounds(family: Family) -> str:
    return ", ".join(f"{bound:g}" if bound < 1e6 else str(int(bound)) for bound in family.bounds)
