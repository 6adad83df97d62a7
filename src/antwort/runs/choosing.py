"""Who comes next, among runs that nobody makes. Pure; `statements.py` says the same in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

Whose: TypeAlias = tuple[str, str]
"""Tenant and owner."""


class Listed(Protocol):
    """A run that has not ended."""

    @property
    def whose(self) -> Whose: ...
    @property
    def conversation_id(self) -> str | None: ...
    @property
    def place(self) -> tuple[float, int]:
        """When it was queued, and what tells it from others of that moment."""
        ...

    @property
    def is_cancelled(self) -> bool: ...


def choose(free: Sequence[Listed], held: Sequence[Listed], count: int, per_owner: int | None) -> list[int]:
    """The places in `free` of those that come next. Each that is chosen counts as under way for the one after it.

    A cancelled run is only to be ended: it waits for nothing, and the next run of its conversation waits for its end.
    """
    ordered = sorted(range(len(free)), key=lambda place: (not free[place].is_cancelled, free[place].place))
    under_way = Counter(run.whose for run in held)
    ranked: list[tuple[bool, int, tuple[float, int], int]] = []
    for place in ordered:
        run = free[place]
        if not run.is_cancelled and _waits(run, free, held):
            continue
        under_way[run.whose] += 1
        if run.is_cancelled or per_owner is None or under_way[run.whose] <= per_owner:
            ranked.append((not run.is_cancelled, under_way[run.whose], run.place, place))
    return [place for *_, place in sorted(ranked)[:count]]


def _waits(run: Listed, free: Iterable[Listed], held: Iterable[Listed]) -> bool:
    """For a run of its conversation that is under way, that came earlier, or that is to be ended."""
    if run.conversation_id is None:
        return False
    return any(_is_beside(run, other) for other in held) or any(
        _is_beside(run, other) and (other.is_cancelled or other.place < run.place) for other in free
    )


def _is_beside(run: Listed, other: Listed) -> bool:
    return other is not run and other.conversation_id == run.conversation_id and other.whose == run.whose
