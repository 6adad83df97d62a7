"""Approvals in a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.errors import ApprovalInUse
from antwort.identity import Identity
from antwort.storage.base import ApprovalPage, Decision, Page
from antwort.storage.database import Connection, Database, Value, write_once
from antwort.storage.paging import approval_size, page_terms, sql_order, take_page
from antwort.storage.rows import RowValues

_IDS_PER_QUERY = 500
_COLUMNS = (
    "id, response_id, status, created_at, expires_at, decided_by, server_label, name, arguments, tool_digest, replaces"
)
_STATUS_TERMS: dict[ApprovalStatus, str] = {
    "pending": "AND status = 'pending' AND expires_at > :now",
    "expired": "AND status = 'pending' AND expires_at <= :now",
    "approved": "AND status = 'approved'",
    "denied": "AND status = 'denied'",
    "outdated": "AND status = 'outdated'",
}

_INSERT = """
    INSERT INTO approvals (tenant, owner, response_key, conversation_key, id, response_id, status,
                           created_at, expires_at, server_label, name, arguments, tool_digest, replaces)
    VALUES (:tenant, :owner, :response_key, :conversation_key, :id, :response_id, 'pending', :created_at, :expires_at,
            :server_label, :name, :arguments, :tool_digest, :replaces)
    ON CONFLICT DO NOTHING
"""
_OUTDATE = """
    UPDATE approvals SET status = 'outdated'
    WHERE tenant = :tenant AND owner = :owner AND id = :replaces AND status = 'approved'
"""
# A decision stays; the response that acts on it may change, and an approved call may become outdated.
_DECIDE = """
    UPDATE approvals SET status = :status, decided_by = :by
    WHERE tenant = :tenant AND owner = :owner AND id = :id
      AND decided_by IS :after
      AND (status IN ('pending', :status) OR (status = 'approved' AND :status = 'outdated'))
"""
_EXISTS = "SELECT 1 FROM approvals WHERE tenant = :tenant AND owner = :owner AND id = :id"
_IS_OPEN = """
    SELECT 1 FROM approvals
    WHERE tenant = :tenant AND owner = :owner AND id = :id AND (decided_by IS NULL OR decided_by <> :by)
"""
_DELETE = "DELETE FROM approvals WHERE response_key = ?"
_PLACE = "SELECT key FROM approvals WHERE tenant = :tenant AND owner = :owner AND id = :cursor"
_FIND = "SELECT {columns} FROM approvals WHERE tenant = ? AND owner = ? AND id IN ({ids})"
_LISTED = """
    SELECT {columns} FROM approvals
    WHERE tenant = :tenant AND owner = :owner {terms}
    ORDER BY key {order}
    LIMIT :limit
"""


class SqlApprovals:
    """The part of the store that keeps approvals."""

    _database: Database

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        def read(connection: Connection) -> dict[str, Approval]:
            found: dict[str, Approval] = {}
            for start in range(0, len(ids), _IDS_PER_QUERY):
                some = ids[start : start + _IDS_PER_QUERY]
                query = _FIND.format(columns=_COLUMNS, ids=", ".join("?" * len(some)))
                rows = connection.execute(query, (identity.tenant, identity.owner, *some))
                found |= {approval.id: approval for approval in map(_to_approval, rows)}
            return found

        return await self._database.read(read)

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        def read(connection: Connection) -> ApprovalPage:
            values: dict[str, Value] = {"tenant": identity.tenant, "owner": identity.owner, "now": now}
            values["limit"] = page.limit + 1
            terms = page_terms(connection, page, ("key",), _PLACE, values)
            terms += "" if status is None else _STATUS_TERMS[status]
            query = _LISTED.format(columns=_COLUMNS, terms=terms, order=sql_order(page))
            rows = connection.execute(query, values)
            chosen, has_more = take_page(map(_to_approval, rows), page, approval_size)
            return ApprovalPage(approvals=chosen, has_more=has_more)

        return await self._database.read(read)

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        rows = decision_rows(identity, response_id, decisions)

        def has_decided(connection: Connection, _: None) -> bool:
            return not any(connection.execute(_IS_OPEN, values).fetchone() for values in rows)

        await write_once(self._database, partial(decide, decisions=rows), has_decided)


def approval_rows(identity: Identity, approvals: Sequence[Approval]) -> list[RowValues]:
    of = {"tenant": identity.tenant, "owner": identity.owner}
    return [msgspec.structs.asdict(approval) | of for approval in approvals]


def decision_rows(identity: Identity, response_id: str, decisions: Sequence[Decision]) -> list[RowValues]:
    by: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "by": response_id}
    return [by | {"id": each.id, "status": each.status, "after": each.after} for each in decisions]


def insert_approvals(
    connection: Connection,
    approvals: Sequence[RowValues],
    *,
    response_key: int | None = None,
    conversation_key: int | None = None,
) -> None:
    """Insert approvals that are deleted with the response, or the conversation, of this key."""
    keys: RowValues = {"response_key": response_key, "conversation_key": conversation_key}
    connection.executemany(_INSERT, [values | keys for values in approvals])
    connection.executemany(_OUTDATE, [values for values in approvals if values["replaces"] is not None])


def decide(connection: Connection, decisions: Sequence[RowValues]) -> None:
    """Do what `ResponseStore.decide` does."""
    for values in decisions:
        if connection.execute(_DECIDE, values).rowcount == 0 and connection.execute(_EXISTS, values).fetchone():
            raise ApprovalInUse


def delete_approvals(connection: Connection, response_key: int) -> None:
    connection.execute(_DELETE, (response_key,))


def _to_approval(row: Sequence[str | int | None]) -> Approval:
    return msgspec.convert(dict(zip(_COLUMNS.split(", "), row, strict=True)), Approval)
