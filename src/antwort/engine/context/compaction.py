"""Compact a conversation: the model summarizes its older part, and the client gets the summary sealed in an item.

The latest turns stay word for word. They never begin with a result, and no call is torn from its result.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import chain, compress
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import msgspec

from antwort.api.decoding import Steps
from antwort.api.events import Batch, Compacted, OutputItemAdded, OutputItemDone, TurnAbandoned
from antwort.api.items import (
    Compaction,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    OpaqueItem,
    OutputItem,
    Reasoning,
    is_additional,
)
from antwort.api.requests import CompactRequest, CreateRequest
from antwort.api.responses import CompactedResponse, Response, Usage
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.compaction_item import EffectiveHistory, Memory, distinct, is_instruction, is_trigger
from antwort.engine.context.message_text import INSTRUCTIONS, recap_of, short_text
from antwort.engine.context.summarizer import Summarizer, entry_steps, max_summary_tokens
from antwort.engine.context.token_counter import PER_MESSAGE, message_size, size_steps, text_size, tools_size
from antwort.engine.context.window import max_answer
from antwort.engine.history.calls import CallView, map_steps, result_of, with_changed_result
from antwort.engine.history.turns import last_turn_steps, since_words
from antwort.engine.loop.fold import Run
from antwort.engine.loop.steps import Compact, Infer
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import Prompt, conversation_steps, effective_history
from antwort.engine.prompt.declared_tools import as_item
from antwort.errors import AntwortError, InvalidField
from antwort.event_loop import in_turns
from antwort.ids import new_id
from antwort.notes import note, reason_behind
from antwort.providers.base import ChatRequest, Provider
from antwort.storage.run_log import DETACHED
from antwort.tools.base import Output

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_log = logging.getLogger("antwort.engine")

ItemSize: TypeAlias = Callable[[InputItem], int]
"""The size of an item in the unit of the budget."""

_SHARE = 4
"""At most a quarter of the context, and of the size that it is compacted at, stays word for word. A summary is expected
to take a quarter of its maximum."""
_MAX_RECENT = 16_384
"""Tokens of the latest turns with all their results, where the context is unknown."""
_MIN_RESULT = 32
"""What a result keeps in any case, in the unit of the budget."""
_MAX_ANSWERS_LATER = 2
"""A call that has no result after the model has ended so many answers in words gets none any more."""
_ATTACHMENT_BYTES = 4096
"""The size of a picture or a file: its bytes say little about its tokens."""
_SILENT = (Compaction, McpListTools, ItemReference)
"""Items that tell the model nothing, or nothing any more."""
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


# ---- the split ----


class Split(msgspec.Struct, frozen=True):
    """A conversation, split for a compaction. Sizes are in tokens."""

    history: EffectiveHistory
    instructions: tuple[InputItem, ...]
    summarized: tuple[InputItem, ...]
    recent: tuple[InputItem, ...]
    """The latest turns, with results shortened to the budget for them."""
    is_shortened: bool
    earlier: int
    """The size of the earlier summary."""
    budget: int | None
    """The largest size of the summary; None: the context is unknown."""


def split_steps(run: Run, plan: Plan, request: ChatRequest) -> Steps[Split]:
    """Split the conversation in pieces: it may be long."""
    history, rate = effective_history(run, plan), plan.estimator.rate(request.model, request)

    def size(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate) + PER_MESSAGE

    items = [*chain.from_iterable(history.stretches)]
    are_spoken = yield from map_steps(is_spoken, items)
    spoken = [*compress(items, are_spoken)]
    instructions = (*history.instructions, *filter(is_instruction, items))
    told = sum(message_size(each).text for each in request.messages if each.role in INSTRUCTIONS)
    yield
    fixed = math.ceil((told + tools_size(request)) * rate)  # instructions and tools stay
    earlier = math.ceil(text_size(recap_of(history.summary)) * rate) if history.summary else 0
    context, keep, budget = plan.capabilities.context_length, plan.settings.compaction_keep, None
    sizes = (keep, context and context // _SHARE, plan.compact_threshold and plan.compact_threshold // _SHARE)
    wanted, most = min(size for size in sizes if size is not None), max(keep, _MAX_RECENT)
    if context is not None:
        budget = max(0, context - _answer_reserve(plan, request, context) - fixed)
        # At most half of what is left: the next turns must fit as well.
        wanted = max(0, min(wanted, (budget - _expected_summary(plan, earlier)) // 2))
        most = max(context // (2 * _SHARE), min(context // 2, context - fixed - max_summary_tokens(plan)))
    summarized, latest = yield from split_item_steps(spoken, wanted, size)
    recent = yield from short_result_steps(latest, most, size)
    if budget is not None:
        budget = max(0, budget - sum((yield from map_steps(size, recent))))
    return Split(history, distinct(instructions), summarized, recent, recent != latest, earlier, budget)


def is_spoken(item: InputItem) -> bool:
    """Return whether the user, the model or a tool has said the item."""
    return not (isinstance(item, _SILENT) or is_instruction(item) or is_trigger(item) or is_additional(item))


def _expected_summary(plan: Plan, earlier: int) -> int:
    """Return the tokens that the summary will have, where the earlier one has so many."""
    longest = max_summary_tokens(plan)
    return min(longest, max(earlier, longest // _SHARE))


def _answer_reserve(plan: Plan, request: ChatRequest, context: int) -> int:
    """Return the tokens of the context that are reserved for the answer."""
    wanted = max_answer(request)
    return min(wanted, context // _SHARE) if wanted else min(plan.settings.reserve, context // (2 * _SHARE))


def worth_steps(divided: Split, plan: Plan, request: ChatRequest, tokens: int) -> Steps[bool]:
    """Return whether to compact a request of so many tokens, in pieces: whether that gains a quarter of the threshold.

    Instructions, tools and the latest turns stay. Where there is little else, the next turn would pay for a compaction
    again. But where the context leaves too little for the answer, it is enough if the compaction leaves twice as much;
    and where the request does not fit, if it fits then.
    """
    context, threshold = plan.capabilities.context_length, plan.compact_threshold or 0
    history = EffectiveHistory(stretches=(divided.recent,), inputs=frozenset({0}), instructions=divided.instructions)
    without_summary = replace(request, messages=(yield from conversation_steps(history, plan)).messages)
    estimator = plan.estimator
    bare = estimator.estimate(without_summary, request)
    yield
    bare = bare * tokens // max(1, estimator.estimate(request))
    gained = tokens - bare - min(divided.earlier, max_summary_tokens(plan))
    is_worth = gained >= threshold // _SHARE
    if context is not None and plan.response.truncation != "auto":
        ample = context - _answer_reserve(plan, request, context)
        most = ample if max_answer(request) else context  # some backends refuse a maximum that does not fit
        left = most - bare - _expected_summary(plan, divided.earlier)
        leaves_more = tokens > ample and left >= max(0, 2 * (most - tokens))
        is_worth = leaves_more or (bare < context and (is_worth or tokens >= context))
    if not is_worth:
        note(_log, logging.DEBUG, "did not compact: too little would be gained", tokens=tokens, gained=gained)
    return is_worth


# ---- the latest turns ----


def split_item_steps(
    items: Sequence[InputItem], budget: int, size: ItemSize
) -> Steps[tuple[tuple[InputItem, ...], tuple[InputItem, ...]]]:
    """Return what is summarized, and the latest turns that stay: as many as fit the budget, and at least what the model
    has not answered yet.

    Calls that the client may still answer stay, and so does the user's message before the latest turns, if it fits. Of
    a conversation that fits whole, the last exchange stays: a summary was asked for. Of a single one, nothing does.
    """
    sizes = yield from map_steps(size, items)
    starts, open_calls = yield from divided_steps(items)
    start = _recent_start(items, sizes, starts, budget)
    kept = {place for place in open_calls if place < start}
    requests = {item.id for place in kept if isinstance(item := items[place], McpApprovalRequest)}
    questions: list[int] = []
    for place, item in enumerate(items):
        if isinstance(item, McpApprovalResponse) and item.approval_request_id in requests and place < start:
            kept.add(place)
        elif _is_question(item):
            questions.append(place)
    if start < len(items) and questions and questions[-1] < start:
        left = budget - sum(sizes[start:])
        if sizes[questions[-1]] <= max(left, budget // 2):
            kept.add(questions[-1])
    summarized = () if len(kept) == start else tuple(items[:start])
    return summarized, (*(items[place] for place in sorted(kept)), *items[start:])


def _recent_start(items: Sequence[InputItem], sizes: Sequence[int], starts: Sequence[int], budget: int) -> int:
    """Return where the latest turns begin: with a user message, where one fits."""
    unanswered = _unanswered(items, starts)
    fitting: list[int] = []
    left, end = budget, len(items)
    for place in reversed(starts):
        left -= sum(sizes[place:end])
        end = place
        if left < 0:
            break
        fitting.append(place)
    questions = [place for place in fitting if _is_question(items[place])]
    start = min(unanswered, min(questions or fitting, default=len(items)))
    if start > 0 or unanswered == 0:
        return start
    return min(unanswered, next((place for place in questions if place > 0), len(items)))


def divided_steps(items: Sequence[InputItem]) -> Steps[tuple[list[int], list[int]]]:
    """Return the places where the latest turns may begin, outside of calls that wait for their results, and those of
    the calls that may still get a result, in pieces.

    Calls of servers only from the last turn: they run when the client has answered its own calls. An older one that
    shows no result had one that was left out.
    """
    views = yield from map_steps(CallView.of, items)
    late = len(items) - len(since_words(items, _MAX_ANSWERS_LATER))
    latest = len(items) - len((yield from last_turn_steps(items)))
    calls: dict[str, deque[int]] = defaultdict(deque)
    results: dict[str, deque[int]] = defaultdict(deque)
    """Where calls wait for their results and, as clients may send them in any order, results for their calls."""
    pairs: dict[int, int] = {}
    """From the place of a call or result, whichever comes first, to that of the other."""
    answered_calls: set[int] = set()
    for place, view in enumerate(views):
        if view is None or not (view.is_open or view.is_answer):
            continue
        same, other = (calls, results) if view.is_open else (results, calls)
        if other[view.call_id]:
            first = other[view.call_id].popleft()
            pairs[first] = place
            answered_calls.add(place if view.is_open else first)
        else:
            same[view.call_id].append(place)
    yield
    starts: list[int] = []
    open_calls: list[int] = []
    answered = -1
    """Where the last of the results of all calls so far stands, or the call of a result that came before it."""
    for place, view in enumerate(views):
        is_first = view is None or not (view.is_answer or view.part == "decision")
        follows_reasoning = place > 0 and isinstance(items[place - 1], Reasoning)
        if place > answered and is_first and not follows_reasoning:
            starts.append(place)
        answered = max(answered, pairs.get(place, -1))
        if view is not None and view.is_open and place not in answered_calls:
            is_servers = view.owner == "server" and view.part == "call"
            if place >= (latest if is_servers else late):
                open_calls.append(place)
    return starts, open_calls


def _unanswered(items: Sequence[InputItem], starts: Sequence[int]) -> int:
    """Return where that begins which the model has not answered: the last user messages, or the last calls."""
    if not items or (isinstance(items[-1], Message) and items[-1].role == "assistant"):
        return len(items)
    start = len(items)
    while start and _is_question(items[start - 1]):
        start -= 1
    latest = start if start < len(items) else start - 1
    return max((place for place in starts if place <= latest), default=0)


def _is_question(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


# ---- shorter results ----


def short_result_steps(items: Sequence[InputItem], budget: int, size: ItemSize) -> Steps[tuple[InputItem, ...]]:
    """Return the items within the budget, as far as shortening their longest results can do that, in pieces."""
    sizes = yield from map_steps(size, items)
    excess = sum(sizes) - budget
    if excess <= 0:
        return tuple(items)
    found = yield from map_steps(result_of, items)
    results = [size for size, result in zip(sizes, found, strict=True) if result is not None]
    most = max(_MIN_RESULT, _equal_share(results, sum(results) - excess))

    def fitting(pair: tuple[InputItem, int]) -> InputItem:
        item, size = pair
        if size <= most:
            return item
        return with_changed_result(item, lambda text: short_text(text, int(len(text) * (most / size))))

    return tuple((yield from map_steps(fitting, [*zip(items, sizes, strict=True)])))


def _equal_share(sizes: Sequence[int], budget: int) -> int:
    """Return what each result may take, so that all fit: those that take less leave the rest to the others."""
    for at, size in enumerate(sorted(sizes)):
        share = budget // (len(sizes) - at)
        if size > share:
            return share
        budget -= size
    return max(sizes, default=0)


# ---- the size of an item ----


def item_size(item: InputItem) -> int:
    """Return the bytes that the model reads; those of a part that is no text are bounded."""
    match item:
        case Message():
            return sum(map(_part_size, item.content))
        case FunctionCallOutput() | CustomToolCallOutput() if not isinstance(item.output, str):
            return sum(map(_part_size, item.output))
        case McpCall() if (result := result_of(item)) is not None:
            return len(encode(replace(item, output=None, error=None, content=UNSET))) + _result_size(result)
        case OpaqueItem() if (result := result_of(item)) is not None:
            return _result_size(result)
    return len(encode(item))


def _result_size(result: Output) -> int:
    return len(result.encode()) if isinstance(result, str) else sum(map(_part_size, result))


def _part_size(part: msgspec.Struct) -> int:
    text = getattr(part, "text", None)
    return len(text.encode()) if isinstance(text, str) else min(len(encode(part)), _ATTACHMENT_BYTES)
