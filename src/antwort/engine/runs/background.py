"""Run responses of the run log in this process: submit them, claim them, continue them, hand them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import perf_counter

import msgspec

from antwort.api.responses import Response
from antwort.engine.plan import Plan
from antwort.engine.planning import Planner
from antwort.engine.rows import end_unborn, new_run
from antwort.engine.runs.conversation_lock import ConversationLocks
from antwort.engine.runs.event_log import EventLog
from antwort.engine.runs.live import LiveRun, LiveRuns, RunHooks
from antwort.engine.runs.recorders import BatchRecorder
from antwort.engine.runs.recovery import ClaimedRun, Recovery, end_early, given_up, retry_until_available
from antwort.engine.runs.stream_observer import new_observer
from antwort.engine.runs.summary import RunSummary
from antwort.engine.runs.worker import HeldRun, Worker
from antwort.engine.settings import EngineSettings
from antwort.errors import AntwortError, AttemptsExhausted, Cancelled, ClientLeft, Damaged, HandedOver, ShuttingDown
from antwort.identity import TENANT, Identity
from antwort.providers.base import Provider
from antwort.storage.base import Claim, ResponseStore
from antwort.storage.run_log.base import DETACHED, Claimed, Ending, Fenced, RunLog, Unavailable
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")

SUBMIT_ATTEMPTS = 3
"""To put a run into a log that is not available, before its client is told."""
SUBMIT_RETRY_SECONDS = 0.2
DISCARD_SECONDS = 2.0
"""For which a request that failed waits for its row to be ended."""


class Background:
    """This engine's part in the runs of a log."""

    def __init__(
        self,
        runs: RunLog,
        store: ResponseStore,
        provider: Provider,
        planner: Planner,
        locks: ConversationLocks,
        settings: EngineSettings,
        *,
        live: LiveRuns,
        hooks: RunHooks,
        on_summary: Callable[[RunSummary], None],
        vault: Callable[[], Vault],
        clock: Callable[[], float],
        address: str | None = None,
    ) -> None:
        """`on_summary` is called for a run that ended without having been in progress here."""
        self.runs, self._store, self._provider, self._settings = runs, store, provider, settings
        self._live, self._on_summary = live, on_summary
        self._hooks = msgspec.structs.replace(hooks, on_unread=self._on_unread)
        self._recovery = Recovery(runs, store, planner, locks, settings, vault=vault, clock=clock)
        self.worker = Worker(runs, settings.background, self._continue, self._cancel, live, address)
        """This process, as others see it."""
        self._is_leaving = False
        self._queueing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- new runs ----

    async def submit(self, plan: Plan, claim: Claim | None) -> Response:
        """Put a background response into the queue. Raises `QueueFull`."""
        await self.worker.start()
        run = new_run(plan, claim)
        for left in reversed(range(SUBMIT_ATTEMPTS)):
            try:
                await self.runs.submit(run)
                break
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(SUBMIT_RETRY_SECONDS)
        if self.worker.claims:
            self._recovery.keep_plan(plan)
        return run.new.response

    async def launch(self, plan: Plan, claim: Claim | None) -> LiveRun:
        """Start a foreground run that another process can continue: its row is there, and it gets a lease. It takes no
        slot as long as it has a client. With the `claim` of an idempotency key, nobody holds it back.
        """
        try:
            await self.worker.start()
            lease = await self.runs.adopt(self.worker.name, plan.identity, plan.response.id)
        except BaseException as error:
            discarding = self._run_task(self._discard(plan, claim))
            if isinstance(error, Exception):
                await asyncio.wait([discarding], timeout=DISCARD_SECONDS)
            raise
        settings = plan.settings
        log = EventLog(
            recorder=BatchRecorder(self.runs, lease, plan),
            replay_bytes=settings.background.log_bytes if claim is not None and plan.request.stream else 0,
            buffer_events=settings.buffer_events,
            buffer_bytes=settings.buffer_bytes,
            observer=new_observer(settings),
        )
        run = LiveRun(plan, self._provider, log, self._hooks, outlives_client=True, has_key=claim is not None)
        self._live[run.response_id] = run
        self.worker.hold(HeldRun(lease, run, has_client=True), partial(_wait_for_end, run))
        return run

    async def _discard(self, plan: Plan, claim: Claim | None) -> None:
        """End a row whose run was not started, and free its key. The lease may have been granted all the same: then the
        run is claimed as cancelled, and does nothing.
        """
        with suppress(AntwortError):
            await self.runs.cancel(plan.identity, plan.response.id)
        await end_unborn(plan, self._store)
        if claim is not None:
            with suppress(AntwortError):
                await self._store.release(plan.identity, claim.key, plan.response.id)

    def _run_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_unread(self, run: LiveRun) -> None:
        """The last client of a run has left: without a free slot, the run waits in the queue like any other, and where
        that is full, it ends.
        """
        if run.is_durable and not self.worker.take_slot(run.response_id):
            self._run_task(self._queue(run))

    async def _queue(self, run: LiveRun) -> None:
        """Hand a run over, one after the other: each counts in the queue before the next one comes."""
        async with self._queueing:
            try:
                is_full = (await self.runs.load()).queued >= self._settings.background.queue
            except Unavailable:
                is_full = False
            if is_full:
                _log.warning("the run %s ends with its client: as many runs wait as may", run.response_id)
            run.stop(ClientLeft() if is_full else HandedOver())
            await self.worker.wait_for_release(run.response_id)

    async def end(self, identity: Identity, response_id: str) -> None:
        """End a cancelled run that no process holds, whether there is a slot for it or not."""
        await self.worker.start()
        claimed = await self.runs.take(self.worker.name, identity, response_id)
        if claimed is not None:
            self.worker.begin(claimed)

    async def worker_name(self) -> str | None:
        """The name to record for foreground runs of this process, where other processes have to know who runs them."""
        if not self.runs.traits.many:
            return None
        await self.worker.start()
        return self.worker.name

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        """The address of the process that runs a response in the foreground, where only that one knows its events."""
        if not self.runs.traits.many or response_id in self._live:
            return None
        if await self.runs.has_log(identity, response_id):
            return None
        owner = await self.runs.owner(identity, response_id)
        return None if owner is None or owner.name == self.worker.name else owner.address

    # ---- the life of the process ----

    @property
    def is_lasting(self) -> bool:
        """Whether the runs that it holds are there for another process when this one ends."""
        return self.runs.traits.durability != "process"

    async def open(self) -> None:
        """Continue what an earlier process has left. In memory, nothing is."""
        if self.is_lasting:
            await self.worker.start()

    def hand_over(self) -> None:
        """Begin nothing new, and hand over the runs in progress that do not end with the process. Those with a client
        continue: it may see their end.
        """
        if not self.is_lasting:
            self.worker.stop_claiming()
            return
        self._is_leaving = True
        self.worker.hand_over()

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is in progress here any more; what is after so many seconds is stopped."""
        self.hand_over()
        await self.worker.drain(seconds, HandedOver() if self.is_lasting else ShuttingDown())

    async def leave(self) -> None:
        await asyncio.gather(*self._tasks)
        await self.worker.leave()

    # ---- one run ----

    async def _continue(self, held: HeldRun, claimed: Claimed) -> None:
        """Run a claimed run to its end. Raises one of `DETACHED` when it stops before that, and unexpected errors as
        long as there may be another attempt.
        """
        TENANT.set(claimed.identity.tenant)
        try:
            await self._run(held, claimed)
        except DETACHED:
            raise
        except Damaged as error:
            _log.error("the run %s has failed: %s", claimed.lease.run_id, error.message)
            await self._give_up(held, claimed, error)
        except Exception:
            if claimed.attempt <= self._settings.background.attempts:
                raise
            _log.exception("the run %s has failed, and its end cannot be put into its log", claimed.lease.run_id)
            await self._give_up(held, claimed, AttemptsExhausted(claimed.attempt - 1))

    async def _run(self, held: HeldRun, claimed: Claimed) -> None:
        began = perf_counter()
        found = await self._find(held, claimed)
        try:
            plan = await held.signal.race(partial(self._recovery.plan, found))
        except DETACHED:
            raise
        except Exception as error:
            if isinstance(error, ShuttingDown) and self._is_leaving:
                raise HandedOver from error
            await self._end(held, found, error, began)
            return
        recorder = BatchRecorder(self.runs, claimed.lease, plan, len(found.records))
        state, closing_events = found.pick_up(plan.seal)
        try:
            run = LiveRun(
                plan,
                self._provider,
                EventLog(recorder=recorder, first=found.next_number),
                self._hooks,
                run=state,
                opening=closing_events,
                outlives_client=True,
                seconds_before=found.seconds_before,
            )
        except BaseException:
            plan.release()
            raise
        self._live[run.response_id] = run
        held.live = run
        if held.signal.reason is not None:
            run.stop(held.signal.reason)
        if held.is_leaving:
            run.stop(HandedOver())
        elif self._is_leaving:
            run.hand_over()
        await _wait_for_end(run)

    async def _find(self, held: HeldRun, claimed: Claimed) -> ClaimedRun:
        """Load the run. One that is cancelled meanwhile is loaded all the same: its end is to be recorded."""
        find = partial(self._recovery.find, claimed, lambda: held.is_leaving)
        try:
            return await held.signal.race(find)
        except Cancelled:
            return await find()

    async def _end(self, held: HeldRun, found: ClaimedRun, error: Exception, began: float) -> None:
        """End a run that is not continued."""
        plan = found.plan
        held.recorder = recorder = BatchRecorder(self.runs, found.claimed.lease, plan, len(found.records))
        if held.is_leaving:
            recorder.leave()
        try:
            run = await end_early(found, EventLog(recorder=recorder, first=found.next_number), error)
        except Fenced:
            raise recorder.failure or Fenced from None
        seconds = perf_counter() - began + found.seconds_before
        self._on_summary(RunSummary(plan=plan, response=run.response, turns=run.turns, seconds=seconds))

    async def _give_up(self, held: HeldRun, claimed: Claimed, error: Exception) -> None:
        """Record only the outcome of a run that can be neither continued nor ended in its log."""
        is_cancelled = claimed.is_cancelled or isinstance(held.signal.reason, Cancelled)
        response = given_up(claimed, Cancelled() if is_cancelled else error)
        ending = Ending(identity=claimed.identity, response=response, marks=())
        await retry_until_available(lambda: self.runs.give_up(claimed.lease, ending), lambda: held.is_leaving)
        plan, seconds = self._recovery.bare_plan(claimed), self._recovery.seconds_since(claimed)
        self._on_summary(RunSummary(plan=plan, response=response, turns=0, seconds=seconds))

    def _cancel(self, response_id: str) -> None:
        if (run := self._live.get(response_id)) is not None:
            run.stop(Cancelled())


async def _wait_for_end(run: LiveRun) -> None:
    """Raises why the run stopped here, if it has not ended."""
    await run.wait()
    if run.failure is not None:
        raise run.failure
    if run.is_detached:
        raise HandedOver
