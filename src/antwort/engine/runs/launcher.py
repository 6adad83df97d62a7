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
from antwort.engine.runs.conversation_lock import ConversationLocks, LockRequest
from antwort.engine.runs.event_log import EventLog, new_observer
from antwort.engine.runs.live import LiveRun, LiveRuns
from antwort.engine.runs.recorders import BatchRecorder, TurnRecorder, end_unstarted, new_row, unstored_approvals
from antwort.engine.runs.worker import Worker
from antwort.engine.settings import OnDisconnect
from antwort.errors import AntwortError, ShuttingDown
from antwort.identity import Identity
from antwort.storage.base import KeyClaim
from antwort.storage.run_log import Lease

ABANDONED = "The server was stopped while the response was being made."
DISCARD_SECONDS = 2.0
"""For which a request that failed waits for its row to be ended."""


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
        self._is_shared = worker is not None and worker.runs.traits.many
        """Whether other processes share the log of runs."""
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
        lock: LockRequest | None = None
        if request.conversation is not None and not request.background:  # a background response waits when it is run
            runs, conversation_id = self._resources.runs, request.conversation
            is_busy = None if runs is None else partial(runs.is_busy, identity, conversation_id)
            lock = self._locks.request((identity.tenant, identity.owner, conversation_id), is_busy)
        return await self._planner.plan(request, identity, recent, lock=lock)

    async def submit(self, plan: Plan, claim: KeyClaim | None = None) -> Response:
        """Put a background response into the queue, and return it as it was queued. Raises `QueueFull`."""
        assert self._worker is not None, "it was planned"
        try:
            self.check_open()
            check_reachable(plan)
            await self._note_row()
            return await self._worker.submit(plan, claim)
        finally:
            plan.release()

    def new_log(self, *, is_replayable: bool) -> EventLog:
        settings = self._settings
        return EventLog(
            replay_bytes=settings.background.log_bytes if is_replayable else 0,
            buffer_events=settings.buffer_events,
            buffer_bytes=settings.buffer_bytes,
            observer=new_observer(settings),
        )

    async def launch(
        self,
        plan: Plan,
        claim: KeyClaim | None = None,
        on_disconnect: OnDisconnect | None = None,
        log: EventLog | None = None,
    ) -> LiveRun:
        """Commit the row, with the claim of its key, then start the run. A run with a key outlives its client; its
        `log` may have readers.
        """
        request, settings, worker = plan.request, self._settings, self._worker
        is_stored, has_key = request.is_stored, claim is not None
        lease: Lease | None = None
        try:
            self.check_open()  # planning may have waited
            if plan.history.leftovers and not plan.compacts:
                check_reachable(plan)
            if is_stored:
                await self._begin(plan, claim)
                continues = (on_disconnect or settings.background.on_disconnect) == "continue"
                if continues and worker is not None and settings.background.enabled:
                    lease = await self._adopt(worker, plan, claim)
            elif plan.history.decisions:
                if request.conversation is not None and (approvals := unstored_approvals(plan)):
                    await self._store.add_entries(plan.identity, request.conversation, (), approvals)
                await self._store.decide(plan.identity, plan.response.id, plan.history.decisions)
            if has_key or lease is not None:
                plan = msgspec.structs.replace(plan, has_key=has_key, is_durable=lease is not None)
            if log is None:  # requests without the key read the run log of a durable run
                log = self.new_log(is_replayable=bool(request.stream) and is_stored and lease is None)
            if lease is not None:
                assert worker is not None, "it has the lease"
                log.recorder = BatchRecorder(worker.runs, lease, plan)
            elif is_stored or request.conversation is not None:
                log.recorder = TurnRecorder(self._store, plan, log.batches)
            run = LiveRun(plan, self._resources.provider, log, self._live)
        except BaseException:
            plan.release()
            raise
        if lease is not None and worker is not None:
            worker.hold(lease, run)
        if self.is_draining:  # since the row was begun: it is ended properly, too
            run.stop(ShuttingDown())
        return run

    # ---- its row ----

    async def _note_row(self) -> None:
        """Note that there are rows of this process, once the engine is not being opened."""
        async with self.starting:
            self._has_begun = True

    async def _begin(self, plan: Plan, claim: KeyClaim | None) -> None:
        """Commit the row. A caller that is cancelled meanwhile gets no run: a row that was written is ended."""
        if not self._has_begun:
            await self._note_row()
        name: str | None = None
        if self._worker is not None and self._is_shared:  # other processes need to know whose row it is
            await self._worker.start()
            name = self._worker.name
        try:
            await self._store.begin(new_row(plan, claim, name))
        except asyncio.CancelledError:
            self._spawn(end_unstarted(plan, self._store))
            raise

    async def _adopt(self, worker: Worker, plan: Plan, claim: KeyClaim | None) -> Lease:
        """Get a lease of a run whose row is there, so that another process can continue it."""
        try:
            return await worker.adopt(plan)
        except BaseException as error:
            discarding = self._spawn(self._discard(worker, plan, claim))
            if isinstance(error, Exception):
                await asyncio.wait([discarding], timeout=DISCARD_SECONDS)
            raise

    async def _discard(self, worker: Worker, plan: Plan, claim: KeyClaim | None) -> None:
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
