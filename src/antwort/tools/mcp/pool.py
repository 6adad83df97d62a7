"""Sessions with MCP servers: one for each server and owner, opened when needed, bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

import msgspec

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.connector import ALL_CLOSING
from antwort.tools.mcp.session import McpSession


class SessionPool:
    """Sessions by `ServerSpec.key`. Each is closed after `idle` seconds without use.

    Shared sessions are as many as the operator has servers. Of those that requests bring there are at most `limit`:
    beyond that one is evicted, first one of the identity that asks. A session in use is never evicted, so there may be
    more while all are in use.

    A shared session that is closed keeps its list of tools: to return that again takes no connection. A session that a
    request has brought is dropped with its list.
    """

    def __init__(self, *, limit: int = 256, idle: float = 600.0, reach: AddressPolicy | None = None) -> None:
        """`reach`: which addresses requests may name; None: the strictest policy."""
        self._limits = EvictionLimits(sessions=limit)
        self._idle = idle
        self._policy = reach
        self._sessions: OrderedDict[bytes, McpSession] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._is_over_limit = False
        """Whether there was too much at the last check, or a list has grown since."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def open_sessions(self) -> int:
        return sum(session.is_open for session in self._sessions.values())

    def session(self, spec: ServerSpec) -> McpSession:
        """Return the session for a spec, for a `with` block: until that ends, the session is in use.

        Raises `ServerUnavailable` when the pool is closed.
        """
        if self._is_closed:
            raise ServerUnavailable(ALL_CLOSING)
        key = spec.key
        session = self._sessions.get(key)
        if session is not None:
            session.uses += 1
            self._sessions.move_to_end(key)
            return session
        session = self._sessions[key] = McpSession(spec, self._policy, self._check_later, self._release)
        session.uses += 1
        self._evict(spec.owner)
        return session

    async def close(self) -> None:
        """End all sessions, in use or not, within a few seconds."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for session in self._sessions.values():
            self._close(session)
        self._sessions.clear()
        while self._closing:
            await asyncio.wait(self._closing)

    def _release(self, session: McpSession) -> None:
        if self._is_over_limit:
            self._evict(session.spec.owner)
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._close_idle)

    def _check_later(self) -> None:
        """A list has grown, maybe because its server announced it: the next release checks the limits."""
        self._is_over_limit = True

    def _evict(self, newcomer: tuple[str, str] | None) -> None:
        if newcomer is None:
            return
        list_bytes = sum([session.list_bytes for session in self._sessions.values()])
        limits = self._limits
        self._is_over_limit = len(self._sessions) > limits.sessions or list_bytes > limits.list_bytes_each
        if not self._is_over_limit:
            return
        candidates = [
            Candidate(key, owner, session.list_bytes if session.spec.is_untrusted else 0, not session.uses)
            for key, session in self._sessions.items()
            if (owner := session.spec.owner) is not None
        ]
        for key in choose_evicted(candidates, newcomer, limits):
            self._drop(key)

    def _close_idle(self) -> None:
        """Close sessions that were idle for too long. A session in use is checked again after its release."""
        self._timer = None
        now = monotonic()
        waiting: list[float] = []
        for key, session in list(self._sessions.items()):
            if session.uses:
                continue
            if now - session.used_at < self._idle:
                waiting.append(session.used_at)
            elif session.spec.owner is None:
                self._close(session)
            else:
                self._drop(key)
        if waiting:
            later = max(0.0, min(waiting) + self._idle - now)
            self._timer = asyncio.get_running_loop().call_later(later, self._close_idle)

    def _drop(self, key: bytes) -> None:
        session = self._sessions.pop(key)
        self._close(session)
        session.forget()

    def _close(self, session: McpSession) -> None:
        if session.is_open:
            task = asyncio.create_task(session.close(), name="mcp closing")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


# ---- eviction ----


class EvictionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all sessions that requests bring. Lists are measured as JSON."""

    sessions: int = 256
    list_bytes: int = 32 * 2**20
    """Of all lists of servers that requests name by address."""
    list_bytes_each: int = 4 * 2**20
    """Of such lists of one identity."""


class Candidate(NamedTuple):
    """A session that a request has brought."""

    key: bytes
    owner: tuple[str, str]
    list_bytes: int
    is_idle: bool


def choose_evicted(candidates: Sequence[Candidate], newcomer: tuple[str, str], limits: EvictionLimits) -> list[bytes]:
    """Return the keys of the sessions to evict, because there are too many or their lists are too long.

    `candidates` are in the order of their last use. Those of the newcomer go first, then those of the owner who has
    most. A session in use is never evicted.
    """
    list_bytes, numbers = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
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


def _first_of(candidates: Sequence[Candidate], owner: tuple[str, str]) -> Candidate | None:
    return next((each for each in candidates if each.owner == owner), None)
