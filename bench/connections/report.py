"""The figures as a table in Markdown. Pure."""

from __future__ import annotations

from typing import Any

_MIB = 1024 * 1024


def table(connections: int, figures: dict[str, dict[str, Any]]) -> str:
    """What was measured of each kind of connection, side by side, and what the first is to the second."""
    kinds = list(figures)
    head = [f"| {connections:,} connections | {' | '.join(kinds)} | ratio |", f"|---|{'---:|' * (len(kinds) + 1)}"]
    return "\n".join([*head, *(_row(title, [read(figures[kind]) for kind in kinds]) for title, read in _ROWS)])


def _row(title: str, values: list[float]) -> str:
    ratio = f"{values[0] / values[1]:.2f}" if len(values) > 1 and values[1] else ""
    return f"| {title} | {' | '.join(f'{value:,g}' for value in values)} | {ratio} |"


def _turns(name: str, key: str) -> Any:
    return lambda figures: figures[name][key]


def _memory(name: str) -> Any:
    return lambda figures: round(figures["states"][name]["pss"] / _MIB, 1)


_ROWS = (
    ("open all of them, s", lambda figures: figures["open_seconds"]),
    ("first turns completed", _turns("first", "completed")),
    ("first turns under way at once", _turns("first", "under_way_at_once")),
    ("all first turns, s", _turns("first", "seconds")),
    ("first turns per second", _turns("first", "turns_per_second")),
    ("second turns completed", _turns("second", "completed")),
    ("all second turns, s", _turns("second", "seconds")),
    ("second turns per second", _turns("second", "turns_per_second")),
    ("server's CPU for a turn, ms", lambda figures: figures["cpu_ms_per_turn"]),
    ("server's memory before, MiB", _memory("before")),
    ("with all of them idle, MiB", _memory("idle")),
    ("after the second turns, MiB", _memory("after_second")),
    ("after they were closed, MiB", _memory("closed")),
    ("KiB for each idle connection", lambda figures: figures["kib_per_connection"]["idle"]),
    ("KiB for each after two turns", lambda figures: figures["kib_per_connection"]["after_second"]),
    ("connections left behind", lambda figures: figures["connections_left"]),
    ("runs left behind", lambda figures: figures["gauges_left"].get("antwort_runs_live", 0)),
)
