"""An authenticated WebSocket connection: it answers requests one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from time import perf_counter

import msgspec

from antwort.api.events import TERMINAL
from antwort.api.standard import wording
from antwort.engine.engine import Engine
from antwort.engine.history.recent_responses import RecentMemory, RecentResponses
from antwort.engine.runs.subscription import Subscription
from antwort.errors import AntwortError, ClientLeft, RequestCancelled, ShuttingDown
from antwort.event_loop import in_turns, next_turn
from antwort.server.channel import Channel
from antwort.server.errors import Headers, socket_failure, unexpected
from antwort.server.exchange import REQUEST_ID, ClientGone, Exchange
from antwort.server.inbox import Inbox
from antwort.server.line import cause_of
from antwort.server.lingering import Patience
from antwort.server.messages import LONGEST_NAME, CreateMessage, SteerFailed, message_steps, written
from antwort.server.quotas import Quotas
from antwort.server.sse import SLICE

logger = logging.getLogger("antwort.transport")

_CLIENT_GONE = 499  # for the log; never sent


class Terms(msgspec.Struct, frozen=True):
    """Settings and resources that all connections share."""

    engine: Engine
    quotas: Quotas
    body_limit: int
    memory: int
    budget: RecentMemory
    begun: Callable[[Exchange], None]
    """Called when a turn begins."""
    answered: Callable[[Exchange, float], None]
    """Called when a turn has ended, with its duration in seconds."""


class Session:
    """Read messages and answer them. `open_turn` creates the exchange of a turn, for log and metrics."""

    def __init__(self, terms: Terms, channel: Channel, inbox: Inbox, open_turn: Callable[[int], Exchange]) -> None:
        self._terms, self._channel, self._inbox, self._open_turn = terms, channel, inbox, open_turn
        self._engine = terms.engine
        self._strict = terms.engine.settings.strict
        self._words = wording(strict=self._strict)
        self._recent = RecentResponses(terms.memory, terms.budget)
        self._is_answering = False
        self.turns = 0

    async def run(self) -> None:
        """Answer messages until there are no more. Raises `ClientGone`, and `BodyTooLarge` for a message."""
        while await self._take_next():
            pass

    def forget(self) -> None:
        """Drop the response that a next turn could have continued."""
        self._recent.clear()

    async def refuse(self, error: AntwortError) -> None:
        """Send an error that belongs to no turn."""
        await self._channel.tell(socket_failure(error, strict=self._strict))

    async def dismiss(self, reason: AntwortError) -> bool:
        """Answer the messages that wait with an error; return whether one of them was a request."""
        waiting = [await self._parse(message) for message in self._inbox.left()]
        for each in waiting:
            await self._reply(each, reason)
        return any(isinstance(each, CreateMessage) for each in waiting)

    @property
    def is_answering(self) -> bool:
        """Whether a response is in progress."""
        return self._is_answering

    async def _take_next(self) -> bool:
        """Answer the next message; return whether there was one. Nothing of the last one is in memory meanwhile."""
        message = await self._inbox.next()
        if message is None:
            return False
        parsed = await self._parse(message)
        del message
        await self._reply(parsed)
        return True

    async def _reply(
        self, parsed: CreateMessage | SteerFailed | AntwortError | None, refusal: AntwortError | None = None
    ) -> None:
        if isinstance(parsed, SteerFailed):
            await self._channel.tell(self._words.encode(parsed))
        elif isinstance(parsed, AntwortError):
            await self._turn(None, parsed)
        elif parsed is not None:
            await self._turn(parsed, refusal)

    async def _parse(self, message: str | bytes) -> CreateMessage | SteerFailed | AntwortError | None:
        try:
            return await in_turns(message_steps(message, self._engine.settings.limits))
        except AntwortError as error:
            return error

    # ---- one turn ----

    async def _turn(self, message: CreateMessage | None, error: AntwortError | None = None) -> None:
        """Answer one request, or fail with `error`. The client gets every outcome, and each turn is one log line."""
        self.turns += 1
        exchange, began = self._open_turn(self.turns), perf_counter()
        REQUEST_ID.set(exchange.request_id)
        self._terms.begun(exchange)
        try:
            if error is not None:
                raise error
            assert message is not None
            self._is_answering = True
            await self._respond(exchange, message)
        except ClientGone:
            exchange.status = _CLIENT_GONE
            raise
        except AntwortError as refusal:
            exchange.cause = cause_of(refusal)
            await self._fail(exchange, message, refusal)
        except Exception:
            logger.exception("a message failed in a way nobody expected")
            await self._fail(exchange, message, unexpected())
        finally:
            self._is_answering = False
            self._terms.answered(exchange, perf_counter() - began)

    async def _fail(self, exchange: Exchange, message: CreateMessage | None, error: AntwortError) -> None:
        self._is_answering = False
        lane, hints = None, exchange.with_answer
        if message is not None:
            hints = [*hints, *self._forget(message.previous)]
            given = message.body.get("stream_id")
            lane = given if isinstance(given, str) and len(given) <= LONGEST_NAME else None
        exchange.status, exchange.code = error.sent_status(strict=self._strict), error.code
        await self._channel.tell(socket_failure(error, strict=self._strict, headers=hints, lane=lane))

    def _forget(self, previous: str | None) -> Headers:
        """Drop the response that a failed request wanted to continue, because a retry would fail, too."""
        if previous is None or previous != self._recent.response_id:
            return []
        self._recent.clear()
        return [(b"x-should-retry", b"false")]

    async def _respond(self, exchange: Exchange, message: CreateMessage) -> None:
        engine, identity = self._engine, exchange.identity
        quota = self._terms.quotas.of(identity.key)
        with quota.place(exchange.with_answer):
            lane, request = message.lane, await in_turns(message.request_steps(engine.settings.limits))
            run = await self._inbox.unless_gone(lambda: engine.start(request, identity, recent=self._recent))
            exchange.response_id, exchange.run = run.response_id, run
            self._inbox.follow(run)
            try:
                await run.answered()
                exchange.status, exchange.is_stream = 200, True
                await self._stream(run, lane)
            except BaseException as exc:
                self._leave(run, exc)
                if isinstance(exc, ClientLeft):
                    raise ClientGone from None
                raise
            finally:
                self._inbox.follow(None)
                if run.runs_alone:
                    quota.keep(run)
            self._remember(run, message)

    def _leave(self, run: Subscription, reason: BaseException) -> None:
        """Leave the run, and stop it if the server has cancelled this task."""
        if isinstance(reason, asyncio.CancelledError):
            run.stop(ShuttingDown() if self._engine.is_draining else RequestCancelled())
        run.leave()

    def _remember(self, run: Subscription, message: CreateMessage) -> None:
        if not (chain := run.chain()):
            return
        if run.response.status == "failed":
            self._recent.evict(message.previous)
        else:
            self._recent.keep(chain)

    # ---- its events ----

    async def _stream(self, run: Subscription, lane: str | None) -> None:
        """Write events as they come, up to the terminal event."""
        self._channel.go_on()
        patience = Patience(self._channel, run.wait)
        try:
            while batches := await run.read():
                events = batches[-1].events
                is_end = bool(events) and isinstance(events[-1], TERMINAL)
                if is_end:
                    self._channel.linger()  # the client may be behind already
                await self._write(written(batches, self._words, lane), patience)
                if is_end:
                    self._channel.linger()
                    return
                del batches, events
                if self._channel.is_behind:  # events wait in the bounded buffer of the run
                    patience.look()
                    await self._channel.drained()
        finally:
            patience.end()
        raise ClientGone

    async def _write(self, messages: Iterator[bytes | Iterator[bytes]], patience: Patience) -> None:
        """Write messages, small ones together, and check after each `SLICE` bytes whether the client keeps up."""
        texts: list[bytes] = []
        size = 0
        for message in messages:
            if isinstance(message, bytes):
                texts.append(message)
                size += len(message)
                if size < SLICE:
                    continue
            patience.look()
            await self._channel.write(texts)
            texts, size = [], 0
            if not isinstance(message, bytes):
                await self._channel.write_pieces(message, patience)
            await next_turn()
        if texts:
            patience.look()
            await self._channel.write(texts)
