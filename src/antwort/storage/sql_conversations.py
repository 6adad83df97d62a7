"""Conversations in a database.

What a client can name is found by tenant, owner and id together, all else by key. A large conversation is read in
several operations, so that others do not wait for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from antwort.api.items import InputItem, new_item_id
from antwort.api.resources import Approval, Conversation
from antwort.api.responses import Metadata
from antwort.api.wire import encode
from antwort.identity import Identity
from antwort.storage.base import ITEM_BYTES, Bound, Entry, ItemPage, Page
from antwort.storage.bounds import DECLARED_BYTES, PIECE_BYTES, first_within, in_pieces, newest_within, take_page
from antwort.storage.database import Connection, DatabaseClient, page_terms, reading, sql_order, writing
from antwort.storage.rows import (
    SCHEMA_VERSION,
    RowValues,
    added_item,
    name_of,
    to_item,
    to_metadata,
    to_shown,
    type_of,
)
from antwort.storage.sql_calls import insert_approvals

_LAST_POSITION = 2**31 - 1

_INSERT = """
    INSERT INTO conversations (tenant, owner, id, created_at, schema_version, metadata)
    VALUES (:tenant, :owner, :id, :created_at, :schema_version, :metadata)
"""
# The transaction that holds the row of the conversation is alone, and may count after that.
_LOCK = """
    SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id /*pg: FOR UPDATE */
"""
_END = "SELECT coalesce(max(position), -1) + 1 FROM conversation_items WHERE conversation_key = :key"
# The count of rows tells whether the id was free.
_INSERT_ENTRY = """
    INSERT INTO conversation_items (conversation_key, tenant, owner, id, direction, position, type, raw)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, owner, id, conversation_key) DO NOTHING
"""
_DESCRIBE = "UPDATE conversations SET metadata = :metadata WHERE tenant = :tenant AND owner = :owner AND id = :id"
_DELETE = "DELETE FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id"
_DELETE_ENTRY = """
    DELETE FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :item_id
      AND conversation_key = (SELECT key FROM conversations
                              WHERE tenant = :tenant AND owner = :owner AND id = :id)
"""
_FIND = "SELECT created_at, metadata FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id"
_KEY = "SELECT key FROM conversations WHERE tenant = :tenant AND owner = :owner AND id = :id"
# A database knows the length of a long value without reading it.
_SIZE = """
    SELECT conversation.key,
           coalesce((SELECT sum(length(raw) + :item_bytes) FROM conversation_items
                     WHERE conversation_key = conversation.key), 0)
    FROM conversations AS conversation
    WHERE conversation.tenant = :tenant AND conversation.owner = :owner AND conversation.id = :id
"""
_SIZES = """
    SELECT position, length(raw) + :item_bytes, type = 'compaction' FROM conversation_items
    WHERE conversation_key = :key ORDER BY position
"""
_DECLARED = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key AND position < :first AND type = 'additional_tools'
    ORDER BY position
"""
_ENTRIES = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key AND position BETWEEN :first AND :last
    ORDER BY position
"""
_ENTRY = """
    SELECT id, direction, raw FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :item_id
      AND conversation_key = (SELECT key FROM conversations
                              WHERE tenant = :tenant AND owner = :owner AND id = :id)
"""
_PLACE = """
    SELECT position FROM conversation_items
    WHERE tenant = :tenant AND owner = :owner AND id = :cursor AND conversation_key = :key
"""
_PAGE = """
    SELECT id, direction, raw FROM conversation_items
    WHERE conversation_key = :key {terms}
    ORDER BY position {order}
    LIMIT :limit
"""


class SqlConversations(DatabaseClient):
    """The conversations of the store."""

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None:
        values = name_of(identity, conversation.id) | {
            "created_at": conversation.created_at,
            "schema_version": SCHEMA_VERSION,
            "metadata": encode(conversation.metadata),
        }

        def begin(connection: Connection) -> None:
            connection.execute(_INSERT, values)
            insert_entries(connection, values, entries)

        await self.database.write_once(begin, lambda connection, _: _exists(connection, values))

    @reading
    def conversation(self, connection: Connection, identity: Identity, conversation_id: str) -> Conversation | None:
        return _get(connection, name_of(identity, conversation_id))

    @writing
    def describe_conversation(
        self, connection: Connection, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        values = name_of(identity, conversation_id) | {"metadata": encode(metadata)}

        connection.execute(_DESCRIBE, values)
        return _get(connection, values)

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        values = name_of(identity, conversation_id)

        def delete(connection: Connection) -> bool:
            return connection.execute(_DELETE, values).rowcount > 0

        return await self.database.write_once(delete, lambda connection, _: not _exists(connection, values))

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        values = name_of(identity, conversation_id)
        found = await self.database.read(partial(_read_all, values=values, bound=bound))
        if found is None:
            return None
        items, pieces = found
        for first, last in pieces:
            await asyncio.sleep(0)  # in memory, other tasks run between two pieces
            piece = await self.database.read(partial(_read_piece, values=values, first=first, last=last))
            if piece is None:
                return None
            items += piece
        return tuple(items)

    @reading
    def conversation_items(
        self, connection: Connection, identity: Identity, conversation_id: str, page: Page
    ) -> ItemPage | None:
        row = connection.execute(_KEY, name_of(identity, conversation_id)).fetchone()
        if row is None:
            return None
        values: RowValues = {"tenant": identity.tenant, "owner": identity.owner, "key": row[0]}
        values["limit"] = page.limit + 1
        terms = page_terms(connection, page, ("position",), _PLACE, values)
        found = connection.execute(_PAGE.format(terms=terms, order=sql_order(page)), values)
        rows, has_more = take_page(found, page, lambda row: len(row[2]))
        return ItemPage(items=tuple(to_shown(*row) for row in rows), has_more=has_more)

    @reading
    def conversation_item(
        self, connection: Connection, identity: Identity, conversation_id: str, item_id: str
    ) -> InputItem | None:
        row = connection.execute(_ENTRY, name_of(identity, conversation_id) | {"item_id": item_id}).fetchone()
        return None if row is None else to_shown(*row)

    async def add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry], approvals: Sequence[Approval] = ()
    ) -> tuple[InputItem, ...] | None:
        values = name_of(identity, conversation_id)

        def add(connection: Connection) -> list[str] | None:
            ids = insert_entries(connection, values, entries)
            if ids is not None and approvals:
                (key,) = connection.execute(_KEY, values).fetchone()
                insert_approvals(connection, values, approvals, conversation_key=key)
            return ids

        ids = await self.database.write_once(add, lambda connection, ids: _has_any(connection, values, ids or ()))
        if ids is None:
            return None
        return tuple(added_item(entry, item_id) for entry, item_id in zip(entries, ids, strict=True))

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        values = name_of(identity, conversation_id) | {"item_id": item_id}

        def delete(connection: Connection) -> bool:
            return connection.execute(_DELETE_ENTRY, values).rowcount > 0

        return await self.database.write_once(delete, lambda connection, _: not _has_any(connection, values, [item_id]))


# ---- operations ----


def insert_entries(connection: Connection, values: RowValues, entries: Sequence[Entry]) -> list[str] | None:
    """Add entries to the conversation that `values` names. Return the ids that they got, or None if it is not found."""
    row = connection.execute(_LOCK, values).fetchone()
    if row is None:
        return None
    (key,) = row
    (end,) = connection.execute(_END, {"key": key}).fetchone()
    of = key, values["tenant"], values["owner"]
    ids = []
    for position, entry in enumerate(entries, end):
        item_id, kind = entry.item.id, type_of(entry.item)
        while not connection.execute(
            _INSERT_ENTRY, (*of, item_id, entry.direction, position, kind, entry.raw)
        ).rowcount:
            item_id = new_item_id(kind)
        ids.append(item_id)
    return ids


def _exists(connection: Connection, values: RowValues) -> bool:
    return connection.execute(_LOCK, values).fetchone() is not None


def _has_any(connection: Connection, values: RowValues, ids: Sequence[str]) -> bool:
    """Return whether any of these entries is in the conversation. Their ids were free before they were added."""
    return _exists(connection, values) and any(
        connection.execute(_ENTRY, values | {"item_id": item_id}).fetchone() is not None for item_id in ids
    )


def _get(connection: Connection, values: RowValues) -> Conversation | None:
    row = connection.execute(_FIND, values).fetchone()
    return None if row is None else Conversation(id=str(values["id"]), created_at=row[0], metadata=to_metadata(row[1]))


def _read_all(
    connection: Connection, values: RowValues, bound: Bound | None
) -> tuple[list[InputItem], Sequence[tuple[int, int]]] | None:
    """Return the items of a small conversation. Of a large one, return the items that declare tools before it, and the
    first and the last position of each of its pieces.
    """
    row = connection.execute(_SIZE, values | {"item_bytes": ITEM_BYTES}).fetchone()
    if row is None:
        return None
    key, size = row
    if size <= PIECE_BYTES and (bound is None or size <= bound.most):
        return _read_between(connection, key, 0, _LAST_POSITION), ()
    sizes = connection.execute(_SIZES, {"key": key, "item_bytes": ITEM_BYTES}).fetchall()
    first = first_within([(size, bool(is_compacted)) for _, size, is_compacted in sizes], bound)
    sizes = sizes[first:]
    declaring: list[InputItem] = []
    if bound is not None and bound.cut == "oldest":
        rows = connection.execute(_DECLARED, {"key": key, "first": sizes[0][0]}).fetchall()
        newest = newest_within([len(raw) for _, _, raw in rows], DECLARED_BYTES)
        declaring = [to_item(*row) for row in rows[newest:]]
    pieces = in_pieces([size for _, size, _ in sizes], PIECE_BYTES)
    return declaring, [(sizes[piece[0]][0], sizes[piece[-1]][0]) for piece in pieces]


def _read_piece(connection: Connection, values: RowValues, first: int, last: int) -> list[InputItem] | None:
    row = connection.execute(_KEY, values).fetchone()
    return None if row is None else _read_between(connection, row[0], first, last)


def _read_between(connection: Connection, key: int, first: int, last: int) -> list[InputItem]:
    return [to_item(*row) for row in connection.execute(_ENTRIES, {"key": key, "first": first, "last": last})]
