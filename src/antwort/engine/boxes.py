"""Toolboxes that were made before: requests come more often than the lists of the servers that they name change."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET, replace
from antwort.engine.servers import Offer, Shelf
from antwort.ids import new_id
from antwort.tools.routing import Toolbox

_MOST = 8


class Made(NamedTuple):
    """A toolbox, the lists that show with it, and all that they were made of."""

    of: tuple[object, ...]
    offers: Sequence[Offer]
    toolbox: Toolbox
    holds: bool
    """Whether all who may run its tools would say again that they do."""
    lists: tuple[McpListTools, ...]

    def shown(self) -> tuple[McpListTools, ...]:
        """The lists, for another response."""
        return tuple([replace(each, id=new_id("mcpl")) for each in self.lists])


class Boxes:
    """The last few, by what they were made of."""

    def __init__(self) -> None:
        self._made: deque[Made] = deque(maxlen=_MOST)

    def find(self, of: tuple[object, ...], offers: Sequence[Offer]) -> Made | None:
        for made in self._made:
            if made.of == of and _are_same(made.offers, offers):
                return made
        return None

    def keep(self, made: Made) -> None:
        self._made.appendleft(made)


def made_of(request: CreateRequest, shelf: Shelf, servers: Sequence[McpTool | None]) -> tuple[object, ...] | None:
    """All that a toolbox is made of but what the `servers` offer; None: it is not remembered, as the request brings
    something to log in, tools of its own, or a stranger's: how much memory their lists take is bounded elsewhere.
    """
    if not all(_is_plain(tool) for tool in request.tools):
        return None
    asked = (request.tools, request.tool_choice, request.allowed_tools)
    return asked, servers, shelf.capabilities, shelf.settings, shelf.executors


def _is_plain(tool: object) -> bool:
    return isinstance(tool, McpTool) and tool.authorization is tool.headers is tool.server_url is UNSET


def _are_same(known: Sequence[Offer], offers: Sequence[Offer]) -> bool:
    """What a server offers is the same as long as it is made of the same list, if that is one that cannot change."""
    return len(known) == len(offers) and all(
        one.found is other.found
        and isinstance(one.found, tuple | None)
        and one.instructions == other.instructions
        and one.problem == other.problem
        and one.silent == other.silent
        for one, other in zip(known, offers, strict=True)
    )
