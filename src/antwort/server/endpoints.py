"""What endpoints have in common: how they are found, which ids they look up, and the list of items that some answer
with.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from antwort.api.items import InputItem
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.wire import Wire
from antwort.server.exchange import Exchange

Endpoint: TypeAlias = Callable[[Exchange, str], Awaitable[None]]
"""Answers the exchange; the text is the id in the address."""
Offered: TypeAlias = dict[str, Endpoint]
"""The endpoints of one address, by method."""

LONGEST_ID = 256
_ID = re.compile(f"[A-Za-z0-9_-]{{1,{LONGEST_ID}}}")


class ItemList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[InputItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def readable(endpoint: Endpoint) -> Offered:
    return {"GET": endpoint, "HEAD": endpoint}


def is_id(text: str) -> bool:
    """Whether it may be an id that was given out here; what is not is not looked up."""
    return _ID.fullmatch(text) is not None


def item_list(items: tuple[InputItem, ...], *, has_more: bool = False) -> ItemList:
    first, last = ends(items)
    return ItemList(data=items, first_id=first, last_id=last, has_more=has_more)


def ends(listed: Sequence[InputItem | Response | Approval]) -> tuple[str, str] | tuple[None, None]:
    """The ids of the first and the last."""
    return (listed[0].id, listed[-1].id) if listed else (None, None)
