"""Looking names up, without a place among the threads that everybody shares: whoever runs a name's servers decides how
long that takes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

MOST = 64
"""Lookups at once. Whoever comes when all are busy is told that nothing is known."""

_free = threading.BoundedSemaphore(MOST)


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses behind a name, in the order to try them in. Raises `OSError`.

    Nobody waits for a lookup that is given up; its thread ends when the resolver does, and keeps nobody from exiting.
    """
    if not _free.acquire(blocking=False):
        raise OSError("too many names are being looked up")
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()
    try:
        threading.Thread(target=_work, args=(host, port, loop, found), name="lookup", daemon=True).start()
    except RuntimeError as exc:
        _free.release()
        raise OSError("no thread could be had") from exc
    return await found


def _work(host: str, port: int, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Sequence[str]]) -> None:
    answer: Sequence[str] | OSError
    try:
        answer = _ask(host, port)
    except OSError as exc:
        answer = exc
    except UnicodeError:
        answer = OSError("not a name")
    finally:
        _free.release()
    with suppress(RuntimeError):  # the loop is gone
        loop.call_soon_threadsafe(_tell, found, answer)


def _ask(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _tell(found: asyncio.Future[Sequence[str]], answer: Sequence[str] | OSError) -> None:
    if found.done():
        return
    if isinstance(answer, OSError):
        found.set_exception(answer)
    else:
        found.set_result(answer)
