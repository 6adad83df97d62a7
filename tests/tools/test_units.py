"""The unit converter: there and back, by every name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools import units
from antwort.tools.units import UNITS, CannotConvert, Unit, convert, counted, find_unit, shown

values = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda value: value == 0 or abs(value) > 1e-6)


@pytest.mark.parametrize(
    ("value", "unit", "to", "result"),
    [
        (1, "mile", "km", 1.609344),
        (6, "feet", "cm", 182.88),
        (1, "inch", "mm", 25.4),
        (1, "lb", "g", 453.59237),
        (16, "oz", "pound", 1),
        (100, "\u00b0C", "\u00b0F", 212),
        (-40, "fahrenheit", "celsius", -40),
        (0, "K", "C", -273.15),
        (1, "us gallon", "liters", 3.785411784),
        (3, "tsp", "tbsp", 1),
        (1, "m\u00b3", "litres", 1000),
        (1, "acre", "m^2", 4046.8564224),
        (100, "km/h", "m/s", 27.7777777778),
        (1, "knot", "km/h", 1.852),
        (1, "week", "hours", 168),
        (1, "GiB", "bytes", 2**30),
        (8, "Mb", "MB", 1),
        (1, "kWh", "MJ", 3.6),
        (1, "kcal", "kJ", 4.184),
        (1, "hp", "watts", 745.699872),
        (1, "atm", "hPa", 1013.25),
        (1, "psi", "kPa", 6.894757),
        (180, "degrees", "radians", 3.14159265),
    ],
)
def test_a_value_is_converted(value: float, unit: str, to: str, result: float) -> None:
    assert convert(value, unit, to) == pytest.approx(result, rel=1e-7)


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        (("km", "KM", "Kilometers", "kilometer", "kilometre", "kilometres", " km. "), "kilometers"),
        (("sq ft", "ft2", "ft\u00b2", "ft^2", "square foot", "Square Feet", "square_feet"), "square feet"),
        (("\u00b5m", "\u03bcm", "um", "microns"), "micrometers"),
        (("C", "c", "\u00b0c", "\u2103", "degrees C", "degrees Celsius", "Celsius"), "degrees Celsius"),
        (("MB", "mb", "megabyte"), "megabytes"),
        (("Mb", "Mbit", "megabit"), "megabits"),
        (("b", "bit"), "bits"),
        (("B", "byte"), "bytes"),
    ],
)
def test_a_unit_is_known_by_its_usual_names(names: tuple[str, ...], unit: str) -> None:
    assert {find_unit(name).name for name in names} == {unit}


@pytest.mark.parametrize("name", ["\u00b0C", "\u00baC", "\u02daC", "\u2103"])
def test_a_degree_is_known_by_whatever_looks_like_its_sign(name: str) -> None:
    assert find_unit(name).name == "degrees Celsius"


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        ("mW", "milliwatts"),
        ("MW", "megawatts"),
        ("Kb", "kilobits"),
        ("kb", "kilobytes"),
        ("KB", "kilobytes"),
        ("Tb", "terabits"),
        ("mL", "milliliters"),
    ],
)
def test_capitals_tell_milli_from_mega_and_bits_from_bytes(written: str, unit: str) -> None:
    assert find_unit(written).name == unit


@pytest.mark.parametrize("name", ["mw", "Ms", "MS", "Mm", "Mg", "ML", "mj", "Nm", "US", "Pb", "Mib"])
def test_where_capitals_matter_others_are_refused(name: str) -> None:
    with pytest.raises(CannotConvert, match=f"There is no unit '{name}', where capitals matter: "):
        find_unit(name)


def test_no_two_units_share_a_name() -> None:
    spelt = [(plain, unit) for unit, others in units._units() for plain in {*map(units._plain, _all(unit, others))}]
    assert len(spelt) == len(dict(spelt))


def _all(unit: Unit, others: str) -> list[str]:
    return [*units._spellings(unit, others)]


def test_an_unknown_unit_is_told_with_those_that_are_near() -> None:
    with pytest.raises(CannotConvert, match="There is no unit 'meeters'; near it are meters"):
        convert(1, "meeters", "km")


def test_an_unknown_unit_that_is_like_none_is_told_with_what_there_is() -> None:
    with pytest.raises(CannotConvert) as caught:
        convert(1, "km", "\x1bqwxyz" * 1000)
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)
    for kind in {unit.kind for unit in UNITS}:
        assert f"{kind}: " in str(caught.value)


def test_what_measures_something_else_is_refused_with_what_would_do() -> None:
    with pytest.raises(CannotConvert) as caught:
        convert(1, "kg", "m")
    assert str(caught.value) == (
        "kilograms measure mass and meters measure length; units of mass are kilograms, grams, milligrams, tonnes, "
        "pounds, ounces, stones, short tons, long tons."
    )


@pytest.mark.parametrize(
    ("value", "unit", "to", "problem"),
    [(-300, "C", "K", "below absolute zero"), (1e308, "light-years", "nm", "too large")],
)
def test_what_cannot_be_is_told(value: float, unit: str, to: str, problem: str) -> None:
    with pytest.raises(CannotConvert, match=problem):
        convert(value, unit, to)


pairs = st.sampled_from(UNITS).flatmap(
    lambda unit: st.tuples(st.just(unit), st.sampled_from([each for each in UNITS if each.kind == unit.kind]))
)


@given(values, pairs)
def test_there_and_back_is_where_it_began(value: float, pair: tuple[Unit, Unit]) -> None:
    unit, to = pair
    value = abs(value) if unit.kind == "temperature" else value
    there = convert(value, unit.name, to.name)
    assert convert(there, to.name, unit.name) == pytest.approx(value, rel=1e-9, abs=1e-9)


@given(values)
def test_a_shown_value_is_the_value_to_seven_digits(value: float) -> None:
    assert float(shown(value)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1, "ft", "1 foot"),
        (1, "in2", "1 square inch"),
        (1, "mph", "1 mile per hour"),
        (1, "celsius", "1 degree Celsius"),
        (1, "hp", "1 horsepower"),
        (1, "century", "1 century"),
        (2, "ft", "2 feet"),
        (0.30000000000000004, "m", "0.3 meters"),
        (1073741824.0, "B", "1073741824 bytes"),
        (0.0000123456789, "m", "1.234568e-05 meters"),
    ],
)
def test_amounts_are_counted_in_words(value: float, unit: str, text: str) -> None:
    assert counted(value, find_unit(unit)) == text
