"""Who makes a run: leases, cancels, runs of the foreground that are adopted, and what dead workers leave."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from antwort.api.events import ResponseCompleted, ResponseCreated
from antwort.api.responses import ConversationRef
from antwort.api.wire import replace
from antwort.storage.base import NewResponse, ResponseStore
from antwort.storage.event_codec import pack
from antwort.storage.run_log import EventRecord, Fenced, Lease, Renewed, RunLog
from runs_cases import (
    ONE,
    TWO,
    begun,
    claim_one,
    everything,
    finish,
    has_log,
    ids,
    marked,
    new_run,
    numbered,
    outcome,
    said,
)
from runs_home import Home
from storage_cases import COLLEAGUE, ME, STOPPED, asked, open_conversation

NOTHING = Renewed()


# ---- leases ----


async def test_a_worker_that_renews_keeps_what_it_holds(log: RunLog) -> None:
    held = [(await begun(log)).lease for _ in range(3)]
    assert await log.renew(ONE, held) == NOTHING
    assert await log.renew(ONE, held) == NOTHING
    assert not await log.claim(TWO.name, 10)


async def test_a_worker_hears_which_leases_it_has_lost(log: RunLog) -> None:
    first, second, third = [await begun(log, new_run(f"resp_{number}")) for number in range(3)]
    await finish(log, first, 1, 2)
    await log.release(second.lease)
    taken = await claim_one(log, TWO)
    renewed = await log.renew(ONE, [first.lease, second.lease, third.lease])
    assert renewed.lost == {first.lease, second.lease}
    assert await log.renew(TWO, [taken.lease]) == NOTHING


async def test_a_worker_hears_what_it_holds_and_has_not_named(log: RunLog) -> None:
    """The answer to its claim may have been lost: nobody else would ever take it."""
    named, unheard = await begun(log, new_run("resp_1")), await begun(log, new_run("resp_2"))
    await begun(log, new_run("resp_3"), TWO)
    renewed = await log.renew(ONE, [named.lease])
    assert renewed == Renewed(strays=frozenset({unheard.lease}))
    for stray in renewed.strays:
        await log.release(stray)
    assert ids(await log.claim(TWO.name, 10)) == ["resp_2"]


async def test_a_worker_that_was_taken_for_dead_lives_again_with_what_nobody_took(log: RunLog) -> None:
    taken, kept = await begun(log, new_run("resp_1")), await begun(log, new_run("resp_2"))
    await log.leave(ONE.name)
    await claim_one(log, TWO)
    renewed = await log.renew(ONE, [taken.lease, kept.lease])
    assert renewed.lost == {taken.lease}
    await log.append(kept.lease, said(1, 2, "a"))
    assert not await log.claim(TWO.name, 10)


async def test_the_one_who_makes_a_run_can_be_found_while_it_lives(log: RunLog) -> None:
    claimed = await begun(log)
    response_id = claimed.lease.run_id
    assert await log.owner(ME, response_id) == ONE
    assert await log.owner(COLLEAGUE, response_id) is None
    await log.leave(ONE.name)
    assert await log.owner(ME, response_id) is None
    taken = await claim_one(log, TWO)
    assert await log.owner(ME, response_id) == TWO
    await finish(log, taken, 1, 2)
    assert await log.owner(ME, response_id) is None


# ---- cancels ----


async def test_one_that_is_cancelled_before_it_is_claimed_is_claimed_as_cancelled(log: RunLog) -> None:
    await log.submit(new_run("resp_1"))
    assert await log.cancel(ME, "resp_1")
    assert await log.cancel(ME, "resp_1")
    claimed = await claim_one(log)
    assert claimed.is_cancelled
    await log.release(claimed.lease)
    assert (await claim_one(log, TWO)).is_cancelled


async def test_one_that_is_cancelled_while_it_is_made_is_told_to_its_worker(log: RunLog) -> None:
    claimed = await begun(log)
    await begun(log, worker=TWO)
    assert await log.cancel(ME, claimed.lease.run_id)
    for _ in range(2):
        assert (await log.renew(ONE, [claimed.lease])).cancelled == {claimed.lease.run_id}
    assert (await log.renew(TWO, [])).cancelled == frozenset()
    await log.append(claimed.lease, said(1, 2, "last words"))
    await finish(log, claimed, 2, 3)
    assert (await log.renew(ONE, [])).cancelled == frozenset()


async def test_there_is_nothing_to_cancel_of_what_has_ended_or_is_not_there(log: RunLog) -> None:
    claimed = await begun(log)
    assert not await log.cancel(COLLEAGUE, claimed.lease.run_id)
    await finish(log, claimed, 1, 2)
    assert not await log.cancel(ME, claimed.lease.run_id)
    assert not await log.cancel(ME, "resp_unknown")


# ---- hints ----


async def test_who_waits_for_work_hears_of_it(log: RunLog) -> None:
    await log.claim(ONE.name, 1)
    waiting = asyncio.ensure_future(log.wait_for_work(3600))
    await asyncio.sleep(0)
    await log.submit(new_run())
    await waiting
    await log.wait_for_work(3600)  # until somebody goes to look, it stays
    claimed = await claim_one(log)
    waiting = asyncio.ensure_future(log.wait_for_work(3600))
    await asyncio.sleep(0)
    await log.release(claimed.lease)
    await waiting


async def test_who_waits_for_cancels_hears_of_them(log: RunLog) -> None:
    claimed = await begun(log)
    await log.renew(ONE, [claimed.lease])
    waiting = asyncio.ensure_future(log.wait_for_cancels(3600))
    await asyncio.sleep(0)
    await log.cancel(ME, claimed.lease.run_id)
    await waiting


async def test_waiting_has_an_end(log: RunLog) -> None:
    await log.claim(ONE.name, 1)
    await log.wait_for_work(0.001)
    await log.renew(ONE, [])
    await log.wait_for_cancels(0.001)


async def test_who_has_looked_waits_for_something_new(log: RunLog) -> None:
    claimed = await begun(log)
    await log.cancel(ME, claimed.lease.run_id)
    await asyncio.gather(log.wait_for_work(3600), log.wait_for_cancels(3600))
    await log.claim(ONE.name, 1)
    await log.renew(ONE, [claimed.lease])
    waiting = [asyncio.ensure_future(log.wait_for_work(3600)), asyncio.ensure_future(log.wait_for_cancels(3600))]
    await asyncio.wait(waiting, timeout=0.01)
    assert not any(each.done() for each in waiting)
    for each in waiting:
        each.cancel()


# ---- runs of the foreground ----


def in_front(response_id: str, worker: str | None = None) -> NewResponse:
    return msgspec.structs.replace(asked("hello", response_id=response_id), worker=worker)


def beginning(new: NewResponse) -> list[EventRecord]:
    return [EventRecord(0, 0, [ResponseCreated(response=new.response)]), said(1, 1, "a", "b"), marked(2, 3)]


async def adopt(log: RunLog, new: NewResponse) -> Lease:
    """Adopt a run, and record what it has said."""
    lease = await log.adopt(ONE.name, ME, new.response.id)
    for record in beginning(new):
        await log.append(lease, record)
    return lease


@pytest.mark.parametrize("maker", [None, ONE.name])
async def test_a_run_of_the_foreground_is_adopted_with_all_it_has_said(
    log: RunLog, store: ResponseStore, maker: str | None
) -> None:
    new = in_front("resp_1", maker)
    await store.begin(new)
    lease = await adopt(log, new)
    assert list(await log.records(lease)) == beginning(new)
    await log.append(lease, said(3, 3, "c"))
    assert not await log.claim(TWO.name, 1)
    await log.leave(ONE.name)
    taken = await claim_one(log, TWO)
    assert (taken.lease.run_id, taken.attempt, taken.begun_at) == ("resp_1", 2, float(new.response.created_at))
    assert (taken.response, taken.request, taken.identity) == (new.response, new.request, ME)
    ended = await finish(log, taken, 4, 4)
    assert await store.get(ME, "resp_1") == ended
    assert [number for number, _ in numbered(await everything(log, "resp_1"))] == [0, 1, 2, 3, 4]


async def test_a_run_of_a_conversation_waits_for_one_that_was_adopted_there(log: RunLog, store: ResponseStore) -> None:
    await open_conversation(store, conversation_id="conv_a")
    await log.submit(new_run("resp_1", conversation="conv_a"))
    new = in_front("resp_2")
    conversation = ConversationRef(id="conv_a")
    response = replace(new.response, conversation=conversation, created_at=2_000_000_000)
    await store.begin(msgspec.structs.replace(new, response=response))
    lease = await adopt(log, new)
    assert not await log.claim(TWO.name, 10)
    await log.release(lease)
    assert ids(await log.claim(TWO.name, 10)) == ["resp_1"]


async def test_to_adopt_a_run_once_more_gives_the_same_lease(log: RunLog, store: ResponseStore) -> None:
    new = in_front("resp_1")
    await store.begin(new)
    first = await adopt(log, new)
    assert await log.adopt(ONE.name, ME, "resp_1") == first
    assert await adopt(log, new) == first
    assert list(await log.records(first)) == beginning(new)


async def test_what_is_adopted_counts_for_its_owner_until_its_worker_is_dead(home: Home, store: ResponseStore) -> None:
    log = await home.open(per_owner=2)
    await log.join(ONE)
    await log.join(TWO)
    for number in range(3):  # beyond the limit, too
        new = in_front(f"resp_{number}")
        await store.begin(new)
        await adopt(log, new)
    await log.submit(new_run("resp_queued"))
    assert not await log.claim(TWO.name, 1)
    await log.leave(ONE.name)
    assert len(await log.claim(TWO.name, 4)) == 2


async def test_only_what_runs_and_is_ones_own_can_be_adopted(log: RunLog, store: ResponseStore) -> None:
    new = in_front("resp_1")
    await store.begin(new)
    await adopt(log, new)
    over = in_front("resp_2")
    await store.begin(over)
    await store.finish(ME, outcome(over.response), STOPPED)
    for identity, name in [(ME, "resp_1"), (ME, "resp_2"), (COLLEAGUE, "resp_1"), (ME, "resp_unknown")]:
        with pytest.raises(Fenced):
            await log.adopt(TWO.name, identity, name)


async def test_the_log_that_the_store_was_given_at_the_end_can_be_read(log: RunLog, store: ResponseStore) -> None:
    new = in_front("resp_1")
    await store.begin(new)
    ended = outcome(new.response)
    events = [*beginning(new)[0].events, *said(1, 1, "a", "b").events, ResponseCompleted(response=ended)]
    await store.finish(ME, ended, STOPPED, log=pack([events]))
    assert await has_log(log, ME, "resp_1")
    for after in range(-1, 4):
        assert numbered(await everything(log, "resp_1", after)) == [*enumerate(events)][after + 1 :]


# ---- where several processes share the record ----


SHARED = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)
"""They know who makes what in the foreground. A record in memory ends with the one process that makes it all."""


@SHARED
async def test_what_is_made_in_the_foreground_has_an_owner_and_can_be_cancelled(
    log: RunLog, store: ResponseStore
) -> None:
    await store.begin(in_front("resp_1", ONE.name))
    assert await log.owner(ME, "resp_1") == ONE
    assert await log.cancel(ME, "resp_1")
    assert (await log.renew(ONE, [])).cancelled == {"resp_1"}
    assert (await log.renew(TWO, [])).cancelled == frozenset()
    response = await store.get(ME, "resp_1")
    assert response is not None
    await store.finish(ME, outcome(response), STOPPED)
    assert await log.owner(ME, "resp_1") is None
    assert not await log.cancel(ME, "resp_1")
    assert (await log.renew(ONE, [])).cancelled == frozenset()


@SHARED
async def test_a_cancel_of_the_foreground_goes_with_the_run_that_is_adopted(log: RunLog, store: ResponseStore) -> None:
    new = in_front("resp_1", ONE.name)
    await store.begin(new)
    await log.cancel(ME, "resp_1")
    lease = await adopt(log, new)
    assert (await log.renew(ONE, [lease])).cancelled == {"resp_1"}
    await log.release(lease)
    assert (await claim_one(log, TWO)).is_cancelled


@SHARED
async def test_what_a_dead_worker_made_in_the_foreground_has_failed(log: RunLog, store: ResponseStore) -> None:
    for name, worker in [("resp_1", ONE.name), ("resp_2", TWO.name), ("resp_3", ONE.name)]:
        await store.begin(in_front(name, worker))
    await adopt(log, in_front("resp_3"))
    assert await log.sweep() == 0
    await log.leave(ONE.name)
    assert await log.sweep() == 1
    assert await log.sweep() == 0
    statuses = [response.status for name in ("resp_1", "resp_2", "resp_3") if (response := await store.get(ME, name))]
    assert statuses == ["failed", "in_progress", "in_progress"]
