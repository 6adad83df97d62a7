"""Approvals in a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import asdict

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.db import Connection, Database
from antwort.errors import ApprovalInUse
from antwort.identity import Identity
from antwort.storage import approval_statements as sql
from antwort.storage.base import ApprovalPage, Decision, Page
from antwort.storage.once import write_once
from antwort.storage.rows import Values
from antwort.storage.rules import no_such, size_of, starts_at_front, within_size

_IDS_AT_ONCE = 500
_FIELDS = (
    "id",
    "response_id",
    "status",
    "created_at",
    "expires_at",
    "decided_by",
    "server_label",
    "name",
    "arguments",
    "tool_digest",
    "replaces",
)
_TERMS: dict[ApprovalStatus, str] = {
    "pending": "AND status = 'pending' AND expires_at > :now",
    "expired": "AND status = 'pending' AND expires_at <= :now",
    "approved": "AND status = 'approved'",
    "denied": "AND status = 'denied'",
    "outdated": "AND status = 'outdated'",
}


class SqlApprovals:
    """The part of the store that keeps approvals."""

    _database: Database

    async def find_approvals(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
        return await self._database.read(partial(_find, identity=identity, ids=ids))

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None, now: int) -> ApprovalPage:
        return await self._database.read(partial(_page, identity=identity, page=page, status=status, now=now))

    async def decide(self, identity: Identity, response_id: str, decisions: Sequence[Decision]) -> None:
        values = decision_rows(identity, response_id, decisions)
        await write_once(
            self._database,
            partial(decide, decisions=values),
            lambda connection, _: _has_decided(connection, values),
        )


def approval_rows(identity: Identity, approvals: Sequence[Approval]) -> list[Values]:
    return [asdict(approval) | {"tenant": identity.tenant, "owner": identity.owner} for approval in approvals]


def decision_rows(identity: Identity, response_id: str, decisions: Sequence[Decision]) -> list[Values]:
    by: Values = {"tenant": identity.tenant, "owner": identity.owner, "by": response_id}
    return [by | {"id": each.id, "status": each.status, "after": each.after} for each in decisions]


# ---- in a transaction of the writer ----


def insert(
    connection: Connection,
    approvals: Sequence[Values],
    *,
    response_key: int | None = None,
    conversation_key: int | None = None,
) -> None:
    """They go with the response, or the conversation, of this key."""
    keys: Values = {"response_key": response_key, "conversation_key": conversation_key}
    connection.executemany(sql.INSERT, [values | keys for values in approvals])
    connection.executemany(sql.OUTDATE, [values for values in approvals if values["replaces"] is not None])


def decide(connection: Connection, decisions: Sequence[Values]) -> None:
    for values in decisions:
        if connection.execute(sql.DECIDE, values).rowcount == 0 and connection.execute(sql.IS_THERE, values).fetchone():
            raise ApprovalInUse


def _has_decided(connection: Connection, decisions: Sequence[Values]) -> bool:
    return not any(connection.execute(sql.IS_OPEN, values).fetchone() for values in decisions)


def delete(connection: Connection, response_key: int) -> None:
    connection.execute(sql.DELETE, (response_key,))


# ---- reading ----


def _find(connection: Connection, identity: Identity, ids: Sequence[str]) -> Mapping[str, Approval]:
    found: dict[str, Approval] = {}
    for start in range(0, len(ids), _IDS_AT_ONCE):
        some = ids[start : start + _IDS_AT_ONCE]
        query = sql.FOUND.format(", ".join("?" * len(some)))
        for row in connection.execute(query, (identity.tenant, identity.owner, *some)):
            found[row[0]] = _approval(row)
    return found


def _page(
    connection: Connection, identity: Identity, page: Page, status: ApprovalStatus | None, now: int
) -> ApprovalPage:
    """A page from its end is read backwards."""
    forwards = starts_at_front(page)
    is_rising = (page.order == "asc") == forwards
    values: Values = {"tenant": identity.tenant, "owner": identity.owner, "limit": page.limit + 1, "now": now}
    terms = "" if status is None else _TERMS[status]
    for param, cursor, sign in (("after", page.after, "><"), ("before", page.before, "<>")):
        if cursor is not None:
            values[param] = _place(connection, values, param, cursor)
            terms += f" AND key {sign[page.order == 'desc']} :{param}"
    query = sql.LISTED.format(terms=terms, order="ASC" if is_rising else "DESC")
    found = [_approval(row) for row in connection.execute(query, values)]
    chosen = found[: page.limit]
    chosen = chosen[: within_size(map(size_of, chosen))]
    return ApprovalPage(approvals=tuple(chosen if forwards else reversed(chosen)), has_more=len(found) > len(chosen))


def _place(connection: Connection, values: Values, param: str, cursor: str) -> int:
    row = connection.execute(sql.PLACE, values | {"id": cursor}).fetchone()
    if row is None:
        raise no_such(param, cursor)
    return int(row[0])


def _approval(row: Sequence[str | int | None]) -> Approval:
    return msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Approval)
