"""Split a conversation for a compaction: what is summarized, what stays word for word, and whether that is worth it.

What stays never begins with a result, and no call is torn from its result.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
    ResultPart,
    ToolError,
    is_additional,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.compaction_item import Said, distinct, is_instruction, is_trigger
from antwort.engine.context.message_text import short_text
from antwort.engine.context.summarizer import longest_summary
from antwort.engine.context.token_counter import PER_MESSAGE, message_size, text_size, tools_size
from antwort.engine.history.calls import CallView, calls_in, result_of, with_result
from antwort.engine.history.turns import last_turn_steps, since_words
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import all_said, messages_of
from antwort.notes import note
from antwort.providers.base import ChatMessage, ChatRequest
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
    """A conversation, split for a compaction."""

    said: Said
    instructions: tuple[InputItem, ...]
    summarized: tuple[InputItem, ...]
    recent: tuple[InputItem, ...]
    """The latest turns, with results shortened to the room for them."""
    is_shortened: bool
    room: int | None
    """Tokens that the context has for the summary; None: unknown."""

    def messages(self, plan: Plan, summary: str) -> list[ChatMessage]:
        """Return the messages after the compaction."""
        said = Said(stretches=(self.recent,), inputs=frozenset({0}), instructions=self.instructions, summary=summary)
        return messages_of(said, plan)


def split(run: Run, plan: Plan, request: ChatRequest) -> Split:
    said, rate = all_said(run, plan), plan.meter.tokens_per_byte(request.model, request)

    def size(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate) + PER_MESSAGE

    items = (item for stretch in said.stretches for item in stretch)
    instructions = distinct((*said.instructions, *filter(is_instruction, items)))
    told = sum(message_size(each).text for each in request.messages if each.role in ("system", "developer"))
    beside = math.ceil((told + tools_size(request)) * rate)  # instructions and tools stay
    room = room_of(plan, request)
    left = None if room is None else max(0, room.ample - beside)
    expected = _expected_summary(plan, math.ceil(text_size(said.summary) * rate))
    budget = _recent_budget(plan, left if left is None else left - expected)
    summarized, latest = split_items(talk_of(said), budget, size)
    recent = with_short_results(latest, _max_recent(plan, beside), size)
    if left is not None:
        left = max(0, left - sum(map(size, recent)))
    return Split(said, instructions, summarized, recent, recent != latest, left)


def talk_of(said: Said) -> list[InputItem]:
    """Return what the user, the model and the tools have said."""
    items = (item for stretch in said.stretches for item in stretch if not isinstance(item, _SILENT))
    return [item for item in items if not (is_instruction(item) or is_trigger(item) or is_additional(item))]


# ---- how much stays ----


class Room(msgspec.Struct, frozen=True):
    """Tokens that a request may have."""

    context: int
    """With as many there is no answer."""
    hard: int
    """Up to these, the maximum that is set for the answer fits: some backends refuse more."""
    ample: int
    """Up to these, there is room enough for an answer."""


def room_of(plan: Plan, request: ChatRequest) -> Room | None:
    context = plan.capabilities.context_length
    if context is None:
        return None
    wanted = next((most for most in (request.max_tokens, request.max_completion_tokens) if most is not UNSET), 0)
    hard = context - min(wanted, context // _SHARE)
    return Room(context, hard, hard if wanted else context - min(plan.settings.reserve, context // (2 * _SHARE)))


def _expected_summary(plan: Plan, earlier: int) -> int:
    """Return the tokens that the summary will have, where the earlier one has so many."""
    longest = longest_summary(plan)
    return min(longest, max(earlier, longest // _SHARE))


def _recent_budget(plan: Plan, left: int | None) -> int:
    """Return the tokens of the latest turns: at most half of what is left, as the next turns need room, too."""
    sizes = (plan.capabilities.context_length, plan.compact_threshold)
    most = min(plan.settings.compaction_keep, *(size // _SHARE for size in sizes if size is not None), 2**31)
    return most if left is None else max(0, min(most, left // 2))


def _max_recent(plan: Plan, beside: int) -> int:
    """Return the most tokens of the latest turns, even if the model has not answered them yet."""
    context = plan.capabilities.context_length
    if context is None:
        return max(plan.settings.compaction_keep, _MAX_RECENT)
    return max(context // (2 * _SHARE), min(context // 2, context - beside - longest_summary(plan)))


# ---- whether it is worth it ----


def is_worth_it(divided: Split, plan: Plan, request: ChatRequest, tokens: int) -> bool:
    """Return whether to compact a request of so many tokens.

    Instructions, tools and the latest turns stay. Where there is little else, the next turn would pay for a compaction
    again. But where the request does not fit, or leaves no room for an answer, whatever helps is worth it.
    """
    meter = plan.meter
    estimate = max(1, meter.estimate(request))

    def tokens_with(summary: str) -> int:
        after = replace(request, messages=divided.messages(plan, summary))
        return meter.estimate(after, request) * tokens // estimate

    bare = tokens_with("")
    earlier = tokens_with(divided.said.summary) - bare
    gained = tokens - bare - min(earlier, longest_summary(plan))
    is_much = gained >= (plan.compact_threshold or 0) // _SHARE
    room = room_of(plan, request)
    if room is not None and plan.response.truncation != "auto":
        after = bare + _expected_summary(plan, earlier)
        is_much = _helps(room, tokens, bare, after, gained) or (is_much and bare < room.context)
    if not is_much:
        note(_log, logging.DEBUG, "did not compact: too little would be gained", tokens=tokens, gained=gained)
    return is_much


def _helps(room: Room, before: int, bare: int, after: int, gained: int) -> bool:
    """Return whether there is an answer with the compaction, and none or a short one without.

    `bare` is the size without a summary: where there is no answer otherwise, a summary may be as short as need be.
    """
    if before >= room.context:
        return bare < room.context
    if before > room.hard:
        return after <= room.hard
    is_enough = after <= room.ample and gained >= (room.hard - room.ample) // _SHARE
    return before > room.ample and (is_enough or room.context - after >= 2 * (room.context - before))


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
    room = budget - sum(map(size, tail))
    asked = None
    if tail and not any(map(_is_question, tail)):
        asked = next((item for item in reversed(before) if _is_question(item)), None)
    kept = {id(item) for item in _open_calls(items, before)}
    if asked is not None and size(asked) <= max(room, budget // 2):
        kept.add(id(asked))
    head = [item for item in before if id(item) in kept]
    return () if len(head) == len(before) else tuple(before), (*head, *tail)


def _start(items: Sequence[InputItem], budget: int, size: ItemSize) -> int:
    """Return where the latest turns begin: with a user message, where one fits."""
    starts = starts_of(items)
    unanswered = _unanswered(items, starts)
    fitting = [*_fitting(items, starts, budget, size)]
    questions = [place for place in fitting if _is_question(items[place])]
    start = min(unanswered, min(questions or fitting, default=len(items)))
    if start > 0 or unanswered == 0:
        return start
    return min(unanswered, next((place for place in questions if place > 0), len(items)))


def _fitting(items: Sequence[InputItem], starts: Sequence[int], budget: int, size: ItemSize) -> Iterator[int]:
    """Yield the places from which on all fits, the last first."""
    total, end = 0, len(items)
    for place in reversed(starts):
        total += sum(map(size, items[place:end]))
        end = place
        if total > budget:
            return
        yield place


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
    pairs = zip(items, sizes, strict=True)
    return tuple(_with_short_result(item, most / size) if size > most else item for item, size in pairs)


def _equal_share(sizes: Sequence[int], room: int) -> int:
    """Return what each result may take, so that all fit: those that take less leave the rest to the others."""
    for at, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - at)
        if size > share:
            return share
        room -= size
    return max(sizes)


def _with_short_result(item: InputItem, share: float) -> InputItem:
    """Return the item with about this share of its result's text."""

    def short(text: str) -> str:
        return short_text(text, int(len(text) * share))

    def short_parts(parts: Sequence[ResultPart]) -> tuple[ResultPart, ...]:
        return tuple(replace(part, text=short(part.text)) if hasattr(part, "text") else part for part in parts)

    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            output = item.output
            return replace(item, output=short(output) if isinstance(output, str) else short_parts(output))
        case McpCall():
            error = item.error
            if isinstance(error, ToolError):
                error = replace(error, content=tuple(replace(part, text=short(part.text)) for part in error.content))
            elif error is not None:
                error = short(error)
            return replace(
                item,
                output=None if item.output is None else short(item.output),
                error=error,
                content=UNSET if item.content is UNSET else short_parts(item.content),
            )
        case OpaqueItem() if isinstance(result := result_of(item), str):
            return with_result(item, short(result))
        case _:
            return item


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
