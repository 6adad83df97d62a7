"""The store over a database, in plain SQL: a query builder would cost more time than the database.

What a client can name is found by tenant, owner and id together, all else by key. A large chain is read in several
operations, so that others do not wait for all of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain as chained
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Self, TypeAlias, cast, get_args

from antwort.api.events import Mark, Span
from antwort.api.items import InputItem, OutputItem
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.status import ResponseStatus
from antwort.api.wire import replace
from antwort.errors import InvalidField, StoreFault
from antwort.identity import Identity
from antwort.storage import sql_responses as sql
from antwort.storage.base import (
    ITEM_BYTES,
    LARGEST_PAGE,
    Bound,
    Entry,
    HistoryTooLarge,
    ItemPage,
    KeyHolder,
    Link,
    NewResponse,
    PackedLog,
    Page,
    ResponsePage,
    Wanted,
)
from antwort.storage.bounds import DECLARED_BYTES, PIECE_BYTES, first_within, in_pieces, newest_within, take_page
from antwort.storage.database import Connection, Cursor, Database, page_terms, reading, sql_order, writing
from antwort.storage.migrations import migrate
from antwort.storage.rows import (
    Direction,
    ItemRow,
    RowValues,
    name_of,
    size_of,
    to_item,
    to_output,
    to_response,
    to_shown,
    to_span,
    without_input,
)
from antwort.storage.sql_calls import SqlCalls
from antwort.storage.sql_conversations import SqlConversations

log = logging.getLogger("antwort.storage")

_IDS_PER_QUERY = 500
_KEYS_PER_QUERY = 1024
_SMALL_REQUEST = 2**16
"""Bytes of a request that is returned whole: to leave out its input costs more than the input."""
_MOST_WARNINGS = 1000
_STATUSES: tuple[ResponseStatus, ...] = get_args(ResponseStatus)

# The threads of a chain, each with the depth up to which it belongs to it: from a thread's first row, whose key the
# thread goes by, to the thread of its parent. UNION ends a cycle; CROSS JOIN keeps the order of loops. A database knows
# the length of a long value without reading it; the request does not count.
_CHAIN_SIZES = """
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
# In the order of the index, by the keys of responses: the database would copy what it sorts.
_LINKS = "SELECT key, tenant, owner, request, body FROM responses WHERE key IN ({})"
_LINK_ITEMS = """
    SELECT response_key, direction, id, raw FROM items
    WHERE response_key IN ({{}}) {terms} ORDER BY response_key, direction, position
"""
_ALL_ITEMS = _LINK_ITEMS.format(terms="")
_OUTPUT_ITEMS = _LINK_ITEMS.format(terms="AND direction = 'output'")
_DECLARING_ITEMS = _LINK_ITEMS.format(terms="AND type = 'additional_tools'")
_ITEMS_SIZE = "SELECT coalesce(sum(length(raw)), 0) FROM items WHERE response_key = ?"
_LINK_TURNS = """
    SELECT response_key, kind, mark, items_end FROM turns
    WHERE response_key IN ({}) AND kind IN ('turn', 'abandoned') ORDER BY response_key, number
"""
_DECLARED_SIZES = """
    SELECT response_key, sum(length(raw)) FROM items
    WHERE response_key IN ({}) AND type = 'additional_tools' GROUP BY response_key
"""
_COMPACTED = "SELECT DISTINCT response_key FROM items WHERE response_key IN ({}) AND type = 'compaction'"
_INPUT_PLACE = """
    SELECT position FROM items
    WHERE response_key = :key AND direction = 'input' AND id = :cursor
    ORDER BY position {last_first} LIMIT 1
"""
_INPUT_PAGE = """
    SELECT id, direction, raw FROM items
    WHERE response_key = :key AND direction = 'input' {terms}
    ORDER BY position {order}
    LIMIT :limit
"""
# The newest under each id: some columns, and the ids.
_NEWEST_ITEMS = """
    SELECT {} FROM items
    WHERE key IN (SELECT max(items.key)
                  FROM items
                  CROSS JOIN responses ON responses.key = items.response_key AND responses.deleted_at IS NULL
                  WHERE items.tenant = ? AND items.owner = ? AND items.id IN ({})
                  GROUP BY items.id)
    ORDER BY id
"""
_NEWEST_ENTRIES = """
    SELECT {} FROM conversation_items
    WHERE key IN (SELECT max(key) FROM conversation_items
                  WHERE tenant = ? AND owner = ? AND id IN ({})
                  GROUP BY id)
    ORDER BY id
"""
_RESPONSE_PLACE = """
    SELECT created_at, key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND id = :cursor AND deleted_at IS NULL
"""
# The index goes by status first, so that a rare status is found among many others at once. A list of several statuses
# is merged from one short list of each.
_LISTED = """
    SELECT created_at, key FROM responses
    WHERE tenant = :tenant AND owner = :owner AND status = :status AND deleted_at IS NULL {terms}
    ORDER BY created_at {order}, key {order}
    LIMIT :limit
"""
_BODY = "SELECT id, body FROM responses WHERE key = ?"

_CLAIMED = """
    SELECT request_hash, response_id FROM idempotency_keys AS claims
    WHERE tenant = :tenant AND owner = :owner AND key = :key AND expires_at > :now
      AND EXISTS (SELECT 1 FROM responses
                  WHERE responses.tenant = claims.tenant AND responses.owner = claims.owner
                    AND responses.id = claims.response_id AND responses.deleted_at IS NULL)
"""
_RELEASE = """
    DELETE FROM idempotency_keys WHERE tenant = :tenant AND owner = :owner AND key = :key AND response_id = :id
"""
_CHECK_READ = "SELECT version_num FROM alembic_version"
_CHECK_WRITE = "UPDATE alembic_version SET version_num = version_num"
_SEAL = "SELECT token FROM seals WHERE place = 0"
_PUT_SEAL = """
    INSERT INTO seals (place, token) VALUES (0, :token)
    ON CONFLICT (place) DO UPDATE SET token = excluded.token WHERE seals.token = :replaces
"""


class SqlStore(SqlConversations, SqlCalls):
    def __init__(self, database: Database) -> None:
        """`database` is open and migrated; the store closes it, and it is open as long as the store is."""
        super().__init__(database)
        self._warned: set[str] = set()
        """Ids of responses that lists have left out."""

    @classmethod
    async def open_database(cls, database: Database) -> Self:
        """Open the database, migrate it if necessary, and remove what was left of responses that did not begin."""
        await database.open()
        try:
            await migrate(database)
            if database.dialect == "sqlite":  # the only one that stages large responses
                await database.write(sql.drop_staged)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    # ---- writing ----

    async def begin(self, new: NewResponse) -> None:
        await sql.write_new(self.database, sql.to_new_rows(new), self._begin)

    def _begin(self, rows: sql.NewRows) -> Awaitable[int]:
        operation = partial(sql.begin_response, rows=rows)
        return self.database.write_once(operation, lambda connection, _: sql.has_begun(connection, rows.values))

    @reading
    def claimed(self, connection: Connection, identity: Identity, key: str, now: int) -> KeyHolder | None:
        values: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "key": key, "now": now}
        row = connection.execute(_CLAIMED, values).fetchone()
        return None if row is None else KeyHolder(request_hash=row[0], response_id=row[1])

    @writing
    def release(self, connection: Connection, identity: Identity, key: str, response_id: str) -> None:
        connection.execute(_RELEASE, name_of(identity, response_id) | {"key": key})

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        packed = None if log is None else await sql.compressed(log)
        end = sql.to_update_rows(identity, response, marks, entries, approvals, packed)
        await self._write_update(end, sql.finish_response, sql.has_finished)

    async def record_turn(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        items_from: int = 0,
    ) -> None:
        update = sql.to_update_rows(identity, response, marks, items_from=items_from)
        await self._write_update(update, sql.record_turn, lambda *_: False)  # to write it twice changes nothing

    async def _write_update(
        self,
        update: sql.UpdateRows,
        operation: Callable[..., object],
        is_done: Callable[[Connection, sql.UpdateRows], bool],
    ) -> None:
        def stage(items: Sequence[ItemRow]) -> Awaitable[None]:
            return self.database.write(partial(sql.stage_output, values=update.values, items=items))

        def has_written(connection: Connection, _: object) -> bool:
            return is_done(connection, update)

        write = partial(self.database.write_once, partial(operation, update=update), has_written)
        await sql.write_output(self.database, update.items, stage, write)

    async def delete(self, identity: Identity, response_id: str) -> bool:
        values = name_of(identity, response_id) | {"now": int(time.time())}
        return await self.database.write_once(
            partial(sql.delete_response, values=values),
            lambda connection, _: sql.is_gone(connection, values),
        )

    async def fail_running(self, message: str) -> int:
        count, damaged = await self.database.write(partial(sql.fail_running, message=message))
        for response_id in damaged:
            log.warning("the record of %s, left running, is damaged: only its status could be set", response_id)
        return count

    # ---- reading ----

    @reading
    def get(self, connection: Connection, identity: Identity, response_id: str) -> Response | None:
        row = connection.execute(sql.FIND, name_of(identity, response_id)).fetchone()
        if row is None:
            return None
        key, body = row
        return to_response(body, [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))])

    async def chain(self, identity: Identity, response_id: str, bound: Bound | None = None) -> tuple[Link, ...]:
        read = partial(_read_chain, identity=identity, response_id=response_id, bound=bound)
        links, pieces = await self.database.read(read)
        for keys in pieces:
            piece = await self._links(identity, keys, max_request=_SMALL_REQUEST)
            if len(piece) < len(keys):  # the response was deleted meanwhile, and its hidden ancestors
                return ()
            links += piece
        return links

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        def find(connection: Connection) -> Link | int | None:
            """Return the key of a large response in place of its link."""
            row = connection.execute(sql.FIND, name_of(identity, response_id)).fetchone()
            if row is None:
                return None
            key: int = row[0]
            if not with_input:
                return _read_links(connection, identity, [key], _OUTPUT_ITEMS, max_request=0)[0]
            if connection.execute(_ITEMS_SIZE, (key,)).fetchone()[0] > PIECE_BYTES:
                return key
            return _read_links(connection, identity, [key])[0]

        found = await self.database.read(find)
        if not isinstance(found, int):
            return found
        links = await self._links(identity, [found])
        return links[0] if links else None

    async def _links(
        self, identity: Identity, keys: Sequence[int], *, max_request: int | None = None
    ) -> tuple[Link, ...]:
        """Return the links with these keys. Each operation makes items of a piece of their rows, which is released."""
        rows = await self.database.read(partial(_link_rows, keys=keys))
        pieces = deque(
            rows.items[piece.start : piece.stop]
            for piece in in_pieces([size_of(row[-1]) for row in rows.items], PIECE_BYTES)
        )
        rows.items.clear()
        items: list[_KeyedItem] = []
        while pieces:
            await asyncio.sleep(0)  # in memory, other tasks run between two pieces
            items += await self.database.read(lambda _: [*map(_to_keyed, pieces[0])])
            pieces.popleft()
        return _to_links(identity, keys, rows, items, max_request)

    @reading
    def input_items(self, connection: Connection, identity: Identity, response_id: str, page: Page) -> ItemPage | None:
        row = connection.execute(sql.FIND, name_of(identity, response_id)).fetchone()
        if row is None:
            return None
        values: RowValues = {"key": row[0], "limit": page.limit + 1}
        terms = page_terms(connection, page, ("position",), _INPUT_PLACE, values)
        query = _INPUT_PAGE.format(terms=terms, order=sql_order(page))
        rows, has_more = take_page(connection.execute(query, values), page)
        return ItemPage(items=tuple(to_shown(*row) for row in rows), has_more=has_more)

    @reading
    def items(
        self, connection: Connection, identity: Identity, ids: Sequence[str], bound: Bound | None = None
    ) -> Mapping[str, InputItem]:
        if bound is not None:
            size = sum(size for _, size in _newest(connection, identity, ids, f"id, length(raw) + {ITEM_BYTES}"))
            if size > bound.most:
                raise HistoryTooLarge(size, size)
        return {row[0]: to_item(*row) for row in _newest(connection, identity, ids, "id, direction, raw")}

    async def responses(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        found, damaged = await self.database.read(partial(_list, identity=identity, page=page, wanted=wanted))
        for response_id in damaged:  # a warning for each, once: lists are read again and again
            if response_id not in self._warned and len(self._warned) < _MOST_WARNINGS:
                self._warned.add(response_id)
                log.warning("the record of %s cannot be read: lists leave it out", response_id)
        return found

    async def check(self) -> None:
        await self.database.read(lambda connection: connection.execute(_CHECK_READ).fetchone())
        await self.database.write(lambda connection: connection.execute(_CHECK_WRITE))

    async def close(self) -> None:
        await self.database.close()


# ---- chains ----


def _read_chain(
    connection: Connection, identity: Identity, response_id: str, bound: Bound | None
) -> tuple[tuple[Link, ...], Sequence[Sequence[int]]]:
    """Return the links of a small chain. Of a large one, return those that declare tools before it, and the keys of its
    links in pieces, each for an operation.
    """
    values = name_of(identity, response_id) | {"item_bytes": ITEM_BYTES}
    rows = sorted(connection.execute(_CHAIN_SIZES, values), key=itemgetter(0))
    if rows and rows[0][2] is not None:  # only a cycle has no beginning
        raise InvalidField("previous_response_id", "the chain of responses before it comes back to itself.")
    keys, sizes = [row[1] for row in rows], [row[3] for row in rows]
    declaring: tuple[Link, ...] = ()
    if bound is not None and sum(sizes) > bound.most:
        compacted = {key for (key,) in _of_keys(connection, _COMPACTED, keys)}
        first = first_within([(size, key in compacted) for key, size in zip(keys, sizes, strict=True)], bound)
        if bound.cut == "oldest":
            declaring = _declaring_links(connection, identity, keys[:first])
        keys, sizes = keys[first:], sizes[first:]
    pieces = [keys[piece.start : piece.stop] for piece in in_pieces(sizes, PIECE_BYTES)]
    if sum(sizes) > PIECE_BYTES:
        return declaring, pieces
    return (*declaring, *_read_links(connection, identity, keys, max_request=_SMALL_REQUEST)), ()


def _declaring_links(connection: Connection, identity: Identity, keys: Sequence[int]) -> tuple[Link, ...]:
    """Return the newest links that declare tools in items, with nothing but those items."""
    sizes = dict(_of_keys(connection, _DECLARED_SIZES, keys))
    found = [key for key in keys if key in sizes]
    newest = found[newest_within([sizes[key] for key in found], DECLARED_BYTES) :]
    links = _read_links(connection, identity, newest, _DECLARING_ITEMS, max_request=0)
    return tuple(replace(link, turn_ends=(), abandoned=()) for link in links)


_KeyedItem: TypeAlias = tuple[int, Direction, InputItem]
"""An item of the input or the output, with the key of its response."""


class _LinkRows(NamedTuple):
    items: list[tuple[int, Direction, str, bytes]]
    turns: list[tuple[int, str, bytes, int]]
    responses: list[tuple[int, str, str, bytes, bytes]]


def _link_rows(connection: Connection, keys: Sequence[int], items: str = _ALL_ITEMS) -> _LinkRows:
    return _LinkRows(*([*_of_keys(connection, query, keys)] for query in (items, _LINK_TURNS, _LINKS)))


def _to_keyed(row: tuple[int, Direction, str, bytes]) -> _KeyedItem:
    key, direction, item_id, raw = row
    return key, direction, to_output(raw) if direction == "output" else to_item(item_id, direction, raw)


def _read_links(
    connection: Connection,
    identity: Identity,
    keys: Sequence[int],
    items: str = _ALL_ITEMS,
    *,
    max_request: int | None = None,
) -> tuple[Link, ...]:
    rows = _link_rows(connection, keys, items)
    return _to_links(identity, keys, rows, map(_to_keyed, rows.items), max_request)


def _to_links(
    identity: Identity, keys: Sequence[int], rows: _LinkRows, items: Iterable[_KeyedItem], max_request: int | None
) -> tuple[Link, ...]:
    """Return the links that are there and belong to the identity, in the order of `keys`. Larger requests than
    `max_request` are returned without their input.
    """
    inputs: defaultdict[int, list[InputItem]] = defaultdict(list)
    outputs: defaultdict[int, list[OutputItem]] = defaultdict(list)
    for key, direction, item in items:
        if direction == "output":
            outputs[key].append(cast("OutputItem", item))
        else:
            inputs[key].append(item)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    abandoned: defaultdict[int, list[Span]] = defaultdict(list)
    for key, kind, mark, end in rows.turns:
        if kind == "turn":
            ends[key].append(end)
        else:
            abandoned[key].append(to_span(mark, end))
    found: dict[int, Link] = {}
    for key, tenant, owner, request, body in rows.responses:
        if (tenant, owner) != (identity.tenant, identity.owner):
            continue
        found[key] = Link(
            response=replace(to_response(body), output=tuple(outputs[key])),
            request=request if max_request is None or len(request) <= max_request else without_input(request),
            input=tuple(inputs[key]),
            turn_ends=tuple(ends[key]),
            abandoned=tuple(abandoned[key]),
        )
    return tuple(found[key] for key in keys if key in found)


def _of_keys(connection: Connection, statement: str, keys: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Yield what is found under the keys, each row when it is asked for."""

    def found(some: Sequence[int]) -> Cursor:
        # The last key is repeated up to a power of two, so that there are few statements, and they stay prepared.
        count = 1 << (len(some) - 1).bit_length()
        marks = ", ".join("?" * count)
        return connection.execute(statement.format(marks), [*some, *repeat(some[-1], count - len(some))])

    starts = range(0, len(keys), _KEYS_PER_QUERY)
    return chained.from_iterable(found(keys[start : start + _KEYS_PER_QUERY]) for start in starts)


# ---- items and lists ----


def _newest(connection: Connection, identity: Identity, ids: Sequence[str], columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the newest item under each id, which is the first of the columns: of a response, or else a conversation."""
    found: set[str] = set()
    for query in (_NEWEST_ITEMS, _NEWEST_ENTRIES):
        missing = [item_id for item_id in ids if item_id not in found]
        for start in range(0, len(missing), _IDS_PER_QUERY):
            some = missing[start : start + _IDS_PER_QUERY]
            values = identity.tenant, identity.owner, *some
            for row in connection.execute(query.format(columns, ", ".join("?" * len(some))), values):
                found.add(row[0])
                yield row


def _list(connection: Connection, identity: Identity, page: Page, wanted: Wanted) -> tuple[ResponsePage, Sequence[str]]:
    """Return a page, and the ids of responses on it that cannot be read."""
    chosen: list[Response] = []
    damaged: list[str] = []
    size = 0
    has_more = False
    for key in _listed_keys(connection, identity, page, wanted):
        has_more = len(chosen) == page.limit or size >= LARGEST_PAGE
        if has_more:
            break
        response_id, body = connection.execute(_BODY, (key,)).fetchone()
        output = [raw for (raw,) in connection.execute(sql.OUTPUT, (key,))]
        try:
            chosen.append(to_response(body, output))
        except StoreFault:
            damaged.append(response_id)
        else:
            size += len(body) + sum(map(len, output))
    responses = tuple(chosen if page.is_forward else reversed(chosen))
    return ResponsePage(responses=responses, has_more=has_more), damaged


def _listed_keys(connection: Connection, identity: Identity, page: Page, wanted: Wanted) -> Iterator[int]:
    """Yield the keys of all that fit, in order. One query finds as many as a page needs, and one more."""
    values: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "limit": page.limit + 1}
    terms = page_terms(connection, page, ("created_at", "key"), _RESPONSE_PLACE, values)
    if wanted.model is not None:
        terms += " AND model = :model"
        values["model"] = wanted.model
    beyond = ""
    while True:
        query = _LISTED.format(terms=terms + beyond, order=sql_order(page))
        found: list[tuple[int, int]] = []
        for status in wanted.statuses or _STATUSES:
            found += connection.execute(query, values | {"status": status})
        found.sort(reverse=sql_order(page) == "DESC")
        yield from (key for _, key in found[: page.limit + 1])
        if len(found) <= page.limit:
            return
        values |= {"last_at": found[page.limit][0], "last_key": found[page.limit][1]}
        beyond = f" AND (created_at, key) {'>' if sql_order(page) == 'ASC' else '<'} (:last_at, :last_key)"


# ---- seals ----


def find_seal(connection: Connection) -> str | None:
    """Return the sealed text of the processes that share a database: one that can open it has the key of the others."""
    row = connection.execute(_SEAL).fetchone()
    return None if row is None else str(row[0])


def put_seal(connection: Connection, token: str, replaces: str | None) -> str:
    """Write the sealed text if there is none, or in the place of `replaces`. Return the one that is there then: another
    process may have been faster.
    """
    connection.execute(_PUT_SEAL, {"token": token, "replaces": replaces})
    return find_seal(connection) or token
