"""The answer to a request, in the stream of events that the server has opened for it or in one that goes on with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from antwort.net.client import HttpResponse
from antwort.net.sse import EventParser, SseEvent
from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.messages import TOO_LONG, decoded
from antwort.tools.mcp.unsolicited_traffic import Unsolicited

_PAUSE = 1.0
_SHORTEST = 0.1
LONGEST_PAUSE = 30.0
"""Seconds before the stream is asked for again, whatever the server says."""


class Listening:
    """What has been heard so far. `hear` is given what `unsolicited` leaves of the messages that are no answer; it may
    raise. `resumes`: whether the protocol lets a stream be gone on with.
    """

    def __init__(
        self,
        largest: int,
        unsolicited: Unsolicited,
        hear: Callable[[Mapping[str, Any]], Awaitable[None]],
        *,
        resumes: bool = True,
    ) -> None:
        self._largest = largest
        self._unsolicited = unsolicited
        self._hear = hear
        self._resumes = resumes
        self._pause = _PAUSE
        self.last: str | None = None
        """The id of the last event that had one: where the server can go on from."""

    @property
    def can_go_on(self) -> bool:
        return self._resumes and self.last is not None

    @property
    def pause(self) -> float:
        """Seconds before the stream may be asked for again."""
        return min(LONGEST_PAUSE, max(_SHORTEST, self._pause))

    async def read(self, reply: HttpResponse) -> dict[str, Any] | None:
        """The answer; None where the stream has ended without it. Raises `ServerUnavailable` and `HttpError`."""
        parser = EventParser()
        async for data in reply:
            for event in parser.feed(data):
                if (answer := await self._take(event)) is not None:
                    reply.release()
                    return answer
            if parser.open_size > self._largest:
                raise ServerUnavailable(TOO_LONG)
        for event in () if self.can_go_on else parser.finish():  # where it can be had whole, half of one is nothing
            with suppress(ServerUnavailable):
                return await self._message(event)
        return None

    async def _take(self, event: SseEvent) -> dict[str, Any] | None:
        if event.id is not None:
            self.last = event.id.decode("latin-1") or None
        if event.retry is not None:
            self._pause = event.retry / 1000
        return await self._message(event)

    async def _message(self, event: SseEvent) -> dict[str, Any] | None:
        if event.kind != b"message" or not event.data:  # a sign of life, or a place to go on from
            await self._unsolicited.pass_over(event.size)
            return None
        message = await decoded(event.data)
        if "method" not in message:
            return message
        if await self._unsolicited.take(message, event.size):
            await self._hear(message)
        return None
