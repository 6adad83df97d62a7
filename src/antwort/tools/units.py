"""Convert between units of measurement, by all their usual names. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from antwort.suggestions import nearest


class CannotConvert(ValueError):
    """There is no such conversion; the message says why, and what there is."""


class Unit(NamedTuple):
    """A unit. `value * scale + offset` is the value in the base unit of its kind."""

    kind: str
    name: str
    """In the plural."""
    scale: float
    offset: float = 0.0


def convert(value: float, unit: str, to: str) -> float:
    """Return the value in another unit. Raises `CannotConvert`."""
    source, target = find_unit(unit), find_unit(to)
    if source.kind != target.kind:
        raise CannotConvert(
            f"{source.name} measure {source.kind} and {target.name} measure {target.kind}; units of {source.kind} are "
            f"{', '.join(names_of(source.kind))}."
        )
    base = value * source.scale + source.offset
    if source.kind == "temperature" and base < -1e-9:
        raise CannotConvert(f"{value:g} {source.name} is below absolute zero.")
    result = (base - target.offset) / target.scale
    if not math.isfinite(result):
        raise CannotConvert("The value is too large.")
    return value if source == target else result


def find_unit(name: str) -> Unit:
    """Find a unit by any of its names. Case counts where it matters (MB, Mb). Raises `CannotConvert`."""
    plain = _plain(name)
    if (found := _EXACT.get(plain)) is not None:
        return found
    if (near := _ANY_CASE.get(plain.casefold())) is None:
        raise CannotConvert(_unknown(name, plain))
    if _capitals_matter(plain, near):
        known = [f"{each} are {unit.name}" for each, unit in _EXACT.items() if each.casefold() == plain.casefold()]
        raise CannotConvert(f"There is no unit {name[:_LONGEST]!r}, where capitals matter: {', '.join(known)}.")
    return near


_CASED = frozenset({"mm", "mm2", "mg", "ml", "ms", "mj", "mw", "mbar", "nm", "ns", "us"})
"""With other capitals, other units: milli and mega, nanometers and nautical miles."""


def _capitals_matter(plain: str, near: Unit) -> bool:
    """Return whether a name may not be found regardless of case. All in lower case, `tb` means bytes; `Tb` does not."""
    is_bits = near.kind == "data" and plain.endswith("b") and not plain.islower()
    return is_bits or plain.casefold() in _CASED


def names_of(kind: str) -> list[str]:
    return [unit.name for unit in UNITS if unit.kind == kind]


def shown(value: float) -> str:
    """Format a value with seven digits, and all before the point."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.7g}"
    before = math.floor(math.log10(abs(value))) + 1
    text = f"{value:.{max(7 - before, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(value: float, unit: Unit) -> str:
    """Format a value with its unit, in the singular or plural."""
    name = _PLURAL.sub(lambda found: _ODD.get(found[0], found[0][:-1]), unit.name, count=1) if value == 1 else unit.name
    return f"{shown(value)} {name}"


_ODD = {"feet": "foot", "inches": "inch", "centuries": "century"}
_PLURAL = re.compile(r"\b(feet|\w+s)\b")


def _plain(name: str) -> str:
    """Return a name in one form: `m²`, `m^2` and `m 2` are `m2`, `°C` is `C`."""
    text = unicodedata.normalize("NFKC", name[:_LONGEST].translate(_DEGREES))
    text = text.replace("\u00b0", "").replace("^", "").replace("_", " ")
    return " ".join(text.replace("\u2044", "/").rstrip(". ").split())


_LONGEST = 60
_DEGREES = str.maketrans("\u00ba\u02da", "\u00b0\u00b0")
"""Look-alikes of the degree sign."""


def _unknown(name: str, plain: str) -> str:
    names = dict.fromkeys(_ANY_CASE[each].name for each in nearest(plain.casefold(), _ANY_CASE, 3, 0.75))
    if names:
        return f"There is no unit {name[:_LONGEST]!r}; near it are {', '.join(names)}."
    known = "; ".join(f"{kind}: {', '.join(names_of(kind)[:4])}" for kind in dict.fromkeys(unit.kind for unit in UNITS))
    return f"There is no unit {name[:_LONGEST]!r}. There are units of {known}, and more."


# ---- the units: the plural name, what one is, and other names ----

_INCH, _FOOT, _YARD, _MILE = 0.0254, 0.3048, 0.9144, 1609.344
_POUND, _GALLON, _IMPERIAL_GALLON = 0.45359237, 3.785411784, 4.54609
_DAY, _CALORIE = 86_400.0, 4.184

_TABLE: Mapping[str, tuple[tuple[str, float, str], ...]] = {
    "length": (
        ("meters", 1, "m|metre"),
        ("kilometers", 1000, "km|kilometre"),
        ("centimeters", 0.01, "cm|centimetre"),
        ("millimeters", 0.001, "mm|millimetre"),
        ("micrometers", 1e-6, "\u03bcm|um|micrometre|micron"),
        ("nanometers", 1e-9, "nm|nanometre"),
        ("miles", _MILE, "mi|mile"),
        ("yards", _YARD, "yd"),
        ("feet", _FOOT, "ft|foot|'"),
        ("inches", _INCH, 'in|inch|"'),
        ("nautical miles", 1852, "nmi|nautical mile"),
        ("light-years", 9_460_730_472_580_800, "ly|light year"),
        ("astronomical units", 149_597_870_700, "au"),
    ),
    "mass": (
        ("kilograms", 1, "kg|kilo|kilogramme"),
        ("grams", 0.001, "g|gramme"),
        ("milligrams", 1e-6, "mg"),
        ("tonnes", 1000, "t|metric ton"),
        ("pounds", _POUND, "lb|lbs"),
        ("ounces", _POUND / 16, "oz"),
        ("stones", _POUND * 14, "st|stone"),
        ("short tons", _POUND * 2000, "ton|us ton"),
        ("long tons", _POUND * 2240, "imperial ton|uk ton"),
    ),
    "volume": (
        ("liters", 1, "l|litre"),
        ("milliliters", 0.001, "ml|mL|millilitre|cc|cm3|cubic centimeter|cubic centimetre"),
        ("centiliters", 0.01, "cl|centilitre"),
        ("deciliters", 0.1, "dl|decilitre"),
        ("cubic meters", 1000, "m3|cubic metre|cu m"),
        ("gallons", _GALLON, "gal|us gallon"),
        ("quarts", _GALLON / 4, "qt|us quart"),
        ("pints", _GALLON / 8, "pt|us pint"),
        ("cups", _GALLON / 16, "cup|us cup"),
        ("fluid ounces", _GALLON / 128, "fl oz|floz|fluid ounce"),
        ("tablespoons", _GALLON / 256, "tbsp"),
        ("teaspoons", _GALLON / 768, "tsp"),
        ("imperial gallons", _IMPERIAL_GALLON, "uk gallon|imp gal"),
        ("imperial pints", _IMPERIAL_GALLON / 8, "uk pint"),
        ("cubic feet", _FOOT**3 * 1000, "ft3|cubic foot|cu ft"),
        ("cubic inches", _INCH**3 * 1000, "in3|cubic inch|cu in"),
        ("barrels", _GALLON * 42, "bbl|oil barrel"),
    ),
    "area": (
        ("square meters", 1, "m2|sq m|sqm|square metre|meters squared|metres squared"),
        ("square kilometers", 1e6, "km2|sq km|square kilometre"),
        ("square centimeters", 1e-4, "cm2|sq cm|square centimetre"),
        ("square millimeters", 1e-6, "mm2|sq mm|square millimetre"),
        ("hectares", 1e4, "ha"),
        ("acres", 4046.8564224, "ac"),
        ("square miles", _MILE**2, "mi2|sq mi|square mile"),
        ("square yards", _YARD**2, "yd2|sq yd"),
        ("square feet", _FOOT**2, "ft2|sq ft|sqft|square foot"),
        ("square inches", _INCH**2, "in2|sq in|square inch"),
    ),
    "speed": (
        ("meters per second", 1, "m/s|mps|meter per second|metres per second|metre per second"),
        ("kilometers per hour", 1 / 3.6, "km/h|kmh|kph|kmph|kilometer per hour|kilometres per hour"),
        ("miles per hour", _MILE / 3600, "mph|mi/h|mile per hour"),
        ("feet per second", _FOOT, "ft/s|fps|foot per second"),
        ("knots", 1852 / 3600, "kn|kt"),
    ),
    "time": (
        ("seconds", 1, "s|sec"),
        ("milliseconds", 0.001, "ms"),
        ("microseconds", 1e-6, "\u03bcs|us"),
        ("nanoseconds", 1e-9, "ns"),
        ("minutes", 60, "min"),
        ("hours", 3600, "h|hr"),
        ("days", _DAY, "d"),
        ("weeks", _DAY * 7, "wk"),
        ("months", _DAY * 365.2425 / 12, "mo"),
        ("years", _DAY * 365.2425, "y|yr"),
        ("decades", _DAY * 3652.425, ""),
        ("centuries", _DAY * 36524.25, "century"),
    ),
    "data": (
        ("bytes", 1, "B"),
        ("kilobytes", 1e3, "kB|KB"),
        ("megabytes", 1e6, "MB"),
        ("gigabytes", 1e9, "GB|gig"),
        ("terabytes", 1e12, "TB"),
        ("petabytes", 1e15, "PB"),
        ("kibibytes", 2**10, "KiB"),
        ("mebibytes", 2**20, "MiB"),
        ("gibibytes", 2**30, "GiB"),
        ("tebibytes", 2**40, "TiB"),
        ("bits", 0.125, "b"),
        ("kilobits", 125, "Kb|kbit"),
        ("megabits", 125e3, "Mb|Mbit"),
        ("gigabits", 125e6, "Gb|Gbit"),
        ("terabits", 125e9, "Tb|Tbit"),
    ),
    "energy": (
        ("joules", 1, "J"),
        ("kilojoules", 1e3, "kJ"),
        ("megajoules", 1e6, "MJ"),
        ("calories", _CALORIE, "cal"),
        ("kilocalories", _CALORIE * 1000, "kcal"),
        ("watt-hours", 3600, "Wh|watt hour"),
        ("kilowatt-hours", 3.6e6, "kWh|kilowatt hour"),
        ("British thermal units", 1055.05585262, "btu"),
        ("electronvolts", 1.602176634e-19, "eV|electron volt"),
    ),
    "power": (
        ("watts", 1, "W"),
        ("milliwatts", 1e-3, "mW"),
        ("kilowatts", 1e3, "kW"),
        ("megawatts", 1e6, "MW"),
        ("horsepower", _POUND * 9.80665 * _FOOT * 550, "hp"),
    ),
    "pressure": (
        ("pascals", 1, "Pa"),
        ("hectopascals", 100, "hPa|mbar|millibar"),
        ("kilopascals", 1e3, "kPa"),
        ("bars", 1e5, "bar"),
        ("atmospheres", 101_325, "atm"),
        ("pounds per square inch", _POUND * 9.80665 / _INCH**2, "psi"),
        ("millimeters of mercury", 133.322387415, "mmHg|torr"),
    ),
    "angle": (
        ("degrees", math.pi / 180, "deg"),
        ("radians", 1, "rad"),
        ("turns", 2 * math.pi, "revolution"),
    ),
    "temperature": (
        ("degrees Celsius", 1, "C|celsius|centigrade|degree celsius|deg c|degree c|degrees c"),
        ("degrees Fahrenheit", 5 / 9, "F|fahrenheit|degree fahrenheit|deg f|degree f|degrees f"),
        ("kelvins", 1, "K|degrees kelvin"),
    ),
}
_OFFSETS = {"degrees Celsius": 273.15, "degrees Fahrenheit": 459.67 * 5 / 9}
_SHORT = 3


def _units() -> Iterator[tuple[Unit, str]]:
    for kind, rows in _TABLE.items():
        for name, scale, others in rows:
            yield Unit(kind, name, scale, _OFFSETS.get(name, 0.0)), others


def _spellings(unit: Unit, others: str) -> Iterator[str]:
    """Yield the spellings of a unit. Short names have no plural; irregular singulars are in the table."""
    yield unit.name
    if unit.name.endswith("s") and not unit.name.endswith(("hes", "ies")):
        yield unit.name.removesuffix("s")
    for other in filter(None, others.split("|")):
        yield other
        if len(other) > _SHORT and not other.endswith("s"):
            yield f"{other}s"


UNITS = tuple(unit for unit, _ in _units())
_EXACT = {_plain(name): unit for unit, others in _units() for name in _spellings(unit, others)}
_ANY_CASE: dict[str, Unit] = {}
for _name, _unit in _EXACT.items():
    _ANY_CASE.setdefault(_name.casefold(), _unit)
