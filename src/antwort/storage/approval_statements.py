"""The SQL of `approvals.py`."""

from __future__ import annotations

INSERT = """
    INSERT INTO approvals (tenant, owner, response_key, conversation_key, id, response_id, status,
                           created_at, expires_at, server_label, name, arguments, tool_digest, replaces)
    VALUES (:tenant, :owner, :response_key, :conversation_key, :id, :response_id, 'pending', :created_at, :expires_at,
            :server_label, :name, :arguments, :tool_digest, :replaces)
    ON CONFLICT DO NOTHING
"""
# What was decided stays so; who acts on it may change, and what was approved may become outdated.
DECIDE = """
    UPDATE approvals SET status = :status, decided_by = :by
    WHERE tenant = :tenant AND owner = :owner AND id = :id
      AND decided_by IS :after
      AND (status IN ('pending', :status) OR (status = 'approved' AND :status = 'outdated'))
"""
OUTDATE = """
    UPDATE approvals SET status = 'outdated'
    WHERE tenant = :tenant AND owner = :owner AND id = :replaces AND status = 'approved'
"""
IS_THERE = "SELECT 1 FROM approvals WHERE tenant = :tenant AND owner = :owner AND id = :id"
IS_OPEN = """
    SELECT 1 FROM approvals
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND (decided_by IS NULL OR decided_by <> :by)
"""
DELETE = "DELETE FROM approvals WHERE response_key = ?"
PLACE = "SELECT key FROM approvals WHERE tenant = :tenant AND owner = :owner AND id = :id"
FOUND = """
    SELECT id, response_id, status, created_at, expires_at, decided_by, server_label, name, arguments, tool_digest,
           replaces
    FROM approvals
    WHERE tenant = ? AND owner = ? AND id IN ({})
"""
LISTED = """
    SELECT id, response_id, status, created_at, expires_at, decided_by, server_label, name, arguments, tool_digest,
           replaces
    FROM approvals
    WHERE tenant = :tenant AND owner = :owner {terms}
    ORDER BY key {order}
    LIMIT :limit
"""
