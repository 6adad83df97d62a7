"""Idempotency keys in a store: each stands for one response, for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from antwort.api.wire import replace
from antwort.errors import KeyInUse, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import KeyClaim, KeyHolder, NewResponse, ResponseStore
from antwort.storage.database import Connection
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from storage_cases import COLLEAGUE, ME, STOPPED, STRANGER, asked, ended, message, tell

NOW, SOON, LATER = 1_700_000_000, 1_700_000_099, 1_700_000_100


def claiming(
    key: str = "key-1", *, digest: bytes = b"hash", now: int = NOW, identity: Identity = ME, after: str | None = None
) -> NewResponse:
    claim = KeyClaim(key=key, request_hash=digest, now=now, expires_at=now + 100)
    return replace(asked("hello", identity=identity, after=after), claim=claim)


def claimed(new: NewResponse) -> KeyHolder:
    assert new.claim is not None
    return KeyHolder(request_hash=new.claim.request_hash, response_id=new.response.id)


async def test_a_key_stands_for_its_response_from_the_moment_that_there_is_a_row(store: ResponseStore) -> None:
    new = claiming()
    assert await store.claimed(ME, "key-1", NOW) is None
    await store.begin(new)
    assert await store.claimed(ME, "key-1", NOW) == claimed(new)
    await store.finish(ME, ended(new, message("hi")), STOPPED)
    assert await store.claimed(ME, "key-1", SOON) == claimed(new)
    assert await store.claimed(ME, "key-2", NOW) is None


async def test_a_key_is_its_owners(store: ResponseStore) -> None:
    mine = claiming()
    await store.begin(mine)
    for other in (COLLEAGUE, STRANGER):
        assert await store.claimed(other, "key-1", NOW) is None
        theirs = claiming(digest=b"another", identity=other)
        await store.begin(theirs)
        assert await store.claimed(other, "key-1", NOW) == claimed(theirs)
    assert await store.claimed(ME, "key-1", NOW) == claimed(mine)


async def test_a_key_that_is_taken_begins_nothing(store: ResponseStore) -> None:
    first, second = claiming(), claiming()
    await store.begin(first)
    with pytest.raises(KeyInUse):
        await store.begin(second)
    assert await store.get(ME, second.response.id) is None
    assert await store.items(ME, [second.input[0].id]) == {}
    assert await store.claimed(ME, "key-1", NOW) == claimed(first)


async def test_of_many_at_once_one_gets_the_key(store: ResponseStore) -> None:
    many = [claiming() for _ in range(20)]
    outcomes = await asyncio.gather(*(store.begin(new) for new in many), return_exceptions=True)
    [winner] = [new for new, outcome in zip(many, outcomes, strict=True) if outcome is None]
    assert sum(isinstance(outcome, KeyInUse) for outcome in outcomes) == 19
    assert await store.claimed(ME, "key-1", NOW) == claimed(winner)


async def test_a_response_that_cannot_begin_takes_no_key(store: ResponseStore) -> None:
    with pytest.raises(ResponseNotFound):
        await store.begin(claiming(after="resp_none"))
    assert await store.claimed(ME, "key-1", NOW) is None


async def test_a_claim_expires_and_another_may_follow(store: ResponseStore) -> None:
    first, second = claiming(), claiming(digest=b"another", now=LATER)
    await store.begin(first)
    assert await store.claimed(ME, "key-1", LATER) is None
    await store.begin(second)
    assert await store.claimed(ME, "key-1", LATER) == claimed(second)
    assert await store.get(ME, first.response.id) == first.response


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_deleted_response_frees_its_key(store: ResponseStore, is_followed: bool) -> None:
    first, second = claiming(), claiming(digest=b"another")
    await store.begin(first)
    await store.finish(ME, ended(first), STOPPED)
    if is_followed:
        await tell(store, "and?", after=first.response.id)
    await store.delete(ME, first.response.id)
    assert await store.claimed(ME, "key-1", NOW) is None
    await store.begin(second)
    assert await store.claimed(ME, "key-1", NOW) == claimed(second)


async def test_a_released_key_is_free(store: ResponseStore) -> None:
    first, second = claiming(), claiming()
    await store.begin(first)
    await store.release(ME, "key-1", first.response.id)
    assert await store.claimed(ME, "key-1", NOW) is None
    await store.begin(second)
    await store.release(ME, "key-1", first.response.id)  # late: another has it by now
    assert await store.claimed(ME, "key-1", NOW) == claimed(second)
    await store.release(COLLEAGUE, "key-1", second.response.id)
    assert await store.claimed(ME, "key-1", NOW) == claimed(second)
    await store.release(ME, "key-2", second.response.id)


async def test_the_key_of_a_run_that_died_stands_for_the_failed_response(store: ResponseStore) -> None:
    new = claiming()
    await store.begin(new)
    await store.fail_running("The server was stopped.")
    found = await store.claimed(ME, "key-1", NOW)
    assert found == claimed(new)
    response = await store.get(ME, found.response_id)
    assert response is not None
    assert response.status == "failed"


def count_claims(connection: Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM idempotency_keys").fetchone()[0])


async def test_a_response_that_memory_has_no_room_for_takes_its_key_along() -> None:
    store = MemoryStore(max_responses=1)
    first = claiming()
    await store.begin(first)
    await store.finish(ME, ended(first), STOPPED)
    await tell(store, "another")
    assert await store.claimed(ME, "key-1", NOW) is None
    assert await store.database.read(count_claims) == 0


async def test_a_row_that_goes_late_leaves_the_key_to_who_has_it_by_then() -> None:
    store = MemoryStore()
    first, second = claiming(), claiming(now=LATER)
    await store.begin(first)
    await store.finish(ME, ended(first), STOPPED)
    await store.begin(second)
    await store.delete(ME, first.response.id)
    assert await store.claimed(ME, "key-1", LATER) == claimed(second)


# ---- on disk ----


async def test_a_claim_outlives_the_process(path: Path) -> None:
    store, new = await SqliteStore.open(path), claiming()
    await store.begin(new)
    await store.close()
    store = await SqliteStore.open(path)
    assert await store.claimed(ME, "key-1", NOW) == claimed(new)
    await store.close()


def rows(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        found = [key for (key,) in connection.execute("SELECT key FROM idempotency_keys ORDER BY rowid")]
    connection.close()
    return found


async def test_expired_claims_are_removed_a_few_at_a_time(sqlite: SqliteStore, path: Path) -> None:
    for number in range(40):
        await sqlite.begin(claiming(f"old-{number}"))
    await sqlite.begin(claiming("old-0", now=LATER))
    assert rows(path) == [*(f"old-{number}" for number in range(32, 40)), "old-0"]
    await sqlite.begin(claiming("new", now=LATER))
    assert rows(path) == ["old-0", "new"]
