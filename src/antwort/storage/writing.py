"""Writing responses, inside a transaction. What is written is turned into rows before, so that the writer only writes.

`begin_in` and `finish_in` may be parts of larger operations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.responses import Response
from antwort.api.status import FINAL, IllegalTransition
from antwort.api.wire import UNSET
from antwort.db import Connection
from antwort.errors import ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage import claims, logs
from antwort.storage import statements as sql
from antwort.storage.approvals import approval_rows, decide, decision_rows
from antwort.storage.approvals import delete as delete_approvals
from antwort.storage.approvals import insert as insert_approvals
from antwort.storage.base import Entry, NewResponse, PackedLog
from antwort.storage.conversations import EntryRow, add, entry_rows
from antwort.storage.rows import (
    SCHEMA_VERSION,
    ItemRow,
    MarkRow,
    Values,
    input_rows,
    mark_rows,
    name_of,
    output_rows,
    to_body,
    to_response,
)
from antwort.storage.rules import check_beginning, check_ending, check_running, failed


class Beginning(NamedTuple):
    """A new response, ready to be written."""

    values: Values
    items: list[ItemRow]
    claim: Values | None
    approvals: list[Values]
    decisions: list[Values]
    is_staged: bool = False
    """Whether its row is there already, hidden, with all items but these (`staging.staged`)."""


class Finishing(NamedTuple):
    """The outcome of a response, ready to be written."""

    response: Response
    values: Values
    items: list[ItemRow]
    turns: list[MarkRow]
    entries: list[EntryRow]
    asked: list[Values]
    log: PackedLog | None = None
    """Compressed (`logs.compressed`)."""


class Progress(NamedTuple):
    """What a running response has produced since it was recorded last, ready to be written."""

    values: Values
    items: list[ItemRow]
    turns: list[MarkRow]


def to_beginning(new: NewResponse) -> Beginning:
    """Raises `IllegalTransition` for one that has ended."""
    check_beginning(new.response.status)
    claim = None if new.claim is None else claims.to_values(new.identity, new.response.id, new.claim)
    return Beginning(
        values=_row(new),
        items=input_rows(new),
        claim=claim,
        approvals=approval_rows(new.identity, new.approvals),
        decisions=decision_rows(new.identity, new.response.id, new.decisions),
    )


def to_finishing(
    identity: Identity,
    response: Response,
    marks: Sequence[tuple[int, Mark]],
    entries: Sequence[Entry] = (),
    approvals: Sequence[Approval] = (),
    log: PackedLog | None = None,
) -> Finishing:
    return Finishing(
        response=response,
        values=name_of(identity, response.id) | {"body": to_body(response)},
        items=output_rows(response.output),
        turns=mark_rows(marks),
        entries=entry_rows(entries),
        asked=approval_rows(identity, approvals),
        log=log,
    )


def to_progress(identity: Identity, response: Response, marks: Sequence[tuple[int, Mark]], items_from: int) -> Progress:
    return Progress(
        values=name_of(identity, response.id) | {"body": to_body(response)},
        items=output_rows(response.output, items_from),
        turns=mark_rows(marks),
    )


def _row(new: NewResponse) -> Values:
    response = new.response
    return name_of(new.identity, response.id) | {
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


def begin_in(connection: Connection, new: Beginning) -> int:
    """What `ResponseStore.begin` does, and raises; the key of the row."""
    key = _show(connection, new.values) if new.is_staged else _insert(connection, new.values)
    _insert_items(connection, key, new.values, new.items)
    if new.claim is not None:
        claims.take(connection, new.claim)
    insert_approvals(connection, new.approvals, response_key=key)
    decide(connection, new.decisions)
    return key


def _insert(connection: Connection, values: Values) -> int:
    statement = sql.INSERT_FIRST if values["parent_id"] is None else sql.INSERT_CHILD
    rows = connection.execute(statement[connection.dialect], values).fetchall()
    if not rows:
        raise ResponseNotFound(str(values["parent_id"]), param="previous_response_id")
    return int(rows[0][0])


def _show(connection: Connection, values: Values) -> int:
    (key,) = connection.execute(sql.STAGED, values).fetchone()
    connection.execute(sql.SHOW, (key,))
    return int(key)


def stage_input(connection: Connection, values: Values, items: list[ItemRow]) -> None:
    """Write some items of a response that has yet to begin: its row is there from now on, hidden."""
    row = connection.execute(sql.STAGED, values).fetchone()
    if row is None and has_begun(connection, values):
        return
    if row is None:
        row = (_insert(connection, values),)
        connection.execute(sql.HIDE, values | {"now": values["created_at"]})
    _insert_items(connection, int(row[0]), values, items)


def drop_staged(connection: Connection, values: Values) -> None:
    """Of a response that did not begin after all."""
    _remove_hidden(connection, connection.execute(sql.STAGED, values).fetchall())


def drop_all_staged(connection: Connection) -> None:
    """What a process left that ended before they could begin."""
    for row in connection.execute(sql.ALL_STAGED).fetchall():
        _remove_hidden(connection, [row])


def stage_output(connection: Connection, values: Values, items: list[ItemRow]) -> None:
    """Write some items of a response that is about to end, or to record a turn. Until then they are its output so far;
    if it has ended already, or is gone, there is nothing to do.
    """
    row = connection.execute(sql.RECORDED[connection.dialect], values).fetchone()
    if row is not None and row[1] not in FINAL:
        _insert_items(connection, row[0], values, [item for item in items if item[2] >= row[2]])


def has_begun(connection: Connection, values: Values) -> bool:
    """Whether `begin_in` was committed. Ids are made anew for each: a row that has this one is this one."""
    return connection.execute(sql.BODY, values).fetchone() is not None


def has_finished(connection: Connection, end: Finishing) -> bool:
    """Whether `finish_in` was committed: the row ends as this one does."""
    row = connection.execute(sql.BODY, end.values).fetchone()
    return row is not None and row[1] == end.values["body"]


def has_output(connection: Connection, key: int, end: Finishing) -> bool:
    """Whether the items on record are these."""
    return [bytes(raw) for (raw,) in connection.execute(sql.OUTPUT, (key,))] == [item[-1] for item in end.items]


def finish_in(connection: Connection, end: Finishing) -> int:
    """What `ResponseStore.finish` does, and raises; the key of the row."""
    response = end.response
    row = connection.execute(sql.RECORDED[connection.dialect], end.values).fetchone()
    if row is None:
        raise ResponseNotFound(response.id)
    key, status, items, turns = row
    check_ending(status, response.status)
    connection.execute(sql.UPDATE, (response.status, response.completed_at, end.values["body"], key))
    if items > len(end.items):  # it was about to end in another way
        (recorded,) = connection.execute(sql.RECORDED_ITEMS, (key,)).fetchone()
        connection.execute(sql.DROP_OUTPUT, (key, max(recorded, len(end.items))))
    _insert_items(connection, key, end.values, end.items[items:])
    connection.executemany(sql.INSERT_TURN, [(key, *turn) for turn in end.turns[turns:]])
    insert_approvals(connection, end.asked, response_key=key)
    if end.entries and response.conversation is not UNSET:
        add(connection, end.values | {"id": response.conversation.id}, end.entries)
    if end.log is not None:
        logs.keep_in(connection, key, end.log, int(time.time()))
    return int(key)


def record_in(connection: Connection, progress: Progress) -> None:
    """What `ResponseStore.record_turn` does."""
    row = connection.execute(sql.RECORDED[connection.dialect], progress.values).fetchone()
    if row is None:
        raise ResponseNotFound(str(progress.values["id"]))
    key, status, items, turns = row
    check_running(status)
    connection.execute(sql.UPDATE_BODY, (progress.values["body"], key))
    _insert_items(connection, key, progress.values, [item for item in progress.items if item[2] >= items])
    connection.executemany(sql.INSERT_TURN, [(key, *turn) for turn in progress.turns[turns:]])


def _insert_items(connection: Connection, key: int, values: Values, items: list[ItemRow]) -> None:
    of = key, values["tenant"], values["owner"]
    connection.executemany(sql.INSERT_ITEM, [(*of, *item) for item in items])


def delete(connection: Connection, values: Values) -> bool:
    """Hidden first; then it goes unless others follow it, and so do the hidden ones before it that none follows now."""
    connection.execute(sql.HOLD_RUN[connection.dialect], values)
    hidden = rows = connection.execute(sql.HIDE, values).fetchall()
    for (key,) in hidden:
        delete_approvals(connection, key)
        for statement in sql.FORGET_RUN:
            connection.execute(statement, (key,))
    _remove_hidden(connection, rows)
    return bool(hidden)


def _remove_hidden(connection: Connection, rows: list[tuple[int | None]]) -> None:
    """The one with that key, and those before it."""
    while rows and rows[0][0] is not None:
        rows = connection.execute(sql.REMOVE_HIDDEN, rows[0]).fetchall()


def is_gone(connection: Connection, values: Values) -> bool:
    """Whether `delete` was committed."""
    connection.execute(sql.HOLD_RUN[connection.dialect], values)
    return connection.execute(sql.STATUS[connection.dialect], values).fetchone() is None


def fail_running(connection: Connection, message: str) -> tuple[int, list[str]]:
    """How many there were, and the ids of those whose body cannot be read: these are failed by their columns alone."""
    rows = connection.execute(sql.RUNNING[connection.dialect]).fetchall()
    damaged = []
    for key, response_id, body in rows:
        try:
            response = failed(to_response(body), message)
        except (StoreFault, IllegalTransition):
            connection.execute(sql.FAIL, (key,))
            damaged.append(str(response_id))
        else:
            connection.execute(sql.UPDATE, (response.status, response.completed_at, to_body(response), key))
    return len(rows), damaged


def write_something(connection: Connection) -> None:
    connection.execute(sql.TOUCH)
