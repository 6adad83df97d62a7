"""What the tests of runs that change hands share: a log whose writers die when told to, a model that goes by what was
said, tools that remember who asked, and what must hold of every log.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from antwort import CreateRequest, Engine, EngineSettings, Identity, MemoryStore, Response, Vault
from antwort.api.events import UNSENT, CallBegun, CallEnded, RunEvent
from antwort.api.tools import McpTool
from antwort.engine.settings import BackgroundSettings
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatRequest, Delta, Provider
from antwort.storage.run_log import (
    ClaimedRun,
    EventRecord,
    Fenced,
    Lease,
    Renewed,
    RunEnding,
    RunLog,
    Traits,
    Unavailable,
    WorkerInfo,
)
from antwort.testing import Answer, ScriptedProvider, StreamChecker, ToolServerFake
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolExecutor
from engine_kit import sent
from run_log_kit import ForwardingLog

DEPOT = {"type": "mcp", "server_label": "depot", "require_approval": "never"}


class Rows(MemoryStore):
    """All that is left running in it are runs that somebody goes on with."""

    async def fail_running(self, message: str) -> int:
        return 0


class Log(ForwardingLog):
    """Outlives those who write it, as far as a test can tell. `dies_at` is the place of the record before which whoever
    is to write it dies; `outages` are places where the log is away, before or after it was written.
    """

    traits = Traits(durability="system", many=False)

    def __init__(self, store: Rows | None = None, **options: Any) -> None:
        self.store = store or Rows()
        super().__init__(self.store, **options)
        self.dies_at: int | None = None
        self.outages: dict[int, list[str]] = {}
        self.dead: set[str] = set()
        self.died = asyncio.Event()
        self._reached: dict[int, asyncio.Event] = {}

    async def append(self, lease: Lease, record: EventRecord) -> None:
        self._check(lease, record)
        self._go_away(record, "before")
        await super().append(lease, record)
        self.reached(record.at).set()
        self._go_away(record, "after")

    async def finish(self, lease: Lease, ending: RunEnding, record: EventRecord) -> None:
        self._check(lease, record)
        self._go_away(record, "before")
        await super().finish(lease, ending, record)
        self._go_away(record, "after")

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        if worker.name in self.dead:
            await asyncio.Event().wait()
        return await super().renew(worker, leases)

    async def claim(self, worker: str, count: int) -> Sequence[ClaimedRun]:
        return () if worker in self.dead else await super().claim(worker, count)

    async def release(self, lease: Lease, *, is_lost: bool = False) -> None:
        if lease.worker not in self.dead:
            await super().release(lease, is_lost=is_lost)

    def reached(self, at: int) -> asyncio.Event:
        """Set when the record in that place is written."""
        return self._reached.setdefault(at, asyncio.Event())

    def _check(self, lease: Lease, record: EventRecord) -> None:
        if self.dies_at is not None and record.at >= self.dies_at:
            self.dies_at = None
            self.dead.add(lease.worker)
            self.died.set()
        if lease.worker in self.dead:
            raise Fenced

    def _go_away(self, record: EventRecord, when: str) -> None:
        due = self.outages.get(record.at, [])
        if due and due[0] == when:
            due.pop(0)
            raise Unavailable

    async def query(self, statement: str) -> list[Any]:
        """What is there, or is changed there behind the backs of all."""
        return await self.store.database.write(lambda connection: connection.execute(statement).fetchall())

    async def kill(self, run_id: str | None = None) -> None:
        """Whoever holds the run, or any run, dies; it is not known yet."""
        held = await self.query("SELECT id, worker FROM runs WHERE worker IS NOT NULL")
        self.dead |= {worker for name, worker in held if run_id in (None, name)}

    async def bury(self) -> None:
        """Let it be known who is dead."""
        for worker in self.dead:
            await self.leave(worker)


class Story(ScriptedProvider):
    """Plays the answer that comes next by what was said: as many as calls were answered in one go. Whoever goes on with
    a conversation is told the same.
    """

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = answers

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        turns = [message for message in sent(request)["messages"] if message.get("tool_calls")]
        self._answers = [self.answers[len(turns)]]
        async with aclosing(super().infer(request)) as reads:
            async for read in reads:
                yield read


_KINDS: dict[str, dict[str, bool]] = {"look": {"read_only": True}, "mark": {"idempotent": True}, "sell": {}}


class Depot(ToolServerFake):
    """`look` only reads, `mark` may be done twice, `sell` may not. Each call is kept with the id it was made under. The
    tools `without` are missing, and those that are given run in the place of its own.
    """

    def __init__(self, *, without: Sequence[str] = (), **tools: Callable[..., Awaitable[str]]) -> None:
        made: dict[str, Any] = {name: self._run for name in _KINDS if name not in without} | tools
        super().__init__("depot", **made)
        self.ran: Counter[str] = Counter()
        self.keys: list[str] = []
        self.names: dict[str, str] = {}
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        found = await super().discover(declared, identity)
        return found and [replace(each, **_KINDS[each.name]) for each in found]

    async def _run(self, call: ToolCall, context: ToolContext) -> str:
        self.ran[call.id] += 1
        self.keys.append(context.idempotency_key)
        self.names[call.id] = call.name
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        return f"{call.name} done"


def engine_on(
    log: Log,
    provider: Provider,
    *executors: ToolExecutor,
    vault: Vault | None = None,
    clock: Callable[[], float] = time.time,
    at_once: int = 32,
    **settings: Any,
) -> Watched:
    """An engine that makes so many runs `at_once`."""
    chosen = EngineSettings(background=BackgroundSettings(at_once=at_once), **settings)
    return Watched(log, provider, executors, chosen, vault, clock)


def front_of(log: Log, *executors: ToolExecutor, **options: Any) -> Watched:
    """One that takes requests, and leaves the work to others."""
    return engine_on(log, ScriptedProvider(), *executors, at_once=0, **options)


class Watched(Engine):
    """A process of its own, as far as a test can tell; it keeps what it was told of the ends of runs."""

    def __init__(
        self,
        log: Log,
        provider: Provider,
        executors: Sequence[ToolExecutor],
        settings: EngineSettings,
        vault: Vault | None,
        clock: Callable[[], float],
    ) -> None:
        self.told: list[Any] = []
        super().__init__(
            provider,
            store=log.store,
            executors=executors,
            settings=settings,
            runs=log,
            on_end=[self.told.append],
            vault=vault,
            clock=clock,
        )

    async def ended(self, response_id: str, identity: Identity = ANONYMOUS) -> Response:
        """The response when its run has ended, wherever that was; its log is what it should be."""
        assert isinstance(self.runs, Log)
        records = await records_of(self.runs, response_id, identity, follow=True)
        response = await self.retrieve(identity, response_id)
        check_log(records, response)
        return response


async def records_of(
    log: RunLog, response_id: str, identity: Identity = ANONYMOUS, *, follow: bool
) -> list[EventRecord]:
    """All there are; with `follow`, when the run has ended."""
    found: list[EventRecord] = []
    async with aclosing(log.read(identity, response_id, follow=follow)) as reading:
        async for some in reading:
            found += some
    return found


async def begin(engine: Watched, request: CreateRequest, dies_at: int | None = None) -> str:
    """Make a response that others may continue, to its end, or until the process dies before the record in that place.
    Return the id of the response.
    """
    log = engine.runs
    assert isinstance(log, Log)
    log.dies_at = dies_at
    run = await engine.start(request, on_disconnect="continue")
    tasks = [
        asyncio.ensure_future(records_of(log, run.response_id, follow=True)),
        asyncio.ensure_future(log.died.wait()),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await log.bury()
    return run.response_id


def events_of(records: Sequence[EventRecord]) -> list[RunEvent]:
    return [event for record in records for event in record.events]


def check_log(records: Sequence[EventRecord], response: Response) -> list[RunEvent]:
    """What must hold of every log of a run that has ended, whoever wrote it."""
    assert [record.at for record in records] == list(range(len(records)))
    for one, other in itertools.pairwise(records):
        assert one.next == other.first
    events = events_of(records)
    checker = StreamChecker(keepalive=True, takeover=True)
    for number, event in enumerate(event for event in events if not isinstance(event, UNSENT)):
        checker.feed(number, event)
    assert checker.finish() == response
    return events


def check_calls(events: Sequence[RunEvent], depot: Depot) -> None:
    """Nothing that has a result is run again, and nothing unsafe twice. What was run was on record before."""
    begun = Counter(event.call_id for event in events if isinstance(event, CallBegun))
    ended = Counter(event.call_id for event in events if isinstance(event, CallEnded))
    assert all(count == 1 for count in ended.values())
    for call_id, count in depot.ran.items():
        assert count <= begun[call_id]
        assert count == 1 or depot.names[call_id] != "sell"
    for call_id in ended:
        last = max(at for at, event in enumerate(events) if isinstance(event, CallEnded) and event.call_id == call_id)
        later = [event for event in events[last:] if isinstance(event, CallBegun) and event.call_id == call_id]
        assert not later
