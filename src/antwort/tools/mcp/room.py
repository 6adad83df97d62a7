"""Which sessions make room for others. Pure.

Sessions that all share are the operator's, and stay. Of those that requests have brought there are only so many, and
their lists of tools take only so much memory: who asks for more gives up their own first, and then whoever has most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

Owner: TypeAlias = tuple[str, str]


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions that requests have brought may take together. Lists are measured as JSON."""

    sessions: int = 256
    lists: int = 32 * 2**20
    """Bytes of the lists of servers that requests have named by address."""
    lists_each: int = 4 * 2**20
    """Those of one identity."""


class Guest(NamedTuple):
    """A session that a request has brought."""

    key: bytes
    owner: Owner
    weight: int
    """Bytes of its list."""
    is_idle: bool


def makes_room(guests: Sequence[Guest], newcomer: Owner, room: Room) -> list[bytes]:
    """The keys of those to leave, where there are too many or too much. `guests` are in the order of their last use;
    one in use never makes room.
    """
    weights, numbers = Counter[Owner](), Counter[Owner]()
    for guest in guests:
        weights[guest.owner] += guest.weight
        numbers[guest.owner] += 1
    waiting, left = [guest for guest in guests if guest.is_idle], list[bytes]()
    while (chosen := _next(waiting, newcomer, weights, numbers, room)) is not None:
        waiting.remove(chosen)
        left.append(chosen.key)
        weights[chosen.owner] -= chosen.weight
        numbers[chosen.owner] -= 1
    return left


def _next(
    waiting: Sequence[Guest], newcomer: Owner, weights: Counter[Owner], numbers: Counter[Owner], room: Room
) -> Guest | None:
    heavy = [guest for guest in waiting if guest.weight]
    if weights[newcomer] > room.lists_each and (own := _first_of(heavy, newcomer)) is not None:
        return own
    if weights.total() > room.lists and heavy:
        return _first_of(heavy, newcomer) or max(heavy, key=lambda guest: weights[guest.owner])
    if numbers.total() > room.sessions and waiting:
        return _first_of(waiting, newcomer) or max(waiting, key=lambda guest: numbers[guest.owner])
    return None


def _first_of(guests: Sequence[Guest], owner: Owner) -> Guest | None:
    return next((guest for guest in guests if guest.owner == owner), None)
