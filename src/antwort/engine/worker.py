"""This process as one that makes runs of the log: it claims them, shows that it lives, and hands them over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from antwort.concurrency import Signal, stop
from antwort.engine.control import LEFT
from antwort.engine.journal import Journal
from antwort.engine.live import LiveRun
from antwort.engine.outage import Outage
from antwort.engine.settings import BackgroundSettings
from antwort.errors import AntwortError, Cancelled, HandedOver
from antwort.ids import new_id
from antwort.runs.base import Claimed, Lease, RunLog
from antwort.runs.base import Worker as Name

_log = logging.getLogger("antwort.runs")

_POLL = 5.0
"""Seconds after which it is looked for work, wake-up or not; a quarter of a lease at most, as nothing wakes anybody
when a process dies."""
_AGAIN = 1.0
"""Seconds until the log is tried again."""
_SWEEP = 30.0
"""Seconds between two times that it is tidied up, about."""
_LEAVING = 2.0
"""Seconds that the log has to hear that a run is handed over, or that the process leaves."""


class Carried:
    """A run that this process holds, from its claim on."""

    def __init__(self, lease: Lease, live: LiveRun | None = None) -> None:
        self.lease = lease
        self.signal = Signal()
        """For the time before it is under way."""
        self.live = live
        self.journal: Journal | None = None
        """Of one that is ended, and never was under way."""
        self.is_leaving = False
        """Whether it is not to wait for a record that cannot be read or written."""

    def stop(self, reason: Exception) -> None:
        self.signal.set(reason)
        if isinstance(reason, HandedOver):
            self._leave()
        if self.live is not None:
            self.live.stop(reason)

    def hand_over(self) -> None:
        """At the end of its step; one that is not under way yet, at once."""
        if self.live is not None:
            self.live.hand_over()
            return
        self.signal.set(HandedOver())
        self._leave()

    def _leave(self) -> None:
        self.is_leaving = True
        if self.journal is not None:
            self.journal.leave()

    def lose(self) -> None:
        self.signal.set(HandedOver())
        self._leave()
        if self.live is not None:
            self.live.lose()


class Worker:
    """Lives from `start` to `leave`. What it makes is `carry`'s to say, which raises one of `LEFT` for a run that has
    not ended; `cancel` stops a response that is made here without a lease, and `makes` tells which are made here.
    """

    def __init__(
        self,
        runs: RunLog,
        settings: BackgroundSettings,
        carry: Callable[[Carried, Claimed], Awaitable[None]],
        cancel: Callable[[str], None],
        address: str | None = None,
        makes: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._me = Name(new_id("worker"), address)
        self._runs, self._settings, self._carry, self._cancel = runs, settings, carry, cancel
        self._makes = makes
        self._carried: dict[str, Carried] = {}
        self._guests: set[str] = set()
        """What is made here without a lease and has a place all the same, by the ids of the responses."""
        self._strays: dict[Lease, float] = {}
        """What it holds without having heard of it, and since when that is known."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None
        self._outage = Outage()
        self._joining = asyncio.Lock()
        self._has_joined = False
        self._is_leaving = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def name(self) -> str:
        return self._me.name

    @property
    def address(self) -> str | None:
        return self._me.address

    @address.setter
    def address(self, address: str | None) -> None:
        """Where the others reach this process; before it starts."""
        self._me = Name(self._me.name, address)

    @property
    def claims(self) -> bool:
        """Whether it makes runs that wait."""
        return self._settings.enabled and self._settings.at_once > 0

    async def start(self) -> None:
        """Only the first time counts. Raises `Unavailable`."""
        async with self._joining:
            if self._has_joined or self._is_leaving.is_set():
                return
            await self._runs.join(self._me)
            self._has_joined = True
            self._loops = [asyncio.create_task(self._keep_at(each)) for each in (self._renew, self._sweep)]
            if self.claims:
                self._claiming = asyncio.create_task(self._keep_at(self._claim))
                self._loops.append(self._claiming)

    def hold(self, claimed: Claimed) -> None:
        """Go on with the run."""
        carried = Carried(claimed.lease)
        self._begin(carried, partial(self._carry, carried, claimed))

    def keep(self, lease: Lease, live: LiveRun) -> None:
        """The run was under way here before it had a lease."""
        self._guests.discard(lease.run_id)
        self._begin(Carried(lease, live), partial(to_its_end, live))

    def admit(self, response_id: str) -> bool:
        """Give a run that is under way here without a lease a place, until it is kept or dismissed; whether there is
        one.
        """
        if response_id not in self._guests and self._free <= 0:
            return False
        self._guests.add(response_id)
        return True

    def dismiss(self, response_id: str) -> None:
        if response_id in self._guests:
            self._guests.discard(response_id)
            self._room.set()

    def is_guest(self, response_id: str) -> bool:
        return response_id in self._guests

    @property
    def _free(self) -> int:
        return self._settings.at_once - len(self._guests | self._carried.keys())

    def _begin(self, carried: Carried, work: Callable[[], Awaitable[None]]) -> None:
        self._carried[carried.lease.run_id] = carried
        task = asyncio.create_task(self._hold(carried, work), name=f"carry {carried.lease.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def carried(self, response_id: str) -> Carried | None:
        return self._carried.get(response_id)

    def stop_claiming(self) -> None:
        """What it holds goes on."""
        self._is_leaving.set()
        self._room.set()

    def hand_over(self) -> None:
        """All that it holds, each at the end of its step."""
        self.stop_claiming()
        for carried in [*self._carried.values()]:
            carried.hand_over()

    async def ended(self, seconds: float, reason: Exception) -> None:
        """Until it holds nothing any more; what it still does by then is stopped for that reason."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for carried in [*self._carried.values()]:
            carried.stop(reason)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def break_off(self) -> None:
        """It does not wait for the log any more, which cannot be written: others find out that it is gone."""
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        """It makes nothing any more."""
        self.stop_claiming()
        await self.ended(0, HandedOver())
        if self._claiming is not None:  # what it claims right now is released
            await asyncio.wait([self._claiming], timeout=_LEAVING)
        await stop(self._loops, _LEAVING)
        if self._has_joined:
            self._has_joined = False
            try:
                async with asyncio.timeout(_LEAVING):
                    await self._runs.leave(self.name)
            except (AntwortError, TimeoutError) as error:
                _log.warning("the log of runs was not told that this process leaves: %s", error)

    # ---- one run ----

    async def _hold(self, carried: Carried, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LEFT:
            await self._release(carried.lease)
        except Exception:
            _log.exception("the run %s could not be gone on with", carried.lease.run_id)
            await asyncio.sleep(_AGAIN)  # whoever claims it may fare no better
            await self._release(carried.lease, is_lost=True)
        finally:
            if self._carried.get(carried.lease.run_id) is carried:  # else it was claimed here once more
                del self._carried[carried.lease.run_id]
            self._room.set()

    async def _release(self, lease: Lease, *, is_lost: bool = False) -> None:
        """The next one may have it at once; one that `is_lost` counts as tried. Where that cannot be said, it is a
        stray from now on, or seen when this process leaves. Of one that another has by now, nothing changes.
        """
        try:
            async with asyncio.timeout(_LEAVING):
                await self._runs.release(lease, is_lost=is_lost)
        except (AntwortError, TimeoutError) as error:
            _log.warning("the run %s could not be handed over: %s", lease.run_id, error)

    # ---- the loops ----

    async def _keep_at(self, once: Callable[[], Coroutine[None, None, None]]) -> None:
        """Again and again. What goes wrong ends nothing: there is nobody else to do it."""
        while not self._is_leaving.is_set() or once != self._claim:
            try:
                await once()
            except AntwortError as error:
                self._outage.begins(once.__name__, error)
                await asyncio.sleep(_AGAIN)
            except Exception:
                _log.exception("something nobody expected of the log of runs")
                await asyncio.sleep(_AGAIN)

    async def _claim(self) -> None:
        self._room.clear()
        if (free := self._free) <= 0:
            await self._room.wait()
            return
        found = await self._runs.claim(self.name, free)
        self._outage.ends(self._claim.__name__)
        for claimed in found:
            if self._is_leaving.is_set() or self._free <= 0:  # a guest may have been faster
                await self._release(claimed.lease)
            else:
                self.hold(claimed)
        if len(found) < free:
            await self._unless_leaving(self._runs.wait_for_work(min(_POLL, self._settings.lease / 4)))

    async def _unless_leaving(self, waiting: Awaitable[None]) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._is_leaving.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(tasks, _AGAIN)
        if tasks[0].done() and not tasks[0].cancelled():
            tasks[0].result()

    async def _renew(self) -> None:
        leases = [carried.lease for carried in self._carried.values()]
        renewed = await self._runs.renew(self._me, leases)
        self._outage.ends(self._renew.__name__)
        await self._release_strays(renewed.strays)
        for lease in renewed.lost:
            self._lose(lease)
        for response_id in renewed.cancelled:
            self._stop(response_id)
        await self._runs.wait_for_cancels(self._settings.lease / 3)

    async def _release_strays(self, strays: Iterable[Lease]) -> None:
        """What the log says is held here, and nobody here has heard of for as long as it takes to claim something. One
        that is made here finds out by itself.
        """
        now = asyncio.get_running_loop().time()
        known = {carried.lease for carried in self._carried.values()}
        self._strays = {
            lease: self._strays.get(lease, now)
            for lease in strays
            if lease not in known and not self._makes(lease.run_id)
        }
        for lease, since in self._strays.items():
            if now - since >= self._settings.lease / 3:
                _log.warning("the run %s was claimed, and the answer was lost; it is handed on", lease.run_id)
                await self._runs.release(lease)

    def _lose(self, lease: Lease) -> None:
        carried = self._carried.get(lease.run_id)
        if carried is not None and carried.lease == lease:
            carried.lose()

    def _stop(self, response_id: str) -> None:
        carried = self._carried.get(response_id)
        if carried is not None:
            carried.stop(Cancelled())
        else:
            self._cancel(response_id)

    async def _sweep(self) -> None:
        await self._runs.sweep()
        self._outage.ends(self._sweep.__name__)
        await asyncio.sleep(min(_SWEEP, max(self._settings.lease, 1.0)))


async def to_its_end(live: LiveRun) -> None:
    """Raises why it was left, if it has not come there."""
    await live.wait()
    if live.failure is not None:
        raise live.failure
    if live.is_left:
        raise HandedOver
