"""Choose and claim runs in a database: which run is next, and which worker gets it.

All functions are operations: they run in a transaction, and may run again after a rollback.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from antwort.api.status import IllegalTransition, transition
from antwort.api.wire import replace
from antwort.errors import StoreFault
from antwort.storage.database import Connection, Values
from antwort.storage.event_codec import decode_identity
from antwort.storage.rows import RowValues, to_response
from antwort.storage.run_log import ClaimedRun, Lease
from antwort.storage.sql_responses import fail_response, update_response
from antwort.storage.sql_run_events import DELETE_RECORDS

_UNREADABLE = "The record of this response is damaged."
_NO_LIMIT = 2**31 - 1

# PostgreSQL only.
_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
# Running runs count for their owner, and each that is chosen counts for the one after it. A cancelled run only has to
# be ended: it waits for nothing, and the next run of its conversation waits for its end. `fence` tells whether another
# worker has claimed the run since; `has_turn`, whether it is the next run of a conversation.
_CHOOSE = """
    WITH alive AS (SELECT name FROM workers WHERE expires_at > :now),
    held AS (
        SELECT tenant, owner, count(*) AS places FROM runs JOIN alive ON alive.name = runs.worker GROUP BY tenant, owner
    ),
    in_turn AS (
        SELECT response_key,
               row_number() OVER (
                   PARTITION BY tenant, owner, conversation_id ORDER BY queued_at, response_key
               ) AS turn,
               max(CASE WHEN is_cancelled OR worker IN (SELECT name FROM alive) THEN 1 ELSE 0 END) OVER (
                   PARTITION BY tenant, owner, conversation_id
               ) AS is_busy
        FROM runs WHERE conversation_id IS NOT NULL
    ),
    free AS (
        SELECT response_key, fence, tenant, owner, queued_at, conversation_id,
               CASE WHEN is_cancelled THEN 0 ELSE 1 END AS waits
        FROM runs
        WHERE (worker IS NULL OR worker NOT IN (SELECT name FROM alive))
          AND (is_cancelled OR conversation_id IS NULL
               OR response_key IN (SELECT response_key FROM in_turn WHERE turn = 1 AND is_busy = 0))
    ),
    ranked AS (
        SELECT free.response_key, free.fence, free.queued_at, free.waits,
               CASE WHEN free.waits = 1 AND free.conversation_id IS NOT NULL THEN 1 ELSE 0 END AS has_turn,
               coalesce(held.places, 0) + row_number() OVER (
                   PARTITION BY free.tenant, free.owner ORDER BY free.waits, free.queued_at, free.response_key
               ) AS place
        FROM free LEFT JOIN held ON held.tenant = free.tenant AND held.owner = free.owner
    )
    SELECT ranked.response_key, ranked.fence, ranked.has_turn FROM ranked
    WHERE (ranked.waits = 0 OR ranked.place <= :per_owner) AND EXISTS (SELECT 1 FROM alive WHERE name = :worker)
    ORDER BY ranked.waits, ranked.place, ranked.queued_at, ranked.response_key
    LIMIT :count
"""
# PostgreSQL only: one process at a time counts the runs of owners.
_LOCK_OWNER_COUNTS = "SELECT pg_try_advisory_xact_lock(7267261, 1)"
# PostgreSQL only: one process at a time claims a run of this conversation. Without it, two could claim different ones
# that they do not see of each other.
_LOCK_CONVERSATION = """
    SELECT pg_try_advisory_xact_lock(7267262, hashtext(concat_ws(chr(31), tenant, owner, conversation_id)))
    FROM runs WHERE response_key = :key
"""
# A chosen run, if nothing has happened to it since. Its conversation may have become busy.
_LOCK_CHOSEN = """
    SELECT runs.response_key FROM runs
    WHERE runs.response_key = :key AND runs.fence = :fence
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = runs.worker AND expires_at > :now)
      AND EXISTS (SELECT 1 FROM workers WHERE name = :worker AND expires_at > :now)
      AND (runs.is_cancelled OR runs.conversation_id IS NULL OR NOT EXISTS (
           SELECT 1 FROM runs AS other JOIN workers ON workers.name = other.worker AND workers.expires_at > :now
           WHERE other.tenant = runs.tenant AND other.owner = runs.owner
             AND other.conversation_id = runs.conversation_id AND other.response_key <> runs.response_key))
    /*pg: FOR UPDATE SKIP LOCKED */
"""
_LOCK_FREE = """
    SELECT runs.response_key FROM runs
    WHERE runs.tenant = :tenant AND runs.owner = :owner AND runs.id = :id
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = runs.worker AND expires_at > :now)
      AND EXISTS (SELECT 1 FROM workers WHERE name = :worker AND expires_at > :now)
    /*pg: FOR UPDATE SKIP LOCKED */
"""
_TAKE = """
    UPDATE runs
    SET attempt = attempt + CASE WHEN attempt = 0 OR worker IS NOT NULL THEN 1 ELSE 0 END,
        fence = fence + 1, worker = :worker, begun_at = coalesce(begun_at, :now)
    WHERE response_key = :key
    RETURNING id, fence, identity, attempt, is_cancelled, begun_at, queued_at
"""
_RESPONSE = "SELECT status, request, body FROM responses WHERE key = ?"
DELETE_RUN = "DELETE FROM runs WHERE response_key = :key"


def clock(connection: Connection) -> float:
    """Return the seconds since 1970, by one clock for all processes."""
    return time.time() if connection.dialect == "sqlite" else float(connection.execute(_CLOCK).fetchone()[0])


def choose(connection: Connection, worker: str, count: int, per_owner: int | None) -> list[tuple[int, int, int]]:
    """Return key, fence and `has_turn` of the next runs."""
    limit = _NO_LIMIT if per_owner is None else per_owner
    values: Values = {"now": clock(connection), "worker": worker, "count": count, "per_owner": limit}
    return connection.execute(_CHOOSE, values).fetchall()


def claim_chosen(
    connection: Connection, worker: str, count: int, chosen: Sequence[tuple[int, int, int]]
) -> list[ClaimedRun]:
    """Claim up to `count` of the chosen runs. Other processes may have claimed some of them, or be about to."""
    now, claimed = clock(connection), list[ClaimedRun]()
    for key, fence, has_turn in chosen:
        if len(claimed) == count:
            break
        if has_turn and not _try_lock(connection, _LOCK_CONVERSATION, {"key": key}):
            continue
        values: Values = {"now": now, "worker": worker, "key": key, "fence": fence}
        if connection.execute(_LOCK_CHOSEN, values).fetchone() is None:
            continue
        if (taken := _take(connection, worker, key, now)) is not None:
            claimed.append(taken)
    return claimed


def choose_and_claim(connection: Connection, worker: str, count: int, per_owner: int) -> list[ClaimedRun] | None:
    """Choose and claim in one process at a time, as the runs of owners are counted. None: another one counts now."""
    if not _try_lock(connection, _LOCK_OWNER_COUNTS, {}):
        return None
    return claim_chosen(connection, worker, count, choose(connection, worker, count, per_owner))


def claim_one(connection: Connection, worker: str, name: RowValues) -> ClaimedRun | None:
    """Claim this run, unless it has ended or a living worker holds it."""
    now = clock(connection)
    row = connection.execute(_LOCK_FREE, name | {"now": now, "worker": worker}).fetchone()
    return None if row is None else _take(connection, worker, row[0], now)


def _try_lock(connection: Connection, statement: str, values: Values) -> bool:
    """Take an advisory lock until the end of the transaction. SQLite has one writer, and needs none."""
    if connection.dialect == "sqlite":
        return True
    row = connection.execute(statement, values).fetchone()
    return row is not None and bool(row[0])


def _take(connection: Connection, worker: str, key: int, now: float) -> ClaimedRun | None:
    """Claim a run that is locked. If its record is damaged, fail its response, so that it blocks no other run."""
    row = connection.execute(_TAKE, {"key": key, "worker": worker, "now": now}).fetchone()
    run_id, fence, identity, attempt, is_cancelled, begun_at, queued_at = row
    status, request, body = connection.execute(_RESPONSE, (key,)).fetchone()
    try:
        response, owner = to_response(body), decode_identity(bytes(identity))
        if status == "queued":
            begun = replace(response, status=transition(response.status, "in_progress"))
            update_response(connection, key, begun)
    except (StoreFault, IllegalTransition):
        fail_response(connection, key, body, _UNREADABLE)
        delete_run(connection, key)
        return None
    return ClaimedRun(
        lease=Lease(run_id, fence, worker, key),
        identity=owner,
        request=bytes(request),
        response=replace(response, status="queued") if response.background else response,
        attempt=attempt,
        is_cancelled=bool(is_cancelled),
        begun_at=begun_at,
        waited=max(begun_at - queued_at, 0.0) if fence == 1 else None,
    )


def delete_run(connection: Connection, key: int) -> None:
    """Delete a run that is not continued, and its log. Only the outcome of its response stays."""
    connection.execute(DELETE_RECORDS, (key,))
    connection.execute(DELETE_RUN, {"key": key})
