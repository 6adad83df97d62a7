"""The store in the memory of this process: an SQLite database without a file, for tests and for programs that need no
record.
"""

from __future__ import annotations

import sqlite3
import weakref
from threading import Lock

from antwort.storage.database import Connection, Database, Dialect, Operation, T
from antwort.storage.migrations import create_tables
from antwort.storage.sql_responses import remove_hidden
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import SqliteConnection, connect, store_fault

_COUNT = "SELECT count(*) FROM responses"
# It has ended, no other follows it, and it is not the newest.
_DROPPABLE = """
    SELECT key, parent_key FROM responses
    WHERE status NOT IN ('queued', 'in_progress') AND key < (SELECT max(key) FROM responses)
      AND NOT EXISTS (SELECT 1 FROM responses AS child WHERE child.parent_key = responses.key)
"""
_NEXT_DROPPABLE = f"{_DROPPABLE} AND key > ? ORDER BY key LIMIT 1"
_IS_DROPPABLE = f"{_DROPPABLE} AND key = ?"
_DROP_RESPONSE = "DELETE FROM responses WHERE key = ?"
_DROP_CLAIMS = """
    DELETE FROM idempotency_keys AS claims
    WHERE NOT EXISTS (SELECT 1 FROM responses
                      WHERE tenant = claims.tenant AND owner = claims.owner AND id = claims.response_id)
"""
_ENTRY_COUNT = "SELECT (SELECT count(*) FROM conversations) + (SELECT count(*) FROM conversation_items)"
# All but the one that was added to last.
_OLDEST_CONVERSATIONS = """
    SELECT key, (SELECT count(*) FROM conversation_items WHERE conversation_key = conversations.key)
    FROM conversations
    ORDER BY coalesce((SELECT key FROM conversation_items WHERE conversation_key = conversations.key
                       ORDER BY position DESC LIMIT 1), :newest), key
    LIMIT (SELECT count(*) - 1 FROM conversations)
"""
_DROP_CONVERSATION = "DELETE FROM conversations WHERE key = ?"


class MemoryStore(SqlStore):
    """Beyond about `max_responses`, the oldest responses are dropped that have ended and that no other follows.

    So a chain is dropped from its end, never from its middle, and a store full of running responses grows past the
    bound rather than lose one. Beyond about `max_entries`, counting items and conversations together, the conversations
    are dropped that were added to least recently; the last one stays, however long it is.
    """

    def __init__(self, max_responses: int = 10_000, max_entries: int = 100_000) -> None:
        super().__init__(MemoryDatabase(max_responses, max_entries))


class MemoryDatabase(Database):
    """A database that the first operation makes, and that lasts as long as this object: `close` leaves it as it is. An
    operation runs at once, on the thread of its caller.
    """

    dialect: Dialect = "sqlite"
    durability = "process"

    def __init__(self, max_responses: int, max_entries: int) -> None:
        super().__init__()
        self._max_responses, self._max_entries = max_responses, max_entries
        self._lock = Lock()
        self._connection: SqliteConnection | None = None
        self._writes = 0
        self._writes_per_check = max(min(max_responses, max_entries) // 100, 1)

    async def open(self) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        """There is nothing to release."""

    async def write(self, operation: Operation[T]) -> T:
        result = self._run(operation)
        self._writes += 1
        if self._writes % self._writes_per_check == 0:
            self._run(self._drop_excess)
        return result

    async def read(self, operation: Operation[T]) -> T:
        return self._run(operation)

    def _run(self, operation: Operation[T]) -> T:
        with self._lock:
            connection = self._connection or self._create()
            connection.execute("BEGIN")
            try:
                result = operation(connection)
                connection.execute("COMMIT")
            except BaseException as exc:  # a signal may raise here, too
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(exc, sqlite3.Error):
                    raise store_fault(exc) from exc
                raise
            return result

    def _create(self) -> SqliteConnection:
        self._connection = connection = connect(":memory:")
        connection.execute("PRAGMA foreign_keys = ON")
        create_tables(connection)
        weakref.finalize(self, connection.close)
        return connection

    def _drop_excess(self, connection: Connection) -> None:
        (count,) = connection.execute(_COUNT).fetchone()
        excess = min(count - self._max_responses, 2 * self._writes_per_check)
        last = 0
        while excess > 0 and (row := connection.execute(_NEXT_DROPPABLE, (last,)).fetchone()) is not None:
            # A chain is dropped as far as necessary before the next one loses its end: it may be continued.
            last, parent_key = row
            while row is not None and excess > 0:
                key, parent_key = row
                connection.execute(_DROP_RESPONSE, (key,))
                excess -= 1
                row = connection.execute(_IS_DROPPABLE, (parent_key,)).fetchone()
            remove_hidden(connection, [(parent_key,)])
        if count > self._max_responses:
            connection.execute(_DROP_CLAIMS)
        (count,) = connection.execute(_ENTRY_COUNT).fetchone()
        if count > self._max_entries:
            for key, entries in connection.execute(_OLDEST_CONVERSATIONS, {"newest": 2**62}).fetchall():
                connection.execute(_DROP_CONVERSATION, (key,))
                count -= entries + 1
                if count <= self._max_entries:
                    break
