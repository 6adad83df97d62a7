"""Summing up: the model writes what takes the place of the older part of a conversation, and it is sealed."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator
from typing import TypeGuard

import msgspec

from antwort.api.compactions import CompactedResponse, CompactRequest
from antwort.api.events import Batch, Compacted, OutputItemAdded, OutputItemDone
from antwort.api.items import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpListTools,
    Message,
    OpaqueItem,
    OutputItem,
    Reasoning,
)
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response, Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.control import Control
from antwort.engine.draft import Run
from antwort.engine.memory import Memories, Memory, Said, distinct, is_instruction, is_trigger
from antwort.engine.meter import Meter
from antwort.engine.plan import Plan
from antwort.engine.scribe import Scribe, longest_summary, rate_of
from antwort.engine.sizes import message_size, text_size, tools_size
from antwort.engine.steps import Compact, Infer, Step
from antwort.engine.summary import entries_of
from antwort.engine.translate import all_said, chat_request
from antwort.engine.trimming import trimmed
from antwort.engine.verbatim import divide, item_size
from antwort.errors import AntwortError, InvalidField
from antwort.ids import new_id
from antwort.notes import note, reason_behind
from antwort.providers.base import ChatRequest, Provider

_log = logging.getLogger("antwort.engine")

_SHARE = 4
"""Of the context, and of the size that it is compacted at, a quarter is kept word for word at most."""
_MOST_KEPT = 16_384
"""Tokens of the latest turns with all that they hold, where nobody knows the context."""
_INSTRUCTIONS = ("system", "developer")
_MUTE = (Compaction, McpListTools, McpApprovalRequest, McpApprovalResponse, ItemReference)
"""What says nothing to a model, or nothing any more."""
_STANDARD = (Message, FunctionCall, FunctionCallOutput, Reasoning)


# ---- what is asked for ----


def asks_to_compact(request: CreateRequest) -> bool:
    """Whether it wants no answer, and all that was said summed up."""
    return isinstance(request, CompactRequest) or (bool(request.input) and is_trigger(request.input[-1]))


def without_tools(request: CreateRequest) -> CreateRequest:
    """Nothing is called while it is summed up, and no server is asked for its tools."""
    return replace(request, tools=(), tool_choice="auto", allowed_tools=None)


def check_compacts(plan: Plan) -> None:
    """Refuse to sum up what has nothing in it."""
    said = all_said(Run(plan.response), plan) if plan.compacts else None
    if said is not None and not said.summary and not _talk(said):
        raise InvalidField("input", "there is nothing to compact.", code="missing_required_parameter")


def _talk(said: Said) -> list[InputItem]:
    """All that the user, the model and the tools have said."""
    items = (item for stretch in said.stretches for item in stretch)
    return [item for item in items if not (isinstance(item, _MUTE) or is_instruction(item) or is_trigger(item))]


# ---- the step ----


async def weighed(step: Step, run: Run, plan: Plan, control: Control) -> Step:
    """The step, or a compaction before it, where the request asks for one at the size that the context has by now."""
    threshold, meter = plan.compact_threshold, plan.meter
    if threshold is None or meter is None or not isinstance(step, Infer) or _is_compact(run):
        return step
    request = chat_request(run, plan)
    if not _is_near(request, threshold, meter, plan.identity.tenant):
        return step
    size = await control.signal.race(lambda: meter.count(request, plan.identity.tenant))
    if size < threshold:
        return step
    gained = _parted(run, plan, request).gained * size // max(1, meter.estimate(request))
    return Compact() if _is_worth_it(plan, size, gained, threshold) else step


def _is_near(request: ChatRequest, threshold: int, meter: Meter, who: str) -> bool:
    """By what the model's texts have, or by what was reported of this conversation: it may be denser than they are."""
    return meter.is_near(request, threshold - 1) or meter.estimate(request, meter.factor(request, who)) >= threshold


def _is_worth_it(plan: Plan, size: int, gained: int, threshold: int) -> bool:
    """Whether so many tokens less are worth a summary: instructions, tools and the latest turns stay, and where there
    is little else, the next turn would pay for it again.
    """
    is_worth_it, context = gained >= threshold // _SHARE, plan.capabilities.context_length
    if context is not None and plan.response.truncation != "auto":
        after = size - gained + min(longest_summary(plan), gained // 2)
        tight = context - min(plan.settings.reserve, context // (2 * _SHARE))
        if size >= context:  # there is no answer without it; nor with it, if that is not enough
            is_worth_it = after < context
        elif size >= tight:  # and here a short one
            is_worth_it = is_worth_it or after < tight
    if not is_worth_it:
        note(_log, logging.DEBUG, "did not compact: too little would be gained", tokens=size, gained=gained)
    return is_worth_it


def _is_compact(run: Run) -> bool:
    """Whether it was compacted, or could not be, since the last turn: it is tried once."""
    return bool(run.marks) and isinstance(run.marks[-1][1], Compacted)


async def compact(run: Run, plan: Plan, provider: Provider, control: Control) -> AsyncGenerator[Batch, None]:
    """Sum up what was said so far. The item that holds it is shown whole, when it is there.

    A response that goes on after it goes on without it where there is no summary to be had: what then does not fit
    fails for itself.
    """
    scribe = Scribe(plan, provider, control)
    try:
        memory = await _summed_up(run, plan, scribe)
    except Exception as error:
        yield [Compacted(usage=scribe.usage, is_missing=True)]
        if plan.compacts or not isinstance(error, AntwortError):
            raise
        said = f"{error.code}{reason_behind(error)}"
        note(_log, logging.WARNING, "went on without compacting: there is no summary", error=said)
    else:
        yield [*_shown(run, plan, memory), Compacted(usage=scribe.usage, is_missing=memory is None or UNSET)]


def _shown(run: Run, plan: Plan, memory: Memory | None) -> Batch:
    if memory is None:
        return []
    at, item = len(run.output), Compaction(id=new_id("cmp"), encrypted_content=_memories(plan).seal(memory))
    return [OutputItemAdded(output_index=at, item=item), OutputItemDone(output_index=at, item=item)]


async def _summed_up(run: Run, plan: Plan, scribe: Scribe) -> Memory | None:
    """What is left of all that was said. None where there is nothing that could be summed up, and a response to go on
    with.
    """
    parted = _parted(run, plan, chat_request(run, plan))
    said, entries = parted.said, entries_of(parted.summed)
    if not entries and not parted.is_trimmed and not plan.compacts:
        return None
    return Memory(parted.instructions, await scribe.sum_up(entries, said.summary), parted.recent)


class Parted(msgspec.Struct, frozen=True):
    """All that was said, parted for a compaction."""

    said: Said
    instructions: tuple[InputItem, ...]
    summed: tuple[InputItem, ...]
    """What the summary is of."""
    recent: tuple[InputItem, ...]
    """What stays, and its results no longer than there is room for them."""
    is_trimmed: bool
    gained: int
    """Tokens that are said now and not any more then, but for the summary."""


def _parted(run: Run, plan: Plan, request: ChatRequest) -> Parted:
    said, rate = all_said(run, plan), rate_of(plan, plan.response.model)

    def measure(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate)

    told = (*said.instructions, *(item for stretch in said.stretches for item in stretch if is_instruction(item)))
    talk, instructions = _talk(said), distinct(told)
    divided = divide(talk, _kept_tokens(plan), measure)
    recent = trimmed(divided.recent, _most_kept(plan, request, rate), measure)
    gained = sum(map(measure, (*told, *talk))) - sum(map(measure, (*instructions, *recent)))
    excess = math.ceil(text_size(said.summary) * rate) - longest_summary(plan)
    return Parted(said, instructions, divided.summed, recent, recent != divided.recent, gained + max(0, excess))


def _most_kept(plan: Plan, request: ChatRequest, rate: float) -> int:
    """Tokens of the latest turns, whatever they hold: half of the context, and no more than its instructions, tools and
    the summary leave of it.
    """
    context = plan.capabilities.context_length
    if context is None:
        return max(plan.settings.compaction_keep, _MOST_KEPT)
    told = sum(message_size(each).text for each in request.messages if each.role in _INSTRUCTIONS)
    beside = (told + (0 if request.tools is UNSET else tools_size(request.tools))) * rate
    left = context - math.ceil(beside) - longest_summary(plan)
    return max(context // (2 * _SHARE), min(context // 2, left))


def _kept_tokens(plan: Plan) -> int:
    sizes = (plan.capabilities.context_length, plan.compact_threshold)
    return min(plan.settings.compaction_keep, *(size // _SHARE for size in sizes if size is not None), 2**31)


def _memories(plan: Plan) -> Memories:
    assert plan.memories is not None, "a plan that compacts can seal"
    return plan.memories


# ---- a window: the latest turns are shown before the item, though they are sealed in it ----


def window_of(response: Response, plan: Plan) -> CompactedResponse:
    """What the run of a `CompactRequest` came to, as it is shown.

    Clients take the compaction from the end of a window, and some of them nothing else: so it comes last, and holds
    what is shown before it.
    """
    (item,) = (item for item in response.output if isinstance(item, Compaction))
    as_sent = {each.id: each for each in plan.request.input if isinstance(each, Reasoning)}
    recent = (as_sent.get(each.id, each) for each in _memories(plan).opened(item).recent)
    shown = [each for each in recent if _may_show(each, strict=plan.settings.strict)]
    return CompactedResponse(
        id=response.id, created_at=response.created_at, output=(*shown, item), usage=response.usage or Usage()
    )


def _may_show(item: InputItem, *, strict: bool) -> TypeGuard[OutputItem]:
    return isinstance(item, _STANDARD) if strict else not isinstance(item, OpaqueItem | ItemReference)
