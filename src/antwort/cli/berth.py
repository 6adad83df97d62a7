"""The place of one worker among several: what it is told by the process that started it, and what it tells."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import msgspec

HURRY = b"hurry\n"
"""What it is told in order to leave at once; in order, it is told by signals, however many come."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do."""

    given: dict[str, object]
    """The flags of the command."""
    front: int
    """The descriptor of the socket that all of them listen on."""
    index: int
    workers: int
    speaks: bool
    """Whether the others want to know what it has to say of itself."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """It answers requests."""

    rows: list[tuple[str, str]] = []


class Berth:
    """The worker's side. The link is open as long as the process that started it lives."""

    def __init__(self, link: socket.socket, front: socket.socket, *, speaks: bool) -> None:
        self.front, self.speaks = front, speaks
        self._link = link
        self._watching: asyncio.Task[None] | None = None

    async def watch(self, *, hurried: Callable[[], None], abandoned: Callable[[], None]) -> None:
        """Call `hurried` when it is told to leave at once, `abandoned` when there is nobody left to work for."""
        self._link.setblocking(False)
        self._watching = asyncio.create_task(self._watch(hurried, abandoned))

    async def _watch(self, hurried: Callable[[], None], abandoned: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while await loop.sock_recv(self._link, 4096):
                hurried()  # there is nothing else that could be said
        except OSError:
            pass
        abandoned()

    async def tell_ready(self, rows: Sequence[tuple[str, str]]) -> None:
        words = msgspec.json.encode(Ready(rows=list(rows))) + b"\n"
        await asyncio.get_running_loop().sock_sendall(self._link, words)


def take_order(link: socket.socket) -> Order:
    """The first line that comes. Raises `EOFError` when none does."""
    with link.makefile("rb") as lines:
        line = lines.readline()
    if not line:
        raise EOFError
    return msgspec.json.decode(line, type=Order)
