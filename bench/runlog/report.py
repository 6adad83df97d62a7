"""The figures as a table in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Figures: TypeAlias = Mapping[str, Any]


def table(figures: Mapping[str, Figures], runs: int, finished: int) -> str:
    """A column for each home."""
    head = [f"| | {' | '.join(figures)} |", f"|---|{'---:|' * len(figures)}"]
    rows = [(title.format(runs=runs, finished=finished), read) for title, read in _ROWS]
    return "\n".join([*head, *(f"| {title} | {' | '.join(_cells(figures, read))} |" for title, read in rows)])


def _cells(figures: Mapping[str, Figures], read: Callable[[Figures], str]) -> list[str]:
    cells = []
    for each in figures.values():
        try:
            cells.append(read(each))
        except (KeyError, IndexError):
            cells.append("")
    return cells


def _append(at_once: int) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        each = figures["append"][at_once]
        return f"{each['client_us']:g} + {each['server_us']:g}"

    return cell


def _waits(at_once: int) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        each = figures["append"][at_once]
        return f"{each['p50_ms']:.1f} / {each['p99_ms']:.1f}"

    return cell


def _takeover(at: int) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        each = figures["takeover"][at]
        return f"{each['median_s']:g} / {each['longest_s']:g} (lease {each['lease']:g} s)"

    return cell


def _handing_out(figures: Figures) -> str:
    each = figures["handing_out"]
    return f"{each['client_us']:.0f} + {each['server_us']:.0f}"


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("takeover, median / longest s", _takeover(0)),
    ("takeover with a longer lease, s", _takeover(1)),
    ("append of 1 event, {runs} runs: CPU µs an event, client + server", _append(1)),
    ("append of 5", _append(5)),
    ("append of 100", _append(100)),
    ("events a second, 1 an append", lambda figures: f"{figures['append'][1]['per_second']:,}"),
    ("events a second, 5 an append", lambda figures: f"{figures['append'][5]['per_second']:,}"),
    ("events a second, 100 an append", lambda figures: f"{figures['append'][100]['per_second']:,}"),
    ("an append of 1 waits, p50 / p99 ms", _waits(1)),
    (
        "append to reader, 50 runs with 20 events a second, p50 / p99 ms",
        lambda figures: f"{figures['tail']['p50_ms']:.1f} / {figures['tail']['p99_ms']:.1f}",
    ),
    ("submit and claim of a run: CPU µs, client + server", _handing_out),
    (
        "replay of 5,000 events, fresh / packed, ms",
        lambda figures: f"{figures['replay']['fresh_ms']:g} / {figures['replay']['packed_ms']:g}",
    ),
    ("{finished:,} finished runs of 100 events: memory, MiB", lambda figures: f"{figures['kept']['memory_mib']:g}"),
    (
        "the same on the disk, as it is / without what is free in it, MiB",
        lambda figures: f"{figures['kept']['disk_mib']:g} / {figures['kept']['live_mib']:g}",
    ),
)
