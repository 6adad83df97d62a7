"""Sessions with MCP servers: one for each server and owner, opened when needed, bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from time import monotonic

import msgspec

from antwort.net.ssrf import AddressPolicy
from antwort.tools.mcp.base import ServerSpec, ServerUnavailable
from antwort.tools.mcp.reconnection import ALL_CLOSING
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
        self.is_over_limit = False
        """Whether there was too much at the last check, or a list has grown since: each use checks it then."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def open_sessions(self) -> int:
        return sum(session.is_open for session in self._sessions.values())

    def session(self, spec: ServerSpec) -> McpSession:
        """Return the session for a spec. It may be evicted whenever it is not in use: ask it before waiting for
        anything else. Raises `ServerUnavailable` when the pool is closed.
        """
        if self._is_closed:
            raise ServerUnavailable(ALL_CLOSING)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._close_idle)
        if self.is_over_limit:
            self.evict(spec.owner)
        key = spec.key
        if (session := self._sessions.get(key)) is not None:
            self._sessions.move_to_end(key)
            session.used_at = monotonic()
            return session
        session = self._sessions[key] = McpSession(spec, self._policy, self)
        session.uses += 1  # it must not evict itself
        self.evict(spec.owner)
        session.uses -= 1
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

    def evict(self, newcomer: tuple[str, str] | None) -> None:
        """Drop sessions if there are too many, or their lists are too long."""
        for session in choose_evicted(list(self._sessions.values()), newcomer, self._limits):
            self._drop(session)
        left = [session for session in self._sessions.values() if session.spec.owner is not None]
        list_bytes = Counter[tuple[str, str] | None]()
        for session in left:
            list_bytes[session.spec.owner] += session.brought_bytes
        limits = self._limits
        self.is_over_limit = (
            len(left) > limits.sessions
            or list_bytes.total() > limits.list_bytes
            or max(list_bytes.values(), default=0) > limits.list_bytes_each
        )

    def _close_idle(self) -> None:
        """Close sessions that were idle for too long. A session in use is checked again later."""
        self._timer = None
        now = monotonic()
        waiting: list[float] = []
        for session in list(self._sessions.values()):
            used_at = now if session.uses else session.used_at
            if now - used_at < self._idle:
                waiting.append(used_at)
            elif session.spec.owner is None:
                self._close(session)
            else:
                self._drop(session)
        if waiting:
            later = max(0.0, min(waiting) + self._idle - now)
            self._timer = asyncio.get_running_loop().call_later(later, self._close_idle)

    def _drop(self, session: McpSession) -> None:
        del self._sessions[session.spec.key]
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


def choose_evicted(
    sessions: Sequence[McpSession], newcomer: tuple[str, str] | None, limits: EvictionLimits
) -> list[McpSession]:
    """Return the sessions to evict, because requests have brought too many or their lists are too long.

    `sessions` are in the order of their last use. Those of the newcomer go first, then those of the owner who has
    most. A session in use is never evicted, nor is one that all share.
    """
    brought = [session for session in sessions if session.spec.owner is not None]
    idle, evicted = [session for session in brought if not session.uses], list[McpSession]()
    numbers = Counter(session.spec.owner for session in brought)
    list_bytes = Counter[tuple[str, str] | None]()
    for session in brought:
        list_bytes[session.spec.owner] += session.brought_bytes

    def choose() -> McpSession | None:
        with_list = [session for session in idle if session.brought_bytes]
        if list_bytes[newcomer] > limits.list_bytes_each and (own := _first_of(with_list, newcomer)) is not None:
            return own
        if list_bytes.total() > limits.list_bytes and with_list:
            return _first_of(with_list, newcomer) or max(with_list, key=lambda each: list_bytes[each.spec.owner])
        if numbers.total() > limits.sessions and idle:
            return _first_of(idle, newcomer) or max(idle, key=lambda each: numbers[each.spec.owner])
        return None

    while (chosen := choose()) is not None:
        idle.remove(chosen)
        evicted.append(chosen)
        list_bytes[chosen.spec.owner] -= chosen.brought_bytes
        numbers[chosen.spec.owner] -= 1
    return evicted


def _first_of(sessions: Sequence[McpSession], owner: tuple[str, str] | None) -> McpSession | None:
    return next((session for session in sessions if session.spec.owner == owner), None)
