"""Where SQLite and PostgreSQL differ. Statements are written as SQLite reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from antwort.db.base import Dialect

_COMMON: dict[Dialect, dict[str, str]] = {
    "sqlite": {"lock": "", "skip_locked": ""},  # its writer is alone
    "postgresql": {"lock": "FOR UPDATE", "skip_locked": "FOR UPDATE SKIP LOCKED"},
}


def per_dialect(
    statement: str, *, sqlite: Mapping[str, str] | None = None, postgresql: Mapping[str, str] | None = None
) -> dict[Dialect, str]:
    """The statement for each, with its `{parts}` filled in: `{lock}` and `{skip_locked}`, and those that are given."""
    given: dict[Dialect, Mapping[str, str]] = {"sqlite": sqlite or {}, "postgresql": postgresql or {}}
    return {dialect: statement.format(**_COMMON[dialect], **parts) for dialect, parts in given.items()}


# A text, a cast, a value by its name or its place, a percent sign, and two things that only SQLite says so.
_TOKENS = re.compile(
    r"""
      (?P<text> '(?:[^']|'')*' )
    | (?P<cast> :: )
    | (?P<same> \bIS \s+ (?= [:?] ) )
    | \bCROSS \s+ (?P<join> JOIN \s+ \w+ (?: \s+ AS \s+ \w+ )? \s+ ON \b )
    | :(?P<name> [a-z_]\w* )
    | (?P<place> \? )
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1000)
def to_postgres(statement: str) -> bytes:
    """The statement as psycopg takes it."""
    return _TOKENS.sub(_translate, statement.replace("%", "%%")).encode()


def _translate(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "name":
            return f"%({found['name']})s"
        case "place":
            return "%s"
        case "same":  # a comparison that holds for nulls, too
            return "IS NOT DISTINCT FROM "
        case "join":  # CROSS keeps SQLite from choosing another order of loops
            return found["join"]
        case _:
            return found[0]
