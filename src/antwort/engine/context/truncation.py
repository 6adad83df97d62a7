"""Truncate chat messages to a budget: long results are shortened first, then the oldest messages are left out. Pure.

Truncation is derived anew for each inference from the whole conversation. A backend caches the beginning of a prompt,
so two inferences in a row must be cut at the same place: messages are cut only where the size of what stands before
passes a multiple of a step, a power of two. More is left out than necessary, and the cut stays until that much has been
added. The last results stand at the end, where no cache is lost: they take all that is left of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from antwort.api.decoding import Steps
from antwort.engine.context.message_text import (
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

_INSTRUCTIONS = ("system", "developer")
_MIN_STEP, _MIN_RESULT = 64, 16
_RESULT_LIMITS = (14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
"""Sizes of old results in halves of a step. All old results get shorter before any gets shorter still."""
_LAST_RESULT_STEPS = 64
"""The size of the last results is found to one part in so many of a step."""


class Truncated(msgspec.Struct, frozen=True):
    messages: list[ChatMessage]
    size: int
    """More than the budget where even the least that makes sense does not fit."""
    left_out: int = 0
    shortened: int = 0


def truncation_steps(messages: Sequence[ChatMessage], budget: int, size: MessageSize) -> Steps[Truncated]:
    """Return the messages within the budget, all of them where they fit, in pieces.

    Kept in any case: system and developer messages, the summary of a compaction, the last user message, and the last
    answer with its calls and what is left of their results. No call is torn from its results. Words for the model stand
    where something is missing.
    """
    conversation = yield from _DividedMessages.steps(messages, size)
    whole = yield from conversation.version_steps(_Cut())
    if whole.size <= budget or not conversation.units:
        return whole
    cuts = yield from _cut_steps(conversation, step_of(budget))
    first = yield from _first_steps(conversation, cuts, lambda size: size <= budget)
    cut = cuts[min(first, len(cuts) - 1)]
    *others, (before, last_limit) = cut.limits
    if before == len(conversation.units) and not cut.is_bare:  # let the last results fill the budget
        sizes = range(last_limit, budget, max(1, step_of(budget) // _LAST_RESULT_STEPS))
        wider = [replace(cut, limits=(*others, (before, each))) for each in sizes]
        first = yield from _first_steps(conversation, wider, lambda size: size > budget)
        cut = wider[first - 1] if first else cut
    return (yield from conversation.version_steps(cut))


def _first_steps(conversation: _DividedMessages, cuts: Sequence[_Cut], is_wanted: Callable[[int], bool]) -> Steps[int]:
    """Return the place of the first cut that leaves a wanted size, as all cuts behind it do, or the number of cuts."""
    low, high = 0, len(cuts)
    while low < high:
        middle = (low + high) // 2
        if is_wanted((yield from conversation.version_steps(cuts[middle])).size):
            high = middle
        else:
            low = middle + 1
    return low


def step_of(budget: int) -> int:
    """Return a quarter to an eighth of the budget: a power of two, which small changes leave as it is."""
    return max(_MIN_STEP, 1 << max(budget // 4, 1).bit_length() - 1)


# ---- what is cut, and in which order ----


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How much is cut. Units are numbered from the oldest."""

    first: int = 0
    """Units before this one are left out, except for the user's last messages before it."""
    user_limit: int = 0
    """The largest size of these, where they are several in a row. The last is kept whatever its size."""
    limits: tuple[tuple[int, int], ...] = ()
    """Pairs of a unit and a size: results before the unit have at most this size. The first pair counts."""
    is_bare: bool = False
    """Whether the last answer loses its reasoning and pictures."""


def _cut_steps(conversation: _DividedMessages, step: int) -> Steps[list[_Cut]]:
    """Return cuts that leave ever less. New results may be longer than old ones, but not at the cost of messages."""
    count, short, shortened = len(conversation.units), step // 2, list[tuple[int, int]]()
    longest = yield from conversation.longest_old_result_steps()
    limits = [halves * short for halves in _RESULT_LIMITS if halves * short < longest]
    cuts: list[_Cut] = []
    for number, place in enumerate((yield from conversation.place_steps(step)), 1):
        cuts += (_Cut(limits=(*shortened, (place, limit))) for limit in limits)
        shortened = [(place, short)]
        if number % ITEMS_PER_STEP == 0:
            yield
    for place in (0, *(yield from conversation.place_steps(step, short))):
        cuts.append(_Cut(first=place, user_limit=step, limits=((count - 1, short), (count, 2 * step))))
    last_limit = step
    while last_limit > _MIN_RESULT:
        cuts.append(_Cut(first=count - 1, user_limit=last_limit, limits=((count, last_limit),)))
        last_limit //= 2
    cuts += (_Cut(first=count - 1, limits=((count, _MIN_RESULT),), is_bare=is_bare) for is_bare in (False, True))
    return cuts


# ---- the messages of a cut ----


class _Unit(msgspec.Struct):
    """The indexes of messages that are kept or left out together: a user message, or an answer with its results."""

    indexes: list[int]
    calls: frozenset[str] | None = None
    """The ids of an answer's calls."""
    questions: range | None = None
    """The numbers of the units with the user messages in a row that this answers."""


class _DividedMessages:
    """The messages of a conversation, and its shorter versions."""

    def __init__(self, size: MessageSize) -> None:
        self.units: list[_Unit] = []
        self._messages: list[ChatMessage] = []
        self._size = size
        self._questions: range | None = None
        """The last of the user messages in a row."""
        self._unit_of: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._fixed: list[int] = []
        self._sizes: dict[int, tuple[ChatMessage, int]] = {}
        self._short: dict[tuple[int, int], ChatMessage] = {}

    @classmethod
    def steps(cls, messages: Sequence[ChatMessage], size: MessageSize) -> Steps[_DividedMessages]:
        """Divide the messages in pieces."""
        divided = cls(size)
        for at, message in enumerate(messages, 1):
            for part in split_recap(message):
                divided._put(part)
            if at % ITEMS_PER_STEP == 0:
                yield
        return divided

    def _put(self, message: ChatMessage) -> None:
        """Put a message into its unit. A result that does not follow its call is in no unit, and never kept."""
        index, units = len(self._messages), self.units
        self._messages.append(message)
        if _is_fixed(message):
            self._fixed.append(index)
            return
        calls = units[-1].calls if units else None
        if message.role == "tool" or isinstance(message, Pictures):
            if calls is None or (message.role == "tool" and message.tool_call_id not in calls):
                return
            units[-1].indexes.append(index)
        elif message.role == "assistant":
            units.append(_Unit([index], frozenset(call.id for call in message.tool_calls or ()), self._questions))
        else:
            start = self._questions.start if self._questions and calls is None else len(units)
            self._questions = range(start, len(units) + 1)
            units.append(_Unit([index]))
        self._unit_of[index] = len(units) - 1
        self._ranks[index] = len(self._ranks)

    def longest_old_result_steps(self) -> Steps[int]:
        longest = 0
        for rank, (index, number) in enumerate(self._unit_of.items(), 1):
            if (message := self._messages[index]).role == "tool" and number < len(self.units) - 1:
                longest = max(longest, self._size_of(message))
            if rank % ITEMS_PER_STEP == 0:
                yield
        return longest

    def place_steps(self, step: int, limit: int | None = None) -> Steps[list[int]]:
        """Return the units before which a cut may be: those where the size before passes a multiple of the step, and
        the last one. Results count with `limit` at most.
        """
        found: list[int] = []
        before, due = 0, step
        for number, unit in enumerate(self.units[:-1], start=1):
            for index in unit.indexes:
                before += self._size_of(self._limited(index, limit))
                if self._ranks[index] % ITEMS_PER_STEP == 0:
                    yield
            if before >= due or number == len(self.units) - 1:
                found.append(number)
                due = (before // step + 1) * step
        return found

    def version_steps(self, cut: _Cut) -> Steps[Truncated]:
        kept: list[ChatMessage] = []
        question: int | None = None  # where the user's message stands, while nothing has come behind it
        due = short = size = 0
        indexes = sorted([*self._fixed, *self._kept(cut)])
        for at, index in enumerate(indexes, 1):
            if at % ITEMS_PER_STEP == 0:
                yield
            message, rank = self._messages[index], self._ranks.get(index)
            if rank is None:
                question = len(kept) if message.role == "user" else question
                kept.append(message)
                continue
            version = self._cut(index, cut)
            short += version is not message
            question = _add(version, missing_words(rank - due) if rank > due else "", kept, question)
            due = rank + 1
        for start in range(0, len(kept), ITEMS_PER_STEP):
            size += sum(map(self._size_of, kept[start : start + ITEMS_PER_STEP]))
            yield
        return Truncated(kept, size, len(self._messages) - len(indexes), short)

    def _kept(self, cut: _Cut) -> Iterator[int]:
        """Yield the indexes of what the cut leaves of the units."""
        units = self.units[cut.first :]
        questions = units[0].questions if units else None
        if questions is not None and questions.stop <= cut.first:
            units = [*self._last_questions(questions, cut.user_limit), *units]
        for unit in units:
            yield from unit.indexes

    def _last_questions(self, questions: range, limit: int) -> list[_Unit]:
        """Return the last of the user messages in a row within the limit, and one at least."""
        kept = [self.units[questions[-1]]]
        for number in reversed(questions[:-1]):
            limit -= self._size_of(self._messages[kept[-1].indexes[0]])
            if limit < self._size_of(self._messages[self.units[number].indexes[0]]):
                break
            kept.append(self.units[number])
        return kept[::-1]

    def _cut(self, index: int, cut: _Cut) -> ChatMessage:
        number, message = self._unit_of[index], self._messages[index]
        if cut.is_bare:
            message = bare(message)
        if message.role != "tool":
            return message
        return self._limited(index, next((limit for before, limit in cut.limits if number < before), None))

    def _limited(self, index: int, limit: int | None) -> ChatMessage:
        """Return the message, a result with at most this size."""
        message = self._messages[index]
        if limit is None or message.role != "tool" or (size := self._size_of(message)) <= limit:
            return message
        if (index, limit) not in self._short:
            self._short[index, limit] = shortened(message, limit / size)
        return self._short[index, limit]

    def _size_of(self, message: ChatMessage) -> int:
        """Measure a message once: most are in every version."""
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = self._sizes[id(message)] = (message, self._size(message))
        return known[1]


def _add(message: ChatMessage, words: str, kept: list[ChatMessage], question: int | None) -> int | None:
    """Append a message, and before it the words about what is missing there. Return the place of the last user message,
    if it is the last message.

    The words are the user's: some models take only the user and the assistant in turn, the user first, and a system
    message only at the top.
    """
    if message.role == "user" and question is not None and question == len(kept) - 1:
        if words:
            kept[question] = joined(followed(kept[question], words), message)
            return question
        if isinstance(kept[question], Recap):
            kept[question] = ChatMessage(role="user", content=joined(kept[question], message).content)
            return question
    if words and message.role == "user":
        message = preceded(message, words)
    elif words and question is not None:
        kept[question] = followed(kept[question], words)
    elif words:
        kept.append(ChatMessage(role="user", content=words))
    kept.append(message)
    return len(kept) - 1 if message.role == "user" else None


def _is_fixed(message: ChatMessage) -> bool:
    return message.role in _INSTRUCTIONS or isinstance(message, Recap)
