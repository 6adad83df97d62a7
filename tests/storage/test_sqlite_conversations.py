"""What only conversations in a file show: their rows, their queries, what a restart finds."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Literal

import pytest

from antwort.errors import StoreFault
from antwort.storage.base import ITEM_BYTES, Bound, Entry, Page
from antwort.storage.sqlite import SqliteStore
from database_kit import query_plans, trace
from storage_cases import ME, answer, entries, message, open_conversation, said_in


def rows(path: Path, query: str) -> list[tuple[str | int | bytes | None, ...]]:
    """What another program would read from the file now."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


async def test_a_restart_keeps_everything(path: Path) -> None:
    store = await SqliteStore.open(path)
    conversation = await open_conversation(store, "Hello")
    await store.add_entries(ME, conversation.id, [*entries("How are you?"), *answer(message("Fine."))])
    before = await store.said(ME, conversation.id)
    await store.close()
    store = await SqliteStore.open(path)
    assert await store.conversation(ME, conversation.id) == conversation
    assert await store.said(ME, conversation.id) == before
    await store.close()


async def test_what_came_in_is_kept_to_the_byte(sqlite: SqliteStore, path: Path) -> None:
    raw = b'{ "role":"user","content" : "hello", "x_unknown": 1.50, "x_null": null }'
    [entry] = entries("hello")
    conversation = await open_conversation(sqlite)
    await sqlite.add_entries(ME, conversation.id, [Entry(item=entry.item, raw=raw)])
    query = "SELECT tenant, owner, id, direction, position, type, raw FROM conversation_items"
    assert rows(path, query) == [("acme", "ann", entry.item.id, "input", 0, "message", raw)]
    assert await sqlite.said(ME, conversation.id) == (entry.item,)


async def test_the_items_of_a_deleted_conversation_leave_the_file(sqlite: SqliteStore, path: Path) -> None:
    gone, left = await open_conversation(sqlite, "a", "b"), await open_conversation(sqlite, "c")
    await sqlite.delete_conversation(ME, gone.id)
    assert rows(path, "SELECT count(*) FROM conversation_items") == [(1,)]
    assert rows(path, "SELECT id FROM conversations") == [(left.id,)]


KILLED = """
import asyncio, os, sys
from pathlib import Path
from typing import Literal
from antwort.api.responses import ConversationRef
from antwort.api.wire import replace
from antwort.storage.sqlite import SqliteStore
from storage_cases import ME, STOPPED, answer, asked, ended, entries, message, open_conversation

async def main() -> None:
    store = await SqliteStore.open(Path(sys.argv[1]))
    await open_conversation(store, "Hello", conversation_id="conv_1")
    new = asked("How are you?", response_id="resp_1")
    response = replace(new.response, conversation=ConversationRef(id="conv_1"))
    await store.begin(replace(new, response=response))
    said = [*entries("How are you?"), *answer(message("Fine."))]
    finished = replace(ended(new, message("Fine.")), conversation=response.conversation)
    await store.finish(ME, finished, STOPPED, said)
    os._exit(9)

asyncio.run(main())
"""


async def test_a_turn_that_was_acknowledged_outlives_a_killed_process(path: Path) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(path), env={"PYTHONPATH": str(Path(__file__).parents[1])}
    )
    assert await killed.wait() == 9
    store = await SqliteStore.open(path)
    assert await said_in(store, "conv_1") == ["Hello", "How are you?", "Fine."]
    found = await store.get(ME, "resp_1")
    assert found is not None
    assert found.status == "completed"
    await store.close()


async def test_ten_thousand_items_are_read_in_pieces_of_bytes_and_not_one_by_one(sqlite: SqliteStore) -> None:
    conversation = await open_conversation(sqlite)
    for start in range(0, 10_000, 1000):
        await sqlite.add_entries(ME, conversation.id, entries(*map(str, range(start, start + 1000))))
    asked: list[str] = []
    await trace(sqlite.database, asked.append)
    assert await said_in(sqlite, conversation.id) == [str(number) for number in range(10_000)]
    assert sum("SELECT" in statement for statement in asked) <= 8


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_is_read_from_its_place_in_the_index(sqlite: SqliteStore, order: Literal["asc", "desc"]) -> None:
    conversation = await open_conversation(sqlite, *named("a", "b"))
    page = Page(order=order, after="a" if order == "asc" else "b")
    plans = await query_plans(sqlite.database, sqlite.conversation_items(ME, conversation.id, page))
    sign = ">" if order == "asc" else "<"
    assert f"ix_conversation_items_place (conversation_key=? AND position{sign}?)" in plans[-1]
    assert "TEMP B-TREE" not in plans[-1]


def named(*names: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": name, "id": name} for name in names]


async def test_nothing_is_found_by_looking_through_a_table(sqlite: SqliteStore) -> None:
    async def use() -> None:
        conversation = await open_conversation(sqlite, *named("a", "b", "c"))
        await sqlite.conversation(ME, conversation.id)
        await sqlite.describe_conversation(ME, conversation.id, {"topic": "new"})
        await sqlite.add_entries(ME, conversation.id, entries("d"))
        await sqlite.said(ME, conversation.id)
        await sqlite.said(ME, conversation.id, Bound(most=ITEM_BYTES * 2, cut="oldest"))
        await sqlite.conversation_item(ME, conversation.id, "a")
        await sqlite.conversation_items(ME, conversation.id, Page(after="a"))
        await sqlite.delete_entry(ME, conversation.id, "a")
        await sqlite.delete_conversation(ME, conversation.id)

    plans = await query_plans(sqlite.database, use())
    assert len(plans) > 20
    steps = [step for plan in plans for step in plan.splitlines()]
    assert not [step for step in steps if step.startswith("SCAN ") and "CONSTANT ROW" not in step]


@pytest.mark.parametrize("damage", ["raw = '{'", "raw = '{}'", "raw = '{}', direction = 'output'", "raw = x'ff'"])
async def test_an_item_that_is_damaged_is_told_and_can_be_taken_out(
    sqlite: SqliteStore, path: Path, damage: str
) -> None:
    conversation = await open_conversation(sqlite, *named("good", "bad"))
    change(path, f"UPDATE conversation_items SET {damage} WHERE id = 'bad'")
    with pytest.raises(StoreFault, match="cannot be read"):
        await sqlite.said(ME, conversation.id)
    with pytest.raises(StoreFault, match="cannot be read"):
        await sqlite.conversation_items(ME, conversation.id, Page())
    assert await sqlite.delete_entry(ME, conversation.id, "bad")
    assert await said_in(sqlite, conversation.id) == ["good"]


async def test_metadata_that_is_damaged_is_told_and_can_be_replaced(sqlite: SqliteStore, path: Path) -> None:
    conversation = await open_conversation(sqlite)
    change(path, "UPDATE conversations SET metadata = 'no JSON'")
    with pytest.raises(StoreFault, match="cannot be read"):
        await sqlite.conversation(ME, conversation.id)
    described = await sqlite.describe_conversation(ME, conversation.id, {"topic": "new"})
    assert described is not None
    assert described.metadata == {"topic": "new"}
