"""The SQL of `conversations.py`. What a client can name is found by tenant, owner and id together."""

from __future__ import annotations

from antwort.db.dialects import per_dialect

# ---- writing ----

INSERT = """
    INSERT INTO conversations (tenant, owner, id, created_at, schema_version, metadata)
    VALUES (:tenant, :owner, :id, :created_at, :schema_version, :metadata)
"""
# Whoever holds the row of the conversation is alone, and may count for itself: what it counts after that.
HOLD = per_dialect("SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id {lock}")
END = "SELECT coalesce(max(position), -1) + 1 FROM conversation_items WHERE conversation_key = :key"
# Says by the count of rows whether the id was free.
INSERT_ENTRY = """
    INSERT INTO conversation_items (conversation_key, tenant, owner, id, direction, position, type, raw)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, owner, id, conversation_key) DO NOTHING
"""
DESCRIBE = """
    UPDATE conversations SET metadata = :metadata WHERE tenant = :tenant AND owner = :owner AND id = :id
"""
DELETE = "DELETE FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id"
DELETE_ENTRY = """
    DELETE FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :item_id
      AND conversation_key = (SELECT key FROM conversations
                              WHERE tenant = :tenant AND owner = :owner AND id = :id)
"""

# ---- reading ----

FOUND = """
    SELECT created_at, metadata FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id
"""
KEY = "SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id"
# How large it is: of a long value, a database knows the length without reading it.
SIZE = """
    SELECT told.key,
           coalesce((SELECT sum(length(raw) + :item_bytes) FROM conversation_items
                     WHERE conversation_key = told.key), 0)
    FROM conversations AS told
    WHERE told.tenant = :tenant AND told.owner = :owner AND told.id = :id
"""
SIZES = """
    SELECT position, length(raw) + :item_bytes, type = 'compaction' FROM conversation_items
    WHERE conversation_key = :key ORDER BY position
"""
DECLARED = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key AND position < :first AND type = 'additional_tools'
    ORDER BY position
"""
SAID = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key AND position BETWEEN :first AND :last
    ORDER BY position
"""
ENTRY = """
    SELECT id, direction, raw FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :item_id
      AND conversation_key = (SELECT key FROM conversations
                              WHERE tenant = :tenant AND owner = :owner AND id = :id)
"""
PLACE = """
    SELECT position FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :item_id AND conversation_key = :key
"""
PAGE = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key {terms}
    ORDER BY position {order}
    LIMIT :limit
"""
# The newest under each id: what is asked for of it, and the ids.
NEWEST = """
    SELECT {} FROM conversation_items
    WHERE key IN (SELECT max(key) FROM conversation_items
                  WHERE tenant = ? AND owner = ? AND id IN ({})
                  GROUP BY id)
    ORDER BY id
"""
