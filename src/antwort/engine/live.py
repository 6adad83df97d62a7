"""A run under way: a task of its own that writes to an outlet, and the face it shows to those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TypeAlias

from antwort.api.compactions import CompactedResponse
from antwort.api.events import DELTAS, TERMINAL, Batch, RunEvent
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition
from antwort.concurrency import Once, Signal
from antwort.engine.approvals import asked_for
from antwort.engine.compacting import window_of
from antwort.engine.control import LEFT, Called, Control, nobody_asks
from antwort.engine.draft import Run
from antwort.engine.ended import Ended, account_of
from antwort.engine.journal import Beside, Held, Journal, record_batch
from antwort.engine.loop import advance
from antwort.engine.pipe import Numbered, Outlet, TurnRecorder, record_outcome
from antwort.engine.plan import Plan
from antwort.engine.promoting import Home, Promotion, record_promotable
from antwort.engine.pulse import Pulse
from antwort.engine.rows import kept_input, kept_request, new_entries
from antwort.engine.said import said_of
from antwort.engine.stream_observer import new_observer
from antwort.errors import (
    AntwortError,
    BackendTimeout,
    ClientLeft,
    DeadlinePassed,
    HandedOver,
    Interrupted,
    RequestCancelled,
    ResponseNotFound,
    ServerFault,
    ShuttingDown,
    StoreFault,
)
from antwort.identity import TENANT
from antwort.notes import RESPONSE_ID
from antwort.providers.base import Provider
from antwort.storage.base import Link, PackedLog, ResponseStore

Batches: TypeAlias = AsyncGenerator[Batch, None]
Recorder: TypeAlias = Callable[[Batch], Awaitable[Batch]]
_ENDS = frozenset(TERMINAL)
_FIRST = _ENDS | frozenset(DELTAS)


class LiveRun:
    """One response on its way. Whoever holds it reads the events, or waits for the result, or leaves."""

    _first: float | None = None
    _account: Ended | None = None
    _pulse: Pulse | None = None
    _promotion: Promotion | None = None
    _journal: Journal | None = None
    _on_record: Response | None = None
    _gone: Signal | None = None
    _is_logged = False
    _noted = _FIRST  # the kinds of events that are looked at, where they are the last of a batch

    def __init__(
        self,
        plan: Plan,
        provider: Provider,
        store: ResponseStore | None,
        on_end: Callable[[LiveRun], None],
        on_call: Sequence[Callable[[Called], None]] = (),
        *,
        held: Held | None = None,
        goes_on: bool = False,
        home: Home | None = None,
    ) -> None:
        """Without `held` it begins here and now, and is read here. One that `goes_on` when its client leaves is made
        one that another process may go on with, by `home`.
        """
        loop, request, settings = asyncio.get_running_loop(), plan.request, plan.settings
        self._plan, self._on_end = plan, on_end
        self.response_id, self.identity = plan.response.id, plan.identity
        self._began = perf_counter()  # the clock of some event loops stands still between two turns
        deadline = loop.time() + plan.budget.seconds if plan.deadline is None else plan.deadline
        self._control = control = Control(Run(plan.response)) if held is None else held.control
        control.deadline = deadline
        self.said = said = None if held is not None else said_of(plan, goes_on=goes_on)
        """All that it has sent, where that is kept."""
        self._observer = observer = None if held is not None else new_observer(settings)
        self._is_watched = request.stream or held is not None or said is not None or observer is not None
        """Whether anybody learns of it before it has ended."""
        if goes_on:
            self._gone = Signal()
        if home is not None and said is not None:
            self._promotion = Promotion(self, said, control, home, self._adopted)
        keep = None if said is None else said.add
        self._outlet = Outlet(settings.buffer_events, keep, text_bound=settings.buffer_bytes, observer=observer)
        self._answered: Once[None] = Once()
        self._ended: Once[Response] = Once()
        control.on_answer, control.on_call = self._is_answered, on_call
        self._held_until = loop.time() + settings.hold_back
        self._timers = [loop.call_at(deadline, control.signal.set, DeadlinePassed())]
        if request.stream:
            heard = self._outlet if held is None else Beside(held.journal)
            self._pulse = Pulse(plan, control, heard)
            control.on_progress = self._pulse.report
        else:
            self._outlet.abandon()
        if held is not None:
            self._outlet.abandon()
            self._journal, self._on_record = held.journal, control.run.response
            self._began -= held.before
            control.on_begin = held.journal.begin
        running = self._drive(advance(plan, provider, control), self._recorder(store))
        self._task = asyncio.create_task(running, name=f"run {self.response_id}")
        # Nobody else waits with them. There are event loops where the task has begun by now, and looked itself up.
        control.signal.task = control.last_call.task = self._task

    def _recorder(self, store: ResponseStore | None) -> Recorder | None:
        """Return what puts each batch on record before it is sent; None: nothing does."""
        plan, control = self._plan, self._control
        if self._journal is not None:
            return partial(record_batch, journal=self._journal, plan=plan, control=control)
        if store is None:
            return None
        if plan.request.is_stored:
            control.on_turn = TurnRecorder(store, plan.identity).record
        if self._promotion is not None:
            return partial(
                record_promotable, store=store, plan=plan, control=control, log=self._log, going=self._promotion
            )
        return partial(record_outcome, store=store, plan=plan, control=control, log=self._log)

    @property
    def response(self) -> Response:
        """The response as it stands; where another may go on with it, as far as it is on record."""
        return self._control.run.response if self._on_record is None else self._on_record

    @property
    def has_acted(self) -> bool:
        """Whether a tool was started here."""
        return self._control.has_acted

    @property
    def is_worth_another_try(self) -> bool:
        """Whether it has failed for a reason that may pass, and to make it anew would do nothing twice."""
        error = self._control.error
        return self.response.status == "failed" and not self.has_acted and not (error and error.may_pass is False)

    async def answered(self) -> None:
        """Wait until the backend has answered, at most as long as the response is held back.

        Raises what went wrong before that: nothing has been sent yet, so it can be told as an HTTP error.
        """
        if not self._answered.is_set:
            self._timers.insert(0, asyncio.get_running_loop().call_at(self._held_until, self._is_answered))
        await self._answered.wait()

    async def read(self) -> list[Numbered]:
        """All batches waiting, at least one; nothing when the stream is over."""
        return await self._outlet.read()

    async def result(self) -> Response:
        """The response as it ended, however that was. Raises `HandedOver` when another process goes on with it."""
        return await self._ended.wait()

    async def whole(self) -> Response:
        """The response as it ended. Raises, like `answered`, what went wrong before the backend answered; and
        `ClientLeft` when it goes on without its client.
        """
        response = await (self._ended.wait() if self._gone is None else self._gone.race(self._ended.wait))
        if self._answered.error is not None:  # by its end it is known
            raise self._answered.error
        return response

    def leave(self) -> None:
        """The client has gone. The run ends itself, or goes on without; nobody cancels it."""
        self._outlet.abandon()
        if not self.goes_on:
            self.stop(ClientLeft())
        elif not self._ended.is_set:
            self._let_go()

    def _let_go(self, *, needs_place: bool = True) -> None:
        """Nobody waits for it here any more."""
        self._outlet.abandon()
        self._outlet.end()
        if self._gone is not None:
            self._gone.set(ClientLeft())
        self.promote(needs_place=needs_place)

    @property
    def has_numbers(self) -> bool:
        """Whether what it has sent is kept by its numbers, so that it can be read again."""
        return self.is_held or self._is_logged or (self.said is not None and self.said.is_whole)

    @property
    def goes_on(self) -> bool:
        """Whether it is made to its end when its client leaves."""
        return self._gone is not None

    @property
    def goes_on_alone(self) -> bool:
        """Whether its client has left, and it has not ended."""
        return self.goes_on and self._outlet.is_abandoned and not self._ended.is_set

    def when_over(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the run and everything it started has ended, or is left to another process."""
        self._task.add_done_callback(lambda _: tell())

    def promote(self, *, needs_place: bool = True) -> None:
        """Make it a run that another process may go on with, as soon as may be. Those who read it here read on, where
        it has a place, if it `needs_place`.
        """
        if self._promotion is not None and not (self._promotion.is_wanted and needs_place):
            if self._pulse is not None:
                self._pulse.hush()  # what it would say beside the run has no place in the log yet
            self._promotion.want(needs_place=needs_place)

    async def hand_on(self) -> None:
        """It ends here, and goes on elsewhere if another process may go on with it. Only one who has seen something of
        it can find it there.
        """
        if self._promotion is not None and self._plan.request.stream and self._answered.is_set:
            self._let_go(needs_place=False)
        is_left = self._promotion is not None and await self._promotion.left()
        self.stop(HandedOver() if is_left else ShuttingDown())

    def _adopted(self, journal: Journal) -> None:
        """From now on its log tells what it says: those who read along go there."""
        self._journal, self._on_record = journal, self._control.run.response
        self._control.on_turn = None  # the log records it
        assert self.said is not None, "it was kept to be adopted"
        self.said.let_go()
        self._outlet.keep_no_more()
        self._stop_pulse()
        if self._plan.request.stream and self._outlet.is_abandoned:  # those who read it here see what the log says
            self._pulse = Pulse(self._plan, self._control, Beside(journal))
            self._control.on_progress = self._pulse.report

    def stop(self, reason: Exception) -> None:
        if self._journal is not None and isinstance(reason, HandedOver):
            self._journal.leave()
        if self._promotion is not None and isinstance(reason, HandedOver | ShuttingDown):
            self._promotion.leave()
        self._control.signal.set(reason)

    @property
    def is_held(self) -> bool:
        """Whether another process may go on with it."""
        return self._journal is not None

    @property
    def is_left(self) -> bool:
        """Whether it has stopped here without having ended: another goes on with it."""
        return self._control.is_left

    @property
    def failure(self) -> Exception | None:
        """What nobody expected, where a run that another may go on with was left because of it."""
        return None if self._journal is None else self._journal.failure

    def hand_over(self) -> None:
        """Let it come to the end of its step, and stop there."""
        self._control.is_leaving = True

    def lose(self) -> None:
        """Another has it by now: nothing more of it is written here, and nobody is told of an end."""
        if self._journal is not None:
            self._journal.lose()
        self._control.signal.set(HandedOver())

    def give_up(self) -> None:
        """The process ends: it is not waited any more for its end to be put on record."""
        self._control.last_call.set(StoreFault("The response could not be stored before the server ended."))

    def break_off(self) -> None:
        """The process ends now. Where another may go on with it, it does; else it is found to be lost."""
        self._control.is_left = True
        self._task.cancel()

    @property
    def is_recorded(self) -> bool:
        """Whether the record says what the last event said."""
        return self._control.is_recorded

    async def record_again(self, store: ResponseStore) -> None:
        """Write the end that could not be written. A row that is gone or ended by now needs none."""
        with contextlib.suppress(ResponseNotFound, IllegalTransition):
            entries = new_entries(self._plan, self.response)
            asked = asked_for(self._plan, self.response)
            await store.finish(self.identity, self.response, self._control.run.marks, entries, asked)

    def account(self) -> Ended:
        """What it has come to; when it has ended, that is one for all who ask."""
        if self._account is not None:
            return self._account
        first = None if self._first is None else self._first - self._began
        account = account_of(self._plan, self._control, perf_counter() - self._began, first)
        if self._ended.is_set:
            self._account = account
        return account

    def chain(self) -> tuple[Link, ...]:
        """The response as it stands, behind those that it continues: what is needed to continue it in turn."""
        plan, run = self._plan, self._control.run
        link = Link(
            response=run.response,
            request=kept_request(plan),
            input=kept_input(plan)[0],
            turn_ends=run.turn_ends,
            abandoned=run.abandoned,
        )
        return (*plan.chain, link)

    async def compacted(self) -> CompactedResponse:
        """The window that the run was to make. Raises what went wrong, whenever that was: there is no half of it."""
        response = await self._ended.wait()
        if response.status == "completed":
            return window_of(response, self._plan)
        if isinstance(self._control.signal.reason, DeadlinePassed):
            raise BackendTimeout("The conversation could not be summed up in time.")
        raise self._control.error or RequestCancelled()

    async def wait(self) -> None:
        """Until the run and everything it started has ended."""
        await asyncio.wait([self._task])

    # ---- the run's own task ----

    async def _drive(self, batches: Batches, record: Recorder | None) -> None:
        RESPONSE_ID.set(self.response_id)
        TENANT.set(self.identity.tenant)
        control, outlet = self._control, self._outlet
        try:
            async for said in batches:
                batch = said if record is None else await record(said)
                if type(batch[-1]) in self._noted:
                    self._note(batch[-1])
                if not self._is_watched:
                    continue
                if self._on_record is not None:
                    self._on_record = control.run.response
                outlet.publish(batch)
                if self._promotion is not None:
                    self._promotion.look()
                if outlet.is_full and not self._ended.is_set:
                    await self._wait_for_room()
        except LEFT:
            control.is_left = True
        except Exception as error:
            self._leave_for(error)
        finally:
            try:
                await batches.aclose()
            finally:
                self._close()

    def _note(self, last: RunEvent) -> None:
        """The first piece that the model has said, or the end."""
        if isinstance(last, TERMINAL):
            self._end(last.response)
        else:
            self._first, self._noted = perf_counter(), _ENDS

    def _leave_for(self, error: Exception) -> None:
        """What nobody expected is raised, unless another may go on with it."""
        if self._journal is None:
            raise error
        self._journal.failure, self._control.is_left = error, True

    def _log(self, last: Batch) -> PackedLog | None:
        """What goes on record with its end. No event comes between this and the last batch."""
        if self._pulse is not None:
            self._pulse.hush()
        log = self.said.packed(last) if self.said is not None and self._plan.request.stream else None
        self._is_logged = log is not None
        return log

    def _end(self, response: Response) -> None:
        self._plan.release()  # its end is on record, and not known yet: who is told of it may go on at once
        self._stop_pulse()
        error = self._control.error
        if error is not None and asyncio.get_running_loop().time() < self._held_until:
            self._answered.fail(error)
        self._answered.set(None)
        self._ended.set(response)

    async def _wait_for_room(self) -> None:
        """A slow reader holds the run back, and through it the backend; a run told to stop does not wait."""
        with contextlib.suppress(Interrupted, AntwortError):
            await self._control.signal.race(self._outlet.wait_for_room)

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._plan.release()
        self._stop_pulse()
        self._outlet.end()
        if self.said is not None:
            self.said.let_go()
        if self._promotion is not None:
            self._promotion.drop()
        self._control.fall_silent()
        if not self._ended.is_set:  # those who wait for an answer have theirs by the end at the latest
            # Broken off: only when its task was cancelled, as at the end of a loop.
            stopped = HandedOver() if self.is_left else ServerFault("The run was broken off.")
            self._answered.fail(stopped)
            self._ended.fail(stopped)
        elif self._observer is not None and self._ended.error is None:
            self._observer.on_end()
        self._on_end(self)

    def _is_answered(self) -> None:
        self._control.on_answer = nobody_asks
        self._answered.set(None)

    def _stop_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
