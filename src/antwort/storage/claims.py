"""Which response an idempotency key stands for, in a database."""

from __future__ import annotations

import msgspec

from antwort.db import Connection
from antwort.errors import KeyInUse
from antwort.identity import Identity
from antwort.storage import statements as sql
from antwort.storage.base import Claim, Claimed
from antwort.storage.rows import Values, name_of


def to_values(identity: Identity, response_id: str, claim: Claim) -> Values:
    return name_of(identity, response_id) | msgspec.structs.asdict(claim)


def take(connection: Connection, values: Values) -> None:
    """What has expired, or stands for a response that is gone, gives way."""
    connection.execute(sql.EXPIRE[connection.dialect], values)
    connection.execute(sql.GIVE_WAY, values)
    if connection.execute(sql.CLAIM, values).rowcount == 0:
        raise KeyInUse


def look_up(connection: Connection, values: Values) -> Claimed | None:
    row = connection.execute(sql.CLAIMED, values).fetchone()
    return None if row is None else Claimed(request_hash=row[0], response_id=row[1])


def release(connection: Connection, values: Values) -> None:
    connection.execute(sql.RELEASE, values)
