"""The SQL of `writing.py`, `reading.py` and `listing.py`.

What finds a response or an item by id names tenant and owner; the rest goes by key.
"""

from __future__ import annotations

from antwort.db.dialects import per_dialect

# ---- writing ----

# SQLite's writer is alone, so it may count for itself. A thread goes by the key of its first response.
_NEXT = {
    "sqlite": {"next": "(SELECT coalesce(max(key), 0) + 1 AS key FROM responses)"},
    "postgresql": {"next": "(SELECT nextval('responses_key_seq') AS key)"},
}
INSERT_FIRST = per_dialect(
    """
    INSERT INTO responses (key, tenant, owner, id, thread_key, depth, model,
                           status, background, created_at, worker, schema_version, request, body)
    SELECT next.key, :tenant, :owner, :id, next.key, 0, :model,
           :status, :background, :created_at, :worker, :schema_version, :request, :body
    FROM {next} AS next
    RETURNING key
    """,
    **_NEXT,
)
# A child goes on in its parent's thread unless another child does so already.
INSERT_CHILD = per_dialect(
    """
    INSERT INTO responses (key, tenant, owner, id, parent_key, thread_key, depth, model,
                           status, background, created_at, worker, schema_version, request, body)
    SELECT next.key, :tenant, :owner, :id, parent.key,
           CASE WHEN EXISTS (SELECT 1 FROM responses AS other
                             WHERE other.thread_key = parent.thread_key AND other.depth = parent.depth + 1)
                THEN next.key ELSE parent.thread_key END,
           parent.depth + 1, :model,
           :status, :background, :created_at, :worker, :schema_version, :request, :body
    FROM {next} AS next
    CROSS JOIN responses AS parent
    WHERE parent.tenant = :tenant AND parent.owner = :owner AND parent.id = :parent_id AND parent.deleted_at IS NULL
    RETURNING key
    """,
    **_NEXT,
)
INSERT_ITEM = """
    INSERT INTO items (response_key, tenant, owner, id, direction, position, type, raw)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_TURN = "INSERT INTO turns (response_key, number, kind, mark, items_end) VALUES (?, ?, ?, ?, ?)"
# How much of its output and of its marks is on record: a response in the foreground records each turn.
RECORDED = per_dialect("""
    SELECT key, status,
           (SELECT count(*) FROM items WHERE items.response_key = responses.key AND items.direction = 'output'),
           (SELECT count(*) FROM turns WHERE turns.response_key = responses.key)
    FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
    {lock}
""")
STATUS = per_dialect("""
    SELECT key, status FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
    {lock}
""")
CLAIMED = """
    SELECT request_hash, response_id FROM idempotency_keys AS claims
    WHERE tenant = :tenant AND owner = :owner AND key = :key AND expires_at > :now
      AND EXISTS (SELECT 1 FROM responses
                  WHERE responses.tenant = claims.tenant AND responses.owner = claims.owner
                    AND responses.id = claims.response_id AND responses.deleted_at IS NULL)
"""
# One that stands for nothing any more; the table may have another by now.
GIVE_WAY = """
    DELETE FROM idempotency_keys
    WHERE tenant = :tenant AND owner = :owner AND key = :key
      AND (expires_at <= :now OR NOT EXISTS (
          SELECT 1 FROM responses
          WHERE responses.tenant = :tenant AND responses.owner = :owner
            AND responses.id = idempotency_keys.response_id AND responses.deleted_at IS NULL))
"""
# Says by the count of rows whether the key was free.
CLAIM = """
    INSERT INTO idempotency_keys (tenant, owner, key, request_hash, response_id, created_at, expires_at)
    VALUES (:tenant, :owner, :key, :request_hash, :id, :now, :expires_at)
    ON CONFLICT DO NOTHING
"""
RELEASE = """
    DELETE FROM idempotency_keys WHERE tenant = :tenant AND owner = :owner AND key = :key AND response_id = :id
"""
# In a file, the oldest stand first. Each claim looks at some of them, so that there are never many that have expired.
EXPIRE = per_dialect(
    "DELETE FROM idempotency_keys WHERE {row} IN ({oldest}) AND expires_at <= :now",
    sqlite={"row": "rowid", "oldest": "SELECT rowid FROM idempotency_keys ORDER BY rowid LIMIT 32"},
    postgresql={
        "row": "(tenant, owner, key)",
        "oldest": """
            SELECT tenant, owner, key FROM idempotency_keys
            WHERE expires_at <= :now ORDER BY expires_at LIMIT 32 FOR UPDATE SKIP LOCKED
        """,
    },
)
UPDATE_BODY = "UPDATE responses SET body = ? WHERE key = ?"
UPDATE = "UPDATE responses SET status = ?, completed_at = ?, body = ? WHERE key = ?"
# Whoever ends or claims a run has its row first, and then the row of its response.
HOLD_RUN = per_dialect("SELECT 1 FROM runs WHERE tenant = :tenant AND owner = :owner AND id = :id {lock}")
# What `begin_in` writes in several transactions is hidden until the last of them. No client can name it.
STAGED = """
    SELECT key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id
      AND status IN ('queued', 'in_progress') AND deleted_at IS NOT NULL
"""
SHOW = "UPDATE responses SET deleted_at = NULL WHERE key = ?"
ALL_STAGED = "SELECT key FROM responses WHERE status IN ('queued', 'in_progress') AND deleted_at IS NOT NULL"
# What was recorded with a turn stays, however the response ends.
RECORDED_ITEMS = "SELECT coalesce(max(items_end), 0) FROM turns WHERE response_key = ?"
DROP_OUTPUT = "DELETE FROM items WHERE response_key = ? AND direction = 'output' AND position >= ?"
HIDE = """
    UPDATE responses SET deleted_at = :now
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
    RETURNING key
"""
REMOVE_HIDDEN = """
    DELETE FROM responses
    WHERE key = ? AND deleted_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM responses AS child WHERE child.parent_key = responses.key)
    RETURNING parent_key
"""
INSERT_LOG = "INSERT INTO run_logs (response_key, ended_at, log) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
INSERT_LOG_PIECE = """
    INSERT INTO run_events (response_key, at, first, next, events) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
# Of a response that is hidden, and stays for those that follow it.
FORGET_RUN = (
    "DELETE FROM runs WHERE response_key = ?",
    "DELETE FROM run_events WHERE response_key = ?",
    "DELETE FROM run_logs WHERE response_key = ?",
)
# No durable run stands for them. A file is one process's: whoever made them is gone. A database is not.
RUNNING = per_dialect(
    """
    SELECT key, id, body FROM responses WHERE status IN ('queued', 'in_progress')
      AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.response_key = responses.key)
      {unless_alive}
    {skip_locked}
    """,
    sqlite={"unless_alive": ""},
    postgresql={
        "unless_alive": """
            AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.name = responses.worker
                            AND workers.expires_at > extract(epoch FROM clock_timestamp()))
        """
    },
)
FAIL = "UPDATE responses SET status = 'failed', completed_at = NULL WHERE key = ?"
TOUCH = "UPDATE alembic_version SET version_num = version_num"

# ---- reading ----

LOOK = "SELECT version_num FROM alembic_version"
BODY = """
    SELECT key, body FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
PLACE = """
    SELECT created_at, key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
"""
# Those of one status: for these the index is in the order of the list.
LISTED = """
    SELECT created_at, key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND status = :status AND deleted_at IS NULL {terms}
    ORDER BY created_at {order}, key {order}
    LIMIT :limit
"""
BODY_AT = "SELECT id, body FROM responses WHERE key = ?"
OUTPUT = "SELECT raw FROM items WHERE response_key = ? AND direction = 'output' ORDER BY position"
INPUT_IDS = "SELECT id FROM items WHERE response_key = ? AND direction = 'input' ORDER BY position"
INPUT_SPAN = """
    SELECT id, direction, raw FROM items
    WHERE response_key = ? AND direction = 'input' AND position BETWEEN ? AND ?
    ORDER BY position
"""
# The newest under each id: what is asked for of it, and the ids.
NEWEST = """
    SELECT {} FROM items
    WHERE key IN (SELECT max(items.key)
                  FROM items
                  CROSS JOIN responses ON responses.key = items.response_key AND responses.deleted_at IS NULL
                  WHERE items.tenant = ? AND items.owner = ? AND items.id IN ({})
                  GROUP BY items.id)
    ORDER BY id
"""

# The threads of a chain, each with the depth up to which it belongs to it: from a thread's first row, whose key the
# thread goes by, to the thread of its parent. UNION lets a cycle come to an end; CROSS JOIN keeps the order of loops.
# How large each link is, its request apart: of a long value, a database knows the length without reading it.
CHAIN_SIZES = """
    WITH RECURSIVE span(thread_key, depth) AS (
        SELECT thread_key, depth FROM responses
        WHERE tenant = :tenant AND owner = :owner AND id = :id AND deleted_at IS NULL
        UNION
        SELECT fork.thread_key, fork.depth
        FROM span
        CROSS JOIN responses AS first ON first.key = span.thread_key
        CROSS JOIN responses AS fork ON fork.key = first.parent_key
    )
    SELECT link.depth, link.key, link.parent_key,
           length(link.body)
           + coalesce((SELECT sum(length(raw) + :item_bytes) FROM items WHERE response_key = link.key), 0)
    FROM span
    CROSS JOIN responses AS link ON link.thread_key = span.thread_key AND link.depth <= span.depth
"""
# By the keys of their responses, in the order of the index: the database would copy what it sorts.
LINKS = "SELECT key, request, body FROM responses WHERE key IN ({})"
LINK_ITEMS = """
    SELECT response_key, direction, id, raw FROM items
    WHERE response_key IN ({}) ORDER BY response_key, direction, position
"""
LINK_OUTPUT = """
    SELECT response_key, direction, id, raw FROM items
    WHERE response_key IN ({}) AND direction = 'output' ORDER BY response_key, position
"""
LINK_DECLARED = """
    SELECT response_key, direction, id, raw FROM items
    WHERE response_key IN ({}) AND type = 'additional_tools' ORDER BY response_key, direction, position
"""
DECLARED_SIZES = """
    SELECT response_key, sum(length(raw)) FROM items
    WHERE response_key IN ({}) AND type = 'additional_tools' GROUP BY response_key
"""
LINK_TURNS = """
    SELECT response_key, kind, mark, items_end FROM turns
    WHERE response_key IN ({}) AND kind IN ('turn', 'abandoned') ORDER BY response_key, number
"""
COMPACTED = "SELECT DISTINCT response_key FROM items WHERE response_key IN ({}) AND type = 'compaction'"
