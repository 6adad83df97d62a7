"""Convert the results of calls to events."""

from __future__ import annotations

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
from antwort.engine.loop.steps import Ready, Refused, answer_to, open_calls, ready
from antwort.engine.plan import Plan
from antwort.ids import new_id
from antwort.tools.base import Output, ToolResult

INTERRUPTED = "The call was stopped; whether it has run to its end is not known."


class Handed(msgspec.Struct, frozen=True):
    """In place of a result: the call is handed to the client, and stays open."""


Outcome: TypeAlias = ToolResult | Handed


class Answers:
    """Converts the results of a step to events, and assigns the output indexes of new items."""

    def __init__(self, calls: Sequence[Ready | Refused], output: Sequence[OutputItem]) -> None:
        self._calls = calls
        self._output = output
        self._index = len(output)
        self._shown: dict[int, tuple[int, McpCall]] = {}  # where those of servers show that earlier responses left open
        self._waiting: dict[int, Outcome] = {}  # of functions: they are written in the order of the calls
        self._due = 0  # the first call whose result has not been written
        self._written: set[int] = set()
        self._unrun: set[int] = set()
        self._events: Batch = []

    def open(self) -> Batch:
        """Return the events of new items for the server calls that earlier responses left open."""
        for at, answer in enumerate(self._calls):
            call = answer.call
            if call.at is None and isinstance(call.item, McpCall):
                self._shown[at] = self._open_already(call) or self._show_again(call, call.item)
        return self._taken() if self._events else []

    def _is_servers(self, at: int) -> bool:
        return isinstance(self._calls[at].call.item, McpCall)

    def _open_already(self, call: PendingCall) -> tuple[int, McpCall] | None:
        """Return the item of such a call that a resumed run has shown already."""
        for at, item in enumerate(self._output):
            if isinstance(item, McpCall) and item.status == "in_progress" and call_id_of(item) == call.call_id:
                return at, item
        return None

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
        self._events += [
            OutputItemAdded(output_index=at, item=item),
            McpCallInProgress(item_id=item.id, output_index=at),
            McpArgumentsDelta(item_id=item.id, output_index=at, delta=call.arguments),
            McpArgumentsDone(item_id=item.id, output_index=at, arguments=call.arguments),
        ]
        return at, replace(item, arguments=call.arguments)

    def take(self, at: int, result: Outcome) -> None:
        """Add the result of a call. Those that end together are added in the order of the calls."""
        call = self._calls[at].call
        if not isinstance(call.item, McpCall):
            self._waiting[at] = result
        elif call.at is None:
            self._write_mcp(at, *self._shown[at], result)
        else:
            self._write_mcp(at, call.at, call.item, result)

    def batch(self) -> Batch:
        """Return the events of all results that may be written now."""
        if self._waiting:
            self._write_due()
        return self._taken()

    def _write_due(self) -> None:
        while self._due < len(self._calls) and (self._is_servers(self._due) or self._due in self._waiting):
            if not self._is_servers(self._due):
                self._write_function(self._due, self._waiting.pop(self._due))
            self._due += 1

    def _taken(self) -> Batch:
        events, self._events = self._events, []
        return events

    def stop(self, has_begun: Callable[[str], bool], is_queued: Callable[[str], bool]) -> None:
        """Settle the calls without results, as the run stops: without one, a call of this response would look as if it
        were still to be run. An earlier response's call that has not begun stays open; where it shows, it says so.
        """
        for at, answer in enumerate(self._calls):
            call = answer.call
            if at in self._written or at in self._waiting:
                continue
            if has_begun(call.call_id):
                self.take(at, ToolResult(call.call_id, INTERRUPTED, is_error=True))
            elif call.at is not None or is_queued(call.call_id):
                self._unrun.add(at)
                self.take(at, ToolResult(call.call_id, NOT_BEGUN, is_error=True))

    def rest(self) -> Batch:
        """Return the events of the results that waited for an earlier one which does not come."""
        if self._waiting:
            for at in sorted(self._waiting):
                self._write_function(at, self._waiting.pop(at))
        return self._taken() if self._events else []

    def _write_function(self, at: int, result: Outcome) -> None:
        if isinstance(result, Handed):
            self._events.append(CallEnded(call_id=self._calls[at].call.call_id, outcome="handed"))
            self._written.add(at)
            return
        index, self._index = self._index, self._index + 1
        item = FunctionCallOutput(id=new_id("fco"), call_id=result.call_id, output="", status="in_progress")
        done = replace(item, output=result.output, status="completed", is_error=True if result.is_error else UNSET)
        self._events += [
            OutputItemAdded(output_index=index, item=item),
            OutputItemDone(output_index=index, item=done),
            self._ended(at),
        ]

    def _write_mcp(self, at: int, index: int, item: McpCall, result: Outcome) -> None:
        assert isinstance(result, ToolResult), "only a function is handed to the client"
        text, parts = _in_text(result.output)
        told: RunEvent
        if result.is_error:
            error = ToolError(content=(Text(text=text),))
            done = replace(item, status=close(item.status, "failed"), error=error, content=parts)
            told = McpCallFailed(item_id=item.id, output_index=index)
        else:
            done = replace(item, status=close(item.status, "completed"), output=text, content=parts)
            told = McpCallCompleted(item_id=item.id, output_index=index)
        self._events += (told, OutputItemDone(output_index=index, item=done), self._ended(at))

    def _ended(self, at: int) -> CallEnded:
        self._written.add(at)
        answer = self._calls[at]
        outcome: CallOutcome = "ran"
        if at in self._unrun:
            outcome = "refused"
        elif isinstance(answer, Ready):
            if answer.is_search:
                outcome = "searched"
        elif not answer.is_lost:
            outcome = "over_limit" if answer.is_over_limit else "refused"
        return CallEnded(call_id=answer.call.call_id, outcome=outcome)


def _in_text(output: Output) -> tuple[str, tuple[ResultPart, ...] | UnsetType]:
    """Return the output as text, which an `mcp_call` shows, and its parts for the model where it is more than text."""
    if isinstance(output, str):
        return output, UNSET
    is_text = all(isinstance(part, InputText | OutputText | Text) for part in output)
    return text_of(output), UNSET if is_text else output


# ---- calls without a step ----


def early_results(results: Mapping[str, ToolResult], run: Run, plan: Plan, *, is_broken: bool) -> Batch:
    """Return the events of the results of calls that began early and whose turn was cut or broke off, by their ids. Of
    a broken turn, the functions that have not begun are answered as well, so that no follow-up runs them.
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
