"""Who makes a run, and who comes next: operations on a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from antwort.api.responses import Response
from antwort.api.status import IllegalTransition, transition
from antwort.api.wire import replace
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.runs import statements as sql
from antwort.runs.codec import to_identity
from antwort.runs.dialects import grabbing, now
from antwort.runs.writing import drop, fail
from antwort.storage.database import Connection, Values
from antwort.storage.rows import name_of, to_body, to_response
from antwort.storage.run_log import Claimed, Lease, Renewed, Worker

UNREADABLE = "The record of this response is damaged."

FOR_EVER = 1e18
_ANY = 2**31 - 1
"""Places of an owner that has no bound."""


# ---- workers ----


def join(connection: Connection, worker: Worker, lease: float | None) -> None:
    """`lease`: seconds that it lives for; None: as long as this process, which has the database for itself."""
    expires_at = FOR_EVER if lease is None else now(connection) + lease
    connection.execute(sql.JOIN, {"worker": worker.name, "address": worker.address, "expires_at": expires_at})


def forget_workers(connection: Connection) -> None:
    connection.execute(sql.FORGET_WORKERS)


def leave(connection: Connection, worker: str) -> None:
    connection.execute(sql.LEAVE, {"worker": worker})


def renew(connection: Connection, worker: Worker, leases: frozenset[Lease], lease: float | None) -> Renewed:
    join(connection, worker, lease)
    of_worker = {"worker": worker.name}
    rows = connection.execute(sql.HELD, of_worker).fetchall()
    held = frozenset(Lease(run_id, fence, worker.name, key) for run_id, key, fence in rows)
    return Renewed(
        lost=leases - held,
        strays=held - leases,
        cancelled=frozenset(response_id for (response_id,) in connection.execute(sql.CANCELLED, of_worker)),
    )


def owner(connection: Connection, identity: Identity, response_id: str) -> Worker | None:
    values: Values = {**name_of(identity, response_id), "now": now(connection)}
    row = connection.execute(sql.OWNER, values).fetchone()
    return None if row is None else Worker(*row)


# ---- claims ----

Chosen: TypeAlias = tuple[int, int, int]
"""Key and fence, and whether it takes a turn in its conversation."""


def choose(connection: Connection, worker: str, count: int, per_owner: int | None) -> list[Chosen]:
    """Who comes next. It takes a look at all that wait, so it is best done where nobody waits for it."""
    values: Values = {"now": now(connection), "worker": worker, "count": count, "per_owner": per_owner or _ANY}
    return connection.execute(sql.CHOOSE, values).fetchall()


def claim(connection: Connection, worker: str, chosen: Sequence[Chosen], count: int) -> list[Claimed]:
    """Up to `count` of those that were chosen; others may have taken some meanwhile, or be about to."""
    at, claimed = now(connection), list[Claimed]()
    for key, fence, has_turn in chosen:
        if len(claimed) == count:
            break
        if has_turn and not _has_turn(connection, key):
            continue
        values: Values = {"now": at, "worker": worker, "key": key, "fence": fence}
        found = connection.execute(grabbing(connection, sql.CHOSEN, "runs"), values).fetchall()
        claimed += _take(connection, worker, found, at)
    return claimed


def _has_turn(connection: Connection, key: int) -> bool:
    """Whether no other process takes a run of the same conversation, until the transaction has ended."""
    if connection.dialect == "sqlite":
        return True
    row = connection.execute(sql.TURN, {"key": key}).fetchone()
    return row is not None and bool(row[0])


def claim_counted(connection: Connection, worker: str, count: int, per_owner: int) -> list[Claimed] | None:
    """No more of one owner than it has places: one process counts at a time. None: another does."""
    if not counts_alone(connection):
        return None
    return claim(connection, worker, choose(connection, worker, count, per_owner), count)


def take(connection: Connection, worker: str, identity: Identity, response_id: str) -> Claimed | None:
    at = now(connection)
    values: Values = {**name_of(identity, response_id), "now": at, "worker": worker}
    chosen = connection.execute(grabbing(connection, sql.CHOOSE_ONE, "runs"), values).fetchall()
    return next(iter(_take(connection, worker, chosen, at)), None)


def counts_alone(connection: Connection) -> bool:
    """Whether no other process counts places, until the transaction has ended."""
    if connection.dialect == "sqlite":
        return True
    return bool(connection.execute("SELECT pg_try_advisory_xact_lock(7267261, 1)").fetchone()[0])


def _take(connection: Connection, worker: str, chosen: list[Any], at: float) -> list[Claimed]:
    taken = (_take_one(connection, worker, key, at) for (key,) in chosen)
    return [claimed for claimed in taken if claimed is not None]


def _take_one(connection: Connection, worker: str, key: int, at: float) -> Claimed | None:
    row = connection.execute(sql.TAKE, {"key": key, "worker": worker, "now": at}).fetchone()
    run_id, fence, identity, attempt, is_cancelled, begun_at, queued_at = row
    status, request, body = connection.execute(sql.RESPONSE, (key,)).fetchone()
    try:
        response, whose = to_response(body), to_identity(bytes(identity))
        begun = replace(response, status=transition(response.status, "in_progress")) if status == "queued" else None
    except (StoreFault, IllegalTransition):  # nobody can go on with it, and it must not stand in the others' way
        fail(connection, key, body, UNREADABLE)
        drop(connection, key)
        return None
    if begun is not None:
        connection.execute(sql.UPDATE_RESPONSE, (begun.status, None, to_body(begun), key))
    return Claimed(
        lease=Lease(run_id, fence, worker, key),
        identity=whose,
        request=bytes(request),
        response=_as_submitted(response),
        attempt=attempt,
        is_cancelled=bool(is_cancelled),
        begun_at=begun_at,
        waited=max(begun_at - queued_at, 0.0) if fence == 1 else None,
    )


def _as_submitted(response: Response) -> Response:
    """What is made in the background was queued at first."""
    return replace(response, status="queued") if response.background else response
