"""Conversations in the memory of this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from antwort.api.items import Compaction, InputItem, is_additional, new_item_id
from antwort.api.resources import Conversation
from antwort.api.responses import Metadata
from antwort.api.wire import encode, replace
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import ITEM_BYTES, Bound, Entry, HistoryTooLarge, ItemPage, Page
from antwort.storage.rows import added_item, renamed, type_of
from antwort.storage.rules import DECLARED_BYTES, first_within, newest_within, select_page

Key: TypeAlias = tuple[str, str, str]
"""Tenant, owner, id."""


def key_of(identity: Identity, name: str) -> Key:
    return identity.tenant, identity.owner, name


@dataclass(slots=True, eq=False)
class StoredConversation:
    conversation: Conversation
    entries: dict[str, tuple[InputItem, int]] = field(default_factory=dict)
    """By id, oldest first: the item, and the length of its JSON."""
    shown: dict[str, InputItem] = field(default_factory=dict)
    """Items that are shown in another form than the one that the model is given."""
    approvals: list[str] = field(default_factory=list)
    """The ids of the approvals that are deleted with it."""
    size: int = 0
    """Bytes of all items, counted as a `Bound` does."""


class MemoryConversations:
    """The conversations of the memory store.

    Beyond `max_entries`, counting items and conversations together, the conversations are dropped that were read as a
    whole or added to least recently; the one that is added to stays, however long it is.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._conversations: OrderedDict[Key, StoredConversation] = OrderedDict()
        """Least recently used first."""
        self._entry_count = 0
        self._conversations_by_item: dict[Key, list[StoredConversation]] = {}
        """By tenant, owner and the id of an item, the newest last."""

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None:
        key = key_of(identity, conversation.id)
        if key in self._conversations:
            raise StoreFault("A conversation with this id exists already.")
        self._conversations[key] = StoredConversation(conversation)
        self._entry_count += 1
        self._add_entries(identity, conversation.id, entries)

    async def conversation(self, identity: Identity, conversation_id: str) -> Conversation | None:
        stored = self._conversations.get(key_of(identity, conversation_id))
        return None if stored is None else stored.conversation

    async def describe_conversation(
        self, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        stored = self._conversations.get(key_of(identity, conversation_id))
        if stored is None:
            return None
        stored.conversation = replace(stored.conversation, metadata=metadata)
        return stored.conversation

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        key = key_of(identity, conversation_id)
        is_found = key in self._conversations
        if is_found:
            self._drop_conversation(key)
        return is_found

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        stored = self._use(identity, conversation_id)
        if stored is None:
            return None
        items = [item for item, _ in stored.entries.values()]
        if bound is not None and stored.size > bound.most:
            sizes = [(size + ITEM_BYTES, isinstance(item, Compaction)) for item, size in stored.entries.values()]
            first = first_within(sizes, bound)
            if isinstance(first, HistoryTooLarge):
                raise first
            declaring = [*filter(is_additional, items[:first])] if bound.cut == "oldest" else []
            newest = newest_within([len(encode(item)) for item in declaring], DECLARED_BYTES)
            items = [*declaring[newest:], *items[first:]]
        return tuple(items)

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        stored = self._conversations.get(key_of(identity, conversation_id))
        if stored is None:
            return None
        entries = [*stored.entries.values()]
        found, has_more = select_page(entries, page, lambda entry: entry[0].id, size_of=lambda entry: entry[1])
        return ItemPage(items=tuple(stored.shown.get(item.id, item) for item, _ in found), has_more=has_more)

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None:
        stored = self._conversations.get(key_of(identity, conversation_id))
        if stored is None or item_id not in stored.entries:
            return None
        return stored.shown.get(item_id, stored.entries[item_id][0])

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        stored = self._conversations.get(key_of(identity, conversation_id))
        if stored is None or item_id not in stored.entries:
            return False
        _, size = stored.entries.pop(item_id)
        stored.size -= size + ITEM_BYTES
        stored.shown.pop(item_id, None)
        self._unindex_entry(key_of(identity, item_id), stored)
        return True

    def _newest_entry(self, identity: Identity, item_id: str) -> InputItem | None:
        found = self._conversations_by_item.get(key_of(identity, item_id))
        return None if found is None else found[-1].entries[item_id][0]

    def _use(self, identity: Identity, conversation_id: str) -> StoredConversation | None:
        """Return the conversation, which is the most recently used one from now on."""
        key = key_of(identity, conversation_id)
        stored = self._conversations.get(key)
        if stored is not None:
            self._conversations.move_to_end(key)
        return stored

    def _add_entries(
        self, identity: Identity, conversation_id: str, entries: Sequence[Entry]
    ) -> tuple[InputItem, ...] | None:
        """Add the entries and return them as they are shown."""
        stored = self._use(identity, conversation_id)
        if stored is None:
            return None
        added: list[InputItem] = []
        for entry in entries:
            item_id = entry.item.id
            while item_id in stored.entries:
                item_id = new_item_id(type_of(entry.item))
            item, shown = renamed(entry.item, item_id), added_item(entry, item_id)
            stored.entries[item_id] = item, len(entry.raw)
            stored.size += len(entry.raw) + ITEM_BYTES
            if shown is not item:
                stored.shown[item_id] = shown
            self._conversations_by_item.setdefault(key_of(identity, item_id), []).append(stored)
            added.append(shown)
        self._entry_count += len(added)
        while self._entry_count > self._max_entries and len(self._conversations) > 1:
            self._drop_conversation(next(iter(self._conversations)))
        return tuple(added)

    def _drop_conversation(self, key: Key) -> StoredConversation:
        stored = self._conversations.pop(key)
        self._entry_count -= 1
        for item_id in stored.entries:
            self._unindex_entry((key[0], key[1], item_id), stored)
        return stored

    def _unindex_entry(self, key: Key, stored: StoredConversation) -> None:
        self._entry_count -= 1
        found = self._conversations_by_item[key]
        found.remove(stored)
        if not found:
            del self._conversations_by_item[key]
