"""Fold a run's events into its response, and make the events that end it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Literal

import msgspec

from antwort.api.events import (
    Batch,
    CallBegun,
    CallEnded,
    Compacted,
    Mark,
    McpArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    ResponseRequiresAction,
    RunEvent,
    Span,
    Terminal,
    TurnAbandoned,
    TurnEnded,
    is_within,
)
from antwort.api.items import CustomToolCall, FunctionCall, FunctionCallOutput, McpCall, OutputItem
from antwort.api.responses import IncompleteDetails, Response, ResponseError, Usage
from antwort.api.status import ResponseStatus, close, transition
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.history.calls import call_id_of
from antwort.errors import AntwortError, DeadlinePassed, Interrupted, ServerFault


class Run(msgspec.Struct, frozen=True):
    """Where a run stands: the fold of its events so far."""

    response: Response
    is_announced: bool = False
    turns: int = 0
    calls_run: int = 0
    over_limit_turns: tuple[int, ...] = ()
    """The turns in which calls came after `max_tool_calls` was used up."""
    handed: frozenset[str] = frozenset()
    """The calls that an executor handed to the client."""
    marks: tuple[tuple[int, Mark], ...] = ()
    """The run's own events, each with the number of output items there were."""
    turn_ends: tuple[int, ...] = ()
    """The number of output items at the end of each turn."""
    abandoned: tuple[Span, ...] = ()
    """The items of inferences that were made anew: they are shown, and no model reads them."""
    last_turn: TurnEnded | None = None
    """How the last turn ended, if there is one."""
    estimated: int = 0
    """Tokens of the inferences whose backend does not tell what they took."""
    lost: frozenset[str] = frozenset()
    """The calls that another process has begun, and that have no result: their outcome is not known. Calls that begin
    here are not among them."""
    has_called: bool = False
    """Whether there are calls among the items of the last turn, those counted that were abandoned."""
    waiting: dict[str, int] = {}
    """The calls of the last turn that have no result yet, by their ids, and where they stand."""

    @property
    def output(self) -> tuple[OutputItem, ...]:
        return self.response.output

    def said(self, start: int = 0, end: int | None = None) -> Sequence[OutputItem]:
        """Return the output, or a part of it, without abandoned items."""
        items = self.response.output[start:end]
        if not self.abandoned:
            return items
        return [item for at, item in enumerate(items, start) if not is_within(self.abandoned, at)]


class Finish(msgspec.Struct, frozen=True):
    status: Literal["completed", "incomplete", "requires_action"]
    reason: str | None = None


# ---- the fold ----


def fold(run: Run, events: Sequence[RunEvent]) -> Run:
    """Return the run after `events`. A delta changes nothing: the `done` event of its item carries the whole.

    Changes of items are collected, so that the response is replaced once for all of them and the mark behind them.
    """
    output: list[OutputItem] | None = None
    event: Any  # told apart by its type: a chain of `isinstance` would cost more than all the rest
    for event in compress(events, map(_is_changing, map(type, events))):
        kind = type(event)
        if kind in _OF_ITEMS:
            if output is None:
                output = [*run.response.output]
            if kind is OutputItemAdded:
                output.append(event.item)
            elif kind is OutputItemDone:
                output[event.output_index] = event.item
            else:  # the arguments of a call are whole: another process may run it, and has not seen the deltas
                output[event.output_index] = replace(output[event.output_index], arguments=event.arguments)
        else:
            run = _FOLDS[kind](run, run.response.output if output is None else tuple(output), event)
            output = None
    return run if output is None else replace(run, response=replace(run.response, output=tuple(output)))


def _turn_ended(run: Run, output: tuple[OutputItem, ...], event: TurnEnded) -> Run:
    start, end, response = run.turn_ends[-1] if run.turns else 0, len(output), run.response
    has_called = not _CALLS.isdisjoint(map(type, turn := output[start:]))
    return replace(
        run,
        response=replace(response, output=output, usage=_total(response.usage, event.usage)),
        turns=run.turns + 1,
        marks=(*run.marks, (end, event)),
        turn_ends=(*run.turn_ends, end),
        last_turn=event,
        estimated=run.estimated if event.estimate is UNSET else run.estimated + event.estimate,
        has_called=has_called,
        waiting=open_among(turn, start) if has_called else {},
    )


_CALLS = frozenset({FunctionCall, CustomToolCall, McpCall})


def open_among(items: Iterable[OutputItem], start: int) -> dict[str, int]:
    """Return the complete calls without a result by their ids, with their places, where the first item stands at
    `start`. The result of a function is another item behind its call.
    """
    found: dict[str, int] = {}
    for at, item in enumerate(items, start):
        if isinstance(item, McpCall):
            if item.status == "in_progress":
                found[call_id_of(item)] = at
        elif isinstance(item, FunctionCall | CustomToolCall) and item.status == "completed":
            found[item.call_id] = at
        elif isinstance(item, FunctionCallOutput):
            found.pop(item.call_id, None)
    return found


def _total(before: Usage | None, more: Usage | UnsetType) -> Usage | None:
    if more is UNSET:
        return before
    return more if before is None else before + more


def _compacted(run: Run, output: tuple[OutputItem, ...], event: Compacted) -> Run:
    return replace(
        run,
        response=replace(run.response, output=output, usage=_total(run.response.usage, event.usage)),
        marks=(*run.marks, (len(output), event)),
        estimated=run.estimated if event.estimate is UNSET else run.estimated + event.estimate,
    )


def _turn_abandoned(run: Run, output: tuple[OutputItem, ...], event: TurnAbandoned) -> Run:
    """A call in it may have begun before its turn ended: then it is complete, and waits for its result."""
    start, end = (0, 0, *run.turn_ends)[-2], len(output)
    return replace(
        run,
        response=replace(run.response, output=output),
        marks=(*run.marks, (end, event)),
        abandoned=(*run.abandoned, (event.start, end)),
        waiting=open_among(output[start:], start) if run.turns else {},
    )


def _call_ended(run: Run, output: tuple[OutputItem, ...], event: CallEnded) -> Run:
    call_id, outcome = event.call_id, event.outcome
    waiting, handed, over = run.waiting.copy(), run.handed, run.over_limit_turns
    if outcome == "handed":  # it waits for the client
        handed |= {call_id}
    else:
        waiting.pop(call_id, None)
    if outcome == "over_limit" and run.turns not in over:
        over = (*over, run.turns)
    return replace(
        run,
        response=replace(run.response, output=output),
        calls_run=run.calls_run + (outcome == "ran"),
        marks=(*run.marks, (len(output), event)),
        waiting=waiting,
        handed=handed,
        over_limit_turns=over,
        lost=run.lost - {call_id} if run.lost else run.lost,
    )


def _call_begun(run: Run, output: tuple[OutputItem, ...], event: CallBegun) -> Run:
    return replace(run, response=replace(run.response, output=output), lost=run.lost | {event.call_id})


def _lifecycle(run: Run, _output: tuple[OutputItem, ...], event: ResponseCreated | ResponseQueued | Terminal) -> Run:
    transition(run.response.status, event.response.status)
    return replace(run, response=event.response, is_announced=True)


def _started(run: Run, output: tuple[OutputItem, ...], event: ResponseInProgress) -> Run:
    """Only the status counts: as a keep-alive, the event is repeated when there are items already."""
    if event.response is run.response:
        return run
    status = transition(run.response.status, event.response.status)
    if status == run.response.status and output is run.response.output:
        return run
    return replace(run, response=replace(run.response, status=status, output=output))


_FOLDS: dict[type, Callable[[Run, tuple[OutputItem, ...], Any], Run]] = {
    TurnEnded: _turn_ended,
    CallEnded: _call_ended,
    CallBegun: _call_begun,
    Compacted: _compacted,
    TurnAbandoned: _turn_abandoned,
    ResponseInProgress: _started,
    ResponseCreated: _lifecycle,
    ResponseQueued: _lifecycle,
    ResponseCompleted: _lifecycle,
    ResponseFailed: _lifecycle,
    ResponseIncomplete: _lifecycle,
    ResponseRequiresAction: _lifecycle,
}
"""The run after an event, with the output as it stands by then."""
_OF_ITEMS = frozenset({OutputItemAdded, OutputItemDone, McpArgumentsDone})
_is_changing = frozenset({*_OF_ITEMS, *_FOLDS}).__contains__


# ---- the end ----

_UNCLOSED = frozenset({"in_progress", "calling"})
_status_of = attrgetter("status")


def settled(run: Run, status: Literal["completed", "incomplete"]) -> Batch:
    """Return the events that close what is still open. A finished call without a result was asked for and not run."""
    output = run.response.output
    if _UNCLOSED.isdisjoint(map(_status_of, output)):
        return []
    return [
        OutputItemDone(output_index=at, item=replace(item, status=close(item.status, status)))
        for at, item in enumerate(output)
        if item.status in _UNCLOSED
    ]


def ending(run: Run, finish: Finish, requires_action: Literal["status", "event", "completed"] = "status") -> Terminal:
    """Return the event that ends a run which came to its end by itself."""
    if finish.status == "incomplete":
        details = IncompleteDetails(reason=finish.reason or "max_output_tokens")
        return ResponseIncomplete(response=_ended(run, "incomplete", incomplete_details=details))
    if finish.status == "requires_action" and requires_action == "event":
        return ResponseRequiresAction(response=_ended(run, "requires_action"))
    if finish.status == "requires_action" and requires_action == "status":
        return ResponseCompleted(response=_ended(run, "requires_action"))
    return ResponseCompleted(response=_ended(run, "completed", completed_at=int(time.time())))


def interrupted(run: Run, error: Exception) -> Terminal:
    """Return the event that ends a run which was stopped or went wrong."""
    if isinstance(error, DeadlinePassed):
        details = IncompleteDetails(reason="deadline")
        return ResponseIncomplete(response=_ended(run, "incomplete", incomplete_details=details))
    if isinstance(error, Interrupted):
        # There is no event for this in the standard; the payload says what it is.
        return ResponseIncomplete(response=_ended(run, "cancelled"))
    return ResponseFailed(response=_ended(run, "failed", error=error_of(as_ours(error))))


def as_ours(error: Exception) -> AntwortError:
    """Return what a client may learn of an unexpected exception."""
    return error if isinstance(error, AntwortError) else ServerFault("The server had an internal error.")


def error_of(error: AntwortError) -> ResponseError:
    return ResponseError(code=error.failed_code, message=error.message, type=error.type)


def _ended(run: Run, status: ResponseStatus, **changes: Any) -> Response:
    return replace(run.response, status=transition(run.response.status, status), **changes)
