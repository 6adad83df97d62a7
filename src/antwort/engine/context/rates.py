"""Tokens for each byte of text, by what backends have reported.

Texts differ: there are six times as many tokens in a page of digits as in a page of prose. So no single report says
much, and none of them moves a mean: the rate is the one that most reports reach, with each client heard as one voice.

There is a report after every inference, and few ask for a rate: it is worked out when somebody does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from antwort.engine.context.text_sizes import Size

LEAST, MOST = 1 / 16, 1.0
"""Tokens for each byte. Below is a report of something else, such as of what was not in a cache; above there is
nothing: a tokenizer that knows no word of a text has a token for each of its bytes."""
_REPORTS = 64
"""How many are remembered of a model."""
_WHOLE = 1024
"""Bytes from which on a report counts in full, as one."""
_VOICE, _GUESS = 16.0, 6.0
"""How much all reports of one client count together at most, and what was taken to be so before there were any."""
_LIKELY, _HIGH = 0.35, 0.95
"""Shares of the reports. The likely rate is rather too low than too high: what is not cut though it should be is
refused, and then it is cut; what is cut is lost."""
_MARGIN = 1.3
_ENOUGH, _EACH = _REPORTS, 7
"""Reports that tell most of what there is to know; from then on one in so many is listened to."""
_RECENT = 16
"""Reports after which a rate is worked out anew for those that are about both kinds of text."""


class Report(msgspec.Struct, frozen=True, gc=False):
    rate: float
    weight: float
    who: str = ""


class Rate:
    """Of one kind of text."""

    __slots__ = ("_highest", "_likely", "_new", "_told", "count", "guess")

    def __init__(self, guess: float) -> None:
        self.guess = guess
        self._likely, self._highest = guess, MOST
        self._told: dict[str, dict[int, Report]] = {}
        """By who told it, and by what it is about: what is said of the same again takes the place of what was said."""
        self.count = self._new = 0

    @property
    def reports(self) -> list[Report]:
        return [report for told in self._told.values() for report in told.values()]

    @property
    def likely(self) -> float:
        if self._new:
            self._settle()
        return self._likely

    @property
    def highest(self) -> float:
        """What hardly any text exceeds."""
        if self._new:
            self._settle()
        return self._highest

    @property
    def recent(self) -> float:
        """The likely one, as it was a few reports ago."""
        return self.likely if self._new >= _RECENT else self._likely

    def note(self, about: int, report: Report, instead: Iterable[int] = ()) -> None:
        """One report more, which stands for earlier ones."""
        if not report.weight:
            return
        told = self._told.setdefault(report.who, {})
        before = len(told)
        told.pop(about, None)
        for each in instead:
            told.pop(each, None)
        told[about] = report
        self._new += 1
        self.count += len(told) - before
        if self.count > _REPORTS:
            self._forget()

    def _forget(self) -> None:
        """The oldest report of whoever has most: nobody pushes out what others have told."""
        who = max(self._told, key=lambda each: len(self._told[each]))
        told = self._told[who]
        del told[next(iter(told))]
        self.count -= 1
        if not told:
            del self._told[who]

    def _settle(self) -> None:
        heard = _heard(self.reports)
        self._new = 0
        self._likely = _share([*heard, (self.guess, _GUESS)], _LIKELY)
        high = _share(heard, _HIGH) * _MARGIN if sum(weight for _, weight in heard) >= 1 else MOST
        self._highest = max(self._likely, min(high, MOST))


def _heard(reports: list[Report]) -> list[tuple[float, float]]:
    """Rates, and how much they count."""
    voices: dict[str, float] = {}
    for report in reports:
        voices[report.who] = voices.get(report.who, 0.0) + report.weight
    return [(report.rate, report.weight * min(1.0, _VOICE / voices[report.who])) for report in reports]


def _share(rates: Iterable[tuple[float, float]], share: float) -> float:
    """The lowest rate that so much of them all does not exceed."""
    ordered = sorted(rates)
    left = share * sum(weight for _, weight in ordered)
    for rate, weight in ordered:
        left -= weight
        if left <= 0:
            return rate
    return ordered[-1][0]


class Rates:
    """Those of one model, for ASCII and for all else."""

    __slots__ = ("_passed_over", "plain", "wide")

    def __init__(self) -> None:
        self.plain, self.wide = Rate(0.25), Rate(0.35)
        self._passed_over = 0

    def wants_more(self) -> bool:
        """Whether the report that has come is worth its while. To be asked once for each."""
        if self.plain.count + self.wide.count < _ENOUGH:
            return True
        self._passed_over = (self._passed_over + 1) % _EACH
        return not self._passed_over

    def likely(self, size: Size) -> float:
        """Tokens of the text alone."""
        return _tokens(size, self.plain.likely, self.wide.likely)

    def highest(self, size: Size) -> int:
        return math.ceil(_tokens(size, self.plain.highest, self.wide.highest))

    def note(self, size: Size, tokens: int, about: int, who: str, instead: Iterable[int] = ()) -> None:
        """A text of this size has so many. What it has more than was thought, or less, is laid on both rates."""
        weight = min(1.0, size.text / _WHOLE)
        if not size.wide:
            self.plain.note(about, Report(_bounded(tokens / size.text), weight, who), instead)
            return
        plain, wide = self.plain.recent, self.wide.recent
        factor, share = tokens / _tokens(size, plain, wide), size.wide / size.text
        self.plain.note(about, Report(_bounded(plain * factor), weight * (1 - share), who), instead)
        self.wide.note(about, Report(_bounded(wide * factor), weight * share, who), instead)


def _tokens(size: Size, plain: float, wide: float) -> float:
    return (size.text - size.wide) * plain + size.wide * wide


def _bounded(rate: float) -> float:
    return min(max(rate, LEAST), MOST)
