"""Answering calls: side by side, and their results as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import TYPE_CHECKING

from antwort.api.events import Batch, OutputItemAdded, OutputItemDone
from antwort.api.items import FunctionCall, McpApprovalRequest, McpCall
from antwort.engine.history.sealed_items import new_request_id
from antwort.engine.loop.fold import Run
from antwort.engine.loop.result_events import NOT_BEGUN, Answers
from antwort.engine.loop.steps import Ready, Refused, RunTools, answer_to, asked_again, open_calls, ready
from antwort.engine.plan import Plan
from antwort.storage.run_log import DETACHED
from antwort.tools.base import ToolResult

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun


async def run_tools(step: RunTools, live: LiveRun) -> AsyncGenerator[Batch, None]:
    """Run the calls of a step, and yield their results as events: those of functions in the order of the calls, the
    others as they are ready.
    """
    tools = live.tools
    calls = step.calls if (reason := live.signal.reason) is None else _due(step, reason)
    answers = Answers(calls, live.run.response.output)
    if opening := answers.open():
        yield opening
    failure: Exception | None = None
    try:
        if (alone := tools.alone(calls)) is not None:
            answers.take(0, await alone)
        else:
            width = len(calls) if step.is_parallel else 1
            async with aclosing(tools.results(calls, width)) as results:
                async for done in results:
                    for at, result in sorted(done, key=itemgetter(0)):
                        answers.take(at, result)
                    if batch := answers.batch():
                        yield batch
    except Exception as error:
        failure = error
        if not isinstance(error, DETACHED):  # the process that resumes the run decides about calls that have begun
            answers.stop(tools.has_begun, tools.is_queued)
    if rest := answers.rest():
        yield rest
    if failure is not None:
        raise failure


def _due(step: RunTools, reason: Exception) -> Sequence[Ready | Refused]:
    """The calls of a step that is to stop. Raises the `reason`: an earlier response's call that shows as run counts as
    begun, and nobody begins it again. Of one that was begun before, that is said all the same.
    """
    if any(each.call.at is not None for each in step.calls):
        return step.calls
    if lost := [each for each in step.calls if isinstance(each, Refused) and each.is_lost]:
        return lost
    raise reason


def standing(results: Mapping[str, ToolResult], run: Run, plan: Plan, *, is_broken: bool) -> Batch:
    """The results of calls that began early and whose turn did not come to its end, by their ids. Where it `is_broken`,
    the functions that were called and have not begun are answered as well: nobody is to run them later.
    """
    calls: list[Ready | Refused] = []
    for call in open_calls(run, plan.toolbox):
        if call.call_id in results:
            calls.append(ready(call, plan.toolbox))
        elif is_broken and isinstance(call.item, FunctionCall) and isinstance(answer_to(call, plan), Ready):
            calls.append(Refused(call, NOT_BEGUN))
    answers = Answers(calls, run.output)
    batch = answers.open()
    for at, each in enumerate(calls):
        call_id = each.call.call_id
        answers.take(at, results.get(call_id) or ToolResult(call_id, NOT_BEGUN, is_error=True))
    return [*batch, *answers.batch()]


def ask_again(run: Run, plan: Plan) -> Batch:
    """Ask about calls whose tools have changed since they were approved. The questions go out with the end of the
    response, so that one that is shown is on record.
    """
    batch: Batch = []
    for index, left in enumerate(asked_again(run.output, plan), len(run.output)):
        assert isinstance(left.call.item, McpCall), "nothing else is approved"
        label, name, arguments = left.call.item.server_label, left.call.item.name, left.call.arguments
        item_id = new_request_id(plan.sealed, label, name, arguments)
        item = McpApprovalRequest(id=item_id, server_label=label, name=name, arguments=arguments)
        batch += [OutputItemAdded(output_index=index, item=item), OutputItemDone(output_index=index, item=item)]
    return batch
