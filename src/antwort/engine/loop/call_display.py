"""Decide how calls show, and when: some only when their turn has ended. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from antwort.api.events import Batch
from antwort.api.items import McpCall
from antwort.engine.history.approvals import is_asked
from antwort.engine.loop.custom_input import input_of, wrapped
from antwort.engine.loop.fold import Run
from antwort.engine.loop.limits import calls_left
from antwort.engine.plan import Plan
from antwort.engine.prompt.declared_tools import is_enforced
from antwort.engine.prompt.tool_names import OWN
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.grammar import Checks
from antwort.tools.routing import Route, route


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


def display_of(plan: Plan, name: str, run: Run, checks: Checks, *, is_refused: bool = False) -> Shown:
    """Return how a call to `name` shows: never as a client's call if the client must not run it. `checks` are those of
    free-form inputs. In a turn without tools, each `is_refused`.
    """
    way, definition = route(name, plan.toolbox), plan.toolbox.tools.get(name)
    is_refused = is_refused or way is Route.REJECTED or way is Route.UNKNOWN
    is_ours, is_clients = way is Route.SERVER and not is_refused, way is Route.CLIENT and not is_refused
    if definition is not None and (definition.kind not in OWN or (is_ours and definition.needs_approval)):
        label = definition.server_label or HOUSE_LABEL
        if is_ours and definition.needs_approval:
            return Shown(definition.own_name, label, counts=True, asks=partial(is_asked, calls_left(run, plan)))
        return Shown(definition.own_name, label, counts=is_ours and not definition.is_search)
    if is_refused and _refuses_as_server(plan):
        return Shown(name, HOUSE_LABEL)
    if definition is None:
        return Shown(name, is_clients=is_clients)
    own, namespace = definition.own_name, definition.namespace
    if is_refused or definition.kind is not ToolKind.CUSTOM:
        return Shown(own, namespace=namespace, is_clients=is_clients, counts=is_ours)
    fits = _input_check(definition, run, plan, checks)
    return Shown(own, namespace=namespace, is_custom=True, is_clients=is_clients, fits=fits)


def _refuses_as_server(plan: Plan) -> bool:
    """Under the strict setting a refused call is a function call with output: the standard has no `mcp_call`."""
    return plan.settings.refused_calls == "mcp_call" and not plan.settings.strict


def _input_check(definition: ToolDefinition, run: Run, plan: Plan, checks: Checks) -> Callable[[str], bool] | None:
    """Return the check of a free-form tool's input, unless the backend makes it. A tool has one second try: then the
    client gets the input as it is.
    """
    grammar = definition.grammar
    if grammar is None or is_enforced(definition) or not _refuses_as_server(plan):
        return None
    if plan.request.choice_mode == "none" or run.turns + 1 >= plan.budget.turns:
        return None
    was_refused = any(
        isinstance(item, McpCall)
        and item.server_label == HOUSE_LABEL
        and item.name == definition.name
        and item.error is not None
        for item in run.response.output
    )
    return None if was_refused else lambda text: checks.mismatch(grammar, text) is None


# ---- calls that are shown later ----


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
    """Yield how the calls show, and their arguments. `has_clients`: the client has another call of this turn to run
    already. `counted`: how many count before them.

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
    """Return how it shows. One that is refused whatever the client says is not asked for: it shows as a call, and is
    answered as one.
    """
    asks = call.shown.asks
    is_asked = asks is None or asks(call.arguments, counted)
    return call.shown if is_asked else msgspec.structs.replace(call.shown, asks=None)
