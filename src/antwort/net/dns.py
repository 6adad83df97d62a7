"""Name lookups with a bounded number of threads, in total and per owner.

The servers of a name decide how long its lookup takes, so lookups do not use the event loop's shared thread pool.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import TypeAlias

from antwort.limiter import Limiter

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


UNTRUSTED_LOOKUPS = Limiter(MAX_LOOKUPS, MAX_LOOKUPS_PER_OWNER)
ALLOWED_LOOKUPS = Limiter(MAX_LOOKUPS, MAX_LOOKUPS_PER_OWNER)
"""For names that the operator lists: they do not wait for untrusted ones."""


async def look_up(host: str, port: int, owner: Hashable = None, limiter: Limiter = UNTRUSTED_LOOKUPS) -> Sequence[str]:
    """Return the addresses of a host, in the order to try them. Raises `OSError`, such as `LookupQueueTimeout`.

    A cancelled lookup keeps its slot until the system's resolver returns. Its daemon thread does not delay exit.
    """
    try:
        async with asyncio.timeout(SLOT_WAIT_SECONDS):
            await limiter.acquire(owner)
    except TimeoutError:
        raise LookupQueueTimeout("too many names are being looked up") from None
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
