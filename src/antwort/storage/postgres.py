"""Responses in a PostgreSQL that many processes share."""

from __future__ import annotations

from typing import Self

from antwort.db.postgres import PostgresDatabase
from antwort.storage.migrations import migrate
from antwort.storage.sql import SqlStore


class PostgresStore(SqlStore):
    @classmethod
    async def open(cls, dsn: str) -> Self:
        """The store in the database at `dsn`, whose tables are made or brought up to date where need be."""
        database = PostgresDatabase(dsn)
        await database.open()
        try:
            await migrate(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)
