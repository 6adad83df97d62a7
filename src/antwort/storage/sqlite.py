"""Responses in a SQLite file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Self

from antwort.db.sqlite import SqliteDatabase
from antwort.storage.migrations import migrate
from antwort.storage.sql import SqlStore
from antwort.storage.writing import drop_all_staged


class SqliteStore(SqlStore):
    """The default store."""

    @classmethod
    async def open(cls, path: str | PathLike[str]) -> Self:
        """The store in the file at `path`, made or brought up to date where need be."""
        database = SqliteDatabase(Path(path))
        await database.open()
        try:
            await migrate(database)
            await database.write(drop_all_staged)
        except BaseException:
            await database.close()
            raise
        return cls(database)
