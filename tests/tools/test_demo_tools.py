"""The clock, the calculator and the unit converter as a model meets them."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self
from zoneinfo import available_timezones

import pytest

from antwort.api.items import McpCall, McpListTools
from antwort.api.wire import UNSET
from antwort.providers.base import ChatTool, ChatToolFunction
from antwort.providers.tool_emulation.prompt import describe_tools
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools import zones
from antwort.tools.base import ToolResult
from antwort.tools.demo import calculate, convert_units, current_time, demo_tools
from engine_kit import ask, engine_of, kinds, only
from live_server import launched
from raw_http import ask as post

DEMO = {"type": "mcp", "server_label": "demo", "require_approval": "never"}
NOON = datetime(2026, 11, 15, 12, 0, 5, tzinfo=UTC)


class Stopped(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        there = NOON.astimezone(tz)
        return cls(*there.timetuple()[:6], tzinfo=there.tzinfo)


has_zones = pytest.mark.skipif(not available_timezones(), reason="there is no zone database on this machine")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datetime.datetime", Stopped)


def problem(result: str | ToolResult) -> str:
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert isinstance(result.output, str)
    return result.output


def test_a_small_model_reads_them_in_a_few_lines() -> None:
    functions = [
        ChatToolFunction(name=each.name, description=each.description or UNSET, parameters=each.parameters or UNSET)
        for each in (local.definition for local in demo_tools().tools)
    ]
    assert describe_tools([ChatTool(function=function) for function in functions]).splitlines() == [
        "current_time(zone?: string) - Get the current date and time.",
        "  zone: A city or time zone, such as Tokyo or Europe/Berlin.",
        "calculate(expression: string) - Work out an arithmetic expression.",
        "  expression: Such as (12 + 3.5) * 4, sqrt(2) or 15% of 80.",
        "convert_units(value: number, from: string, to: string) - Convert a value from one unit to another.",
        "  value: The number to convert.",
        "  from: The unit it is in, such as miles.",
        "  to: The unit to convert it to, such as km.",
    ]


def test_they_can_be_run_again_when_it_is_not_known_whether_they_ran() -> None:
    assert all(local.definition.read_only for local in demo_tools().tools)


# ---- the clock ----


@has_zones
@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("Tokyo", "Sunday, 15 November 2026, 21:00:05 (Asia/Tokyo, UTC+09:00)"),
        ("europe/berlin", "Sunday, 15 November 2026, 13:00:05 (Europe/Berlin, UTC+01:00)"),
        ("New York", "Sunday, 15 November 2026, 07:00:05 (America/New_York, UTC-05:00)"),
        ("America/New_York", "Sunday, 15 November 2026, 07:00:05 (America/New_York, UTC-05:00)"),
        ("Paris, France", "Sunday, 15 November 2026, 13:00:05 (Europe/Paris, UTC+01:00)"),
        ("PST", "Sunday, 15 November 2026, 04:00:05 (America/Los_Angeles, UTC-08:00)"),
        ("beijing", "Sunday, 15 November 2026, 20:00:05 (Asia/Shanghai, UTC+08:00)"),
        ("UTC", "Sunday, 15 November 2026, 12:00:05 (UTC)"),
        ("UTC+14", "Monday, 16 November 2026, 02:00:05 (UTC+14:00)"),
        ("-03:30", "Sunday, 15 November 2026, 08:30:05 (UTC-03:30)"),
        ("+0545", "Sunday, 15 November 2026, 17:45:05 (UTC+05:45)"),
    ],
)
def test_the_clock_knows_places_zones_and_offsets(zone: str, told: str) -> None:
    assert current_time(zone) == told


@has_zones
@pytest.mark.parametrize(
    ("written", "zone"),
    [
        ("Z\u00fcrich", "Europe/Zurich"),
        ("S\u00e3o Paulo, Brazil", "America/Sao_Paulo"),
        ("London, UK", "Europe/London"),
        ("Munich, Germany", "Europe/Berlin"),
        ("Austin, Texas", "America/Chicago"),
        ("Tokyo, Asia", "Asia/Tokyo"),
        ("Berlin,", "Europe/Berlin"),
    ],
)
def test_accents_and_the_land_that_a_place_is_in_may_be_said(written: str, zone: str) -> None:
    assert zones.find_zone(written)[0] == zone


@pytest.mark.parametrize("has_tables", [True, False])
def test_countries_are_those_of_the_zone_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tables: bool
) -> None:
    if has_tables:
        (tmp_path / "iso3166.tab").write_text("# codes\nJP\tJapan\n", encoding="utf-8")
        (tmp_path / "zone.tab").write_text("JP\t+353916+1394441\tAsia/Tokyo\n", encoding="utf-8")
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path),))
    zones._tables.cache_clear()
    try:
        assert zones._is_in("Asia/Tokyo", "japan") is has_tables
    finally:
        zones._tables.cache_clear()


@has_zones
@pytest.mark.parametrize("name", ["London, Ontario", "Paris, Texas", "Moscow, Idaho", "Factory", "localtime"])
def test_another_place_of_that_name_and_no_place_at_all_are_refused(name: str) -> None:
    assert problem(current_time(name)).startswith(f"There is no time zone {name!r}")


def test_without_a_zone_the_clock_tells_the_time_of_the_server() -> None:
    before = datetime.now().astimezone().replace(microsecond=0)
    told = current_time()
    assert isinstance(told, str)
    moment = told.partition(", ")[2].partition(" (")[0]
    seen = datetime.strptime(moment, "%d %B %Y, %H:%M:%S").replace(tzinfo=before.tzinfo)
    assert timedelta(0) <= seen - before < timedelta(minutes=1)
    assert told.endswith(f"(UTC{before.isoformat()[19:]})")


@has_zones
@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("berlni", "There is no time zone 'berlni'; near it are Europe/Berlin"),
        ("../../etc/passwd", "There is no time zone '../../etc/passwd'; say a city"),
        ("\x00", "There is no time zone '\\x00'; say a city, a zone such as Europe/Berlin, or an offset."),
        ("+25:00", "'+25:00' is no offset that any place has."),
        ("+05:99", "'+05:99' is no offset that any place has."),
    ],
)
def test_an_unknown_zone_is_told_with_those_that_are_near(zone: str, said: str) -> None:
    assert problem(current_time(zone)).startswith(said)


def test_a_long_name_is_not_repeated_at_length() -> None:
    assert len(problem(current_time("x" * 100_000))) < 300


@pytest.fixture
def _no_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    zones._zones.cache_clear()
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    yield
    zones._zones.cache_clear()


@pytest.mark.usefixtures("_no_database", "stopped")
def test_a_machine_without_the_zone_database_knows_utc_and_offsets() -> None:
    assert current_time("UTC") == "Sunday, 15 November 2026, 12:00:05 (UTC)"
    assert current_time("+02:00") == "Sunday, 15 November 2026, 14:00:05 (UTC+02:00)"
    assert "which has no zone database; say UTC, or an offset" in problem(current_time("Berlin"))


# ---- the calculator and the converter ----


def test_the_calculator_repeats_the_question_before_the_answer() -> None:
    assert calculate(" 12 * 7 ") == "12 * 7 = 84"
    assert problem(calculate("9**9**9")) == "The result is too large."


def test_the_converter_names_both_units() -> None:
    assert convert_units(5, "km", "mi") == "5 kilometers = 3.106856 miles"
    assert convert_units(1, "hour", "s") == "1 hour = 3600 seconds"
    assert problem(convert_units(1, "kg", "liters")).startswith("kilograms measure mass and liters measure volume")


# ---- in the loop ----


async def test_a_request_reaches_them_by_the_label_demo() -> None:
    provider = ScriptedProvider(
        answer(call("convert_units", value=10, **{"from": "km", "to": "miles"})), answer(say("6"))
    )
    response = await engine_of(provider, demo_tools()).create(ask("10 km?", tools=[DEMO]))
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed = [tool.name for tool in only(response, McpListTools).tools]
    assert listed == ["current_time", "calculate", "convert_units"]
    made = only(response, McpCall)
    assert (made.server_label, made.output) == ("demo", "10 kilometers = 6.213712 miles")


async def test_what_a_tool_cannot_do_is_news_for_the_model() -> None:
    provider = ScriptedProvider(answer(call("calculate", expression="1 / 0")), answer(say("That cannot be.")))
    response = await engine_of(provider, demo_tools()).create(ask("1 / 0?", tools=[DEMO]))
    assert response.status == "completed"
    made = only(response, McpCall)
    assert (made.status, made.error_text) == ("failed", "The expression divides by zero.")


async def test_a_server_offers_them_when_told_to() -> None:
    async with launched("--scripted", "--memory", "--demo-tools") as server:
        assert any("demo" in line and "calculate" in line for line in server.greeting), server.greeting
        body: dict[str, Any] = {"model": "scripted", "input": "What time is it?", "tools": [DEMO]}
        reply = await post(server.port, "POST", "/v1/responses", body)
        output = reply.json()["output"]
        assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "message"]
        assert output[1]["name"] == "current_time"
        assert output[2]["content"][0]["text"] == f"The tool answered: {output[1]['output']}"
