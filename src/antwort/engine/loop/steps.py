"""Decide what comes next: a pure function of the run and its plan. Every rule about the course of the loop is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

from antwort.api.events import CallOutcome, Compacted
from antwort.api.items import (
    CustomToolCall,
    FunctionCall,
    InputItem,
    McpApprovalRequest,
    McpCall,
)
from antwort.api.tools import Forced
from antwort.api.wire import UNSET
from antwort.engine.history.approval_records import asked_again
from antwort.engine.history.approvals import unasked
from antwort.engine.history.calls import PendingCall, call_id_of, lost_calls, results_in
from antwort.engine.history.refusals import NO_MORE, OVER_LIMIT, PROCESS_LOST
from antwort.engine.loop.fold import Finish, Run, open_among
from antwort.engine.loop.limits import calls_left, closing, stop_reason, tokens_left, tokens_spent
from antwort.engine.plan import Leftover, Plan
from antwort.engine.prompt.tool_names import called_name, model_name
from antwort.providers.base import CUT
from antwort.tools.base import HOUSE_LABEL, BaseExecutor, ToolDefinition, ToolKind
from antwort.tools.grammar import Grammar
from antwort.tools.routing import Route, Toolbox, find_executor, refusal, route, routed

UNFIT = "The input does not match the grammar of the tool {!r}.{} Call it again with one that does."


class Infer(msgspec.Struct, frozen=True):
    """Ask the model."""


class Ready(msgspec.Struct, frozen=True):
    """A call to run here."""

    call: PendingCall
    definition: ToolDefinition
    executor: BaseExecutor | None
    """What runs it; None: its tool is gone."""

    @property
    def may_be_repeated(self) -> bool:
        """Whether to run it twice does no more than to run it once."""
        return self.definition.read_only or self.definition.idempotent or self.definition.is_search

    @property
    def outcome(self) -> CallOutcome:
        """What its result counts as. To look for tools does nothing outside, and counts for nothing."""
        return "searched" if self.definition.is_search else "ran"


class Refused(msgspec.Struct, frozen=True):
    """A call that is answered with an error, without being run."""

    call: PendingCall
    message: str
    outcome: CallOutcome = "refused"
    """What its result counts as; `ran`: it was begun before, and may have run."""
    is_declined: bool = False
    """The request declines it for good."""
    grammar: Grammar | None = None
    """Of a free-form tool, where the input does not match it: the answer also says where it stops matching."""

    @property
    def is_lost(self) -> bool:
        """Whether it was begun before, and may have run."""
        return self.outcome == "ran"


class RunTools(msgspec.Struct, frozen=True):
    """Answer these calls, in this order, side by side or one by one."""

    calls: tuple[Ready | Refused, ...]
    is_parallel: bool = True


class Compact(msgspec.Struct, frozen=True):
    """Summarize the conversation."""


Step: TypeAlias = Infer | RunTools | Compact | Finish

_INFER = Infer()
_CUT = {reason: "max_output_tokens" if reason == "length" else reason for reason in CUT}


def next_step(run: Run, plan: Plan) -> Step:
    request, last, output = plan.request, run.last_turn, run.response.output
    if request.generate is False:
        return Finish("completed")
    if plan.compacts:
        is_made = any(isinstance(mark, Compacted) and mark.is_missing is UNSET for _, mark in run.marks)
        return Finish("completed") if is_made else Compact()
    if (plan.history.leftovers or run.lost) and (earlier := _earlier_answers(run, plan)):
        return RunTools(earlier)
    if plan.history.leftovers and asked_again(output, plan):
        return Finish("requires_action")
    if last is None:
        is_spent = bool(run.marks) and tokens_spent(run) >= plan.budget.tokens  # by a compaction
        return Finish("incomplete", "token_budget") if is_spent else _INFER
    if last.stop is not UNSET:  # made without tools: it ends the response, also where it was cut
        calls = waiting_calls(run, plan.toolbox)
        return RunTools(tuple(Refused(call, NO_MORE) for call in calls)) if calls else Finish("incomplete", last.stop)
    if last.finish in _CUT:
        return Finish("incomplete", _CUT[last.finish])
    if run.waiting:
        if answers := answers_to(waiting_calls(run, plan.toolbox), run, plan):
            return RunTools(answers, request.parallel_tool_calls is not False)
        return Finish("requires_action" if plan.toolbox.may_run else "completed")
    if McpApprovalRequest in map(type, output):
        return Finish("requires_action")
    has_called = run.has_called
    if has_called and (run.abandoned or plan.history.leftovers):
        has_called = any(_is_call(item, plan) for item in run.said(*(0, *run.turn_ends)[-2:]))
    if not has_called or request.choice_mode == "none":
        return Finish("completed")
    reason = stop_reason(run, plan)
    if reason is not None and closing(run, plan) is None:
        return Finish("incomplete", reason)
    if request.max_output_tokens is not None and tokens_left(run, plan) == 0:
        return Finish("incomplete", reason or "max_output_tokens")
    return _INFER


def choice_for(run: Run, plan: Plan) -> str | Forced:
    """Return the tool choice of the next inference. `required` and a forced tool hold until the model has called:
    otherwise the loop could never end.
    """
    if run.over_limit_turns:
        return "none"
    choice = plan.request.choice_mode
    if choice in ("auto", "none") or not run.turns:
        return choice
    calls = [item for item in run.said() if _is_call(item, plan)]
    only_searched = run.turns == 1 and all(_is_search(item, plan.toolbox) for item in calls)
    must_call_again = calls and (only_searched or all(is_unfit(item, plan.toolbox) for item in calls))
    return choice if must_call_again else "auto"


def _is_search(item: InputItem, toolbox: Toolbox) -> bool:
    if not isinstance(item, McpCall) or item.server_label != HOUSE_LABEL:
        return False
    tool = toolbox.tools.get(item.name)
    return tool is not None and tool.is_search


# ---- answers to calls ----


def _earlier_answers(run: Run, plan: Plan) -> tuple[Ready | Refused, ...]:
    """Return the answers to calls that earlier responses have asked for. One that was begun is lost, also where nothing
    runs it now.
    """
    if waiting := unanswered_leftovers(run, plan):
        if not all(left.is_parallel for left in waiting):
            waiting = waiting[:1]  # the others are not shown before their turn: what shows counts as begun
        return tuple(_leftover_answer(left, run) for left in waiting)
    if not run.lost:
        return ()
    return tuple(map(_lost, lost_calls(run.lost, run.output, chain.from_iterable(plan.history.stretches))))


def _leftover_answer(left: Leftover, run: Run) -> Ready | Refused:
    """Return its answer by the policy of the response that asked for it, whatever this one says."""
    if left.refusal is None:
        definition = left.toolbox.tools[left.call.name]
        answer: Ready | Refused = Ready(left.call, definition, find_executor(definition, left.toolbox.executors))
    else:
        answer = Refused(left.call, left.refusal, is_declined=left.is_declined)
    return _lost(left.call) if _is_lost(left.call, answer, run) else answer


def answers_to(calls: Sequence[PendingCall], run: Run, plan: Plan) -> tuple[Ready | Refused, ...]:
    """Return the calls that get a result here and now, in the order of the calls. A turn that pauses runs nothing, and
    looks for tools all the same.
    """
    answers: list[Ready | Refused] = []
    has_clients = False
    for call in calls:
        if call.call_id in run.handed:
            continue
        answer = answer_to(call, plan)
        if run.lost and _is_lost(call, answer, run):  # whatever would be done with it here, or not at all
            answers.append(_lost(call))
        elif answer is None:
            has_clients = has_clients or route(call.name, plan.toolbox) is Route.CLIENT
        else:
            answers.append(answer)
    if (may_run := calls_left(run, plan)) < len(answers):
        answers = _within_limit(answers, run, may_run)
    if has_clients and plan.settings.mixed_turns == "pause":
        return tuple(answer for answer in answers if isinstance(answer, Refused) or answer.definition.is_search)
    return tuple(answers)


def answer_to(call: PendingCall, plan: Plan) -> Ready | Refused | None:
    """Return the answer to the call by itself, whatever else was called; None: it waits for the client."""
    toolbox = plan.toolbox
    way, executor = routed(call.name, toolbox)
    if way is Route.SERVER:
        definition = toolbox.tools[call.name]
        if not definition.needs_approval:
            return Ready(call, definition, executor)
        problem = unasked(call.arguments)  # what can be approved was asked for, and is no open call
        return Refused(call, problem or OVER_LIMIT, "over_limit" if problem is None else "refused")
    if way is Route.REJECTED or way is Route.UNKNOWN:
        return Refused(call, refusal(call.name, toolbox))
    if is_unfit(call.item, toolbox):
        return Refused(call, UNFIT.format(call.name, ""), grammar=toolbox.tools[call.name].grammar)
    return None


def is_unfit(item: InputItem, toolbox: Toolbox) -> bool:
    """Return whether it is a call of a free-form tool that the client could run, refused for its input alone. It shows
    under the model's name.
    """
    if not isinstance(item, McpCall) or item.server_label != HOUSE_LABEL:
        return False
    tool = toolbox.tools.get(item.name)
    return tool is not None and tool.kind is ToolKind.CUSTOM and route(item.name, toolbox) is Route.CLIENT


def _within_limit(answers: Iterable[Ready | Refused], run: Run, left: int) -> list[Ready | Refused]:
    """Return the answers where so many calls are `left` to run: `max_tool_calls` counts what is run here, not turns.
    What is lost may have been.
    """
    kept: list[Ready | Refused] = []
    for answer in answers:
        if answer.outcome == "ran":
            if left <= 0 and isinstance(answer, Ready):
                is_lost = answer.call.call_id in run.lost
                kept.append(_lost(answer.call) if is_lost else Refused(answer.call, OVER_LIMIT, "over_limit"))
                continue
            left -= 1
        kept.append(answer)
    return kept


def _is_lost(call: PendingCall, answer: Ready | Refused | None, run: Run) -> bool:
    """Return whether it was begun by another process without a known outcome, and to run it again could do harm."""
    return call.call_id in run.lost and not (isinstance(answer, Ready) and answer.may_be_repeated)


def _lost(call: PendingCall) -> Refused:
    return Refused(call, PROCESS_LOST, "ran")


# ---- reading the items ----


def waiting_calls(run: Run, toolbox: Toolbox) -> list[PendingCall]:
    """Return the calls of this response that have no result yet, in order, where its last turn has ended. A call cut
    short is not one.

    The model is not asked again before all that it has called is answered: none is of an earlier turn than the last.
    """
    return _calls_at(run.waiting, run, toolbox)


def open_calls(run: Run, toolbox: Toolbox) -> list[PendingCall]:
    """Return those calls by the items alone, with what is open of a turn that has not ended."""
    start = (0, 0, *run.turn_ends)[-2]
    return _calls_at(open_among(run.response.output[start:], start), run, toolbox)


def _calls_at(places: Mapping[str, int], run: Run, toolbox: Toolbox) -> list[PendingCall]:
    calls: list[PendingCall] = []
    for call_id, at in places.items():
        item = run.response.output[at]
        if isinstance(item, McpCall):
            name, arguments = model_name(toolbox, item.server_label, item.name), item.arguments
        else:
            assert isinstance(item, FunctionCall | CustomToolCall), "nothing else calls"
            name = called_name(toolbox, item)
            arguments = item.arguments if isinstance(item, FunctionCall) else item.input
        calls.append(PendingCall(call_id, name, arguments, at, item))
    return calls


def unanswered_leftovers(run: Run, plan: Plan) -> list[Leftover]:
    leftovers = plan.history.leftovers
    if not leftovers:
        return []
    answered = results_in(run.output) | run.handed
    return [left for left in leftovers if left.call.call_id not in answered]


def _is_call(item: InputItem, plan: Plan) -> bool:
    """Return whether the model has called something, and not an earlier response whose call this one ran."""
    if isinstance(item, McpCall) and plan.history.leftovers:
        return all(call_id_of(item) != left.call.call_id for left in plan.history.leftovers)
    return isinstance(item, FunctionCall | CustomToolCall | McpCall)
