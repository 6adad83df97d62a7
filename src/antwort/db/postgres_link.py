"""A connection to PostgreSQL, with the face that operations know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.rows import TupleRow
from psycopg.types.array import ListBinaryDumper

from antwort.db.base import Dialect, Value, Values
from antwort.db.dialects import to_postgres

RV = TypeVar("RV")

ANSWER_SECONDS = 7.0
"""As long as a server may take for one statement. Its own limit is shorter: this is for one that stands still."""

_ROWS_AT_ONCE = 500
"""So that the limit is for an answer of a size that is known."""


class Raw(psycopg.Connection[TupleRow]):
    """Waits for no answer without end. One that has waited in vain is of no more use: nobody knows where it stands."""

    patience = ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class PostgresLink:
    dialect: Dialect = "postgresql"

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        raw.adapters.register_loader("text", TextLoader)
        raw.adapters.register_dumper(list, ListBinaryDumper)  # as text, each byte of a list of bytes would be spelt

    def execute(self, statement: str, values: Values = (), /) -> psycopg.Cursor[TupleRow]:
        cursor = self._raw.cursor(binary=True)
        try:
            return cursor.execute(to_postgres(statement), values)
        except psycopg.DataError as exc:
            if exc.sqlstate is not None:
                raise
            return cursor.execute(to_postgres(statement), _storable(values))

    def executemany(self, statement: str, values: Sequence[Values], /) -> None:
        if len(values) == 1:
            self.execute(statement, values[0])
            return
        for start in range(0, len(values), _ROWS_AT_ONCE):
            some = [_storable(each) for each in values[start : start + _ROWS_AT_ONCE]]
            self._raw.cursor().executemany(to_postgres(statement), some)

    # ---- for whoever holds the transaction ----

    def begin(self, statement: bytes) -> None:
        self._raw.execute(statement)

    def commit(self) -> None:
        """A transaction that has failed ends without an error, and otherwise than was asked for."""
        if self._raw.execute(b"COMMIT").statusmessage != "COMMIT":
            raise psycopg.InternalError("the transaction was rolled back")

    def roll_back(self) -> None:
        if self._raw.info.transaction_status is not pq.TransactionStatus.IDLE:
            self._raw.execute(b"ROLLBACK")

    def close(self) -> None:
        self._raw.close()


# PostgreSQL keeps no NUL in a text. What clients choose freely, such as the id of an item, may have one: another stands
# in its place, which is no character either, and which no text has that is meant to be read.
_NUL, _INSTEAD = "\0", "\U0010fffe"


def _storable(values: Values) -> Values:
    if isinstance(values, Mapping):
        return {name: _without_nul(value) for name, value in values.items()}
    return [_without_nul(value) for value in values]


def _without_nul(value: Value) -> Value:
    return value.replace(_NUL, _INSTEAD) if isinstance(value, str) else value


class TextLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return text.replace(_INSTEAD, _NUL) if _INSTEAD in text else text
