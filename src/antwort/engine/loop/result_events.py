"""Convert the results of calls to events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.events import (
    Batch,
    CallEnded,
    CallOutcome,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    RunEvent,
)
from antwort.api.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    McpApprovalRequest,
    McpCall,
    OutputItem,
    OutputText,
    ResultPart,
    Text,
    ToolError,
    text_of,
)
from antwort.api.status import close
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.history.approval_records import asked_again
from antwort.engine.history.calls import PendingCall, call_id_of, run_ids
from antwort.engine.history.refusals import NOT_BEGUN
from antwort.engine.history.sealed_items import new_request_id
from antwort.engine.loop.fold import Run
from antwort.engine.loop.steps import Ready, Refused, answer_to, open_calls
from antwort.engine.plan import Plan
from antwort.ids import new_id
from antwort.tools.base import ToolResult

INTERRUPTED = "The call was stopped; whether it has run to its end is not known."


class Handed(msgspec.Struct, frozen=True):
    """In place of a result: the call is handed to the client, and stays open."""


Outcome: TypeAlias = ToolResult | Handed


class Answers:
    """Converts the results of a step's calls to events, and assigns the output indexes of new items.

    A server's call gets its result in the item that shows it, as soon as there is one. The results of functions are
    items of their own, in the order of the calls.
    """

    def __init__(self, calls: Sequence[Ready | Refused], output: Sequence[OutputItem]) -> None:
        """Server calls that earlier responses left open are shown first, by new items."""
        self._index = len(output)
        self._open = dict(enumerate(calls))  # the calls without a result
        self._shown: dict[int, tuple[int, McpCall]] = {}  # where server calls show
        self._functions: deque[int] = deque()  # whose results have not been written, in order
        self._results: dict[int, tuple[Outcome, CallOutcome]] = {}  # of functions: not written yet
        self._events: Batch = []
        for at, answer in enumerate(calls):
            call, item = answer.call, answer.call.item
            if not isinstance(item, McpCall):
                self._functions.append(at)
            elif call.at is not None:
                self._shown[at] = call.at, item
            else:
                self._shown[at] = _open_already(call, output) or self._show_again(call, item)
        self._calls = calls

    def _show_again(self, call: PendingCall, old: McpCall) -> tuple[int, McpCall]:
        at, self._index = self._index, self._index + 1
        item_id, call_id = run_ids(call.call_id, is_approved=old.approval_request_id is not UNSET)
        item = McpCall(
            id=item_id,
            server_label=old.server_label,
            name=old.name,
            arguments="",
            status="in_progress",
            approval_request_id=old.approval_request_id,
            call_id=call_id,
        )
        self._events += (
            OutputItemAdded(output_index=at, item=item),
            McpCallInProgress(item_id=item.id, output_index=at),
            McpArgumentsDelta(item_id=item.id, output_index=at, delta=call.arguments),
            McpArgumentsDone(item_id=item.id, output_index=at, arguments=call.arguments),
        )
        return at, replace(item, arguments=call.arguments)

    def take(self, at: int, result: Outcome, *, has_run: bool = True) -> None:
        """Add the result of a call: of one that was ready, also if the run was stopped before it `has_run`."""
        answer = self._open.pop(at)
        outcome = answer.outcome if has_run else "refused"
        if (shown := self._shown.get(at)) is None:
            self._results[at] = result, outcome
            return
        assert isinstance(result, ToolResult), "only a function is handed to the client"
        index, item = shown
        output = result.output
        text, parts = (output, UNSET) if isinstance(output, str) else _in_text(output)
        told: RunEvent
        if result.is_error:
            error = ToolError(content=(Text(text=text),))
            done = replace(item, status=close(item.status, "failed"), error=error, content=parts)
            told = McpCallFailed(item_id=item.id, output_index=index)
        else:
            done = replace(item, status=close(item.status, "completed"), output=text, content=parts)
            told = McpCallCompleted(item_id=item.id, output_index=index)
        ended = CallEnded(call_id=answer.call.call_id, outcome=outcome)
        self._events += (told, OutputItemDone(output_index=index, item=done), ended)

    def batch(self, *, is_last: bool = False) -> Batch:
        """Return the events of all results that may be written now. When it `is_last`, no result waits any longer for
        an earlier one.
        """
        while self._functions and (is_last or self._functions[0] in self._results):
            at = self._functions.popleft()
            if at in self._results:
                self._write_function(at, *self._results.pop(at))
        events, self._events = self._events, []
        return events

    def _write_function(self, at: int, result: Outcome, outcome: CallOutcome) -> None:
        if isinstance(result, Handed):
            self._events.append(CallEnded(call_id=self._calls[at].call.call_id, outcome="handed"))
            return
        index, self._index = self._index, self._index + 1
        item = FunctionCallOutput(id=new_id("fco"), call_id=result.call_id, output="", status="in_progress")
        done = replace(item, output=result.output, status="completed", is_error=True if result.is_error else UNSET)
        self._events += (
            OutputItemAdded(output_index=index, item=item),
            OutputItemDone(output_index=index, item=done),
            CallEnded(call_id=result.call_id, outcome=outcome),
        )

    def stop(self, has_begun: Callable[[str], bool], is_queued: Callable[[str], bool]) -> None:
        """Settle the calls without results, as the run stops: without one, a call of this response would look as if it
        were still to be run. An earlier response's call that has not begun stays open; where it shows, it says so.
        """
        for at, answer in [*self._open.items()]:
            call = answer.call
            if has_begun(call.call_id):
                self.take(at, ToolResult(call.call_id, INTERRUPTED, is_error=True))
            elif call.at is not None or is_queued(call.call_id):
                self.take(at, ToolResult(call.call_id, NOT_BEGUN, is_error=True), has_run=False)


def _open_already(call: PendingCall, output: Sequence[OutputItem]) -> tuple[int, McpCall] | None:
    """Return the item of an earlier response's call that a resumed run has shown already."""
    for at, item in enumerate(output):
        if isinstance(item, McpCall) and item.status == "in_progress" and call_id_of(item) == call.call_id:
            return at, item
    return None


def _in_text(output: tuple[ResultPart, ...]) -> tuple[str, tuple[ResultPart, ...] | UnsetType]:
    """Return the output as text, which an `mcp_call` shows, and its parts for the model where it is more than text."""
    is_text = all(isinstance(part, InputText | OutputText | Text) for part in output)
    return text_of(output), UNSET if is_text else output


# ---- calls without a step ----


def answered(results: Sequence[tuple[Ready | Refused, ToolResult]], output: Sequence[OutputItem]) -> Batch:
    """Return the events of calls with their results, behind this output."""
    answers = Answers([call for call, _ in results], output)
    for at, (_, result) in enumerate(results):
        answers.take(at, result)
    return answers.batch()


def early_results(results: Mapping[str, ToolResult], run: Run, plan: Plan, *, is_broken: bool) -> Batch:
    """Return the events of the results of calls that began early and whose turn was cut or broke off, by their ids. Of
    a broken turn, the functions that have not begun are answered as well, so that no follow-up runs them.
    """
    found: list[tuple[Ready | Refused, ToolResult]] = []
    for call in open_calls(run, plan.toolbox):
        if (result := results.get(call.call_id)) is not None:
            found.append((Ready(call, plan.toolbox.tools[call.name], None), result))
        elif is_broken and isinstance(call.item, FunctionCall) and isinstance(answer_to(call, plan), Ready):
            found.append((Refused(call, NOT_BEGUN), ToolResult(call.call_id, NOT_BEGUN, is_error=True)))
    return answered(found, run.output)


def ask_again(run: Run, plan: Plan) -> Batch:
    """Return the events that ask once more for the approval of calls whose tools have changed since. They are published
    with the end of the response, so that a request for approval that is shown is on record.
    """
    batch: Batch = []
    for index, left in enumerate(asked_again(run.output, plan), len(run.output)):
        assert isinstance(left.call.item, McpCall), "nothing else is approved"
        label, name, arguments = left.call.item.server_label, left.call.item.name, left.call.arguments
        item_id = new_request_id(plan.sealed, label, name, arguments)
        item = McpApprovalRequest(id=item_id, server_label=label, name=name, arguments=arguments)
        batch += [OutputItemAdded(output_index=index, item=item), OutputItemDone(output_index=index, item=item)]
    return batch
