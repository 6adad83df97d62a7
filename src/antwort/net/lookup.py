"""Looking names up, without a place among the threads that everybody shares: whoever runs a name's servers decides how
long that takes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress

MOST = 64
"""Lookups at once."""
EACH = 8
"""Those of one who asks: nobody's slow names take the places of all."""
WAIT = 3.0
"""Seconds for which somebody waits for a place."""


class Crowded(OSError):
    """No place came free in time: nothing is known of the name."""


class _Waiting:
    """Somebody who waits for a place, in a loop of their own."""

    __slots__ = ("come", "loop", "who")

    def __init__(self, who: Hashable) -> None:
        self.who = who
        self.loop = asyncio.get_running_loop()
        self.come: asyncio.Future[None] = self.loop.create_future()


class Places:
    """How many look something up at once, all of them and each. A place is given back by the thread that had it, so it
    is counted under a lock.
    """

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self._most, self._each = most, each
        self._lock = threading.Lock()
        self._taken: Counter[Hashable] = Counter()
        self._waiting: list[_Waiting] = []

    async def take(self, who: Hashable) -> None:
        """Raises `Crowded`."""
        with self._lock:
            if self._has_room(who):
                self._taken[who] += 1
                return
            waiting = _Waiting(who)
            self._waiting.append(waiting)
        try:
            async with asyncio.timeout(WAIT):
                await waiting.come
        except BaseException as exc:
            self._leave(waiting)
            if isinstance(exc, TimeoutError):
                raise Crowded("too many names are being looked up") from None
            raise

    def give_back(self, who: Hashable) -> None:
        """From any thread. The place goes to the first in the line that may have one."""
        with self._lock:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]
            while (waiting := next((each for each in self._waiting if self._has_room(each.who)), None)) is not None:
                self._waiting.remove(waiting)
                with suppress(RuntimeError):  # its loop is gone
                    waiting.loop.call_soon_threadsafe(self._hand_over, waiting)
                    self._taken[waiting.who] += 1

    def _leave(self, waiting: _Waiting) -> None:
        with self._lock, suppress(ValueError):
            self._waiting.remove(waiting)
        if waiting.come.done() and not waiting.come.cancelled():  # the place came, and nobody is there to use it
            self.give_back(waiting.who)

    def _hand_over(self, waiting: _Waiting) -> None:
        if waiting.come.done():  # it has gone meanwhile
            self.give_back(waiting.who)
        else:
            waiting.come.set_result(None)

    def _has_room(self, who: Hashable) -> bool:
        return self._taken[who] < self._each and self._taken.total() < self._most


STRANGERS = Places()
LISTED = Places()
"""For names that an operator lists: they do not wait for those of strangers."""


async def look_up(host: str, port: int, who: Hashable = None, places: Places = STRANGERS) -> Sequence[str]:
    """The addresses behind a name, in the order to try them in, for `who`. Raises `OSError`; `Crowded` is one.

    Nobody waits for a lookup that is given up; its thread ends when the resolver does, and keeps nobody from exiting.
    """
    await places.take(who)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def work() -> None:
        try:
            answer = _answer(host, port)
        finally:
            places.give_back(who)
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(_tell, found, answer)

    try:
        threading.Thread(target=work, name="lookup", daemon=True).start()
    except RuntimeError as exc:
        places.give_back(who)
        raise OSError("no thread could be had") from exc
    return await found


def _answer(host: str, port: int) -> Sequence[str] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        return exc
    except UnicodeError:
        return OSError("not a name")
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _tell(found: asyncio.Future[Sequence[str]], answer: Sequence[str] | OSError) -> None:
    if found.done():
        return
    if isinstance(answer, OSError):
        found.set_exception(answer)
    else:
        found.set_result(answer)
