"""Name lookups with a bounded number of threads, in total and per owner.

The servers of a name decide how long its lookup takes, so lookups do not use the event loop's shared thread pool.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import TypeAlias

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port, in the order to try them. Raises `OSError` or `HttpError`."""

MAX_LOOKUPS = 64
"""Most concurrent lookups."""
MAX_LOOKUPS_PER_OWNER = 8
"""Most concurrent lookups of one owner: slow names of one do not block the others."""
SLOT_WAIT_SECONDS = 3.0
"""Longest wait for a free slot."""


class LookupQueueTimeout(OSError):
    """No slot became free in time, so the name was not looked up."""


class _Waiter:
    """A lookup that waits for a slot, and the event loop it waits in."""

    __slots__ = ("granted", "loop", "owner")

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.loop = asyncio.get_running_loop()
        self.granted: asyncio.Future[None] = self.loop.create_future()


class LookupLimiter:
    """Limits concurrent lookups, in total and per owner. Lookup threads release their slots, hence the lock."""

    def __init__(self, limit: int = MAX_LOOKUPS, limit_per_owner: int = MAX_LOOKUPS_PER_OWNER) -> None:
        self._limit, self._limit_per_owner = limit, limit_per_owner
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()
        self._waiters: list[_Waiter] = []

    async def acquire(self, owner: Hashable) -> None:
        """Wait for a slot. Raises `LookupQueueTimeout`."""
        with self._lock:
            if self._has_slot(owner):
                self._taken[owner] += 1
                return
            waiter = _Waiter(owner)
            self._waiters.append(waiter)
        try:
            async with asyncio.timeout(SLOT_WAIT_SECONDS):
                await waiter.granted
        except BaseException as exc:
            with self._lock, suppress(ValueError):
                self._waiters.remove(waiter)
            if waiter.granted.done() and not waiter.granted.cancelled():  # granted and cancelled at the same time
                self.release(owner)
            if isinstance(exc, TimeoutError):
                raise LookupQueueTimeout("too many names are being looked up") from None
            raise

    def release(self, owner: Hashable) -> None:
        """Release a slot, from any thread, to the first waiter that may have it."""
        with self._lock:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]
            while (waiter := next((each for each in self._waiters if self._has_slot(each.owner)), None)) is not None:
                self._waiters.remove(waiter)
                with suppress(RuntimeError):  # its event loop is closed
                    waiter.loop.call_soon_threadsafe(self._grant, waiter)
                    self._taken[waiter.owner] += 1

    def _grant(self, waiter: _Waiter) -> None:
        if waiter.granted.done():  # cancelled meanwhile
            self.release(waiter.owner)
        else:
            waiter.granted.set_result(None)

    def _has_slot(self, owner: Hashable) -> bool:
        return self._taken[owner] < self._limit_per_owner and self._taken.total() < self._limit


UNTRUSTED_LOOKUPS = LookupLimiter()
ALLOWED_LOOKUPS = LookupLimiter()
"""For names that the operator lists: they do not wait for untrusted ones."""


async def look_up(
    host: str, port: int, owner: Hashable = None, limiter: LookupLimiter = UNTRUSTED_LOOKUPS
) -> Sequence[str]:
    """Return the addresses of a host, in the order to try them. Raises `OSError`, such as `LookupQueueTimeout`.

    A cancelled lookup keeps its slot until the system's resolver returns. Its daemon thread does not delay exit.
    """
    await limiter.acquire(owner)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def work() -> None:
        try:
            result = _addresses(host, port)
        finally:
            limiter.release(owner)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_set_result, found, result)

    try:
        threading.Thread(target=work, name="lookup", daemon=True).start()
    except RuntimeError as exc:
        limiter.release(owner)
        raise OSError("no thread could be had") from exc
    return await found


def _addresses(host: str, port: int) -> Sequence[str] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        return exc
    except UnicodeError:
        return OSError("not a name")
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _set_result(found: asyncio.Future[Sequence[str]], result: Sequence[str] | OSError) -> None:
    if found.done():
        return
    if isinstance(result, OSError):
        found.set_exception(result)
    else:
        found.set_result(result)
