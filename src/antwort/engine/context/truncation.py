"""Chat messages that fit: what is oversized is shortened, then what is oldest is left out. Pure.

This is derived anew for each inference, from all that was said. A backend is quick where a request begins as the one
before did, so two in a row must be cut at the same place: there are cuts only where what stands before passes the next
multiple of a step, a power of two. More is left out than must be, and the cut stays until that much has been added.
The last results stand at the end, where nothing is lost by that: they take all the room that is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from antwort.engine.context.recap import Recap, parted
from antwort.engine.context.shortening import Pictures, bare, followed, joined, missing_words, preceded, shortened
from antwort.providers.base import ChatMessage

Size: TypeAlias = Callable[[ChatMessage], int]
"""How much room a message takes, in the unit of the budget: always the same for the same message."""

_INSTRUCTIONS = frozenset({"system", "developer"})
_LEAST_STEP, _LEAST_CAP = 64, 16
_CAPS = (14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
"""How long an old result may be, in halves of a step, while no older one can be any shorter."""
_GRAIN = 64
"""The length of the last results is found to one part in so many of a step."""


class Fitted(msgspec.Struct, frozen=True):
    """What is kept, in its order, and how much is not."""

    messages: list[ChatMessage]
    size: int
    """More than the budget where even the least that makes sense does not fit."""
    left_out: int = 0
    """Messages that are gone."""
    shortened: int = 0
    """Messages of which a part is gone."""


def fit(messages: Sequence[ChatMessage], budget: int, size: Size) -> Fitted:
    """The messages within the budget, with as little missing as steps allow; all of them where they fit.

    Kept whatever happens: system and developer messages, the summary of what was compacted, the last message of the
    user, and the last answer with its calls and what is left of their results. No call is parted from its results.
    Where something is missing, words for the model say so.
    """
    script = _Script(messages, size)
    whole = script.version(_Rung())
    if whole.size <= budget or not script.units:
        return whole
    rungs = list(_ladder(script, step_of(budget)))
    first = bisect_left(rungs, True, key=lambda rung: script.version(rung).size <= budget)
    return script.version(_filled(script, rungs[min(first, len(rungs) - 1)], budget))


def _filled(script: _Script, rung: _Rung, budget: int) -> _Rung:
    """The same with the last results as long as there is room for them."""
    least = rung.last_cap
    if least is None or rung.is_bare:
        return rung
    caps = range(least, budget, max(1, step_of(budget) // _GRAIN))
    wider = [replace(rung, last_cap=cap) for cap in caps]
    first = bisect_left(wider, True, key=lambda each: script.version(each).size > budget)
    return wider[first - 1] if first else rung


def step_of(budget: int) -> int:
    """A quarter of the budget, or down to an eighth: a power of two stays the same when the budget changes a little."""
    return max(_LEAST_STEP, 1 << max(budget // 4, 1).bit_length() - 1)


# ---- what goes, and in which order ----


class _Rung(msgspec.Struct, frozen=True, kw_only=True):
    """How much goes. What has a lower number is older."""

    cut: int = 0
    """Units below this one are left out, but for what the user said last before it."""
    row: int = 0
    """How much room there is for that, where it is several messages in a row. The last is kept whatever its size."""
    floored: int = 0
    """Results in units below this one have `floor` as their size at most."""
    floor: int = 0
    capped: int = 0
    """Those in further units below this one have `cap`."""
    cap: int = 0
    last_cap: int | None = None
    """The same for the last unit."""
    is_bare: bool = False
    """Of the last answer only what cannot be parted is left."""


def _ladder(script: _Script, step: int) -> Iterator[_Rung]:
    """Ever less. New results may be longer than old ones, but are not worth all that was said before."""
    last, floor, before = len(script.units) - 1, step // 2, 0
    caps = [halves * floor for halves in _CAPS if halves * floor < script.longest_old]
    for cut in script.cuts(step):
        yield from (_Rung(floored=before, floor=floor, capped=cut, cap=cap) for cap in caps)
        before = cut
    for cut in (0, *script.cuts(step, floor)):
        yield _Rung(cut=cut, row=step, floored=last, floor=floor, last_cap=2 * step)
    last_cap = step
    while last_cap > _LEAST_CAP:
        yield _Rung(cut=last, row=last_cap, last_cap=last_cap)
        last_cap //= 2
    yield _Rung(cut=last, last_cap=_LEAST_CAP)
    yield _Rung(cut=last, last_cap=_LEAST_CAP, is_bare=True)


class _Unit(msgspec.Struct):
    """What is kept or left out as one, by its places: a message of the user, or an answer of the model with the results
    of its calls.
    """

    places: list[int]
    calls: frozenset[str] | None = None
    """Of an answer: the ids of its calls."""
    opening: range | None = None
    """Of an answer: the numbers of the units that it answers, which is what the user said in a row."""


def _divided(messages: Sequence[ChatMessage]) -> list[_Unit]:
    """A result that belongs to no call right before it is in no unit, and never kept."""
    units: list[_Unit] = []
    opening: range | None = None
    for place, message in enumerate(messages):
        calls = units[-1].calls if units else None
        if _is_fixed(message):
            continue
        if message.role == "tool" or isinstance(message, Pictures):
            if calls is not None and (message.role != "tool" or message.tool_call_id in calls):
                units[-1].places.append(place)
        elif message.role == "assistant":
            units.append(_Unit([place], frozenset(call.id for call in message.tool_calls or ()), opening))
        else:
            goes_on = opening is not None and calls is None
            opening = range(opening.start if goes_on and opening else len(units), len(units) + 1)
            units.append(_Unit([place]))
    return units


# ---- making it so ----


class _Script:
    """All that was said, in any of its shorter versions."""

    def __init__(self, messages: Sequence[ChatMessage], size: Size) -> None:
        messages = [each for message in messages for each in parted(message)]
        self._messages, self._size = messages, size
        self.units = _divided(messages)
        self._unit_at = {place: number for number, unit in enumerate(self.units) for place in unit.places}
        self._fixed = [place for place, message in enumerate(messages) if _is_fixed(message)]
        self._ranks = {place: rank for rank, place in enumerate(self._unit_at)}
        self._sizes: dict[int, tuple[ChatMessage, int]] = {}
        self._short: dict[tuple[int, int], ChatMessage] = {}

    @property
    def longest_old(self) -> int:
        """Of the results that are not the last."""
        places = (place for unit in self.units[:-1] for place in unit.places)
        return max((self._size_of(self._messages[place]) for place in places if self._is_result(place)), default=0)

    def cuts(self, step: int, cap: int | None = None) -> list[int]:
        """Which units may be the first that is kept, or kept whole: the last one, and others, each by nothing but what
        stands before it. Results count with `cap` at most.
        """
        found: list[int] = []
        before, due = 0, step
        for number, unit in enumerate(self.units[:-1], start=1):
            before += sum(self._size_of(self._capped(place, cap)) for place in unit.places)
            if before >= due or number == len(self.units) - 1:
                found.append(number)
                due = (before // step + 1) * step
        return found

    def version(self, rung: _Rung) -> Fitted:
        """The messages as they are sent on this rung."""
        kept: list[ChatMessage] = []
        asked: int | None = None  # where the user's message stands, while nothing has come behind it
        due = short = 0
        places = sorted([*self._fixed, *self._kept(rung)])
        for place in places:
            message, rank = self._messages[place], self._ranks.get(place)
            if rank is None:
                asked = len(kept) if message.role == "user" else asked
                kept.append(message)
            else:
                version = self._made(place, rung)
                short += version is not message
                asked = _add(version, missing_words(rank - due) if rank > due else "", kept, asked)
                due = rank + 1
        return Fitted(kept, sum(map(self._size_of, kept)), len(self._messages) - len(places), short)

    def _kept(self, rung: _Rung) -> Iterator[int]:
        """The places of what is not fixed, and stays."""
        units = self.units[rung.cut :]
        opening = units[0].opening if units else None
        if opening is not None and opening.stop <= rung.cut:
            units = [*self._row(opening, rung.row), *units]
        for unit in units:
            yield from unit.places

    def _row(self, opening: range, room: int) -> list[_Unit]:
        """The last of what the user said in a row, as much as there is room for, and one message at least."""
        row = [self.units[opening[-1]]]
        for number in reversed(opening[:-1]):
            room -= sum(self._size_of(self._messages[place]) for unit in row[-1:] for place in unit.places)
            if room < self._size_of(self._messages[self.units[number].places[0]]):
                break
            row.append(self.units[number])
        return row[::-1]

    def _made(self, place: int, rung: _Rung) -> ChatMessage:
        number, message = self._unit_at[place], self._messages[place]
        if rung.is_bare:
            message = bare(message)
        cap = rung.floor if number < rung.floored else rung.cap if number < rung.capped else None
        if number == len(self.units) - 1:
            cap = rung.last_cap
        return self._capped(place, cap) if message.role == "tool" else message

    def _capped(self, place: int, cap: int | None) -> ChatMessage:
        message = self._messages[place]
        size = self._size_of(message)
        if cap is None or not self._is_result(place) or size <= cap:
            return message
        if (place, cap) not in self._short:
            self._short[place, cap] = shortened(message, cap / size)
        return self._short[place, cap]

    def _is_result(self, place: int) -> bool:
        return self._messages[place].role == "tool"

    def _size_of(self, message: ChatMessage) -> int:
        """Measured once: the longest of them are in every version."""
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = self._sizes[id(message)] = (message, self._size(message))
        return known[1]


def _add(message: ChatMessage, words: str, kept: list[ChatMessage], asked: int | None) -> int | None:
    """Add a message, and before it the words that say what is missing there, if anything is. Gives the place of what
    the user said last, if nothing stands behind it.

    The words are the user's: there are models that take nothing but the user and the assistant in turn, the user first,
    and a system message at the top.
    """
    if message.role == "user" and asked is not None and asked == len(kept) - 1:
        if words:
            kept[asked] = joined(followed(kept[asked], words), message)
            return asked
        if isinstance(kept[asked], Recap):
            kept[asked] = ChatMessage(role="user", content=joined(kept[asked], message).content)
            return asked
    if words and message.role == "user":
        message = preceded(message, words)
    elif words and asked is not None:
        kept[asked] = followed(kept[asked], words)
    elif words:
        kept.append(ChatMessage(role="user", content=words))
    kept.append(message)
    return len(kept) - 1 if message.role == "user" else None


def _is_fixed(message: ChatMessage) -> bool:
    return message.role in _INSTRUCTIONS or isinstance(message, Recap)
