"""One sealed text for all that share a database: whoever can open it has the key that they seal with."""

from __future__ import annotations

from collections.abc import Callable

from antwort.db import Connection

_FOUND = "SELECT token FROM seals WHERE place = 0"
_PUT = """
    INSERT INTO seals (place, token) VALUES (0, :token)
    ON CONFLICT (place) DO UPDATE SET token = excluded.token WHERE seals.token = :instead
"""


def find_seal(connection: Connection) -> str | None:
    row = connection.execute(_FOUND).fetchone()
    return None if row is None else str(row[0])


def put_seal(token: str, instead: str | None) -> Callable[[Connection], str]:
    """Put it where there is none, or in the place of `instead`; what stands there then. Another may be faster."""

    def put(connection: Connection) -> str:
        connection.execute(_PUT, {"token": token, "instead": instead})
        return find_seal(connection) or token

    return put
