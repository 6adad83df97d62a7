"""What the tests of the pure parts share: a plan from a request, a run from what happened, and items in few words."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

from antwort import CreateRequest, Engine, EngineSettings
from antwort.api.events import CallEnded, Compacted, Mark, OutputItemAdded, OutputItemDone, TurnAbandoned, TurnEnded
from antwort.api.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpCall,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
)
from antwort.api.responses import Usage
from antwort.api.status import CallStatus, ItemStatus
from antwort.api.wire import UNSET, replace
from antwort.engine.loop.fold import Run, fold
from antwort.engine.plan import History, Leftover, Plan
from antwort.providers.base import Capabilities
from antwort.storage.base import ResponseStore
from antwort.testing import ScriptedProvider, ToolServerFake
from antwort.tools.base import ToolExecutor
from engine_kit import replies

STEADY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""For properties: the same examples each time, however slow the machine is."""


async def plan_of(
    request: CreateRequest,
    *executors: ToolExecutor,
    earlier: tuple[tuple[InputItem, ...], ...] = (),
    items: tuple[InputItem, ...] | None = None,
    leftovers: tuple[Leftover, ...] = (),
    capabilities: Capabilities = Capabilities(),  # noqa: B008 - a frozen value
    store: ResponseStore | None = None,
    **settings: Any,
) -> Plan:
    """The plan of `request`, after what was said `earlier`. With `items`, they are its input as a history has it: they
    need not be what a client may send.
    """
    provider = ScriptedProvider(capabilities=capabilities)
    engine = Engine(provider, store=store, executors=executors, settings=EngineSettings(**settings))
    plan = await engine.plan(request)
    if earlier or leftovers or items is not None:
        last = request.input if items is None else items
        history = History((*earlier, last), leftovers, frozenset({len(earlier)}))
        plan = replace(plan, history=history)
    return plan


def depot(*, prefix: str = "depot_") -> ToolServerFake:
    """The server that `SERVER` declares; the model sees its `stock` under a name of its own."""
    return ToolServerFake("depot", prefix, stock=replies("3 left"), price=replies("5 euro"))


def run_of(plan: Plan, *happened: OutputItem | Mark) -> Run:
    """The run after these items and marks. Items are added as they are given, whole."""
    run = Run(plan.response, is_announced=True)
    for each in happened:
        if isinstance(each, TurnEnded | CallEnded | Compacted | TurnAbandoned):
            run = fold(run, [each])
        else:
            at = len(run.output)
            run = fold(run, [OutputItemAdded(output_index=at, item=each), OutputItemDone(output_index=at, item=each)])
    return run


# ---- marks ----


def ended(finish: str = "tool_calls", usage: Usage | None = None) -> TurnEnded:
    return TurnEnded(finish=finish, usage=UNSET if usage is None else usage)


def ran(n: int) -> CallEnded:
    return CallEnded(call_id=f"call_{n}", outcome="ran")


def over_limit(n: int) -> CallEnded:
    return CallEnded(call_id=f"call_{n}", outcome="over_limit")


# ---- items: the n-th call of a test has the id `call_n` ----


def said(text: str, status: ItemStatus = "completed") -> Message:
    return Message(id="msg_1", role="assistant", status=status, content=(OutputText(text=text),))


def thought(text: str) -> Reasoning:
    return Reasoning(id="rs_1", content=(ReasoningText(text=text),))


def called(n: int, name: str = "weather", arguments: str = "{}", status: ItemStatus = "completed") -> FunctionCall:
    return FunctionCall(id=f"fc_{n}", call_id=f"call_{n}", name=name, arguments=arguments, status=status)


def result(n: int, output: str = "sunny", *, is_error: bool = False) -> FunctionCallOutput:
    error = True if is_error else UNSET
    return FunctionCallOutput(id=f"fco_{n}", call_id=f"call_{n}", output=output, is_error=error)


def server_called(
    n: int,
    name: str = "stock",
    *,
    label: str = "depot",
    arguments: str = "{}",
    status: CallStatus = "in_progress",
    output: str | None = None,
    error: str | None = None,
) -> McpCall:
    return McpCall(
        id=f"mcp_{n}",
        server_label=label,
        name=name,
        arguments=arguments,
        status=status,
        output=output,
        error=error,
        call_id=f"call_{n}",
    )
