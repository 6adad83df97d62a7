"""Idempotency keys: the first request with a key starts a run, and the same request again subscribes to it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.api.wire import encode
from antwort.concurrency import Once, Signal
from antwort.engine.runs.event_log import EventLog
from antwort.engine.runs.fingerprint import checked_key, fingerprint_steps
from antwort.engine.runs.live import LiveRun
from antwort.engine.runs.responses import Responses
from antwort.engine.runs.subscription import LiveSubscription, Subscription
from antwort.errors import AntwortError, ClientLeft, KeyInUse, KeyReused, ResponseNotFound, ServerFault, ShuttingDown
from antwort.event_loop import in_turns
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Claim, ResponseStore

_log = logging.getLogger("antwort.engine")

KeyName: TypeAlias = tuple[str, str, str]
"""Tenant, owner, key."""
Launch: TypeAlias = Callable[[Claim, Signal], Awaitable[LiveRun]]
"""Start the run of a request, and claim its key with the row. The signal stops the planning."""

MAX_KEPT_RUNS = 1000
"""Runs that have ended and are kept in memory for their keys, because they are not stored."""
MAX_KEPT_BYTES = 64 * 2**20


class KeyedRun:
    """The response that a key stands for in this process: one that starts, runs, or has ended and is not stored."""

    def __init__(self, request_hash: bytes, expires_at: int) -> None:
        self.request_hash, self.expires_at = request_hash, expires_at
        self.planning = Signal()
        """Stops the planning: nobody waits for the response any more."""
        self.waiting: list[Waiter] = []
        """Requests that wait for it to start; the first one starts it."""
        self.is_checked: Once[None] = Once()
        """The store was asked whether the key stands for another response."""
        self.run: LiveRun | None = None
        self.response: Response | None = None
        """As it ended, where it is not stored."""
        self.events: EventLog | None = None
        """Those of a response that has ended and is not stored."""
        self.settled: Once[None] = Once()
        """It is decided whether the key stands for the run, now that this has ended."""
        self.is_released = False
        """Whether the key does not stand for the run: it failed and may be run again, or is not started at all."""


Waiter: TypeAlias = asyncio.Future[LiveSubscription | Response]
"""The subscription of a request to the run that has started, or the response that the store has for the key."""


class IdempotencyKeys:
    """The keys of an engine. A run with a key outlives its client, and nobody holds it back."""

    def __init__(self, store: ResponseStore, responses: Responses, clock: Callable[[], float], seconds: float) -> None:
        """A key is remembered for so many `seconds`."""
        self._store, self._responses, self._clock, self._seconds = store, responses, clock, seconds
        self._runs: dict[KeyName, KeyedRun] = {}
        self._kept = KeptRuns()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many keys stand for a response in this process."""
        return len(self._runs)

    @property
    def unsettled(self) -> int:
        """How many runs with a key are in progress, or are about to be settled."""
        return len(self._tasks)

    async def subscribe(self, request: CreateRequest, identity: Identity, key: str, launch: Launch) -> Subscription:
        """Subscribe to the response that the key stands for: one that has ended, one in progress, or a new one.

        Raises `KeyReused` when that is the response to another request, `KeyInUse` when another process runs it and has
        no log of it, and what is wrong with the request.
        """
        name, digest = (identity.tenant, identity.owner, checked_key(key)), await in_turns(fingerprint_steps(request))
        while True:
            keyed = self._find(name)
            is_first = keyed is None
            if keyed is None:
                keyed = self._start(name, digest, identity, launch)
            elif keyed.is_released:
                await keyed.settled.wait()
                continue
            elif keyed.request_hash != digest:
                await keyed.is_checked.wait()
                if self._runs.get(name) is keyed and not keyed.is_released:
                    raise KeyReused
                continue
            if keyed.response is not None and keyed.events is not None:
                found: Subscription = self._responses.follow_ended(keyed.response, keyed.events)
            elif keyed.run is None:
                started = await self._wait_for_start(keyed)
                if isinstance(started, LiveSubscription):
                    found = self._readable(started.run, started, request)
                else:
                    found, is_first = await self._follow(identity, started), False
            elif keyed.run.ended.is_set:  # it is about to be settled what the key stands for
                await keyed.settled.wait()
                continue
            else:
                found = self._readable(keyed.run, None, request)
            found.is_replay = not is_first
            return found

    def _readable(self, run: LiveRun, client: LiveSubscription | None, request: CreateRequest) -> Subscription:
        """Return a subscription that a request can read: as a `client` of the run, or, where its events so far are not
        there, as one that reads them when it has ended.
        """
        is_readable = run.plan.request.stream and (client is not None or run.log.can_replay(-1))
        if not request.stream or is_readable:
            return client or run.subscribe()
        if client is not None:
            client.leave()
        return self._responses.follow_end(run)

    async def _follow(self, identity: Identity, response: Response) -> Subscription:
        """Subscribe to a response that the store has. Raises `KeyInUse` if another process runs it without a log."""
        if response.status in FINAL:
            return await self._responses.follow(identity, response.id, -1, response)
        if not await self._responses.has_log(identity, response.id):
            raise KeyInUse(None)
        return self._responses.follow_log(identity, response, waits=True)

    async def _wait_for_start(self, keyed: KeyedRun) -> LiveSubscription | Response:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        keyed.waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and isinstance(found := waiter.result(), LiveSubscription):
                found.leave()
            raise
        finally:
            if waiter in keyed.waiting:
                keyed.waiting.remove(waiter)
                if not keyed.waiting:  # nobody wants it any more, and who comes now starts it again
                    keyed.is_released = True
                    keyed.planning.set(ClientLeft())

    async def submit(
        self, request: CreateRequest, identity: Identity, key: str, submit: Callable[[Claim], Awaitable[Response]]
    ) -> tuple[Response, bool]:
        """Return the background response that the key stands for, as it stands, or a new one; and whether it was there.
        All that is known of it is in the store: any process may be asked.

        Raises as `subscribe` does, but never `KeyInUse`.
        """
        name, digest = (identity.tenant, identity.owner, checked_key(key)), await in_turns(fingerprint_steps(request))
        while True:
            while (keyed := self._find(name)) is not None:  # a request in the foreground is another request
                await (keyed.settled if keyed.is_released else keyed.is_checked).wait()
                if self._runs.get(name) is keyed and not keyed.is_released:
                    raise KeyReused
            claim = self._claim(key, digest)
            if (found := await self._recall(identity, claim)) is not None:
                return found, True
            try:
                return await submit(claim), False
            except KeyInUse:  # another request was faster: its response is there now
                continue

    def _find(self, name: KeyName) -> KeyedRun | None:
        keyed = self._runs.get(name)
        if keyed is None:
            return None
        is_expired = name in self._kept and keyed.expires_at <= self._clock()
        if is_expired or (keyed.is_released and keyed.settled.is_set):
            self._forget(name)
            return None
        return keyed

    def _claim(self, key: str, digest: bytes) -> Claim:
        now = int(self._clock())
        return Claim(key=key, request_hash=digest, now=now, expires_at=now + math.ceil(self._seconds))

    # ---- the life of a keyed run ----

    def _start(self, name: KeyName, digest: bytes, identity: Identity, launch: Launch) -> KeyedRun:
        claim = self._claim(name[2], digest)
        keyed = self._runs[name] = KeyedRun(digest, claim.expires_at)
        task = asyncio.create_task(self._run(name, keyed, identity, claim, launch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return keyed

    async def _run(self, name: KeyName, keyed: KeyedRun, identity: Identity, claim: Claim, launch: Launch) -> None:
        """A task of its own: the request that comes first may leave, and others still wait for the response."""
        try:
            found = await self._recall(identity, claim)
            keyed.is_checked.set(None)
            if found is None:
                keyed.run = run = await launch(claim, keyed.planning)
                # All at once, before the run begins: none of them misses an event.
                self._wake(keyed, [run.subscribe() for _ in keyed.waiting])
                if not run.clients:
                    run.stop(ClientLeft())
                await run.wait()
                if not run.is_detached:  # else the process that continues it records its end, for the key as well
                    await self._settle(name, keyed, run)
            else:
                self._wake(keyed, [found for _ in keyed.waiting])
        except Exception as error:
            if keyed.run is not None:
                _log.error("the end of a run with a key could not be recorded", exc_info=error)
            self._fail(keyed, error)
        finally:
            if name not in self._kept and self._runs.get(name) is keyed:
                self._forget(name)
            self._fail(keyed, ServerFault("The run was broken off."))
            keyed.is_checked.set(None)
            keyed.settled.set(None)

    def _wake(self, keyed: KeyedRun, found: Sequence[LiveSubscription | Response]) -> None:
        waiting, keyed.waiting = keyed.waiting, []
        for waiter, each in zip(waiting, found, strict=True):
            if not waiter.done():
                waiter.set_result(each)
            elif isinstance(each, LiveSubscription):
                each.leave()

    def _fail(self, keyed: KeyedRun, error: Exception) -> None:
        waiting, keyed.waiting = keyed.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)

    async def _recall(self, identity: Identity, claim: Claim) -> Response | None:
        """The response that the store has for the key. Raises `KeyReused` if it is that of another request."""
        claimed = await self._store.claimed(identity, claim.key, claim.now)
        if claimed is None:
            return None
        if claimed.request_hash != claim.request_hash:
            raise KeyReused
        try:
            return await self._responses.retrieve(identity, claimed.response_id)
        except ResponseNotFound:  # it was deleted just now
            return None

    async def _settle(self, name: KeyName, keyed: KeyedRun, run: LiveRun) -> None:
        """A run that failed before anything was sent, or for a reason that may pass, frees its key: the next request is
        a new attempt, unless a tool was started. Every other outcome keeps the key.
        """
        if not run.clients and not run.is_durable:
            _note_unread(run)
        has_failed = run.answered.error is not None or isinstance(run.signal.reason, ClientLeft) or run.may_be_retried
        keyed.is_released = has_failed and not run.tools.has_acted
        if not keyed.is_released:
            if not run.response.store and self._runs.get(name) is keyed:
                keyed.run, keyed.response, keyed.events = None, run.response, run.log
                run.log.recorder = None  # it holds the plan
                for surplus in self._kept.add(name, run.log.kept_bytes + 2 * len(encode(run.response))):
                    self._forget(surplus)
        elif run.response.store:
            try:
                await self._store.release(run.identity, name[2], run.response_id)
            except AntwortError as error:
                _log.warning("the key of the response %s could not be released: %s", run.response_id, error.message)

    def _forget(self, name: KeyName) -> None:
        self._runs.pop(name, None)
        self._kept.remove(name)

    async def close(self) -> None:
        """What is not in progress yet does not begin any more."""
        for keyed in self._runs.values():
            keyed.planning.set(ShuttingDown())
        await asyncio.gather(*self._tasks)


class KeptRuns:
    """The names and sizes of ended runs that are kept in memory. When they are too many or too large, the identity that
    has most gives up its oldest, so that one that sends much does not evict those of others.
    """

    def __init__(self, max_count: int = MAX_KEPT_RUNS, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._by_owner: dict[tuple[str, str], OrderedDict[KeyName, int]] = {}
        self._count = self._size = 0

    def __contains__(self, name: KeyName) -> bool:
        return name in self._by_owner.get(name[:2], ())

    def add(self, name: KeyName, size: int) -> list[KeyName]:
        """Add a run, and return those that have to go."""
        self._by_owner.setdefault(name[:2], OrderedDict())[name] = size
        self._count, self._size = self._count + 1, self._size + size
        evicted: list[KeyName] = []
        while self._size > self._max_bytes or self._count > self._max_count:
            is_large = self._size > self._max_bytes
            most = max(self._by_owner.values(), key=lambda sizes: sum(sizes.values()) if is_large else len(sizes))
            evicted.append(next(iter(most)))
            self.remove(evicted[-1])
        return evicted

    def remove(self, name: KeyName) -> None:
        sizes = self._by_owner.get(name[:2])
        if sizes is not None and name in sizes:
            self._count, self._size = self._count - 1, self._size - sizes.pop(name)
            if not sizes:
                del self._by_owner[name[:2]]


def _note_unread(run: LiveRun) -> None:
    """Report a run that no request reports: those that asked for it have left."""
    summary = run.summary()
    usage, details = summary.response.usage, summary.response.incomplete_details
    note(
        _log,
        logging.INFO,
        "a run has ended that nobody reads any more; its key stands for it",
        response_id=run.response_id,
        key=run.identity.key or None,
        model=summary.response.model[:100],
        response_status=summary.response.status,
        reason=None if details is None else details.reason,
        turns=summary.turns,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
    )
