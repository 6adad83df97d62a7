"""Summing up: the model writes what takes the place of the older part of a conversation, and it is sealed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, TypeGuard

from antwort.api.events import Batch, Compacted, OutputItemAdded, OutputItemDone, TurnAbandoned
from antwort.api.items import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    Message,
    OpaqueItem,
    OutputItem,
    Reasoning,
)
from antwort.api.requests import CompactRequest, CreateRequest
from antwort.api.responses import CompactedResponse, Response, Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction_item import Memories, Memory, is_trigger
from antwort.engine.context.compaction_split import is_worth_it, parted, talk_of
from antwort.engine.context.summarizer import Scribe
from antwort.engine.context.summary_prompt import entries_of
from antwort.engine.context.token_counter import Meter
from antwort.engine.loop.fold import Run
from antwort.engine.loop.steps import Compact, Infer
from antwort.engine.plan import Plan
from antwort.engine.prompt.declared_tools import as_item
from antwort.engine.prompt.messages import all_said, chat_request
from antwort.errors import AntwortError, InvalidField
from antwort.ids import new_id
from antwort.notes import note, reason_behind
from antwort.providers.base import ChatRequest
from antwort.storage.run_log import DETACHED

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")

_STANDARD = (Message, FunctionCall, FunctionCallOutput, Reasoning)


# ---- what is asked for ----


def asks_to_compact(request: CreateRequest) -> bool:
    """Whether it wants no answer, and all that was said summed up."""
    return isinstance(request, CompactRequest) or (bool(request.input) and is_trigger(request.input[-1]))


def without_tools(request: CreateRequest) -> CreateRequest:
    """Nothing is called while it is summed up, and no server is asked for its tools."""
    return replace(request, tools=(), additional=(), tool_choice="auto", allowed_tools=None)


def check_compacts(plan: Plan) -> None:
    """Refuse to sum up what has nothing in it."""
    said = all_said(Run(plan.response), plan)
    if not said.summary and not talk_of(said):
        raise InvalidField("input", "there is nothing to compact.", code="missing_required_parameter")


# ---- the step ----


async def weighed(step: Infer, live: LiveRun) -> Infer | Compact:
    """The step, or a compaction before it, where the request asks for one at the size that the context has by now."""
    run, plan = live.run, live.plan
    threshold, meter = plan.compact_threshold, plan.meter
    if threshold is None or meter is None or _is_compact(run):
        return step
    request = live.prompt.request(run)
    if not _is_near(request, threshold, meter, plan.identity.tenant):
        return step
    size = await live.signal.race(lambda: meter.count(request, plan.identity.tenant))
    if size < threshold:
        return step
    return Compact() if is_worth_it(parted(run, plan, request), plan, request, size) else step


def _is_near(request: ChatRequest, threshold: int, meter: Meter, who: str) -> bool:
    """By what the model's texts have, or by what was reported of this conversation: it may be denser than they are."""
    return meter.is_near(request, threshold - 1) or meter.estimate(request, meter.factor(request, who)) >= threshold


def _is_compact(run: Run) -> bool:
    """Whether it was compacted, or could not be, since the last turn: it is tried once."""
    marks = (mark for _, mark in reversed(run.marks) if not isinstance(mark, TurnAbandoned))
    return isinstance(next(marks, None), Compacted)


async def compact(live: LiveRun) -> AsyncGenerator[Batch, None]:
    """Sum up what was said so far. The item that holds it is shown whole, when it is there.

    A response that goes on after it goes on without it where there is no summary to be had: what then does not fit
    fails for itself.
    """
    run, plan = live.run, live.plan
    scribe = Scribe(live)
    try:
        memory = await _summed_up(run, plan, scribe)
    except DETACHED:  # whoever goes on sums it up
        raise
    except Exception as error:
        yield [Compacted(usage=scribe.usage, estimate=scribe.estimate, is_missing=True)]
        if plan.compacts or not isinstance(error, AntwortError):
            raise
        said = f"{error.code}{reason_behind(error)}"
        note(_log, logging.WARNING, "went on without compacting: there is no summary", error=said)
    else:
        mark = Compacted(usage=scribe.usage, estimate=scribe.estimate, is_missing=memory is None or UNSET)
        yield [*_shown(run, plan, memory), mark]


def _shown(run: Run, plan: Plan, memory: Memory | None) -> Batch:
    if memory is None:
        return []
    at, item = len(run.output), Compaction(id=new_id("cmp"), encrypted_content=_memories(plan).seal(memory))
    return [OutputItemAdded(output_index=at, item=item), OutputItemDone(output_index=at, item=item)]


async def _summed_up(run: Run, plan: Plan, scribe: Scribe) -> Memory | None:
    """What is left of all that was said. None where there is nothing that could be summed up, and a response to go on
    with.
    """
    whole = parted(run, plan, chat_request(run, plan))
    entries = entries_of(whole.summed)
    if not entries and not whole.is_trimmed and not plan.compacts:
        return None
    summary = await scribe.sum_up(entries, whole.said.summary, whole.room)
    return Memory(whole.instructions, summary, whole.recent, as_item(plan.request.additional, plan.credentials))


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
