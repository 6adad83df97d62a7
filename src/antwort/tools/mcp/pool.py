"""All sessions with MCP servers: one for each server and name, made when needed, bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec

from antwort.net.ssrf import AddressPolicy
from antwort.tools.base import Progress
from antwort.tools.mcp.base import CallOutcome, ServerSpec, ServerTools, ServerUnavailable
from antwort.tools.mcp.connector import ALL_CLOSING
from antwort.tools.mcp.session import ServerSession


class SessionPool:
    """Each closed after `idle` seconds without use. The operator's, which all share, are as many as it has servers; of
    those that requests have brought there are `limit`. Beyond that one of them makes room, first one of the identity
    that asks; one in use never does, so there may be more as long as all are.

    An operator's server that nobody has used for long is left, and its list of tools kept: to ask for it again takes
    no connection. What a request has brought is forgotten altogether.
    """

    def __init__(self, *, limit: int = 256, idle: float = 600.0, reach: AddressPolicy | None = None) -> None:
        """`reach`: which addresses strangers may name; None: the strictest."""
        self._room = Room(sessions=limit)
        self._idle = idle
        self._reach = reach
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._has_room = True
        """Whether there was room for all when it was last looked for, and no list has grown since."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def open_sessions(self) -> int:
        return sum(entry.session.is_open for entry in self._entries.values())

    def get(self, spec: ServerSpec) -> PooledSession:
        return PooledSession(self, spec)

    async def close(self) -> None:
        """End all, in use or not, within a few seconds."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for entry in self._entries.values():
            self._leave(entry)
        self._entries.clear()
        while self._closing:
            await asyncio.wait(self._closing)

    def take(self, spec: ServerSpec, key: bytes) -> _Entry:
        """The session, which stays as long as it is used. It is to be given back. There is no context for it, as that
        would take longer than all the rest, and it is done with each call.
        """
        if self._is_closed:
            raise ServerUnavailable(ALL_CLOSING)
        entry = self._entries.get(key)
        if entry is None:
            grown = None if spec.owner is None else self._look_again
            entry = self._entries[key] = _Entry(ServerSession(spec, self._reach, grown))
            entry.uses += 1
            self._make_room(spec.owner)
            return entry
        self._entries.move_to_end(key)
        entry.uses += 1
        return entry

    def give_back(self, entry: _Entry) -> None:
        entry.uses -= 1
        entry.used_at = monotonic()  # to ask for the event loop takes longer
        if not self._has_room:
            self._make_room(entry.session.spec.owner)  # there may have been none while all were in use
        if self._timer is None:
            self._watch()

    # within

    def _look_again(self) -> None:
        """A list takes more than before, were it only that its server says so and nobody has asked: whoever is done
        next looks whether there is still room.
        """
        self._has_room = False

    def _make_room(self, newcomer: tuple[str, str] | None) -> None:
        if newcomer is None:
            return
        lists = sum([entry.session.list_bytes for entry in self._entries.values()])
        self._has_room = len(self._entries) <= self._room.sessions and lists <= self._room.lists_each
        if self._has_room:
            return  # whosever it is
        for key in makes_room(list(self._guests()), newcomer, self._room):
            self._forget(key)

    def _guests(self) -> Iterator[Guest]:
        for key, entry in self._entries.items():
            if (owner := entry.session.spec.owner) is not None:
                weight = entry.session.list_bytes if entry.session.spec.is_untrusted else 0
                yield Guest(key, owner, weight, is_idle=not entry.uses)

    def _watch(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        now = monotonic()
        waiting = [entry.used_at for key, entry in list(self._entries.items()) if not self._is_left(key, entry, now)]
        if waiting:
            later = max(0.0, min(waiting) + self._idle - now)
            self._timer = asyncio.get_running_loop().call_later(later, self._look_at_the_clock)

    def _is_left(self, key: bytes, entry: _Entry, now: float) -> bool:
        """Whether there is nothing more to watch; leaves what was idle for too long."""
        if entry.uses:
            return True  # it is watched again after its use
        if now - entry.used_at < self._idle:
            return False
        if entry.session.spec.owner is not None:
            self._forget(key)
        else:
            self._leave(entry)
        return True

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self._leave(entry)
        entry.session.forget()

    def _leave(self, entry: _Entry) -> None:
        if entry.session.is_open:
            task = asyncio.create_task(entry.session.leave(), name="mcp closing")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Entry:
    __slots__ = ("session", "used_at", "uses")

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.uses = 0
        self.used_at = 0.0


class PooledSession:
    """Asks for its session each time: it may have been closed between two questions, and is then made again."""

    __slots__ = ("_key", "_pool", "_spec")

    def __init__(self, pool: SessionPool, spec: ServerSpec) -> None:
        self._pool = pool
        self._spec = spec
        self._key = spec.key

    async def tools(self) -> ServerTools:
        entry = self._pool.take(self._spec, self._key)
        try:
            return entry.session.cached() or await entry.session.tools()
        finally:
            self._pool.give_back(entry)

    async def refresh(self) -> ServerTools:
        entry = self._pool.take(self._spec, self._key)
        try:
            return await entry.session.refresh()
        finally:
            self._pool.give_back(entry)

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> CallOutcome:
        entry = self._pool.take(self._spec, self._key)
        try:
            return await entry.session.call(name, arguments, key=key, progress=progress)
        finally:
            self._pool.give_back(entry)


# ---- which sessions make room for others ----

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
