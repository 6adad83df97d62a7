"""The loop. It orders things; it does not translate, count, measure, store or format."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from antwort.api.events import (
    Batch,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    OutputItemAdded,
    OutputItemDone,
    ResponseCreated,
    ResponseInProgress,
    RunEvent,
    TurnAbandoned,
)
from antwort.api.items import (
    CustomToolCall,
    FunctionCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    Reasoning,
)
from antwort.api.responses import Response
from antwort.api.status import transition
from antwort.api.wire import UNSET, replace
from antwort.engine.accounting import accounted
from antwort.engine.answers import NOT_BEGUN
from antwort.engine.compacting import compact, weighed
from antwort.engine.control import LEFT, Control
from antwort.engine.dispatch import ask_again, run_tools, standing
from antwort.engine.draft import Finish, Run, as_ours, ending, fold, interrupted, settled
from antwort.engine.early import beginnings, kept
from antwort.engine.opened import Seal, half_said
from antwort.engine.pairs import is_ours
from antwort.engine.plan import Plan
from antwort.engine.running import Running
from antwort.engine.steps import Infer, RunTools, next_step, unanswered_leftovers
from antwort.engine.stops import closing
from antwort.engine.translate import chat_request
from antwort.engine.turn import Turn
from antwort.engine.window import window_of
from antwort.errors import AntwortError, BackendCut, Cancelled, HandedOver, Interrupted
from antwort.notes import reason_behind
from antwort.providers.base import MAX_OUTPUT_BYTES, MAX_TURN_CALLS, Provider
from antwort.tools.base import ToolResult

_log = logging.getLogger("antwort.engine")
_OVER = {MAX_OUTPUT_BYTES: "limits.output_bytes", MAX_TURN_CALLS: "limits.turn_calls"}


def pick_up(
    response: Response, events: Sequence[RunEvent], deadline: float | None = None, seal: Seal | None = None
) -> Control:
    """Go on where another process stopped, from the batches it recorded; `seal` is that of the plan.

    What it had half said in an inference that never ended is closed; that inference is made anew, and nobody is told of
    what it had said. Open calls of a turn that did end wait for their results.
    """
    run = fold(Run(response), events)
    closing: Batch = []
    if (start := _unended(run)) is not None:
        for index, item in sorted(half_said(events, seal).items()):
            if index >= start:
                item.close("incomplete", closing)
        closing.append(TurnAbandoned(start=start))
    return Control(run, deadline, closing)


def _unended(run: Run) -> int | None:
    """The place of the first item of an inference that has not ended; None where nothing of one shows. Results, lists
    of tools and the runs of earlier calls stand before it.
    """
    first = max((0, *run.turn_ends, *[end for _, end in run.abandoned]))
    said = (at for at, item in enumerate(run.output[first:], first) if _is_models(item))
    return next(said, None)


def _is_models(item: OutputItem) -> bool:
    """Whether a model says it."""
    return is_ours(item) if isinstance(item, McpCall) else isinstance(item, _MODELS)


_MODELS = (Message, Reasoning, FunctionCall, CustomToolCall, McpApprovalRequest)


async def advance(plan: Plan, provider: Provider, control: Control) -> AsyncGenerator[Batch, None]:
    """Yield every event from where the run stands to its single terminal event.

    A run may start from nothing or from what another process left: the course is read off what is there. One that is
    handed over, or that another has by now, stops without a terminal event; who has come to the end goes there.
    """
    run, running = control.run, Running(plan, control)
    try:
        for batch in opening(control, plan):
            run = control.run = fold(run, batch)
            yield batch
        if plan.call_records is not None:
            await control.signal.race(plan.call_records.record_answers)
        while not isinstance(step := next_step(run, plan), Finish):
            if control.is_leaving:
                raise HandedOver
            if isinstance(step, Infer):
                if control.on_turn is not None and run.marks:
                    await control.signal.race(partial(control.on_turn, run))
                if plan.compact_threshold is not None:
                    step = await weighed(step, run, plan, control)
            source = (
                infer(run, plan, provider, control, running)
                if isinstance(step, Infer)
                else run_tools(step, run, control, running)
                if isinstance(step, RunTools)
                else compact(run, plan, provider, control)
            )
            try:
                async for batch in source:
                    run = control.run = fold(run, batch)
                    yield batch
            finally:
                await source.aclose()
        _check_stopped(step, control)
        closing = settled(run, "completed")
        if plan.history.leftovers:
            closing += ask_again(fold(run, closing), plan)
        closing.append(ending(fold(run, closing), step, plan.settings.requires_action))
    except LEFT:
        control.is_left = True
        return
    except Exception as error:
        if isinstance(error, Cancelled) and plan.call_records is not None:
            await _decline_unbegun(plan, run, running)
        control.error = _reported(error, run)
        closing = settled(run, "incomplete")
        closing.append(interrupted(fold(run, closing), error))
    finally:
        await running.close()
    control.run = fold(run, closing)
    yield closing


async def _decline_unbegun(plan: Plan, run: Run, running: Running) -> None:
    """A cancelled response settles the calls that it was to run for earlier ones: nothing runs them later."""
    assert plan.call_records is not None, "there are leftovers"
    left_open = [left.call.call_id for left in unanswered_leftovers(run, plan)]
    try:
        await plan.call_records.decline((each for each in left_open if not running.has_begun(each)), NOT_BEGUN)
    except AntwortError as error:
        _log.warning("the open calls of %s could not be declined: %s", run.response.id, error.message)


def _check_stopped(step: Finish, control: Control) -> None:
    """Raises the reason to stop that came between two waits, unless all was said by then."""
    reason = control.signal.reason
    if reason is not None and step.status != "completed" and not isinstance(reason, HandedOver):
        raise reason


def _reported(error: Exception, run: Run) -> AntwortError | None:
    """What to tell a client that has not been answered yet. What nobody expected is logged, whole."""
    if isinstance(error, Interrupted):
        return None
    if isinstance(error, AntwortError):
        # Of a request that was refused, the words may be the backend's own, with the prompt in them.
        said = f": {error.message}{reason_behind(error)}" if error.status >= 500 else ""
        _log.warning("the run %s failed: %s%s", run.response.id, error.code, said)
    else:
        _log.error("the run %s met an unexpected error", run.response.id, exc_info=error)
    return as_ours(error)


def opening(control: Control, plan: Plan) -> list[Batch]:
    """A new run announces itself and shows what its tool servers offer, at once; a resumed one closes what was half
    said, by itself: a mark ends that.
    """
    run, begun = control.run, Batch()
    if not run.is_announced:
        begun = [ResponseCreated(response=run.response), ResponseInProgress(response=run.response)]
    elif run.response.status == "queued":
        started = replace(run.response, status=transition(run.response.status, "in_progress"))
        begun = [ResponseInProgress(response=started)]
    batches = [begun, control.half_said, Batch()] if control.half_said else [begun]
    listings = () if plan.request.generate is False else plan.listings
    if missing := [item for item in listings if not (_is_shown(item, run) or _was_shown(item, plan))]:
        for at, item in enumerate(missing, start=len(run.output)):
            batches[-1] += _show_list(at, item)
    return [batch for batch in batches if batch]


def _is_shown(listing: McpListTools, run: Run) -> bool:
    return any(
        isinstance(item, McpListTools) and item.server_label == listing.server_label and item.status == "completed"
        for item in run.output
    )


def _was_shown(listing: McpListTools, plan: Plan) -> bool:
    """Whether the conversation has the same list already, as clients expect that it is shown once."""
    return any(
        isinstance(item, McpListTools) and item.server_label == listing.server_label and item.tools == listing.tools
        for stretch in plan.history.stretches
        for item in stretch
        if listing.error is UNSET
    )


def _show_list(at: int, item: McpListTools) -> list[RunEvent]:
    return [
        OutputItemAdded(output_index=at, item=replace(item, status="in_progress", tools=(), error=UNSET)),
        McpListToolsInProgress(item_id=item.id, output_index=at),
        (McpListToolsCompleted if item.error is UNSET else McpListToolsFailed)(item_id=item.id, output_index=at),
        OutputItemDone(output_index=at, item=item),
    ]


async def infer(
    run: Run, plan: Plan, provider: Provider, control: Control, running: Running
) -> AsyncGenerator[Batch, None]:
    """Yield the events of one inference. The items that it opened are closed before an error is raised."""
    last = closing(run, plan) if plan.settings.final_answer else None
    turn = Turn(
        first := len(run.response.output),
        partial(plan.shown, run=run) if last is None else plan.refused,
        plan.reasoning_style,
        plan.seal,
        is_eager=last is None and plan.may_be_eager,
        may_be_resumed=lambda: plan.may_be_resumed or control.on_begin is not None,
        approval_ids=plan.approval_ids,
        most_calls=plan.settings.limits.turn_calls,
    )
    full, window = chat_request(run, plan), window_of(plan, provider)
    has_answered = False
    while True:
        request = full if window.is_far(full) else await control.signal.race(partial(window.fit, full))
        has_said = False
        failure: Exception | None = None
        control.is_asking = True
        answer = provider.infer(request)
        next_batch = partial(anext, answer, None)
        try:
            while not turn.is_full and (deltas := await control.signal.race(next_batch)) is not None:
                if not has_answered:
                    has_answered = True
                    control.on_answer()
                has_said = has_said or bool(deltas)
                turn.feed_all(deltas)
                # The events of a whole answer to a client that does not stream go out with the end of the turn.
                if (plan.request.stream or not turn.is_finished) and (batch := turn.take()):
                    yield batch
                    if turn.has_whole and not turn.is_finished and running.may_begin_early:
                        running.begin(beginnings(turn, plan.calls_left(run), plan))
        except Exception as error:
            failure = error
        finally:
            await answer.aclose()
        control.is_asking = False
        narrower = None if has_said else window.narrowed(failure, request, full)
        if narrower is None:
            break
        window = narrower  # the context is shorter than was known: ask again with what fits
    control.truncated += request.messages is not full.messages
    if failure is None and turn.is_finished and not turn.is_cut:
        is_told = turn.finish().usage is not UNSET
        batch = turn.take()
        yield batch if last is None and is_told else accounted(batch, control.run, first, request, window.meter, last)
        window.learn(full, request, turn.usage)
        return
    if failure is None and not turn.is_finished:
        failure = BackendCut("The backend's answer broke off.")
    control.is_asking = failure is not None and (has_answered or isinstance(failure, Interrupted))
    results = await _halted(turn, running, failure)
    if failure is not None:
        turn.abort(results)
    elif (ended := turn.finish(results)).finish in _OVER:
        _log.warning("the run %s was cut: the model wrote more than %s", plan.response.id, _OVER[ended.finish])
    if batch := turn.take():
        yield accounted(batch, control.run, first, request, window.meter, last)
    is_broken = failure is not None and not isinstance(failure, LEFT)
    if (results or is_broken) and (batch := standing(results, control.run, plan, is_broken=is_broken)):
        yield accounted(batch, control.run, first, request, window.meter, last)
    if failure is not None:
        raise failure
    window.learn(full, request, turn.usage)


async def _halted(turn: Turn, running: Running, read: Exception | None) -> Mapping[str, ToolResult]:
    """What calls that began early came to, where their turn did not come to its end; else they go on."""
    came = await running.halt()
    return {} if isinstance(read, LEFT) else kept(came, turn)  # it is inferred again, whole
