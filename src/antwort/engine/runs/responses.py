"""Retrieve, list, follow, cancel and delete responses: on record, and in progress here or in another process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from antwort.api.events import TERMINAL, ResponseCreated, RunEvent
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.api.wire import replace
from antwort.concurrency import backoff
from antwort.engine.history.calls import call_id_of, results_in, unanswered_server_call
from antwort.engine.loop.fold import Run, fold
from antwort.engine.resources import Resources
from antwort.engine.runs.event_log import EventLog, NumberedBatch, numbered
from antwort.engine.runs.live import LiveRun, LiveRuns
from antwort.engine.runs.replay import replay_events
from antwort.engine.runs.subscription import Batches, LiveSubscription, StoredSubscription, Subscription
from antwort.engine.runs.worker import Worker
from antwort.engine.settings import EngineSettings
from antwort.errors import (
    AntwortError,
    ApprovalInUse,
    Cancelled,
    Damaged,
    InvalidField,
    KeyInUse,
    MakerAway,
    ResponseNotFound,
)
from antwort.identity import Identity
from antwort.storage.base import (
    CallClaim,
    CallResult,
    Decision,
    Page,
    ResponsePage,
    Wanted,
)
from antwort.storage.run_log import Gone, Outline, Unavailable

_NO_NUMBERS = "the events of this response are not kept by their numbers; leave it out to read them from the beginning."

CANCEL_SECONDS = 10.0
"""Limit of the wait for the end of a cancelled run. Its tools get `tool_grace`."""
LAST_READ_SECONDS = 0.5
"""For which readers of runs that have ended may still read when the process stops."""
MAX_POLL_SECONDS = 0.25
"""Between two checks whether a run in another process has ended."""


class Responses:
    """All responses that an identity can see. One that is not there, or belongs to another identity, is not found."""

    def __init__(self, resources: Resources, worker: Worker | None, live: LiveRuns) -> None:
        self._store, self._runs, self._settings = resources.store, resources.runs, resources.settings
        self._clock, self._worker, self._live = resources.clock, worker, live
        self._subscriptions: WeakSet[StoredSubscription] = WeakSet()
        self._read_now: WeakValueDictionary[tuple[str, str, str], Response] = WeakValueDictionary()
        """Responses that have readers right now, by tenant, owner and id."""
        self._loading = asyncio.Lock()

    def _find_unlogged(self, identity: Identity, response_id: str) -> LiveRun | None:
        """Return the run of a response that is in progress here, unless the run log has its events."""
        run = self._live.find(identity, response_id)
        return None if run is None or run.is_durable else run

    def _find_durable(self, identity: Identity, response_id: str) -> LiveRun | None:
        """Return the run of a response that is in progress here and recorded in the run log."""
        run = self._live.find(identity, response_id)
        return run if run is not None and run.is_durable else None

    # ---- reading ----

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        run = self._find_unlogged(identity, response_id)
        if run is not None and run.response.store:
            return run.response if run.response.status not in FINAL else await _result(run)
        return await self._so_far(identity, await self._stored(identity, response_id))

    async def _stored(self, identity: Identity, response_id: str) -> Response:
        await self._live.catch_up(identity, response_id)
        found = await self._store.get(identity, response_id)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def _so_far(self, identity: Identity, stored: Response) -> Response:
        """Of a durable run that has not ended, return the fold of its log, where that can be read."""
        if stored.status in FINAL or self._runs is None or not await self._has_log(identity, stored.id):
            return stored
        events: list[RunEvent] = []
        try:
            async with aclosing(self._runs.read(identity, stored.id)) as reading:
                async for records in reading:
                    events += [event for record in records for event in record.events]
        except (Gone, Damaged):
            return stored
        if not events or not isinstance(first := events[0], ResponseCreated):
            return stored
        return fold(Run(first.response), events).response

    async def list(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Return stored responses; of one that runs, the response so far."""
        await self._live.catch_up_all(identity)
        found = await self._store.responses(identity, page, wanted)
        return replace(found, responses=tuple([await self._listed(identity, each) for each in found.responses]))

    async def _listed(self, identity: Identity, stored: Response) -> Response:
        """Of a run that has ended, return the record: its end does not show before it is written."""
        run = self._find_unlogged(identity, stored.id)
        if run is None:
            return await self._so_far(identity, stored)
        return stored if run.response.status in FINAL else run.response

    # ---- ending them ----

    async def delete(self, identity: Identity, response_id: str) -> None:
        """A running response is cancelled first, so that its record is true until it goes."""
        if await self._is_running(identity, response_id):
            await self.cancel(identity, response_id)
        if not await self._store.delete(identity, response_id):
            raise ResponseNotFound(response_id)
        self._live.unrecorded.discard(response_id)

    async def _is_running(self, identity: Identity, response_id: str) -> bool:
        """One whose outcome waits to be recorded has ended: to be deleted, it need not be recorded first."""
        run = self._live.find(identity, response_id)
        if run is not None:
            return run.response.store
        ended = self._live.unrecorded.get(response_id)
        if ended is not None and ended.identity.is_same(identity):
            return False
        return (await self._stored(identity, response_id)).status not in FINAL

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """Return the response as it ended; one that had ended before is unchanged, and of a paused one the open calls
        are settled. The end is waited for, in whichever process; one that takes longer is returned as it stands.
        """
        run = self._live.find(identity, response_id)
        if run is not None and not run.is_durable:
            run.stop(Cancelled())
            return await _result(run)
        found = await self._stored(identity, response_id)
        if found.status == "requires_action":
            await self._settle(identity, found)
        if found.status in FINAL or self._runs is None:
            return found
        if run is not None:
            run.stop(Cancelled())
        if await self._runs.cancel(identity, response_id):
            if run is None and self._worker is not None:
                await self._worker.end_cancelled(identity, response_id)
            await self._is_over(identity, response_id, CANCEL_SECONDS)
        return await self.retrieve(identity, response_id)

    async def _settle(self, identity: Identity, paused: Response) -> None:
        """Decline the open calls and approvals of a paused response, so that no follow-up runs them."""
        result = CallResult("The call was not run: the response was cancelled.", is_error=True)
        for call_id in _open_calls(paused):
            claim = CallClaim(call_id=call_id, settled_by=paused.id, response_id=paused.id, result=result)
            await self._store.claim_call(identity, claim)
        requests = [item.id for item in paused.output if isinstance(item, McpApprovalRequest)]
        found = await self._store.find_approvals(identity, requests) if requests else {}
        for approval in found.values():
            if approval.status == "pending":
                with suppress(ApprovalInUse):  # decided meanwhile
                    await self._store.decide(identity, paused.id, [Decision(id=approval.id, status="denied")])

    # ---- following them ----

    async def follow_known(self, identity: Identity, known: Response) -> Subscription:
        """Subscribe for a retry of the request that started a response, which was read just now. Raises `KeyInUse` if
        another process runs it without a log.
        """
        is_running = known.status not in FINAL and not known.background
        if not is_running:
            return await self.follow(identity, known.id, known=known)
        if not await self._has_log(identity, known.id):
            raise KeyInUse(None)
        return self.follow_log(identity, known)

    async def follow(
        self, identity: Identity, response_id: str, after: int = -1, known: Response | None = None
    ) -> Subscription:
        """Read the events behind that number. `known` is the response, if it was read just now.

        Raises `InvalidField` naming `starting_after` where there is no event of that number so far, or the events are
        not kept by their numbers.
        """
        run = self._find_unlogged(identity, response_id)
        if run is not None and run.log.is_whole:
            if after >= run.log.next:
                raise _unknown_number(after)
            return LiveSubscription(run, run.log.read(after))
        await self._live.catch_up(identity, response_id)
        if self._runs is not None:
            outline = await self._runs.outline(identity, response_id)
            if outline is not None and outline.has_log:
                if after >= 0 and after >= await self._runs.sent(identity, response_id):
                    raise _unknown_number(after)
                return self.follow_log(identity, known or outline.response, after)
        response = await self._loaded(identity, response_id)
        if response.status not in FINAL and self._runs_elsewhere(response_id):
            raise MakerAway
        if after >= 0 and response.status not in ("failed", "cancelled"):
            raise InvalidField("starting_after", _NO_NUMBERS)
        ended = partial(self._ended, identity, response_id, self._settings.keepalive_interval)
        return self._stored_subscription(identity, response, _replayed(ended, self._settings, after))

    async def _has_log(self, identity: Identity, response_id: str) -> bool:
        """Whether any process can read the events of the response, while it runs or afterwards."""
        outline = None if self._runs is None else await self._runs.outline(identity, response_id)
        return outline is not None and outline.has_log

    def follow_end(self, run: LiveRun) -> StoredSubscription:
        """Read a run whose first events are no longer buffered: from the response, once it has ended."""

        async def ended_soon() -> Response | None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.keepalive_interval):
                    return await run.ended.wait()
            return None

        return StoredSubscription(run.response, _replayed(ended_soon, self._settings), run.ended.wait)

    def follow_ended(self, response: Response, log: EventLog) -> StoredSubscription:
        """Read a response in memory that has ended, with its events where they are buffered."""

        async def ended() -> Response:
            return response

        if not log.is_whole:
            log = EventLog.of_response(replay_events(response, self._settings))
        return StoredSubscription(response, log.read().batches(), ended)

    def follow_log(self, identity: Identity, response: Response, after: int = -1) -> StoredSubscription:
        """Read the log of a durable run, or of a stored stream that has ended."""
        assert self._runs is not None, "there is a log"
        batches = self._logged(identity, response.id, after, self._settings.keepalive_interval)
        return self._stored_subscription(identity, response, batches)

    async def _logged(self, identity: Identity, response_id: str, after: int, every: float) -> Batches:
        """Read the log of a run, also while it is written: what is on record, and from there on the buffer of the run
        where it is in progress here. A log that is not available is retried. Keep-alives come every `every` seconds at
        most.
        """
        assert self._runs is not None, "there is a log"
        clock = asyncio.get_running_loop().time
        last_sent, pauses, is_over = clock(), backoff(), False
        while not is_over:
            run = self._find_durable(identity, response_id)
            reader = None if run is None else run.log.read()  # from now on; what is on record is before it
            try:
                async with aclosing(self._runs.read(identity, response_id, after, follow=run is None)) as reading:
                    async for records in reading:
                        batches, pauses = numbered(records), backoff()
                        after = records[-1].next - 1 if records else after
                        if batches or clock() - last_sent >= every:
                            yield batches or [NumberedBatch(after + 1, [])]
                            last_sent = clock()
                        is_over = bool(records) and records[-1].is_last
                        if run is None and self._find_durable(identity, response_id) is not None:  # it has begun here
                            break
                    else:
                        is_over = is_over or run is None
                while reader is not None and not is_over:
                    batches = await reader.read_within(max(every - clock() + last_sent, 0.0))
                    if not batches:
                        break
                    batches = [news for batch in batches if (news := batch.after(after)).events]
                    if batches or clock() - last_sent >= every:
                        yield batches or [NumberedBatch(after + 1, [])]
                        last_sent = clock()
                    if batches:
                        after = batches[-1].first + len(batches[-1].events) - 1
                        is_over = isinstance(batches[-1].events[-1], TERMINAL)
            except Unavailable:
                await asyncio.sleep(next(pauses))
            except Gone:
                raise ResponseNotFound(response_id) from None
            finally:
                if reader is not None:
                    reader.close()

    def _stored_subscription(self, identity: Identity, response: Response, batches: Batches) -> StoredSubscription:
        ended, over = (partial(each, identity, response.id) for each in (self._ended, self._is_over))
        subscription = StoredSubscription(response, batches, ended, over=over)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """Close readers of runs that continue elsewhere. Runs that have ended here can be read for a moment."""
        loop = asyncio.get_running_loop()
        for subscription in [each for each in self._subscriptions if each.response.status not in FINAL]:
            loop.call_later(LAST_READ_SECONDS, subscription.leave)
            self._subscriptions.discard(subscription)

    async def _loaded(self, identity: Identity, response_id: str) -> Response:
        """As `retrieve`. One that has ended is in memory once, however many read it."""
        if self._live.find(identity, response_id) is not None:
            return await self.retrieve(identity, response_id)
        key = (identity.tenant, identity.owner, response_id)
        async with self._loading:
            found = self._read_now.get(key)
            if found is None:
                found = await self.retrieve(identity, response_id)
            elif await self._outline(identity, response_id) is None:
                raise ResponseNotFound(response_id)
            if found.status in FINAL:
                self._read_now[key] = found
        return found

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        """The address of the process that runs a response in the foreground, where only that one knows its events."""
        if self._runs is None or self._worker is None or not self._runs_elsewhere(response_id):
            return None
        if await self._has_log(identity, response_id):
            return None
        owner = await self._runs.owner(identity, response_id)
        return None if owner is None or owner.name == self._worker.name else owner.address

    def _runs_elsewhere(self, response_id: str) -> bool:
        """Whether another process runs a response that has not ended."""
        return self._runs is not None and self._runs.traits.many and response_id not in self._live

    # ---- waiting for their end ----

    async def until_ended(self, identity: Identity, response_id: str) -> None:
        with suppress(AntwortError):
            await self._is_over(identity, response_id)

    async def _ended(self, identity: Identity, response_id: str, seconds: float = math.inf) -> Response | None:
        """The response as it ended, wherever it runs; None when that takes longer."""
        is_over = await self._is_over(identity, response_id, seconds)
        return await self._loaded(identity, response_id) if is_over else None

    async def _is_over(self, identity: Identity, response_id: str, seconds: float = math.inf) -> bool:
        """Whether it has ended within that time, wherever it runs. Its log is read to the end; where there is none that
        can be read, its row is polled.
        """
        is_damaged, clock = False, asyncio.get_running_loop().time
        until, pauses = clock() + seconds, backoff(MAX_POLL_SECONDS / 8, MAX_POLL_SECONDS)
        while True:
            await self._live.catch_up(identity, response_id)
            if (outline := await self._outline(identity, response_id)) is None:
                raise ResponseNotFound(response_id)
            if outline.response.status in FINAL:
                return True
            if (left := until - clock()) <= 0:
                return False
            if not outline.has_log or is_damaged:
                await asyncio.sleep(min(next(pauses), left))
                continue
            try:
                async with asyncio.timeout(None if math.isinf(left) else left):
                    await self._read_to_end(identity, response_id)
            except Damaged:
                is_damaged = True
            except (TimeoutError, ResponseNotFound):  # a log goes with its response, or when the run is given up
                pass

    async def _read_to_end(self, identity: Identity, response_id: str) -> None:
        """Read the log of a run from where it is now to its end."""
        assert self._runs is not None, "there is a log"
        last = await self._runs.sent(identity, response_id) - 1
        async with aclosing(self._logged(identity, response_id, last, math.inf)) as reading:
            async for _ in reading:
                pass

    async def _outline(self, identity: Identity, response_id: str) -> Outline | None:
        """A stored response, without its output where that can be left out; None: there is none."""
        if self._runs is not None:
            return await self._runs.outline(identity, response_id)
        found = await self._store.get(identity, response_id)
        return None if found is None else Outline(response=found, has_log=False)


def _open_calls(paused: Response) -> set[str]:
    """Return the ids of the calls without a result, the client's and the server's."""
    asked = {item.call_id for item in paused.output if isinstance(item, FunctionCall | CustomToolCall)}
    asked |= {call_id_of(call) for item in paused.output if (call := unanswered_server_call(item)) is not None}
    return asked - results_in(paused.output)


async def _result(run: LiveRun) -> Response:
    """Return the response as it ended, or, where that takes long, as it stands. Raises `Unavailable` when its outcome
    cannot be recorded: it may not be the outcome yet.
    """
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            return await run.ended.wait()
    except TimeoutError:
        if run.response.status in FINAL:
            raise Unavailable from None
        return run.response


def _unknown_number(after: int) -> InvalidField:
    return InvalidField("starting_after", f"the response has no event with the number {after} so far.")


# ---- where the events of stored subscriptions come from ----


async def _replayed(
    ended: Callable[[], Awaitable[Response | None]], settings: EngineSettings, after: int = -1
) -> Batches:
    """Make the events from the response, once it has ended: `ended` returns it, or None for a keep-alive. Behind a
    number there is only the last event, as nothing is known of the others.
    """
    while (response := await ended()) is None:
        yield [NumberedBatch(0, [])]
    events = replay_events(response, settings)
    log = EventLog.of_response(events) if after < 0 else EventLog.of_response(events[-1:], first=after + 1)
    async with aclosing(log.read().batches()) as reading:
        async for batches in reading:
            yield batches
