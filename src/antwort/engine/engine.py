"""The engine: a request goes in, a stream of events comes out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Literal, Self, Unpack

from antwort.api.events import StreamEvent
from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest, as_compaction
from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.responses import CompactedResponse, Model, Response
from antwort.api.wire import replace
from antwort.concurrency import side_by_side, stop
from antwort.crypto import Vault
from antwort.engine.context.window import count_input
from antwort.engine.history.conversations import Conversations
from antwort.engine.history.recent_responses import RecentResponses
from antwort.engine.loop.tool_runner import CallRecord
from antwort.engine.plan import Plan, budget_of
from antwort.engine.planning import Planner
from antwort.engine.prompt.declared_tools import check_hosted
from antwort.engine.prompt.discovery import Discovery, check_labels, list_tools
from antwort.engine.request_fields import RequestFields, RequestLike, parse_request_like
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
from antwort.errors import AntwortError, ApprovalNotFound, ResponseNotFound, ShuttingDown
from antwort.identity import ANONYMOUS, Identity
from antwort.limiter import Limiter
from antwort.providers.base import Provider
from antwort.storage.base import EVERYTHING, ApprovalPage, ItemPage, Page, ResponsePage, ResponseStore, Wanted, as_of
from antwort.storage.run_log import RunLog, run_log_for
from antwort.tools.limits import Runs, all_limited

_log = logging.getLogger("antwort.engine")

LAST_RECORDS_SECONDS = 8.0
"""The time for recording outcomes after the drain: a little more than a database may take to answer."""
ABORT_SECONDS = 1.0


class Engine:
    """Runs responses, with one provider, any number of executors and one store.

        async with Engine(provider, executors=[tools]) as engine:
            response = await engine.create(input="Hello")

    Executors are wrapped in the limits of the settings; `@tool` functions can stand among them. Without a store,
    responses are stored in memory. Without a context manager, start with `open`, and end with `drain` and `close`. The
    engine closes its provider, executors and stores.
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
        wait nor raise. The `vault` seals what clients keep; without one, it opens in this engine only. Idempotency keys
        and approvals expire by the `clock`.

        The run log `runs` holds background responses until they have ended, over the same store. The stores of this
        package bring one; with another store and no log, there are no background responses. `address` is where other
        processes with the same log reach this one.
        """
        settings = checked(settings)
        store = _memory() if store is None else store
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
            executor.remember_with(partial(_note_writing_tools, store, clock))
        self.is_open = False
        """Whether it was opened, and not closed since."""
        self.conversations = Conversations(store, settings.limits, clock, resources.vault)
        """The conversations of clients, but for taking turns in them."""
        self.conversation_locks = locks = ConversationLocks()
        """Which conversations a run adds to right now."""
        self.live_runs = live = LiveRuns(on_end or (), on_call or ())
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
        """The settings of the runs that start from now on."""
        return self._resources.settings

    def reconfigure(self, settings: EngineSettings) -> None:
        """Use other settings for requests from now on; runs in progress keep theirs. Raises `TypeError` or
        `ValueError`, and then nothing has changed.

        Only what is read for each request may differ: `max_turns` and the other limits and defaults of a response, and
        `limits` apart from `media_hosts`, `history_memory` and `output_bytes`. The rest is read when an engine is made.
        """
        self._resources.settings = settings = checked(settings)
        self.conversations.limits = settings.limits
        self._planner.default_budget = budget_of(CreateRequest(), settings)

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
        """Plan a response, record it, start its run, and subscribe to it. Raises the errors of planning.

        The same request with the same idempotency `key` subscribes to the same response, running or ended. Raises
        `KeyReused` if the request is another one, and `KeyInUse` if another process runs the response without a log.

        A background response is queued: the subscription has the queued response, and reads its events. Raises
        `QueueFull`. `on_disconnect` overrides the setting. `recent` is that of `plan`.
        """
        if key is not None and self.settings.idempotency:
            self._launcher.check_open()
            return await self.idempotency_keys.subscribe(request, identity, key, on_disconnect)
        launcher = self._launcher
        plan = await launcher.plan(request, identity, recent)
        if request.background:
            return self._responses.follow_log(identity, await launcher.submit(plan))
        return (await launcher.launch(plan, on_disconnect=on_disconnect)).subscribe()

    async def plan(
        self, request: CreateRequest, identity: Identity = ANONYMOUS, recent: RecentResponses | None = None
    ) -> Plan:
        """Answer every question before the first inference. Nothing is recorded yet: planning may be cancelled.

        A turn of a conversation waits for those before it, and the plan holds the lock from then on, until it is
        released. `recent` are the responses that the connection of the request remembers.
        """
        return await self._launcher.plan(request, identity, recent)

    async def create(
        self,
        request: RequestLike | None = None,
        identity: Identity = ANONYMOUS,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> Response:
        """Return the response when it has ended. Cancelling ends the run, unless it has a key. A background response is
        returned as it was queued: use `retrieve` and `follow`.

        A request is a parsed one, a mapping of the fields that a client would send, or keywords. The same request with
        the same key gets the same response.
        """
        run = await self.start(self._read(request, fields, stream=False), identity, key=idempotency_key)
        try:
            return await run.result()
        except asyncio.CancelledError:
            run.leave()
            raise

    async def respond(
        self,
        request: RequestLike | None = None,
        identity: Identity = ANONYMOUS,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a request in any form that `create` takes. Closing the generator ends the run, unless it
        is in the background.
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
        self, request: RequestLike | None = None, identity: Identity = ANONYMOUS, **fields: Unpack[RequestFields]
    ) -> CompactedResponse:
        """Return a compacted conversation: the model summarizes it, and the latest turns stay as they are. The request
        comes in any form that `create` takes, and must name its model; cancelling ends it.
        """
        asked = as_compaction(parse_request_like(request, fields, self.settings.limits))
        run = await self.start(asked, identity)
        try:
            return await run.compacted()
        except asyncio.CancelledError:
            run.leave()
            raise

    async def count(
        self, request: RequestLike | None = None, identity: Identity = ANONYMOUS, **fields: Unpack[RequestFields]
    ) -> int:
        """Count the tokens of the prompt of a request in any form that `create` takes: by the backend's tokenizer if it
        has one, else by an estimate; with `truncation: auto`, after truncation. Nothing is stored, no inference is
        made, and the conversation is not locked.
        """
        self._launcher.check_open()
        asked = replace(parse_request_like(request, fields, self.settings.limits), background=None)
        plan = await self._planner.plan(asked, identity)
        try:
            return await count_input(plan, self._resources.provider)
        finally:
            plan.release()

    def _read(self, asked: RequestLike | None, fields: RequestFields, *, stream: bool) -> CreateRequest:
        """The method decides whether the response is streamed, whatever the request says."""
        request = parse_request_like(asked, fields, self.settings.limits)
        return request if bool(request.stream) is stream else replace(request, stream=stream)

    # ---- existing responses ----

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        return await self._responses.retrieve(identity, response_id)

    async def list(self, identity: Identity, page: Page, wanted: Wanted = EVERYTHING) -> ResponsePage:
        """List stored responses; of a running one, its output so far."""
        return await self._responses.list(identity, page, wanted)

    async def delete(self, identity: Identity, response_id: str) -> None:
        """Delete a response. A running one is cancelled first."""
        await self._responses.delete(identity, response_id)

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """Cancel a response and return it. One that has ended is unchanged."""
        return await self._responses.cancel(identity, response_id)

    async def follow(self, identity: Identity, response_id: str, after: int = -1) -> Subscription:
        """Subscribe to the events of a stored response with numbers greater than `after`, past and future, wherever it
        runs. Unsubscribing changes nothing.

            async with await engine.follow(identity, response.id, after=7) as reader:
                async for number, event in reader.events():
                    ...

        Raises `InvalidField` for `starting_after` if there is no event of that number yet, or the events were not
        stored by their numbers.
        """
        return await self._responses.follow(identity, response_id, after)

    async def until_ended(self, identity: Identity, response_id: str) -> None:
        """Wait until the response has ended, wherever it runs, or is gone."""
        await self._responses.until_ended(identity, response_id)

    async def elsewhere(self, identity: Identity, response_id: str) -> str | None:
        """Return the address of the process that runs the response in the foreground; None if it is this one, or none,
        or if the run has a log.
        """
        return await self._responses.elsewhere(identity, response_id)

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage:
        found = await self._store.input_items(identity, response_id, page)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def approvals(
        self,
        identity: Identity = ANONYMOUS,
        page: Page = Page(),  # noqa: B008 - a frozen value
        status: ApprovalStatus | None = None,
    ) -> ApprovalPage:
        """List the approvals of calls of stored responses, with their current status."""
        await self.live_runs.catch_up_all(identity)
        now = int(self._resources.clock())
        found = await self._store.approvals(identity, page, status, now)
        return replace(found, approvals=tuple(as_of(approval, now) for approval in found.approvals))

    async def approval(self, approval_id: str, identity: Identity = ANONYMOUS) -> Approval:
        found = await self._store.find_approvals(identity, [approval_id])
        if approval_id not in found:
            raise ApprovalNotFound(approval_id)
        return as_of(found[approval_id], int(self._resources.clock()))

    # ---- the engine itself ----

    @property
    def offers_background(self) -> bool:
        """Whether background responses are possible."""
        return self._worker is not None and self.settings.background.enabled

    @property
    def is_draining(self) -> bool:
        """Whether it takes no new work, for good."""
        return self._launcher.is_draining

    @property
    def live(self) -> int:
        """The number of runs in progress."""
        return len(self.live_runs)

    @property
    def history_memory(self) -> Limiter:
        """The bytes that large histories of requests take."""
        return self._planner.history_memory

    async def models(self, identity: Identity = ANONYMOUS) -> Sequence[Model]:
        """Return the models that may be used."""
        return await self._planner.models(identity)

    async def toolsets(self, identity: Identity = ANONYMOUS) -> Sequence[McpListTools]:
        """Return the tool lists of the servers that requests can name by label."""
        discovery = Discovery(self._executors, identity, self.settings)
        return await side_by_side([list_tools(label, discovery) for label in self._labels])

    async def check(self) -> dict[str, str]:
        """Return `ok` or the problem of each part that the engine needs."""
        parts = {"store": self._store.check, "backend": self._resources.provider.check}
        return {name: await _health(check) for name, check in parts.items()}

    async def open(self) -> None:
        """Fail the responses that a dead process left running, unless this engine has started some by now, and continue
        the runs of the log.
        """
        if self.is_draining:
            raise RuntimeError("An engine that was closed cannot be opened again; make a new one.")
        async with self._launcher.starting:
            if not self.is_open:
                await self._launcher.fail_abandoned()
                await self._call_executors("open")
            self.is_open = True
        if self._worker is not None and self._worker.is_lasting:  # it continues what an earlier process has left
            await self._worker.start()

    def stop_claiming(self) -> None:
        """Begin no more runs of the log, and answer requests as before."""
        if self._worker is not None:
            self._worker.stop_claiming()

    async def drain(self, seconds: float) -> None:
        """Take no new runs. Those in progress get `seconds` to end, then each is ended with a terminal event. Those
        that another process can continue get as long to end their step, and are handed over. If the store fails, it
        takes `LAST_RECORDS_SECONDS` more.
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
        """Abort runs that still wait, most likely for a store that fails. Their readers get an error."""
        _log.warning("what is under way does not come to its end: it is broken off")
        for run in [*self.live_runs.values()]:
            run.log.recorder.leave()
        _, late = await asyncio.wait(late, timeout=ABORT_SECONDS)
        if self._worker is not None:
            self._worker.abort()
        for run in [*self.live_runs.values()]:
            run.abort()
        await stop(late, ABORT_SECONDS)

    async def close(self) -> None:
        """End all runs at once, and close all parts. A closed engine cannot be opened again."""
        self.is_open = False
        await self.drain(0)
        await self._launcher.close()
        if self._worker is not None:
            await self._worker.leave()
        await self.idempotency_keys.close()
        await self._launcher.close()
        await self._call_executors("close")
        await self._resources.provider.close()
        if self.runs is not None:
            await self.runs.close()
        await self._store.close()

    async def _call_executors(self, method: Literal["open", "close"]) -> None:
        """Call each executor. A failing one stops neither the others nor the engine."""
        for executor in self._executors:
            try:
                await getattr(executor, method)()
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
