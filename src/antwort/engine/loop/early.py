"""Which calls may begin while the model is still writing. Pure.

To begin early changes when a call begins, and nothing else. So it is done only where the end of the turn cannot say
otherwise: nothing that the model could yet call would hand the turn to the client, or ask for an approval.
"""

from __future__ import annotations

from collections.abc import Mapping

from antwort.engine.loop.item_builders import OpenCall as Written
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.loop.steps import Ready, answer_to
from antwort.engine.loop.turn import Turn
from antwort.engine.plan import OpenCall, Plan
from antwort.tools.base import ToolDefinition, ToolResult
from antwort.tools.routing import Route, Toolbox, route


def may_be_early(plan: Plan) -> bool:
    """Whether any call of this request may."""
    if not plan.settings.eager or plan.request.parallel_tool_calls is False or not plan.toolbox.may_run:
        return False
    return all(_is_ours(tool, plan.toolbox) for tool in plan.toolbox.tools.values())


def _is_ours(tool: ToolDefinition, toolbox: Toolbox) -> bool:
    """Whether the client has no say in its calls."""
    return not tool.needs_approval and route(tool.name, toolbox) is not Route.CLIENT


def beginnings(turn: Turn, left: int, plan: Plan) -> list[Ready]:
    """The calls of the turn that may begin now: those that have become complete, and would be run at its end. `left`
    are as many as the response may still run when the turn begins.
    """
    found: list[Ready] = []
    for call in turn.take_whole():
        answer = answer_to(_asked(call), plan)
        if not isinstance(answer, Ready) or not (answer.is_search or call.before < left):
            continue
        if not plan.is_durable or answer.may_be_repeated:
            # Another process that picks the run up makes an inference that was cut anew, and its calls with it.
            found.append(answer)
    return found


def kept(came: Mapping[str, ToolResult | None], turn: Turn) -> dict[str, ToolResult]:
    """What is shown of calls that had begun when their turn was cut or broke off, by what they `came` to.

    What came to nothing says so: no open call may be left to be run again, and the model hears of whatever was begun. A
    tool that was told to stop may still run to its end. A call that has grown since it began is not what was asked for.
    """
    whole = {call.call_id for call in turn.calls() if call.written.is_whole}
    return {
        call_id: result or ToolResult(call_id, INTERRUPTED, is_error=True)
        for call_id, result in came.items()
        if call_id in whole
    }


def _asked(call: Written) -> OpenCall:
    return OpenCall(call.call_id, call.called, call.arguments, call.index, call.item)
