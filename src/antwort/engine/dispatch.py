"""Answering calls: side by side, and their results as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from operator import itemgetter

from antwort.api.events import Batch
from antwort.engine.answers import Answers
from antwort.engine.control import LEFT, Control
from antwort.engine.draft import Run
from antwort.engine.plan import Plan
from antwort.engine.running import Running
from antwort.engine.steps import Ready, Refused, RunTools, open_calls, ready
from antwort.tools.base import ToolResult


async def run_tools(step: RunTools, run: Run, control: Control, running: Running) -> AsyncGenerator[Batch, None]:
    """Answer the calls; results of functions come in the order of the calls, the others as they are ready."""
    calls = step.calls if (reason := control.signal.reason) is None else _due(step, reason)
    answers = Answers(calls, run.response.output)
    if opening := answers.open():
        yield opening
    failure: Exception | None = None
    try:
        if (alone := running.alone(calls)) is not None:
            answers.take(0, await alone)  # it is all the rest that there is
        else:
            width = len(calls) if step.is_parallel else 1
            async with aclosing(running.results(calls, width)) as results:
                async for done in results:
                    for at, result in sorted(done, key=itemgetter(0)):
                        answers.take(at, result)
                    if batch := answers.batch():
                        yield batch
    except Exception as error:
        failure = error
        if not isinstance(error, LEFT):  # whoever goes on decides about what has begun
            answers.stop(running.has_begun)
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


def standing(results: Mapping[str, ToolResult], run: Run, plan: Plan) -> Batch:
    """The results of calls that began early and whose turn did not come to its end, by their ids."""
    calls = [ready(call, plan.toolbox) for call in open_calls(run, plan.toolbox) if call.call_id in results]
    answers = Answers(calls, run.output)
    batch = answers.open()
    for at, each in enumerate(calls):
        answers.take(at, results[each.call.call_id])
    return [*batch, *answers.batch()]
