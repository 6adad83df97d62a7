"""The address of a database. It may hold a password, so that no word of it is repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antwort.config.problems import Problem
from antwort.config.settings import Secret

_SCHEMES = ("postgresql", "postgres")
_LIKE = "write one such as postgresql://antwort:secret@db.example.com/antwort"
_SPELT = "what of user or password is no letter or digit is written as % and two hex digits, such as %40 for @"
_WORDS = re.compile(r"\s*\w+\s*=")
"""The driver's other form: `host=… dbname=…`."""
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")
"""A host, or an address in brackets, and a port behind it."""


def about_database(given: Secret | None) -> Iterator[Problem]:
    """What can be seen without asking it: a password that is not spelt as it should be would end up as a host's name in
    what the driver says.
    """
    if given is None:
        return
    scheme, is_url, rest = given.reveal().partition("://")
    if not is_url:
        if not _WORDS.match(scheme):
            yield Problem("database", "is no address of a database", _LIKE)
    elif scheme not in _SCHEMES:
        yield Problem("database", "must begin with postgresql://: antwort keeps responses in no other kind", _LIKE)
    elif not given.reveal().isprintable() or " " in rest:
        yield Problem("database", "has a space, or what cannot be seen, in it", _SPELT)
    else:
        yield from _about_places(re.split("[/?]", rest, maxsplit=1)[0])


def _about_places(authority: str) -> Iterator[Problem]:
    who, _, places = authority.rpartition("@")
    if "@" in who or re.search("%(?![0-9A-Fa-f]{2})", authority):
        yield Problem("database", "cannot be read", _SPELT)
    elif not all(_PORT.fullmatch(place) for place in places.split(",")):
        yield Problem("database", "has a port that is no number", _SPELT)
