"""What a run says is written by whoever holds it, once, and by nobody else."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from antwort.storage.base import ResponseStore
from antwort.storage.run_log import Fenced, RunLog
from runs_cases import (
    ONE,
    TWO,
    begun,
    claim_one,
    everything,
    finish,
    has_log,
    marked,
    mixed,
    new_run,
    numbered,
    outcome,
    said,
    stale,
    to_end,
)
from runs_home import Home
from storage_cases import ME, chain_of


async def test_what_is_appended_is_read_as_it_was_written(log: RunLog) -> None:
    claimed = await begun(log)
    written = [said(1, 2, "a", "b"), marked(2, 4), mixed(3, 4)]
    for record in written:
        await log.append(claimed.lease, record)
    assert (await everything(log, claimed.lease.run_id))[1:] == written
    assert list(await log.records(claimed.lease))[1:] == written


async def test_the_same_record_once_more_changes_nothing(log: RunLog) -> None:
    claimed = await begun(log)
    for _ in range(2):
        await log.append(claimed.lease, said(1, 2, "a"))
    await log.append(claimed.lease, said(2, 3, "b"))
    await log.append(claimed.lease, said(1, 2, "a"))
    assert [record.at for record in await everything(log, claimed.lease.run_id)] == [0, 1, 2]


async def test_appends_of_many_runs_at_once_come_to_the_right_logs(log: RunLog) -> None:
    runs = [await begun(log) for _ in range(20)]
    for at in range(1, 6):
        await asyncio.gather(*(log.append(run.lease, said(at, at + 1, run.lease.run_id)) for run in runs))
    for run in runs:
        records = await everything(log, run.lease.run_id)
        assert records[1:] == [said(at, at + 1, run.lease.run_id) for at in range(1, 6)]


async def test_one_that_is_fenced_among_many_disturbs_no_other(log: RunLog) -> None:
    runs = [await begun(log) for _ in range(5)]
    leases = [stale(run.lease) if place == 2 else run.lease for place, run in enumerate(runs)]
    outcomes = await asyncio.gather(*(log.append(lease, said(1, 2, "a")) for lease in leases), return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), type(None), Fenced, type(None), type(None)]
    assert len(await everything(log, runs[2].lease.run_id)) == 1
    assert len(await everything(log, runs[3].lease.run_id)) == 2


async def test_a_zombie_writes_nothing_and_ends_nothing(log: RunLog, home: Home, store: ResponseStore) -> None:
    other = await home.other()
    zombie = await begun(log)
    await log.append(zombie.lease, said(1, 2, "a"))
    await log.leave(ONE.name)
    holder = await claim_one(other, TWO)
    ending, last = to_end(zombie, 2, 3, "of a zombie")
    with pytest.raises(Fenced):
        await log.append(zombie.lease, said(2, 3, "zombie"))
    with pytest.raises(Fenced):
        await log.append(zombie.lease, said(1, 2, "a"))
    with pytest.raises(Fenced):
        await log.finish(zombie.lease, ending, last)
    with pytest.raises(Fenced):
        await log.records(zombie.lease)
    await log.release(zombie.lease)
    await other.append(holder.lease, said(2, 3, "b"))
    ended = await finish(other, holder, 3, 4)
    assert await store.get(ME, ended.id) == ended
    texts = [getattr(event, "delta", None) for _, event in numbered(await everything(log, ended.id))]
    assert [text for text in texts if text] == ["a", "b"]


async def test_the_end_is_one_commit_of_record_response_and_run(log: RunLog, store: ResponseStore) -> None:
    claimed = await begun(log)
    ended = await finish(log, claimed, 1, 2)
    assert await store.get(ME, ended.id) == ended
    assert await chain_of(store, ended.id) == [ended.id]
    assert (await everything(log, ended.id))[-1].at == 1
    load = await log.load()
    assert (load.queued, load.running) == (0, 0)
    assert not await log.claim(TWO.name, 10)


async def test_the_same_end_once_more_is_no_error_and_changes_nothing(log: RunLog) -> None:
    claimed = await begun(log)
    ending, last = to_end(claimed, 1, 2)
    await log.finish(claimed.lease, ending, last)
    before = await everything(log, claimed.lease.run_id)
    await log.finish(claimed.lease, ending, last)
    await log.sweep()
    await log.finish(claimed.lease, ending, last)
    assert numbered(await everything(log, claimed.lease.run_id)) == numbered(before)


async def test_another_end_after_the_end_is_refused(log: RunLog, store: ResponseStore) -> None:
    claimed = await begun(log)
    ended = await finish(log, claimed, 1, 2)
    for at in (1, 2):
        ending, last = to_end(claimed, at, at + 1, "something else")
        with pytest.raises(Fenced):
            await log.finish(claimed.lease, ending, last)
        await log.sweep()
    with pytest.raises(Fenced):
        await log.append(claimed.lease, said(2, 3, "more"))
    assert await store.get(ME, ended.id) == ended


async def test_a_run_whose_response_was_ended_otherwise_is_not_made_any_more(log: RunLog, store: ResponseStore) -> None:
    """Nobody does that; if it happens, the run does not come again and again."""
    claimed = await begun(log)
    await store.finish(ME, outcome(claimed.response, "by another way"), ())
    ending, last = to_end(claimed, 1, 2)
    with pytest.raises(Fenced):
        await log.finish(claimed.lease, ending, last)
    await log.leave(ONE.name)
    assert not await log.claim(TWO.name, 10)


async def test_a_response_that_is_deleted_while_it_is_made_stays_deleted(log: RunLog, store: ResponseStore) -> None:
    claimed = await begun(log)
    await store.delete(ME, claimed.lease.run_id)
    ending, last = to_end(claimed, 1, 2)
    with pytest.raises(Fenced):
        await log.finish(claimed.lease, ending, last)
    assert await store.get(ME, claimed.lease.run_id) is None


async def test_a_fence_of_another_run_is_of_no_use(log: RunLog) -> None:
    first, second = await begun(log), await begun(log)
    await log.release(second.lease)
    second = await claim_one(log)
    assert second.lease.fence > first.lease.fence
    with pytest.raises(Fenced):
        await log.append(msgspec.structs.replace(second.lease, key=first.lease.key), said(1, 2, "a"))


async def test_a_waiter_that_gives_up_leaves_the_others_alone(log: RunLog) -> None:
    runs = [await begun(log, new_run(f"resp_{number}")) for number in range(3)]
    tasks = [asyncio.ensure_future(log.append(run.lease, said(1, 2, "a"))) for run in runs]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[0] is None
    assert done[2] is None
    assert len(await everything(log, "resp_2")) == 2


async def test_who_has_released_a_run_writes_nothing_any_more_though_nobody_has_claimed_it(log: RunLog) -> None:
    claimed = await begun(log)
    await log.release(claimed.lease)
    with pytest.raises(Fenced):
        await log.append(claimed.lease, said(1, 2, "a"))
    assert (await log.renew(ONE, [claimed.lease])).lost == {claimed.lease}


async def test_of_a_run_that_is_given_up_its_response_is_left(log: RunLog, store: ResponseStore) -> None:
    claimed = await begun(log, new_run("resp_1"))
    await log.append(claimed.lease, said(1, 2, "a"))
    ending, _ = to_end(claimed, 1, 2)
    await log.give_up(claimed.lease, ending)
    assert await store.get(ME, "resp_1") == ending.response
    assert not await has_log(log, ME, "resp_1")
    assert (await log.load()).running == 0
    for again in (log.give_up(claimed.lease, ending), log.append(claimed.lease, said(2, 3, "b"))):
        with pytest.raises(Fenced):
            await again
    assert not await log.claim(TWO.name, 1)


async def test_who_has_lost_a_run_gives_up_nothing(log: RunLog, store: ResponseStore) -> None:
    zombie = await begun(log, new_run("resp_1"))
    await log.leave(ONE.name)
    claimed = await claim_one(log, TWO)
    ending, _ = to_end(zombie, 1, 2)
    with pytest.raises(Fenced):
        await log.give_up(zombie.lease, ending)
    await finish(log, claimed, 1, 2)
    assert await has_log(log, ME, "resp_1")


async def test_a_run_whose_response_has_ended_otherwise_is_not_given_up_beside_it(
    log: RunLog, store: ResponseStore
) -> None:
    claimed = await begun(log, new_run("resp_1"))
    ending, _ = to_end(claimed, 1, 2)
    await store.delete(ME, "resp_1")
    with pytest.raises(Fenced):
        await log.give_up(claimed.lease, ending)
    assert (await log.load()).running == 0
