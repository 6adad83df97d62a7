"""Claim runs of the run log for this process, renew their leases, and hand them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from antwort.concurrency import Signal, stop
from antwort.engine.runs.live import LiveRun, LiveRuns
from antwort.engine.runs.recorders import BatchRecorder
from antwort.engine.settings import BackgroundSettings
from antwort.errors import AntwortError, Cancelled, HandedOver
from antwort.ids import new_id
from antwort.storage.run_log.base import DETACHED, Claimed, Lease, RunLog, Unavailable
from antwort.storage.run_log.base import Worker as WorkerInfo

_log = logging.getLogger("antwort.runs")

POLL_SECONDS = 5.0
"""Between two looks for work without a wake-up; a quarter of a lease at most, as nothing wakes others when a process
dies."""
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 30.0
LEAVE_SECONDS = 2.0
"""For which the log is waited for when a run is handed over, or the process leaves."""


class HeldRun:
    """A run that this process holds a lease of."""

    def __init__(self, lease: Lease, live: LiveRun | None = None, *, has_client: bool = False) -> None:
        self.lease = lease
        self.signal = Signal()
        """Stops it while it is not in progress yet."""
        self.live = live
        self.has_client = has_client
        """Whether a request in the foreground reads it: then it takes no slot."""
        self.recorder: BatchRecorder | None = None
        """That of a run which is ended without having been in progress."""
        self.task: asyncio.Task[None] | None = None
        """Holds it, and releases it."""
        self.is_leaving = False
        """Whether it does not wait for a record that cannot be read or written."""

    def stop(self, reason: Exception) -> None:
        self.signal.set(reason)
        if isinstance(reason, HandedOver):
            self._leave()
        if self.live is not None:
            self.live.stop(reason)

    def hand_over(self) -> None:
        """Stop at the end of the current step; if it is not in progress yet, at once."""
        if self.live is not None:
            self.live.hand_over()
            return
        self.signal.set(HandedOver())
        self._leave()

    def _leave(self) -> None:
        self.is_leaving = True
        if self.recorder is not None:
            self.recorder.leave()

    def lose(self) -> None:
        """Another process has it."""
        self.signal.set(HandedOver())
        self._leave()
        if self.live is not None:
            self.live.lose()


class Worker:
    """This process as a worker of the run log, from `start` to `leave`.

    `proceed` runs a claimed run to its end, and raises one of `DETACHED` for one that has not ended. `cancel` stops a
    foreground run of this process that has no lease.
    """

    def __init__(
        self,
        runs: RunLog,
        settings: BackgroundSettings,
        proceed: Callable[[HeldRun, Claimed], Awaitable[None]],
        cancel: Callable[[str], None],
        live: LiveRuns,
        address: str | None = None,
    ) -> None:
        self._info = WorkerInfo(new_id("worker"), address)
        self._runs, self._settings, self._proceed, self._cancel, self._live = runs, settings, proceed, cancel, live
        self._held: dict[str, HeldRun] = {}
        self._strays: dict[Lease, float] = {}
        """Leases that the log has for this process and that are not known here, with the time when that was seen."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        """Which of the loops cannot use the log now."""
        self._joining = asyncio.Lock()
        self._has_joined = False
        self._is_leaving = asyncio.Event()
        self._slot_freed = asyncio.Event()

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def address(self) -> str | None:
        return self._info.address

    @address.setter
    def address(self, address: str | None) -> None:
        """Set where other processes reach this one, before it starts."""
        self._info = WorkerInfo(self._info.name, address)

    @property
    def claims(self) -> bool:
        """Whether it runs what waits in the queue."""
        return self._settings.enabled and self._settings.at_once > 0

    async def start(self) -> None:
        """Join the log, and begin to claim. Only the first call counts. Raises `Unavailable`."""
        async with self._joining:
            if self._has_joined or self._is_leaving.is_set():
                return
            await self._runs.join(self._info)
            self._has_joined = True
            self._loops = [asyncio.create_task(self._repeat(each)) for each in (self._renew, self._sweep)]
            if self.claims:
                self._claiming = asyncio.create_task(self._repeat(self._claim))
                self._loops.append(self._claiming)

    def begin(self, claimed: Claimed) -> None:
        """Run a claimed run."""
        held = HeldRun(claimed.lease)
        self.hold(held, partial(self._proceed, held, claimed))

    def hold(self, held: HeldRun, work: Callable[[], Awaitable[None]]) -> None:
        """Hold a run until `work` is done."""
        self._held[held.lease.run_id] = held
        held.task = task = asyncio.create_task(self._work(held, work), name=f"hold {held.lease.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_slot(self, response_id: str) -> bool:
        """Take a slot for a run that its client has left. Return whether it has one."""
        held = self._held.get(response_id)
        if held is None:
            return False
        if held.has_client and self._free > 0 and self._may_have_more(held):
            held.has_client = False
        return not held.has_client

    def _may_have_more(self, held: HeldRun) -> bool:
        """Whether the owner of a run may have another one without a client, as far as this process knows."""
        most, live = self._settings.per_owner, held.live
        if most is None or live is None:
            return True
        others = [each.live for each in self._held.values() if not each.has_client and each.live is not None]
        return sum(other.identity.is_same(live.identity) for other in others) < most

    async def wait_for_release(self, response_id: str) -> None:
        """Wait until this process does not hold the run any more."""
        held = self._held.get(response_id)
        if held is not None and held.task is not None:
            await asyncio.wait([held.task])

    @property
    def _free(self) -> int:
        return self._settings.at_once - sum(not held.has_client for held in self._held.values())

    def stop_claiming(self) -> None:
        """Begin nothing more. What it holds continues."""
        self._is_leaving.set()
        self._slot_freed.set()

    def hand_over(self) -> None:
        """Hand over what it holds, each run at the end of its step; runs with a client continue."""
        self.stop_claiming()
        for held in [*self._held.values()]:
            if not held.has_client:
                held.hand_over()

    async def drain(self, seconds: float, reason: Exception) -> None:
        """Wait until it holds nothing any more; after so many seconds, stop the rest for that reason."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for held in [*self._held.values()]:
            held.stop(reason)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abort(self) -> None:
        """Do not wait for the log any more, which cannot be written: other processes notice that this one is gone."""
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        self.stop_claiming()
        await self.drain(0, HandedOver())
        if self._claiming is not None:  # what it claims right now is released
            await asyncio.wait([self._claiming], timeout=LEAVE_SECONDS)
        await stop(self._loops, LEAVE_SECONDS)
        if self._has_joined:
            self._has_joined = False
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._runs.leave(self.name)
            except (AntwortError, TimeoutError) as error:
                _log.warning("the log of runs was not told that this process leaves: %s", error)

    # ---- one run ----

    async def _work(self, held: HeldRun, work: Callable[[], Awaitable[None]]) -> None:
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
        """Let the next process claim the run at once; with `is_lost`, the attempt counts. If that fails, the lease is a
        stray from now on, or is seen when this process leaves. A run that another process has is not changed.
        """
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._runs.release(lease, is_lost=is_lost)
        except (AntwortError, TimeoutError) as error:
            _log.warning("the run %s could not be handed over: %s", lease.run_id, error)

    # ---- the loops ----

    async def _repeat(self, once: Callable[[], Coroutine[None, None, None]]) -> None:
        """Repeat a loop. No error ends it; an outage of the log is logged once when it begins, and once when all loops
        can use the log again.
        """
        while not self._is_leaving.is_set() or once != self._claim:
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
        if (free := self._free) <= 0:
            await self._slot_freed.wait()
            return
        found = await self._runs.claim(self.name, free)
        self._succeeded("_claim")
        for claimed in found:
            if self._is_leaving.is_set() or self._free <= 0:  # a run that lost its client may have been faster
                await self._release(claimed.lease)
            else:
                self.begin(claimed)
        if len(found) < free:
            await self._unless_leaving(self._runs.wait_for_work(min(POLL_SECONDS, self._settings.lease / 4)))

    async def _unless_leaving(self, waiting: Awaitable[None]) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._is_leaving.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(tasks, RETRY_SECONDS)
        if tasks[0].done() and not tasks[0].cancelled():
            tasks[0].result()

    async def _renew(self) -> None:
        renewed = await self._runs.renew(self._info, [held.lease for held in self._held.values()])
        self._succeeded("_renew")
        await self._release_strays(renewed.strays)
        for lease in renewed.lost:
            held = self._held.get(lease.run_id)
            if held is not None and held.lease == lease:
                held.lose()
        for response_id in renewed.cancelled:
            if (held := self._held.get(response_id)) is not None:
                held.stop(Cancelled())
            else:
                self._cancel(response_id)
        await self._runs.wait_for_cancels(self._settings.lease / 3)

    async def _release_strays(self, strays: Iterable[Lease]) -> None:
        """Release what the log says is held here, if it was not known here for longer than a claim takes."""
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
                await self._runs.release(lease)

    async def _sweep(self) -> None:
        await self._runs.sweep()
        self._succeeded("_sweep")
        await asyncio.sleep(min(SWEEP_SECONDS, max(self._settings.lease, 1.0)))
