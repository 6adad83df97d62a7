"""Runs that outlive their request: put into the log here, and made by whoever has a place for them, perhaps here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from antwort.api.responses import Response
from antwort.engine.control import LEFT, Called
from antwort.engine.ended import Ended
from antwort.engine.journal import Held, Journal
from antwort.engine.live import LiveRun
from antwort.engine.plan import Plan
from antwort.engine.planning import Planner
from antwort.engine.queues import Queues
from antwort.engine.resuming import Found, Resuming, end_early, given_up, patiently
from antwort.engine.rows import new_run
from antwort.engine.settings import EngineSettings
from antwort.engine.worker import Carried, Worker, to_its_end
from antwort.errors import AttemptsExhausted, Cancelled, Damaged, HandedOver, QueueFull, ShuttingDown
from antwort.identity import TENANT, Identity
from antwort.providers.base import Provider
from antwort.runs.base import Claimed, Ending, Fenced, Record, RunLog, Unavailable
from antwort.storage.base import Claim, ResponseStore
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")

_TRIES = 3
"""How often a run is put into a log that cannot be written before its client is told."""
_AGAIN = 0.2


class Background:
    """This engine's part in the runs of a log."""

    def __init__(
        self,
        runs: RunLog,
        store: ResponseStore,
        provider: Provider,
        planner: Planner,
        queues: Queues,
        settings: EngineSettings,
        *,
        live: dict[str, LiveRun],
        on_end: Callable[[LiveRun], None],
        on_call: Sequence[Callable[[Called], None]],
        tell: Callable[[Ended], None],
        vault: Callable[[], Vault],
        clock: Callable[[], float],
        address: str | None = None,
    ) -> None:
        """`live` are the engine's runs under way. `on_end` hears of one that was, `tell` of one that never was."""
        self._runs, self._provider, self._settings = runs, provider, settings
        self._live, self._on_end, self._on_call, self._tell = live, on_end, on_call, tell
        self._resuming = Resuming(runs, store, planner, queues, settings, vault=vault, clock=clock)
        self.worker = Worker(runs, settings.background, self._carry, self._cancel, address, live.__contains__)
        """This process, as others see it."""
        self._is_leaving = False

    # ---- new ones ----

    async def submit(self, plan: Plan, claim: Claim | None) -> Response:
        await self.worker.start()
        run = new_run(plan, claim)
        for left in reversed(range(_TRIES)):
            try:
                await self._runs.submit(run)
                break
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN)
        if self.worker.claims:
            self._resuming.remember(plan)
        return run.new.response

    async def end(self, identity: Identity, response_id: str) -> None:
        """One that was cancelled and that nobody makes ends here, whether there is a place for it or not."""
        await self.worker.start()
        claimed = await self._runs.take(self.worker.name, identity, response_id)
        if claimed is not None:
            self.worker.hold(claimed)

    async def maker(self) -> str | None:
        """The name to be put on record for what is made here in the foreground, where others have to tell whether it
        still is.
        """
        if not self._runs.traits.many:
            return None
        await self.worker.start()
        return self.worker.name

    async def adopt(self, run: LiveRun, records: Sequence[Record], *, needs_place: bool) -> Journal:
        """Make a run in the foreground one that another process may go on with. Raises `Unavailable` and `Fenced`; and
        where it `needs_place` here and there is none, `HandedOver` when it waits like any other, else `QueueFull`.
        """
        await self.worker.start()
        has_room = self.worker.admit(run.response_id) if needs_place else None
        try:
            lease = await self._runs.adopt(self.worker.name, run.identity, run.response_id, records, has_room=has_room)
        except (Fenced, HandedOver, QueueFull):
            self.worker.dismiss(run.response_id)
            raise
        self.worker.keep(lease, run)
        return Journal(self._runs, lease, records)

    def shelter(self, run: LiveRun) -> bool:
        """Whether there is a place here for a run that goes on without its client and cannot be adopted. Of its owner,
        only what is made here is known.
        """
        most, guest = self._settings.background.per_owner, self.worker.is_guest
        beside = [
            other
            for other in self._live.values()
            if other is not run and other.identity.is_same(run.identity) and (other.is_held or guest(other.response_id))
        ]
        return (most is None or len(beside) < most) and self.worker.admit(run.response_id)

    def dismiss(self, run: LiveRun) -> None:
        """It has ended, or is made elsewhere."""
        self.worker.dismiss(run.response_id)

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        if not self._runs.traits.many or response_id in self._live:
            return None
        if await self._runs.has_log(identity, response_id):
            return None
        owner = await self._runs.owner(identity, response_id)
        return None if owner is None or owner.name == self.worker.name else owner.address

    # ---- the life of the process ----

    @property
    def is_lasting(self) -> bool:
        """Whether what it holds is there for another process when this one ends."""
        return self._runs.traits.durability != "process"

    async def open(self) -> None:
        """What a process before this one has left is gone on with. Nobody has left anything in memory."""
        if self.is_lasting:
            await self.worker.start()

    def hand_over(self) -> None:
        """Nothing new is begun here, and what is under way is handed over, where it does not end with the process."""
        if not self.is_lasting:
            self.worker.stop_claiming()
            return
        self._is_leaving = True
        self.worker.hand_over()

    async def drain(self, seconds: float) -> None:
        """Until nothing is under way here any more; what ends with the process comes to its end."""
        self.hand_over()
        await self.worker.ended(seconds, HandedOver() if self.is_lasting else ShuttingDown())

    async def leave(self) -> None:
        await self.worker.leave()

    # ---- one run ----

    async def _carry(self, carried: Carried, claimed: Claimed) -> None:
        """To its end, here. Raises one of `LEFT` when it stops before that, and what nobody expected as long as there
        may be another try.
        """
        TENANT.set(claimed.identity.tenant)
        try:
            await self._go_on(carried, claimed)
        except LEFT:
            raise
        except Damaged as error:
            _log.error("the run %s has failed: %s", claimed.lease.run_id, error.message)
            await self._give_up(carried, claimed, error)
        except Exception:
            if claimed.attempt <= self._settings.background.attempts:
                raise
            _log.exception("the run %s has failed, and its end cannot be put into its log", claimed.lease.run_id)
            await self._give_up(carried, claimed, AttemptsExhausted(claimed.attempt - 1))

    async def _go_on(self, carried: Carried, claimed: Claimed) -> None:
        began = perf_counter()
        found = await self._found(carried, claimed)
        try:
            plan = await carried.signal.race(partial(self._resuming.plan, found))
        except LEFT:
            raise
        except Exception as error:
            if isinstance(error, ShuttingDown) and self._is_leaving:
                raise HandedOver from error
            await self._end(carried, found, error, began)
            return
        run = self._launched(plan, found.held(self._runs, plan))
        carried.live = run
        if carried.signal.reason is not None:
            run.stop(carried.signal.reason)
        if carried.is_leaving:
            run.stop(HandedOver())
        elif self._is_leaving:
            run.hand_over()
        await to_its_end(run)

    async def _found(self, carried: Carried, claimed: Claimed) -> Found:
        """One that is cancelled meanwhile is found all the same: its end is to be put on record."""
        find = partial(self._resuming.find, claimed, lambda: carried.is_leaving)
        try:
            return await carried.signal.race(find)
        except Cancelled:
            return await find()

    def _launched(self, plan: Plan, held: Held) -> LiveRun:
        try:
            run = LiveRun(plan, self._provider, None, self._on_end, self._on_call, held=held)
        except BaseException:
            plan.release()
            raise
        self._live[run.response_id] = run
        return run

    async def _end(self, carried: Carried, found: Found, error: Exception, began: float) -> None:
        """One that is not gone on with."""
        plan = found.plan
        held = found.held(self._runs, plan)
        carried.journal = held.journal
        if carried.is_leaving:
            held.journal.leave()
        try:
            await end_early(held, plan, error)
        except Fenced:
            raise held.journal.failure or Fenced from None
        run = held.control.run
        seconds = perf_counter() - began + found.before
        self._tell(Ended(plan=plan, response=run.response, turns=run.turns, seconds=seconds))

    async def _give_up(self, carried: Carried, claimed: Claimed, error: Exception) -> None:
        """One that cannot be gone on with, nor ended in its log: how it ended is all that is left of it."""
        is_cancelled = claimed.is_cancelled or isinstance(carried.signal.reason, Cancelled)
        response = given_up(claimed, Cancelled() if is_cancelled else error)
        ending = Ending(identity=claimed.identity, response=response, marks=())
        await patiently(lambda: self._runs.give_up(claimed.lease, ending), lambda: carried.is_leaving)
        seconds = self._resuming.seconds_since(claimed)
        self._tell(Ended(plan=self._resuming.bare(claimed), response=response, turns=0, seconds=seconds))

    def _cancel(self, response_id: str) -> None:
        if (run := self._live.get(response_id)) is not None:
            run.stop(Cancelled())
