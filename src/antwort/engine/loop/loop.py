"""The loop: infer, run tools, infer again, until the run has a terminal event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from antwort.api.events import (
    Batch,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    OutputItemAdded,
    OutputItemDone,
    ResponseCreated,
    ResponseInProgress,
)
from antwort.api.items import McpListTools
from antwort.api.status import transition
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction import compact, compact_if_due
from antwort.engine.context.window import window_of
from antwort.engine.loop.accounting import accounted
from antwort.engine.loop.fold import Finish, Run, as_ours, ending, fold, interrupted, settled
from antwort.engine.loop.result_events import NOT_BEGUN, ask_again, early_results
from antwort.engine.loop.steps import Compact, Infer, RunTools, next_step, unanswered_leftovers
from antwort.engine.loop.stops import closing
from antwort.engine.loop.turn import Turn
from antwort.engine.plan import Plan
from antwort.errors import AntwortError, BackendCut, Cancelled, HandedOver, Interrupted
from antwort.notes import reason_behind
from antwort.providers.base import MAX_OUTPUT_BYTES, MAX_TURN_CALLS
from antwort.storage.run_log import DETACHED

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")
_LIMITS = {MAX_OUTPUT_BYTES: "limits.output_bytes", MAX_TURN_CALLS: "limits.turn_calls"}


async def run_loop(live: LiveRun) -> AsyncGenerator[Batch, None]:
    """Yield every event from where the run stands to its terminal event. `live.run` is the fold of what was yielded.

    A run that another process continues, or has continued already, raises one of `DETACHED` instead of its end.
    """
    plan = live.plan
    try:
        for batch in opening_batches(live.run, plan, live.opening):
            yield batch
        if plan.call_records is not None:
            await live.signal.race(plan.call_records.record_answers)
        while not isinstance(step := next_step(live.run, plan), Finish):
            if live.is_handing_over:
                raise HandedOver
            if isinstance(step, Infer) and live.run.marks:
                await live.signal.race(partial(live.log.checkpoint, live.run))
            if isinstance(step, Infer) and plan.compact_threshold is not None:
                step = await compact_if_due(step, live)
            match step:
                case Infer():
                    source = infer(live)
                case RunTools():
                    source = live.tools.run(step)
                case Compact():
                    source = compact(live)
            try:
                async for batch in source:
                    yield batch
            finally:
                await source.aclose()
        reason = live.signal.reason  # it may have come between two waits
        if reason is not None and step.status != "completed" and not isinstance(reason, HandedOver):
            raise reason
        last = settled(live.run, "completed")
        if plan.history.leftovers:
            last += ask_again(fold(live.run, last), plan)
        last.append(ending(fold(live.run, last), step, plan.settings.requires_action))
    except DETACHED:
        raise
    except Exception as error:
        if isinstance(error, Cancelled) and plan.call_records is not None:
            await _decline_unbegun(live)
        live.error = _reported(error, live.run)
        last = settled(live.run, "incomplete")
        last.append(interrupted(fold(live.run, last), error))
    finally:
        await live.tools.close()
    yield last


async def _decline_unbegun(live: LiveRun) -> None:
    """Decline the calls of earlier responses that a cancelled response was to run: nothing runs them later."""
    assert live.plan.call_records is not None, "there are leftovers"
    left_open = [left.call.call_id for left in unanswered_leftovers(live.run, live.plan)]
    unbegun = [call_id for call_id in left_open if not live.tools.has_begun(call_id)]
    try:
        await live.plan.call_records.decline(unbegun, NOT_BEGUN)
    except AntwortError as error:
        _log.warning("the open calls of %s could not be declined: %s", live.response_id, error.message)


def _reported(error: Exception, run: Run) -> AntwortError | None:
    """Log a failure, and return what a client is told that has not been answered yet."""
    if isinstance(error, Interrupted):
        return None
    if isinstance(error, AntwortError):
        # The message of a refused request may be the backend's own, with the prompt in it.
        said = f": {error.message}{reason_behind(error)}" if error.status >= 500 else ""
        _log.warning("the run %s failed: %s%s", run.response.id, error.code, said)
    else:
        _log.error("the run %s met an unexpected error", run.response.id, exc_info=error)
    return as_ours(error)


# ---- the first events ----


def opening_batches(run: Run, plan: Plan, closing_events: Batch | None = None) -> list[Batch]:
    """Return the first batches: a new run is announced, with what its tool servers offer. A resumed run first gets
    `closing_events`, which close the items that were left open, as a batch of their own: marks stand at the end of one.
    """
    begun = Batch()
    if not run.is_announced:
        begun = [ResponseCreated(response=run.response), ResponseInProgress(response=run.response)]
    elif run.response.status == "queued":
        started = replace(run.response, status=transition(run.response.status, "in_progress"))
        begun = [ResponseInProgress(response=started)]
    listed, at = Batch(), len(run.response.output)
    for item in () if plan.request.generate is False else plan.listings:
        if _is_shown(item, run) or _was_shown(item, plan):
            continue
        listed += [
            OutputItemAdded(output_index=at, item=replace(item, status="in_progress", tools=(), error=UNSET)),
            McpListToolsInProgress(item_id=item.id, output_index=at),
            (McpListToolsCompleted if item.error is UNSET else McpListToolsFailed)(item_id=item.id, output_index=at),
            OutputItemDone(output_index=at, item=item),
        ]
        at += 1
    batches = (begun, closing_events, listed) if closing_events else (begun + listed,)
    return [*filter(None, batches)]


def _is_shown(listing: McpListTools, run: Run) -> bool:
    return any(
        isinstance(item, McpListTools) and item.server_label == listing.server_label and item.status == "completed"
        for item in run.output
    )


def _was_shown(listing: McpListTools, plan: Plan) -> bool:
    """Whether the conversation has the same list already: clients expect it once."""
    return any(
        isinstance(item, McpListTools) and item.server_label == listing.server_label and item.tools == listing.tools
        for stretch in plan.history.stretches
        for item in stretch
        if listing.error is UNSET
    )


# ---- an inference ----


async def infer(live: LiveRun) -> AsyncGenerator[Batch, None]:
    """Yield the events of one inference. The items that it opened are closed before an error is raised."""
    plan, provider, tools, before = live.plan, live.provider, live.tools, live.run
    last = closing(before, plan) if plan.settings.final_answer else None
    turn = Turn(
        first := len(before.response.output),
        partial(plan.shown, run=before) if last is None else plan.refused,
        plan.reasoning_style,
        plan.seal,
        is_eager=last is None and plan.may_be_eager,
        may_be_resumed=plan.is_durable,
        approval_ids=plan.approval_ids,
        most_calls=plan.settings.limits.turn_calls,
    )
    full, window = live.prompt.request(before), window_of(plan, provider)
    has_answered = False
    while True:
        request = full if window.is_far(full) else await live.signal.race(partial(window.fit, full))
        has_said = False
        failure: Exception | None = None
        live.is_asking = True
        answer = provider.infer(request)
        next_batch = partial(anext, answer, None)
        try:
            while not turn.is_full and (deltas := await live.signal.race(next_batch)) is not None:
                if not has_answered:
                    has_answered = True
                    live.on_answer()
                has_said = has_said or bool(deltas)
                turn.feed_all(deltas)
                # The events of a whole answer to a client that does not stream are published with the end of the turn.
                if (plan.request.stream or not turn.is_finished) and (batch := turn.take()):
                    yield batch
                    if turn.has_whole and not turn.is_finished:
                        tools.begin_early(turn, before)
        except Exception as error:
            failure = error
        finally:
            await answer.aclose()
        live.is_asking = False
        narrower = None if has_said else window.narrowed(failure, request, full)
        if narrower is None:
            break
        window = narrower  # the context is shorter than was known: ask again with what fits
    live.truncated += request.messages is not full.messages
    if failure is None and turn.is_finished and not turn.is_cut:
        is_told = turn.finish().usage is not UNSET
        batch = turn.take()
        yield batch if last is None and is_told else accounted(batch, live.run, first, request, window.meter, last)
        window.learn(full, request, turn.usage)
        return
    if failure is None and not turn.is_finished:
        failure = BackendCut("The backend's answer broke off.")
    live.is_asking = failure is not None and (has_answered or isinstance(failure, Interrupted))
    results = await tools.stop_early(turn)
    if isinstance(failure, DETACHED):  # another process makes the whole inference anew
        results = {}
    if failure is not None:
        turn.abort(results)
    elif (ended := turn.finish(results)).finish in _LIMITS:
        _log.warning("the run %s was cut: the model wrote more than %s", plan.response.id, _LIMITS[ended.finish])
    if batch := turn.take():
        yield accounted(batch, live.run, first, request, window.meter, last)
    is_broken = failure is not None and not isinstance(failure, DETACHED)
    if (results or is_broken) and (batch := early_results(results, live.run, plan, is_broken=is_broken)):
        yield accounted(batch, live.run, first, request, window.meter, last)
    if failure is not None:
        raise failure
    window.learn(full, request, turn.usage)
