"""Reading the events of a response again, from any number on: be it under way, here or elsewhere, or over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Self, TypeAlias

from antwort.api.events import TERMINAL, UNSENT, ResponseCreated, StreamEvent
from antwort.api.payload import fitting
from antwort.api.responses import Response
from antwort.concurrency import Signal
from antwort.engine.draft import Run, fold
from antwort.engine.pipe import Numbered
from antwort.engine.settings import LoopSettings
from antwort.engine.unfold import unfold
from antwort.errors import AntwortError, ClientLeft, InvalidField, ResponseNotFound
from antwort.identity import Identity
from antwort.runs.base import Gone, Record, RunLog, Unavailable

Batches: TypeAlias = AsyncGenerator[list[Numbered], None]

_AT_ONCE = 512
"""Events of a response that has ended that are sent in one piece."""
_SOON, _LATER = 0.05, 2.0
"""Seconds until it is looked again, at first and in the end."""


class Follower:
    """One who reads along. Leaving, however that is, changes nothing of the run."""

    def __init__(
        self,
        response: Response,
        batches: Batches,
        ended: Callable[[], Awaitable[object]],
        *,
        over: Callable[[], Awaitable[object]] | None = None,
        is_replay: bool = False,
    ) -> None:
        """`ended` waits until the run has, and may give the response; `over` only waits, where that is less. The first
        of the `batches` is asked for when somebody reads.
        """
        self.response = response
        """As it stood at the beginning, without its output where that is read from its log; and, once its end has been
        read, as it ended."""
        self.is_replay = is_replay
        """Whether an earlier request, with the same key, has asked for the response."""
        self.is_waited_for = False
        """Whether who asks for it whole waits for its end; who asks for one in the background does not."""
        self._batches, self._ended, self._over = batches, ended, over or ended
        self._signal = Signal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def response_id(self) -> str:
        return self.response.id

    async def answered(self) -> None:
        """Nothing is held back: what went wrong is an event by now."""

    async def read(self) -> list[Numbered]:
        """The next batches, with the numbers that they had from the first time on; nothing when the stream is over, or
        the reader has left.
        """
        try:
            batches = await self._signal.race(self._next)
        except ClientLeft:
            return []
        if batches and batches[-1].events and isinstance(last := batches[-1].events[-1], TERMINAL):
            self.response = last.response
        return batches

    async def _next(self) -> list[Numbered]:
        return await anext(self._batches, [])

    async def whole(self) -> Response:
        """The response as it stands or, where that is waited for, as it ended. Raises `ClientLeft`."""
        ended = await self._signal.race(self._ended) if self.is_waited_for else None
        return ended if isinstance(ended, Response) else self.response

    @property
    def has_left(self) -> bool:
        return self._signal.reason is not None

    async def events(self) -> AsyncGenerator[tuple[int, StreamEvent], None]:
        """One by one, each with its number."""
        while batches := await self.read():
            for batch in batches:
                for number, event in enumerate(batch.events, batch.first):
                    yield number, event

    def leave(self) -> None:
        self._signal.set(ClientLeft())

    @property
    def goes_on_alone(self) -> bool:
        """Whoever makes the run counts it."""
        return False

    def when_over(self, tell: Callable[[], None]) -> None:
        """It is not this reader's."""

    def stop(self, _: Exception) -> None:
        """This request is broken off, and nothing else."""
        self.leave()

    async def wait(self) -> None:
        """Until the run has ended, or is gone."""
        with suppress(AntwortError):
            await self._over()

    def account(self) -> None:
        """Others say what the run has taken."""

    async def close(self) -> None:
        self.leave()
        await self._batches.aclose()


# ---- where events come from ----


async def logged(runs: RunLog, response_id: str, identity: Identity, after: int, every: float) -> Batches:
    """From the log of the run. While it cannot be read, it is tried again; signs of life come not more often than
    `every` seconds.
    """
    clock = asyncio.get_running_loop().time
    told, pause = clock(), _SOON
    while True:
        try:
            async with aclosing(runs.read(identity, response_id, after, follow=True)) as reading:
                async for records in reading:
                    batches, pause = [*numbered(records, after)], _SOON
                    after = max([after, *(record.next - 1 for record in records)])
                    if batches or clock() - told >= every:
                        told = clock()
                        yield batches or [Numbered(after + 1, [])]
            return
        except Unavailable:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LATER)
        except Gone:
            raise ResponseNotFound(response_id) from None


async def along(
    run: Batches, runs: RunLog | None, response_id: str, identity: Identity, after: int, every: float
) -> Batches:
    """From a run that is under way here. What it becomes the log of it tells, if another may go on with it by then."""
    async with aclosing(run):
        async for batches in run:
            yield batches
            after = batches[-1].first + len(batches[-1].events) - 1
            if batches[-1].events and isinstance(batches[-1].events[-1], TERMINAL):
                return
    if runs is not None:
        async with aclosing(logged(runs, response_id, identity, after, every)) as reading:
            async for batches in reading:
                yield batches


def numbered(records: Iterable[Record], after: int) -> Iterator[Numbered]:
    """What of the records is sent, behind the event of that number."""
    for record in records:
        events: list[StreamEvent] = [event for event in record.events if not isinstance(event, UNSENT)]
        seen = max(after + 1 - record.first, 0)
        if events[seen:]:
            yield Numbered(record.first + seen, events[seen:])


def as_logged(records: Iterable[Record]) -> Response | None:
    """The response as far as the log tells; None where it tells nothing."""
    events = [event for record in records for event in record.events]
    if not events or not isinstance(first := events[0], ResponseCreated):
        return None
    return fold(Run(first.response), events).response


async def unfolded(ended: Callable[[], Awaitable[Response | None]], settings: LoopSettings) -> Batches:
    """From the response alone, once it has ended: `ended` gives it, or nothing as a sign of life."""
    while (response := await ended()) is None:
        yield [Numbered(0, [])]
    events, first = unfold(response, settings), 0
    while some := fitting(events, first, _AT_ONCE):
        yield [Numbered(first, some)]
        first += len(some)


async def last_word(response: Response, after: int, settings: LoopSettings) -> Batches:
    """How a response ended of which nothing else is known behind that number: nobody has told what was said there."""
    yield [Numbered(after + 1, unfold(response, settings)[-1:])]


def unknown_number(after: int) -> InvalidField:
    return InvalidField("starting_after", f"the response has no event with the number {after} so far.")


def no_numbers() -> InvalidField:
    problem = "the events of this response are not kept by their numbers; leave it out to read them from the beginning."
    return InvalidField("starting_after", problem)
