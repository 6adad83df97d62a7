"""Going on with a run of the log: it is planned anew from what is on record, and the same loop takes it from there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from antwort.api.additional import is_additional
from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, RunEvent, TurnAbandoned
from antwort.api.items import McpApprovalRequest, McpCall, McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.answers import Answers
from antwort.engine.control import Control
from antwort.engine.credentials import Credentials
from antwort.engine.draft import Run, fold, interrupted, settled
from antwort.engine.journal import Held, Journal, ending_of
from antwort.engine.loop import opening, pick_up
from antwort.engine.lost import lost_before
from antwort.engine.plan import Leftover, Plan
from antwort.engine.planning import Planner, Resumed
from antwort.engine.queues import Place, Queues
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
from antwort.runs.base import Claimed, Fenced, Record, RunLog
from antwort.storage.base import Link, ResponseStore
from antwort.tools.base import ToolResult
from antwort.tools.routing import Toolbox
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")
T = TypeVar("T")

_SOON, _LATER = 0.05, 2.0
"""Seconds until the record is asked again, at first and in the end."""
_UNHEARD = 60.0
"""Seconds that a tool server which has not been of use to the run yet is asked again; then it begins without."""


class Found(msgspec.Struct, frozen=True):
    """A claimed run, with what is on record of it."""

    claimed: Claimed
    records: Sequence[Record]
    plan: Plan
    """Its request as it is on record; unless it `is_planned`, no question is answered."""
    deadline: float
    """By the clock of the event loop."""
    before: float
    """Seconds since it was claimed for the first time."""
    problem: AntwortError | None = None
    """Why its request cannot be answered here."""
    is_planned: bool = False

    @property
    def events(self) -> list[RunEvent]:
        return [event for record in self.records for event in record.events]

    def held(self, runs: RunLog, plan: Plan) -> Held:
        control = pick_up(self.claimed.response, self.events, self.deadline, plan.seal)
        return Held(control, Journal(runs, self.claimed.lease, self.records), self.before)


class Resuming:
    """Makes plans for claimed runs."""

    def __init__(
        self,
        runs: RunLog,
        store: ResponseStore,
        planner: Planner,
        queues: Queues,
        settings: EngineSettings,
        *,
        vault: Callable[[], Vault],
        clock: Callable[[], float],
    ) -> None:
        self._runs, self._store, self._planner, self._queues, self._settings = runs, store, planner, queues, settings
        self._vault, self._clock = vault, clock
        self._plans: dict[str, Plan] = {}
        """Those of runs that were submitted here and may be claimed here, too."""

    def remember(self, plan: Plan) -> None:
        """Use it when the run is claimed here, where nothing can have changed and nobody is to be asked again. One
        with a large history is made anew then: it does not wait in memory.
        """
        if plan.request.conversation is None and not plan.toolbox.silent and plan.reader is None:
            self._plans[plan.response.id] = plan
            while len(self._plans) > self._settings.background.at_once:
                self._plans.pop(next(iter(self._plans)))

    async def find(self, claimed: Claimed, is_leaving: Callable[[], bool]) -> Found:
        """As long as it takes, unless it is to be left. Raises `Fenced` when the run is gone, and `Damaged`."""
        lease = claimed.lease
        records = await patiently(lambda: self._runs.records(lease), is_leaving)
        plan, problem = self._plans.pop(lease.run_id, None), None
        is_planned = plan is not None and len(records) == 1
        if plan is None or not is_planned:
            plan, problem = await self._recorded(claimed, is_leaving)
        before = self.seconds_since(claimed)
        deadline = asyncio.get_running_loop().time() + plan.budget.seconds - before
        return Found(claimed, records, plan, deadline, before, problem, is_planned)

    def seconds_since(self, claimed: Claimed) -> float:
        """It was claimed for the first time."""
        return max(0.0, self._clock() - claimed.begun_at)

    def bare(self, claimed: Claimed) -> Plan:
        """What is known of a run without its record."""
        return self._bare(CreateRequest(model=claimed.response.model), claimed)

    async def _recorded(self, claimed: Claimed, is_leaving: Callable[[], bool]) -> tuple[Plan, AntwortError | None]:
        link = await patiently(lambda: self._store.link(claimed.identity, claimed.lease.run_id), is_leaving)
        if link is None:
            raise Fenced
        try:
            return self._bare(as_recorded(Credentials(self._vault, claimed.identity), link), claimed), None
        except AntwortError as error:  # another version has taken it, or its keys are gone
            return self._bare(_unread(link), claimed), error

    def _bare(self, request: CreateRequest, claimed: Claimed) -> Plan:
        """What there is without asking anybody."""
        identity = claimed.identity
        credentials, sealed = Credentials(self._vault, identity), Sealed(self._vault, identity)
        return Plan(
            request=request,
            identity=identity,
            settings=self._settings,
            response=claimed.response,
            toolbox=Toolbox(tools={}, may_run=False),
            seal=sealed.seal_for(request),
            credentials=credentials,
            clock=self._clock,
        )

    async def plan(self, found: Found) -> Plan:
        """Raises what is wrong with it by now. A store that cannot be asked is asked again until the deadline."""
        check_worth(found, self._settings)
        if found.is_planned:
            return msgspec.structs.replace(found.plan, deadline=found.deadline)
        request = found.plan.request
        if request.conversation is None:
            return await self._planned(found, None)
        identity = found.claimed.identity
        place = self._queues.join((identity.tenant, identity.owner, request.conversation))
        try:
            return msgspec.structs.replace(await self._planned(found, place), place=place)
        except BaseException:
            place.give_up()
            raise

    async def _planned(self, found: Found, place: Place | None) -> Plan:
        resumed = Resumed(found.claimed.response, found.deadline)
        prepare = partial(
            self._planner.prepared, found.plan.request, found.claimed.identity, None, place=place, resumed=resumed
        )
        try:
            async with asyncio.timeout_at(found.deadline):
                plan = _answering(await patiently(partial(_heard, prepare, found.events)))
                return msgspec.structs.replace(plan, asked_elsewhere=_asked_in(found.events))
        except (TimeoutError, AntwortError) as error:
            if asyncio.get_running_loop().time() >= found.deadline:
                raise DeadlinePassed from error
            raise


async def _heard(prepare: Callable[[], Awaitable[Plan]], events: Sequence[RunEvent]) -> Plan:
    """The plan, once the tool servers that it needs have said what they offer: without the tools of the one before, a
    run would take its calls for somebody else's. Nobody waits for a run in the background, so it can.
    """
    used, failed = _servers_in(events)
    clock, pause, has_said = asyncio.get_running_loop().time, _SOON, False
    end = clock() + _UNHEARD
    while True:
        plan = await prepare()
        silent = plan.toolbox.silent.keys() - failed
        if not silent & used and (not silent or clock() >= end):
            return plan
        if not has_said:
            _log.warning("tool servers of the run %s do not answer: %s", plan.response.id, ", ".join(sorted(silent)))
        has_said = True
        plan.release()
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LATER)


def _servers_in(events: Sequence[RunEvent]) -> tuple[set[str], set[str]]:
    """The labels of servers that have been of use to the run, and of those that it was begun without."""
    used, failed = set[str](), set[str]()
    for event in events:
        match event:
            case OutputItemDone(item=McpListTools(server_label=label, error=error)):
                (used if error is UNSET else failed).add(label)
            case OutputItemAdded(item=McpCall(server_label=label)):
                used.add(label)
    return used, failed


def _asked_in(events: Sequence[RunEvent]) -> frozenset[str]:
    """The ids of the approval requests that were shown."""
    items = (event.item for event in events if isinstance(event, OutputItemDone))
    return frozenset(item.id for item in items if isinstance(item, McpApprovalRequest))


def check_worth(found: Found, settings: EngineSettings) -> None:
    """Whether anything is left to be done. Raises how it ends, if not."""
    if found.claimed.is_cancelled:
        raise Cancelled
    if found.claimed.attempt > settings.background.attempts:
        raise AttemptsExhausted(found.claimed.attempt - 1)
    if found.deadline <= asyncio.get_running_loop().time():
        raise DeadlinePassed
    if found.problem is not None:
        raise found.problem


def as_recorded(credentials: Credentials, link: Link) -> CreateRequest:
    """The request of a response, with what it brought and the input as it was kept. It may be picked up.

    Raises what is wrong with it by now.
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


def _unread(link: Link) -> CreateRequest:
    """What is known of a request without reading it."""
    turn_of = link.response.conversation
    return CreateRequest(model=link.response.model, input=link.input, conversation=turn_of.id if turn_of else None)


def _answering(plan: Plan) -> Plan:
    """What was approved and cannot be run now is answered with that: it was decided, and the run has begun."""
    silent = [left for left in plan.leftovers if left.silence is not None and left.refusal is None]
    if not silent:
        return plan
    leftovers = tuple(_refused(left) for left in plan.leftovers)
    return msgspec.structs.replace(plan, history=msgspec.structs.replace(plan.history, leftovers=leftovers))


def _refused(left: Leftover) -> Leftover:
    return msgspec.structs.replace(left, refusal=left.refusal or left.silence, silence=None)


# ---- the end of one that is not made ----


def last_words(control: Control, plan: Plan, error: Exception) -> Batch:
    """All that is left to say of a run that is not gone on with. One that is cancelled while it waits never begins."""
    run, events = control.run, Batch()
    if not (run.response.status == "queued" and isinstance(error, Cancelled)):
        for batch in opening(control, plan):  # nothing is said anew: what was half said is the end of it
            events += [event for event in batch if not isinstance(event, TurnAbandoned)]
    run = fold(run, events)
    for close in (partial(_answered, plan=plan), partial(settled, status="incomplete")):
        batch = close(run)
        events, run = [*events, *batch], fold(run, batch)
    events.append(interrupted(run, error))
    control.run = fold(run, events[-1:])
    return events


def _answered(run: Run, plan: Plan) -> Batch:
    """Calls that were begun say so: without a result they would be taken for some that are still to be run."""
    calls = [call for call in open_calls(run, plan.toolbox) if call.call_id in run.lost] + lost_before(run)
    answers = Answers([Refused(call, LOST, is_lost=True) for call in calls], run.output)
    events = answers.open()
    for at, call in enumerate(calls):
        answers.take(at, ToolResult(call.call_id, LOST, is_error=True))
    return [*events, *answers.batch()]


async def end_early(held: Held, plan: Plan, error: Exception) -> None:
    events = last_words(held.control, plan, error)
    run = held.control.run
    await held.journal.finish(ending_of(plan, run.response, run), events)


def given_up(claimed: Claimed, error: Exception) -> Response:
    """As it ended, of which nothing else can be read or written."""
    response = claimed.response
    begun = response if response.status != "queued" else replace(response, status="in_progress")
    return interrupted(Run(begun), error).response


async def patiently(ask: Callable[[], Awaitable[T]], is_leaving: Callable[[], bool] = lambda: False) -> T:
    """What it gives, asked again while the record cannot be had. Raises `HandedOver` where nobody waits for that, and
    `Damaged`, which does not pass.
    """
    pause = _SOON
    while True:
        try:
            return await ask()
        except Damaged:
            raise
        except StoreFault as error:
            if pause == _SOON:  # once: it is so for all who ask
                _log.warning("the record of runs cannot be read or written: %s", error.message)
        if is_leaving():
            raise HandedOver
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LATER)
