"""What the tests of the pure parts share: a plan from a request, a run from what happened, and items in few words."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

from antwort import CreateRequest, EngineSettings
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
from antwort.api.wire import UNSET
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.loop.fold import Run, fold
from antwort.engine.plan import History, Leftover, Plan, budget_of, compact_threshold, draft_response
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.toolbox import build_toolbox
from antwort.identity import ANONYMOUS
from antwort.providers.base import Capabilities
from antwort.testing import ScriptedProvider, ToolServerFake
from antwort.tools.base import ToolExecutor
from antwort.tools.limits import all_limited
from antwort.vault import Vault
from engine_kit import replies

STEADY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""For properties: the same examples each time, however slow the machine is."""


async def plan_of(
    request: CreateRequest,
    *executors: ToolExecutor,
    earlier: tuple[tuple[InputItem, ...], ...] = (),
    leftovers: tuple[Leftover, ...] = (),
    capabilities: Capabilities = Capabilities(),  # noqa: B008 - a frozen value
    **settings: Any,
) -> Plan:
    """The plan of `request`, after what was said `earlier`."""
    chosen = EngineSettings(**settings)
    toolbox, listings = await build_toolbox(request, Discovery(all_limited(executors), ANONYMOUS, chosen, capabilities))
    return Plan(
        request=request,
        identity=ANONYMOUS,
        settings=chosen,
        response=draft_response(request, "scripted", chosen),
        budget=budget_of(request, chosen),
        sealed=SealedItems(Vault.ephemeral(), ANONYMOUS),
        estimator=TokenEstimator(ScriptedProvider()),
        compact_threshold=compact_threshold(request, capabilities),
        toolbox=toolbox,
        capabilities=capabilities,
        history=History((*earlier, request.input), leftovers, frozenset({len(earlier)})),
        listings=listings,
    )


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
