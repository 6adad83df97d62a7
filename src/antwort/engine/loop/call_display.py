"""How calls show, and those whose turn must have ended before that is known. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from antwort.api.events import Batch
from antwort.engine.loop.custom_input import input_of, wrapped
from antwort.tools.base import HOUSE_LABEL


class Shown(msgspec.Struct, frozen=True):
    """How a call shows: as a `function_call`, or, with a server's label, as an `mcp_call` under `name`."""

    name: str
    server_label: str | None = None
    namespace: str | None = None
    """Clients see it apart from the name."""
    is_custom: bool = False
    """As a `custom_tool_call`: the one string in its arguments is its input."""
    is_clients: bool = False
    """Whether it is the client's to run."""
    fits: Callable[[str], bool] | None = None
    """Of a free-form tool: whether its input is right. Such a call is held."""
    counts: bool = False
    """Whether it is one of those that a response runs only so many of."""
    asks: Callable[[str, int], bool] | None = None
    """Of a tool that the client must approve: whether it is asked to, by the arguments, and by how many calls of the
    turn count before this one. Such a call is held; as long as this is set, it shows as a request for approval."""

    @property
    def is_held(self) -> bool:
        return self.fits is not None or self.asks is not None


class HeldCall:
    """A call that is not shown yet. Mostly it is shown when its turn has ended: what it asks for decides how it shows,
    or it stands behind one of those. One that was begun before the call in front of it was complete is shown when that
    is closed.

    `number` is its place among the calls of the answer.
    """

    def __init__(self, name: str, shown: Shown, number: int) -> None:
        self.name, self.shown, self.number = name, shown, number
        self._pieces: list[str] = []

    def feed(self, arguments: str, _events: Batch) -> None:
        self._pieces.append(arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def is_wrong(self) -> bool:
        return self.shown.fits is not None and not self.shown.fits(input_of(self.arguments))


def settle(held: Sequence[HeldCall], *, has_clients: bool, counted: int = 0) -> Iterator[tuple[Shown, str]]:
    """How the calls show, and their arguments. `has_clients`: the client has another call of this turn to run already.
    `counted`: how many count before them.

    What is wrong shows as a refused call, under the name that the model called, and waits for its answer; unless the
    client has something to run: then it gets that as well, and its own error goes to the model with all its
    results. Not every client sends back what was refused.
    """
    checked = [call for call in held if call.shown.fits is not None]
    has_clients = has_clients or any(call.shown.is_clients for call in held if call.shown.fits is None)
    is_refused = not has_clients and all(call.is_wrong for call in checked)
    for call in held:
        if is_refused and call.shown.fits is not None:
            yield Shown(call.name, HOUSE_LABEL), wrapped(call.arguments)
        else:
            yield unless_refused(call, counted), call.arguments
            counted += call.shown.counts


def unless_refused(call: HeldCall, counted: int = 0) -> Shown:
    """How it shows. One that is refused whatever the client says is not asked for: it shows as a call, and is answered
    as one.
    """
    asks = call.shown.asks
    is_asked = asks is None or asks(call.arguments, counted)
    return call.shown if is_asked else msgspec.structs.replace(call.shown, asks=None)
