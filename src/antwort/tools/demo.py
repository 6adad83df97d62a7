"""Three demo tools: a clock, a calculator and a unit converter. Their results are short, for small models."""

from __future__ import annotations

import datetime

from antwort.tools import arithmetic, units
from antwort.tools.base import ToolResult
from antwort.tools.toolset import Toolset
from antwort.tools.zones import UnknownZone, find_zone

LABEL = "demo"

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def demo_tools() -> Toolset:
    """Return a new toolset of the demo tools."""
    toolset = Toolset(LABEL)
    for function in (current_time, calculate, convert_units):
        toolset.tool(read_only=True)(function)
    return toolset


def current_time(zone: str = "") -> str | ToolResult:
    """Get the current date and time.

    Args:
        zone: A city or time zone, such as Tokyo or Europe/Berlin.
    """
    if not zone.strip():
        now = datetime.datetime.now().astimezone()
        return _told(now, _offset(now))
    try:
        name, place = find_zone(zone)
    except UnknownZone as exc:
        return _failed(exc)
    now = datetime.datetime.now(place)
    return _told(now, name if name.startswith("UTC") else f"{name}, {_offset(now)}")


def _offset(now: datetime.datetime) -> str:
    return f"UTC{now.isoformat(timespec='seconds')[19:]}"


def _told(now: datetime.datetime, zone: str) -> str:
    return f"{_DAYS[now.weekday()]}, {now.day} {_MONTHS[now.month - 1]} {now.year}, {now:%H:%M:%S} ({zone})"


def calculate(expression: str) -> str | ToolResult:
    """Work out an arithmetic expression.

    Args:
        expression: Such as (12 + 3.5) * 4, sqrt(2) or 15% of 80.
    """
    try:
        return f"{expression.strip()} = {arithmetic.shown(arithmetic.calculate(expression))}"
    except arithmetic.CannotCalculate as exc:
        return _failed(exc)


def convert_units(value: float, from_: str, to: str) -> str | ToolResult:
    """Convert a value from one unit to another.

    Args:
        value: The number to convert.
        from_: The unit it is in, such as miles.
        to: The unit to convert it to, such as km.
    """
    try:
        result = units.convert(value, from_, to)
        source, target = units.find_unit(from_), units.find_unit(to)
    except units.CannotConvert as exc:
        return _failed(exc)
    return f"{units.counted(value, source)} = {units.counted(result, target)}"


def _failed(reason: ValueError) -> ToolResult:
    """Return an error for the model. An exception would be logged."""
    return ToolResult("", str(reason), is_error=True)
