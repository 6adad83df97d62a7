"""Responses in a SQLite file, in plain SQL: a toolkit between would cost more than the database."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Self, TypeAlias

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.items import InputItem
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.api.wire import UNSET
from antwort.db import Database
from antwort.errors import ResponseNotFound, StoreFault
from antwort.identity import Identity
from antwort.storage import claims
from antwort.storage import statements as sql
from antwort.storage.approvals import SqliteApprovals, approval_rows, decide, decision_rows
from antwort.storage.approvals import delete as delete_approvals
from antwort.storage.approvals import insert as insert_approvals
from antwort.storage.base import Claimed, Entry, ItemPage, Link, NewResponse, Page, ResponsePage, Wanted
from antwort.storage.conversation_statements import NEWEST as NEWEST_ENTRIES
from antwort.storage.conversations import EntryRow, SqliteConversations, add, entry_rows
from antwort.storage.listing import list_responses
from antwort.storage.migrations import migrate
from antwort.storage.rows import (
    SCHEMA_VERSION,
    ItemRow,
    MarkRow,
    input_rows,
    mark_rows,
    output_rows,
    to_body,
    to_item,
    to_response,
)
from antwort.storage.rules import check_beginning, check_ending, cycle, failed, select

log = logging.getLogger("antwort.storage")

Value: TypeAlias = str | int | bytes | None
Values: TypeAlias = dict[str, Value]

_MOST_WARNINGS = 1000


class SqliteStore(SqliteConversations, SqliteApprovals):
    """The default store. What it is given is turned into rows before it is queued, so that the writer only writes."""

    def __init__(self, database: Database) -> None:
        """`database` is open and migrated; the store closes it."""
        super().__init__(database)
        self._warned: set[str] = set()

    @classmethod
    async def open(cls, path: str | PathLike[str]) -> Self:
        """The store in the file at `path`, made or brought up to date where need be."""
        database = Database(Path(path))
        await database.open()
        try:
            await migrate(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def begin(self, new: NewResponse) -> None:
        check_beginning(new.response.status)
        claim = None if new.claim is None else claims.to_values(new.identity, new.response.id, new.claim)
        decisions = decision_rows(new.identity, new.response.id, new.decisions)
        begin = partial(_begin, values=_row(new), items=input_rows(new), claim=claim, decisions=decisions)
        await self._database.write(begin)

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        values: Values = {"tenant": identity.tenant, "owner": identity.owner, "key": key, "now": now}
        return await self._database.read(partial(claims.look_up, values=values))

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        await self._database.write(partial(claims.release, values=_name(identity, response_id) | {"key": key}))

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
    ) -> None:
        items, turns, added = output_rows(response.output), mark_rows(marks), entry_rows(entries)
        values = _name(identity, response.id) | {"body": to_body(response)}
        asked = approval_rows(identity, approvals)
        end = partial(_finish, response=response, values=values, items=items, turns=turns, entries=added, asked=asked)
        await self._database.write(end)

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        return await self._database.read(partial(_get, values=_name(identity, response_id)))

    async def delete(self, identity: Identity, response_id: str) -> bool:
        values = _name(identity, response_id) | {"now": int(time.time())}
        return await self._database.write(partial(_delete, values=values))

    async def chain(self, identity: Identity, response_id: str) -> tuple[Link, ...]:
        return await self._database.read(partial(_chain, values=_name(identity, response_id)))

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        return await self._database.read(partial(_input_items, values=_name(identity, response_id), page=page))

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        found = await self._database.read(partial(list_responses, identity=identity, page=page, wanted=wanted))
        for response_id in found.damaged:
            self._warn(response_id)
        return found.page

    async def items(self, identity: Identity, ids: Sequence[str]) -> Mapping[str, InputItem]:
        return await self._database.read(partial(_items, identity=identity, ids=ids))

    async def fail_running(self, message: str) -> int:
        count, damaged = await self._database.write(partial(_fail_running, message=message))
        for response_id in damaged:
            log.warning("the record of %s, left running, is damaged: only its status could be set", response_id)
        return count

    async def check(self) -> None:
        await self._database.read(_read_something)
        await self._database.write(_write_something)

    async def close(self) -> None:
        await self._database.close()

    def _warn(self, response_id: str) -> None:
        """Once of each: lists are read again and again."""
        if response_id not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(response_id)
            log.warning("the record of %s cannot be read: lists leave it out", response_id)


def _name(identity: Identity, response_id: str) -> Values:
    return {"tenant": identity.tenant, "owner": identity.owner, "id": response_id}


def _row(new: NewResponse) -> Values:
    response = new.response
    return _name(new.identity, response.id) | {
        "parent_id": response.previous_response_id,
        "model": response.model,
        "status": response.status,
        "background": response.background,
        "created_at": response.created_at,
        "schema_version": SCHEMA_VERSION,
        "request": new.request,
        "body": to_body(response),
    }


# ---- writing ----


def _begin(
    connection: sqlite3.Connection,
    values: Values,
    items: list[ItemRow],
    claim: Values | None = None,
    decisions: Sequence[Values] = (),
) -> None:
    statement = sql.INSERT_FIRST if values["parent_id"] is None else sql.INSERT_CHILD
    inserted = connection.execute(statement, values)
    if inserted.rowcount == 0:
        raise ResponseNotFound(str(values["parent_id"]), param="previous_response_id")
    _insert_items(connection, inserted.lastrowid, values, items)
    if claim is not None:
        claims.take(connection, claim)
    decide(connection, decisions)


def _finish(
    connection: sqlite3.Connection,
    response: Response,
    values: Values,
    items: list[ItemRow],
    turns: list[MarkRow],
    entries: list[EntryRow],
    asked: Sequence[Values] = (),
) -> None:
    row = connection.execute(sql.STATUS, values).fetchone()
    if row is None:
        raise ResponseNotFound(response.id)
    key, status = row
    check_ending(status, response.status)
    connection.execute(sql.UPDATE, (response.status, response.completed_at, values["body"], key))
    _insert_items(connection, key, values, items)
    connection.executemany(sql.INSERT_TURN, [(key, *turn) for turn in turns])
    insert_approvals(connection, asked, response_key=key)
    if entries and response.conversation is not UNSET:
        add(connection, values | {"id": response.conversation.id}, entries)


def _insert_items(connection: sqlite3.Connection, key: int | None, values: Values, items: list[ItemRow]) -> None:
    of = key, values["tenant"], values["owner"]
    connection.executemany(sql.INSERT_ITEM, [(*of, *item) for item in items])


def _delete(connection: sqlite3.Connection, values: Values) -> bool:
    """Hidden first; then it goes unless others follow it, and so do the hidden ones before it that none follows now."""
    hidden = rows = connection.execute(sql.HIDE, values).fetchall()
    for (key,) in hidden:
        delete_approvals(connection, key)
    while rows and rows[0][0] is not None:
        rows = connection.execute(sql.REMOVE_HIDDEN, rows[0]).fetchall()
    return bool(hidden)


def _fail_running(connection: sqlite3.Connection, message: str) -> tuple[int, list[str]]:
    """How many there were, and the ids of those whose body cannot be read: these are failed by their columns alone."""
    rows = connection.execute(sql.RUNNING).fetchall()
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


def _write_something(connection: sqlite3.Connection) -> None:
    connection.execute(sql.TOUCH)


# ---- reading ----

_IDS_AT_ONCE = 500


def _get(connection: sqlite3.Connection, values: Values) -> Response | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    key, body = row
    return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])


def _chain(connection: sqlite3.Connection, values: Values) -> tuple[Link, ...]:
    """Three queries, however many links and threads. Sorted here: the database would copy what it sorts."""
    links = sorted(connection.execute(sql.CHAIN_LINKS, values), key=itemgetter(0))
    if links and links[0][2] is not None:  # only a chain that comes back to itself has no beginning
        raise cycle()
    inputs, outputs = _chain_items(connection, values)
    ends = _chain_ends(connection, values)
    return tuple(
        Link(
            response=to_response(body, outputs[key]),
            request=request,
            input=tuple(inputs[key]),
            turn_ends=tuple(ends[key]),
        )
        for _, key, _, request, body in links
    )


def _chain_items(
    connection: sqlite3.Connection, values: Values
) -> tuple[Mapping[int, list[InputItem]], Mapping[int, list[bytes]]]:
    """By the key of their response: the input items, and the JSON of the output items."""
    inputs: defaultdict[int, list[InputItem]] = defaultdict(list)
    outputs: defaultdict[int, list[bytes]] = defaultdict(list)
    for _, key, direction, item_id, raw in sorted(connection.execute(sql.CHAIN_ITEMS, values), key=itemgetter(0)):
        if direction == "output":
            outputs[key].append(raw)
        else:
            inputs[key].append(to_item(item_id, direction, raw))
    return inputs, outputs


def _chain_ends(connection: sqlite3.Connection, values: Values) -> Mapping[int, list[int]]:
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for _, key, end in sorted(connection.execute(sql.CHAIN_TURNS, values), key=itemgetter(0)):
        ends[key].append(end)
    return ends


def _input_items(connection: sqlite3.Connection, values: Values, page: Page) -> ItemPage | None:
    row = connection.execute(sql.BODY, values).fetchone()
    if row is None:
        return None
    key, _ = row
    places, has_more = select([item_id for (item_id,) in connection.execute(sql.INPUT_IDS, (key,))], page)
    if not places:
        return ItemPage(items=(), has_more=has_more)
    low, high = sorted((places[0], places[-1]))
    items = [to_item(*found) for found in connection.execute(sql.INPUT_SPAN, (key, low, high))]
    return ItemPage(items=tuple(items[place - low] for place in places), has_more=has_more)


def _items(connection: sqlite3.Connection, identity: Identity, ids: Sequence[str]) -> dict[str, InputItem]:
    found: dict[str, InputItem] = {}
    for query in (sql.NEWEST, NEWEST_ENTRIES):
        missing = [item_id for item_id in ids if item_id not in found]
        for start in range(0, len(missing), _IDS_AT_ONCE):
            some = missing[start : start + _IDS_AT_ONCE]
            values = identity.tenant, identity.owner, *some
            for item_id, direction, raw, _ in connection.execute(query.format(", ".join("?" * len(some))), values):
                found[item_id] = to_item(item_id, direction, raw)
    return found


def _read_something(connection: sqlite3.Connection) -> None:
    connection.execute(sql.LOOK).fetchone()
