"""Conversations in a database."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from antwort.api.approvals import Approval
from antwort.api.conversations import Conversation
from antwort.api.inputs import new_item_id
from antwort.api.items import InputItem
from antwort.api.responses import Metadata
from antwort.api.wire import encode
from antwort.db import Connection, Database
from antwort.identity import Identity
from antwort.storage import conversation_statements as sql
from antwort.storage.approvals import approval_rows
from antwort.storage.approvals import insert as insert_approvals
from antwort.storage.base import (
    DECLARED_BYTES,
    ITEM_BYTES,
    LARGEST_PAGE,
    Bound,
    Entry,
    Excess,
    HistoryTooLarge,
    ItemPage,
    Page,
    first_within,
    newest_within,
)
from antwort.storage.once import write_once
from antwort.storage.reading import PIECE_BYTES
from antwort.storage.rows import (
    SCHEMA_VERSION,
    Direction,
    Values,
    added_item,
    name_of,
    to_item,
    to_metadata,
    to_shown,
    type_of,
)
from antwort.storage.rules import in_pieces, no_such, starts_at_front

EntryRow: TypeAlias = tuple[str, Direction, str, bytes]
"""id, direction, type, JSON."""
_END = 2**31 - 1
"""Behind every item."""


class SqlConversations:
    """The half of the store that keeps conversations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None:
        values = name_of(identity, conversation.id) | {
            "created_at": conversation.created_at,
            "schema_version": SCHEMA_VERSION,
            "metadata": encode(conversation.metadata),
        }
        await write_once(
            self._database,
            partial(_begin, values=values, entries=entry_rows(entries)),
            lambda connection, _: _is_there(connection, values),
        )

    async def conversation(self, identity: Identity, conversation_id: str) -> Conversation | None:
        return await self._database.read(partial(_get, values=name_of(identity, conversation_id)))

    async def describe_conversation(
        self, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        values = name_of(identity, conversation_id) | {"metadata": encode(metadata)}
        return await self._database.write(partial(_describe, values=values))

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        values = name_of(identity, conversation_id)
        return await write_once(
            self._database,
            partial(_delete, statement=sql.DELETE, values=values),
            lambda connection, _: not _is_there(connection, values),
        )

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        values = name_of(identity, conversation_id)
        found = await self._database.read(partial(_said, values=values, bound=bound))
        if found is None:
            return None
        if found.excess is not None:
            raise HistoryTooLarge(*found.excess)
        items = [*found.items]
        for first, last in found.pieces:
            piece = await self._database.read(partial(_piece, values=values, first=first, last=last))
            if piece is None:
                return None
            items += piece
        return tuple(items)

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        return await self._database.read(partial(_page, values=name_of(identity, conversation_id), page=page))

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None:
        values = name_of(identity, conversation_id) | {"item_id": item_id}
        return await self._database.read(partial(_item, values=values))

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        values, asked = name_of(identity, conversation_id), approval_rows(identity, approvals)
        ids = await write_once(
            self._database,
            partial(_add, values=values, entries=entry_rows(entries), asked=asked),
            lambda connection, ids: _has_some(connection, values, ids),
        )
        if ids is None:
            return None
        return tuple(added_item(entry, item_id) for entry, item_id in zip(entries, ids, strict=True))

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        values = name_of(identity, conversation_id) | {"item_id": item_id}
        return await write_once(
            self._database,
            partial(_delete, statement=sql.DELETE_ENTRY, values=values),
            lambda connection, _: not _has_some(connection, values, [item_id]),
        )


def entry_rows(entries: Sequence[Entry]) -> list[EntryRow]:
    return [(entry.item.id, entry.direction, type_of(entry.item), entry.raw) for entry in entries]


# ---- writing ----


def _begin(connection: Connection, values: Values, entries: list[EntryRow]) -> None:
    connection.execute(sql.INSERT, values)
    add(connection, values, entries)


def add(connection: Connection, values: Values, entries: Sequence[EntryRow]) -> list[str] | None:
    """Add them to the conversation that `values` names; the ids they go by there. None when it is not found."""
    row = connection.execute(sql.HOLD[connection.dialect], values).fetchone()
    if row is None:
        return None
    (key,) = row
    (end,) = connection.execute(sql.END, {"key": key}).fetchone()
    of = key, values["tenant"], values["owner"]
    return [_insert(connection, of, position, entry) for position, entry in enumerate(entries, end)]


def _add(
    connection: Connection, values: Values, entries: Sequence[EntryRow], asked: Sequence[Values]
) -> list[str] | None:
    ids = add(connection, values, entries)
    if ids is not None and asked:
        (key,) = connection.execute(sql.KEY, values).fetchone()
        insert_approvals(connection, asked, conversation_key=key)
    return ids


def _insert(connection: Connection, of: tuple[str | int | bytes | None, ...], position: int, entry: EntryRow) -> str:
    item_id, direction, kind, raw = entry
    while not connection.execute(sql.INSERT_ENTRY, (*of, item_id, direction, position, kind, raw)).rowcount:
        item_id = new_item_id(kind)
    return item_id


def _describe(connection: Connection, values: Values) -> Conversation | None:
    connection.execute(sql.DESCRIBE, values)
    return _get(connection, values)


def _delete(connection: Connection, statement: str, values: Values) -> bool:
    return connection.execute(statement, values).rowcount > 0


def _is_there(connection: Connection, values: Values) -> bool:
    return connection.execute(sql.HOLD[connection.dialect], values).fetchone() is not None


def _has_some(connection: Connection, values: Values, ids: Sequence[str] | None) -> bool:
    """Whether any of these entries is in the conversation, where their ids were free before they came."""
    return _is_there(connection, values) and any(
        connection.execute(sql.ENTRY, values | {"item_id": item_id}).fetchone() is not None for item_id in ids or ()
    )


# ---- reading ----


def _get(connection: Connection, values: Values) -> Conversation | None:
    row = connection.execute(sql.FOUND, values).fetchone()
    return None if row is None else Conversation(id=str(values["id"]), created_at=row[0], metadata=to_metadata(row[1]))


def _item(connection: Connection, values: Values) -> InputItem | None:
    row = connection.execute(sql.ENTRY, values).fetchone()
    return None if row is None else to_shown(*row)


class _Said(NamedTuple):
    """The items of a conversation, as far as the first operation reads them."""

    items: Sequence[InputItem] = ()
    """Where the rest is read in pieces, those before it that declare tools."""
    pieces: Sequence[tuple[int, int]] = ()
    """Where they stand, the first and the last, where they are too large to be read at once."""
    excess: Excess | None = None


def _said(connection: Connection, values: Values, bound: Bound | None) -> _Said | None:
    row = connection.execute(sql.SIZE, values | {"item_bytes": ITEM_BYTES}).fetchone()
    if row is None:
        return None
    key, size = row
    if size <= PIECE_BYTES and (bound is None or size <= bound.most):
        return _Said(_between(connection, key, 0, _END))
    sizes = connection.execute(sql.SIZES, {"key": key, "item_bytes": ITEM_BYTES}).fetchall()
    first = first_within([(size, bool(is_compacted)) for _, size, is_compacted in sizes], bound)
    if isinstance(first, Excess):  # raised by who waits: it is no fault of the transaction
        return _Said(excess=first)
    kept = sizes[first:]
    declaring = _declaring(connection, key, kept[0][0]) if bound is not None and bound.cut == "oldest" else ()
    pieces = in_pieces([size for _, size, _ in kept], PIECE_BYTES)
    return _Said(declaring, pieces=[(kept[places[0]][0], kept[places[-1]][0]) for places in pieces])


def _declaring(connection: Connection, key: int, first: int) -> Sequence[InputItem]:
    """The items before a place that declare tools."""
    rows = connection.execute(sql.DECLARED, {"key": key, "first": first}).fetchall()
    newest = newest_within([len(raw) for _, _, raw in rows], DECLARED_BYTES)
    return [to_item(*row) for row in rows[newest:]]


def _piece(connection: Connection, values: Values, first: int, last: int) -> list[InputItem] | None:
    row = connection.execute(sql.KEY, values).fetchone()
    return None if row is None else _between(connection, row[0], first, last)


def _between(connection: Connection, key: int, first: int, last: int) -> list[InputItem]:
    rows = connection.execute(sql.SAID, {"key": key, "first": first, "last": last})
    return [to_item(*row) for row in rows]


def _page(connection: Connection, values: Values, page: Page) -> ItemPage | None:
    """From a place in the index. A page from its end is read backwards."""
    row = connection.execute(sql.KEY, values).fetchone()
    if row is None:
        return None
    values = values | {"key": row[0], "limit": page.limit + 1}
    terms = _bounds(connection, values, page)
    forwards = starts_at_front(page)
    order = "ASC" if (page.order == "asc") == forwards else "DESC"
    items: list[InputItem] = []
    size = 0
    has_more = False
    for item_id, direction, raw in connection.execute(sql.PAGE.format(terms=terms, order=order), values):
        has_more = len(items) == page.limit or size >= LARGEST_PAGE
        if has_more:
            break
        items.append(to_shown(item_id, direction, raw))
        size += len(raw)
    return ItemPage(items=tuple(items if forwards else reversed(items)), has_more=has_more)


def _bounds(connection: Connection, values: Values, page: Page) -> str:
    """The places of `after` and `before`, as terms; they are put into `values`."""
    terms = ""
    for param, cursor, is_beyond in (("after", page.after, True), ("before", page.before, False)):
        if cursor is None:
            continue
        row = connection.execute(sql.PLACE, values | {"item_id": cursor}).fetchone()
        if row is None:
            raise no_such(param, cursor)
        values[param] = row[0]
        terms += f" AND position {'>' if (page.order == 'asc') == is_beyond else '<'} :{param}"
    return terms
