"""The store over a database, in plain SQL: a query builder would cost more time than the database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Self

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.responses import Response
from antwort.identity import Identity
from antwort.storage.base import Claimed, Entry, NewResponse, PackedLog
from antwort.storage.database import Connection, Database, write_once
from antwort.storage.migrations import migrate
from antwort.storage.rows import ItemRow, RowValues, name_of
from antwort.storage.sql_approvals import SqlApprovals
from antwort.storage.sql_conversations import SqlConversations
from antwort.storage.sql_history import SqlHistory, log
from antwort.storage.sql_responses import (
    UpdateRows,
    begin_response,
    compressed,
    delete_response,
    drop_all_staged,
    fail_running,
    finish_response,
    has_begun,
    has_finished,
    is_gone,
    record_turn,
    stage_output,
    staged,
    staged_output,
    to_new_rows,
    to_update_rows,
)
from antwort.storage.sql_tools import SqlTools

_CLAIMED = """
    SELECT request_hash, response_id FROM idempotency_keys AS claims
    WHERE tenant = :tenant AND owner = :owner AND key = :key AND expires_at > :now
      AND EXISTS (SELECT 1 FROM responses
                  WHERE responses.tenant = claims.tenant AND responses.owner = claims.owner
                    AND responses.id = claims.response_id AND responses.deleted_at IS NULL)
"""
_RELEASE = """
    DELETE FROM idempotency_keys WHERE tenant = :tenant AND owner = :owner AND key = :key AND response_id = :id
"""
_CHECK_READ = "SELECT version_num FROM alembic_version"
_CHECK_WRITE = "UPDATE alembic_version SET version_num = version_num"
_SEAL = "SELECT token FROM seals WHERE place = 0"
_PUT_SEAL = """
    INSERT INTO seals (place, token) VALUES (0, :token)
    ON CONFLICT (place) DO UPDATE SET token = excluded.token WHERE seals.token = :replaces
"""


class SqlStore(SqlHistory, SqlConversations, SqlApprovals, SqlTools):
    """`database` is open and migrated; the store closes it."""

    @classmethod
    async def open_database(cls, database: Database) -> Self:
        """Open the database, migrate it if necessary, and remove what was left of responses that did not begin."""
        await database.open()
        try:
            await migrate(database)
            if database.dialect == "sqlite":  # the only one that stages large responses
                await database.write(drop_all_staged)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @property
    def database(self) -> Database:
        """The database, open as long as the store is."""
        return self._database

    async def begin(self, new: NewResponse) -> None:
        async with staged(self._database, to_new_rows(new)) as rows:
            await write_once(
                self._database,
                partial(begin_response, new=rows),
                lambda connection, _: has_begun(connection, rows.values),
            )

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        def read(connection: Connection) -> Claimed | None:
            values: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "key": key, "now": now}
            row = connection.execute(_CLAIMED, values).fetchone()
            return None if row is None else Claimed(request_hash=row[0], response_id=row[1])

        return await self._database.read(read)

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        def release(connection: Connection) -> None:
            connection.execute(_RELEASE, name_of(identity, response_id) | {"key": key})

        await self._database.write(release)

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        packed = None if log is None else await compressed(log)
        end = to_update_rows(identity, response, marks, entries, approvals, packed)
        async with staged_output(self._database, end.items, partial(self._stage, end)):
            await write_once(
                self._database,
                partial(finish_response, end=end),
                lambda connection, _: has_finished(connection, end),
            )

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        update = to_update_rows(identity, response, marks, items_from=items_from)
        async with staged_output(self._database, update.items, partial(self._stage, update)):
            # To write it twice changes nothing.
            await write_once(self._database, partial(record_turn, update=update), lambda *_: False)

    async def _stage(self, update: UpdateRows, items: Sequence[ItemRow]) -> None:
        await self._database.write(partial(stage_output, values=update.values, items=items))

    async def delete(self, identity: Identity, response_id: str) -> bool:
        values = name_of(identity, response_id) | {"now": int(time.time())}
        return await write_once(
            self._database, partial(delete_response, values=values), lambda connection, _: is_gone(connection, values)
        )

    async def fail_running(self, message: str) -> int:
        count, damaged = await self._database.write(partial(fail_running, message=message))
        for response_id in damaged:
            log.warning("the record of %s, left running, is damaged: only its status could be set", response_id)
        return count

    async def check(self) -> None:
        await self._database.read(lambda connection: connection.execute(_CHECK_READ).fetchone())
        await self._database.write(lambda connection: connection.execute(_CHECK_WRITE))

    async def close(self) -> None:
        await self._database.close()


def find_seal(connection: Connection) -> str | None:
    """Return the sealed text of the processes that share a database: one that can open it has the key of the others."""
    row = connection.execute(_SEAL).fetchone()
    return None if row is None else str(row[0])


def put_seal(connection: Connection, token: str, replaces: str | None) -> str:
    """Write the sealed text if there is none, or in the place of `replaces`. Return the one that is there then: another
    process may have been faster.
    """
    connection.execute(_PUT_SEAL, {"token": token, "replaces": replaces})
    return find_seal(connection) or token
