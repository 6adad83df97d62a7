"""Tokens for each byte of text, by what backends have reported. Pure.

Texts differ: there are six times as many tokens in a page of digits as in a page of prose. So no single report says
much, and none of them moves a mean: the rate is the one that most reports reach, with each client heard as one voice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from antwort.engine.sizes import Size

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


class Report(msgspec.Struct, frozen=True, gc=False):
    rate: float
    weight: float
    who: str = ""


class Rate(msgspec.Struct, frozen=True):
    guess: float
    likely: float
    highest: float = MOST
    """What hardly any text exceeds."""
    reports: dict[int, Report] = {}
    """By what they are about: what is said of the same again takes the place of what was said before."""

    def after(self, about: int, report: Report, instead: int | None = None) -> Rate:
        """With one report more, which may stand for an earlier one."""
        if not report.weight:
            return self
        reports = {place: each for place, each in self.reports.items() if place not in (about, instead)}
        reports[about] = replace(report, rate=min(max(report.rate, LEAST), MOST))
        if len(reports) > _REPORTS:
            del reports[_superfluous(reports)]
        heard = _heard(reports.values())
        likely = _share([*heard, (self.guess, _GUESS)], _LIKELY)
        high = _share(heard, _HIGH) * _MARGIN if sum(weight for _, weight in heard) >= 1 else MOST
        return Rate(self.guess, likely, max(likely, min(high, MOST)), reports)


def _superfluous(reports: Mapping[int, Report]) -> int:
    """The oldest report of whoever has most: nobody pushes out what others have told."""
    [(most, _)] = Counter(report.who for report in reports.values()).most_common(1)
    return next(about for about, report in reports.items() if report.who == most)


def _heard(reports: Iterable[Report]) -> list[tuple[float, float]]:
    """Rates, and how much they count."""
    reports = list(reports)
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


class Rates(msgspec.Struct, frozen=True):
    """Those of one model, for ASCII and for all else."""

    plain: Rate = Rate(guess=0.25, likely=0.25)
    wide: Rate = Rate(guess=0.35, likely=0.35)

    def likely(self, size: Size) -> float:
        """Tokens of the text alone."""
        return _tokens(size, self.plain.likely, self.wide.likely)

    def highest(self, size: Size) -> int:
        return math.ceil(_tokens(size, self.plain.highest, self.wide.highest))

    def after(self, size: Size, tokens: int, about: int, who: str, instead: int | None = None) -> Rates:
        """When a text of this size has so many. What it has more than was thought, or less, is laid on both rates."""
        factor = tokens / self.likely(size)
        whole, share = min(1.0, size.text / _WHOLE), size.wide / size.text
        plain = Report(self.plain.likely * factor, whole * (1 - share), who)
        wide = Report(self.wide.likely * factor, whole * share, who)
        return Rates(self.plain.after(about, plain, instead), self.wide.after(about, wide, instead))


def _tokens(size: Size, plain: float, wide: float) -> float:
    return (size.text - size.wide) * plain + size.wide * wide
