"""The SQL of the run log. What a client can name is found by tenant, owner and id together; the rest goes by key.

Most statements are the same for SQLite and PostgreSQL. Those that lock rows come in two versions: SQLite has one writer
and locks none.
"""

from __future__ import annotations

from antwort.storage.database import per_dialect

# PostgreSQL only.
CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"

# ---- workers ----

JOIN = """
    INSERT INTO workers (name, address, expires_at) VALUES (:worker, :address, :expires_at)
    ON CONFLICT (name) DO UPDATE SET address = excluded.address, expires_at = excluded.expires_at
"""
LEAVE = "DELETE FROM workers WHERE name = :worker"
DELETE_WORKERS = "DELETE FROM workers"
DELETE_DEAD_WORKERS = "DELETE FROM workers WHERE expires_at <= :long_ago"
HELD = "SELECT id, response_key, fence FROM runs WHERE worker = :worker"
CANCELLED = """
    SELECT id FROM runs WHERE worker = :worker AND is_cancelled
    UNION
    SELECT id FROM responses
    WHERE status IN ('queued', 'in_progress') AND worker = :worker AND cancelled_at IS NOT NULL AND deleted_at IS NULL
"""
OWNER = """
    SELECT workers.name, workers.address FROM runs
    JOIN workers ON workers.name = runs.worker AND workers.expires_at > :now
    WHERE runs.tenant = :tenant AND runs.owner = :owner AND runs.id = :id
    UNION ALL
    SELECT workers.name, workers.address FROM responses
    JOIN workers ON workers.name = responses.worker AND workers.expires_at > :now
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.status IN ('queued', 'in_progress') AND responses.deleted_at IS NULL
"""

# ---- new runs ----

EXISTS = "SELECT 1 FROM responses WHERE tenant = :tenant AND owner = :owner AND id = :id"
COUNT_QUEUED = "SELECT count(*) FROM runs WHERE worker IS NULL"
INSERT_QUEUED = """
    INSERT INTO runs (response_key, tenant, owner, id, conversation_id, identity, queued_at, is_cancelled)
    SELECT key, tenant, owner, id, :conversation_id, :identity, :now, false FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id
    RETURNING response_key
"""
TO_ADOPT = """
    SELECT responses.key, responses.status, responses.worker, responses.created_at, responses.cancelled_at,
           responses.body, runs.worker, runs.fence
    FROM responses LEFT JOIN runs ON runs.response_key = responses.key
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.deleted_at IS NULL
"""
INSERT_ADOPTED = """
    INSERT INTO runs (response_key, tenant, owner, id, conversation_id, identity, queued_at, begun_at, worker, fence,
                      attempt, is_cancelled)
    VALUES (:key, :tenant, :owner, :id, :conversation_id, :identity, :begun_at, :begun_at, :worker, 1, 1, :is_cancelled)
"""

# ---- claims ----

# Running runs count for their owner, and each that is chosen counts for the one after it. A cancelled run only has to
# be ended: it waits for nothing, and the next run of its conversation waits for its end. `fence` tells whether another
# worker has claimed the run since; `has_turn`, whether it is the next run of a conversation.
CHOOSE = """
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
LOCK_OWNER_COUNTS = "SELECT pg_try_advisory_xact_lock(7267261, 1)"
# PostgreSQL only: one process at a time claims a run of this conversation. Without it, two could claim different ones
# that they do not see of each other.
LOCK_CONVERSATION = """
    SELECT pg_try_advisory_xact_lock(7267262, hashtext(concat_ws(chr(31), tenant, owner, conversation_id)))
    FROM runs WHERE response_key = :key
"""
# A chosen run, if nothing has happened to it since. Its conversation may have become busy.
LOCK_CHOSEN = per_dialect("""
    SELECT runs.response_key FROM runs
    WHERE runs.response_key = :key AND runs.fence = :fence
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = runs.worker AND expires_at > :now)
      AND EXISTS (SELECT 1 FROM workers WHERE name = :worker AND expires_at > :now)
      AND (runs.is_cancelled OR runs.conversation_id IS NULL OR NOT EXISTS (
           SELECT 1 FROM runs AS other JOIN workers ON workers.name = other.worker AND workers.expires_at > :now
           WHERE other.tenant = runs.tenant AND other.owner = runs.owner
             AND other.conversation_id = runs.conversation_id AND other.response_key <> runs.response_key))
    {skip_locked}
""")
LOCK_FREE = per_dialect("""
    SELECT runs.response_key FROM runs
    WHERE runs.tenant = :tenant AND runs.owner = :owner AND runs.id = :id
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = runs.worker AND expires_at > :now)
      AND EXISTS (SELECT 1 FROM workers WHERE name = :worker AND expires_at > :now)
    {skip_locked}
""")
TAKE = """
    UPDATE runs
    SET attempt = attempt + CASE WHEN attempt = 0 OR worker IS NOT NULL THEN 1 ELSE 0 END,
        fence = fence + 1, worker = :worker, begun_at = coalesce(begun_at, :now)
    WHERE response_key = :key
    RETURNING id, fence, identity, attempt, is_cancelled, begun_at, queued_at
"""
RELEASE = """
    UPDATE runs SET worker = NULL, fence = fence + 1, attempt = attempt + :lost
    WHERE response_key = :key AND id = :id AND fence = :fence
"""
RESPONSE = "SELECT status, request, body FROM responses WHERE key = ?"

# ---- writing ----

# A run is held by its key, its id and its fence: SQLite may reuse the key of a deleted response.
HELD_BY = "SELECT 1 FROM runs WHERE response_key = :key AND id = :id AND fence = :fence"
LOCK_HELD_BY = per_dialect(f"{HELD_BY} {{lock}}")
APPEND = """
    INSERT INTO run_events (response_key, at, first, next, events)
    SELECT response_key, :at, :first, :next, :events FROM runs WHERE response_key = :key AND id = :id AND fence = :fence
    ON CONFLICT DO NOTHING
"""
# PostgreSQL only: all waiting appends in one statement. The lock is what makes the fence hold: a claim skips a row that
# is locked here, and an append behind a claim sees its fence. Cancels do not need this lock, and all take it in one
# order, so that there are no deadlocks. The statement returns the appends whose fence held, new or repeated.
APPEND_ALL = """
    WITH given AS (
        SELECT * FROM unnest(CAST(:keys AS bigint[]), CAST(:ids AS text[]), CAST(:fences AS bigint[]),
                             CAST(:ats AS integer[]), CAST(:firsts AS integer[]), CAST(:nexts AS integer[]),
                             CAST(:events AS bytea[]))
                      WITH ORDINALITY AS given (key, id, fence, at, first, next, events, place)
    ),
    held AS (
        SELECT given.* FROM given
        JOIN runs ON runs.response_key = given.key AND runs.id = given.id AND runs.fence = given.fence
        ORDER BY runs.response_key
        FOR KEY SHARE OF runs
    ),
    written AS (
        INSERT INTO run_events (response_key, at, first, next, events)
        SELECT key, at, first, next, events FROM held
        ON CONFLICT DO NOTHING
    )
    SELECT place - 1 FROM held
"""
# The output that an earlier holder wrote in advance, because it was about to finish the run.
DELETE_OUTPUT = """
    DELETE FROM items WHERE direction = 'output'
      AND position >= (SELECT coalesce(max(items_end), 0) FROM turns WHERE turns.response_key = items.response_key)
      AND response_key IN (SELECT response_key FROM runs WHERE response_key = :key AND id = :id AND fence = :fence)
"""
DELETE_RUN = "DELETE FROM runs WHERE response_key = :key"
INSERT_LOG = "INSERT INTO run_logs (response_key, ended_at) VALUES (:key, :ended_at)"
# A record of a run that has ended.
ENDED_RECORD = """
    SELECT events FROM run_events
    WHERE response_key = :key AND at = :at AND NOT EXISTS (SELECT 1 FROM runs WHERE response_key = :key)
"""
LAST_RECORD = "SELECT at, first, events FROM run_events WHERE response_key = :key ORDER BY at DESC LIMIT 1"
# Cancels wait for no row: many of them go in one transaction, in any order, and each would hold its row for the others.
# They do not touch a fence, so that this lock lets appends through.
_CANCEL_LOCK = {"sqlite": {"cancel_lock": ""}, "postgresql": {"cancel_lock": "FOR NO KEY UPDATE SKIP LOCKED"}}
RUN_TO_CANCEL = "SELECT response_key FROM runs WHERE tenant = :tenant AND owner = :owner AND id = :id"
LOCK_RUN_TO_CANCEL = per_dialect(f"{RUN_TO_CANCEL} {{cancel_lock}}", **_CANCEL_LOCK)
CANCEL_RUN = "UPDATE runs SET is_cancelled = true WHERE response_key = :key"
RESPONSE_TO_CANCEL = """
    SELECT key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND status IN ('queued', 'in_progress')
      AND worker IS NOT NULL AND deleted_at IS NULL
"""
LOCK_RESPONSE_TO_CANCEL = per_dialect(f"{RESPONSE_TO_CANCEL} {{cancel_lock}}", **_CANCEL_LOCK)
CANCEL_RESPONSE = "UPDATE responses SET cancelled_at = :at WHERE key = :key"

# ---- reading ----

LOG = """
    SELECT responses.key, CASE WHEN run_logs.log IS NULL THEN 0 ELSE 1 END,
           CASE WHEN runs.response_key IS NULL THEN 0 ELSE 1 END,
           CASE WHEN run_logs.response_key IS NULL THEN 0 ELSE 1 END
    FROM responses
    LEFT JOIN runs ON runs.response_key = responses.key
    LEFT JOIN run_logs ON run_logs.response_key = responses.key
    WHERE responses.tenant = :tenant AND responses.owner = :owner AND responses.id = :id
      AND responses.deleted_at IS NULL
"""
HAS_LOG = """
    SELECT 1 FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
      AND (EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
           OR EXISTS (SELECT 1 FROM run_logs WHERE run_logs.response_key = responses.key))
"""
OUTLINE = """
    SELECT body,
           CASE WHEN EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
                  OR EXISTS (SELECT 1 FROM run_logs WHERE run_logs.response_key = responses.key) THEN 1 ELSE 0 END
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
SENT = """
    SELECT key, (SELECT next FROM run_events WHERE response_key = responses.key ORDER BY at DESC LIMIT 1)
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
SIZES = """
    SELECT length(events) FROM run_events WHERE response_key = :key AND at >= :at ORDER BY at LIMIT :limit
"""
OUTPUT_SIZE = """
    SELECT coalesce(sum(length(raw)), 0) FROM items WHERE response_key = :key AND direction = 'output'
"""
PLACE = """
    SELECT at FROM run_events WHERE response_key = :key AND first <= :after ORDER BY at DESC LIMIT 1
"""
RECORDS = """
    SELECT at, first, events FROM run_events WHERE response_key = :key AND at >= :at ORDER BY at LIMIT :limit
"""
# The first piece of a packed log; the others are in the place of its records.
PACKED = "SELECT 0, 0, log FROM run_logs WHERE response_key = :key AND log IS NOT NULL"
IS_BUSY = "SELECT 1 FROM runs WHERE tenant = :tenant AND owner = :owner AND conversation_id = :conversation_id LIMIT 1"
LOAD = """
    SELECT count(*), count(worker), min(CASE WHEN worker IS NULL THEN queued_at END) FROM runs
"""

# ---- housekeeping ----

LOCK_ORPHANS = per_dialect("""
    SELECT responses.key, responses.body FROM responses
    WHERE responses.status IN ('queued', 'in_progress') AND responses.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM workers WHERE name = responses.worker AND expires_at > :now)
      AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
    LIMIT :limit
    {skip_locked}
""")
UNPACKED = """
    SELECT run_logs.response_key, responses.id
    FROM run_logs JOIN responses ON responses.key = run_logs.response_key
    WHERE run_logs.log IS NULL AND run_logs.response_key > :after
    ORDER BY run_logs.response_key LIMIT :limit
"""
IS_UNPACKED = "SELECT 1 FROM run_logs WHERE response_key = :key AND log IS NULL"
PACK = "UPDATE run_logs SET log = :log WHERE response_key = :key AND log IS NULL"
DELETE_RECORDS = "DELETE FROM run_events WHERE response_key = ?"
DELETE_OLD_LOGS = """
    DELETE FROM run_logs
    WHERE response_key IN (SELECT response_key FROM run_logs WHERE ended_at <= :old LIMIT :limit)
    RETURNING response_key
"""
