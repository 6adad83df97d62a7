"""Conversations in the memory of this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from antwort.api.additional import is_additional
from antwort.api.conversations import Conversation
from antwort.api.inputs import new_item_id
from antwort.api.items import Compaction, InputItem
from antwort.api.responses import Metadata
from antwort.api.wire import encode, replace
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import (
    DECLARED_BYTES,
    ITEM_BYTES,
    Bound,
    Entry,
    Excess,
    HistoryTooLarge,
    ItemPage,
    Page,
    first_within,
    newest_within,
)
from antwort.storage.rows import added_item, renamed, type_of
from antwort.storage.rules import select, starts_at_front, within_size

Key: TypeAlias = tuple[str, str, str]
"""Tenant, owner, id."""


@dataclass(slots=True, eq=False)
class _Told:
    conversation: Conversation
    entries: dict[str, tuple[InputItem, int]] = field(default_factory=dict)
    """By the id they go by, oldest first: the item, and how long its JSON was."""
    shown: dict[str, InputItem] = field(default_factory=dict)
    """Those that are given back otherwise than they are understood."""
    asked: list[str] = field(default_factory=list)
    """The ids of the approvals that go with it."""
    size: int = 0
    """Bytes of all items, counted as a `Bound` does."""

    def add(self, entries: Sequence[Entry]) -> tuple[InputItem, ...]:
        return tuple(self._add(entry) for entry in entries)

    def _add(self, entry: Entry) -> InputItem:
        item_id = entry.item.id
        while item_id in self.entries:
            item_id = new_item_id(type_of(entry.item))
        item = renamed(entry.item, item_id)
        self.entries[item_id] = item, len(entry.raw)
        self.size += len(entry.raw) + ITEM_BYTES
        shown = added_item(entry, item_id)
        if shown is not item:
            self.shown[item_id] = shown
        return shown


class MemoryConversations:
    """The half of the store that keeps conversations.

    Beyond `max_entries`, items and conversations counted together, those go that nobody has read as a whole or added to
    for the longest time; the one that is added to stays, however long it is.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._told: OrderedDict[Key, _Told] = OrderedDict()
        """Those that were used last stand last."""
        self._entries = 0
        self._places: dict[Key, list[_Told]] = {}
        """By tenant, owner and the id of an item: where it stands, the newest last."""

    async def begin_conversation(
        self, identity: Identity, conversation: Conversation, entries: Sequence[Entry]
    ) -> None:
        key = identity.tenant, identity.owner, conversation.id
        if key in self._told:
            raise StoreFault("A conversation with this id exists already.")
        self._told[key] = _Told(conversation)
        self._entries += 1
        self._add(identity, conversation.id, entries)

    async def conversation(self, identity: Identity, conversation_id: str) -> Conversation | None:
        told = self._look_up(identity, conversation_id)
        return None if told is None else told.conversation

    async def describe_conversation(
        self, identity: Identity, conversation_id: str, metadata: Metadata
    ) -> Conversation | None:
        told = self._look_up(identity, conversation_id)
        if told is None:
            return None
        told.conversation = replace(told.conversation, metadata=metadata)
        return told.conversation

    async def delete_conversation(self, identity: Identity, conversation_id: str) -> bool:
        return self._forget((identity.tenant, identity.owner, conversation_id))

    async def said(
        self, identity: Identity, conversation_id: str, bound: Bound | None = None
    ) -> tuple[InputItem, ...] | None:
        told = self._use(identity, conversation_id)
        if told is None:
            return None
        items = [item for item, _ in told.entries.values()]
        if bound is not None and told.size > bound.most:
            sizes = [(size + ITEM_BYTES, isinstance(item, Compaction)) for item, size in told.entries.values()]
            first = first_within(sizes, bound)
            if isinstance(first, Excess):
                raise HistoryTooLarge(*first)
            declaring = [*filter(is_additional, items[:first])] if bound.cut == "oldest" else []
            newest = newest_within([len(encode(item)) for item in declaring], DECLARED_BYTES)
            items = [*declaring[newest:], *items[first:]]
        return tuple(items)

    async def conversation_items(self, identity: Identity, conversation_id: str, page: Page) -> ItemPage | None:
        told = self._look_up(identity, conversation_id)
        if told is None:
            return None
        ids = list(told.entries)
        places, has_more = select(ids, page)
        found = [told.entries[ids[place]] for place in places]
        forwards = starts_at_front(page)
        chosen = found if forwards else found[::-1]
        count = within_size(size for _, size in chosen)
        items = [told.shown.get(item.id, item) for item, _ in chosen[:count]]
        return ItemPage(items=tuple(items if forwards else reversed(items)), has_more=has_more or count < len(chosen))

    async def conversation_item(self, identity: Identity, conversation_id: str, item_id: str) -> InputItem | None:
        told = self._look_up(identity, conversation_id)
        found = None if told is None else told.entries.get(item_id)
        return None if told is None or found is None else told.shown.get(item_id, found[0])

    async def delete_entry(self, identity: Identity, conversation_id: str, item_id: str) -> bool:
        told = self._look_up(identity, conversation_id)
        gone = None if told is None else told.entries.pop(item_id, None)
        if told is None or gone is None:
            return False
        told.size -= gone[1] + ITEM_BYTES
        told.shown.pop(item_id, None)
        self._unplace((identity.tenant, identity.owner, item_id), told)
        return True

    def _newest_entry(self, identity: Identity, item_id: str) -> InputItem | None:
        told = self._places.get((identity.tenant, identity.owner, item_id))
        return None if told is None else told[-1].entries[item_id][0]

    def _look_up(self, identity: Identity, conversation_id: str) -> _Told | None:
        return self._told.get((identity.tenant, identity.owner, conversation_id))

    def _use(self, identity: Identity, conversation_id: str) -> _Told | None:
        told = self._look_up(identity, conversation_id)
        if told is not None:
            self._told.move_to_end((identity.tenant, identity.owner, conversation_id))
        return told

    def _add(self, identity: Identity, conversation_id: str, entries: Sequence[Entry]) -> tuple[InputItem, ...] | None:
        told = self._use(identity, conversation_id)
        if told is None:
            return None
        added = told.add(entries)
        self._entries += len(added)
        for item in added:
            self._places.setdefault((identity.tenant, identity.owner, item.id), []).append(told)
        while self._entries > self._max_entries and len(self._told) > 1:
            self._forget(next(iter(self._told)))
        return added

    def _forget(self, key: Key) -> bool:
        told = self._told.pop(key, None)
        if told is None:
            return False
        self._entries -= 1
        for item_id in told.entries:
            self._unplace((key[0], key[1], item_id), told)
        return True

    def _unplace(self, key: Key, told: _Told) -> None:
        self._entries -= 1
        places = self._places[key]
        places.remove(told)
        if not places:
            del self._places[key]
