"""Split a conversation for a compaction: what is summarized, what stays word for word, and whether that is worth it.

What stays never begins with a result, and no call is torn from its result.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.decoding import at_once
from antwort.api.items import (
    Compaction,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    OpaqueItem,
    Reasoning,
    is_additional,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.compaction_item import EffectiveHistory, distinct, is_instruction, is_trigger
from antwort.engine.context.message_text import recap_of, short_text
from antwort.engine.context.summarizer import max_summary_tokens
from antwort.engine.context.token_counter import PER_MESSAGE, message_size, text_size, tools_size
from antwort.engine.context.window import max_answer
from antwort.engine.history.calls import CallView, calls_in, result_of, with_changed_result
from antwort.engine.history.turns import last_turn_steps, since_words
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import effective_history, messages_of
from antwort.notes import note
from antwort.providers.base import ChatRequest
from antwort.tools.base import Output

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


def split(run: Run, plan: Plan, request: ChatRequest) -> Split:
    history, rate = effective_history(run, plan), plan.estimator.tokens_per_byte(request.model)

    def size(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate) + PER_MESSAGE

    items = (item for stretch in history.stretches for item in stretch)
    instructions = distinct((*history.instructions, *filter(is_instruction, items)))
    told = sum(message_size(each).text for each in request.messages if each.role in ("system", "developer"))
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
    summarized, latest = split_items(spoken_items(history), wanted, size)
    recent = with_short_results(latest, most, size)
    if budget is not None:
        budget = max(0, budget - sum(map(size, recent)))
    return Split(history, instructions, summarized, recent, recent != latest, earlier, budget)


def spoken_items(history: EffectiveHistory) -> list[InputItem]:
    """Return what the user, the model and the tools have said."""
    items = (item for stretch in history.stretches for item in stretch if not isinstance(item, _SILENT))
    return [item for item in items if not (is_instruction(item) or is_trigger(item) or is_additional(item))]


def _expected_summary(plan: Plan, earlier: int) -> int:
    """Return the tokens that the summary will have, where the earlier one has so many."""
    longest = max_summary_tokens(plan)
    return min(longest, max(earlier, longest // _SHARE))


def _answer_reserve(plan: Plan, request: ChatRequest, context: int) -> int:
    """Return the tokens of the context that are reserved for the answer."""
    wanted = max_answer(request)
    return min(wanted, context // _SHARE) if wanted else min(plan.settings.reserve, context // (2 * _SHARE))


def is_worth_it(divided: Split, plan: Plan, request: ChatRequest, tokens: int) -> bool:
    """Return whether to compact a request of so many tokens: whether that gains a quarter of the threshold.

    Instructions, tools and the latest turns stay. Where there is little else, the next turn would pay for a compaction
    again. But where the context leaves too little for the answer, it is enough if the compaction leaves twice as much;
    and where the request does not fit, if it fits then.
    """
    context, threshold = plan.capabilities.context_length, plan.compact_threshold or 0
    history = EffectiveHistory(stretches=(divided.recent,), inputs=frozenset({0}), instructions=divided.instructions)
    without_summary = replace(request, messages=messages_of(history, plan))
    estimator = plan.estimator
    bare = estimator.estimate(without_summary) * tokens // max(1, estimator.estimate(request))
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


def split_items(
    items: Sequence[InputItem], budget: int, size: ItemSize
) -> tuple[tuple[InputItem, ...], tuple[InputItem, ...]]:
    """Return what is summarized, and the latest turns that stay: as many as fit the budget, and at least what the model
    has not answered yet.

    Calls that the client may still answer stay, and so does the user's message before the latest turns, if it fits. Of
    a conversation that fits whole, the last exchange stays: a summary was asked for. Of a single one, nothing does.
    """
    start = _start(items, budget, size)
    before, tail = items[:start], items[start:]
    left = budget - sum(map(size, tail))
    asked = None
    if tail and not any(map(_is_question, tail)):
        asked = next((item for item in reversed(before) if _is_question(item)), None)
    kept = {id(item) for item in _open_calls(items, before)}
    if asked is not None and size(asked) <= max(left, budget // 2):
        kept.add(id(asked))
    head = [item for item in before if id(item) in kept]
    return () if len(head) == len(before) else tuple(before), (*head, *tail)


def _start(items: Sequence[InputItem], budget: int, size: ItemSize) -> int:
    """Return where the latest turns begin: with a user message, where one fits."""
    starts = starts_of(items)
    unanswered = _unanswered(items, starts)
    fitting: list[int] = []
    total, end = 0, len(items)
    for place in reversed(starts):
        total += sum(map(size, items[place:end]))
        end = place
        if total > budget:
            break
        fitting.append(place)
    questions = [place for place in fitting if _is_question(items[place])]
    start = min(unanswered, min(questions or fitting, default=len(items)))
    if start > 0 or unanswered == 0:
        return start
    return min(unanswered, next((place for place in questions if place > 0), len(items)))


def starts_of(items: Sequence[InputItem]) -> list[int]:
    """Return the places where the latest turns may begin: outside of calls that wait for their results."""
    opened: Counter[str] = Counter()
    results = Counter(view.call_id for view in calls_in(items) if view.is_answer)
    found: list[int] = []
    waiting = 0
    for place, item in enumerate(items):
        view = CallView.of(item)
        follows_reasoning = place > 0 and isinstance(items[place - 1], Reasoning)
        is_answer = view is not None and (view.is_answer or view.part == "decision")
        if not waiting and not is_answer and not follows_reasoning:
            found.append(place)
        if view is None:
            continue
        if view.is_answer:
            results[view.call_id] -= 1
            if opened[view.call_id] > 0:
                opened[view.call_id] -= 1
                waiting -= 1
        elif view.is_open and results[view.call_id] > opened[view.call_id]:
            opened[view.call_id] += 1
            waiting += 1
    return found


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


def _open_calls(items: Sequence[InputItem], before: Sequence[InputItem]) -> list[InputItem]:
    """Return the calls before the latest turns that may still get a result, and the decisions about them.

    Calls of servers only from the last turn: they run when the client has answered its own calls. An older one that
    shows no result had one that was left out.
    """
    late = {id(item) for item in since_words(items, _MAX_ANSWERS_LATER)}
    latest = {id(item) for item in at_once(last_turn_steps(items))}
    results = Counter(view.call_id for view in calls_in(items) if view.is_answer)
    found: list[InputItem] = []
    for view in calls_in(before):
        if view.is_open:
            results[view.call_id] -= 1
            if results[view.call_id] < 0 and id(view.item) in (
                latest if view.owner == "server" and view.part == "call" else late
            ):
                found.append(view.item)
    requests = {item.id for item in found if isinstance(item, McpApprovalRequest)}
    found += [item for item in before if isinstance(item, McpApprovalResponse) and item.approval_request_id in requests]
    return found


# ---- shorter results ----


def with_short_results(items: Sequence[InputItem], budget: int, size: ItemSize) -> tuple[InputItem, ...]:
    """Return the items within the budget, as far as shortening their longest results can do that."""
    sizes = [size(item) for item in items]
    excess = sum(sizes) - budget
    results = [size for item, size in zip(items, sizes, strict=True) if result_of(item) is not None]
    if excess <= 0 or not results:
        return tuple(items)
    most = max(_MIN_RESULT, _equal_share(results, sum(results) - excess))

    def fitting(item: InputItem, size: int) -> InputItem:
        if size <= most:
            return item
        return with_changed_result(item, lambda text: short_text(text, int(len(text) * (most / size))))

    return tuple(map(fitting, items, sizes))


def _equal_share(sizes: Sequence[int], budget: int) -> int:
    """Return what each result may take, so that all fit: those that take less leave the rest to the others."""
    for at, size in enumerate(sorted(sizes)):
        share = budget // (len(sizes) - at)
        if size > share:
            return share
        budget -= size
    return max(sizes)


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
