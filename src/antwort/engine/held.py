"""How calls show, and those whose turn must have ended before that is known. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from antwort.api.events import Batch
from antwort.engine.unwrapping import input_of, wrapped
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


class HeldCall:
    """A call that is shown when its turn has ended: what it asks for decides how it shows, or it stands behind one."""

    def __init__(self, name: str, shown: Shown) -> None:
        self.name, self.shown = name, shown
        self._pieces: list[str] = []

    def feed(self, arguments: str, _events: Batch) -> None:
        self._pieces.append(arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def is_wrong(self) -> bool:
        return self.shown.fits is not None and not self.shown.fits(input_of(self.arguments))


def settle(held: Sequence[HeldCall], *, has_clients: bool) -> Iterator[tuple[Shown, str]]:
    """How the calls show, and their arguments. `has_clients`: the client has another call of this turn to run already.

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
            yield call.shown, call.arguments
