"""Read the events of a response, or wait for its result: wherever it runs, and whether or not it has ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from antwort.api.events import TERMINAL, StreamEvent
from antwort.api.responses import CompactedResponse, Response
from antwort.api.status import FINAL
from antwort.concurrency import Signal
from antwort.engine.context.compaction import compacted_response
from antwort.engine.runs.event_log import LogReader, NumberedBatch
from antwort.engine.runs.recorders import sealed_input
from antwort.errors import AntwortError, BackendTimeout, ClientLeft, DeadlinePassed, RequestCancelled, ShuttingDown
from antwort.storage.base import Link

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun, RunSummary

Batches: TypeAlias = AsyncGenerator[list[NumberedBatch], None]


class Subscription:
    """One reader of a response: it reads the events, or waits for the result, or leaves."""

    is_replay = False
    """Whether an earlier request has started the response."""

    response_id: str
    _left: Signal
    """Set when the reader leaves."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def response(self) -> Response:
        """The response so far."""
        raise NotImplementedError

    @property
    def has_left(self) -> bool:
        return self._left.reason is not None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to read because the response has ended."""
        raise NotImplementedError

    async def answered(self) -> None:
        """Wait until the backend has answered, as long as `response.created` is held back. Raises what went wrong
        before that: nothing has been sent yet, so it can be an HTTP error.
        """

    async def read(self) -> list[NumberedBatch]:
        """Return the next batches, at least one; nothing when the stream is over, or the reader has left."""
        raise NotImplementedError

    async def result(self) -> Response:
        """Wait for the response as it ended; one in the background is returned as it stands.

        Raises what went wrong before the backend answered, `ClientLeft` when the reader has left a run that continues,
        and `HandedOver` when another process continues it.
        """
        raise NotImplementedError

    async def compacted(self) -> CompactedResponse:
        """Wait for the window that the run of a `CompactRequest` makes. Raises what went wrong, at any time: there is
        no half of it.
        """
        raise NotImplementedError

    async def events(self) -> AsyncGenerator[tuple[int, StreamEvent], None]:
        """Yield the events one by one, each with its number."""
        while batches := await self.read():
            for batch in batches:
                for number, event in enumerate(batch.events, batch.first):
                    yield number, event

    async def wait(self) -> None:
        """Wait until the run has ended, or is left to another process."""
        raise NotImplementedError

    def leave(self) -> None:
        """Stop reading. A run that is this reader's alone ends; every other one continues."""
        self._left.set(ClientLeft())

    def stop(self, _: Exception) -> None:
        """Break this reader off; and, with that reason, a run that is its alone."""
        self.leave()

    async def close(self) -> None:
        self.leave()

    # ---- for logs and rate limits ----

    @property
    def runs_alone(self) -> bool:
        """Whether the run continues here without any reader that has asked for it."""
        return False

    def when_over(self, notify: Callable[[], None]) -> None:
        """Have `notify` called when the run has ended, or is left to another process."""

    def summary(self) -> RunSummary | None:
        """What the run has come to, where this reader's request reports it."""
        return None

    def chain(self) -> tuple[Link, ...]:
        """The response behind those that it continues, where this process runs it; else nothing."""
        return ()


class LiveSubscription(Subscription):
    """A reader of a run in this process."""

    def __init__(self, run: LiveRun, reader: LogReader | None, client: object | None = None) -> None:
        """`client` is its token among the clients of the run, where its request has asked for the response: it started
        the run, or brought the same idempotency key. Others read along.
        """
        self.run, self.response_id = run, run.plan.response.id
        self._reader, self._client, self._left = reader, client, Signal()
        self._ends_run = client is not None and not (run.plan.has_key or run.plan.is_durable)
        """Whether the run ends when this reader leaves. It is then waited for: the request reports what it came to."""

    @property
    def response(self) -> Response:
        return self.run.run.response

    @property
    def is_over(self) -> bool:
        return self.run.ended.is_set and self.run.ended.error is None

    async def answered(self) -> None:
        if self._client is not None:
            wait = self.run.answered.wait
            await (wait() if self._ends_run else self._left.race(wait))

    async def read(self) -> list[NumberedBatch]:
        assert self._reader is not None, "a run that is not streamed is waited for"
        batches = await self._reader.read()
        if not batches and self._ends_run:
            await self.run.wait()
        return batches

    async def result(self) -> Response:
        ended = self.run.ended
        response = await (ended.wait() if self._ends_run else self._left.race(ended.wait))
        if self.run.answered.error is not None:
            raise self.run.answered.error
        return response

    async def compacted(self) -> CompactedResponse:
        run = self.run
        response = await run.ended.wait()
        if response.status == "completed":
            return compacted_response(response, run.plan)
        if isinstance(run.signal.reason, DeadlinePassed):
            raise BackendTimeout("The conversation could not be summed up in time.")
        raise run.error or RequestCancelled()

    async def wait(self) -> None:
        await self.run.wait()

    def leave(self) -> None:
        run, reader = self.run, self._reader
        if self._left.reason is not None or (reader is None and run.ended.is_set):
            return
        self._left.set(ClientLeft())
        if reader is not None:
            reader.close()
        if run.ended.is_set:
            return
        if self._ends_run:
            run.stop(ClientLeft())
        elif self._client is not None:
            run.clients.remove(self._client)
            if not run.clients and run.hooks.on_unread is not None:
                run.hooks.on_unread(run)

    def stop(self, reason: Exception) -> None:
        is_ending = isinstance(reason, ShuttingDown) and not self.run.is_durable
        if self._ends_run or (self._client is not None and is_ending):
            self.run.stop(reason)
        else:
            self.leave()

    @property
    def runs_alone(self) -> bool:
        run = self.run
        return self._client is not None and not (self._ends_run or run.clients or run.ended.is_set)

    def when_over(self, notify: Callable[[], None]) -> None:
        self.run.task.add_done_callback(lambda _: notify())

    def summary(self) -> RunSummary | None:
        clients = self.run.clients
        return self.run.summary() if clients and clients[0] is self._client else None

    def chain(self) -> tuple[Link, ...]:
        plan, run = self.run.plan, self.run.run
        link = Link(
            response=run.response,
            request=plan.sealed.sealed_request(plan.request, plan.response.id),
            input=sealed_input(plan)[0],
            turn_ends=run.turn_ends,
            abandoned=run.abandoned,
        )
        return (*plan.history.chain, link)


class StoredSubscription(Subscription):
    """A reader of a response on record: one that runs in another process, that waits in the queue, or that has ended.
    Leaving changes nothing of it.
    """

    def __init__(
        self,
        response: Response,
        batches: Batches,
        ended: Callable[[], Awaitable[object]],
        *,
        over: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`ended` waits for the end of the run, and may return the response; `over` only waits, where that is
        cheaper.
        """
        self.response_id, self._left = response.id, Signal()
        self._response, self._batches = response, batches
        self._ended, self._over = ended, over or ended

    @property
    def response(self) -> Response:
        """As it stood at first, without its output where that is read from the log; as it ended, once that was read."""
        return self._response

    @property
    def is_over(self) -> bool:
        """Whether the response has ended. It is known only after `read` has returned nothing."""
        return not self.has_left

    async def read(self) -> list[NumberedBatch]:
        try:
            batches = await self._left.race(lambda: anext(self._batches, []))
        except ClientLeft:
            return []
        if batches and batches[-1].events and isinstance(last := batches[-1].events[-1], TERMINAL):
            self._response = last.response
        return batches

    async def result(self) -> Response:
        if self._response.background or self._response.status in FINAL:
            return self._response
        ended = await self._left.race(self._ended)
        return ended if isinstance(ended, Response) else self._response

    async def wait(self) -> None:
        with suppress(AntwortError):
            await self._over()

    async def close(self) -> None:
        self.leave()
        await self._batches.aclose()
