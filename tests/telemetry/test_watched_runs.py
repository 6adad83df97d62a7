"""What is counted and told of the log of runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from antwort.engine.engine import Engine
from antwort.errors import AntwortError, BackendError, BackendRefused
from antwort.identity import Identity
from antwort.storage.memory import MemoryStore
from antwort.storage.run_log import EventRecord, Fenced, Lease, Load, Renewed, RunLog, Unavailable, WorkerInfo
from antwort.telemetry import families
from antwort.telemetry.families import Family
from antwort.telemetry.hooks import RunObserver
from antwort.telemetry.metrics import Metrics
from antwort.testing import ScriptedProvider
from run_log_kit import ForwardingLog
from runs_cases import ONE, TWO, claim_one, finish, new_run, said
from serving import until
from telemetry_kit import of, samples_in

WORDS = "a response in the background "


class Unsteady(ForwardingLog):
    """A log that can be made to fail, and to say of leases that they are lost."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_away = False
        self.lost: list[Lease] = []

    async def append(self, lease: Lease, record: EventRecord) -> None:
        if self.is_away:
            raise Unavailable
        await super().append(lease, record)

    async def renew(self, worker: WorkerInfo, leases: Sequence[Lease]) -> Renewed:
        return Renewed(lost=frozenset(self.lost))

    async def load(self) -> Load:
        if self.is_away:
            raise Unavailable
        return await super().load()


@pytest.fixture
def log() -> Unsteady:
    return Unsteady()


@pytest.fixture
def counts(log: Unsteady) -> Metrics:
    metrics = Metrics()
    metrics.gauges.load = log.load
    return metrics


@pytest.fixture
async def watched(log: Unsteady, counts: Metrics) -> RunLog:
    watched = RunObserver(counts).observe(log)
    await watched.join(ONE)
    await watched.join(TWO)
    return watched


async def numbers(counts: Metrics, family: Family) -> dict[tuple[str, ...], float]:
    found = samples_in(counts, await counts.gauges.find_load())
    return of(found, f"{family.name}_count" if family.kind == "histogram" else family.name)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message.removeprefix(WORDS)) for record in caplog.records]


async def claim(watched: RunLog, worker: WorkerInfo = ONE) -> Lease:
    return (await claim_one(watched, worker)).lease


async def test_a_run_is_counted_from_the_queue_to_its_end(watched: RunLog, counts: Metrics) -> None:
    await watched.submit(new_run("resp_1"))
    assert [(await numbers(counts, each))[()] for each in (families.RUNS_QUEUED, families.RUNS_HELD)] == [1, 0]
    claimed = await claim_one(watched)
    assert [(await numbers(counts, each))[()] for each in (families.RUNS_QUEUED, families.RUNS_HELD)] == [0, 1]
    await finish(watched, claimed, 1, 2)
    assert [(await numbers(counts, each))[()] for each in (families.RUNS_QUEUED, families.RUNS_HELD)] == [0, 0]
    assert await numbers(counts, families.RUN_CLAIMS) == {("new",): 1, ("handed_over",): 0, ("taken_over",): 0}
    assert await numbers(counts, families.RUN_WAIT) == {(): 1}
    assert await numbers(counts, families.RUN_LEFT) == {("handed_over",): 0, ("lost",): 0}
    times = await numbers(counts, families.RUN_LOG_TIME)
    assert times["submit", "ok"] == times["finish", "ok"] == 1


async def test_one_that_is_handed_over_is_told_by_both(
    watched: RunLog, counts: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antwort.runs")
    await watched.submit(new_run("resp_1"))
    await watched.release(await claim(watched))
    await claim(watched, TWO)
    assert await numbers(counts, families.RUN_CLAIMS) == {("new",): 1, ("handed_over",): 1, ("taken_over",): 0}
    assert await numbers(counts, families.RUN_LEFT) == {("handed_over",): 1, ("lost",): 0}
    assert await numbers(counts, families.RUN_WAIT) == {(): 1}
    assert told(caplog) == [("INFO", "begins"), ("INFO", "is handed over"), ("INFO", "goes on here")]


async def test_one_that_is_taken_over_is_worth_a_warning(
    watched: RunLog, counts: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antwort.runs")
    await watched.submit(new_run("resp_1"))
    await claim(watched)
    await watched.leave(ONE.name)
    await claim(watched, TWO)
    assert (await numbers(counts, families.RUN_CLAIMS))["taken_over",] == 1
    assert told(caplog)[-1] == ("WARNING", "is taken over: whoever made it was lost")


@pytest.mark.parametrize("by", ["append", "renew"])
async def test_one_that_is_lost_is_told_once_and_not_as_handed_over(
    by: str, watched: RunLog, log: Unsteady, counts: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antwort.runs")
    await watched.submit(new_run("resp_1"))
    lease = await claim(watched)
    await log.leave(ONE.name)
    await log.claim(TWO.name, 1)
    log.lost = [lease]
    for _ in range(2):
        if by == "renew":
            await watched.renew(ONE, [lease])
        else:
            with pytest.raises(Fenced):
                await watched.append(lease, said(1, 2, "x"))
    await watched.release(lease)
    assert await numbers(counts, families.RUN_LEFT) == {("handed_over",): 0, ("lost",): 1}
    assert told(caplog)[1:] == [("WARNING", "is lost to others")]
    assert (await numbers(counts, families.RUN_LOG_TIME)).get(("append", "fenced"), 0) == (2 if by == "append" else 0)


async def test_a_log_that_is_away_counts_as_an_error_and_leaves_the_queue_unknown(
    watched: RunLog, log: Unsteady, counts: Metrics
) -> None:
    await watched.submit(new_run("resp_1"))
    lease = await claim(watched)
    log.is_away = True
    with pytest.raises(Unavailable):
        await watched.append(lease, said(1, 2, "x"))
    assert await numbers(counts, families.RUNS_QUEUED) == {}
    assert (await numbers(counts, families.RUN_LOG_TIME))["append", "error"] == 1
    log.is_away = False
    await watched.append(lease, said(1, 2, "x"))
    assert await numbers(counts, families.RUN_LEFT) == {("handed_over",): 0, ("lost",): 0}


async def test_who_asks_for_others_runs_gets_what_the_log_gives(watched: RunLog) -> None:
    await watched.submit(new_run("resp_1"))
    assert await watched.owner(Identity("x", "y"), "resp_1") is None
    assert not await watched.cancel(Identity("x", "y"), "resp_1")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (BackendError("The backend failed to answer."), "The backend failed to answer."),
        (BackendRefused("PRIVATE"), None),
    ],
)
async def test_a_response_that_fails_while_nobody_reads_it_is_one_warning_with_the_cause(
    error: AntwortError, cause: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What a backend says of a request may have the prompt in it: of that, only the code is logged."""
    async with Engine(ScriptedProvider([error]), on_end=[RunObserver(None).on_end]) as engine:
        response = await engine.create(input="Hello", background=True)
        await until(lambda: bool(caplog.records))
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    fields = vars(record)["fields"]
    assert record.message.startswith("a response in the background is failed ")
    assert (fields["response_id"], fields["error"], fields["cause"]) == (response.id, error.code, cause)
