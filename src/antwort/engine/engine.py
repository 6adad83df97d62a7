"""The engine: a request goes in, a stream of events comes out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Self, Unpack

from antwort.api.events import StreamEvent
from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest, as_compaction
from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.responses import CompactedResponse, Model, Response
from antwort.api.wire import replace
from antwort.concurrency import side_by_side, stop
from antwort.engine.asked import Asked, RequestFields, read_asked
from antwort.engine.context.window import count_input
from antwort.engine.history.conversations import Conversations
from antwort.engine.history.memory_limit import HistoryMemory
from antwort.engine.history.recent_responses import RecentResponses
from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.plan import Plan
from antwort.engine.planning import Planner
from antwort.engine.prompt.discovery import Discovery, check_labels, list_tools
from antwort.engine.prompt.hosted_tools import check_hosted
from antwort.engine.resources import Resources
from antwort.engine.runs.conversation_lock import ConversationLocks
from antwort.engine.runs.idempotency import IdempotencyKeys
from antwort.engine.runs.launcher import Launcher
from antwort.engine.runs.live import LiveRuns, RunSummary
from antwort.engine.runs.recovery import Recovery
from antwort.engine.runs.responses import Responses
from antwort.engine.runs.subscription import Subscription
from antwort.engine.runs.worker import Worker
from antwort.engine.settings import EngineSettings, OnDisconnect, checked
from antwort.errors import AntwortError, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import Provider
from antwort.storage.base import EVERYTHING, ApprovalPage, ItemPage, Page, ResponsePage, ResponseStore, Wanted
from antwort.storage.run_log import RunLog, run_log_for
from antwort.tools.base import Remembering
from antwort.tools.limits import Limited, Runs, all_limited
from antwort.vault import Vault

_log = logging.getLogger("antwort.engine")

LAST_RECORDS_SECONDS = 8.0
"""For which outcomes may be recorded after the drain: as long as a database may take to answer, and a bit."""
ABORT_SECONDS = 1.0


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
        on_end: Sequence[Callable[[RunSummary], None]] | None = None,
        on_call: Sequence[Callable[[CallRecord], None]] | None = None,
        vault: Vault | None = None,
        clock: Callable[[], float] = time.time,
        runs: RunLog | None = None,
        address: str | None = None,
    ) -> None:
        """`on_end` are called when a run has ended, `on_call` when a tool call has been answered; they must neither
        wait nor raise. What is given out sealed is sealed by the `vault`; without one, it opens in this engine only.
        Idempotency keys and approvals expire by the `clock`.

        Background responses are kept in the run log `runs` until they have ended: one over the same store. Where none
        is given, the stores of this package have one; with another store, there are no background responses. `address`
        is where other processes that share it reach this one.
        """
        settings, store = checked(settings), _memory() if store is None else store
        executors = () if executors is None else executors
        self._executors = all_limited(executors, settings.tool_limits)
        self._labels = check_labels(executors)
        check_hosted(settings.hosted, self._labels)
        self._resources = resources = Resources(
            provider=provider,
            executors=self._executors,
            store=store,
            runs=runs or run_log_for(store, settings.background),
            settings=settings,
            vault=vault or Vault.ephemeral(),
            clock=clock,
        )
        for executor in self._executors:
            if isinstance(executor, Remembering):
                executor.remember_with(partial(_note_writing_tools, store, clock))
        self.is_open = False
        """Whether it was opened, and not closed since."""
        self.conversations = Conversations(store, settings.limits, clock, resources.vault)
        """The conversations of clients, but for taking turns in them."""
        self.conversation_locks = locks = ConversationLocks()
        """Which conversations a run adds to right now."""
        self.live_runs = live = LiveRuns(store, on_end or (), on_call or ())
        """The runs in progress, by response id."""
        self._planner = planner = Planner(resources, live)
        self._worker: Worker | None = None
        if resources.runs is not None:
            recovery = Recovery(resources, planner, locks, live)
            self._worker = Worker(resources.runs, settings.background, recovery, live, address)
        self._launcher = Launcher(resources, planner, self._worker, locks, live)
        self._responses = Responses(resources, self._worker, live)
        self.idempotency_keys = IdempotencyKeys(store, self._launcher, self._responses, clock, settings.idempotency)

    @property
    def settings(self) -> EngineSettings:
        return self._resources.settings

    @property
    def runs(self) -> RunLog | None:
        """The log of runs that another process can continue; None: there are none."""
        return self._resources.runs

    @property
    def vault(self) -> Vault:
        """Seals what is given out."""
        return self._resources.vault

    @property
    def _store(self) -> ResponseStore:
        return self._resources.store

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- starting a response ----

    async def start(
        self,
        request: CreateRequest,
        identity: Identity = ANONYMOUS,
        *,
        key: str | None = None,
        on_disconnect: OnDisconnect | None = None,
        recent: RecentResponses | None = None,
    ) -> Subscription:
        """Plan a response, record it, start its run, and subscribe to it. What is wrong by then is raised.

        The same request once more, with the same idempotency `key`, subscribes to the same response, whether it is in
        progress or has ended. Raises `KeyReused` if the request is another one, and `KeyInUse` if another process runs
        the response and has no log of it.

        A background response is queued: the subscription has the response as it was queued, and reads its events.
        Raises `QueueFull`. `on_disconnect` overrides the setting. `recent` is that of `plan`.
        """
        self._launcher.check_open()
        if key is not None and self.settings.idempotency:
            return await self.idempotency_keys.subscribe(request, identity, key, on_disconnect)
        if request.background:
            queued = await self._launcher.submit(await self.plan(request, identity))
            return self._responses.follow_log(identity, queued)
        plan = await self.plan(request, identity, recent)
        return (await self._launcher.launch(plan, on_disconnect=on_disconnect)).subscribe()

    async def plan(
        self, request: CreateRequest, identity: Identity = ANONYMOUS, recent: RecentResponses | None = None
    ) -> Plan:
        """Answer every question before the first inference. Nothing is recorded yet: it may be broken off.

        A turn of a conversation waits for those before it, and the plan holds the lock from then on: it is launched, or
        released. `recent` is what the connection of the request remembers of earlier responses.
        """
        return await self._launcher.plan(request, identity, recent)

    async def launch(self, plan: Plan) -> Subscription:
        """Record a plan, start its run, and subscribe to it."""
        return (await self._launcher.launch(plan)).subscribe()

    async def create(
        self,
        request: Asked | None = None,
        identity: Identity = ANONYMOUS,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> Response:
        """The response, whole. Leaving early ends the run, unless it has a key. One in the background comes as it was
        queued: `retrieve` tells how it stands, `follow` what it says.

        A request is given as it was read, as the plain fields that a client would send, or by keywords. The same
        request once more, with the same key, gets the same response.
        """
        run = await self.start(self._read(request, fields, stream=False), identity, key=idempotency_key)
        try:
            return await run.result()
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
        run = await self.start(self._read(request, fields, stream=True), identity, key=idempotency_key)
        try:
            await run.answered()
            while batches := await run.read():
                for batch in batches:
                    for event in batch.events:
                        yield event
        finally:
            await run.close()

    async def compact(
        self, request: Asked | None = None, identity: Identity = ANONYMOUS, **fields: Unpack[RequestFields]
    ) -> CompactedResponse:
        """Return a conversation compacted: the model summarizes it, and the latest turns stay as they are. A request is
        given in any form that `create` takes, and must name its model; leaving early ends it.
        """
        asked = as_compaction(read_asked(request, fields, self.settings.limits))
        run = await self.launch(await self.plan(asked, identity))
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
        self._launcher.check_open()
        asked = replace(read_asked(request, fields, self.settings.limits), background=None)
        plan = await self._planner.prepared(asked, identity, None)
        try:
            return await count_input(plan, self._resources.provider)
        finally:
            plan.release()

    def _read(self, asked: Asked | None, fields: RequestFields, *, stream: bool) -> CreateRequest:
        """Which method was called says whether events are read, whatever the request says."""
        request = read_asked(asked, fields, self.settings.limits)
        return request if bool(request.stream) is stream else replace(request, stream=stream)

    # ---- responses that are there already ----

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        return await self._responses.retrieve(identity, response_id)

    async def list(self, identity: Identity, page: Page, wanted: Wanted = EVERYTHING) -> ResponsePage:
        """Stored responses, each as it stands: of one that runs, what there is so far."""
        return await self._responses.list(identity, page, wanted)

    async def delete(self, identity: Identity, response_id: str) -> None:
        """A running response is cancelled first, so that its record is true until it goes."""
        await self._responses.delete(identity, response_id)

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """The response as it ended; one that had ended before is unchanged."""
        return await self._responses.cancel(identity, response_id)

    async def follow(self, identity: Identity, response_id: str, after: int = -1) -> Subscription:
        """Read the events of a stored response that have numbers greater than `after`, each with the number that it had
        from the first time on: those that there were, and those to come, wherever it runs. Leaving changes nothing.

            async with await engine.follow(identity, response.id, after=7) as reader:
                async for number, event in reader.events():
                    ...

        Raises `InvalidField` naming `starting_after` where there is no event of that number so far, or the events are
        not kept by their numbers.
        """
        return await self._responses.follow(identity, response_id, after)

    async def until_ended(self, identity: Identity, response_id: str) -> None:
        """Wait until the response has ended, wherever it runs, or is gone."""
        await self._responses.until_ended(identity, response_id)

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        """The address of the process that runs the response in the foreground, when only that one can tell how far
        it is; None when it is this one, or none, or the log tells.
        """
        return await self._responses.elsewhere(identity, response_id)

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage:
        return await self._responses.input_items(identity, response_id, page)

    async def approvals(
        self,
        identity: Identity = ANONYMOUS,
        page: Page = Page(),  # noqa: B008 - a frozen value
        status: ApprovalStatus | None = None,
    ) -> ApprovalPage:
        """Calls of stored responses that wait, or waited, for approval, each as it stands now."""
        return await self._responses.approvals(identity, page, status)

    async def approval(self, approval_id: str, identity: Identity = ANONYMOUS) -> Approval:
        return await self._responses.approval(approval_id, identity)

    # ---- the engine itself ----

    @property
    def offers_background(self) -> bool:
        """Whether responses may outlive their requests."""
        return self._worker is not None and self.settings.background.enabled

    @property
    def is_draining(self) -> bool:
        """Whether it takes no new work, and will not again."""
        return self._launcher.is_draining

    @property
    def live(self) -> int:
        """How many runs are in progress."""
        return len(self.live_runs)

    @property
    def history_memory(self) -> HistoryMemory:
        """What the large histories of requests under way hold in memory."""
        return self._planner.history_memory

    async def models(self, identity: Identity = ANONYMOUS) -> Sequence[Model]:
        """Return the models that may be used."""
        return await self._planner.models(identity)

    async def toolsets(self, identity: Identity = ANONYMOUS) -> Sequence[McpListTools]:
        """What requests can reach by label, each as the request would be shown it."""
        discovery = Discovery(self._executors, identity, self.settings)
        return await side_by_side([list_tools(label, discovery) for label in self._labels])

    async def check(self) -> dict[str, str]:
        """Each part that must be there, with `ok` or what is wrong with it."""
        parts = {"store": self._store.check, "backend": self._resources.provider.check}
        return {name: await _health(check) for name, check in parts.items()}

    async def open(self) -> None:
        """End the rows that a dead process left running, unless this engine has rows of its own by now, and continue
        the runs of the log.
        """
        if self.is_draining:
            raise RuntimeError("An engine that was closed cannot be opened again; make a new one.")
        async with self._launcher.starting:
            if not self.is_open:
                await self._launcher.fail_abandoned()
                await self._tell_executors(Limited.open)
            self.is_open = True
        if self._worker is not None and self._worker.is_lasting:  # it continues what an earlier process has left
            await self._worker.start()

    def stop_claiming(self) -> None:
        """No more runs of the log are begun here, and nothing else changes: requests are answered as ever."""
        if self._worker is not None:
            self._worker.stop_claiming()

    async def drain(self, seconds: float) -> None:
        """Take no new runs. Those in progress get `seconds` to end, then each is ended with a terminal event. Those
        that another process can continue get as long to come to the end of their step, and are handed over. Where the
        record cannot be written, it takes some seconds more, and not longer.
        """
        self._launcher.is_draining = True
        if self._worker is not None:  # first: runs that wait for a lock are handed over, not refused
            self._worker.hand_over()
        self.conversation_locks.close()
        tasks = [asyncio.ensure_future(run.wait()) for run in self.live_runs.values()]
        if self._worker is not None:
            tasks += [asyncio.ensure_future(self._worker.drain(seconds))]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
            for run in [*self.live_runs.values()]:
                if not run.is_durable:
                    run.stop(ShuttingDown())
            _, late = await asyncio.wait(tasks, timeout=LAST_RECORDS_SECONDS)
            if late:
                await self._abort(late)
        self._responses.close()

    async def _abort(self, late: set[asyncio.Task[None]]) -> None:
        """Stop runs that wait, most likely for a record that cannot be written. Their readers get an error."""
        _log.warning("what is under way does not come to its end: it is broken off")
        for run in [*self.live_runs.values()]:
            run.log.leave()
        _, late = await asyncio.wait(late, timeout=ABORT_SECONDS)
        if self._worker is not None:
            self._worker.abort()
        for run in [*self.live_runs.values()]:
            run.abort()
        await stop(late, ABORT_SECONDS)

    async def close(self) -> None:
        """Runs still under way are ended at once. There is no way back."""
        self.is_open = False
        await self.drain(0)
        await self._launcher.close()
        if self._worker is not None:
            await self._worker.leave()
        await self.idempotency_keys.close()
        await self._launcher.close()
        await self._tell_executors(Limited.close)
        await self._resources.provider.close()
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


async def _note_writing_tools(
    store: ResponseStore, clock: Callable[[], float], tenant: str, server: str, names: Collection[str]
) -> frozenset[str] | None:
    return await store.note_writing_tools(tenant, server, names, int(clock()))


def _memory() -> ResponseStore:
    from antwort.storage.memory import MemoryStore

    return MemoryStore()


async def _health(check: Callable[[], Awaitable[None]]) -> str:
    try:
        await check()
    except AntwortError as error:
        return error.message
    return "ok"
