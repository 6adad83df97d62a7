"""What only a store in a file shows: its rows, its queries, what a restart finds."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from antwort.api.events import CallEnded, Mark, TurnEnded
from antwort.api.responses import Usage
from antwort.api.wire import to_plain
from antwort.errors import InvalidField, StoreFault
from antwort.storage.base import Page
from antwort.storage.sqlite import SqliteStore
from database_kit import query_plans, trace
from storage_cases import ME, STOPPED, asked, chain_of, ended, message, said, tell, tell_chain


def rows(path: Path, query: str) -> list[tuple[str | int | bytes | None, ...]]:
    """What another program would read from the file now."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


async def test_a_restart_keeps_everything(path: Path) -> None:
    store = await SqliteStore.open(path)
    await tell_chain(store, "a", "b", "c")
    await tell_chain(store, "b2", after="a")
    await store.begin(asked([{"role": "user", "content": "hi", "id": "msg_q"}], after="c", response_id="running"))
    await store.delete(ME, "b")
    before = [await store.chain(ME, name) for name in ("c", "b2", "running")]
    await store.close()
    store = await SqliteStore.open(path)
    assert [await store.chain(ME, name) for name in ("c", "b2", "running")] == before
    assert said(before[0]) == ["a?", "a!", "b?", "b!", "c?", "c!"]
    assert await store.get(ME, "b") is None
    assert set(await store.items(ME, ["msg_q"])) == {"msg_q"}
    await store.close()


@pytest.mark.proves("MISTAKE-02")
async def test_what_is_awaited_is_committed(sqlite: SqliteStore, path: Path) -> None:
    new = asked("hello")
    query = "SELECT tenant, owner, id, status FROM responses"
    await sqlite.begin(new)
    assert rows(path, query) == [("acme", "ann", new.response.id, "in_progress")]
    await sqlite.finish(ME, ended(new), STOPPED)
    assert rows(path, query) == [("acme", "ann", new.response.id, "completed")]


KILLED = """
import asyncio, os, sys
from pathlib import Path
from antwort.storage.sqlite import SqliteStore
from storage_cases import asked

async def main() -> None:
    store = await SqliteStore.open(Path(sys.argv[1]))
    await store.begin(asked("hello", response_id="left"))
    os._exit(9)

asyncio.run(main())
"""


@pytest.mark.proves("RULING-15")
async def test_what_a_killed_process_left_running_is_failed_at_the_next_start(path: Path) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(path), env={"PYTHONPATH": str(Path(__file__).parents[1])}
    )
    assert await killed.wait() == 9
    store = await SqliteStore.open(path)
    assert await store.fail_running("The server stopped.") == 1
    found = await store.get(ME, "left")
    assert found is not None
    assert found.status == "failed"
    await store.close()


async def test_what_came_in_is_kept_to_the_byte(sqlite: SqliteStore, path: Path) -> None:
    new = asked("hello")
    raw = b'{ "role":"user","content" : "hello", "x_unknown": 1.50, "x_null": null }'
    request = b'{ "input": [%s],\n "model": "m" }' % raw
    await sqlite.begin(msgspec.structs.replace(new, raw_input=(raw,), request=request))
    assert rows(path, "SELECT raw, type, direction, position FROM items") == [(raw, "message", "input", 0)]
    assert rows(path, "SELECT request FROM responses") == [(request,)]
    page = await sqlite.input_items(ME, new.response.id, Page())
    assert page is not None
    (item,) = page.items
    assert to_plain(item) == {**to_plain(new.input[0]), "x_unknown": 1.5, "x_null": None}


async def test_both_kinds_of_mark_are_kept_in_their_order(sqlite: SqliteStore, path: Path) -> None:
    marks: list[tuple[int, Mark]] = [
        (2, TurnEnded(finish="tool_calls", usage=Usage(input_tokens=7))),
        (2, CallEnded(call_id="call_1", outcome="ran")),
        (3, CallEnded(call_id="call_2", outcome="over_limit")),
        (4, TurnEnded(finish="stop")),
    ]
    new = asked("hello")
    await sqlite.begin(new)
    await sqlite.finish(ME, ended(new), marks)
    found = rows(path, "SELECT items_end, mark, kind FROM turns ORDER BY number")
    decoder: msgspec.json.Decoder[Mark] = msgspec.json.Decoder(Mark)
    assert [(end, decoder.decode(mark)) for end, mark, _ in found if isinstance(mark, bytes)] == marks
    assert [kind for _, _, kind in found] == ["turn", "call", "call", "turn"]


async def test_rows_know_what_later_issues_will_ask_of_them(sqlite: SqliteStore, path: Path) -> None:
    await tell(sqlite, "hello", message("hi"))
    columns = (
        "status, background, attempt, fence, created_at, completed_at, expires_at, conversation_id, schema_version"
    )
    [row] = rows(path, f"SELECT {columns} FROM responses")
    assert row == ("completed", 0, 1, 0, 1_700_000_000, 1_700_000_005, None, None, 1)


# ---- threads ----


async def test_a_thread_goes_on_until_a_branch_starts_its_own(sqlite: SqliteStore, path: Path) -> None:
    await tell_chain(sqlite, "a", "b", "c")
    await tell_chain(sqlite, "b2", "b3", after="a")
    threads = rows(path, "SELECT t.id, r.id, r.depth FROM responses r JOIN responses t ON t.key = r.thread_key")
    assert sorted(threads, key=str) == [("a", "a", 0), ("a", "b", 1), ("a", "c", 2), ("b2", "b2", 1), ("b2", "b3", 2)]


async def queries_for(store: SqliteStore, response_id: str) -> tuple[list[str], list[str]]:
    """The ids of a chain, and the queries that loaded it."""
    seen: list[str] = []
    await trace(store.database, seen.append)
    ids = await chain_of(store, response_id)
    await trace(store.database, None)
    return ids, [query for query in seen if "SELECT" in query]


async def test_a_chain_of_a_thousand_with_its_branches_takes_four_queries(sqlite: SqliteStore) -> None:
    names = [f"r{number}" for number in range(1000)]
    await tell_chain(sqlite, *names)
    fork = names[-1]
    for number in range(20):  # each from the middle of the one before: a thread of its own
        await tell_chain(sqlite, f"x{number}", f"y{number}", after=fork)
        fork = f"x{number}"
        await tell_chain(sqlite, f"z{number}", after=fork)
    ids, queries = await queries_for(sqlite, "z19")
    assert (len(ids), len(queries)) == (1021, 4)
    ids, queries = await queries_for(sqlite, "r0")
    assert (len(ids), len(queries)) == (1, 4)


@pytest.mark.proves("EN-015")
@pytest.mark.parametrize(("first", "back_to"), [("a", "a"), ("a", "c"), ("a", "y"), ("x", "y")])
async def test_a_chain_that_comes_back_to_itself_is_refused(sqlite: SqliteStore, first: str, back_to: str) -> None:
    await tell_chain(sqlite, "a", "b", "c")
    await tell_chain(sqlite, "x", "y", after="a")
    bend = "UPDATE responses SET parent_key = (SELECT key FROM responses WHERE id = ?) WHERE id = ?"
    await sqlite.database.write(lambda connection: connection.execute(bend, (back_to, first)))
    with pytest.raises(InvalidField) as caught:
        await sqlite.chain(ME, "y")
    assert (caught.value.status, caught.value.param) == (400, "previous_response_id")


async def test_hidden_rows_are_purged_with_all_that_hangs_on_them(sqlite: SqliteStore, path: Path) -> None:
    await tell_chain(sqlite, "a", "b", "c")
    for name in ("b", "a", "c"):
        await sqlite.delete(ME, name)
    for table in ("responses", "items", "turns"):
        assert rows(path, f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.parametrize("page", [Page(), Page(order="asc", after="a"), Page(before="b")])
async def test_a_page_of_the_input_is_read_from_its_place_in_the_index(sqlite: SqliteStore, page: Page) -> None:
    new = asked([{"role": "user", "content": name, "id": name} for name in "abc"])
    await sqlite.begin(new)
    plans = await query_plans(sqlite.database, sqlite.input_items(ME, new.response.id, page))
    assert "ix_items_place (response_key=? AND direction=?" in plans[-1]
    assert not [plan for plan in plans if "TEMP B-TREE" in plan or "SCAN" in plan]


# ---- faults ----


@pytest.mark.parametrize("value", [b"{", b'{"id": "\xff"}', 7])
@pytest.mark.parametrize("column", ["responses SET body", "items SET raw"])
async def test_a_damaged_record_is_a_fault_and_not_a_crash(
    sqlite: SqliteStore, column: str, value: bytes | int
) -> None:
    response = await tell(sqlite, "hello", message("hi", "msg_a"))
    await sqlite.database.write(lambda connection: connection.execute(f"UPDATE {column} = ?", (value,)))
    with pytest.raises(StoreFault, match="cannot be read"):
        await sqlite.get(ME, response.id)
    with pytest.raises(StoreFault, match="cannot be read"):
        await sqlite.chain(ME, response.id)


@pytest.mark.parametrize(
    "body", [b"{", b'{"id": "\xff"}', b"[]", b"", msgspec.json.encode(ended(asked("x"))), "text", 7]
)
async def test_a_damaged_record_of_a_dead_process_does_not_keep_the_others_from_being_failed(
    sqlite: SqliteStore, path: Path, body: bytes | str | int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "damaged", "b"):
        await sqlite.begin(asked("hello", response_id=name))
    harm = "UPDATE responses SET body = ? WHERE id = 'damaged'"
    await sqlite.database.write(lambda connection: connection.execute(harm, (body,)))
    assert await sqlite.fail_running("The server stopped.") == 3
    assert rows(path, "SELECT DISTINCT status FROM responses") == [("failed",)]
    for name in ("a", "b"):
        found = await sqlite.get(ME, name)
        assert found is not None
        assert found.status == "failed"
    assert [record.getMessage() for record in caplog.records] == [
        "the record of damaged, left running, is damaged: only its status could be set"
    ]
    assert await sqlite.fail_running("The server stopped.") == 0


async def test_a_full_disk_is_never_a_false_success(sqlite: SqliteStore) -> None:
    await tell(sqlite, "hello")
    new = asked("the question")
    await sqlite.begin(new)
    await sqlite.database.write(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchall())
    long = ended(new, message("x" * 500_000, "msg_long"))
    with pytest.raises(StoreFault, match="no room left"):
        await sqlite.finish(ME, long, STOPPED)
    assert await sqlite.get(ME, new.response.id) == new.response
    await sqlite.database.write(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchall())
    await sqlite.finish(ME, long, STOPPED)
    assert await sqlite.get(ME, new.response.id) == long


def remove(path: Path) -> None:
    path.unlink()


def replace_by_copy(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))
    shutil.copy(path.with_name("elsewhere.db"), path)


def remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def replace_log(path: Path) -> None:
    replace_by_copy(path.with_name(f"{path.name}-wal"))


@pytest.mark.parametrize("take_away", [remove, replace_by_copy, remove_log, replace_log])
async def test_a_file_that_is_gone_is_never_a_false_success(
    sqlite: SqliteStore, path: Path, take_away: Callable[[Path], None]
) -> None:
    new = asked("hello")
    await sqlite.begin(new)
    take_away(path)
    for attempt in (
        sqlite.finish(ME, ended(new), STOPPED),
        sqlite.begin(asked("again")),
        sqlite.get(ME, new.response.id),
        sqlite.check(),
    ):
        with pytest.raises(StoreFault, match="gone or was replaced") as caught:
            await attempt
        assert str(path.parent) not in caught.value.message


async def test_a_store_that_cannot_write_fails_its_check(sqlite: SqliteStore) -> None:
    await sqlite.database.write(lambda connection: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreFault, match="may not be written"):
        await sqlite.check()


def test_the_store_opens_without_the_slow_imports(path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from antwort.storage.sqlite import SqliteStore\n"
        "async def main():\n"
        "    await (await SqliteStore.open(pathlib.Path(sys.argv[1]))).close()\n"
        "asyncio.run(main())\n"
        "print([name for name in ('alembic', 'sqlalchemy') if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
