"""What a compaction sums up, what it keeps word for word, and whether it is worth its price."""

from __future__ import annotations

import logging
import math

import msgspec

from antwort.api.additional_tools import is_additional
from antwort.api.items import (
    Compaction,
    InputItem,
    ItemReference,
    McpListTools,
)
from antwort.api.wire import UNSET, replace
from antwort.engine.context.compaction_item import Said, distinct, is_instruction, is_trigger
from antwort.engine.context.summarizer import longest_summary, rate_of
from antwort.engine.context.text_sizes import PER_MESSAGE, message_size, text_size, tools_size
from antwort.engine.context.trimming import trimmed
from antwort.engine.context.verbatim import divide, item_size
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.messages import all_said, messages_of
from antwort.notes import note
from antwort.providers.base import ChatMessage, ChatRequest

_log = logging.getLogger("antwort.engine")

_SHARE = 4
"""Of the context, and of the size that it is compacted at, a quarter is kept word for word at most. A summary takes
about as much of what it may take."""
_MOST_KEPT = 16_384
"""Tokens of the latest turns with all that they hold, where nobody knows the context."""
_INSTRUCTIONS = ("system", "developer")
_MUTE = (Compaction, McpListTools, ItemReference)
"""What says nothing to a model, or nothing any more."""


def talk_of(said: Said) -> list[InputItem]:
    """All that the user, the model and the tools have said."""
    items = (item for stretch in said.stretches for item in stretch)
    silent = (is_instruction, is_trigger, is_additional)
    return [item for item in items if not (isinstance(item, _MUTE) or any(is_so(item) for is_so in silent))]


class Parted(msgspec.Struct, frozen=True):
    """All that was said, parted for a compaction."""

    said: Said
    instructions: tuple[InputItem, ...]
    summed: tuple[InputItem, ...]
    """What the summary is of."""
    recent: tuple[InputItem, ...]
    """What stays, and its results no longer than there is room for them."""
    is_trimmed: bool
    room: int | None
    """Tokens that the context has for the summary; None: nobody knows."""

    def told(self, plan: Plan, summary: str) -> list[ChatMessage]:
        """What the model is told when this is done."""
        said = Said(stretches=(self.recent,), inputs=frozenset({0}), instructions=self.instructions, summary=summary)
        return messages_of(said, plan)


def parted(run: Run, plan: Plan, request: ChatRequest) -> Parted:
    said, rate = all_said(run, plan), _rate(plan, request)

    def measure(item: InputItem) -> int:
        return math.ceil(item_size(item) * rate) + PER_MESSAGE

    told = (*said.instructions, *(item for stretch in said.stretches for item in stretch if is_instruction(item)))
    room, beside = _room(plan, request), _beside(request, rate)
    left = None if room is None else max(0, room.ample - beside)
    expected = _expected(plan, math.ceil(text_size(said.summary) * rate))
    divided = divide(talk_of(said), _kept_tokens(plan, left if left is None else left - expected), measure)
    recent = trimmed(divided.recent, _most_kept(plan, beside), measure)
    if left is not None:
        left = max(0, left - sum(map(measure, recent)))
    return Parted(said, distinct(told), divided.summed, recent, recent != divided.recent, left)


def _rate(plan: Plan, request: ChatRequest) -> float:
    """Tokens of a byte in this conversation, about."""
    factor = 1.0 if plan.meter is None else plan.meter.factor(request, plan.identity.tenant)
    return rate_of(plan, plan.response.model) * factor


# ---- how much is kept ----


class Room(msgspec.Struct, frozen=True):
    """Tokens that a request may have."""

    context: int
    """Fewer than these, or there is no answer."""
    hard: int
    """Up to these, the answer that is asked for fits behind it: there are backends that refuse it otherwise."""
    ample: int
    """Up to these, there is room enough for one."""


def _room(plan: Plan, request: ChatRequest) -> Room | None:
    context = plan.capabilities.context_length
    if context is None:
        return None
    wanted = next((most for most in (request.max_tokens, request.max_completion_tokens) if most is not UNSET), 0)
    hard = context - min(wanted, context // _SHARE)
    return Room(context, hard, hard if wanted else context - min(plan.settings.reserve, context // (2 * _SHARE)))


def _beside(request: ChatRequest, rate: float) -> int:
    """Tokens of its instructions and tools, which stay."""
    told = sum(message_size(each).text for each in request.messages if each.role in _INSTRUCTIONS)
    return math.ceil((told + (0 if request.tools is UNSET else tools_size(request.tools))) * rate)


def _expected(plan: Plan, earlier: int) -> int:
    """Tokens that the summary will have, where the earlier one has so many."""
    longest = longest_summary(plan)
    return min(longest, max(earlier, longest // _SHARE))


def _kept_tokens(plan: Plan, left: int | None) -> int:
    """Tokens of the latest turns. Where so many are left for all, half of them: the next turns need room, too."""
    sizes = (plan.capabilities.context_length, plan.compact_threshold)
    most = min(plan.settings.compaction_keep, *(size // _SHARE for size in sizes if size is not None), 2**31)
    return most if left is None else max(0, min(most, left // 2))


def _most_kept(plan: Plan, beside: int) -> int:
    """Tokens of the latest turns, whatever they hold: half of the context, and no more than its instructions, tools and
    the summary leave of it.
    """
    context = plan.capabilities.context_length
    if context is None:
        return max(plan.settings.compaction_keep, _MOST_KEPT)
    return max(context // (2 * _SHARE), min(context // 2, context - beside - longest_summary(plan)))


# ---- what it is worth ----


def is_worth_it(divided: Parted, plan: Plan, request: ChatRequest, size: int) -> bool:
    """Whether a request of so many tokens is to be compacted. Instructions, tools and the latest turns stay, and where
    there is little else, the next turn would pay for it again. But where it does not fit, or leaves no room for an
    answer, whatever helps is worth it.
    """
    bare = _tokens(plan, request, size, divided.told(plan, ""))
    earlier = _tokens(plan, request, size, divided.told(plan, divided.said.summary)) - bare
    gained = size - bare - min(earlier, longest_summary(plan))
    is_much = gained >= (plan.compact_threshold or 0) // _SHARE
    room = _room(plan, request)
    if room is not None and plan.response.truncation != "auto":
        is_much = _helps(room, size, bare, bare + _expected(plan, earlier), gained) or (is_much and bare < room.context)
    if not is_much:
        note(_log, logging.DEBUG, "did not compact: too little would be gained", tokens=size, gained=gained)
    return is_much


def _helps(room: Room, size: int, bare: int, then: int, gained: int) -> bool:
    """Whether there is an answer with it, and none without, or a short one. `bare` is what is left without the summary:
    where there is no answer otherwise, it may turn out as short as need be.
    """
    if size >= room.context:
        return bare < room.context
    if size > room.hard:
        return then <= room.hard
    is_enough = then <= room.ample and gained >= (room.hard - room.ample) // _SHARE
    return size > room.ample and (is_enough or room.context - then >= 2 * (room.context - size))


def _tokens(plan: Plan, request: ChatRequest, size: int, messages: list[ChatMessage]) -> int:
    """Those of the request with these messages, where it has so many with its own."""
    assert plan.meter is not None, "what is weighed is measured"
    factor = plan.meter.factor(request, plan.identity.tenant)
    before = plan.meter.estimate(request, factor)
    return plan.meter.estimate(replace(request, messages=messages), factor) * size // max(1, before)
