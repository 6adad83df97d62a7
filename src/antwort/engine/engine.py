"""The engine: the table of contents. A request goes in, a stream of events comes out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import Self, Unpack

import msgspec

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.api.compactions import CompactedResponse, as_compaction
from antwort.api.events import StreamEvent
from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.responses import Model, Response
from antwort.api.wire import replace
from antwort.concurrency import side_by_side, stop
from antwort.engine.approvals import check_reachable
from antwort.engine.asked import Asked, RequestFields, read_asked
from antwort.engine.background import Background
from antwort.engine.control import Called
from antwort.engine.conversations import Conversations
from antwort.engine.ended import Ended
from antwort.engine.following import Follower
from antwort.engine.history_memory import HistoryMemory
from antwort.engine.hosted import check_hosted
from antwort.engine.keyed import KeyedRuns
from antwort.engine.live import LiveRun
from antwort.engine.made import Made
from antwort.engine.meter import Meter
from antwort.engine.plan import Plan
from antwort.engine.planning import Planner
from antwort.engine.queues import Queues
from antwort.engine.recent import Recent
from antwort.engine.rows import brought_approvals, end_unborn, new_row
from antwort.engine.settings import EngineSettings, OnDisconnect, checked
from antwort.engine.shared import Reader
from antwort.engine.toolbox import Shelf, check_labels, list_tools
from antwort.engine.turns import Turn
from antwort.engine.window import count_input
from antwort.errors import AntwortError, KeyInUse, ShuttingDown, UnsupportedFeature
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import Provider
from antwort.runs.base import RunLog
from antwort.runs.over import log_over
from antwort.storage.base import EVERYTHING, ApprovalPage, Claim, ItemPage, Page, ResponsePage, ResponseStore, Wanted
from antwort.tools.base import Remembering
from antwort.tools.limits import Limited, Runs, all_limited
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")
_MOST_UNWRITTEN = 1000
_LAST_RECORDS = 8.0
"""Seconds after the drain in which ends may be put on record: as long as a database may take to answer, and a bit."""
_A_MOMENT = 1.0
_NO_LOG = "Background responses are not offered here: there is no log of runs for the store of the engine."
ABANDONED = "The server was stopped while the response was being made."


class Engine:
    """Runs responses: one provider, any number of executors, one store.

        async with Engine(provider, executors=[tools]) as engine:
            response = await engine.create(input="Hello")

    Executors are wrapped in the limits of the settings; `@tool` functions can stand among them. Without a store,
    responses are kept in memory. Outside of a context, start with `open`, and end with `drain` and `close`; what the
    engine was given is closed with it.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        store: ResponseStore | None = None,
        executors: Sequence[Runs] | None = None,
        settings: EngineSettings = EngineSettings(),  # noqa: B008 - a frozen value
        on_end: Sequence[Callable[[Ended], None]] | None = None,
        on_call: Sequence[Callable[[Called], None]] | None = None,
        vault: Vault | None = None,
        clock: Callable[[], float] = time.time,
        runs: RunLog | None = None,
        address: str | None = None,
    ) -> None:
        """`on_end` are told of each run when it has ended, `on_call` of each tool call when it has been answered; they
        must neither wait nor raise. What is given out sealed is sealed by the `vault`; without one, it opens in this
        engine only. Idempotency keys and approvals expire by the `clock`.

        Background responses are kept in the log of `runs` until they have ended: one over the same store. Where none is
        given, the stores of this package have one; with another store, there are no background responses. `address` is
        where other processes that share it reach this one.
        """
        self.settings = checked(settings)
        self._provider = provider
        self._store = _memory() if store is None else store
        executors = () if executors is None else executors
        self._executors = all_limited(executors, settings.tool_limits)
        for executor in self._executors:
            if isinstance(executor, Remembering):
                executor.remember_with(self._note_writing_tools)
        self.runs = runs or log_over(self._store, self.settings.background)
        """The log of those runs that another process may go on with; None: there are none."""
        self._labels = check_labels(executors)
        check_hosted(self.settings.hosted, self._labels)
        self._live: dict[str, LiveRun] = {}
        self._unwritten: dict[str, LiveRun] = {}
        """Runs whose end could not be recorded. It is written when somebody asks for them."""
        self._ending: set[asyncio.Task[None]] = set()
        self.is_draining = False
        """Whether it takes no new work, and will not again."""
        self.is_open = False
        """Whether it was opened, and not closed since."""
        self._opening = asyncio.Lock()
        self._has_begun = False
        """Whether there are rows of its own, which must not be taken for a dead process's."""
        self._on_end, self._on_call = tuple(on_end or ()), tuple(on_call or ())
        self._clock = clock
        self._keyed = KeyedRuns(self, self._store, self.settings, clock)
        self.conversations = Conversations(self._store, self.settings.limits, clock, self._open_vault)
        """What clients keep in conversations, beside taking turns in them."""
        self._vault = vault
        self._meter = Meter(provider)
        self._queues = Queues()
        self._made = Made(
            self._store,
            self.runs,
            self._live,
            self._unwritten,
            self.settings,
            clock=clock,
            end_unheld=self._end_unheld,
        )
        self._planner = Planner(
            provider,
            self._store,
            self._executors,
            self.settings,
            meter=self._meter,
            clock=clock,
            vault=self._open_vault,
            models=self.models,
            catch_up=self._made.catch_up,
            is_live=self._live.__contains__,
        )
        self._background: Background | None = None
        if self.runs is not None:
            self._background = Background(
                self.runs,
                self._store,
                provider,
                self._planner,
                self._queues,
                self.settings,
                live=self._live,
                on_end=self._ended,
                on_call=self._on_call,
                tell=self._tell,
                vault=self._open_vault,
                clock=clock,
                address=address,
            )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _note_writing_tools(self, tenant: str, server: str, names: Collection[str]) -> frozenset[str] | None:
        return await self._store.note_writing_tools(tenant, server, names, int(self._clock()))

    # ---- making a response ----

    async def start(
        self,
        request: CreateRequest,
        identity: Identity = ANONYMOUS,
        on_disconnect: OnDisconnect | None = None,
    ) -> LiveRun:
        """Plan the response, put it on record, and set its run going. What is wrong by then is raised. `on_disconnect`
        counts instead of the setting.
        """
        return await self.launch(await self.plan(request, identity), on_disconnect=on_disconnect)

    async def attach(
        self, request: CreateRequest, identity: Identity, key: str, on_disconnect: OnDisconnect | None = None
    ) -> Reader:
        """Start the response, or read along with the one that an earlier request with this key and the same body has
        started, be it under way or over. The keys of others are others.

        Raises `KeyReused` when it was another body, `KeyInUse` when another process makes the response, and what is
        wrong by then with the request.
        """
        self._check_open()
        return await self._keyed.attach(request, identity, key, on_disconnect)

    async def join(
        self, request: CreateRequest, identity: Identity, key: str, on_disconnect: OnDisconnect | None = None
    ) -> Reader | Follower:
        """As `attach`; and where another process makes the response, and what it says is in the log, read that."""
        try:
            return await self.attach(request, identity, key, on_disconnect)
        except KeyInUse as fault:
            if fault.response_id is None:
                raise
            follower = await self.follow(identity, fault.response_id)
            follower.is_replay = follower.is_waited_for = True
            return follower

    async def plan(self, request: CreateRequest, identity: Identity = ANONYMOUS, recent: Recent | None = None) -> Plan:
        """Answer every question before the first inference. Nothing is kept yet: it may be broken off.

        A turn of a conversation waits until those before it have ended; the plan has its place from then on, and those
        behind it wait: it is launched, or released. What is wrong with the request by itself is told before. `recent`
        is what the connection that it came on remembers, and is looked into before the store.
        """
        self._check_open()
        if request.background and self._background is None:
            raise UnsupportedFeature(_NO_LOG, param="background")
        if request.conversation is None or request.background:  # a background response waits when it is made
            return await self._planner.prepared(request, identity, recent)
        turn = self._turn(identity, request.conversation)
        try:
            plan = await self._planner.prepared(request, identity, recent, turn)
            return msgspec.structs.replace(plan, place=turn.place)
        except BaseException:
            turn.give_up()
            raise

    def _turn(self, identity: Identity, conversation_id: str) -> Turn:
        async def is_busy() -> bool:
            return self.runs is not None and await self.runs.is_busy(identity, conversation_id)

        return Turn(self._queues, (identity.tenant, identity.owner, conversation_id), is_busy)

    async def launch(
        self, plan: Plan, claim: Claim | None = None, on_disconnect: OnDisconnect | None = None
    ) -> LiveRun:
        """Commit the row, and the claim of its key with it; then set the run going. `on_disconnect` counts instead of
        the setting.
        """
        request = plan.request
        try:
            if request.background:
                raise ValueError("A background response is submitted, and made by whoever has a place for it.")
            self._check_open()  # planning may have waited
            if plan.history.leftovers and not plan.compacts:
                check_reachable(plan)
            is_stored = request.is_stored
            if is_stored:
                await self._begin(plan, self._store, claim)
            elif plan.decisions:
                if request.conversation is not None and (brought := brought_approvals(plan)):
                    await self._store.add_entries(plan.identity, request.conversation, (), brought)
                await self._store.decide(plan.identity, plan.response.id, plan.decisions)
            store = self._store if is_stored or request.conversation is not None else None
            goes_on = is_stored and self._goes_on(on_disconnect)
            home = self._background if goes_on else None
            run = LiveRun(plan, self._provider, store, self._ended, self._on_call, goes_on=goes_on, home=home)
        except BaseException:
            plan.release()
            raise
        self._live[run.response_id] = run
        if self.is_draining:  # since the row was begun: it is ended properly, too
            run.stop(ShuttingDown())
        return run

    def _goes_on(self, on_disconnect: OnDisconnect | None) -> bool:
        is_asked_for = (on_disconnect or self.settings.background.on_disconnect) == "continue"
        return is_asked_for and self.offers_background

    async def submit(self, plan: Plan, claim: Claim | None = None) -> Response:
        """Commit a background response, and the claim of its key with it: queued, for whoever has a place for it. It is
        made whether anybody waits for it or not. Raises `QueueFull`.
        """
        assert self._background is not None, "it was planned"
        try:
            self._check_open()
            check_reachable(plan)
            async with self._opening:
                self._has_begun = True
            return await self._background.submit(plan, claim)
        finally:
            plan.release()

    async def enqueue(self, request: CreateRequest, identity: Identity = ANONYMOUS, key: str | None = None) -> Follower:
        """Plan a background response and submit it. Whoever holds the result has the response as it was queued, and may
        read its events; to leave changes nothing. The same request once more, with the same key, gets the response as
        it stands, from any process. What is wrong by then is raised, as by `attach`, and `QueueFull`.
        """
        self._check_open()
        if key is not None and self.settings.idempotency:
            response, is_replay = await self._keyed.submit(request, identity, key)
        else:
            response, is_replay = await self.submit(await self.plan(request, identity)), False
        if not is_replay:
            return self._made.reading(identity, response)
        follower = await self.follow(identity, response.id)
        follower.response, follower.is_replay = response, True
        return follower

    async def _begin(self, plan: Plan, store: ResponseStore, claim: Claim | None) -> None:
        """A caller who is cancelled meanwhile gets no run, and the row may be written all the same: it is ended."""
        async with self._opening:  # which may be ending rows right now
            self._has_begun = True
        worker = None if self._background is None else await self._background.maker()
        try:
            await store.begin(new_row(plan, claim, worker))
        except asyncio.CancelledError:
            task = asyncio.create_task(end_unborn(plan, store))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            raise

    async def create(
        self,
        request: Asked | None = None,
        identity: Identity = ANONYMOUS,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> Response:
        """The response, whole. Leaving early ends the run, unless it has a key and a tool has run for it. One in the
        background comes as it was queued: `retrieve` tells how it stands, `follow` what it says.

        A request is given as it was read, as the plain fields that a client would send, or by keywords. The same
        request once more, with the same key, gets the same response (`attach`).
        """
        run = await self._started(self._read(request, fields, stream=False), identity, idempotency_key)
        try:
            return await run.whole()
        except asyncio.CancelledError:
            run.leave()
            raise

    async def respond(
        self,
        request: Asked | None = None,
        identity: Identity = ANONYMOUS,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[StreamEvent, None]:
        """The events, one by one, of a request in any form that `create` takes. Closing the generator ends the run, as
        leaving `create` does, unless it is in the background.
        """
        run = await self._started(self._read(request, fields, stream=True), identity, idempotency_key)
        try:
            await run.answered()
            while batches := await run.read():
                for batch in batches:
                    for event in batch.events:
                        yield event
        finally:
            run.leave()
            if isinstance(run, Follower):
                await run.close()

    async def compact(
        self, request: Asked | None = None, identity: Identity = ANONYMOUS, **fields: Unpack[RequestFields]
    ) -> CompactedResponse:
        """What was said, in less room: the model sums it up, and the latest turns stay as they are. A request is given
        in any form that `create` takes, and must name its model; leaving early ends it.
        """
        asked = as_compaction(read_asked(request, fields, self.settings.limits))
        run = await self.start(asked, identity)
        try:
            return await run.compacted()
        except asyncio.CancelledError:
            run.leave()
            raise

    async def count(
        self, request: Asked | None = None, identity: Identity = ANONYMOUS, **fields: Unpack[RequestFields]
    ) -> int:
        """Tokens that the model would get to read for a request in any form that `create` takes: by the backend's own
        tokenizer where it has one, else by an estimate. With `truncation: auto`, of what would be sent. Nothing is
        kept, no inference is made, and no turn of a conversation is waited for.
        """
        self._check_open()
        asked = replace(read_asked(request, fields, self.settings.limits), background=None)
        plan = await self._planner.prepared(asked, identity, None)
        try:
            return await count_input(plan, self._provider)
        finally:
            plan.release()

    async def _started(
        self, request: CreateRequest, identity: Identity, key: str | None
    ) -> LiveRun | Reader | Follower:
        if request.background:
            return await self.enqueue(request, identity, key)
        if key is None or not self.settings.idempotency:
            return await self.start(request, identity)
        return await self.join(request, identity, key)

    def _read(self, asked: Asked | None, fields: RequestFields, *, stream: bool) -> CreateRequest:
        """Which method was called says whether events are read, whatever the request says."""
        request = read_asked(asked, fields, self.settings.limits)
        return request if bool(request.stream) is stream else replace(request, stream=stream)

    def _check_open(self) -> None:
        if self.is_draining:
            raise ShuttingDown

    @property
    def vault(self) -> Vault:
        """Seals what is given out."""
        return self._open_vault()

    def _open_vault(self) -> Vault:
        """Without one of its own, an engine seals for itself alone."""
        self._vault = self._vault or Vault.ephemeral()
        return self._vault

    def _ended(self, run: LiveRun) -> None:
        if self._live.get(run.response_id) is run:  # else it is made here once more, by a new claim
            del self._live[run.response_id]
        if self._background is not None:
            self._background.dismiss(run)
        if run.is_left:
            return  # whoever ends it tells of it
        if not run.is_recorded:
            self._unwritten[run.response_id] = run
            if len(self._unwritten) > _MOST_UNWRITTEN:  # the next start ends those rows, too
                self._unwritten.pop(next(iter(self._unwritten)))
        self._tell(run.account())

    def _tell(self, account: Ended) -> None:
        for tell in self._on_end:
            tell(account)

    # ---- responses that are there already ----

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        return await self._made.retrieve(identity, response_id)

    async def list(self, identity: Identity, page: Page, wanted: Wanted = EVERYTHING) -> ResponsePage:
        """Stored responses, each as it stands: of one that runs, what there is so far."""
        return await self._made.list(identity, page, wanted)

    async def delete(self, identity: Identity, response_id: str) -> None:
        """A running response is cancelled first, so that its record is true until it goes."""
        await self._made.delete(identity, response_id)
        self._keyed.delete(response_id)

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """The response as it ended; one that had ended before is unchanged."""
        return await self._made.cancel(identity, response_id)

    async def follow(self, identity: Identity, response_id: str, after: int = -1) -> Follower:
        """Read the events of a stored response that have numbers greater than `after`, each with the number that it had
        from the first time on: those that there were, and those to come, wherever it is made. To leave changes nothing.

            async with await engine.follow(identity, response.id, after=7) as reader:
                async for number, event in reader.events():
                    ...

        Raises `InvalidField` naming `starting_after` where there is no event of that number so far, or none is known by
        its number.
        """
        return await self._made.follow(identity, response_id, after)

    async def sent(self, identity: Identity, response_id: str) -> Sequence[StreamEvent] | None:
        """All events so far of a stored response, from number 0 on; None where they are not kept by their numbers."""
        return await self._made.sent(identity, response_id)

    async def has_log(self, identity: Identity, response_id: str) -> bool:
        """Whether what the response says can be read by any process, while it is made or afterwards."""
        return self.runs is not None and await self.runs.has_log(identity, response_id)

    @property
    def is_shared(self) -> bool:
        """Whether other processes have the same records."""
        return self.runs is not None and self.runs.traits.many

    async def until_ended(self, identity: Identity, response_id: str) -> None:
        """Wherever it is made; or until it is gone."""
        await self._made.until_ended(identity, response_id)

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        """Where the process is reached that makes the response in the foreground, when only that one can tell how far
        it is; None when it is this one, or nobody, or the log tells.
        """
        return None if self._background is None else await self._background.elsewhere(identity, response_id)

    async def _end_unheld(self, identity: Identity, response_id: str) -> None:
        if self._background is not None:
            await self._background.end(identity, response_id)

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage:
        return await self._made.input_items(identity, response_id, page)

    async def approvals(
        self,
        identity: Identity = ANONYMOUS,
        page: Page = Page(),  # noqa: B008 - a frozen value
        status: ApprovalStatus | None = None,
    ) -> ApprovalPage:
        """Calls of stored responses that wait, or waited, for approval, each as it stands now."""
        return await self._made.approvals(identity, page, status)

    async def approval(self, approval_id: str, identity: Identity = ANONYMOUS) -> Approval:
        return await self._made.approval(approval_id, identity)

    # ---- the engine itself ----

    @property
    def offers_background(self) -> bool:
        """Whether responses may outlive their requests."""
        return self._background is not None and self.settings.background.enabled

    @property
    def live(self) -> int:
        """How many runs are under way."""
        return len(self._live)

    @property
    def history_memory(self) -> HistoryMemory:
        """What the large histories of requests under way hold in memory."""
        return self._planner.history_memory

    async def models(self, identity: Identity = ANONYMOUS) -> Sequence[Model]:
        """Those that may be used."""
        return [model for model in await self._provider.models() if identity.may_use(model.id)]

    async def toolsets(self, identity: Identity = ANONYMOUS) -> Sequence[McpListTools]:
        """What requests can reach by label, each as the request would be shown it."""
        shelf = Shelf(self._executors, identity, self.settings)
        return await side_by_side([list_tools(label, shelf) for label in self._labels])

    async def check(self) -> dict[str, str]:
        """Each part that must be there, with `ok` or what is wrong with it."""
        parts = {"store": self._store.check, "backend": self._provider.check}
        return {name: await _health(check) for name, check in parts.items()}

    async def open(self) -> None:
        """Rows that a dead process left running are ended: nobody will. Once, and not by an engine that has rows of its
        own by then: what it runs goes on.
        """
        if self.is_draining:
            raise RuntimeError("An engine that was closed cannot be opened again; make a new one.")
        async with self._opening:
            if not self.is_open and not self._has_begun:
                await self._store.fail_running(ABANDONED)
            if not self.is_open:
                await self._tell_executors(Limited.open)
            self.is_open = True
        if self._background is not None:
            await self._background.open()

    def stop_claiming(self) -> None:
        """No more runs of the log are begun here, and nothing else changes: requests are answered as ever."""
        if self._background is not None:
            self._background.worker.stop_claiming()

    async def drain(self, seconds: float) -> None:
        """No new runs; those under way get `seconds` to end, then each is ended with a terminal event. Those that
        another process may go on with get as long to come to the end of their step, and are handed over. Where the
        record cannot be written, it takes some seconds more, and not longer.
        """
        self.is_draining = True
        if self._background is not None:  # first: who waits in a queue is handed over, and not told that it is closed
            self._background.hand_over()
        self._queues.close()
        tasks = [asyncio.ensure_future(run.wait()) for run in self._live.values()]
        if self._background is not None:
            tasks += [asyncio.ensure_future(self._background.drain(seconds))]
        if not tasks:
            self._made.let_go()
            return
        await asyncio.wait(tasks, timeout=seconds)
        tasks += [asyncio.ensure_future(self._end(run)) for run in self._live.values() if not run.is_held]
        _, late = await asyncio.wait(tasks, timeout=_LAST_RECORDS)
        if late:
            await self._break_off(late)
        self._made.let_go()

    async def _break_off(self, late: set[asyncio.Task[None]]) -> None:
        """What waits, most likely for a record that cannot be written. Who reads it is told so; the rest is left to
        whoever comes.
        """
        _log.warning("what is under way does not come to its end: it is broken off")
        for run in self._live.values():
            run.give_up()
        _, late = await asyncio.wait(late, timeout=_A_MOMENT)
        if self._background is not None:
            self._background.worker.break_off()
        for run in self._live.values():
            run.break_off()
        await stop(late, _A_MOMENT)

    async def _end(self, run: LiveRun) -> None:
        """One that is still in the foreground when the time is over. It goes on elsewhere, where it is to go on."""
        if self._background is not None and self._background.is_lasting:
            await run.hand_on()
        else:
            run.stop(ShuttingDown())

    async def close(self) -> None:
        """Runs still under way are ended at once. There is no way back."""
        self.is_open = False
        await self.drain(0)
        if self._background is not None:
            await self._background.leave()
        await self._keyed.close()
        await asyncio.gather(*self._ending)
        await self._tell_executors(Limited.close)
        await self._provider.close()
        if self.runs is not None:
            await self.runs.close()
        await self._store.close()

    async def _tell_executors(self, what: Callable[[Limited], Awaitable[None]]) -> None:
        """Whatever is wrong with one of them keeps no other, and not the engine, from its start or its end."""
        for executor in self._executors:
            try:
                await what(executor)
            except Exception:
                _log.exception("an executor of the kind %s could not be opened or closed", executor.kind)


def _memory() -> ResponseStore:
    from antwort.storage.memory import MemoryStore

    return MemoryStore()


async def _health(check: Callable[[], Awaitable[None]]) -> str:
    try:
        await check()
    except AntwortError as error:
        return error.message
    return "ok"
