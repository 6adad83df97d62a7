"""The loop: infer, run tools, infer again, until the run has a terminal event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from itertools import chain
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
    TurnEnded,
)
from antwort.api.items import FunctionCall, McpCall, McpListTools, Message, OutputItem, Reasoning
from antwort.api.status import transition
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction import compact, compact_if_due
from antwort.engine.context.token_counter import TokenEstimator, message_size
from antwort.engine.context.window import window_of
from antwort.engine.history.calls import lost_calls
from antwort.engine.history.refusals import NOT_BEGUN, PROCESS_LOST
from antwort.engine.loop.call_display import Shown, display_of
from antwort.engine.loop.fold import Finish, Run, as_ours, ending, fold, interrupted, settled
from antwort.engine.loop.item_builders import reasoning_style
from antwort.engine.loop.limits import closing
from antwort.engine.loop.result_events import answered, ask_again, early_results
from antwort.engine.loop.steps import Compact, Infer, Refused, RunTools, next_step, open_calls, unanswered_leftovers
from antwort.engine.loop.turn import Turn
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import Prompt
from antwort.engine.prompt.messages import said_in
from antwort.engine.resources import model_hint
from antwort.errors import AntwortError, BackendCut, Cancelled, HandedOver, Interrupted, ModelNotFound
from antwort.event_loop import in_turns
from antwort.notes import reason_behind
from antwort.providers.base import MAX_OUTPUT_BYTES, MAX_TURN_CALLS, ChatMessage, ChatRequest, Provider
from antwort.storage.run_log import DETACHED
from antwort.tools.base import ToolResult

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")
_LIMITS = {MAX_OUTPUT_BYTES: "limits.output_bytes", MAX_TURN_CALLS: "limits.turn_calls"}


async def run_loop(live: LiveRun, provider: Provider, opening: Batch | None, stopped: Exception | None) -> Batch:
    """Run from where the run stands to its end: `live.emit` gets every batch of events but the last, which is returned.
    `live.run` is the fold of what was emitted, and `opening` closes the items that were left open before. With
    `stopped`, it takes no step and ends for that reason.

    A run that another process continues, or has continued already, raises one of `DETACHED` instead of its end.
    """
    plan, signal, prompt = live.plan, live.signal, Prompt(live.plan)
    try:
        if not isinstance(stopped, Cancelled) or live.run.response.status == "in_progress":  # else it never begins
            for batch in opening_batches(live.run, plan, opening):
                await live.emit(batch)
        if stopped is not None:
            if batch := _lost_answers(live.run, plan):
                await live.emit(batch)
            raise stopped
        if plan.call_records is not None:
            await signal.race(plan.call_records.record_answers)
        while not isinstance(step := next_step(live.run, plan), Finish):
            if signal.stops_after_step and not live.tools.has_early_calls:
                raise HandedOver
            if isinstance(step, Infer):
                if live.run.marks:
                    await signal.race(partial(live.log.recorder.checkpoint, live.run))
                if plan.compact_threshold is not None:
                    step = await compact_if_due(step, live, prompt)
            match step:
                case Infer():
                    source = infer(live, provider, prompt)
                case RunTools():
                    source = live.tools.run(step)
                case Compact():
                    source = compact(live, provider)
            try:
                async for batch in source:
                    await live.emit(batch)
            finally:
                await source.aclose()
        reason = signal.reason  # it may have come between two waits
        if reason is not None and step.status != "completed" and not isinstance(reason, HandedOver):
            raise reason
        run, last = live.run, settled(live.run, "completed")
        if plan.history.leftovers:
            last += ask_again(fold(run, last), plan)
        if last:
            run = fold(run, last)
        last.append(ending(run, step, plan.settings.requires_action))
    except DETACHED:
        raise
    except Exception as error:
        if isinstance(error, Cancelled) and plan.call_records is not None:
            await _decline_unbegun(live)
        if isinstance(error, ModelNotFound):
            model = error.model if error.model == plan.settings.compaction_model else plan.response.model
            error = ModelNotFound(model, await model_hint(model, provider, plan.identity))
        live.error = _reported(error, live)
        last = settled(live.run, "incomplete")
        last.append(interrupted(fold(live.run, last), error))
    finally:
        if live.has_called:
            await live.tools.close()
    return last


def _lost_answers(run: Run, plan: Plan) -> Batch:
    """Answer the calls that another process began: without a result they would be taken for some that are still to be
    run.
    """
    calls = [call for call in open_calls(run, plan.toolbox) if call.call_id in run.lost]
    calls += lost_calls(run.lost, run.output, chain.from_iterable(plan.history.stretches))
    refused = [Refused(call, PROCESS_LOST, "ran") for call in calls]
    return answered(
        [(each, ToolResult(each.call.call_id, each.message, is_error=True)) for each in refused], run.output
    )


async def _decline_unbegun(live: LiveRun) -> None:
    """Decline the calls of earlier responses that a cancelled response was to run: nothing runs them later."""
    assert live.plan.call_records is not None, "there are leftovers"
    left_open = [left.call.call_id for left in unanswered_leftovers(live.run, live.plan)]
    unbegun = [call_id for call_id in left_open if not live.tools.has_begun(call_id)]
    try:
        await live.plan.call_records.decline(unbegun, NOT_BEGUN)
    except AntwortError as error:
        _log.warning("the open calls of %s could not be declined: %s", live.response_id, error.message)


def _reported(error: Exception, live: LiveRun) -> AntwortError | None:
    """Return the error for a client that has not been answered yet. A failure is logged by those who are told of the
    end of a run, or here if there are none; what nobody expected is logged here, with its traceback.
    """
    response_id = live.response_id
    if isinstance(error, Interrupted):
        return None
    if not isinstance(error, AntwortError):
        _log.error("the run %s met an unexpected error", response_id, exc_info=error)
    elif not live.hooks.on_summary:
        # The message of a refused request may be the backend's own, with the prompt in it.
        reason = f": {error.message}{reason_behind(error)}" if error.status >= 500 else ""
        _log.warning("the run %s failed: %s%s", response_id, error.code, reason)
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
    batches = [begun] if begun else []
    if closing_events:
        batches.append(closing_events)
    if plan.listings and plan.request.generate is not False:
        listed = Batch()
        for at, item in enumerate(_new_listings(run, plan), len(run.response.output)):
            has_failed = item.error is not UNSET
            listed += [
                OutputItemAdded(output_index=at, item=replace(item, status="in_progress", tools=(), error=UNSET)),
                McpListToolsInProgress(item_id=item.id, output_index=at),
                (McpListToolsFailed if has_failed else McpListToolsCompleted)(item_id=item.id, output_index=at),
                OutputItemDone(output_index=at, item=item),
            ]
        if begun and not closing_events:
            begun += listed
        elif listed:
            batches.append(listed)
    return batches


def _new_listings(run: Run, plan: Plan) -> Sequence[McpListTools]:
    """Return the tool lists that the run has not shown and that no earlier turn has shown: clients expect each once."""
    output, before = run.response.output, [*chain(*plan.history.stretches)]
    if McpListTools not in map(type, chain(before, output)):
        return plan.listings
    shown = [item.server_label for item in output if isinstance(item, McpListTools) and item.status == "completed"]
    known = [(item.server_label, item.tools) for item in before if isinstance(item, McpListTools)]
    return [
        item
        for item in plan.listings
        if item.server_label not in shown and (item.error is not UNSET or (item.server_label, item.tools) not in known)
    ]


# ---- an inference ----


async def infer(live: LiveRun, provider: Provider, prompt: Prompt) -> AsyncGenerator[Batch, None]:
    """Yield the events of one inference. The items that it opened are closed before an error is raised."""
    plan, stats, before, signal = live.plan, live.stats, live.run, live.signal
    request, settings = plan.request, plan.settings
    stop = closing(before, plan) if settings.final_answer else None  # why it is the last one, made without tools
    turn = Turn(
        len(before.response.output),
        partial(_display, live, before, stop is not None),
        "text" if request.reasoning is None else reasoning_style(request.reasoning),
        None if request.include is None else plan.sealed.seal_for(request),
        is_eager=stop is None and plan.toolbox.may_run and settings.eager,
        may_be_resumed=plan.is_durable,
        sealed=plan.sealed,
        most_calls=settings.limits.turn_calls,
    )
    whole, window = await in_turns(prompt.request_steps(before)), window_of(plan, provider)
    has_answered = False
    failure: Exception | None = None
    while True:
        sent = whole if window.is_far(whole) else await signal.race(partial(window.fit, whole))
        stats.is_asking, is_begun = True, False
        answer = provider.infer(sent)
        next_batch = partial(anext, answer, None)
        try:
            while not turn.has_too_many_calls and (deltas := await signal.race(next_batch)) is not None:
                if not has_answered:
                    has_answered = True
                    live.answered.set(None)
                if deltas:
                    is_begun = True
                    turn.feed_all(deltas)
                # The events of a whole answer to a client that does not stream are published with the end of the turn.
                if (request.stream or not turn.is_finished) and (batch := turn.take()):
                    yield batch
                    if turn.complete_calls and not turn.is_finished:
                        live.tools.begin_early(turn, before)
        except Exception as error:
            if not is_begun and window.narrow(error, sent, whole):
                stats.is_asking = False  # the context is shorter than was known: ask with what fits
                continue
            failure = error
        finally:
            await answer.aclose()
        break
    stats.truncated += sent.messages is not whole.messages
    if failure is None and not turn.is_finished:
        failure = BackendCut("The backend's answer broke off.")
    stats.is_asking = failure is not None and (has_answered or isinstance(failure, Interrupted))
    results: Mapping[str, ToolResult] = {}
    if failure is not None or turn.is_cut:
        stopped = await live.tools.stop_early(turn)
        if not isinstance(failure, DETACHED):  # else another process makes the whole inference again
            results = stopped
    if failure is None:
        ended = turn.finish(results)
        if ended.finish in _LIMITS:
            _log.warning("the run %s was cut: the model wrote more than %s", plan.response.id, _LIMITS[ended.finish])
        batch = turn.take()
        if stop is not None or ended.usage is UNSET:
            written = fold(live.run, batch).output[len(before.output) :]
            batch[-1] = _accounted(ended, stop, sent, written, window.estimator)
    else:
        turn.abort(results)
        batch = turn.take()
    if batch:
        yield batch
    is_broken = failure is not None and not isinstance(failure, DETACHED)
    if (results or is_broken) and (batch := early_results(results, live.run, plan, is_broken=is_broken)):
        yield batch
    if failure is not None:
        raise failure
    window.learn(whole, sent, turn.usage)


def _display(live: LiveRun, before: Run, is_refused: bool, name: str) -> Shown:
    """Return how a call to `name` shows in the turn that follows `before`."""
    return display_of(live.plan, name, before, live.tools.checks, is_refused=is_refused)


def _accounted(
    ended: TurnEnded, stop: str | None, request: ChatRequest, written: Sequence[OutputItem], estimator: TokenEstimator
) -> TurnEnded:
    """Return the mark with why the turn was made without tools, and with its estimated tokens where the backend reports
    none.
    """
    if stop is not None:
        ended = replace(ended, stop=stop)
    if ended.usage is not UNSET:
        return ended
    answer = ChatMessage(role="assistant", content="".join(map(_text_of, written)))
    written_tokens = estimator.estimate_size(request, message_size(answer))
    return replace(ended, estimate=estimator.estimate(request) + written_tokens)


def _text_of(item: OutputItem) -> str:
    match item:
        case Message():
            return said_in(item.content)
        case Reasoning():
            raw = () if item.content is UNSET else item.content
            return "".join(part.text for part in raw or item.summary)
        case FunctionCall() | McpCall():
            return item.name + item.arguments
        case _:
            return ""
