"""Truncate chat messages to a budget: long results are shortened first, then the oldest messages are left out. Pure.

Truncation is derived anew for each inference from the whole conversation. A backend caches the beginning of a prompt,
so two inferences in a row must be cut at the same place: messages are cut only where the size of what stands before
passes a multiple of a step, a power of two. More is left out than necessary, and the cut stays until that much has been
added. The last results stand at the end, where no cache is lost: they take all that is left of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from antwort.api.decoding import Steps
from antwort.engine.context.message_text import (
    INSTRUCTIONS,
    Pictures,
    Recap,
    bare,
    followed,
    joined,
    missing_words,
    preceded,
    shortened,
    split_recap,
)
from antwort.engine.history.calls import ITEMS_PER_STEP
from antwort.providers.base import ChatMessage

MessageSize: TypeAlias = Callable[[ChatMessage], int]
"""The size of a message in the unit of the budget: always the same for the same message."""

_MIN_STEP, _MIN_RESULT = 64, 16
_RESULT_LIMITS = (14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
"""Sizes of old results in halves of a step. All old results get shorter before any gets shorter still."""
_LAST_RESULT_STEPS = 64
"""The size of the last results is found to one part in so many of a step."""
_ALWAYS = -1
"""The unit of messages that are never left out."""


class Truncated(msgspec.Struct, frozen=True):
    messages: list[ChatMessage]
    size: int
    """More than the budget where even the least that makes sense does not fit."""
    left_out: int = 0
    shortened: int = 0


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How much is cut. Units are numbered from the oldest."""

    first: int = 0
    """Units before this one are left out, except for the user's last messages before it."""
    user_limit: int = 0
    """The largest size of these, where they are several in a row. The last is kept whatever its size."""
    limits: tuple[tuple[int, int], ...] = ()
    """Pairs of a unit and a size: results before the unit have at most this size. The first pair counts."""
    is_bare: bool = False
    """Whether the last unit loses its reasoning and pictures."""


def truncation_steps(messages: Sequence[ChatMessage], budget: int, size: MessageSize) -> Steps[Truncated]:
    """Return the messages within the budget, all of them where they fit, in pieces.

    Kept in any case: system and developer messages, the summary of a compaction, the last user message, and the last
    answer with its calls and what is left of their results. No call is torn from its results. Words for the model stand
    where something is missing.
    """
    conversation = yield from _Conversation.steps(messages, size)
    whole = yield from conversation.version_steps(Cut())
    if whole.size <= budget or not conversation.starts:
        return whole
    step = 1 << max(budget // 4, _MIN_STEP).bit_length() - 1  # a quarter to an eighth: small changes leave it as it is
    cuts = yield from conversation.cut_steps(step)
    at = yield from conversation.first_steps(cuts, lambda size: size <= budget)
    cut = cuts[min(at, len(cuts) - 1)]
    *others, (before, last_limit) = cut.limits
    if before == len(conversation.starts) and not cut.is_bare:  # let the last results fill the budget
        limits = range(last_limit, budget, max(1, step // _LAST_RESULT_STEPS))
        wider = [replace(cut, limits=(*others, (before, limit))) for limit in limits]
        at = yield from conversation.first_steps(wider, lambda size: size > budget)
        cut = wider[at - 1] if at else cut
    return (yield from conversation.version_steps(cut))


class _Conversation:
    """The messages of a conversation in units, and its shorter versions.

    A unit is what is kept or left out together: a message of the user, or an answer with its results.
    """

    def __init__(self, size: MessageSize) -> None:
        self.starts: list[int] = []
        """Where each unit begins."""
        self._messages: list[ChatMessage] = []
        self._units: list[int] = []
        """The unit of each message."""
        self._measure = size
        self._sizes: dict[int, tuple[int, ChatMessage]] = {}
        """By the identity of a message: most are in every version."""
        self._short: dict[tuple[int, int], ChatMessage] = {}

    @classmethod
    def steps(cls, messages: Sequence[ChatMessage], size: MessageSize) -> Steps[_Conversation]:
        """Divide the messages in pieces. A result that does not follow its call is dropped."""
        found = cls(size)
        calls: set[object] | None = None
        for at, message in enumerate(messages, 1):
            for part in split_recap(message):
                if part.role == "tool" or isinstance(part, Pictures):
                    if calls is None or (part.role == "tool" and part.tool_call_id not in calls):
                        continue
                elif not is_fixed(part):
                    found.starts.append(len(found._messages))
                    calls = {call.id for call in part.tool_calls or ()} if part.role == "assistant" else None
                found._units.append(_ALWAYS if is_fixed(part) else len(found.starts) - 1)
                found._messages.append(part)
            if at % ITEMS_PER_STEP == 0:
                yield
        return found

    def cut_steps(self, step: int) -> Steps[list[Cut]]:
        """Return cuts that leave ever less. New results may be longer than old ones, not at the cost of messages."""
        end, short = len(self.starts), step // 2
        old = [message for message in self._messages[: self.starts[-1]] if message.role == "tool"]
        longest = max(map(self._size_of, old), default=0)
        limits = [halves * short for halves in _RESULT_LIMITS if halves * short < longest]
        cuts: list[Cut] = []
        before: list[tuple[int, int]] = []
        for at, place in enumerate((yield from self._place_steps(step)), 1):
            if at % ITEMS_PER_STEP == 0:
                yield
            cuts += (Cut(limits=(*before, (place, limit))) for limit in limits)
            before = [(place, short)]
        for place in (0, *(yield from self._place_steps(step, short))):
            cuts.append(Cut(first=place, user_limit=step, limits=((end - 1, short), (end, 2 * step))))
        limit = step
        while limit > _MIN_RESULT:
            cuts.append(Cut(first=end - 1, user_limit=limit, limits=((end, limit),)))
            limit //= 2
        least = Cut(first=end - 1, limits=((end, _MIN_RESULT),))
        return [*cuts, least, replace(least, is_bare=True)]

    def _place_steps(self, step: int, limit: int | None = None) -> Steps[list[int]]:
        """Return the units before which a cut may be: those where the size before passes a multiple of the step, and
        the last one. Results count with the `limit` at most.
        """
        last, due, before = len(self.starts) - 1, step, 0
        found: list[int] = []
        for index in range(self.starts[0], self.starts[last]):
            if index % ITEMS_PER_STEP == 0:
                yield
            unit = self._units[index]
            if before >= due and index == self.starts[unit]:
                found.append(unit)
                due = (before // step + 1) * step
            if unit != _ALWAYS:
                before += self._size_of(self._limited(index, limit))
        return [*found, last] if last else []

    def first_steps(self, cuts: Sequence[Cut], is_wanted: Callable[[int], bool]) -> Steps[int]:
        """Return the place of the first cut that leaves a wanted size, as all cuts behind it do, or the number of
        cuts.
        """
        low, high = 0, len(cuts)
        while low < high:
            middle = (low + high) // 2
            if is_wanted((yield from self.version_steps(cuts[middle])).size):
                high = middle
            else:
                low = middle + 1
        return low

    def version_steps(self, cut: Cut) -> Steps[Truncated]:
        """Return the messages as the cut leaves them, with words where some are missing."""
        kept: list[ChatMessage] = []
        questions = self._questions(cut) if cut.first else ()
        missing = left_out = short = size = 0
        for index, (message, unit) in enumerate(zip(self._messages, self._units, strict=True)):
            if index % ITEMS_PER_STEP == 0:
                yield
            if unit == _ALWAYS:
                kept.append(message)
            elif unit >= cut.first or unit in questions:
                version = self._cut(index, cut)
                short += version is not message
                _add(version, missing_words(missing) if missing else "", kept)
                missing = 0
            else:
                missing += 1
                left_out += 1
        for at, message in enumerate(kept):
            if at % ITEMS_PER_STEP == 0:
                yield
            size += self._size_of(message)
        return Truncated(kept, size, left_out, short)

    def _questions(self, cut: Cut) -> list[int]:
        """Return the units of the user's last messages in a row within the limit, one at least, where a cut begins with
        what answers them.
        """
        found: list[int] = []
        unit, left = cut.first, cut.user_limit
        while unit and not self._is_question(unit):
            unit -= 1
        while unit != cut.first and unit >= 0 and self._is_question(unit):
            left -= self._size_of(self._messages[self.starts[unit]])
            if found and left < 0:
                break
            found.append(unit)
            unit -= 1
        return found

    def _is_question(self, unit: int) -> bool:
        return self._messages[self.starts[unit]].role == "user"

    def _cut(self, index: int, cut: Cut) -> ChatMessage:
        message, unit = self._messages[index], self._units[index]
        if message.role == "tool":
            return self._limited(index, next((limit for before, limit in cut.limits if unit < before), None))
        return bare(message) if cut.is_bare else message

    def _limited(self, index: int, limit: int | None) -> ChatMessage:
        """Return the message, a result with at most this size."""
        message = self._messages[index]
        if limit is None or message.role != "tool" or (size := self._size_of(message)) <= limit:
            return message
        if (index, limit) not in self._short:
            self._short[index, limit] = shortened(message, limit / size)
        return self._short[index, limit]

    def _size_of(self, message: ChatMessage) -> int:
        known = self._sizes.get(id(message))
        if known is None:
            known = self._sizes[id(message)] = self._measure(message), message  # its identity stays its own
        return known[0]


def _add(message: ChatMessage, words: str, kept: list[ChatMessage]) -> None:
    """Append a message, and before it the words about what is missing there.

    The words are the user's: some models take only the user and the assistant in turn, the user first, and a system
    message only at the top.
    """
    if message.role == "user" and kept and isinstance(recap := kept[-1], Recap):
        recap = followed(recap, words) if words else recap
        kept[-1] = ChatMessage(role="user", content=joined(recap, message).content)
    elif words and message.role == "user":
        kept.append(preceded(message, words))
    else:
        before = [at for at, each in enumerate(kept) if each.role not in INSTRUCTIONS][-1:] if words else []
        if before and kept[before[0]].role == "user":
            kept[before[0]] = followed(kept[before[0]], words)
        elif words:
            kept.append(ChatMessage(role="user", content=words))
        kept.append(message)


def is_fixed(message: ChatMessage) -> bool:
    """Return whether the message is never left out."""
    return message.role in INSTRUCTIONS or isinstance(message, Recap)
