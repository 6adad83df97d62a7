"""Which runs wait, and who gets which."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from antwort.errors import KeyInUse, QueueFull, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import KeyClaim, ResponseStore
from antwort.storage.database import Connection
from antwort.storage.run_log import Fenced, RunLog
from antwort.storage.sql_run_log import SqlRunLog
from runs_cases import ONE, TWO, begun, claim_one, everything, finish, ids, new_run, said
from runs_home import Home, SqlHome, sqlite_home
from storage_cases import COLLEAGUE, ME, STRANGER, tell


async def test_a_run_that_is_submitted_is_queued_and_can_be_read(log: RunLog, store: ResponseStore) -> None:
    run = new_run("resp_1")
    await log.submit(run)
    response = await store.get(ME, "resp_1")
    assert response is not None
    assert response.status == "queued"
    (record,) = await everything(log, "resp_1")
    assert (record.at, record.first, record.events) == (0, 0, run.events)


async def test_a_run_that_is_submitted_twice_is_there_once(log: RunLog) -> None:
    run = new_run("resp_1")
    await log.submit(run)
    await log.submit(run)
    assert (await log.load()).queued == 1
    assert ids(await log.claim(ONE.name, 10)) == ["resp_1"]
    await log.submit(run)
    assert not await log.claim(TWO.name, 10)


async def test_what_a_run_is_claimed_with_is_what_it_was_submitted_with(log: RunLog) -> None:
    identity = Identity("acme", "ann", models=("small", "big-*"), key="laptop")
    run = new_run(identity=identity)
    claimed = await begun(log, run)
    assert claimed.identity == identity
    assert claimed.request == run.new.request
    assert claimed.response == run.new.response
    assert (claimed.attempt, claimed.is_cancelled) == (1, False)
    assert list(await log.records(claimed.lease)) == await everything(log, claimed.lease.run_id)


async def test_who_claims_a_run_first_is_told_how_long_it_has_waited_and_nobody_else(log: RunLog) -> None:
    first = await begun(log)
    assert first.waited is not None
    assert first.waited >= 0
    await log.release(first.lease)
    again = await claim_one(log)
    assert (again.begun_at, again.waited) == (first.begun_at, None)


async def test_a_run_that_is_made_is_in_progress(log: RunLog, store: ResponseStore) -> None:
    claimed = await begun(log)
    response = await store.get(ME, claimed.lease.run_id)
    assert response is not None
    assert response.status == "in_progress"


async def test_a_run_goes_to_one_worker_only(log: RunLog, home: Home) -> None:
    other = await home.other()
    for _ in range(40):
        await log.submit(new_run())
    taken: list[str] = []
    while (await log.load()).queued:
        claims = await asyncio.gather(log.claim(ONE.name, 3), other.claim(TWO.name, 3), log.claim(ONE.name, 1))
        taken += [each.lease.run_id for claimed in claims for each in claimed]
    assert len(taken) == len(set(taken)) == 40


async def test_the_oldest_comes_first(log: RunLog) -> None:
    names = [f"resp_{number}" for number in range(5)]
    for name in names:
        await log.submit(new_run(name))
    assert ids(await log.claim(ONE.name, 2)) == names[:2]
    assert ids(await log.claim(TWO.name, 10)) == names[2:]


async def test_a_worker_that_is_not_there_gets_nothing(log: RunLog) -> None:
    await log.submit(new_run())
    assert not await log.claim("worker_unknown", 1)


# ---- all or nothing ----


async def test_a_run_without_its_parent_is_not_submitted(log: RunLog, store: ResponseStore) -> None:
    run = new_run("resp_1")
    new = msgspec.structs.replace(
        run.new, response=msgspec.structs.replace(run.new.response, previous_response_id="resp_gone")
    )
    with pytest.raises(ResponseNotFound):
        await log.submit(msgspec.structs.replace(run, new=new))
    assert await store.get(ME, "resp_1") is None
    assert (await log.load()).queued == 0


async def test_a_key_that_stands_for_another_response_keeps_the_run_out(log: RunLog, store: ResponseStore) -> None:
    claim = KeyClaim(key="once", request_hash=b"h", now=100, expires_at=200)
    for name in ("resp_1", "resp_1", "resp_2"):
        run = new_run(name)
        run = msgspec.structs.replace(run, new=msgspec.structs.replace(run.new, claim=claim))
        if name == "resp_2":
            with pytest.raises(KeyInUse):
                await log.submit(run)
        else:
            await log.submit(run)
    assert await store.get(ME, "resp_2") is None
    assert (await log.load()).queued == 1


async def test_a_full_queue_takes_no_more_until_one_is_claimed(home: Home) -> None:
    log = await home.open(queue=2)
    await log.join(ONE)
    first = new_run("resp_1")
    await log.submit(first)
    await log.submit(new_run("resp_2"))
    with pytest.raises(QueueFull):
        await log.submit(new_run("resp_3"))
    assert await home.store.get(ME, "resp_3") is None
    await log.submit(first)  # is there already
    await claim_one(log)
    await log.submit(new_run("resp_3"))
    assert (await log.load()).queued == 2


# ---- fairness ----


async def test_whoever_has_the_fewest_under_way_comes_first(log: RunLog) -> None:
    for number in range(4):
        await log.submit(new_run(f"resp_ann_{number}"))
    for number in range(2):
        await log.submit(new_run(f"resp_bob_{number}", identity=COLLEAGUE))
    await log.submit(new_run("resp_other", identity=STRANGER))
    assert ids(await log.claim(ONE.name, 2)) == ["resp_ann_0", "resp_bob_0"]
    assert ids(await log.claim(TWO.name, 3)) == ["resp_other", "resp_ann_1", "resp_bob_1"]
    assert ids(await log.claim(ONE.name, 9)) == ["resp_ann_2", "resp_ann_3"]


async def test_an_owner_gets_as_many_places_as_it_may_and_no_more(home: Home) -> None:
    log = await home.open(per_owner=2)
    await log.join(ONE)
    for number in range(4):
        await log.submit(new_run(f"resp_ann_{number}"))
    await log.submit(new_run("resp_bob", identity=COLLEAGUE))
    first, bob, second = await log.claim(ONE.name, 10)
    assert ids([first, bob, second]) == ["resp_ann_0", "resp_bob", "resp_ann_1"]
    assert not await log.claim(ONE.name, 10)
    await finish(log, first, 1, 2)
    assert ids(await log.claim(ONE.name, 10)) == ["resp_ann_2"]


async def test_one_that_was_cancelled_waits_for_no_place(home: Home) -> None:
    log = await home.open(per_owner=1)
    await log.join(ONE)
    for number in range(3):
        await log.submit(new_run(f"resp_{number}"))
    await claim_one(log)
    assert not await log.claim(ONE.name, 10)
    assert await log.cancel(ME, "resp_2")
    (cancelled,) = await log.claim(ONE.name, 10)
    assert (cancelled.lease.run_id, cancelled.is_cancelled) == ("resp_2", True)


class Queued(NamedTuple):
    owner: Identity
    conversation: str | None = None
    is_cancelled: bool = False


ANN, BOB = Queued(ME), Queued(COLLEAGUE)


@pytest.mark.parametrize(
    ("held", "queued", "count", "per_owner", "chosen"),
    [
        ([], [], 5, None, []),
        ([], [ANN, ANN], 5, None, [0, 1]),
        ([], [ANN, ANN, BOB], 2, None, [0, 2]),
        ([ANN], [ANN, BOB], 1, None, [1]),
        ([ANN], [ANN, BOB], 5, 1, [1]),
        ([ANN], [ANN, Queued(ME, is_cancelled=True)], 5, 1, [1]),
        ([], [Queued(ME, "c"), Queued(ME, "c"), Queued(COLLEAGUE, "c")], 5, None, [0, 2]),
        ([Queued(ME, "c")], [Queued(ME, "c")], 5, None, []),
        ([Queued(ME, "c")], [Queued(ME, "c", is_cancelled=True)], 5, None, [0]),
    ],
)
async def test_who_comes_next(
    home: Home, held: list[Queued], queued: list[Queued], count: int, per_owner: int | None, chosen: list[int]
) -> None:
    log = await home.open(per_owner=per_owner)
    await log.join(ONE)
    for number, run in enumerate(held):
        await log.submit(new_run(f"resp_held_{number}", identity=run.owner, conversation=run.conversation))
        assert await log.take(ONE.name, run.owner, f"resp_held_{number}") is not None
    for number, run in enumerate(queued):
        await log.submit(new_run(f"resp_{number}", identity=run.owner, conversation=run.conversation))
        if run.is_cancelled:
            assert await log.cancel(run.owner, f"resp_{number}")
    assert ids(await log.claim(ONE.name, count)) == [f"resp_{place}" for place in chosen]


# ---- conversations ----


async def test_a_run_of_a_conversation_waits_for_those_before_it(log: RunLog) -> None:
    for name, conversation in [("resp_1", "conv_a"), ("resp_2", "conv_a"), ("resp_3", "conv_b"), ("resp_4", "conv_a")]:
        await log.submit(new_run(name, conversation=conversation))
    await log.submit(new_run("resp_bob", identity=COLLEAGUE, conversation="conv_a"))
    claimed = await log.claim(ONE.name, 10)
    assert sorted(ids(claimed)) == ["resp_1", "resp_3", "resp_bob"]
    assert not await log.claim(TWO.name, 10)
    await finish(log, claimed[0], 1, 2)
    assert ids(await log.claim(TWO.name, 10)) == ["resp_2"]
    assert not await log.claim(TWO.name, 10)


async def test_the_next_run_of_a_conversation_waits_for_the_end_of_one_that_was_cancelled(log: RunLog) -> None:
    for name in ("resp_1", "resp_2"):
        await log.submit(new_run(name, conversation="conv_a"))
    assert await log.cancel(ME, "resp_2")
    cancelled = await claim_one(log)
    assert (cancelled.lease.run_id, cancelled.is_cancelled) == ("resp_2", True)
    assert not await log.claim(ONE.name, 10)
    await finish(log, cancelled, 1, 2)
    assert ids(await log.claim(ONE.name, 10)) == ["resp_1"]


async def test_a_run_that_was_handed_over_keeps_its_place_in_the_conversation(log: RunLog) -> None:
    await log.submit(new_run("resp_1", conversation="conv_a"))
    await log.submit(new_run("resp_2", conversation="conv_a"))
    await log.release((await claim_one(log)).lease)
    assert ids(await log.claim(TWO.name, 10)) == ["resp_1"]


async def test_a_conversation_is_busy_until_its_last_run_has_ended(log: RunLog) -> None:
    assert not await log.is_busy(ME, "conv_a")
    await log.submit(new_run("resp_1", conversation="conv_a"))
    assert await log.is_busy(ME, "conv_a")
    assert not await log.is_busy(COLLEAGUE, "conv_a")
    assert not await log.is_busy(ME, "conv_b")
    claimed = await claim_one(log)
    assert await log.is_busy(ME, "conv_a")
    await finish(log, claimed, 1, 2)
    assert not await log.is_busy(ME, "conv_a")


# ---- one by its name ----


async def test_a_run_can_be_taken_whatever_it_waits_for(home: Home) -> None:
    log = await home.open(per_owner=1)
    await log.join(ONE)
    await log.submit(new_run("resp_1", conversation="conv_a"))
    await log.submit(new_run("resp_2", conversation="conv_a"))
    await claim_one(log)
    taken = await log.take(ONE.name, ME, "resp_2")
    assert taken is not None
    assert (taken.lease.run_id, taken.attempt) == ("resp_2", 1)
    await finish(log, taken, 1, 2)
    assert await log.take(ONE.name, ME, "resp_2") is None


async def test_a_run_that_is_held_or_of_somebody_else_is_not_taken(log: RunLog) -> None:
    await begun(log, new_run("resp_1"))
    assert await log.take(TWO.name, ME, "resp_1") is None
    await log.submit(new_run("resp_2"))
    assert await log.take(TWO.name, COLLEAGUE, "resp_2") is None
    assert await log.take("worker_unknown", ME, "resp_2") is None


# ---- handed over, and lost ----


async def test_a_run_that_was_released_is_claimed_again_without_a_loss(log: RunLog) -> None:
    first = await begun(log)
    await log.append(first.lease, said(1, 2, "a"))
    await log.release(first.lease)
    again = await claim_one(log, TWO)
    assert again.lease.fence > first.lease.fence
    assert (again.attempt, again.begun_at) == (1, first.begun_at)
    assert [record.at for record in await log.records(again.lease)] == [0, 1]
    with pytest.raises(Fenced):
        await log.append(first.lease, said(2, 3, "b"))
    await log.release(first.lease)  # once more: it is not this one's any more
    await log.append(again.lease, said(2, 3, "c"))


async def test_a_run_that_could_not_be_gone_on_with_is_claimed_again_and_counts_a_loss(log: RunLog) -> None:
    first = await begun(log)
    for _ in range(2):
        await log.release(first.lease, is_lost=True)
    second = await claim_one(log, TWO)
    assert (second.attempt, second.begun_at) == (2, first.begun_at)
    await log.release(second.lease)
    assert (await claim_one(log)).attempt == 2


async def test_a_run_whose_worker_has_gone_is_claimed_by_another_and_counts_a_loss(log: RunLog) -> None:
    first = await begun(log)
    await log.leave(ONE.name)
    second = await claim_one(log, TWO)
    assert second.lease.run_id == first.lease.run_id
    assert second.lease.fence > first.lease.fence
    assert (second.attempt, second.begun_at) == (2, first.begun_at)
    await log.leave(TWO.name)
    await log.join(ONE)
    assert (await claim_one(log, ONE)).attempt == 3


async def test_the_load_says_how_many_wait_and_how_many_are_made(log: RunLog) -> None:
    assert (await log.load()).oldest == 0.0
    for _ in range(3):
        await log.submit(new_run())
    await claim_one(log)
    load = await log.load()
    assert (load.queued, load.running) == (2, 1)
    assert load.oldest >= 0.0


async def test_a_response_that_is_deleted_takes_its_run_with_it(log: RunLog, store: ResponseStore) -> None:
    await log.submit(new_run("resp_1"))
    made = await begun(log, new_run("resp_2", identity=COLLEAGUE))
    held = made if made.lease.run_id == "resp_2" else await claim_one(log)
    assert await store.delete(ME, "resp_1")
    assert await store.delete(COLLEAGUE, "resp_2")
    assert not await log.claim(TWO.name, 10)
    assert (await log.load()).queued == 0
    with pytest.raises(Fenced):
        await log.append(held.lease, said(1, 2, "a"))


async def test_a_response_of_the_foreground_is_nothing_to_claim(log: RunLog, store: ResponseStore) -> None:
    await tell(store, "hello")
    assert not await log.claim(ONE.name, 10)


@pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)
async def test_a_run_whose_record_is_damaged_fails_and_stands_in_nobodys_way(log: RunLog, home: Home) -> None:
    assert isinstance(home, SqlHome)
    await log.submit(new_run("resp_1"))
    await log.submit(new_run("resp_2"))
    damage = "UPDATE responses SET body = ? WHERE id = 'resp_1'"
    await home.database.write(lambda connection: connection.execute(damage, (b"{",)).rowcount)
    assert ids(await log.claim(ONE.name, 10)) == ["resp_2"]
    assert not await log.claim(ONE.name, 10)
    status = "SELECT status FROM responses WHERE id = 'resp_1'"
    assert await home.database.read(lambda connection: connection.execute(status).fetchone()[0]) == "failed"


async def test_who_comes_next_takes_no_longer_for_each_run_where_many_wait_in_one_conversation(path: Path) -> None:
    home = await sqlite_home(path)
    few, many = await steps_to_claim(home, 100), await steps_to_claim(home, 400)
    await home.close()
    assert many < 5 * few


async def steps_to_claim(home: SqlHome, count: int) -> int:
    """What SQLite does to find the first of so many runs of one conversation, the newest of which was kept first."""
    log, done = SqlRunLog(home.database), [0]
    await log.join(ONE)

    def step() -> None:
        done[0] += 1

    def observe(connection: Connection) -> None:
        assert isinstance(connection, sqlite3.Connection)
        connection.set_progress_handler(step, 100)

    for number in range(count):
        await log.submit(new_run(f"resp_{count}_{number}", conversation=f"conv_{count}"))
    await home.database.write(
        lambda connection: connection.execute("UPDATE runs SET queued_at = -response_key").rowcount
    )
    await home.database.read(observe)
    assert ids(await log.claim(ONE.name, 5)) == [f"resp_{count}_{count - 1}"]
    await home.database.write(lambda connection: connection.execute("DELETE FROM runs").rowcount)
    await log.close()
    return done[0]
