"""Approvals, claimed tool calls, and which tools of servers are writing, in a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from antwort.api.resources import Approval, ApprovalStatus
from antwort.errors import ApprovalInUse, ConversationNotFound, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import (
    SEEN_AGAIN_SECONDS,
    WRITING_TOOLS_PER_SERVER,
    WRITING_TOOLS_PER_TENANT,
    ApprovalPage,
    CallClaim,
    CallRecord,
    CallResult,
    Decision,
    Page,
)
from antwort.storage.bounds import take_page
from antwort.storage.database import Connection, DatabaseClient, page_terms, reading, sql_order, writing
from antwort.storage.rows import RowValues, decode, name_of

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
_PLACE = "SELECT key FROM approvals WHERE tenant = :tenant AND owner = :owner AND id = :cursor"
_FIND = "SELECT {columns} FROM approvals WHERE tenant = ? AND owner = ? AND id IN ({ids})"
_LISTED = """
    SELECT {columns} FROM approvals
    WHERE tenant = :tenant AND owner = :owner {terms}
    ORDER BY key {order}
    LIMIT :limit
"""

_decode_result = msgspec.json.Decoder(CallResult)

_ANCHOR = """
    SELECT (SELECT key FROM responses WHERE tenant = :tenant AND owner = :owner AND id = :response_id),
           (SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :conversation_id)
"""
_CLAIM = """
    INSERT INTO calls (tenant, owner, call_id, settled_by, result, response_key, conversation_key)
    VALUES (:tenant, :owner, :call_id, :settled_by, :result, :response_key, :conversation_key)
    ON CONFLICT DO NOTHING
"""
_TAKE_OVER = """
    UPDATE calls SET settled_by = :settled_by, result = :result
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :instead_of AND result IS NULL
"""
_FINISH = """
    UPDATE calls SET result = :result
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :settled_by AND result IS NULL
"""
_RELEASE = """
    DELETE FROM calls
    WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id AND settled_by = :settled_by AND result IS NULL
"""
_CALL = "SELECT settled_by, result FROM calls WHERE tenant = :tenant AND owner = :owner AND call_id = :call_id"

_TOOLS = "SELECT name, seen_at FROM writing_tools WHERE tenant = :tenant AND server = :server"
_INSERT_TOOL = """
    INSERT INTO writing_tools (tenant, server, name, seen_at) VALUES (:tenant, :server, :name, :now)
    ON CONFLICT DO NOTHING
"""
_SEEN = "UPDATE writing_tools SET seen_at = :now WHERE tenant = :tenant AND server = :server AND seen_at < :now"
_DELETE_NAMES = "DELETE FROM writing_tools WHERE tenant = :tenant AND server = :server AND name <> ''"
_DELETE_SERVER = "DELETE FROM writing_tools WHERE tenant = :tenant AND server = :oldest"
_COUNT = "SELECT COUNT(*) FROM writing_tools WHERE tenant = :tenant"
_OLDEST = """
    SELECT server, COUNT(*) FROM writing_tools WHERE tenant = :tenant AND server <> :server
    GROUP BY server ORDER BY MAX(seen_at), server
"""


class SqlCalls(DatabaseClient):
    """The approvals, claimed calls and names of writing tools of the store."""

    @reading
    def find_approvals(self, connection: Connection, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        found: dict[str, Approval] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            some = ids[start : start + _IDS_PER_QUERY]
            query = _FIND.format(columns=_COLUMNS, ids=", ".join("?" * len(some)))
            rows = connection.execute(query, (identity.tenant, identity.owner, *some))
            found |= {approval.id: approval for approval in map(_to_approval, rows)}
        return found

    @reading
    def approvals(
        self, connection: Connection, identity: Identity, page: Page, status: ApprovalStatus | None, now: int
    ) -> ApprovalPage:
        values: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "now": now}
        values["limit"] = page.limit + 1
        terms = page_terms(connection, page, ("key",), _PLACE, values)
        terms += "" if status is None else _STATUS_TERMS[status]
        query = _LISTED.format(columns=_COLUMNS, terms=terms, order=sql_order(page))
        rows = connection.execute(query, values)
        chosen, has_more = take_page(map(_to_approval, rows), page, lambda approval: len(approval.arguments.encode()))
        return ApprovalPage(approvals=chosen, has_more=has_more)

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        values = name_of(identity, response_id)

        def has_decided(connection: Connection, _: None) -> bool:
            rows = _decision_rows(values, decisions)
            return not any(connection.execute(_IS_OPEN, row).fetchone() for row in rows)

        await self.database.write_once(partial(decide, values=values, decisions=decisions), has_decided)

    async def claim_call(self, identity: Identity, claim: CallClaim) -> CallRecord | None:
        values = _name(identity, claim.call_id) | {
            "settled_by": claim.settled_by,
            "result": None if claim.result is None else msgspec.json.encode(claim.result),
            "response_id": claim.response_id,
            "conversation_id": claim.conversation_id,
            "instead_of": claim.instead_of,
        }

        def is_claimed(connection: Connection, found: CallRecord | None) -> bool:
            if found is not None:
                return False
            row = connection.execute(_CALL, values).fetchone()
            return row is not None and row[0] == claim.settled_by

        return await self.database.write_once(partial(_claim, values=values), is_claimed)

    async def finish_call(self, identity: Identity, call_id: str, settled_by: str, result: CallResult) -> None:
        values = _name(identity, call_id) | {"settled_by": settled_by, "result": msgspec.json.encode(result)}
        # To write it twice changes nothing.
        await self.database.write_once(lambda connection: connection.execute(_FINISH, values), lambda *_: False)

    @writing
    def release_call(self, connection: Connection, identity: Identity, call_id: str, settled_by: str) -> None:
        connection.execute(_RELEASE, _name(identity, call_id) | {"settled_by": settled_by})

    @reading
    def call_record(self, connection: Connection, identity: Identity, call_id: str) -> CallRecord | None:
        return _call(connection, _name(identity, call_id))

    async def note_writing_tools(
        self, tenant: str, server: str, names: Collection[str], now: int
    ) -> frozenset[str] | None:
        values: RowValues = {"tenant": tenant, "server": server, "now": now}
        tools = await self.database.read(partial(_writing_tools, values=values))
        if not tools.has(names, now):
            note = partial(_note_writing_tools, values=values, names=frozenset(names), now=now)
            tools = await self.database.write(note)
        return tools.counted()


# ---- approvals ----


def insert_approvals(
    connection: Connection,
    values: RowValues,
    approvals: Sequence[Approval],
    *,
    response_key: int | None = None,
    conversation_key: int | None = None,
) -> None:
    """Insert approvals of the owner that `values` names. They are deleted with the response, or the conversation, of
    this key.
    """
    keys = {"response_key": response_key, "conversation_key": conversation_key}
    rows = [values | msgspec.structs.asdict(approval) | keys for approval in approvals]
    connection.executemany(_INSERT, rows)
    connection.executemany(_OUTDATE, [row for row in rows if row["replaces"] is not None])


def decide(connection: Connection, values: RowValues, decisions: Sequence[Decision]) -> None:
    """Do what `ResponseStore.decide` does, for the response that `values` names."""
    for row in _decision_rows(values, decisions):
        if connection.execute(_DECIDE, row).rowcount == 0 and connection.execute(_EXISTS, row).fetchone():
            raise ApprovalInUse


def _decision_rows(values: RowValues, decisions: Sequence[Decision]) -> list[RowValues]:
    return [values | msgspec.structs.asdict(each) | {"by": values["id"]} for each in decisions]


def _to_approval(row: Sequence[str | int | None]) -> Approval:
    return msgspec.convert(dict(zip(_COLUMNS.split(", "), row, strict=True)), Approval)


# ---- calls ----


def _name(identity: Identity, call_id: str) -> RowValues:
    return {"tenant": identity.tenant, "owner": identity.owner, "call_id": call_id}


def _claim(connection: Connection, values: RowValues) -> CallRecord | None:
    response_key, conversation_key = connection.execute(_ANCHOR, values).fetchone()
    if response_key is None and conversation_key is None:
        if values["response_id"] is not None:
            raise ResponseNotFound(str(values["response_id"]))
        raise ConversationNotFound(str(values["conversation_id"]))
    keys: RowValues = {"response_key": response_key, "conversation_key": conversation_key}
    if connection.execute(_CLAIM, values | keys).rowcount:
        return None
    if values["instead_of"] is not None and connection.execute(_TAKE_OVER, values).rowcount:
        return None
    return _call(connection, values)


def _call(connection: Connection, values: RowValues) -> CallRecord | None:
    row = connection.execute(_CALL, values).fetchone()
    if row is None:
        return None
    settled_by, result = row
    return CallRecord(settled_by, None if result is None else decode(_decode_result, result))


# ---- writing tools ----

ALL_TOOLS = ""
"""Stands for every tool of a server. No tool has this name."""


class WritingTools(NamedTuple):
    """The tools that a server has listed as writing, and when it was listed last."""

    names: frozenset[str] = frozenset()
    seen_at: int = 0

    def has(self, names: Collection[str], now: int) -> bool:
        """Return whether there is nothing new to write."""
        is_old = bool(self.names) and now - self.seen_at >= SEEN_AGAIN_SECONDS
        return not is_old and (ALL_TOOLS in self.names or self.names.issuperset(names))

    def with_names(self, names: Collection[str], now: int) -> WritingTools:
        more = self.names.union(names)
        if ALL_TOOLS in self.names or len(more) > WRITING_TOOLS_PER_SERVER:
            more = frozenset({ALL_TOOLS})
        return WritingTools(more, now)

    def counted(self) -> frozenset[str] | None:
        """Return the names; None when every tool counts as writing."""
        return None if ALL_TOOLS in self.names else self.names


def _writing_tools(connection: Connection, values: RowValues) -> WritingTools:
    rows = connection.execute(_TOOLS, values).fetchall()
    return WritingTools(frozenset(str(name) for name, _ in rows), max((int(seen_at) for _, seen_at in rows), default=0))


def _note_writing_tools(connection: Connection, values: RowValues, names: frozenset[str], now: int) -> WritingTools:
    before = _writing_tools(connection, values)
    after = before.with_names(names, now)
    # In the order of the names, so that two processes that write the same do not wait for each other.
    connection.executemany(_INSERT_TOOL, [values | {"name": name} for name in sorted(after.names - before.names)])
    connection.execute(_SEEN, values)
    if ALL_TOOLS in after.names:
        connection.execute(_DELETE_NAMES, values)
    (count,) = connection.execute(_COUNT, values).fetchone()
    if (excess := int(count) - WRITING_TOOLS_PER_TENANT) > 0:
        for server, of_server in connection.execute(_OLDEST, values).fetchall():
            connection.execute(_DELETE_SERVER, values | {"oldest": str(server)})
            excess -= int(of_server)
            if excess <= 0:
                break
    return after
