"""Plan responses, put them on record, and start their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial

import msgspec

from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.engine.history.approval_records import check_reachable
from antwort.engine.history.recent_responses import RecentResponses
from antwort.engine.plan import Plan
from antwort.engine.planning import Planner
from antwort.engine.resources import Resources
from antwort.engine.runs.conversation_lock import ConversationLocks
from antwort.engine.runs.event_log import EventLog, new_observer
from antwort.engine.runs.live import LiveRun, LiveRuns
from antwort.engine.runs.recorders import BatchRecorder, TurnRecorder, end_unstarted, new_row, unstored_approvals
from antwort.engine.runs.worker import Worker
from antwort.engine.settings import OnDisconnect
from antwort.errors import AntwortError, ShuttingDown, UnsupportedFeature
from antwort.identity import Identity
from antwort.storage.base import Claim
from antwort.storage.run_log import Lease

ABANDONED = "The server was stopped while the response was being made."
DISCARD_SECONDS = 2.0
"""For which a request that failed waits for its row to be ended."""
_NO_LOG = "Background responses are not offered here: there is no log of runs for the store of the engine."


class Launcher:
    """Start the runs that requests to this process ask for."""

    def __init__(
        self,
        resources: Resources,
        planner: Planner,
        worker: Worker | None,
        locks: ConversationLocks,
        live: LiveRuns,
    ) -> None:
        self._resources, self._settings, self._store = resources, resources.settings, resources.store
        self._planner, self._worker, self._locks, self._live = planner, worker, locks, live
        self._hooks = live.hooks if worker is None else msgspec.structs.replace(live.hooks, on_unread=worker.on_unread)
        self.is_draining = False
        """Whether it takes no new work, and will not again."""
        self.starting = asyncio.Lock()
        """Held while the engine is opened: no row is begun meanwhile."""
        self._has_begun = False
        """Whether there are rows of this process, which must not be taken for a dead one's."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that end rows whose runs did not start."""

    def check_open(self) -> None:
        if self.is_draining:
            raise ShuttingDown

    async def fail_abandoned(self) -> None:
        """End the rows that a dead process left running, unless there are rows of this process by now. The caller holds
        the lock of the start.
        """
        if not self._has_begun:
            await self._store.fail_running(ABANDONED)

    async def plan(self, request: CreateRequest, identity: Identity, recent: RecentResponses | None = None) -> Plan:
        """Answer every question before the first inference. A turn of a conversation waits for those before it, and the
        plan holds the lock from then on: it is launched, or released.
        """
        self.check_open()
        if request.background and self._worker is None:
            raise UnsupportedFeature(_NO_LOG, param="background")
        if request.conversation is None or request.background:  # a background response waits when it is run
            return await self._planner.prepared(request, identity, recent)
        runs, conversation_id = self._resources.runs, request.conversation
        is_busy = None if runs is None else partial(runs.is_busy, identity, conversation_id)
        lock = self._locks.request((identity.tenant, identity.owner, conversation_id), is_busy)
        try:
            plan = await self._planner.prepared(request, identity, recent, lock)
            return msgspec.structs.replace(plan, lock=lock)
        except BaseException:
            lock.release()
            raise

    async def submit(self, plan: Plan, claim: Claim | None = None) -> Response:
        """Put a background response into the queue, and return it as it was queued. Raises `QueueFull`."""
        assert self._worker is not None, "it was planned"
        try:
            self.check_open()
            check_reachable(plan)
            await self._note_row()
            return await self._worker.submit(plan, claim)
        finally:
            plan.release()

    async def launch(
        self, plan: Plan, claim: Claim | None = None, on_disconnect: OnDisconnect | None = None
    ) -> LiveRun:
        """Commit the row, with the claim of its key, then start the run. A run with a key outlives its client."""
        request, background = plan.request, self._settings.background
        is_stored = request.is_stored
        continues = is_stored and (on_disconnect or background.on_disconnect) == "continue"
        lease: Lease | None = None
        try:
            self.check_open()  # planning may have waited
            if plan.history.leftovers and not plan.compacts:
                check_reachable(plan)
            if is_stored:
                await self._begin(plan, claim)
            elif plan.history.decisions:
                if request.conversation is not None and (approvals := unstored_approvals(plan)):
                    await self._store.add_entries(plan.identity, request.conversation, (), approvals)
                await self._store.decide(plan.identity, plan.response.id, plan.history.decisions)
            if continues and self._worker is not None and background.enabled:
                plan = msgspec.structs.replace(plan, is_durable=True)
                lease = await self._adopt(self._worker, plan, claim)
            run = LiveRun(
                plan,
                self._resources.provider,
                self._event_log(plan, claim, lease),
                self._hooks,
                has_key=claim is not None,
            )
        except BaseException:
            plan.release()
            raise
        self._live[plan.response.id] = run
        if lease is not None and self._worker is not None:
            self._worker.hold(lease, run)
        if self.is_draining:  # since the row was begun: it is ended properly, too
            run.stop(ShuttingDown())
        return run

    def _event_log(self, plan: Plan, claim: Claim | None, lease: Lease | None) -> EventLog:
        """Return the log of a new run. Of a durable run, requests without the key read the run log instead."""
        settings, request, runs = plan.settings, plan.request, self._resources.runs
        is_replayable = request.stream and (claim is not None or (request.is_stored and lease is None))
        log = EventLog(
            replay_bytes=settings.background.log_bytes if is_replayable else 0,
            buffer_events=settings.buffer_events,
            buffer_bytes=settings.buffer_bytes,
            observer=new_observer(settings),
        )
        if lease is not None and runs is not None:
            log.recorder = BatchRecorder(runs, lease, plan)
        elif request.is_stored or request.conversation is not None:
            log.recorder = TurnRecorder(self._store, plan, log.batches)
        return log

    # ---- its row ----

    async def _note_row(self) -> None:
        """Note that there are rows of this process, once the engine is not being opened."""
        async with self.starting:
            self._has_begun = True

    async def _begin(self, plan: Plan, claim: Claim | None) -> None:
        """Commit the row. A caller that is cancelled meanwhile gets no run: a row that was written is ended."""
        await self._note_row()
        name = None if self._worker is None else await self._worker.foreground_name()
        try:
            await self._store.begin(new_row(plan, claim, name))
        except asyncio.CancelledError:
            self._spawn(end_unstarted(plan, self._store))
            raise

    async def _adopt(self, worker: Worker, plan: Plan, claim: Claim | None) -> Lease:
        """Get a lease of a run whose row is there, so that another process can continue it."""
        try:
            return await worker.adopt(plan)
        except BaseException as error:
            discarding = self._spawn(self._discard(worker, plan, claim))
            if isinstance(error, Exception):
                await asyncio.wait([discarding], timeout=DISCARD_SECONDS)
            raise

    async def _discard(self, worker: Worker, plan: Plan, claim: Claim | None) -> None:
        """End a row whose run was not started, and free its key. The lease may have been granted all the same: then the
        run is claimed as cancelled, and does nothing.
        """
        with suppress(AntwortError):
            await worker.runs.cancel(plan.identity, plan.response.id)
        await end_unstarted(plan, self._store)
        if claim is not None:
            with suppress(AntwortError):
                await self._store.release(plan.identity, claim.key, plan.response.id)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait until the rows of runs that did not start are ended."""
        await asyncio.gather(*self._tasks)
