"""Write responses to a database: operations that the store and the run log share.

Values become rows before an operation is queued, so that the writer only writes. What a client can name is found by
tenant, owner and id together, all else by key.

A large response is written in several transactions, so that short ones of others go between: SQLite has one writer, and
50 MB in one transaction keep all others waiting for a third of a second. Its items are written first: until the last
transaction, a new response is hidden, and new output only adds to a response that is in progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeVar

import msgspec

from antwort.api.events import Mark
from antwort.api.resources import Approval
from antwort.api.responses import Response, ResponseError
from antwort.api.status import FINAL, IllegalTransition, transition
from antwort.api.wire import UNSET, replace
from antwort.errors import KeyInUse, ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage.base import Entry, LogPiece, NewResponse, PackedLog
from antwort.storage.bounds import in_pieces
from antwort.storage.database import Connection, Database
from antwort.storage.event_codec import compress
from antwort.storage.rows import (
    SCHEMA_VERSION,
    ItemRow,
    MarkRow,
    RowValues,
    input_rows,
    mark_rows,
    output_rows,
    to_body,
    to_response,
)
from antwort.storage.sql_calls import decide, insert_approvals
from antwort.storage.sql_conversations import insert_entries

T = TypeVar("T")

_raw_of = itemgetter(-1)

TRANSACTION_BYTES = 4 * 1024 * 1024
"""Bytes of items in one transaction, unless a single one is larger."""
_COMPRESSED_INLINE = 8192
"""Bytes that take no longer to compress than to hand over to another thread."""


class NewRows(NamedTuple):
    """A new response, ready to be written."""

    new: NewResponse
    values: RowValues
    items: list[ItemRow]
    is_staged: bool = False
    """Whether its row is there already, hidden, with all items but these."""


class UpdateRows(NamedTuple):
    """What a response has produced so far, or its outcome, ready to be written."""

    response: Response
    values: RowValues
    items: list[ItemRow]
    turns: list[MarkRow]
    entries: Sequence[Entry] = ()
    approvals: Sequence[Approval] = ()
    log: PackedLog | None = None
    """Compressed."""


def to_new_rows(new: NewResponse) -> NewRows:
    """Raises `IllegalTransition` for a response that has ended."""
    response = new.response
    if response.status in FINAL:
        raise IllegalTransition(f"a response cannot begin as {response.status}")
    values: RowValues = {
        "tenant": new.identity.tenant,
        "owner": new.identity.owner,
        "id": response.id,
        "parent_id": response.previous_response_id,
        "model": response.model,
        "status": response.status,
        "background": response.background,
        "created_at": response.created_at,
        "worker": new.worker,
        "schema_version": SCHEMA_VERSION,
        "request": new.request,
        "body": to_body(response),
    }
    return NewRows(new, values, input_rows(new))


def to_update_rows(
    identity: Identity,
    response: Response,
    marks: Sequence[tuple[int, Mark]],
    entries: Sequence[Entry] = (),
    approvals: Sequence[Approval] = (),
    log: PackedLog | None = None,
    *,
    items_from: int = 0,
) -> UpdateRows:
    values: RowValues = {
        "tenant": identity.tenant,
        "owner": identity.owner,
        "id": response.id,
        "status": response.status,
        "completed_at": response.completed_at,
        "body": to_body(response),
    }
    items = output_rows(response.output, items_from)
    return UpdateRows(response, values, items, mark_rows(marks), entries, approvals, log)


async def compressed(log: PackedLog) -> list[LogPiece]:
    """Compress a log before it is written, so that neither the writer nor the event loop waits for a large one."""
    is_small = len(log) == 1 and len(log[0].data) <= _COMPRESSED_INLINE
    return compress(log) if is_small else await asyncio.to_thread(compress, log)


# ---- beginning ----

# SQLite has one writer, which may count for itself. It does not reuse the key of a response that is deleted: what is
# read or written in several operations would find another one. A thread goes by the key of its first response. A child
# continues its parent's thread unless another child does so already.
_INSERT = """
    INSERT INTO responses (key, tenant, owner, id, parent_key, thread_key, depth, model,
                           status, background, created_at, worker, schema_version, request, body)
    SELECT next.key, :tenant, :owner, :id, parent.key,
           CASE WHEN parent.key IS NULL
                  OR EXISTS (SELECT 1 FROM responses AS other
                             WHERE other.thread_key = parent.thread_key AND other.depth = parent.depth + 1)
                THEN next.key ELSE parent.thread_key END,
           coalesce(parent.depth + 1, 0), :model,
           :status, :background, :created_at, :worker, :schema_version, :request, :body
    FROM /*sqlite*/ (SELECT max(coalesce(max(key), 0), :newest_key) + 1 AS key FROM responses)
         /*pg: (SELECT nextval('responses_key_seq') AS key) */ AS next
    LEFT JOIN responses AS parent
      ON parent.tenant = :tenant AND parent.owner = :owner AND parent.id = :parent_id AND parent.deleted_at IS NULL
    WHERE parent.key IS NOT NULL OR CAST(:parent_id AS text) IS NULL
    RETURNING key
"""
_INSERT_ITEM = """
    INSERT INTO items (response_key, tenant, owner, id, direction, position, type, raw)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
# In a file, the oldest are first. Each claim deletes some that have expired, so that there are never many.
_EXPIRE_CLAIMS = """
    DELETE FROM idempotency_keys
    WHERE /*sqlite*/ rowid IN (SELECT rowid FROM idempotency_keys ORDER BY rowid LIMIT 32)
          /*pg: (tenant, owner, key) IN (
              SELECT tenant, owner, key FROM idempotency_keys
              WHERE expires_at <= :now ORDER BY expires_at LIMIT 32 FOR UPDATE SKIP LOCKED) */
      AND expires_at <= :now
"""
# A claim that has expired, or whose response is gone; the table may have another one for the key by now.
_DROP_CLAIM = """
    DELETE FROM idempotency_keys
    WHERE tenant = :tenant AND owner = :owner AND key = :key
      AND (expires_at <= :now OR NOT EXISTS (
          SELECT 1 FROM responses
          WHERE responses.tenant = :tenant AND responses.owner = :owner
            AND responses.id = idempotency_keys.response_id AND responses.deleted_at IS NULL))
"""
# The count of rows tells whether the key was free.
_CLAIM = """
    INSERT INTO idempotency_keys (tenant, owner, key, request_hash, response_id, created_at, expires_at)
    VALUES (:tenant, :owner, :key, :request_hash, :id, :now, :expires_at)
    ON CONFLICT DO NOTHING
"""
FIND = """
    SELECT key, body FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
# No client can name a response that is hidden.
_STAGED = """
    SELECT key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id
      AND status IN ('queued', 'in_progress') AND deleted_at IS NOT NULL
"""
_ALL_STAGED = "SELECT key FROM responses WHERE status IN ('queued', 'in_progress') AND deleted_at IS NOT NULL"
_SHOW = "UPDATE responses SET deleted_at = NULL WHERE key = ?"
_HIDE = """
    UPDATE responses SET deleted_at = :now
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
    RETURNING key
"""


def begin_response(connection: Connection, rows: NewRows) -> int:
    """Do what `ResponseStore.begin` does, and return the key of the row."""
    new, values = rows.new, rows.values
    if rows.is_staged:
        (key,) = connection.execute(_STAGED, values).fetchone()
        connection.execute(_SHOW, (key,))
    else:
        key = _insert(connection, values)
    _insert_items(connection, key, values, rows.items)
    if new.claim is not None:
        claim = values | msgspec.structs.asdict(new.claim)
        connection.execute(_EXPIRE_CLAIMS, claim)
        connection.execute(_DROP_CLAIM, claim)
        if connection.execute(_CLAIM, claim).rowcount == 0:
            raise KeyInUse
    if new.approvals:
        insert_approvals(connection, values, new.approvals, response_key=key)
    if new.decisions:
        decide(connection, values, new.decisions)
    return int(key)


def has_begun(connection: Connection, values: RowValues) -> bool:
    """Return whether `begin_response` was committed: ids are unique, so a row with this one is this response."""
    return connection.execute(FIND, values).fetchone() is not None


def _insert(connection: Connection, values: RowValues) -> int:
    row = connection.execute(_INSERT, values | {"newest_key": connection.newest_key}).fetchone()
    if row is None:
        raise ResponseNotFound(str(values["parent_id"]), param="previous_response_id")
    connection.newest_key = key = int(row[0])
    return key


def _insert_items(connection: Connection, key: int, values: RowValues, items: Sequence[ItemRow]) -> None:
    of = key, values["tenant"], values["owner"]
    connection.executemany(_INSERT_ITEM, [(*of, *item) for item in items])


# ---- turns and outcomes ----

_RECORDED = """
    SELECT key, status,
           (SELECT count(*) FROM items WHERE items.response_key = responses.key AND items.direction = 'output')
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
    /*pg: FOR UPDATE */
"""
# How much of its output and of its marks is stored: a response in the foreground records each turn.
_WRITE = """
    UPDATE responses SET {}
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL AND {}
    RETURNING key,
              (SELECT count(*) FROM items WHERE items.response_key = responses.key AND items.direction = 'output'),
              (SELECT count(*) FROM turns WHERE turns.response_key = responses.key)
"""
_RECORD_TURN = _WRITE.format("body = :body", "status = 'in_progress'")
# An outcome is written once, and what has not started can only be cancelled.
_FINISH = _WRITE.format(
    "status = :status, completed_at = :completed_at, body = :body",
    "(status = 'in_progress' OR (status = 'queued' AND CAST(:status AS text) = 'cancelled'))",
)
_UPDATE = "UPDATE responses SET status = ?, completed_at = ?, body = ? WHERE key = ?"
_INSERT_TURN = "INSERT INTO turns (response_key, number, kind, mark, items_end) VALUES (?, ?, ?, ?, ?)"
# What was recorded with a turn stays, however the response ends.
_RECORDED_ITEMS = "SELECT coalesce(max(items_end), 0) FROM turns WHERE response_key = ?"
_DROP_OUTPUT = "DELETE FROM items WHERE response_key = ? AND direction = 'output' AND position >= ?"
_INSERT_LOG = "INSERT INTO run_logs (response_key, ended_at, log) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
INSERT_RECORD = """
    INSERT INTO run_events (response_key, at, first, next, events) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
OUTPUT = "SELECT raw FROM items WHERE response_key = ? AND direction = 'output' ORDER BY position"


def record_turn(connection: Connection, update: UpdateRows) -> None:
    """Do what `ResponseStore.record_turn` does. `update.items` may be without those that are stored."""
    key, items, turns = _write(connection, _RECORD_TURN, update)
    _insert_items(connection, key, update.values, [item for item in update.items if item[2] >= items])
    connection.executemany(_INSERT_TURN, [(key, *turn) for turn in update.turns[turns:]])


def finish_response(connection: Connection, update: UpdateRows) -> int:
    """Do what `ResponseStore.finish` does, and return the key of the row."""
    response = update.response
    if response.status not in FINAL:
        raise IllegalTransition(f"a response cannot end as {response.status}")
    key, items, turns = _write(connection, _FINISH, update)
    if items > len(update.items):  # another end was staged before
        (recorded,) = connection.execute(_RECORDED_ITEMS, (key,)).fetchone()
        connection.execute(_DROP_OUTPUT, (key, max(recorded, len(update.items))))
    _insert_items(connection, key, update.values, update.items[items:])
    connection.executemany(_INSERT_TURN, [(key, *turn) for turn in update.turns[turns:]])
    if update.approvals:
        insert_approvals(connection, update.values, update.approvals, response_key=key)
    if update.entries and response.conversation is not UNSET:
        insert_entries(connection, update.values | {"id": response.conversation.id}, update.entries)
    if update.log is not None:
        is_new = connection.execute(_INSERT_LOG, (key, int(time.time()), update.log[0].data)).rowcount
        if is_new and len(update.log) > 1:
            connection.executemany(INSERT_RECORD, rest_of_log(key, update.log))
    return key


def has_finished(connection: Connection, end: UpdateRows) -> bool:
    """Return whether `finish_response` was committed: the row ends as this one does."""
    row = connection.execute(FIND, end.values).fetchone()
    return row is not None and row[1] == end.values["body"]


def has_output(connection: Connection, key: int, end: UpdateRows) -> bool:
    """Return whether the stored output is this one."""
    return [bytes(raw) for (raw,) in connection.execute(OUTPUT, (key,))] == [item[-1] for item in end.items]


def rest_of_log(response_key: int, log: PackedLog) -> list[tuple[int, int, int, int, bytes]]:
    """Return the rows of all pieces but the first, which is stored with the log itself: most logs have no other."""
    return [(response_key, at, piece.first, piece.next, piece.data) for at, piece in enumerate(log) if at]


def _write(connection: Connection, statement: str, update: UpdateRows) -> tuple[int, int, int]:
    """Write the row. Return its key, and how many output items and marks are stored."""
    row: tuple[int, int, int] | None = connection.execute(statement, update.values).fetchone()
    if row is None:
        if (found := connection.execute(_RECORDED, update.values).fetchone()) is None:
            raise ResponseNotFound(update.response.id)
        raise IllegalTransition(f"a response cannot go from {found[1]} to {update.response.status}")
    return row


# ---- large responses ----


async def write_new(database: Database, new: NewRows, write: Callable[[NewRows], Awaitable[T]]) -> T:
    """Write a new response by `write`, a large one before that, hidden, but for its last piece. If `write` raises,
    all of it is removed.
    """
    pieces = early_pieces(database, new.items)
    if not pieces:
        return await write(new)

    def stage(items: list[ItemRow]) -> Awaitable[None]:
        return database.write(partial(_stage_input, values=new.values, items=items))

    rest = new._replace(items=new.items[sum(map(len, pieces)) :], is_staged=True)
    try:
        return await write_output(database, new.items, stage, partial(write, rest))
    except BaseException:
        with suppress(StoreFault):  # what is left then is removed when the file is opened again
            await database.write(partial(drop_staged, values=new.values))
        raise


async def write_output(
    database: Database,
    items: Sequence[ItemRow],
    stage: Callable[[list[ItemRow]], Awaitable[None]],
    write: Callable[[], Awaitable[T]],
) -> T:
    """Write all but the last piece of `items` by `stage`, and the rest by `write`."""
    pieces = early_pieces(database, items)
    if not pieces:
        return await write()
    for piece in pieces:
        async with database.staging:
            await stage(piece)
        await asyncio.sleep(0)  # in memory, other tasks run between two pieces
    async with database.staging:
        return await write()


def early_pieces(database: Database, items: Sequence[ItemRow]) -> list[list[ItemRow]]:
    """Return all but the last piece of items that are too large for one transaction. PostgreSQL has several writers,
    and takes them all at once.
    """
    sizes = [*map(len, map(_raw_of, items))]
    if sum(sizes) <= TRANSACTION_BYTES or database.dialect != "sqlite":
        return []
    return [list(items[piece.start : piece.stop]) for piece in in_pieces(sizes, TRANSACTION_BYTES)][:-1]


def stage_output(connection: Connection, values: RowValues, items: Sequence[ItemRow]) -> None:
    """Write some items of a response before its end, or before a turn is recorded. If it has ended already, or is gone,
    nothing is written.
    """
    row = connection.execute(_RECORDED, values).fetchone()
    if row is not None and row[1] not in FINAL:
        _insert_items(connection, row[0], values, [item for item in items if item[2] >= row[2]])


def _stage_input(connection: Connection, values: RowValues, items: Sequence[ItemRow]) -> None:
    """Write some items of a response that has yet to begin. Its row is there from the first piece on, hidden."""
    row = connection.execute(_STAGED, values).fetchone()
    if row is None and has_begun(connection, values):
        return
    if row is None:
        row = (_insert(connection, values),)
        connection.execute(_HIDE, values | {"now": values["created_at"]})
    _insert_items(connection, int(row[0]), values, items)


def drop_staged(connection: Connection, values: RowValues | None = None) -> None:
    """Remove the hidden row of a response that did not begin; without a name, all that ended processes have left."""
    statement = _ALL_STAGED if values is None else _STAGED
    for row in connection.execute(statement, values or {}).fetchall():
        remove_hidden(connection, [row])


# ---- deletion and recovery ----

# A transaction that ends or claims a run locks its row first, and then the row of its response.
_LOCK_RUN = "SELECT 1 FROM runs WHERE tenant = :tenant AND owner = :owner AND id = :id /*pg: FOR UPDATE */"
_DELETE_PARTS = (
    "DELETE FROM approvals WHERE response_key = ?",
    "DELETE FROM runs WHERE response_key = ?",
    "DELETE FROM run_events WHERE response_key = ?",
    "DELETE FROM run_logs WHERE response_key = ?",
)
_REMOVE_HIDDEN = """
    DELETE FROM responses
    WHERE key = ? AND deleted_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM responses AS child WHERE child.parent_key = responses.key)
    RETURNING parent_key
"""
# Without a durable run, and without a living worker. A file belongs to one process, so that none of its workers lives.
_RUNNING = """
    SELECT key, id, body FROM responses WHERE status IN ('queued', 'in_progress')
      AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
      /*pg: AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.name = responses.worker
                            AND workers.expires_at > extract(epoch FROM clock_timestamp()))
      FOR UPDATE SKIP LOCKED */
"""
_FAIL = "UPDATE responses SET status = 'failed', completed_at = NULL WHERE key = ?"


def delete_response(connection: Connection, values: RowValues) -> bool:
    """Hide the response, and remove it unless others follow it. Hidden ones before it are removed with it when nothing
    follows them any more.
    """
    connection.execute(_LOCK_RUN, values)
    rows = connection.execute(_HIDE, values).fetchall()
    for (key,) in rows:
        for statement in _DELETE_PARTS:
            connection.execute(statement, (key,))
    remove_hidden(connection, rows)
    return bool(rows)


def is_gone(connection: Connection, values: RowValues) -> bool:
    """Return whether `delete_response` was committed."""
    connection.execute(_LOCK_RUN, values)
    return connection.execute(_RECORDED, values).fetchone() is None


def fail_running(connection: Connection, message: str) -> tuple[int, list[str]]:
    """Return how many responses were failed, and the ids of those whose body cannot be read."""
    rows = connection.execute(_RUNNING).fetchall()
    damaged = []
    for key, response_id, body in rows:
        if not fail_response(connection, key, body, message):
            damaged.append(str(response_id))
    return len(rows), damaged


def fail_response(connection: Connection, key: int, body: bytes, message: str) -> bool:
    """End a response as failed, and return whether its body could be read; if not, only its columns are set."""
    error = ResponseError(code="server_error", message=message)
    try:
        response = to_response(body)
        # A queued one has to start before it can fail.
        begun = response.status if response.status != "queued" else transition(response.status, "in_progress")
        failed = replace(response, status=transition(begun, "failed"), error=error, completed_at=None)
    except (StoreFault, IllegalTransition):
        connection.execute(_FAIL, (key,))
        return False
    update_response(connection, key, failed)
    return True


def update_response(connection: Connection, key: int, response: Response) -> None:
    """Store the status and the body of a response that has this key."""
    connection.execute(_UPDATE, (response.status, response.completed_at, to_body(response), key))


def remove_hidden(connection: Connection, rows: Sequence[tuple[int | None]]) -> None:
    """Remove the response with that key, and the hidden ones before it, as far as nothing follows them."""
    while rows and rows[0][0] is not None:
        rows = connection.execute(_REMOVE_HIDDEN, rows[0]).fetchall()
