"""Compact a conversation: the model summarizes its older part, and the client gets the summary sealed in an item."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from itertools import chain
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
from antwort.engine.context.compaction_item import Memory, is_trigger
from antwort.engine.context.compaction_split import is_spoken, split_steps, worth_steps
from antwort.engine.context.summarizer import Summarizer
from antwort.engine.context.summary_prompt import entry_steps
from antwort.engine.context.token_counter import size_steps
from antwort.engine.loop.fold import Run
from antwort.engine.loop.steps import Compact, Infer
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import Prompt, effective_history
from antwort.engine.prompt.declared_tools import as_item
from antwort.errors import AntwortError, InvalidField
from antwort.event_loop import in_turns
from antwort.ids import new_id
from antwort.notes import note, reason_behind
from antwort.providers.base import Provider
from antwort.storage.run_log import DETACHED

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")

_STANDARD = (Message, FunctionCall, FunctionCallOutput, Reasoning)


# ---- the request ----


def asks_to_compact(request: CreateRequest) -> bool:
    """Return whether the request wants a compaction and no answer."""
    last = request.input[-1] if request.input else None
    return isinstance(request, CompactRequest) or (isinstance(last, OpaqueItem) and is_trigger(last))


def without_tools(request: CreateRequest) -> CreateRequest:
    """Return the request without tools: a compaction calls none, and asks no server for its tools."""
    return replace(request, tools=(), additional=(), tool_choice="auto", allowed_tools=None)


def check_compacts(plan: Plan) -> None:
    """Refuse to compact an empty conversation."""
    history = effective_history(Run(plan.response), plan)
    if not history.summary and not any(map(is_spoken, chain.from_iterable(history.stretches))):
        raise InvalidField("input", "there is nothing to compact.", code="missing_required_parameter")


# ---- the step ----


async def compact_if_due(step: Infer, live: LiveRun, prompt: Prompt) -> Infer | Compact:
    """Return a compaction before the step, where the request asks for one at the size that the context has by now."""
    run, plan = live.run, live.plan
    threshold, estimator = plan.compact_threshold, plan.estimator
    if threshold is None or _was_compacted(run):
        return step
    request = await in_turns(prompt.request_steps(run))
    if not estimator.is_near(request, await in_turns(size_steps(request)), threshold - 1):
        return step
    tokens = await live.signal.race(lambda: estimator.count(request))
    if tokens < threshold:
        return step
    divided = await in_turns(split_steps(run, plan, request))
    return Compact() if await in_turns(worth_steps(divided, plan, request, tokens)) else step


def _was_compacted(run: Run) -> bool:
    """Return whether a compaction was tried since the last turn: it is tried once."""
    marks = (mark for _, mark in reversed(run.marks) if not isinstance(mark, TurnAbandoned))
    return isinstance(next(marks, None), Compacted)


async def compact(live: LiveRun, provider: Provider) -> AsyncGenerator[Batch, None]:
    """Summarize the conversation, and yield the events of the compaction item.

    Without a summary, a response goes on uncompacted: what does not fit then fails by itself.
    """
    run, plan = live.run, live.plan
    summarizer = Summarizer(live, provider)
    try:
        memory = await _compacted(run, plan, summarizer)
    except DETACHED:  # another process owns the run now, and compacts
        raise
    except Exception as error:
        yield [Compacted(usage=summarizer.usage, estimate=summarizer.estimate, is_missing=True)]
        if plan.compacts or not isinstance(error, AntwortError):
            raise
        reason = f"{error.code}{reason_behind(error)}"
        note(_log, logging.WARNING, "went on without compacting: there is no summary", error=reason)
        return
    batch = Batch()
    if memory is not None:
        at, item = len(run.output), Compaction(id=new_id("cmp"), encrypted_content=plan.sealed.memories.seal(memory))
        batch = [OutputItemAdded(output_index=at, item=item), OutputItemDone(output_index=at, item=item)]
    missing = memory is None or UNSET
    yield [*batch, Compacted(usage=summarizer.usage, estimate=summarizer.estimate, is_missing=missing)]


async def _compacted(run: Run, plan: Plan, summarizer: Summarizer) -> Memory | None:
    """Return what is left of the conversation, or None where nothing can be summarized and the response goes on."""
    whole = await in_turns(split_steps(run, plan, await in_turns(Prompt(plan).request_steps(run))))
    entries = await in_turns(entry_steps(whole.summarized))
    if not entries and not whole.is_shortened and not plan.compacts:
        return None
    summary = await summarizer.summarize(entries, whole.history.summary, whole.budget)
    return Memory(whole.instructions, summary, whole.recent, as_item(plan.request.additional, plan.sealed))


# ---- the answer to a compact request ----


def compacted_response(response: Response, plan: Plan) -> CompactedResponse:
    """Return the answer to a `CompactRequest`: the latest turns, and the compaction item last.

    Some clients take only the last item, so the latest turns are sealed in it as well.
    """
    (item,) = (item for item in response.output if isinstance(item, Compaction))
    as_sent = {each.id: each for each in plan.request.input if isinstance(each, Reasoning)}
    recent = (as_sent.get(each.id, each) for each in plan.sealed.memories.opened(item).recent)
    shown = [each for each in recent if _may_show(each, strict=plan.settings.strict)]
    return CompactedResponse(
        id=response.id, created_at=response.created_at, output=(*shown, item), usage=response.usage or Usage()
    )


def _may_show(item: InputItem, *, strict: bool) -> TypeGuard[OutputItem]:
    return isinstance(item, _STANDARD) if strict else not isinstance(item, OpaqueItem | ItemReference)
