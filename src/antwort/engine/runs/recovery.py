"""Continue a run of the run log: plan it again from its record, and close what was left open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from antwort.api.additional import is_additional
from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, RunEvent, TurnAbandoned
from antwort.api.items import (
    CustomToolCall,
    FunctionCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    Reasoning,
)
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.answers import Answers
from antwort.engine.credentials import Credentials
from antwort.engine.fold import Run, fold, interrupted, settled
from antwort.engine.loop import opening_batches
from antwort.engine.lost import lost_before
from antwort.engine.opened import Seal, half_said
from antwort.engine.pairs import is_ours
from antwort.engine.plan import Leftover, Plan
from antwort.engine.planning import Planner, Resumed
from antwort.engine.runs.conversation_lock import ConversationLocks, LockRequest
from antwort.engine.runs.event_log import EventLog
from antwort.engine.sealed import Sealed
from antwort.engine.settings import EngineSettings
from antwort.engine.steps import LOST, Refused, open_calls
from antwort.errors import (
    AntwortError,
    AttemptsExhausted,
    Cancelled,
    Damaged,
    DeadlinePassed,
    HandedOver,
    ServerFault,
    StoreFault,
)
from antwort.storage.base import Link, ResponseStore
from antwort.storage.run_log.base import Claimed, Fenced, Record, RunLog
from antwort.tools.base import ToolResult
from antwort.tools.routing import Toolbox
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")
T = TypeVar("T")

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0
"""Between two attempts to read or write the record."""
MAX_DISCOVERY_SECONDS = 60.0
"""For which a tool server is asked again that was of no use to the run yet; then the run begins without it."""


class ClaimedRun(msgspec.Struct, frozen=True):
    """A claimed run, with its record."""

    claimed: Claimed
    records: Sequence[Record]
    plan: Plan
    """Its request as it is on record; unless it `is_planned`, no question is answered."""
    deadline: float
    """By the clock of the event loop."""
    seconds_before: float
    """Since it was claimed for the first time."""
    problem: AntwortError | None = None
    """Why its request cannot be answered here."""
    is_planned: bool = False

    @property
    def events(self) -> list[RunEvent]:
        return [event for record in self.records for event in record.events]

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return self.records[-1].next if self.records else 0

    def pick_up(self, seal: Seal | None) -> tuple[Run, Batch]:
        """Return the run as it stands, and the events that close the items of an inference that never ended: that one
        is made again, and the model is not shown what it had said. Open calls of a turn that did end wait for their
        results.
        """
        run = fold(Run(self.claimed.response), self.events)
        closing_events: Batch = []
        if (start := _unended(run)) is not None:
            for index, item in sorted(half_said(self.events, seal).items()):
                if index >= start:
                    item.close("incomplete", closing_events)
            closing_events.append(TurnAbandoned(start=start))
        return run, closing_events


def _unended(run: Run) -> int | None:
    """The index of the first item of an inference that has not ended; None if there is none. Results, lists of tools
    and the runs of earlier calls stand before it.
    """
    first = max((0, *run.turn_ends, *[end for _, end in run.abandoned]))
    return next((at for at, item in enumerate(run.output[first:], first) if _is_models(item)), None)


def _is_models(item: OutputItem) -> bool:
    """Whether the model has made the item."""
    return is_ours(item) if isinstance(item, McpCall) else isinstance(item, _MODELS)


_MODELS = (Message, Reasoning, FunctionCall, CustomToolCall, McpApprovalRequest)


class Recovery:
    """Loads and plans claimed runs."""

    def __init__(
        self,
        runs: RunLog,
        store: ResponseStore,
        planner: Planner,
        locks: ConversationLocks,
        settings: EngineSettings,
        *,
        vault: Callable[[], Vault],
        clock: Callable[[], float],
    ) -> None:
        self._runs, self._store, self._planner, self._locks, self._settings = runs, store, planner, locks, settings
        self._vault, self._clock = vault, clock
        self._plans: dict[str, Plan] = {}
        """Plans of runs that were submitted here and may be claimed here, too."""

    def keep_plan(self, plan: Plan) -> None:
        """Keep a plan for when the run is claimed here, where nothing can have changed and nobody is to be asked again.
        One with a large history is made again then: it does not wait in memory.
        """
        if plan.request.conversation is None and not plan.toolbox.silent and plan.reader is None:
            self._plans[plan.response.id] = plan
            while len(self._plans) > self._settings.background.at_once:
                self._plans.pop(next(iter(self._plans)))

    async def find(self, claimed: Claimed, is_leaving: Callable[[], bool]) -> ClaimedRun:
        """Load the record, as long as that takes, unless the run is to be left. Raises `Fenced` when the run is gone,
        and `Damaged`.
        """
        lease = claimed.lease
        records = await retry_until_available(lambda: self._runs.records(lease), is_leaving)
        plan, problem = self._plans.pop(lease.run_id, None), None
        is_planned = plan is not None and len(records) == 1
        if plan is None or not is_planned:
            plan, problem = await self._recorded(claimed, is_leaving)
        before = self.seconds_since(claimed)
        deadline = asyncio.get_running_loop().time() + plan.budget.seconds - before
        return ClaimedRun(claimed, records, plan, deadline, before, problem, is_planned)

    def seconds_since(self, claimed: Claimed) -> float:
        """Seconds since it was claimed for the first time."""
        return max(0.0, self._clock() - claimed.begun_at)

    def bare_plan(self, claimed: Claimed, request: CreateRequest | None = None) -> Plan:
        """A plan that answers no question: what is known of a run without asking anybody."""
        identity, request = claimed.identity, request or CreateRequest(model=claimed.response.model)
        return Plan(
            request=request,
            identity=identity,
            settings=self._settings,
            response=claimed.response,
            toolbox=Toolbox(tools={}, may_run=False),
            seal=Sealed(self._vault, identity).seal_for(request),
            credentials=Credentials(self._vault, identity),
            clock=self._clock,
            is_durable=True,
        )

    async def _recorded(self, claimed: Claimed, is_leaving: Callable[[], bool]) -> tuple[Plan, AntwortError | None]:
        identity = claimed.identity
        link = await retry_until_available(lambda: self._store.link(identity, claimed.lease.run_id), is_leaving)
        if link is None:
            raise Fenced
        try:
            return self.bare_plan(claimed, recorded_request(Credentials(self._vault, identity), link)), None
        except AntwortError as error:  # another version has taken it, or its keys are gone
            return self.bare_plan(claimed, _unread_request(link)), error

    async def plan(self, found: ClaimedRun) -> Plan:
        """Plan the run. Raises what is wrong with it by now. A store that is not available is retried until the
        deadline.
        """
        _check_worth(found, self._settings)
        if found.is_planned:
            return msgspec.structs.replace(found.plan, deadline=found.deadline)
        request = found.plan.request
        if request.conversation is None:
            return await self._planned(found, None)
        identity = found.claimed.identity
        lock = self._locks.request((identity.tenant, identity.owner, request.conversation))
        try:
            return msgspec.structs.replace(await self._planned(found, lock), lock=lock)
        except BaseException:
            lock.release()
            raise

    async def _planned(self, found: ClaimedRun, lock: LockRequest | None) -> Plan:
        resumed = Resumed(found.claimed.response, found.deadline)
        prepare = partial(
            self._planner.prepared, found.plan.request, found.claimed.identity, None, lock=lock, resumed=resumed
        )
        try:
            async with asyncio.timeout_at(found.deadline):
                plan = await retry_until_available(partial(_with_servers, prepare, found.events))
        except (TimeoutError, AntwortError) as error:
            if asyncio.get_running_loop().time() >= found.deadline:
                raise DeadlinePassed from error
            raise
        return msgspec.structs.replace(
            _refusing_silent(plan), asked_elsewhere=_approvals_in(found.events), is_durable=True
        )


async def _with_servers(prepare: Callable[[], Awaitable[Plan]], events: Sequence[RunEvent]) -> Plan:
    """Return the plan once the tool servers that it needs have listed their tools: without the tools that the run had
    before, it would take its calls for those of the client. No client waits, so there is time.
    """
    used, failed = _servers_in(events)
    clock, pause, is_logged = asyncio.get_running_loop().time, FIRST_RETRY_SECONDS, False
    end = clock() + MAX_DISCOVERY_SECONDS
    while True:
        plan = await prepare()
        silent = plan.toolbox.silent.keys() - failed
        if not silent & used and (not silent or clock() >= end):
            return plan
        if not is_logged:
            _log.warning("tool servers of the run %s do not answer: %s", plan.response.id, ", ".join(sorted(silent)))
        is_logged = True
        plan.release()
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_RETRY_SECONDS)


def _servers_in(events: Sequence[RunEvent]) -> tuple[set[str], set[str]]:
    """The labels of servers that were of use to the run, and of those that it was begun without."""
    used, failed = set[str](), set[str]()
    for event in events:
        match event:
            case OutputItemDone(item=McpListTools(server_label=label, error=error)):
                (used if error is UNSET else failed).add(label)
            case OutputItemAdded(item=McpCall(server_label=label)):
                used.add(label)
    return used, failed


def _approvals_in(events: Sequence[RunEvent]) -> frozenset[str]:
    """The ids of the approval requests that were shown."""
    items = (event.item for event in events if isinstance(event, OutputItemDone))
    return frozenset(item.id for item in items if isinstance(item, McpApprovalRequest))


def _check_worth(found: ClaimedRun, settings: EngineSettings) -> None:
    """Raise how the run ends, if nothing is left to be done."""
    if found.claimed.is_cancelled:
        raise Cancelled
    if found.claimed.attempt > settings.background.attempts:
        raise AttemptsExhausted(found.claimed.attempt - 1)
    if found.deadline <= asyncio.get_running_loop().time():
        raise DeadlinePassed
    if found.problem is not None:
        raise found.problem


def recorded_request(credentials: Credentials, link: Link) -> CreateRequest:
    """Return the request of a response from its record, with the credentials that it brought. Raises what is wrong with
    it by now.
    """
    response, parent = link.response, credentials.made_under(link, CreateRequest())
    declared = (credentials.declared_in(item, "input") for item in link.input if is_additional(item))
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
    """What is known of a request without reading it."""
    conversation = link.response.conversation
    return CreateRequest(
        model=link.response.model, input=link.input, conversation=conversation.id if conversation else None
    )


def _refusing_silent(plan: Plan) -> Plan:
    """Refuse the approved calls whose servers do not answer: they were decided, and the run has begun."""
    if not any(left.silence is not None and left.refusal is None for left in plan.leftovers):
        return plan
    leftovers = tuple(_refused(left) for left in plan.leftovers)
    return msgspec.structs.replace(plan, history=msgspec.structs.replace(plan.history, leftovers=leftovers))


def _refused(left: Leftover) -> Leftover:
    return msgspec.structs.replace(left, refusal=left.refusal or left.silence, silence=None)


# ---- ending a run that is not continued ----


async def end_early(found: ClaimedRun, log: EventLog, error: Exception) -> Run:
    """Record the end of a run that is not continued, and return the run. One that is cancelled while it is queued never
    begins.
    """
    plan = found.plan
    run, closing_events = found.pick_up(plan.seal)
    events = Batch()
    if not (run.response.status == "queued" and isinstance(error, Cancelled)):
        for batch in opening_batches(run, plan, closing_events):
            events += [event for event in batch if not isinstance(event, TurnAbandoned)]  # no inference is made again
    run = fold(run, events)
    for close in (partial(_lost_calls_answered, plan=plan), partial(settled, status="incomplete")):
        batch = close(run)
        events, run = [*events, *batch], fold(run, batch)
    events.append(interrupted(run, error))
    run = fold(run, events[-1:])
    await log.append(events, run)
    return run


def _lost_calls_answered(run: Run, plan: Plan) -> Batch:
    """Answer the calls that were begun: without a result they would be taken for some that are still to be run."""
    calls = [call for call in open_calls(run, plan.toolbox) if call.call_id in run.lost] + lost_before(run)
    answers = Answers([Refused(call, LOST, is_lost=True) for call in calls], run.output)
    events = answers.open()
    for at, call in enumerate(calls):
        answers.take(at, ToolResult(call.call_id, LOST, is_error=True))
    return [*events, *answers.batch()]


def given_up(claimed: Claimed, error: Exception) -> Response:
    """The outcome of a run of which nothing else can be read or written."""
    response = claimed.response
    begun = response if response.status != "queued" else replace(response, status="in_progress")
    return interrupted(Run(begun), error).response


async def retry_until_available(ask: Callable[[], Awaitable[T]], is_leaving: Callable[[], bool] = lambda: False) -> T:
    """Ask the record again while it is not available. Raises `HandedOver` when the run is to be left, and `Damaged`,
    which does not pass.
    """
    pause = FIRST_RETRY_SECONDS
    while True:
        try:
            return await ask()
        except Damaged:
            raise
        except StoreFault as error:
            if pause == FIRST_RETRY_SECONDS:
                _log.warning("the record of runs cannot be read or written: %s", error.message)
        if is_leaving():
            raise HandedOver
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_RETRY_SECONDS)
