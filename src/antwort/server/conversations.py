"""The endpoints under `/v1/conversations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from antwort.api.decoding import KnownFields, body_steps
from antwort.api.items import MAX_ITEM_ID
from antwort.api.wire import Plain, Wire
from antwort.engine.history.conversations import Conversations
from antwort.errors import ConversationNotFound, InvalidField, ItemNotFound
from antwort.event_loop import in_turns
from antwort.server.endpoints import LONGEST_ID, Offered, is_id, item_list, readable
from antwort.server.exchange import Exchange
from antwort.server.query import read_page

_BODY = KnownFields("items", "metadata")


class ConversationDeleted(Wire, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationRoutes:
    """They are OpenAI's, not the standard's. `encode` writes in the words of the server's setting."""

    def __init__(self, conversations: Conversations, encode: Callable[[object], bytes], body_limit: int) -> None:
        self._conversations, self._encode, self._body_limit = conversations, encode, body_limit
        self._all: Offered = {"POST": self.create}
        self._one: Offered = {**readable(self.retrieve), "POST": self.update, "DELETE": self.delete}
        self._items: Offered = {**readable(self.items), "POST": self.add}
        self._item: Offered = {**readable(self.item), "DELETE": self.delete_item}

    def offered(self) -> dict[str, Offered]:
        return {
            "/v1/conversations": self._all,
            "/v1/conversations/{id}": self._one,
            "/v1/conversations/{id}/items": self._items,
            "/v1/conversations/{id}/items/{item_id}": self._item,
        }

    def locate(self, names: Sequence[str]) -> tuple[Offered, str] | None:
        """Who answers for the names behind `/v1/conversations`, and for which id. With an item it is both ids, with a
        slash between them: a conversation has none in its own.
        """
        match names:
            case []:
                return self._all, ""
            case [subject] if subject:
                return self._one, subject
            case [subject, "items"] if subject:
                return self._items, subject
            case [subject, "items", item] if subject and item and "/" not in subject:
                return self._item, f"{subject}/{item}"
        return None

    # ---- conversations ----

    async def create(self, exchange: Exchange, _: str) -> None:
        asked = await self._body(exchange)
        made = await self._conversations.create(asked.get("items"), asked.get("metadata"), exchange.identity)
        await exchange.answer(self._encode(made))

    async def retrieve(self, exchange: Exchange, conversation_id: str) -> None:
        found = await self._conversations.retrieve(_checked(conversation_id), exchange.identity)
        await exchange.answer(self._encode(found))

    async def update(self, exchange: Exchange, conversation_id: str) -> None:
        asked = await self._body(exchange)
        metadata = _required(asked, "metadata")
        updated = await self._conversations.update(_checked(conversation_id), metadata, exchange.identity)
        await exchange.answer(self._encode(updated))

    async def delete(self, exchange: Exchange, conversation_id: str) -> None:
        await self._conversations.delete(_checked(conversation_id), exchange.identity)
        await exchange.answer(self._encode(ConversationDeleted(id=conversation_id)))

    # ---- their items ----

    async def items(self, exchange: Exchange, conversation_id: str) -> None:
        page = read_page(exchange.query())
        found = await self._conversations.items(_checked(conversation_id), page, exchange.identity)
        await exchange.answer(self._encode(item_list(found.items, has_more=found.has_more)))

    async def add(self, exchange: Exchange, conversation_id: str) -> None:
        asked = await self._body(exchange)
        items = _required(asked, "items")
        added = await self._conversations.add(_checked(conversation_id), items, exchange.identity)
        await exchange.answer(self._encode(item_list(added)))

    async def item(self, exchange: Exchange, names: str) -> None:
        conversation_id, item_id = _both(names)
        found = await self._conversations.item(conversation_id, item_id, exchange.identity)
        await exchange.answer(self._encode(found))

    async def delete_item(self, exchange: Exchange, names: str) -> None:
        conversation_id, item_id = _both(names)
        left = await self._conversations.delete_item(conversation_id, item_id, exchange.identity)
        await exchange.answer(self._encode(left))

    async def _body(self, exchange: Exchange) -> Plain:
        """All that a body says may be left out, and then the body too."""
        body = await exchange.body(self._body_limit) or b"{}"
        asked, _ = await in_turns(body_steps(body, _BODY, self._conversations.limits))
        return asked


def _required(asked: Plain, field: str) -> Any:
    """The value, for those to judge who know what it may be."""
    if field not in asked:
        raise InvalidField(field, "missing.", code="missing_required_parameter")
    return asked[field]


def _checked(conversation_id: str) -> str:
    if not is_id(conversation_id):
        raise ConversationNotFound(conversation_id[:LONGEST_ID])
    return conversation_id


def _both(names: str) -> tuple[str, str]:
    """The ids of the conversation and of the item, which its client may have chosen, with any characters in it."""
    conversation_id, _, item_id = names.partition("/")
    if len(item_id) > MAX_ITEM_ID:
        raise ItemNotFound(item_id[:LONGEST_ID])
    return _checked(conversation_id), item_id
