"""All sessions with MCP servers: one for each server and name, made when needed, bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec

from antwort.net.ssrf import AddressPolicy
from antwort.tools.base import Progress
from antwort.tools.mcp.base import CallOutcome, ServerSpec, ServerTools, ServerUnavailable
from antwort.tools.mcp.connector import ALL_CLOSING
from antwort.tools.mcp.session import ServerSession

Owner: TypeAlias = tuple[str, str]


class SessionPool:
    """Each session is closed after `idle` seconds without use. The operator's, which all share, are as many as it has
    servers; of those that requests have brought there are at most `limit`. Beyond that one of them is evicted, first
    one of the identity that asks; one in use never is, so there may be more as long as all are.

    An operator's server that was not used for long is left, and its list of tools kept: to ask for it again takes no
    connection. A session that a request has brought is forgotten altogether.
    """

    def __init__(self, *, limit: int = 256, idle: float = 600.0, reach: AddressPolicy | None = None) -> None:
        """`reach`: which addresses requests may name; None: the strictest policy."""
        self._limits = EvictionLimits(sessions=limit)
        self._idle = idle
        self._policy = reach
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_over_limit = False
        """Whether there was too much when it was last checked, or a list has grown since."""

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

    def acquire(self, spec: ServerSpec, key: bytes) -> _Entry:
        """Return the session, which stays until it is released."""
        if self._is_closed:
            raise ServerUnavailable(ALL_CLOSING)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            entry.uses += 1
            return entry
        grown = None if spec.owner is None else self._check_later
        entry = self._entries[key] = _Entry(ServerSession(spec, self._policy, grown))
        entry.uses += 1
        self._evict(spec.owner)
        return entry

    def release(self, entry: _Entry) -> None:
        entry.uses -= 1
        entry.used_at = monotonic()
        if self._is_over_limit:
            self._evict(entry.session.spec.owner)
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._close_idle)

    def _check_later(self) -> None:
        """A list takes more than before, be it that only its server says so: the next release checks the limits."""
        self._is_over_limit = True

    def _evict(self, newcomer: Owner | None) -> None:
        if newcomer is None:
            return
        list_bytes = sum([entry.session.list_bytes for entry in self._entries.values()])
        limits = self._limits
        self._is_over_limit = len(self._entries) > limits.sessions or list_bytes > limits.list_bytes_each
        if not self._is_over_limit:
            return  # whoever they belong to
        candidates = [
            Candidate(key, owner, entry.session.list_bytes if entry.session.spec.is_untrusted else 0, not entry.uses)
            for key, entry in self._entries.items()
            if (owner := entry.session.spec.owner) is not None
        ]
        for key in choose_evicted(candidates, newcomer, limits):
            self._forget(key)

    def _close_idle(self) -> None:
        """Leave what was idle for too long. What is in use is looked at again after its release."""
        self._timer = None
        now = monotonic()
        waiting: list[float] = []
        for key, entry in list(self._entries.items()):
            if entry.uses:
                continue
            if now - entry.used_at < self._idle:
                waiting.append(entry.used_at)
            elif entry.session.spec.owner is None:
                self._leave(entry)
            else:
                self._forget(key)
        if waiting:
            later = max(0.0, min(waiting) + self._idle - now)
            self._timer = asyncio.get_running_loop().call_later(later, self._close_idle)

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
    """Gets its session from the pool each time: it may have been closed since, and is then made again."""

    __slots__ = ("_key", "_pool", "_spec")

    def __init__(self, pool: SessionPool, spec: ServerSpec) -> None:
        self._pool = pool
        self._spec = spec
        self._key = spec.key

    async def tools(self) -> ServerTools:
        entry = self._pool.acquire(self._spec, self._key)
        try:
            return entry.session.cached() or await entry.session.tools()
        finally:
            self._pool.release(entry)

    async def refresh(self) -> ServerTools:
        entry = self._pool.acquire(self._spec, self._key)
        try:
            return await entry.session.refresh()
        finally:
            self._pool.release(entry)

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> CallOutcome:
        entry = self._pool.acquire(self._spec, self._key)
        try:
            return await entry.session.call(name, arguments, key=key, progress=progress)
        finally:
            self._pool.release(entry)


# ---- eviction ----


class EvictionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions that requests have brought may take together. Lists are measured as JSON."""

    sessions: int = 256
    list_bytes: int = 32 * 2**20
    """Of the lists of servers that requests have named by address."""
    list_bytes_each: int = 4 * 2**20
    """Of those of one identity."""


class Candidate(NamedTuple):
    """A session that a request has brought."""

    key: bytes
    owner: Owner
    list_bytes: int
    is_idle: bool


def choose_evicted(candidates: Sequence[Candidate], newcomer: Owner, limits: EvictionLimits) -> list[bytes]:
    """Return the keys of the sessions to leave where there are too many or their lists too long.

    `candidates` are in the order of their last use. Whoever asks for more gives up their own first, and then whoever
    has most. A session in use is never evicted.
    """
    list_bytes, numbers = Counter[Owner](), Counter[Owner]()
    for each in candidates:
        list_bytes[each.owner] += each.list_bytes
        numbers[each.owner] += 1
    idle, evicted = [each for each in candidates if each.is_idle], list[bytes]()

    def choose() -> Candidate | None:
        with_list = [each for each in idle if each.list_bytes]
        if list_bytes[newcomer] > limits.list_bytes_each and (own := _first_of(with_list, newcomer)) is not None:
            return own
        if list_bytes.total() > limits.list_bytes and with_list:
            return _first_of(with_list, newcomer) or max(with_list, key=lambda each: list_bytes[each.owner])
        if numbers.total() > limits.sessions and idle:
            return _first_of(idle, newcomer) or max(idle, key=lambda each: numbers[each.owner])
        return None

    while (chosen := choose()) is not None:
        idle.remove(chosen)
        evicted.append(chosen.key)
        list_bytes[chosen.owner] -= chosen.list_bytes
        numbers[chosen.owner] -= 1
    return evicted


def _first_of(candidates: Sequence[Candidate], owner: Owner) -> Candidate | None:
    return next((each for each in candidates if each.owner == owner), None)
