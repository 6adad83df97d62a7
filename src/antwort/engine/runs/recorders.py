"""Put a response on record: its row, each turn of a stored foreground run, each batch of a durable run, its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from antwort.api.events import (
    TERMINAL,
    Batch,
    ResponseCreated,
    ResponseFailed,
    ResponseQueued,
    RunEvent,
    Span,
    is_within,
)
from antwort.api.items import InputItem, McpListTools, is_additional
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.status import EXTENDS_CONVERSATION, IllegalTransition, transition
from antwort.api.tool_parsing import KEY
from antwort.api.wire import encode, replace
from antwort.concurrency import Signal, backoff
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.history.approval_records import asked_for
from antwort.engine.loop.fold import Run, error_of
from antwort.engine.plan import Plan
from antwort.engine.runs.event_log import Recorder
from antwort.errors import AntwortError, Damaged, HandedOver, ResponseNotFound, StoreFault
from antwort.storage.base import Entry, KeyClaim, NewResponse, PackedLog, ResponseStore
from antwort.storage.event_codec import pack
from antwort.storage.run_log import EventRecord, Fenced, Lease, NewRun, RunEnding, RunLog

T = TypeVar("T")

_log = logging.getLogger("antwort.engine")

TURN_RETRIES = 4
"""How often it is tried again to record a turn: for about two seconds."""


async def retry_until_available(ask: Callable[[], Awaitable[T]], run_id: str, leaving: asyncio.Event) -> T:
    """Ask the record of a run again while it is not available. Raises `HandedOver` when the run is to be left
    meanwhile, and `Damaged`, which does not pass.
    """
    pauses, is_logged = backoff(), False
    while True:
        try:
            return await ask()
        except Damaged:
            raise
        except StoreFault as error:
            if not is_logged:
                message = "the record of the run %s cannot be read or written, and is tried again: %s"
                _log.warning(message, run_id, error.message)
            is_logged = True
        with suppress(TimeoutError):
            async with asyncio.timeout(next(pauses)):
                await leaving.wait()
            raise HandedOver


class TurnRecorder(Recorder):
    """Record a stored foreground run: each turn with its tool results before the next inference, and the outcome before
    the terminal event is published.

    Of a response that is not stored, only what it adds to its conversation is recorded.
    """

    def __init__(self, store: ResponseStore, plan: Plan, events: Callable[[], Sequence[Batch] | None]) -> None:
        """`events` returns all batches so far, where they are to be recorded with the outcome."""
        self._store, self._plan, self._events = store, plan, events
        self._items = self._marks = 0
        """How many are on record."""
        self._commit_deadline = Signal()

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:  # noqa: ARG002 - packed logs begin at 0
        """Return the batch; with `response.failed` at its end where the outcome could not be committed."""
        response = run.response
        events: PackedLog | None = None
        if self._plan.request.stream and (before := self._events()) is not None:
            events = pack([*before, batch])
        self._events = lambda: None  # the log holds this recorder
        try:
            await self._commit_deadline.race(partial(self._commit, run, events))
        except Exception as error:
            _log.error("the response %s could not be stored", response.id, exc_info=error)
            fault = error if isinstance(error, StoreFault) else StoreFault("The response could not be stored.")
            self.failure = fault
            failed = replace(
                response, status="failed", error=error_of(fault), incomplete_details=None, completed_at=None
            )
            return [*batch[:-1], ResponseFailed(response=failed)]
        return batch

    async def _commit(self, run: Run, events: PackedLog | None = None) -> None:
        plan, response, conversation = self._plan, run.response, self._plan.request.conversation
        entries = () if conversation is None else new_entries(plan, response)
        approvals = asked_for(plan, response)
        if plan.request.is_stored:
            await self._store.finish(plan.identity, response, run.marks, entries, approvals, events)
        elif entries and conversation is not None:
            await self._store.add_entries(plan.identity, conversation, entries, approvals)

    async def checkpoint(self, run: Run) -> None:
        """Record the turns and results since the last time. Raises `StoreFault` if that fails for some seconds, or
        another process has ended the response: then the model must not be asked again.
        """
        if not self._plan.request.is_stored or len(run.marks) == self._marks:
            return
        pauses = islice(backoff(0.125), TURN_RETRIES)
        while True:
            try:
                await self._store.record_turn(self._plan.identity, run.response, run.marks, self._items)
                break
            except (IllegalTransition, ResponseNotFound) as error:
                raise StoreFault("The response was ended by another process.") from error
            except StoreFault:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
        self._items, self._marks = len(run.output), len(run.marks)

    async def record_again(self, run: Run) -> None:
        with suppress(ResponseNotFound, IllegalTransition):  # a row that is gone or has ended by now needs none
            await self._commit(run)
        self.failure = None

    def leave(self, *, is_lost: bool = False) -> None:  # noqa: ARG002 - no other process continues it
        """Stop waiting for the outcome to be committed: the process ends."""
        self._commit_deadline.set(StoreFault("The response could not be stored before the server ended."))


class BatchRecorder(Recorder):
    """Record a durable run in the run log, so that another process can continue it: every batch is durable before it is
    published, and the last one is committed with the outcome.
    """

    records_each_batch = True

    def __init__(
        self, runs: RunLog, lease: Lease, plan: Plan, records: int = 0, leaving: asyncio.Event | None = None
    ) -> None:
        """`records` is the number of records that the log holds. `leaving` is set when a log that cannot be written is
        not to be tried again.
        """
        self._runs, self._lease, self._plan = runs, lease, plan
        self._at = records
        self._queued: list[RunEvent] = []
        self._queued_first = 0
        self._batches = self._written = 0
        """How many batches have come, and how many of them are durable."""
        self._ending: RunEnding | None = None
        """How the run ended, once its last batch has come."""
        self._lock = asyncio.Lock()
        self._fault: Exception | None = None
        """Why nothing more is written."""
        self._leaving = leaving or asyncio.Event()

    async def record(self, first: int, batch: Batch, run: Run) -> Batch:
        """Return when the batch is durable. Batches that come while one is written are written together.

        Raises `Fenced`, for good, when another process has the run, and `HandedOver` when the run is to be left while
        the log cannot be written. An unexpected error of the log is the `failure`: nothing more is written, as if
        another process had the run.
        """
        if self._ending is not None:
            raise Fenced  # nothing comes behind the end
        if not self._queued:
            self._queued_first = first
        self._queued += batch
        self._batches += 1
        number = self._batches
        if isinstance(last := batch[-1], TERMINAL):
            self._ending = RunEnding(
                identity=self._plan.identity,
                response=last.response,
                marks=run.marks,
                entries=new_entries(self._plan, last.response, run.abandoned),
                approvals=asked_for(self._plan, last.response),
            )
        async with self._lock:
            if self._written < number:  # else it was written with another one
                record, self._queued = EventRecord(self._at, self._queued_first, self._queued), []
                written = self._batches
                await self._write(record, self._ending)
                self._at, self._written = self._at + 1, written
        return batch

    async def _write(self, record: EventRecord, ending: RunEnding | None) -> None:
        """Write a record. With the last batch, which is in it if it has come, goes the outcome of the run."""

        async def attempt() -> None:
            if self._fault is not None:
                raise self._fault
            if ending is None:
                await self._runs.append(self._lease, record)
                return
            try:
                await self._runs.finish(self._lease, ending, record)
            except (ResponseNotFound, IllegalTransition) as error:
                raise Fenced from error

        try:
            await retry_until_available(attempt, self._lease.run_id, self._leaving)
        except (Fenced, HandedOver) as error:
            self._fault = self._fault or error
            raise self._fault from None
        except Exception as error:  # it may have been written: nothing else may take its place
            self._fault, self.failure = Fenced(), error
            raise self._fault from error
        except BaseException:
            self._fault = Fenced()
            raise

    def leave(self, *, is_lost: bool = False) -> None:
        """Do not retry from now on when the log cannot be written. With `is_lost`, write nothing more."""
        if is_lost:
            self._fault = self._fault or Fenced()
        self._leaving.set()


# ---- the row of a response ----


def new_row(plan: Plan, claim: KeyClaim | None = None, worker: str | None = None) -> NewResponse:
    """Return the row of a response. Responses of its chain that are not stored become a part of its input. `worker` is
    the name of the process that runs it, where other processes need it.
    """
    response, history = plan.response, plan.history
    items, raw = sealed_input(plan)
    if history.chain:
        unstored = [item for link in history.chain if not link.response.store for item in (*link.input, *link.output)]
        if unstored:
            stored = [link.response.id for link in history.chain if link.response.store]
            response = replace(response, previous_response_id=stored[-1] if stored else None)
            items, raw = (*unstored, *items), (*map(encode, unstored), *raw)
    return NewResponse(
        identity=plan.identity,
        response=response,
        request=plan.sealed.sealed_request(plan.request, plan.response.id),
        input=items,
        raw_input=raw,
        claim=claim,
        approvals=unstored_approvals(plan) if history.unstored_approvals else (),
        decisions=history.decisions,
        worker=worker,
    )


def unstored_approvals(plan: Plan) -> tuple[Approval, ...]:
    """Return the decided approvals that are not on record: they are stored with the response that decides."""
    return tuple(replace(each, response_id=plan.response.id) for each in plan.history.unstored_approvals)


def new_run(plan: Plan, claim: KeyClaim | None = None) -> NewRun:
    """Return a run to be queued: its row, and the first events of its log."""
    row = new_row(plan, claim)
    queued = replace(row.response, status="queued")
    events: list[RunEvent] = [ResponseCreated(response=queued), ResponseQueued(response=queued)]
    return NewRun(new=msgspec.structs.replace(row, response=queued), events=events)


def sealed_input(plan: Plan) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """Return the input and its JSON, with the credentials of the tools in it sealed."""
    request, sealed = plan.request, plan.sealed
    if not any(map(is_additional, request.input)):
        return request.input, request.raw_input
    items = tuple(map(sealed.sealed_item, request.input))
    pairs = zip(items, request.raw_input, strict=True)
    return items, tuple(encode(item) if is_additional(item) and KEY in item.fields else raw for item, raw in pairs)


def new_entries(plan: Plan, response: Response, abandoned: Sequence[Span] = ()) -> tuple[Entry, ...]:
    """Return what an ended response adds to its conversation: the input, then the output. One that has failed or was
    cancelled adds nothing, so that a retry asks nothing twice. A list of tools that is there already is not added
    again. Compaction triggers and abandoned output are not added.
    """
    request = plan.request
    if request.conversation is None or response.status not in EXTENDS_CONVERSATION:
        return ()
    sent = zip(*sealed_input(plan), strict=True)
    given = (Entry(item=item, raw=raw) for item, raw in sent if not is_trigger(item))
    output = (item for at, item in enumerate(response.output) if not is_within(abandoned, at))
    said = (Entry(item=item, raw=encode(item), direction="output") for item in output)
    earlier = (item for stretch in plan.history.stretches[:-1] for item in stretch)
    return tuple(_without_known_lists((*given, *said), earlier))


def _without_known_lists(entries: Iterable[Entry], earlier: Iterable[InputItem]) -> Iterator[Entry]:
    known = [_listed(item) for item in earlier if isinstance(item, McpListTools)]
    for entry in entries:
        if isinstance(entry.item, McpListTools):
            if (listed := _listed(entry.item)) in known:
                continue
            known.append(listed)
        yield entry


def _listed(item: McpListTools) -> tuple[object, ...]:
    return item.server_label, item.tools, item.error


async def end_unstarted(plan: Plan, store: ResponseStore) -> None:
    """End the row of a response whose run was never started, if there is one."""
    cancelled = replace(plan.response, status=transition(plan.response.status, "cancelled"))
    with suppress(AntwortError, IllegalTransition):  # no row: nothing to end
        await store.finish(plan.identity, cancelled, ())
