"""Find time zones by their usual names: IANA's, those of cities, abbreviations and offsets."""

from __future__ import annotations

import re
import unicodedata
import zoneinfo
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, timedelta, timezone, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from antwort.suggestions import nearest

_LONGEST = 60
_NOWHERE = frozenset({"Factory", "localtime", "posixrules"})
"""Entries of the database that are no time zones."""
_OTHER_TREES = ("posix/", "right/", "Etc/")
_OFFSET = re.compile(r"(?:utc|gmt)?\s*([+-])\s*(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)

_ALSO: Mapping[str, str] = {
    "Africa/Johannesburg": "south africa|cape town|sast",
    "America/Chicago": "central time|ct|cst|cdt|dallas|houston|austin|texas",
    "America/Denver": "mountain time|mt|mdt|salt lake city",
    "America/Los_Angeles": "pacific time|pt|pst|pdt|la|san francisco|san diego|seattle|las vegas|california",
    "America/New_York": "eastern time|et|edt|nyc|new york city|boston|washington|washington dc|miami|atlanta",
    "America/Sao_Paulo": "brazil|rio|rio de janeiro|brasilia",
    "America/Toronto": "ottawa|montreal",
    "Asia/Dubai": "abu dhabi|uae",
    "Asia/Kolkata": "india|ist|delhi|new delhi|mumbai|bangalore|bengaluru|chennai",
    "Asia/Seoul": "south korea|korea|kst",
    "Asia/Shanghai": "china|beijing|peking|shenzhen|guangzhou",
    "Asia/Tokyo": "jst|osaka|kyoto",
    "Australia/Sydney": "canberra|aest|aedt",
    "Europe/Berlin": "germany|munich|hamburg|frankfurt|cologne|cest",
    "Europe/London": "uk|england|britain|united kingdom|bst|manchester|edinburgh",
    "Europe/Madrid": "spain|barcelona",
    "Europe/Paris": "france|lyon|marseille",
    "Europe/Rome": "italy|milan|naples",
    "Europe/Zurich": "switzerland|geneva|bern",
    "Europe/Amsterdam": "netherlands|rotterdam",
    "Europe/Vienna": "austria",
}
"""Names that the zone database does not have."""


class UnknownZone(ValueError):
    """There is no such zone; the message names some that are near."""


def find_zone(name: str) -> tuple[str, tzinfo]:
    """Return the name of a zone, and the zone. Raises `UnknownZone`."""
    if found := _OFFSET.fullmatch(name.strip()):
        return _offset(name, found)
    known = _zones()
    city, _, place = name.partition(",")  # "Paris, France", and not "Paris, Texas"
    if (zone := known.get(_plain(city))) is not None and _is_in(zone, _plain(place)):
        return zone, ZoneInfo(zone)
    if _plain(name) in ("utc", "gmt", "z", "zulu"):
        return "UTC", UTC
    raise UnknownZone(_unknown(name))


def _offset(name: str, found: re.Match[str]) -> tuple[str, tzinfo]:
    size = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    if size > timedelta(hours=14) or int(found[3] or 0) > 59:
        raise UnknownZone(f"{name.strip()!r} is no offset that any place has.")
    zone = timezone(-size if found[1] == "-" else size)
    return str(zone), zone


def _plain(name: str) -> str:
    """Return a name in one form, without case and accents."""
    letters = unicodedata.normalize("NFKD", name[:_LONGEST].replace("_", " ").casefold())
    return " ".join("".join(each for each in letters if not unicodedata.combining(each)).split())


# ---- the country after a comma ----

_COUNTRIES: Mapping[str, str] = {
    "america": "US",
    "england": "GB",
    "great britain": "GB",
    "holland": "NL",
    "south korea": "KR",
    "the netherlands": "NL",
    "u.s.": "US",
    "uae": "AE",
    "uk": "GB",
    "united kingdom": "GB",
    "united states of america": "US",
    "us": "US",
    "usa": "US",
}
"""Names that the database lacks, or spells differently."""


def _is_in(zone: str, place: str) -> bool:
    """Return whether the zone is in the place: another of its names, its continent, or its country."""
    if not place:
        return True
    if _zones().get(place) == zone or _plain(zone.partition("/")[0]) == place:
        return True
    codes, countries = _tables()
    return place in codes and codes[place] == countries.get(zone)


@cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the codes of countries by their names, and the country of each zone, as far as the database has them."""
    names = [line.split("\t") for line in _lines("iso3166.tab")]
    places = [line.split("\t") for line in _lines("zone.tab")]
    codes = {_plain(name): code for code, name, *_ in names}
    return {**codes, **_COUNTRIES}, {zone: code for code, _, zone, *_ in places}


def _lines(table: str) -> list[str]:
    for folder in zoneinfo.TZPATH:
        with suppress(OSError):
            text = Path(folder, table).read_text(encoding="utf-8")
            return [line for line in text.splitlines() if line.count("\t") and not line.startswith("#")]
    return []


@cache
def _zones() -> Mapping[str, str]:
    """Return the zones by all their names; none on a machine without the zone database."""
    names = sorted(zone for zone in zoneinfo.available_timezones() - _NOWHERE if not zone.startswith(_OTHER_TREES))
    known = {other: zone for zone, others in _ALSO.items() if zone in names for other in others.split("|")}
    by_city = {_plain(zone.rpartition("/")[2]): zone for zone in reversed(names)}
    return {**known, **by_city, **{_plain(zone): zone for zone in names}}


def _unknown(name: str) -> str:
    known = _zones()
    what = f"There is no time zone {name[:_LONGEST]!r}"
    if not known:
        return f"{what} on this machine, which has no zone database; say UTC, or an offset such as +02:00."
    near = dict.fromkeys(known[each] for each in nearest(_plain(name), known, 3))
    hint = f"near it are {', '.join(near)}" if near else "say a city, a zone such as Europe/Berlin, or an offset"
    return f"{what}; {hint}."
