"""Responses in a database, in plain SQL: a toolkit between would cost more than the database."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from antwort.api.approvals import Approval
from antwort.api.events import Mark
from antwort.api.items import InputItem
from antwort.api.responses import Response
from antwort.db import Database
from antwort.identity import Identity
from antwort.storage import claims, logs, reading, writing
from antwort.storage.approvals import SqlApprovals
from antwort.storage.base import (
    Bound,
    Claimed,
    Entry,
    Excess,
    HistoryTooLarge,
    ItemPage,
    Link,
    NewResponse,
    PackedLog,
    Page,
    ResponsePage,
    Wanted,
)
from antwort.storage.calls import SqlCalls
from antwort.storage.conversations import SqlConversations
from antwort.storage.listing import list_responses
from antwort.storage.once import write_once
from antwort.storage.rows import ItemRow, Values, name_of
from antwort.storage.staging import staged, staged_output
from antwort.storage.writing_tools import SqlWritingTools

log = logging.getLogger("antwort.storage")

_MOST_WARNINGS = 1000


class SqlStore(SqlConversations, SqlApprovals, SqlCalls, SqlWritingTools):
    """What it is given is turned into rows before it is queued, so that the writer only writes."""

    def __init__(self, database: Database) -> None:
        """`database` is open and migrated; the store closes it."""
        super().__init__(database)
        self._warned: set[str] = set()

    @property
    def database(self) -> Database:
        """The one that it is in, open as long as the store is."""
        return self._database

    async def begin(self, new: NewResponse) -> None:
        async with staged(self._database, writing.to_beginning(new)) as beginning:
            await write_once(
                self._database,
                partial(writing.begin_in, new=beginning),
                lambda connection, _: writing.has_begun(connection, beginning.values),
            )

    async def claimed(self, identity: Identity, key: str, now: int) -> Claimed | None:
        values: Values = {"tenant": identity.tenant, "owner": identity.owner, "key": key, "now": now}
        return await self._database.read(partial(claims.look_up, values=values))

    async def release(self, identity: Identity, key: str, response_id: str) -> None:
        await self._database.write(partial(claims.release, values=name_of(identity, response_id) | {"key": key}))

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        packed = None if log is None else await logs.compressed(log)
        end = writing.to_finishing(identity, response, marks, entries, approvals, packed)
        async with self._staged(end.values, end.items):
            await write_once(
                self._database,
                partial(writing.finish_in, end=end),
                lambda connection, _: writing.has_finished(connection, end),
            )

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        progress = writing.to_progress(identity, response, marks, items_from)
        async with self._staged(progress.values, progress.items):
            await write_once(
                self._database, partial(writing.record_in, progress=progress), lambda _connection, _: False
            )  # writing it twice changes nothing

    def _staged(self, values: Values, output: Sequence[ItemRow]) -> AbstractAsyncContextManager[None]:
        write = self._database.write
        return staged_output(
            self._database, output, lambda items: write(partial(writing.stage_output, values=values, items=items))
        )

    async def get(self, identity: Identity, response_id: str) -> Response | None:
        return await self._database.read(partial(reading.get, values=name_of(identity, response_id)))

    async def delete(self, identity: Identity, response_id: str) -> bool:
        values = name_of(identity, response_id) | {"now": int(time.time())}
        return await write_once(
            self._database,
            partial(writing.delete, values=values),
            lambda connection, _: writing.is_gone(connection, values),
        )

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        values = name_of(identity, response_id)
        found = await self._database.read(partial(reading.chain, values=values, bound=bound))
        if found.excess is not None:
            raise HistoryTooLarge(*found.excess)
        links = [*found.links]
        for keys in found.pieces:
            piece = await self._database.read(partial(reading.links, keys=keys))
            if len(piece) < len(keys):  # the response was deleted meanwhile, and what was kept for it alone
                return ()
            links += piece
        return tuple(links)

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        values = name_of(identity, response_id)
        return await self._database.read(partial(reading.link, values=values, with_input=with_input))

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        return await self._database.read(partial(reading.input_items, values=name_of(identity, response_id), page=page))

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        found = await self._database.read(partial(list_responses, identity=identity, page=page, wanted=wanted))
        for response_id in found.damaged:
            self._warn(response_id)
        return found.page

    async def items(
        self, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        found = await self._database.read(partial(reading.items, identity=identity, ids=ids, bound=bound))
        if isinstance(found, Excess):
            raise HistoryTooLarge(*found)
        return found

    async def fail_running(self, message: str) -> int:
        count, damaged = await self._database.write(partial(writing.fail_running, message=message))
        for response_id in damaged:
            log.warning("the record of %s, left running, is damaged: only its status could be set", response_id)
        return count

    async def check(self) -> None:
        await self._database.read(reading.read_something)
        await self._database.write(writing.write_something)

    async def close(self) -> None:
        await self._database.close()

    def _warn(self, response_id: str) -> None:
        """Once of each: lists are read again and again."""
        if response_id not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(response_id)
            log.warning("the record of %s cannot be read: lists leave it out", response_id)
