"""Toolboxes that were made before: requests come more often than the lists of the servers that they name change."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET, replace
from antwort.engine.prompt.discovery import Offer, Shelf
from antwort.ids import new_id
from antwort.tools.base import ToolExecutor
from antwort.tools.routing import Toolbox

_MOST = 8
_LARGEST = 64 * 1024
"""Bytes of what a request says of its tools, and of a stranger's list, beyond which a toolbox is not remembered."""


class Source(NamedTuple):
    """Where some of the tools come from: a server that is to be asked, or the request itself."""

    server: McpTool | None = None
    path: str | None = None
    """Where the request declares the server; None: it is not the request's to answer for."""
    own: Offer = Offer()


class Of(NamedTuple):
    """All that a toolbox is made of but what the servers offer."""

    tools: tuple[object, ...]
    who: tuple[str, str] | None
    """Whose it is, where a stranger's tools are in it."""
    choice: object
    allowed: object
    standing: Sequence[McpTool]
    capabilities: object
    settings: object
    executors: tuple[ToolExecutor, ...]


class Made(NamedTuple):
    """A toolbox, the lists that show with it, and all that they were made of."""

    of: Of
    sources: Sequence[Source]
    offers: Sequence[Offer]
    toolbox: Toolbox
    holds: bool
    """Whether all who may run its tools would say again that they do."""
    lists: tuple[McpListTools, ...]

    def shown(self) -> tuple[McpListTools, ...]:
        """The lists, for another response."""
        return tuple([replace(each, id=new_id("mcpl")) for each in self.lists])

    def has(self, offers: Sequence[Offer]) -> bool:
        """Whether it was made of the same offers."""
        return len(self.offers) == len(offers) and all(map(is_same, self.offers, offers))


class Boxes:
    """The last few, by what they were made of. Strangers' push out none of the operator's, and are small."""

    def __init__(self) -> None:
        self._made: deque[Made] = deque(maxlen=_MOST)
        self._strangers: deque[Made] = deque(maxlen=_MOST)

    def __len__(self) -> int:
        return len(self._made) + len(self._strangers)

    def like(self, of: Of) -> list[Made]:
        """Those that are made of the same, whatever the servers have offered by then."""
        return [made for made in (self._made if of.who is None else self._strangers) if made.of == of]

    def keep(self, made: Made) -> None:
        """Once, where several requests have made it at the same time."""
        if any(known.has(made.offers) for known in self.like(made.of)):
            return
        if _brought_bytes(made) <= _LARGEST:
            (self._made if made.of.who is None else self._strangers).appendleft(made)


def made_of(request: CreateRequest, shelf: Shelf, standing: Sequence[McpTool]) -> Of | None:
    """None: it is not remembered, as the request brings something to log in, or tools of its own. `standing` are the
    servers that join those of the request.
    """
    who = None
    for tool in (*request.tools, *[each.tool for each in request.additional]):
        if not isinstance(tool, McpTool) or tool.authorization is not UNSET or tool.headers is not UNSET:
            return None
        if tool.server_url is not UNSET:
            who = (shelf.identity.tenant, shelf.identity.owner)
    return Of(
        (*request.tools, *request.additional),
        who,
        request.tool_choice,
        request.allowed_tools,
        standing,
        shelf.capabilities,
        shelf.settings,
        shelf.executors,
    )


def _brought_bytes(made: Made) -> float:
    """What clients and strangers have a say in: how much memory that takes is theirs to decide otherwise."""
    of, found = made.of, [offer.found for offer in made.offers if made.of.who is not None]
    try:
        return len(msgspec.json.encode((of.tools, of.choice, of.allowed, found)))
    except (TypeError, ValueError, RecursionError):  # servers come from anywhere
        return math.inf


def is_same(known: Offer, offer: Offer) -> bool:
    """What a server offers is the same as long as it is made of the same list, if that is one that cannot change."""
    return known is offer or (
        known.found is offer.found
        and isinstance(known.found, tuple | None)
        and known.instructions == offer.instructions
        and known.problem == offer.problem
        and known.silent == offer.silent
    )
