"""What endpoints have in common (pages, ids and queries), and those of `/v1/conversations` and `/v1/approvals`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from antwort.api.decoding import KnownFields, body_steps
from antwort.api.items import MAX_ITEM_ID, InputItem
from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.responses import Response
from antwort.api.status import ResponseStatus
from antwort.api.wire import Plain, Wire
from antwort.engine.engine import Engine
from antwort.engine.history.conversations import Conversations
from antwort.errors import ApprovalNotFound, ConversationNotFound, InvalidField, ItemNotFound
from antwort.event_loop import in_turns
from antwort.server.exchange import Exchange
from antwort.storage.base import Page, Wanted

Endpoint: TypeAlias = Callable[[Exchange, str], Awaitable[None]]
"""Answers the exchange; the text is the id in the path, or the ids with a slash between them."""
Offered: TypeAlias = dict[str, Endpoint]
"""The endpoints of one path, by method."""

MAX_ID = 256
_ID = re.compile(f"[A-Za-z0-9_-]{{1,{MAX_ID}}}")
_ORDERS: dict[str, Literal["asc", "desc"]] = {"asc": "asc", "desc": "desc"}
_STATUSES: dict[str, ResponseStatus] = {status: status for status in get_args(ResponseStatus)}
_BOOLEANS = {"": False, "0": False, "false": False, "1": True, "true": True}
_APPROVAL_STATUSES: dict[str, ApprovalStatus] = {status: status for status in get_args(ApprovalStatus)}
_CONVERSATION_FIELDS = KnownFields("items", "metadata")


class ItemList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[InputItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def readable(endpoint: Endpoint) -> Offered:
    return {"GET": endpoint, "HEAD": endpoint}


def is_id(text: str) -> bool:
    """Return whether it may be an id that was given out here; others are not looked up."""
    return _ID.fullmatch(text) is not None


def item_list(items: tuple[InputItem, ...], *, has_more: bool = False) -> ItemList:
    first, last = ends(items)
    return ItemList(data=items, first_id=first, last_id=last, has_more=has_more)


def ends(listed: Sequence[InputItem | Response | Approval]) -> tuple[str, str] | tuple[None, None]:
    """Return the ids of the first and the last."""
    return (listed[0].id, listed[-1].id) if listed else (None, None)


# ---- queries; unknown parameters are ignored ----


def read_page(query: dict[str, str]) -> Page:
    """Raises `InvalidField` naming the parameter."""
    limit = query.get("limit", "20")
    if not re.fullmatch("[0-9]{1,3}", limit) or not 1 <= int(limit) <= 100:
        raise InvalidField("limit", "expected a whole number from 1 to 100.")
    order = _ORDERS.get(query.get("order", "desc"))
    if order is None:
        raise InvalidField("order", "expected 'asc' or 'desc'.")
    return Page(limit=int(limit), order=order, after=query.get("after") or None, before=query.get("before") or None)


def read_wanted(query: Iterable[tuple[str, str]]) -> Wanted:
    """Several statuses are separated by commas, or come as so many parameters, with brackets or without: clients
    differ in how they write a list. Raises `InvalidField`.
    """
    model: str | None = None
    statuses: list[ResponseStatus] = []
    for name, value in query:
        if name == "model":
            model = value or None
        elif name in ("status", "status[]"):
            statuses += [_status(word) for word in value.split(",") if value]
    return Wanted(model=model, statuses=tuple(dict.fromkeys(statuses)))


def _status(word: str) -> ResponseStatus:
    status = _STATUSES.get(word.strip())
    if status is None:
        raise InvalidField("status", f"expected one or several of {', '.join(_STATUSES)}.")
    return status


def read_after(query: Mapping[str, str]) -> int | None:
    """Return the number of the event behind which to begin: -1 for all of them, None where no events are asked for.
    Raises `InvalidField`.
    """
    is_streamed = _BOOLEANS.get(query.get("stream", "").lower())
    if is_streamed is None:
        raise InvalidField("stream", "expected 'true' or 'false'.")
    after = query.get("starting_after")
    if after is None:
        return -1 if is_streamed else None
    if not is_streamed:
        raise InvalidField("starting_after", "it is there for streams alone; send 'stream=true' with it.")
    if not re.fullmatch("[0-9]{1,15}", after):
        raise InvalidField("starting_after", "expected the number of an event: a whole number from 0 on.")
    return int(after)


# ---- approvals ----


class ApprovalList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Approval, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ApprovalRoutes:
    """Read the calls that wait for the client's approval. The request that continues the response decides them."""

    def __init__(self, engine: Engine, encode: Callable[[object], bytes]) -> None:
        self._engine, self._encode = engine, encode

    def offered(self) -> dict[str, Offered]:
        return {"/v1/approvals": readable(self.list), "/v1/approvals/{id}": readable(self.retrieve)}

    async def list(self, exchange: Exchange, _: str) -> None:
        query = exchange.query()
        found = await self._engine.approvals(exchange.identity, read_page(query), _approval_status(query.get("status")))
        first, last = ends(found.approvals)
        listed = ApprovalList(data=found.approvals, first_id=first, last_id=last, has_more=found.has_more)
        await exchange.answer(self._encode(listed))

    async def retrieve(self, exchange: Exchange, approval_id: str) -> None:
        if not is_id(approval_id):
            raise ApprovalNotFound(approval_id[:MAX_ID])
        await exchange.answer(self._encode(await self._engine.approval(approval_id, exchange.identity)))


def _approval_status(word: str | None) -> ApprovalStatus | None:
    if not word:
        return None
    status = _APPROVAL_STATUSES.get(word)
    if status is None:
        raise InvalidField("status", f"expected one of {', '.join(_APPROVAL_STATUSES)}.")
    return status


# ---- conversations ----


class ConversationDeleted(Wire, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationRoutes:
    """They are OpenAI's, not the standard's. `encode` writes in the words of the server's setting."""

    def __init__(self, conversations: Conversations, encode: Callable[[object], bytes], body_limit: int) -> None:
        self._conversations, self._encode, self._body_limit = conversations, encode, body_limit

    def offered(self) -> dict[str, Offered]:
        return {
            "/v1/conversations": {"POST": self.create},
            "/v1/conversations/{id}": {**readable(self.retrieve), "POST": self.update, "DELETE": self.delete},
            "/v1/conversations/{id}/items": {**readable(self.items), "POST": self.add},
            "/v1/conversations/{id}/items/{item_id}": {**readable(self.item), "DELETE": self.delete_item},
        }

    # ---- conversations ----

    async def create(self, exchange: Exchange, _: str) -> None:
        asked = await self._body(exchange)
        made = await self._conversations.create(asked.get("items"), asked.get("metadata"), exchange.identity)
        await exchange.answer(self._encode(made))

    async def retrieve(self, exchange: Exchange, conversation_id: str) -> None:
        found = await self._conversations.retrieve(_checked_conversation(conversation_id), exchange.identity)
        await exchange.answer(self._encode(found))

    async def update(self, exchange: Exchange, conversation_id: str) -> None:
        asked = await self._body(exchange)
        metadata = _required(asked, "metadata")
        updated = await self._conversations.update(_checked_conversation(conversation_id), metadata, exchange.identity)
        await exchange.answer(self._encode(updated))

    async def delete(self, exchange: Exchange, conversation_id: str) -> None:
        await self._conversations.delete(_checked_conversation(conversation_id), exchange.identity)
        await exchange.answer(self._encode(ConversationDeleted(id=conversation_id)))

    # ---- their items ----

    async def items(self, exchange: Exchange, conversation_id: str) -> None:
        page = read_page(exchange.query())
        found = await self._conversations.items(_checked_conversation(conversation_id), page, exchange.identity)
        await exchange.answer(self._encode(item_list(found.items, has_more=found.has_more)))

    async def add(self, exchange: Exchange, conversation_id: str) -> None:
        asked = await self._body(exchange)
        items = _required(asked, "items")
        added = await self._conversations.add(_checked_conversation(conversation_id), items, exchange.identity)
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
        """Return the fields of the body. All of them may be left out, and then the body too."""
        body = await exchange.body(self._body_limit) or b"{}"
        asked, _ = await in_turns(body_steps(body, _CONVERSATION_FIELDS, self._conversations.limits))
        return asked


def _required(asked: Plain, field: str) -> Any:
    """Return the value unchecked."""
    if field not in asked:
        raise InvalidField(field, "missing.", code="missing_required_parameter")
    return asked[field]


def _checked_conversation(conversation_id: str) -> str:
    if not is_id(conversation_id):
        raise ConversationNotFound(conversation_id[:MAX_ID])
    return conversation_id


def _both(names: str) -> tuple[str, str]:
    """Return the ids of the conversation and of the item. A client may have chosen that, with any characters in it."""
    conversation_id, _, item_id = names.partition("/")
    if len(item_id) > MAX_ITEM_ID:
        raise ItemNotFound(item_id[:MAX_ID])
    return _checked_conversation(conversation_id), item_id
