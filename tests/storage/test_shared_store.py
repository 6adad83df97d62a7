"""Several processes on one database: what they do at the same time, and what one leaves to the others."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg
import pytest
from msgspec.structs import replace as struct_replace

from antwort.api.status import IllegalTransition
from antwort.errors import KeyInUse, ResponseNotFound
from antwort.storage.base import KeyClaim, LogPiece, NewResponse
from antwort.storage.database import Connection
from antwort.storage.postgres import PostgresStore
from antwort.storage.sql_responses import begin_response, delete_response, to_new_rows
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import SqliteStore
from database_kit import held
from storage_cases import (
    ME,
    STOPPED,
    asked,
    chain_of,
    ended,
    entries,
    message,
    open_conversation,
    said_in,
    tell,
    tell_chain,
)

T = TypeVar("T")


@pytest.fixture
async def replicas(migrated_database: str) -> AsyncGenerator[tuple[PostgresStore, PostgresStore], None]:
    first, second = [await PostgresStore.open(migrated_database) for _ in range(2)]
    yield first, second
    await first.close()
    await second.close()


@asynccontextmanager
async def before_commit(store: PostgresStore, operation: Callable[[Connection], T]) -> AsyncGenerator[None, None]:
    """`operation` has run and is not committed inside."""
    loop = asyncio.get_running_loop()
    done, go_on = asyncio.Event(), threading.Event()

    def hold(connection: Connection) -> T:
        value = operation(connection)
        loop.call_soon_threadsafe(done.set)
        go_on.wait(30)
        return value

    writing = asyncio.ensure_future(store.database.write(hold))
    await done.wait()
    try:
        yield
    finally:
        go_on.set()
        await writing


async def waits(dsn: str) -> None:
    """Until somebody waits for another's lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while (await (await connection.execute(query)).fetchone()) == (0,):  # noqa: ASYNC110  # PostgreSQL has no event for it
            await asyncio.sleep(0.01)


def begins(new: NewResponse) -> Callable[[Connection], int]:
    rows = to_new_rows(new)
    return lambda connection: begin_response(connection, rows)


def claiming(key: str, response_id: str) -> NewResponse:
    claim = KeyClaim(key=key, request_hash=b"#", now=100, expires_at=200)
    return struct_replace(asked("hello", response_id=response_id), claim=claim)


async def test_a_key_that_two_claim_at_once_stands_for_one_response(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    first, second = replicas
    async with before_commit(first, begins(claiming("key", "r1"))):
        late = asyncio.create_task(second.begin(claiming("key", "r2")))
        await waits(migrated_database)
    with pytest.raises(KeyInUse):
        await late
    found = await second.claimed(ME, "key", 150)
    assert found is not None
    assert found.response_id == "r1"
    assert await second.get(ME, "r2") is None


async def test_a_key_that_has_expired_is_given_to_one_of_two(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    first, second = replicas
    await first.begin(claiming("key", "old"))
    again = [
        struct_replace(claiming("key", name), claim=KeyClaim(key="key", request_hash=b"#", now=300, expires_at=400))
        for name in ("r1", "r2")
    ]
    async with before_commit(first, begins(again[0])):
        late = asyncio.create_task(second.begin(again[1]))
        await waits(migrated_database)
    with pytest.raises(KeyInUse):
        await late
    found = await second.claimed(ME, "key", 350)
    assert found is not None
    assert found.response_id == "r1"


async def test_two_that_follow_one_response_at_once_are_two_chains(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    first, second = replicas
    await tell_chain(first, "a")
    async with before_commit(first, begins(asked("b?", after="a", response_id="b"))):
        late = asyncio.create_task(second.begin(asked("c?", after="a", response_id="c")))
        await waits(migrated_database)
    await late
    assert [await chain_of(second, name) for name in "bc"] == [["a", "b"], ["a", "c"]]


async def test_a_response_that_is_deleted_while_another_begins_to_follow_it(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    first, second = replicas
    await tell_chain(first, "a")
    async with before_commit(first, begins(asked("b?", after="a", response_id="b"))):
        deleting = asyncio.create_task(second.delete(ME, "a"))
        await waits(migrated_database)
    assert await deleting
    assert await second.get(ME, "a") is None
    assert await chain_of(second, "b") == ["a", "b"]


async def test_a_response_that_begins_to_follow_one_that_is_being_deleted(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    first, second = replicas
    await tell_chain(first, "a")
    async with before_commit(
        first, lambda connection: delete_response(connection, {"tenant": "acme", "owner": "ann", "id": "a", "now": 1})
    ):
        late = asyncio.create_task(second.begin(asked("b?", after="a", response_id="b")))
        await waits(migrated_database)
    with pytest.raises(ResponseNotFound):
        await late


async def test_what_two_add_to_a_conversation_at_once_stays_together(
    replicas: tuple[PostgresStore, PostgresStore],
) -> None:
    told = await open_conversation(replicas[0], "0")
    adding = [store.add_entries(ME, told.id, entries(f"{n}a", f"{n}b")) for n in range(20) for store in replicas]
    await asyncio.gather(*adding)
    found = await said_in(replicas[0], told.id)
    assert (found[0], len(found)) == ("0", 81)
    assert all(one[:-1] == two[:-1] for one, two in zip(found[1::2], found[2::2], strict=True))


async def test_an_outcome_is_written_once(replicas: tuple[PostgresStore, PostgresStore]) -> None:
    new = asked("hello")
    await replicas[0].begin(new)
    ends = [store.finish(ME, ended(new, message(name)), STOPPED) for store, name in zip(replicas, "ab", strict=True)]
    outcomes = await asyncio.gather(*ends, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {IllegalTransition, type(None)}


async def test_many_at_once_on_two_replicas_all_land(replicas: tuple[PostgresStore, PostgresStore]) -> None:
    await tell_chain(replicas[0], "root")

    async def follow(number: int) -> None:
        await tell(replicas[number % 2], f"{number}?", message("!"), after="root", response_id=f"r{number}")

    await asyncio.gather(*map(follow, range(100)))
    assert [await chain_of(replicas[0], f"r{number}") for number in range(100)] == [
        ["root", f"r{number}"] for number in range(100)
    ]


# ---- what a process leaves ----


def made_by(worker: str | None, response_id: str) -> NewResponse:
    return struct_replace(asked("hello", response_id=response_id), worker=worker)


async def test_who_starts_ends_only_what_the_dead_have_left(
    replicas: tuple[PostgresStore, PostgresStore], migrated_database: str
) -> None:
    store = replicas[0]
    for name, worker in (("alive", "w1"), ("expired", "w2"), ("unknown", "w3"), ("nobody's", None)):
        await store.begin(made_by(worker, name))
    await store.begin(asked("hello", response_id="durable", status="queued"))
    with psycopg.connect(migrated_database) as connection:
        connection.execute(
            "INSERT INTO workers (name, expires_at) VALUES ('w1', extract(epoch FROM now()) + 60), ('w2', 1)"
        )
        connection.execute(
            "INSERT INTO runs (response_key, tenant, owner, id, identity, queued_at, is_cancelled) "
            "SELECT key, tenant, owner, id, '', 1, false FROM responses WHERE id = 'durable'"
        )
    assert await replicas[1].fail_running("The server stopped.") == 3
    found = {name: await store.get(ME, name) for name in ("alive", "durable", "expired", "unknown", "nobody's")}
    assert [response.status for response in found.values() if response is not None] == [
        "in_progress",
        "queued",
        *["failed"] * 3,
    ]


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncGenerator[SqlStore, None]:
    if request.param == "sqlite":
        store: SqlStore = await SqliteStore.open(request.getfixturevalue("path"))
    else:
        store = await PostgresStore.open(request.getfixturevalue("migrated_database"))
    yield store
    await store.close()


def read_log(connection: Connection, key: int) -> list[bytes]:
    """Its pieces: the first stands with the log, and the others behind it."""
    rows = connection.execute("SELECT log FROM run_logs WHERE response_key = ?", (key,)).fetchall()
    rows += connection.execute("SELECT events FROM run_events WHERE response_key = ? ORDER BY at", (key,)).fetchall()
    return [zlib.decompress(raw) for (raw,) in rows]


async def test_the_log_goes_with_the_response(store: SqlStore) -> None:
    packed = [b"all that was said " * 100, b"and more"]
    log = [LogPiece(first=0, next=3, data=packed[0]), LogPiece(first=3, next=5, data=packed[1])]
    await tell_chain(store, "a")
    new = asked("b?", after="a", response_id="b")
    await store.begin(new)
    await store.finish(ME, ended(new, message("b!")), STOPPED, log=log)
    await tell(store, "c?", after="b", response_id="c")

    def logs(connection: Connection) -> list[tuple[str, list[bytes], int]]:
        rows = connection.execute(
            "SELECT id, key, length(log) FROM run_logs JOIN responses ON responses.key = run_logs.response_key"
        ).fetchall()
        return [(response_id, read_log(connection, key), size) for response_id, key, size in rows]

    def pieces(connection: Connection) -> list[object]:
        return connection.execute("SELECT at FROM run_events").fetchall()

    [(response_id, found, size)] = await store.database.read(logs)
    assert (response_id, found) == ("b", packed)
    assert size < len(packed[0]) / 2
    assert await store.delete(ME, "b")
    assert await store.database.read(logs) == []
    assert await store.database.read(pieces) == []
    assert await chain_of(store, "c") == ["a", "b", "c"]


async def test_a_large_log_is_compressed_before_the_writer_has_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = asked("hello")
    await store.begin(new)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def compress(log: bytes, level: int) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(done.set)
        return compressed(log, level)

    compressed = zlib.compress
    monkeypatch.setattr(zlib, "compress", compress)
    async with held(store.database):
        log = [LogPiece(first=0, next=1, data=b"all that was said " * 10_000)]
        finishing = asyncio.create_task(store.finish(ME, ended(new), STOPPED, log=log))
        await done.wait()
    await finishing


async def test_a_log_of_an_outcome_that_was_not_written_is_not_kept(store: SqlStore) -> None:
    new = asked("hello")
    await store.begin(new)
    await store.finish(ME, ended(new), STOPPED, log=[LogPiece(first=0, next=1, data=b"first")])
    with pytest.raises(IllegalTransition):
        await store.finish(ME, ended(new), STOPPED, log=[LogPiece(first=0, next=1, data=b"second")])

    def log(connection: Connection) -> list[bytes]:
        (key,) = connection.execute("SELECT response_key FROM run_logs").fetchone()
        return read_log(connection, key)

    assert await store.database.read(log) == [b"first"]
