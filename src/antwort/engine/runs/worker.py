"""This process as a worker of the run log: it submits runs, claims them, renews their leases, and hands them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial

import msgspec

from antwort.api.responses import Response
from antwort.concurrency import Signal, stop
from antwort.engine.history.sealed_items import rewritten
from antwort.engine.plan import Plan
from antwort.engine.runs.live import LiveRun, LiveRuns
from antwort.engine.runs.recorders import new_run
from antwort.engine.runs.recovery import LeasedRun, Recovery
from antwort.engine.settings import BackgroundSettings
from antwort.errors import AntwortError, Cancelled, ClientLeft, HandedOver, ShuttingDown
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.storage.base import KeyClaim
from antwort.storage.run_log import DETACHED, ClaimedRun, Lease, RunLog, Unavailable, WorkerInfo

_log = logging.getLogger("antwort.runs")

POLL_SECONDS = 5.0
"""Between two polls for work without a notification; a quarter of a lease at most, as a process that dies notifies
none."""
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 30.0
LEAVE_SECONDS = 2.0
"""Limit for a write to the log when a run is handed over, or the process leaves."""
SUBMIT_ATTEMPTS = 3
"""Attempts to submit a run to a log that is not available, before the request fails."""
SUBMIT_RETRY_SECONDS = 0.2


class Worker:
    """This process as a worker of the run log, from `start` to `leave`."""

    def __init__(
        self,
        runs: RunLog,
        settings: BackgroundSettings,
        recovery: Recovery,
        live: LiveRuns,
        address: str | None = None,
    ) -> None:
        """`address` is where other processes reach this one."""
        self.runs, self._settings, self._recovery, self._live = runs, settings, recovery, live
        live.on_unread = self.on_unread
        self._info = WorkerInfo(new_id("worker"), address)
        self._held: dict[str, LeasedRun] = {}
        self._strays: dict[Lease, float] = {}
        """Leases that the log has for this process and that are not known here, with the time when that was seen."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that hold runs, and those that hand over runs without a client."""
        self._loops: list[asyncio.Task[None]] = []
        """Renewing, sweeping and, where it claims, claiming."""
        self._failing: set[str] = set()
        """Which of the loops cannot use the log now."""
        self._joining = asyncio.Lock()
        self._queueing = asyncio.Lock()
        self._leaving = Signal()
        """Set when nothing is claimed any more."""
        self._slot_freed = asyncio.Event()

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def is_lasting(self) -> bool:
        """Whether the runs that it holds are there for another process when this one ends."""
        return self.runs.traits.durability != "process"

    # ---- new runs ----

    async def submit(self, plan: Plan, claim: KeyClaim | None) -> Response:
        """Put a background response into the queue. Raises `QueueFull`."""
        await self.start()
        run = new_run(msgspec.structs.replace(plan, request=rewritten(plan.request)), claim)
        for left in reversed(range(SUBMIT_ATTEMPTS)):
            try:
                await self.runs.submit(run)
                break
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(SUBMIT_RETRY_SECONDS)
        return run.new.response

    async def adopt(self, plan: Plan) -> Lease:
        """Return the lease of a foreground run, whose row is there: another process can continue it."""
        await self.start()
        return await self.runs.adopt(self.name, plan.identity, plan.response.id)

    def hold(self, lease: Lease, live: LiveRun) -> None:
        """Hold a foreground run until its end. It takes no slot as long as it has a client."""
        held = LeasedRun(lease, live)
        self._hold(held, partial(held.wait_for_end, live))

    async def end_cancelled(self, identity: Identity, response_id: str) -> None:
        """End a cancelled run that no process holds, whether there is a slot for it or not."""
        await self.start()
        claimed = await self.runs.take(self.name, identity, response_id)
        if claimed is not None:
            self._hold_claimed(claimed)

    # ---- the life of the process ----

    @property
    def _claims(self) -> bool:
        """Whether it runs what waits in the queue."""
        return self._settings.enabled and self._settings.at_once > 0

    async def start(self) -> None:
        """Join the log, and begin to claim. Only the first call counts. Raises `Unavailable`."""
        async with self._joining:
            if self._loops or self._leaving.reason is not None:
                return
            await self.runs.join(self._info)
            loops = [self._renew, self._sweep, *([self._claim] if self._claims else [])]
            self._loops = [asyncio.create_task(self._repeat(each)) for each in loops]

    def stop_claiming(self) -> None:
        """Begin nothing more. What it holds continues."""
        self._leaving.set(HandedOver())

    def hand_over(self) -> None:
        """Begin nothing more, and hand over what does not end with the process, each run at the end of its step. Runs
        with a client continue: it may see their end.
        """
        self.stop_claiming()
        if self.is_lasting:
            for held in [*self._held.values()]:
                if not held.has_client:
                    held.hand_over()

    async def drain(self, seconds: float) -> None:
        """Wait until it holds nothing any more; what it holds after so many seconds is stopped."""
        self.hand_over()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for held in [*self._held.values()]:
            held.stop(HandedOver() if self.is_lasting else ShuttingDown())
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abort(self) -> None:
        """Do not wait for the log any more, which cannot be written: other processes notice that this one is gone."""
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        self.stop_claiming()
        for held in [*self._held.values()]:
            held.stop(HandedOver())
        if self._tasks:
            await asyncio.wait(self._tasks)
        loops, self._loops = self._loops, []
        if self._claims and loops:  # what it claims right now is released
            await asyncio.wait(loops[-1:], timeout=LEAVE_SECONDS)
        await stop(loops, LEAVE_SECONDS)
        if loops:
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self.runs.leave(self.name)
            except (AntwortError, TimeoutError) as error:
                _log.warning("the log of runs was not told that this process leaves: %s", error)

    # ---- slots ----

    @property
    def _free(self) -> int:
        return self._settings.at_once - sum(not held.has_client for held in self._held.values())

    def on_unread(self, run: LiveRun) -> None:
        """Give a run that its last client has left a slot. Without a free one it waits in the queue like any other, and
        where that is full, it ends.
        """
        held = self._held.get(run.response_id)
        if held is None or held.live is not run:
            return
        others = [each.live for each in self._held.values() if not each.has_client and each.live is not None]
        same_owner = sum(other.identity.is_same(run.identity) for other in others)  # as far as this process knows
        per_owner = self._settings.per_owner
        if self._free < 0 or (per_owner is not None and same_owner > per_owner):
            self._spawn(self._queue(held, run))

    async def _queue(self, held: LeasedRun, run: LiveRun) -> None:
        """Hand a run over, one after the other: each counts in the queue before the next one comes."""
        async with self._queueing:
            try:
                is_full = (await self.runs.load()).queued >= self._settings.queue
            except Unavailable:
                is_full = False
            if is_full:
                _log.warning("the run %s ends with its client: as many runs wait as may", run.response_id)
            run.stop(ClientLeft() if is_full else HandedOver())
            if held.task is not None:
                await asyncio.wait([held.task])

    # ---- one run ----

    def _hold_claimed(self, claimed: ClaimedRun) -> None:
        held = LeasedRun(claimed.lease)
        self._hold(held, partial(self._recovery.run, held, claimed))

    def _hold(self, held: LeasedRun, work: Callable[[], Awaitable[None]]) -> None:
        """Hold a run until `work` is done. It raises one of `DETACHED` where the run has not ended."""
        self._held[held.lease.run_id] = held
        held.task = self._spawn(self._work(held, work))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _work(self, held: LeasedRun, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except DETACHED:
            await self._release(held.lease)
        except Exception:
            _log.exception("the run %s could not be gone on with", held.lease.run_id)
            await asyncio.sleep(RETRY_SECONDS)  # the next holder may fare no better
            await self._release(held.lease, is_lost=True)
        finally:
            if self._held.get(held.lease.run_id) is held:  # else it was claimed here once more
                del self._held[held.lease.run_id]
            self._slot_freed.set()

    async def _release(self, lease: Lease, *, is_lost: bool = False) -> None:
        """Let the next process claim the run at once; with `is_lost`, the attempt counts. A lease that cannot be
        released becomes a stray, or ends when this process leaves. A run that another process holds is not changed.
        """
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.runs.release(lease, is_lost=is_lost)
        except (AntwortError, TimeoutError) as error:
            _log.warning("the run %s could not be handed over: %s", lease.run_id, error)

    # ---- the loops ----

    async def _repeat(self, once: Callable[[], Coroutine[None, None, None]]) -> None:
        """Repeat a loop. No error ends it; an outage of the log is logged once when it begins, and once when all loops
        can use the log again.
        """
        while self._leaving.reason is None or once != self._claim:
            try:
                await once()
            except AntwortError as error:
                if not self._failing:
                    reason = error.reason if isinstance(error, Unavailable) else ""
                    _log.warning("the log of runs cannot be used now: %s", reason or error.message)
                self._failing.add(once.__name__)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                _log.exception("something nobody expected of the log of runs")
                await asyncio.sleep(RETRY_SECONDS)

    def _succeeded(self, loop: str) -> None:
        if loop in self._failing:
            self._failing.discard(loop)
            if not self._failing:
                _log.info("the log of runs can be used again")

    async def _claim(self) -> None:
        self._slot_freed.clear()
        with suppress(HandedOver):  # the process leaves
            if (free := self._free) <= 0:
                await self._leaving.race(self._slot_freed.wait)
                return
            found = await self.runs.claim(self.name, free)
            self._succeeded("_claim")
            for claimed in found:
                # A run that has lost its client may have taken the slot.
                if self._leaving.reason is not None or self._free <= 0:
                    await self._release(claimed.lease)
                else:
                    self._hold_claimed(claimed)
            if len(found) < free:
                await asyncio.sleep(0)  # a log may wake it at once, again and again
                await self._leaving.race(partial(self.runs.wait_for_work, min(POLL_SECONDS, self._settings.lease / 4)))

    async def _renew(self) -> None:
        renewed = await self.runs.renew(self._info, [held.lease for held in self._held.values()])
        self._succeeded("_renew")
        await self._release_strays(renewed.strays)
        for lease in renewed.lost:
            held = self._held.get(lease.run_id)
            if held is not None and held.lease == lease:
                held.lose()
        for response_id in renewed.cancelled:
            if (cancelled := self._held.get(response_id) or self._live.get(response_id)) is not None:
                cancelled.stop(Cancelled())
        await self.runs.wait_for_cancels(self._settings.lease / 3)

    async def _release_strays(self, strays: Iterable[Lease]) -> None:
        """Release leases of this process that are not known here for longer than a claim takes."""
        now = asyncio.get_running_loop().time()
        known = {held.lease for held in self._held.values()}
        self._strays = {
            lease: self._strays.get(lease, now)
            for lease in strays
            if lease not in known and lease.run_id not in self._live
        }
        for lease, since in self._strays.items():
            if now - since >= self._settings.lease / 3:
                _log.warning("the run %s was claimed, and the answer was lost; it is handed on", lease.run_id)
                await self.runs.release(lease)

    async def _sweep(self) -> None:
        await self.runs.sweep()
        self._succeeded("_sweep")
        await asyncio.sleep(min(SWEEP_SECONDS, max(self._settings.lease, 1.0)))
