"""A run that several requests read along with, and the face it shows to each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from antwort.api.events import TERMINAL, StreamEvent
from antwort.api.responses import Response
from antwort.concurrency import Once, Signal
from antwort.engine.ended import Ended
from antwort.engine.live import LiveRun
from antwort.engine.pipe import Numbered
from antwort.engine.settings import EngineSettings
from antwort.engine.tape import Tape, TapeReader
from antwort.engine.unfold import unfold
from antwort.errors import AntwortError, ClientLeft, ShuttingDown

T = TypeVar("T")


class SharedRun:
    """One response: on its way, with those who wait for it, or as it ended."""

    def __init__(self, request_hash: bytes, expires_at: int, settings: EngineSettings) -> None:
        self.request_hash, self.expires_at = request_hash, expires_at
        self._settings = settings
        self.signal = Signal()
        """Tells its plan to stop: nobody waits for it any more."""
        self.is_owner: Once[None] = Once()
        """Whether the key is known to be its own, or another's: the store has been asked."""
        self.started: Once[None] = Once()
        self.settled: Once[None] = Once()
        """It is decided whether it still stands for the key, now that it has ended."""
        self.is_void = False
        """It is about not to stand for the key any more: all have left it before a tool was started, or it has failed
        and may be tried again.
        """
        self.is_ended = False
        self.is_fresh = False
        """Whether it was started by one of those who read along, and not found in the store."""
        self.response_id: str | None = None
        self.live: LiveRun | None = None
        self.response: Response | None = None
        """As it ended."""
        self.tape: Tape | None = None
        """What a streamed run has sent."""
        self.readers: set[Reader] = set()
        self.accountant: Reader | None = None
        """Who says what the run has taken: the one who started it or, if that one has left, another who reads along."""

    def join(self, *, is_first: bool) -> Reader:
        reader = Reader(self, is_first=is_first)
        self.readers.add(reader)
        if self.accountant is None and not self.is_ended:
            self.accountant = reader
        return reader

    def begin(self, live: LiveRun, *, is_streamed: bool) -> None:
        self.live, self.response_id, self.is_fresh = live, live.response_id, True
        self.tape = Tape(has_numbers=lambda: live.has_numbers) if is_streamed else None
        self.started.set(None)
        if not self.readers:
            if live.goes_on:
                live.promote()
            else:
                live.leave()

    def found(self, response: Response, events: Sequence[StreamEvent] | None) -> None:
        """It has ended long ago. The `events` that it sent then, where they are known."""
        self.response, self.is_ended = response, True
        self.tape = None if events is None else Tape(events, is_ended=True)
        self.started.set(None)

    async def follow(self, live: LiveRun) -> None:
        """Take down what the run sends, until it has ended."""
        while batches := await live.read():
            for batch in batches:
                self._take(batch)
        if self.tape is not None:
            self.tape.end()
        await live.wait()

    def _take(self, batch: Numbered) -> None:
        if self.tape is None:
            return
        if not batch.events:
            self.tape.tick()
            return
        if isinstance(batch.events[-1], TERMINAL):
            self.has_ended()
        self.tape.add(batch.events)

    def has_ended(self) -> None:
        """Those who are told of it may send the next request at once."""
        self.is_ended = True
        self.is_void = self.is_void or (self.live is not None and self.live.is_worth_another_try)

    def doubt(self) -> None:
        """One of those who read along was told of an error, and may send the next request at once. It waits until it is
        decided whether that is a new try; once it is, it stays so.
        """
        self.is_void = self.is_void or not self.settled.is_set

    def end(self, response: Response) -> None:
        """Only what it came to is kept."""
        self.response, self.live, self.is_ended = response, None, True
        self.readers.clear()

    def taped(self) -> Tape:
        """Of a run that was not streamed, and of one of which only that is on record, they are made from the
        response.
        """
        if self.tape is None:
            assert self.response is not None
            self.tape = Tape(unfold(self.response, self._settings), is_ended=True)
        return self.tape

    def drop(self, reader: Reader) -> None:
        """The run goes on as long as there is another reader, and when a tool was started: what it came to is there
        for the next request with the key, and nothing is done twice.
        """
        self.readers.discard(reader)
        if self.is_ended:
            return
        goes_on = bool(self.readers) or (self.live is not None and (self.live.has_acted or self.live.goes_on))
        if goes_on and self.accountant is reader:
            self.accountant = next(iter(self.readers), None)
        if goes_on:
            if not self.readers and self.live is not None:
                self.live.promote()
            return
        self.is_void = True
        self.signal.set(ClientLeft())
        if self.live is not None:
            self.live.leave()


class Reader:
    """One request, and the response it waits for. Whoever holds it reads the events, or waits for the result, or
    leaves: the others are not disturbed.
    """

    def __init__(self, shared: SharedRun, *, is_first: bool) -> None:
        self._shared, self._is_first = shared, is_first
        self._signal = Signal()
        self._live: LiveRun | None = None
        self._tape: TapeReader | None = None

    async def started(self) -> None:
        """Until there is a response; raises why there is none."""
        await self._shared.started.wait()
        self._live = self._shared.live

    @property
    def is_replay(self) -> bool:
        """Whether another request has started the run."""
        return not (self._is_first and self._shared.is_fresh)

    @property
    def response_id(self) -> str:
        return self.response.id

    @property
    def response(self) -> Response:
        """The response as it stands."""
        if self._live is not None:
            return self._live.response
        assert self._shared.response is not None, "it has started"
        return self._shared.response

    async def answered(self) -> None:
        """Until the backend has answered; what went wrong before that is raised."""
        if self._live is not None:
            await self._unless_left(self._live.answered)

    async def read(self) -> list[Numbered]:
        """The next batches, from the first event on; nothing when the stream is over, or the reader has left."""
        try:
            return await self._unless_left(self._read)
        except ClientLeft:
            return []

    async def _read(self) -> list[Numbered]:
        if self._tape is None:
            if self._live is not None and self._shared.tape is None:
                self._shared.response = await self._live.result()
            self._tape = self._shared.taped().reader()
        return await self._tape.read()

    async def whole(self) -> Response:
        """The response as it ended. Raises what went wrong before the backend answered, and `ClientLeft`."""
        if self._live is None:
            return self.response
        response = await self._unless_left(self._live.whole)
        self._shared.has_ended()
        return response

    async def _unless_left(self, waiting: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._signal.race(waiting)
        except ClientLeft:  # the others read on
            raise
        except AntwortError:
            self._shared.doubt()
            raise

    def leave(self) -> None:
        """The client has gone. The run ends itself when it was the last, unless a tool was started."""
        self._signal.set(ClientLeft())
        if self._tape is not None and self._shared.tape is not None:
            self._shared.tape.forget(self._tape)
        self._shared.drop(self)

    @property
    def goes_on_alone(self) -> bool:
        """Whether all have left the run, and it has not ended."""
        shared = self._shared
        return not shared.readers and not shared.is_ended and not shared.is_void and shared.live is not None

    def when_over(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the run has ended, or is left to another process."""
        assert self._live is not None, "it goes on"
        self._live.when_over(tell)

    def stop(self, reason: Exception) -> None:
        """This request is broken off; the run with it, when all are, or nobody else waits for it and no tool was
        started.
        """
        if self._live is None:
            return
        is_alone = len(self._shared.readers) == 1 and not self._live.has_acted
        if isinstance(reason, ShuttingDown) or is_alone:
            self._live.stop(reason)
        else:
            self.leave()

    async def wait(self) -> None:
        """Until the run has ended."""
        if self._live is not None:
            await self._live.wait()

    def account(self) -> Ended | None:
        """Of the run; only one of those who read along has to account for it."""
        return self._live.account() if self._live is not None and self._shared.accountant is self else None
