"""How costs grow: what is published is what was measured, and nothing in it is steeper than linear."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from growth.backend import pieces
from growth.plot import Point, Series, draw, exponent, table
from growth.run import up_to

DOCS = Path(__file__).resolve().parents[2] / "docs"
PUBLISHED = [
    Series(each["panel"], each["name"], tuple(Point(*point) for point in each["points"]))
    for each in json.loads((DOCS / "assets" / "growth.json").read_text(encoding="utf-8"))
]


def series(power: float, *sizes: int) -> Series:
    return Series("tools", "stored", tuple(Point(size, 0.1 * size**power, 1.0) for size in sizes))


@pytest.mark.parametrize("power", [0, 1, 1.5, 2])
def test_the_exponent_is_the_slope_of_the_last_decade(power: float) -> None:
    assert exponent(series(power, 1, 10, 30, 100)) == pytest.approx(power)
    assert exponent(series(power, 1, 100)) == pytest.approx(power)


def test_what_is_handled_costs_linear_time_at_most_and_a_response_by_its_id_the_same_among_any_number() -> None:
    assert {each.panel for each in PUBLISHED} == {
        *("input items", "tools", "turns", "chain depth", "text, bytes", "stored responses")
    }
    assert [(each.panel, each.name) for each in PUBLISHED if exponent(each) > 1.2] == []
    (by_id,) = (each for each in PUBLISHED if each.name == "GET by id")
    assert (by_id.points[0].size, by_id.points[-1].size) == (1000, 1_000_000)
    assert by_id.points[-1].cpu_ms < 2 * by_id.points[0].cpu_ms


def test_the_table_and_the_plot_are_of_the_same_figures() -> None:
    assert table(PUBLISHED) in (DOCS / "performance.md").read_text(encoding="utf-8")
    drawn = (DOCS / "assets" / "growth.svg").read_text(encoding="utf-8")
    assert drawn == draw(PUBLISHED)
    root = ElementTree.fromstring(drawn)
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(PUBLISHED)


@pytest.mark.parametrize(
    ("wanted", "results", "said"),
    [
        (b"", 0, "Done."),
        (b"text=100", 0, ("word " * 12 + "end. ") * 2),
        (b"turns=3", 2, "Done."),
    ],
)
def test_the_backend_answers_as_the_instructions_say(wanted: bytes, results: int, said: str) -> None:
    deltas = [*pieces(wanted + b'{"role":"tool"}' * results)]
    assert "".join(each["content"] for each in deltas) == said[: 100 if b"text" in wanted else None]
    assert next(pieces(b"turns=2"))["tool_calls"][0]["function"]["name"] == "look"


def test_a_smoke_test_has_two_sizes_at_least() -> None:
    assert up_to((1, 2, 50), 20) == [1, 2]
    assert up_to((1, 10, 100, 1000), 20) == [1, 10]
