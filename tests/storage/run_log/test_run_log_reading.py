"""Reading a log: from every number on, while it grows and when it is packed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from antwort.api.events import TERMINAL, RunEvent
from antwort.api.payload import LARGE
from antwort.api.wire import replace
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import EventRecord, Gone, RunLog
from runs_cases import ONE, TWO, begun, everything, finish, has_log, marked, new_run, numbered, said, told
from runs_home import Home
from storage_cases import COLLEAGUE, ME, STRANGER, tell


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_log_is_read_from_every_number_on(log: RunLog, is_packed: bool) -> None:
    claimed = await told(log, 9)
    whole = numbered(await everything(log, claimed.lease.run_id))
    assert [number for number, _ in whole] == [*range(len(whole))]
    if is_packed:
        await log.sweep()
    for after in range(-1, len(whole) + 3):
        found = numbered(await everything(log, claimed.lease.run_id, after))
        assert found == whole[after + 1 :], after
        assert await _followed(log, claimed.lease.run_id, after) == found


async def _followed(log: RunLog, response_id: str, after: int = -1) -> list[tuple[int, RunEvent]]:
    async with aclosing(log.read(ME, response_id, after, follow=True)) as reading:
        return numbered([record async for records in reading for record in records])


async def test_marks_are_read_with_what_stands_around_them(log: RunLog) -> None:
    claimed = await begun(log)
    await log.append(claimed.lease, said(1, 2, "a"))
    await log.append(claimed.lease, marked(2, 3))
    await log.append(claimed.lease, said(3, 3, "b"))
    assert await everything(log, claimed.lease.run_id, 2) == [marked(2, 3), said(3, 3, "b")]
    assert await everything(log, claimed.lease.run_id, 3) == []


async def test_a_record_is_cut_where_reading_begins(log: RunLog) -> None:
    claimed = await begun(log)
    await log.append(claimed.lease, said(1, 2, "a", "b", "c"))
    assert await everything(log, claimed.lease.run_id, 3) == [said(1, 4, "c")]


async def test_long_logs_are_read_in_pieces(log: RunLog) -> None:
    claimed = await begun(log)
    for at in range(1, 600):
        await log.append(claimed.lease, said(at, at + 1, str(at)))
    await finish(log, claimed, 600, 601)
    assert [number for number, _ in numbered(await everything(log, claimed.lease.run_id))] == [*range(602)]
    assert [number for number, _ in await _followed(log, claimed.lease.run_id, 300)] == [*range(301, 602)]


async def test_readers_of_every_pace_see_each_event_once_and_end_with_the_run(log: RunLog, home: Home) -> None:
    """Some read here and some elsewhere, from different numbers on, while the run is made and taken over."""
    elsewhere = await home.other(poll=0.05)
    claimed = await begun(log)
    response_id = claimed.lease.run_id
    readers = [
        asyncio.ensure_future(_followed(of, response_id, after)) for of in (log, elsewhere) for after in (-1, 0, 1, 5)
    ]
    for at in range(1, 10):
        await log.append(claimed.lease, said(at, at + 1, str(at)))
        await asyncio.sleep(0)
    await log.leave(ONE.name)
    (taken,) = await log.claim(TWO.name, 1)
    late = asyncio.ensure_future(_followed(log, response_id, 9))
    for at in range(10, 20):
        await log.append(taken.lease, said(at, at + 1, str(at)))
    await finish(log, taken, 20, 21)
    whole = numbered(await everything(log, response_id))
    for reader, after in zip(readers, [-1, 0, 1, 5] * 2, strict=True):
        assert await reader == whole[after + 1 :]
    assert await late == whole[10:]
    assert isinstance(whole[-1][1], TERMINAL)


async def test_who_follows_hears_at_once_what_is_written_in_the_same_process(home: Home) -> None:
    log = await home.open(poll=3600)
    await log.join(ONE)
    claimed = await begun(log)
    async with aclosing(log.read(ME, claimed.lease.run_id, 1, follow=True)) as reading:
        for at in range(1, 5):
            next_one = asyncio.ensure_future(_something(reading))
            await asyncio.sleep(0)
            await log.append(claimed.lease, said(at, at + 1, str(at)))
            assert await next_one == [said(at, at + 1, str(at))]


async def _something(reading: AsyncGenerator[list[EventRecord], None]) -> list[EventRecord]:
    async for records in reading:
        if records:
            return records
    raise AssertionError("the log has ended")


async def test_a_sign_of_life_comes_while_nothing_is_said(home: Home) -> None:
    log = await home.open(poll=0.01)
    await log.join(ONE)
    claimed = await begun(log)
    async with aclosing(log.read(ME, claimed.lease.run_id, 1, follow=True)) as reading:
        assert await anext(reading) == []
        assert await anext(reading) == []


async def test_a_log_that_is_packed_while_it_is_read_is_read_to_its_end(home: Home) -> None:
    log = await home.open(poll=0.01)
    await log.join(ONE)
    claimed = await begun(log)
    async with aclosing(log.read(ME, claimed.lease.run_id, follow=True)) as reading:
        found = await anext(reading)
        for at in range(1, 300):  # more than is held for a slow reader
            await log.append(claimed.lease, said(at, at + 1, str(at)))
        await finish(log, claimed, 300, 301)
        await log.sweep()
        found += [record async for records in reading for record in records]
    assert [number for number, _ in numbered(found)] == [*range(302)]


LONG_TEXT = "x" * 100_000


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_large_log_is_read_in_pieces_of_bounded_size(log: RunLog, is_packed: bool) -> None:
    claimed = await begun(log)
    for at in range(1, 30):
        await log.append(claimed.lease, said(at, at + 1, LONG_TEXT))
    await finish(log, claimed, 30, 31)
    if is_packed:
        await log.sweep()
    async with aclosing(log.read(ME, claimed.lease.run_id, follow=True)) as reading:
        pieces = [records async for records in reading]
    assert [number for number, _ in numbered([each for piece in pieces for each in piece])] == [*range(32)]
    assert max(len(numbered(piece)) for piece in pieces) < 10
    assert await log.sent(ME, claimed.lease.run_id) == 32


@pytest.mark.parametrize("is_packed", [False, True])
async def test_those_who_read_a_large_event_share_it(log: RunLog, is_packed: bool) -> None:
    claimed = await begun(log)
    await finish(log, claimed, 1, 2, LONG_TEXT * 10)
    if is_packed:
        await log.sweep()
    readers = [log.read(ME, claimed.lease.run_id, 1) for _ in range(2)]
    (one,), (other,) = [await anext(reader) for reader in readers]
    assert one.events[-1] is other.events[-1]
    for reader in readers:
        await reader.aclose()


async def test_a_response_is_outlined_without_what_it_said(log: RunLog, store: ResponseStore) -> None:
    claimed = await told(log)
    await tell(store, "hello", response_id="resp_plain")
    for response_id, is_logged in ((claimed.lease.run_id, True), ("resp_plain", False)):
        outline = await log.outline(ME, response_id)
        whole = await store.get(ME, response_id)
        assert outline is not None
        assert whole is not None
        assert (outline.has_log, outline.response) == (is_logged, replace(whole, output=()))
        assert await log.outline(STRANGER, response_id) is None
    assert await log.sent(ME, "resp_plain") == 0


async def test_small_records_behind_a_large_one_are_read_too(log: RunLog) -> None:
    claimed = await begun(log)
    await log.append(claimed.lease, said(1, 2, "a" * (LARGE + 1)))
    await log.append(claimed.lease, said(2, 3, "b"))
    assert [number for number, _ in numbered(await everything(log, claimed.lease.run_id))] == [*range(4)]


async def test_a_slow_reader_misses_nothing_of_a_record_that_was_packed_as_several(home: Home) -> None:
    """What it heard before has other places than what it reads now."""
    log = await home.open(poll=0.01)
    await log.join(ONE)
    claimed = await begun(log)
    async with aclosing(log.read(ME, claimed.lease.run_id, follow=True)) as reading:
        found = await anext(reading)
        await log.append(claimed.lease, said(1, 2, *["a" * (LARGE + 1)] * 3))
        await log.append(claimed.lease, said(2, 5, "b"))
        await finish(log, claimed, 3, 6)
        await log.sweep()
        found += [record async for records in reading for record in records]
    assert [number for number, _ in numbered(found)] == [*range(7)]


async def test_there_is_no_log_of_what_never_had_one(log: RunLog, store: ResponseStore) -> None:
    await tell(store, "hello", response_id="resp_plain")
    for response_id in ("resp_plain", "resp_unknown"):
        assert not await has_log(log, ME, response_id)
        with pytest.raises(Gone):
            await everything(log, response_id)


async def test_a_log_is_found_by_its_owner_only(log: RunLog) -> None:
    claimed = await told(log)
    assert await has_log(log, ME, claimed.lease.run_id)
    for stranger in (COLLEAGUE, STRANGER):
        assert not await has_log(log, stranger, claimed.lease.run_id)
        with pytest.raises(Gone):
            await everything(log, claimed.lease.run_id, identity=stranger)


async def test_a_log_goes_with_its_response(log: RunLog, store: ResponseStore) -> None:
    claimed = await told(log)
    await store.delete(ME, claimed.lease.run_id)
    assert not await has_log(log, ME, claimed.lease.run_id)
    with pytest.raises(Gone):
        await everything(log, claimed.lease.run_id)


async def test_who_follows_a_run_that_is_deleted_is_told_so(home: Home) -> None:
    log = await home.open(poll=0.01)
    await log.join(ONE)
    claimed = await begun(log)
    async with aclosing(log.read(ME, claimed.lease.run_id, follow=True)) as reading:
        await anext(reading)
        await home.store.delete(ME, claimed.lease.run_id)
        with pytest.raises(Gone):
            await _something(reading)


async def test_a_log_that_is_old_goes_and_its_response_stays(home: Home) -> None:
    log = await home.open(keep_log=0)
    await log.join(ONE)
    claimed = await told(log)
    going = await begun(log, new_run("resp_going"))
    await log.sweep()
    assert not await has_log(log, ME, claimed.lease.run_id)
    with pytest.raises(Gone):
        await everything(log, claimed.lease.run_id)
    assert await home.store.get(ME, claimed.lease.run_id) is not None
    assert await everything(log, going.lease.run_id)
