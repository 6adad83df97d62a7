"""Run what this worker has claimed from the run log: new background runs, and those whose process died.

A run is loaded with its record, planned again, and run to its end, or ended where that fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from antwort.api.decoding import Steps
from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, RunEvent, TurnAbandoned
from antwort.api.items import (
    CustomToolCall,
    FunctionCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    is_additional,
)
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import UNSET, encode, replace
from antwort.concurrency import Signal, backoff
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.calls import CallView
from antwort.engine.history.sealed_items import Seal, SealedItems
from antwort.engine.loop.fold import Run, fold, interrupted
from antwort.engine.loop.item_builders import reopened_items
from antwort.engine.plan import Plan, budget_of
from antwort.engine.planning import Planner, Resumed
from antwort.engine.resources import Resources
from antwort.engine.runs.conversation_lock import ConversationLocks, LockRequest
from antwort.engine.runs.event_log import EventLog, new_observer
from antwort.engine.runs.live import LiveRun, LiveRuns, RunSummary
from antwort.engine.runs.recorders import BatchRecorder, retry_until_available
from antwort.errors import (
    AntwortError,
    AttemptsExhausted,
    Cancelled,
    Damaged,
    DeadlinePassed,
    HandedOver,
    ServerFault,
)
from antwort.event_loop import in_turns
from antwort.identity import TENANT
from antwort.storage.base import Link
from antwort.storage.run_log import DETACHED, ClaimedRun, EventRecord, Fenced, Lease, RunEnding
from antwort.tools.routing import Toolbox

_log = logging.getLogger("antwort.engine")
T = TypeVar("T")

_MODEL_ITEMS = (Message, Reasoning, FunctionCall, CustomToolCall, McpApprovalRequest)
MAX_DISCOVERY_SECONDS = 60.0
"""For which a tool server is asked again that was of no use to the run yet; then the run begins without it."""


class LeasedRun:
    """A run that this process holds a lease of."""

    def __init__(self, lease: Lease, live: LiveRun | None = None) -> None:
        """`live` is a run that began here, for a request that reads it."""
        self.lease, self.live = lease, live
        self.signal = Signal() if live is None else live.signal
        """Stops it, from before it is in progress."""
        self.leaving = asyncio.Event()
        """Set when it does not wait for a record that cannot be read."""
        self.task: asyncio.Task[None] | None = None
        """Holds it, and releases it."""

    @property
    def has_client(self) -> bool:
        """Whether a request of this process reads it: then it takes no slot."""
        return self.live is not None and bool(self.live.clients)

    def stop(self, reason: Exception) -> None:
        if isinstance(reason, HandedOver):
            self.leaving.set()
            if self.live is not None:
                self.live.log.recorder.leave()
        self.signal.set(reason)

    def hand_over(self) -> None:
        """Stop at the end of the current step; if it is not in progress yet, at once."""
        if self.live is not None:
            self.live.signal.stops_after_step = True
        else:
            self.stop(HandedOver())

    def lose(self) -> None:
        """Stop at once, and write nothing more: another process has the run."""
        if self.live is not None:
            self.live.log.recorder.leave(is_lost=True)
        self.stop(HandedOver())

    async def wait_for_end(self, live: LiveRun) -> None:
        """Wait for the end of the run, now that it is in progress. Raises why it stopped here, if it has not ended."""
        self.live = live
        await live.wait()
        if live.is_detached:
            raise live.error or HandedOver()


def pick_up(response: Response, events: Sequence[RunEvent], seal: Seal | None) -> tuple[Run, Batch]:
    """Return the fold of a run's recorded events, and the events that close the items of an inference that
    never ended: it is repeated, and its output is left out of the prompt. Open calls of a turn that did end
    wait for their results.
    """
    run = fold(Run(response), events)
    # Results, lists of tools and the runs of earlier calls stand before the output of the model.
    first = max((0, *run.turn_ends, *[end for _, end in run.abandoned]))
    start = first
    for made in run.output[first:]:
        if CallView.of(made).has_our_id if isinstance(made, McpCall) else isinstance(made, _MODEL_ITEMS):
            break
        start += 1
    else:
        return run, []
    closing_events: Batch = []
    for index, item in sorted(reopened_items(events, seal).items()):
        if index >= start:
            item.close("incomplete", closing_events)
    return run, [*closing_events, TurnAbandoned(start=start)]


class Recovery:
    """Run claimed runs to their ends: those that waited in the queue, and those that another process has begun."""

    def __init__(self, resources: Resources, planner: Planner, locks: ConversationLocks, live: LiveRuns) -> None:
        assert resources.runs is not None, "runs are claimed from a log"
        self._resources, self._runs, self._planner, self._locks = resources, resources.runs, planner, locks
        self._live = live

    async def run(self, held: LeasedRun, claimed: ClaimedRun) -> None:
        """Run a claimed run to its end. Raises one of `DETACHED` when it stops before that, and unexpected errors as
        long as there may be another attempt.
        """
        TENANT.set(claimed.identity.tenant)
        try:
            live = await self._start(held, claimed)
            await held.wait_for_end(live)
        except DETACHED:
            raise
        except Damaged as error:
            _log.error("the run %s has failed: %s", claimed.lease.run_id, error.message)
            await self._give_up(held, claimed, error)
        except Exception:
            if claimed.attempt <= self._resources.settings.background.attempts:
                raise
            _log.exception("the run %s has failed, and its end cannot be put into its log", claimed.lease.run_id)
            await self._give_up(held, claimed, AttemptsExhausted(claimed.attempt - 1))

    async def _start(self, held: LeasedRun, claimed: ClaimedRun) -> LiveRun:
        """Load the run with its record, plan it again, and start it where its record ends."""
        try:
            records, link = await held.signal.race(partial(self._load, held, claimed))
        except Cancelled:
            records, link = await self._load(held, claimed)  # its end is to be recorded
        events = [event for record in records for event in record.events]
        seconds_before = self._seconds_since(claimed)
        problem: AntwortError | None = None
        try:
            sealed = SealedItems(self._resources.vault, claimed.identity)
            request = await in_turns(recorded_steps(sealed, link))
        except AntwortError as error:  # another version has taken it, or its keys are gone
            request, problem = _unread_request(link), error
        plan = self._bare_plan(claimed, request)
        try:
            plan = await held.signal.race(partial(self._plan, claimed, plan, events, problem))
        except DETACHED:
            raise
        except Exception as error:  # it is not continued: the loop closes what is open
            held.signal.set(error)
        run, closing_events = pick_up(claimed.response, events, plan.sealed.seal_for(request))
        if held.signal.reason is not None:  # no inference is repeated
            closing_events = [event for event in closing_events if not isinstance(event, TurnAbandoned)]
        log = EventLog(
            recorder=BatchRecorder(self._runs, held.lease, plan, len(records), held.leaving),
            first=records[-1].next if records else 0,
            observer=new_observer(self._resources.settings, records),
        )
        try:
            return LiveRun(
                plan,
                self._resources.provider,
                log,
                self._live,
                run=run,
                opening=closing_events,
                signal=held.signal,
                seconds_before=seconds_before,
            )
        except BaseException:
            plan.release()
            raise

    async def _load(self, held: LeasedRun, claimed: ClaimedRun) -> tuple[Sequence[EventRecord], Link]:
        """Load the record, as long as that takes, unless the run is to be left. Raises `Fenced` when the run is gone,
        and `Damaged`.
        """
        run_id = claimed.lease.run_id
        records = await retry_until_available(lambda: self._runs.records(claimed.lease), run_id, held.leaving)
        find_link = partial(self._resources.store.link, claimed.identity, run_id)
        link = await retry_until_available(find_link, run_id, held.leaving)
        if link is None:
            raise Fenced
        return records, link

    def _seconds_since(self, claimed: ClaimedRun) -> float:
        """Seconds since it was claimed for the first time."""
        return max(0.0, self._resources.clock() - claimed.begun_at)

    def _bare_plan(self, claimed: ClaimedRun, request: CreateRequest) -> Plan:
        """Return a plan without history and tools: all that is known of a run without I/O."""
        budget = budget_of(request, self._resources.settings)
        return Plan(
            request=request,
            identity=claimed.identity,
            settings=self._resources.settings,
            response=claimed.response,
            budget=budget,
            deadline=asyncio.get_running_loop().time() + budget.seconds - self._seconds_since(claimed),
            toolbox=Toolbox(tools={}, may_run=False),
            sealed=SealedItems(self._resources.vault, claimed.identity),
            estimator=TokenEstimator(self._resources.provider),
            clock=self._resources.clock,
            is_durable=True,
        )

    async def _plan(
        self, claimed: ClaimedRun, bare: Plan, events: Sequence[RunEvent], problem: AntwortError | None
    ) -> Plan:
        """Plan the run. Raises the reason for its end if it is not to be continued, such as the `problem` of its
        request. A store that is not available is retried until the deadline.
        """
        request, identity, deadline = bare.request, claimed.identity, bare.deadline
        if claimed.is_cancelled:
            raise Cancelled
        if claimed.attempt > self._resources.settings.background.attempts:
            raise AttemptsExhausted(claimed.attempt - 1)
        if deadline <= asyncio.get_running_loop().time():
            raise DeadlinePassed
        if problem is not None:
            raise problem
        resumed = Resumed(claimed.response, deadline)

        async def plan_once() -> Plan:
            lock: LockRequest | None = None
            if request.conversation is not None:
                lock = self._locks.request((identity.tenant, identity.owner, request.conversation))
            return await self._planner.plan(request, identity, lock=lock, resumed=resumed)

        plan_with_servers = partial(_with_servers, plan_once, events)
        try:
            async with asyncio.timeout_at(deadline):
                plan = await retry_until_available(plan_with_servers, claimed.lease.run_id, asyncio.Event())
        except (TimeoutError, AntwortError) as error:
            if asyncio.get_running_loop().time() >= deadline:
                raise DeadlinePassed from error
            raise
        items = [event.item for event in events if isinstance(event, OutputItemDone)]
        shown = frozenset(item.id for item in items if isinstance(item, McpApprovalRequest))
        return msgspec.structs.replace(_refusing_silent(plan), asked_elsewhere=shown)

    async def _give_up(self, held: LeasedRun, claimed: ClaimedRun, error: Exception) -> None:
        """Record only the outcome of a run of which nothing else can be read or written."""
        response = claimed.response
        begun = response if response.status != "queued" else replace(response, status="in_progress")
        is_cancelled = claimed.is_cancelled or isinstance(held.signal.reason, Cancelled)
        failed = interrupted(Run(begun), Cancelled() if is_cancelled else error).response
        ending = RunEnding(identity=claimed.identity, response=failed, marks=())
        give_up = partial(self._runs.give_up, claimed.lease, ending)
        await retry_until_available(give_up, claimed.lease.run_id, held.leaving)
        plan = self._bare_plan(claimed, CreateRequest(model=response.model))
        self._live.report(RunSummary(plan=plan, response=failed, turns=0, seconds=self._seconds_since(claimed)))


# ---- planning again ----


async def _with_servers(prepare: Callable[[], Awaitable[Plan]], events: Sequence[RunEvent]) -> Plan:
    """Return the plan once the tool servers that it needs have listed their tools: without the tools that the run had
    before, it would take its calls for those of the client. No client waits, so there is time.
    """
    used, failed = set[str](), set[str]()
    for event in events:
        match event:
            case OutputItemDone(item=McpListTools(server_label=label, error=error)):
                (used if error is UNSET else failed).add(label)
            case OutputItemAdded(item=McpCall(server_label=label)):
                used.add(label)
    clock, is_logged = asyncio.get_running_loop().time, False
    end = clock() + MAX_DISCOVERY_SECONDS
    pauses = backoff()
    while True:
        plan = await prepare()
        silent = plan.toolbox.silent.keys() - failed
        if not silent & used and (not silent or clock() >= end):
            return plan
        if not is_logged:
            _log.warning("tool servers of the run %s do not answer: %s", plan.response.id, ", ".join(sorted(silent)))
        is_logged = True
        plan.release()
        await asyncio.sleep(next(pauses))


def _refusing_silent(plan: Plan) -> Plan:
    """Refuse the approved calls whose servers do not answer: they were decided, and the run has begun."""
    if all(left.silence is None for left in plan.history.leftovers):
        return plan
    leftovers = tuple(
        msgspec.structs.replace(left, refusal=left.refusal or left.silence, silence=None)
        for left in plan.history.leftovers
    )
    return msgspec.structs.replace(plan, history=msgspec.structs.replace(plan.history, leftovers=leftovers))


def recorded_steps(sealed: SealedItems, link: Link) -> Steps[CreateRequest]:
    """Return the request of a response from its record, with the credentials that it brought, in pieces. Raises what is
    wrong with it by now.
    """
    response, parent = link.response, (yield from sealed.parent_steps(link, CreateRequest()))
    declared = (sealed.declared_in(item, "input") for item in link.input if is_additional(item))
    if locked := parent.locked.union(*(each.locked for each in declared)):
        labels = ", ".join(map(repr, sorted(locked)))
        raise ServerFault(f"What the request brought to log in to {labels} cannot be opened: its key is gone.")
    request = parent.request
    raw = request.raw_input if len(request.raw_input) == len(link.input) else tuple(map(encode, link.input))
    return replace(
        request,
        input=link.input,
        raw_input=raw,
        previous_response_id=response.previous_response_id,
        model=response.model,
        metadata=dict(response.metadata),
        background=True,
    )


def _unread_request(link: Link) -> CreateRequest:
    """Return a request with what is known of it without parsing it."""
    conversation = link.response.conversation
    return CreateRequest(
        model=link.response.model, input=link.input, conversation=conversation.id if conversation else None
    )
