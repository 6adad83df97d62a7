"""A run in the foreground that goes on without its client becomes one that another process may go on with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from antwort.api.events import TERMINAL, Batch
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.engine.control import Control
from antwort.engine.draft import Run
from antwort.engine.journal import Journal, ending_of
from antwort.engine.pairs import call_id_of
from antwort.engine.pipe import Log, committed
from antwort.engine.plan import Plan
from antwort.engine.said import Said
from antwort.errors import ClientLeft, HandedOver, QueueFull, ShuttingDown
from antwort.runs.base import Fenced, Record, Unavailable
from antwort.storage.base import ResponseStore

if TYPE_CHECKING:
    from antwort.engine.live import LiveRun

_log = logging.getLogger("antwort.engine")

_TRIES = 3
"""How often it is tried at once. Meanwhile the run waits."""
_LAST_TRIES = 20
"""How often it is tried when the run has come to its end."""
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
    on goes there before anybody sees it. Where the log cannot be written, the run goes on without, and it is tried
    again before anything happens that must be on record if it was written after all.
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
        call is under way whose turn is still being written, it may not: another process would make that turn anew, and
        do twice what the call does. Where not all is there that was said, it can only go on here.
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
        """The journal, once it is known whether there is one. Raises `Fenced` when another has the run."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self._is_lost:
            raise Fenced
        return self.journal

    async def begin(self, call_id: str) -> None:
        """A tool is about to be asked: see `Journal.begin`."""
        if (journal := await self._certain(1)) is not None:
            await journal.begin(call_id)

    async def close(self) -> Journal | None:
        """The run ends: nothing begins any more. Where nobody knows whether it was written that it is durable, its end
        is not told beside that record, unless nobody can find out.
        """
        self._is_closed, self._needs_place = True, False
        return await self._certain(_LAST_TRIES)

    def drop(self) -> None:
        """The run was broken off, if it has not ended."""
        if self._task is not None:
            self._task.cancel()

    # ---- one try after the other ----

    async def _certain(self, times: int) -> Journal | None:
        if await self.settled() is None and self._records and self._said.is_whole:
            self._try(times)
        return await self.settled()

    def _try(self, times: int) -> None:
        """With all that there is by now; what was offered before stays as it was."""
        if self._task is None or self._task.done():
            self._records += self._said.records(self._taken, self._records, self._begun())
            self._taken = self._said.count
            self._task = asyncio.create_task(self._adopted(times))

    async def _adopted(self, times: int) -> None:
        run_id, pause = self._control.run.response.id, _AGAIN
        for left in reversed(range(times)):
            try:
                self.journal = await self._home.adopt(self._run, self._records, needs_place=self._needs_place)
            except Unavailable as fault:
                self._is_doubtful = True
                _log.warning("the run %s cannot be put on record while it is made: %s", run_id, fault.reason)
                if isinstance(self._control.signal.reason, ShuttingDown):
                    return
                await asyncio.sleep(pause if left else 0)
                pause = min(2 * pause, _LATER)
            except Fenced:
                self._is_lost = self._is_doubtful  # it was written then; else nothing was, nor will be
                self._records.clear()
                return
            except HandedOver as waits:
                self._is_lost = True
                self._control.signal.set(waits)
                return
            except QueueFull as full:
                _log.warning("the run %s ends with its client: %s", run_id, full.message)
                self._records.clear()
                self._control.signal.set(ClientLeft())
                return
            else:
                self._on_adopted(self.journal)
                return

    # ---- calls ----

    def _begun(self) -> list[str]:
        """The calls that tools were asked for, and whose results are not out yet."""
        return sorted(self._control.begun - self._said.ended_calls())

    def _early(self) -> bool:
        return not {*self._begun()} <= {*_asked(self._control.run)}


async def kept(
    batches: AsyncGenerator[Batch, None], store: ResponseStore, plan: Plan, control: Control, log: Log, going: Promotion
) -> AsyncGenerator[Batch, None]:
    """As `recorded`, and once it has become a run that another process may go on with, as `journaled`."""
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(last := batch[-1], TERMINAL):
                if (journal := await going.close()) is not None:
                    await journal.finish(ending_of(plan, last.response, control.run), batch)
                    yield batch
                else:
                    yield [*batch[:-1], await committed(last, store, plan, control, log(batch))]
                continue
            if going.is_wanted and (journal := await going.settled()) is not None:
                await journal.append(batch)
            yield batch


def _asked(run: Run) -> Iterator[str]:
    """The calls of turns that have ended."""
    for item in run.output[: run.turn_ends[-1] if run.turn_ends else 0]:
        if isinstance(item, McpCall):
            yield call_id_of(item)
        elif isinstance(item, FunctionCall | CustomToolCall):
            yield item.call_id
