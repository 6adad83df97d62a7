"""Conversations of clients: create, read, change and delete them and their items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antwort.api.decoding import Limits
from antwort.api.items import InputItem, ItemReference
from antwort.api.requests import added_steps, read_metadata
from antwort.api.resources import Conversation
from antwort.api.responses import Metadata
from antwort.api.wire import encode
from antwort.crypto import Vault
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.prompt.content_checks import media_steps
from antwort.errors import ConversationNotFound, ItemNotFound
from antwort.event_loop import in_turns
from antwort.identity import ANONYMOUS, Identity
from antwort.ids import new_id
from antwort.net.media import MediaHosts
from antwort.storage.base import Entry, ItemPage, Page, ResponseStore

Fields = dict[str, Any]
"""An item as a client would send it."""


class Conversations:
    """The conversations in a store. Items come as plain values, as a client sends them, and are checked here.

    All methods but `create` raise `ConversationNotFound` for one that is not there, or not the identity's.
    """

    def __init__(self, store: ResponseStore, limits: Limits, clock: Callable[[], float], vault: Vault) -> None:
        self._store, self._clock, self._vault = store, clock, vault
        self.limits = limits
        """Of the bodies that come from now on."""
        self._media = MediaHosts(limits.media_hosts)

    async def create(
        self,
        items: list[Fields] | None = None,
        metadata: Metadata | None = None,
        identity: Identity = ANONYMOUS,
    ) -> Conversation:
        described = read_metadata(metadata, self.limits)
        entries = await self._entries(identity, [] if items is None else items)
        conversation = Conversation(id=new_id("conv"), created_at=int(self._clock()), metadata=described)
        await self._store.begin_conversation(identity, conversation, entries)
        return conversation

    async def retrieve(self, conversation_id: str, identity: Identity = ANONYMOUS) -> Conversation:
        return _found(await self._store.conversation(identity, conversation_id), conversation_id)

    async def update(
        self, conversation_id: str, metadata: Metadata | None, identity: Identity = ANONYMOUS
    ) -> Conversation:
        """Replace all metadata of the conversation."""
        described = read_metadata(metadata, self.limits)
        updated = await self._store.describe_conversation(identity, conversation_id, described)
        return _found(updated, conversation_id)

    async def delete(self, conversation_id: str, identity: Identity = ANONYMOUS) -> None:
        """Delete the conversation with its items. The responses of its turns stay."""
        if not await self._store.delete_conversation(identity, conversation_id):
            raise ConversationNotFound(conversation_id)

    async def items(self, conversation_id: str, page: Page, identity: Identity = ANONYMOUS) -> ItemPage:
        page_of = await self._store.conversation_items(identity, conversation_id, page)
        if page_of is None:
            raise ConversationNotFound(conversation_id)
        return page_of

    async def add(
        self, conversation_id: str, items: list[Fields], identity: Identity = ANONYMOUS
    ) -> tuple[InputItem, ...]:
        """Return the added items: one whose id is taken gets another."""
        added = await self._store.add_entries(identity, conversation_id, await self._entries(identity, items))
        if added is None:
            raise ConversationNotFound(conversation_id)
        return added

    async def item(self, conversation_id: str, item_id: str, identity: Identity = ANONYMOUS) -> InputItem:
        """Raises `ItemNotFound` if the conversation does not have it."""
        found = await self._store.conversation_item(identity, conversation_id, item_id)
        if found is None:
            await self.retrieve(conversation_id, identity)
            raise ItemNotFound(item_id)
        return found

    async def delete_item(self, conversation_id: str, item_id: str, identity: Identity = ANONYMOUS) -> Conversation:
        """Return the conversation. Raises `ItemNotFound` as `item` does."""
        conversation = await self.retrieve(conversation_id, identity)
        if not await self._store.delete_entry(identity, conversation_id, item_id):
            raise ItemNotFound(item_id)
        return conversation

    async def _entries(self, identity: Identity, items: list[Fields]) -> list[Entry]:
        """Return the entries to add: for a reference, a copy of its item. Sealed items must open now: later requests
        could not use them.
        """
        read, raw = await in_turns(added_steps(items, self.limits))
        await in_turns(media_steps(read, "items", self._media))
        sealed = SealedItems(self._vault, identity)
        sealed.check_input(read, "items")
        wanted = [item.id for item in read if isinstance(item, ItemReference)]
        found = await self._store.items(identity, wanted) if wanted else {}
        entries = []
        for at, (item, given) in enumerate(zip(read, raw, strict=True)):
            meant = found.get(item.id) if isinstance(item, ItemReference) else item
            if meant is None:
                raise ItemNotFound(item.id, param=f"items[{at}].id")
            kept = sealed.sealed_item(meant)
            entries.append(Entry(item=kept, raw=given if kept is item else encode(kept)))
        return entries


def _found(conversation: Conversation | None, conversation_id: str) -> Conversation:
    if conversation is None:
        raise ConversationNotFound(conversation_id)
    return conversation
