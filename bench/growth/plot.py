"""The plot and the table of how costs grow. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple


class Point(NamedTuple):
    size: int
    cpu_ms: float
    wall_ms: float


class Series(NamedTuple):
    panel: str
    name: str
    points: tuple[Point, ...]


def exponent(series: Series) -> float:
    """Return the slope of the last decade, both axes logarithmic: 1 is linear, 0 is flat."""
    largest = series.points[-1].size
    last = [(math.log(each.size), math.log(each.cpu_ms)) for each in series.points if each.size * 10 >= largest]
    if len(last) < 2:
        last = [(math.log(each.size), math.log(each.cpu_ms)) for each in series.points[-2:]]
    middle_x, middle_y = (sum(each[axis] for each in last) / len(last) for axis in (0, 1))
    rise = sum((x - middle_x) * (y - middle_y) for x, y in last)
    return rise / sum((x - middle_x) ** 2 for x, _ in last)


def table(found: Sequence[Series]) -> str:
    """Return the table in Markdown."""
    lines = ["| what grows | request | from | to | CPU, ms | exponent |", "|---|---|---:|---:|---:|---:|"]
    for each in found:
        first, last = each.points[0], each.points[-1]
        cpu = (
            f"{first.cpu_ms:.3g} … {last.cpu_ms:,.3g}"
            if last.cpu_ms < 1000
            else f"{first.cpu_ms:.3g} … {last.cpu_ms:,.0f}"
        )
        lines.append(f"| {each.panel} | {each.name} | {first.size:,} | {last.size:,} | {cpu} | {exponent(each):.2f} |")
    return "\n".join(lines)


# ---- the plot ----

COLUMNS, WIDTH, HEIGHT = 3, 320, 270
"""Of panels, and their size."""
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 46
_STYLE = """
svg { --ink: #1f2328; --soft: #6e7781; --grid: #d8dee4; --a: #0969da; --b: #bc4c00; --c: #1a7f37; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --soft: #9198a1; --grid: #3d444d; --a: #58a6ff; --b: #f0883e; --c: #56d364; }
}
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.title { font-weight: 600; font-size: 13px; }
.tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--grid); }
.linear { stroke: var(--soft); stroke-dasharray: 2 3; }
polyline { fill: none; stroke-width: 2; }
.s0 { stroke: var(--a); } .s1 { stroke: var(--b); } .s2 { stroke: var(--c); }
circle.s0, text.s0 { fill: var(--a); stroke: none; } circle.s1, text.s1 { fill: var(--b); stroke: none; }
circle.s2, text.s2 { fill: var(--c); stroke: none; }
"""
_LABEL = "CPU time of a request by the size of what it handles, on logarithmic axes"
_TITLES = {
    "input items": "input items",
    "tools": "functions that the request declares",
    "turns": "turns with a tool call",
    "chain depth": "responses in the chain",
    "text, bytes": "bytes of text",
    "stored responses": "responses in the database",
}


def draw(found: Sequence[Series]) -> str:
    """Return an SVG with a panel for each thing that grows."""
    panels: dict[str, list[Series]] = {}
    for each in found:
        panels.setdefault(each.panel, []).append(each)
    times = [point.cpu_ms for each in found for point in each.points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    width, height = COLUMNS * WIDTH, -(-len(panels) // COLUMNS) * HEIGHT + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{_LABEL}">',
        f"<style>{_STYLE}</style>",
    ]
    for at, (name, inside) in enumerate(panels.items()):
        x, y = at % COLUMNS * WIDTH, at // COLUMNS * HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *_panel(name, inside, low, high), "</g>"]
    lines.append(f'<line class="linear" x1="{LEFT}" x2="{LEFT + 30}" y1="{height - 12}" y2="{height - 12}"/>')
    lines.append(
        f'<text class="tick" x="{LEFT + 36}" y="{height - 8}">linear: twice as much takes twice as long</text>'
    )
    return "\n".join([*lines, "</svg>", ""])


def _panel(name: str, inside: Sequence[Series], low: int, high: int) -> Iterator[str]:
    sizes = [point.size for each in inside for point in each.points]
    first, last = math.log10(min(sizes)), math.log10(max(sizes))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM

    def x_of(size: float) -> float:
        return left + (math.log10(size) - first) / (last - first) * (right - left)

    def y_of(milliseconds: float) -> float:
        return bottom - (math.log10(milliseconds) - low) / (high - low) * (bottom - top)

    yield f'<text class="title" x="{left}" y="16">{escape(name.partition(",")[0])}</text>'
    for decade in range(low, high + 1):
        y = y_of(10**decade)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:,g}</text>'
    for decade in range(math.ceil(first), math.floor(last) + 1):
        x = x_of(10**decade)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_short(10**decade)}</text>'
    middle = (top + bottom) / 2
    yield f'<text class="tick" x="{(left + right) / 2}" y="{bottom + 31}" text-anchor="middle">{_TITLES[name]}</text>'
    yield f'<text class="tick" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">CPU, ms</text>'
    end = max((each.points[-1] for each in inside), key=lambda point: point.cpu_ms)
    start = max(10.0**first, end.size * 10.0**low / end.cpu_ms)
    yield (
        f'<line class="linear" x1="{x_of(start):.1f}" y1="{y_of(end.cpu_ms * start / end.size):.1f}" '
        f'x2="{x_of(end.size):.1f}" y2="{y_of(end.cpu_ms):.1f}"/>'
    )
    for at, each in enumerate(inside):
        places = [(x_of(point.size), y_of(point.cpu_ms)) for point in each.points]
        yield f'<polyline class="s{at}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        yield from (f'<circle class="s{at}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        said = f"{each.name}: exponent {exponent(each):.2f}"
        yield f'<text class="s{at}" x="{left + 6}" y="{top + 14 + 15 * at}">{escape(said)}</text>'


def _short(number: int) -> str:
    for unit, sign in ((10**6, "M"), (1000, "k")):
        if number >= unit:
            return f"{number // unit}{sign}"
    return str(number)
