"""A run in the foreground that goes on without its client becomes one that another process may go on with."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from antwort.api.events import TERMINAL, Batch
from antwort.api.items import CustomToolCall, FunctionCall, McpCall, OutputItem
from antwort.engine.control import LEFT, Control
from antwort.engine.draft import Run
from antwort.engine.journal import Journal, ending_of
from antwort.engine.pairs import call_id_of
from antwort.engine.pipe import Log, committed
from antwort.engine.plan import Plan
from antwort.engine.said import Said
from antwort.errors import ClientLeft, HandedOver, QueueFull
from antwort.runs.base import Fenced, Record, Unavailable
from antwort.storage.base import ResponseStore

if TYPE_CHECKING:
    from antwort.engine.live import LiveRun

_log = logging.getLogger("antwort.engine")

_TRIES = 3
"""How often it is tried before the run goes on without. Meanwhile it waits."""
_AGAIN, _LATER = 0.2, 2.0
"""Seconds until it is tried again, at first and in the end."""


class Home(Protocol):
    """Where a run goes on."""

    async def adopt(self, run: LiveRun, records: Sequence[Record], *, needs_place: bool) -> Journal:
        """The journal to write on in. Raises `Unavailable` and `Fenced`; and where it `needs_place` and there is none,
        `HandedOver` when it waits like any other, else `QueueFull`.
        """
        ...

    def shelter(self, run: LiveRun) -> bool:
        """Whether there is a place for one that cannot be adopted."""
        ...


class Promotion:
    """From the moment that it is wanted. What the run has said by then is put into the log, and what it says from then
    on goes there before anybody sees it. Where the log cannot be written, the run goes on without; but it asks no tool,
    and does not end, before it is known whether it was written after all.
    """

    def __init__(
        self, run: LiveRun, said: Said, control: Control, home: Home, on_adopted: Callable[[Journal], None]
    ) -> None:
        self._run, self._said, self._control, self._home, self._on_adopted = run, said, control, home, on_adopted
        self._records: list[Record] = []
        self._taken = 0
        """How many batches are in the records."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = self._is_doubtful = self._is_lost = self._is_sheltered = False
        self._needs_place = True
        self._leaving = asyncio.Event()
        self.is_wanted = False
        self.journal: Journal | None = None

    def want(self, *, needs_place: bool = True) -> None:
        """Without a client it `needs_place`, as what is made in the background does: where there is none, it waits
        like that, or ends with its client. One that is handed over needs none.
        """
        self.is_wanted = True
        self._needs_place = needs_place
        self.look()

    def look(self) -> None:
        """Begin, where that is wanted and may be: between two batches, when all is out that the run stands at. While a
        call is under way, or done, whose turn is still being written, it may not: another process would make that turn
        anew, and do twice what the call does. Where not all is there that was said, it can only go on here.
        """
        if self._task is not None or not self.is_wanted or self._is_closed:
            return
        if not self._said.is_whole:
            self._stay()
        elif not self._early():
            self._control.on_begin = self.begin
            self._try(_TRIES)

    def _stay(self) -> None:
        if self._needs_place and not self._is_sheltered and not self._home.shelter(self._run):
            self._control.signal.set(ClientLeft())
        self._is_sheltered = True

    async def settled(self) -> Journal | None:
        """The journal, once it is known whether there is one, or it was tried for long enough. Raises `Fenced` when
        another has the run.
        """
        while self._task is not None and not self._task.done():  # another who waited may have begun anew
            await asyncio.wait([self._task])
        if self._is_lost:
            raise Fenced
        return self.journal

    async def begin(self, call_id: str) -> None:
        """A tool is about to be asked: see `Journal.begin`. Where nobody knows whether the run is durable, none is:
        whoever goes on with it would not know of the call. Raises `HandedOver` when the run is left like that.
        """
        if (journal := await self._certain()) is not None:
            await journal.begin(call_id)

    async def close(self) -> Journal | None:
        """The run ends: nothing begins any more. Where nobody knows whether it was written that it is durable, its end
        is not told beside that record. Raises as `begin` does.
        """
        self._is_closed, self._needs_place = True, False
        return await self._certain()

    def leave(self) -> None:
        """The process stops: from now on, a log that cannot be written is tried once more at most."""
        self._leaving.set()

    async def left(self) -> bool:
        """The process stops. Whether another goes on with the run or, as far as is known, may."""
        self.leave()
        try:
            return await self._certain() is not None
        except LEFT:
            return True

    def drop(self) -> None:
        """The run was broken off, if it has not ended."""
        if self._task is not None:
            self._task.cancel()

    # ---- one try after the other ----

    async def _certain(self) -> Journal | None:
        """The journal, once it is known whether there is one, as long as that takes."""
        journal = await self.settled()
        if journal is None and self._is_doubtful:
            self._try(math.inf)
            journal = await self.settled()
        if journal is None and self._is_doubtful:
            raise HandedOver
        return journal

    def _try(self, times: float) -> None:
        """With all that there is by now; what was offered before stays as it was."""
        if self._task is None or self._task.done():
            if self._said.is_whole:
                self._records += self._said.records(self._taken, self._records, self._begun())
                self._taken = self._said.count
            self._task = asyncio.create_task(self._adopted(times))

    async def _adopted(self, times: float) -> None:
        pause = _AGAIN
        while not await self._is_known():
            times -= 1
            if times <= 0 or self._leaving.is_set():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._leaving.wait()
            pause = min(2 * pause, _LATER)

    async def _is_known(self) -> bool:
        """Try once; whether it is known by now what comes of it."""
        run_id = self._run.response_id
        try:
            journal = await self._home.adopt(self._run, self._records, needs_place=self._needs_place)
        except Unavailable as fault:
            if not self._is_doubtful:
                _log.warning("the run %s cannot be put on record while it is made: %s", run_id, fault.reason)
            self._is_doubtful = True
            return False
        except HandedOver as waits:
            self._lose(waits)
        except QueueFull as full:
            _log.warning("the run %s ends with its client: %s", run_id, full.message)
            self._is_doubtful = False
            self._control.signal.set(ClientLeft())
        except Fenced:
            self._is_lost = self._is_doubtful  # it was written then; else nothing was, nor will be
        except Exception:
            _log.exception("the run %s cannot be put on record", run_id)
            self._is_lost = self._is_doubtful
        else:
            self._take(journal)
        return True

    def _take(self, journal: Journal) -> None:
        """One that has said too much meanwhile to be put on record is made anew, from what is there. No tool was asked
        in the meantime.
        """
        self._is_doubtful = False
        if self._taken < self._said.count:
            self._lose(HandedOver())
        else:
            self.journal = journal
            self._on_adopted(journal)

    def _lose(self, reason: HandedOver) -> None:
        self._is_lost = True
        self._control.signal.set(reason)

    # ---- calls ----

    def _begun(self) -> list[str]:
        """The calls that tools were asked for, and whose results are not out yet."""
        return sorted(self._control.begun - self._said.ended_calls())

    def _early(self) -> bool:
        run = self._control.run
        return not {*self._begun()} <= {*_asked(run)} or any(_is_done(item) for item in _unended(run))


async def record_promotable(
    batch: Batch, store: ResponseStore, plan: Plan, control: Control, log: Log, going: Promotion
) -> Batch:
    """As `record_outcome`; and, once another process may go on with the run, as `record_batch`."""
    if isinstance(last := batch[-1], TERMINAL):
        if (journal := await going.close()) is not None:
            await journal.finish(ending_of(plan, last.response, control.run), batch)
            return batch
        return [*batch[:-1], await committed(last, store, plan, control, log(batch))]
    if going.is_wanted and (journal := await going.settled()) is not None:
        await journal.append(batch)
    return batch


def _unended(run: Run) -> Sequence[OutputItem]:
    """The items behind the last turn that has ended."""
    return run.said(run.turn_ends[-1] if run.turn_ends else 0)


def _is_done(item: OutputItem) -> bool:
    return isinstance(item, FunctionCall | CustomToolCall) and item.status == "completed"


def _asked(run: Run) -> Iterator[str]:
    """The calls of turns that have ended."""
    for item in run.output[: run.turn_ends[-1] if run.turn_ends else 0]:
        if isinstance(item, McpCall):
            yield call_id_of(item)
        elif isinstance(item, FunctionCall | CustomToolCall):
            yield item.call_id
