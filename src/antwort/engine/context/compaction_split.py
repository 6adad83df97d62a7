"""Split a conversation for a compaction: what is summarized, what stays word for word, and whether that is worth it.

What stays never begins with a result, and no call is torn from its result.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

from antwort.api.decoding import Steps
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
from antwort.engine.history.calls import ITEMS_PER_STEP, CallIndex, CallView, result_of, with_changed_result
from antwort.engine.history.turns import last_turn_steps, since_words
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import conversation_steps, effective_history
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


def split_steps(run: Run, plan: Plan, request: ChatRequest) -> Steps[Split]:
    """Split the conversation in pieces: it may be long."""
    history, rate = effective_history(run, plan), plan.estimator.tokens_per_byte(request.model, request)

    def size(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate) + PER_MESSAGE

    instructions: list[InputItem] = [*history.instructions]
    spoken: list[InputItem] = []
    for at, item in enumerate(chain.from_iterable(history.stretches), 1):
        if is_spoken(item):
            spoken.append(item)
        elif is_instruction(item):
            instructions.append(item)
        if at % ITEMS_PER_STEP == 0:
            yield
    told = sum(message_size(each).text for each in request.messages if each.role in ("system", "developer"))
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
        budget = max(0, budget - sum((yield from _size_steps(recent, size))))
    return Split(history, distinct(instructions), summarized, recent, recent != latest, earlier, budget)


def is_spoken(item: InputItem) -> bool:
    """Return whether the user, the model or a tool has said the item."""
    return not (isinstance(item, _SILENT) or is_instruction(item) or is_trigger(item) or is_additional(item))


def _size_steps(items: Sequence[InputItem], size: ItemSize) -> Steps[list[int]]:
    sizes: list[int] = []
    for start in range(0, len(items), ITEMS_PER_STEP):
        if start:
            yield
        sizes += map(size, items[start : start + ITEMS_PER_STEP])
    return sizes


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
    without_summary = replace(request, messages=(yield from conversation_steps(history, plan)).whole())
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
    start = yield from _recent_start_steps(items, budget, size)
    before, tail = items[:start], items[start:]
    left = budget - sum((yield from _size_steps(tail, size)))
    asked = None
    if tail and not any(map(_is_question, tail)):
        asked = next((item for item in reversed(before) if _is_question(item)), None)
    kept = {id(item) for item in (yield from _open_call_steps(items, before))}
    if asked is not None and size(asked) <= max(left, budget // 2):
        kept.add(id(asked))
    head = [item for item in before if id(item) in kept]
    return () if len(head) == len(before) else tuple(before), (*head, *tail)


def _recent_start_steps(items: Sequence[InputItem], budget: int, size: ItemSize) -> Steps[int]:
    """Return where the latest turns begin: with a user message, where one fits."""
    starts = yield from start_steps(items)
    unanswered = _unanswered(items, starts)
    fitting: list[int] = []
    total, end = 0, len(items)
    for at, place in enumerate(reversed(starts), 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        total += sum((yield from _size_steps(items[place:end], size)))
        end = place
        if total > budget:
            break
        fitting.append(place)
    questions = [place for place in fitting if _is_question(items[place])]
    start = min(unanswered, min(questions or fitting, default=len(items)))
    if start > 0 or unanswered == 0:
        return start
    return min(unanswered, next((place for place in questions if place > 0), len(items)))


def start_steps(items: Sequence[InputItem]) -> Steps[list[int]]:
    """Return the places where the latest turns may begin, in pieces: outside of calls that wait for their results."""
    opened: Counter[str] = Counter()
    views = (yield from CallIndex.steps(items)).views
    results = Counter(view.call_id for view in views if view.is_answer)
    found: list[int] = []
    waiting = 0
    for place, item in enumerate(items):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
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


def _open_call_steps(items: Sequence[InputItem], before: Sequence[InputItem]) -> Steps[list[InputItem]]:
    """Return the calls before the latest turns that may still get a result, and the decisions about them.

    Calls of servers only from the last turn: they run when the client has answered its own calls. An older one that
    shows no result had one that was left out.
    """
    late = {id(item) for item in since_words(items, _MAX_ANSWERS_LATER)}
    latest = {id(item) for item in (yield from last_turn_steps(items))}
    views = (yield from CallIndex.steps(items)).views
    results = Counter(view.call_id for view in views if view.is_answer)
    found: list[InputItem] = []
    for at, view in enumerate((yield from CallIndex.steps(before)).views, 1):
        if at % ITEMS_PER_STEP == 0:
            yield
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


def short_result_steps(items: Sequence[InputItem], budget: int, size: ItemSize) -> Steps[tuple[InputItem, ...]]:
    """Return the items within the budget, as far as shortening their longest results can do that, in pieces."""
    sizes = yield from _size_steps(items, size)
    excess, results = sum(sizes) - budget, list[int]()
    if excess <= 0:
        return tuple(items)
    for place, item in enumerate(items):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
        if result_of(item) is not None:
            results.append(sizes[place])
    if not results:
        return tuple(items)
    most = max(_MIN_RESULT, _equal_share(results, sum(results) - excess))

    def fitting(item: InputItem, size: int) -> InputItem:
        if size <= most:
            return item
        return with_changed_result(item, lambda text: short_text(text, int(len(text) * (most / size))))

    found: list[InputItem] = []
    for start in range(0, len(items), ITEMS_PER_STEP):
        found += map(fitting, items[start : start + ITEMS_PER_STEP], sizes[start : start + ITEMS_PER_STEP])
        yield
    return tuple(found)


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
