"""What only the store in memory does: it forgets."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from antwort.storage.database import Connection
from antwort.storage.memory import MemoryStore
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


async def kept(store: MemoryStore, *names: str) -> list[str]:
    return [name for name in names if await store.get(ME, name) is not None]


async def test_beyond_its_bound_the_oldest_finished_response_goes() -> None:
    store = MemoryStore(max_responses=2)
    for name in ("a", "b", "c"):
        await tell(store, name, message(name, f"msg_{name}"), response_id=name)
    assert await kept(store, "a", "b", "c") == ["b", "c"]
    assert set(await store.items(ME, ["msg_a", "msg_b", "msg_c"])) == {"msg_b", "msg_c"}


async def test_a_running_response_is_never_driven_out() -> None:
    store = MemoryStore(max_responses=1)
    running = asked("a", response_id="a")
    await store.begin(running)
    await tell(store, "b", response_id="b")
    await tell(store, "c", response_id="c")
    assert await kept(store, "a", "b", "c") == ["a", "c"]
    await store.finish(ME, ended(running), STOPPED)
    await tell(store, "d", response_id="d")
    assert await kept(store, "a", "c", "d") == ["d"]


async def test_a_chain_goes_from_its_end() -> None:
    store = MemoryStore(max_responses=3)
    await tell_chain(store, "a", "b", "c")
    await tell(store, "x", response_id="x")
    assert await chain_of(store, "b") == ["a", "b"]
    await tell(store, "y", response_id="y")
    assert await kept(store, "a", "b", "c", "x", "y") == ["a", "x", "y"]


async def test_what_is_left_of_an_old_chain_goes_before_what_is_newer() -> None:
    store = MemoryStore(max_responses=4)
    await tell_chain(store, "a", "b")
    for name in ("w", "x", "y", "z"):
        await tell(store, name, response_id=name)
    assert await kept(store, "a", "b", "w", "x", "y", "z") == ["w", "x", "y", "z"]


async def test_the_parent_of_a_new_response_is_not_driven_out_by_it() -> None:
    store = MemoryStore(max_responses=2)
    await tell_chain(store, "a", "b", "c")
    assert await chain_of(store, "c") == ["a", "b", "c"]


async def test_a_full_store_drops_one_chain_before_it_touches_the_next() -> None:
    store = MemoryStore(max_responses=1000)
    names = [f"{client}_{turn}" for turn in range(105) for client in range(10)]
    for name in names:
        client, turn = map(int, name.split("_"))
        after = f"{client}_{turn - 1}" if turn else None
        if after is None or await kept(store, after):
            await tell(store, name, message(name), after=after, response_id=name)
    ends = [f"{client}_104" for client in range(10)]
    assert len(await kept(store, *ends)) == 9
    assert len(await kept(store, *names)) <= 1010


async def test_hidden_responses_go_with_the_last_that_follows_them() -> None:
    store = MemoryStore(max_responses=3)
    await tell_chain(store, "a", "b")
    await store.delete(ME, "a")
    await tell(store, "x", response_id="x")
    await tell(store, "y", response_id="y")
    assert await kept(store, "b", "x", "y") == ["x", "y"]
    await tell(store, "z", response_id="z")
    assert await kept(store, "x", "y", "z") == ["x", "y", "z"]


async def test_what_was_failed_at_the_start_can_be_driven_out() -> None:
    store = MemoryStore(max_responses=1)
    await store.begin(asked("a", response_id="a"))
    await store.fail_running("gone")
    await tell(store, "b", response_id="b")
    assert await kept(store, "a", "b") == ["b"]


async def test_an_operation_that_a_signal_interrupts_leaves_nothing() -> None:
    store = MemoryStore()
    await tell(store, "a", response_id="a")

    def interrupted(connection: Connection) -> None:
        connection.execute("DELETE FROM responses")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await store.database.write(interrupted)
    await tell(store, "b", response_id="b")
    assert await kept(store, "a", "b") == ["a", "b"]


def test_threads_that_use_a_new_store_at_once_share_it() -> None:
    store, barrier = MemoryStore(), Barrier(8)

    def begin(name: str) -> None:
        barrier.wait()
        asyncio.run(store.begin(asked(name, response_id=name)))

    with ThreadPoolExecutor(8) as threads:
        names = [f"resp_{number}" for number in range(8)]
        assert len([*threads.map(begin, names)]) == len(names)
    assert asyncio.run(kept(store, *names)) == names


# ---- conversations ----


async def left(store: MemoryStore, *names: str) -> list[str]:
    return [name for name in names if await store.conversation(ME, name) is not None]


async def test_beyond_its_bound_the_conversation_that_was_added_to_longest_ago_goes() -> None:
    store = MemoryStore(max_entries=6)
    for name in ("a", "b", "c"):  # each counts, and so does its item
        await open_conversation(store, {"role": "user", "content": name, "id": name}, conversation_id=name)
    await store.add_entries(ME, "a", entries("more"))
    assert await left(store, "a", "b", "c") == ["a", "c"]
    assert set(await store.items(ME, ["a", "b", "c"])) == {"a", "c"}


async def test_a_conversation_that_is_added_to_stays_however_long_it_is() -> None:
    store = MemoryStore(max_entries=3)
    await open_conversation(store, "other", conversation_id="other")
    await open_conversation(store, conversation_id="long")
    for number in range(10):
        await store.add_entries(ME, "long", entries(str(number)))
    assert await left(store, "other", "long") == ["long"]
    assert await said_in(store, "long") == [str(number) for number in range(10)]


async def test_what_was_taken_out_makes_room() -> None:
    store = MemoryStore(max_entries=4)
    await open_conversation(store, {"role": "user", "content": "a", "id": "a"}, conversation_id="first")
    await open_conversation(store, {"role": "user", "content": "b", "id": "b"}, conversation_id="second")
    await store.delete_entry(ME, "first", "a")
    await store.add_entries(ME, "second", entries("c"))
    assert await left(store, "first", "second") == ["first", "second"]
    await store.delete_conversation(ME, "first")
    await open_conversation(store, conversation_id="third")
    assert await left(store, "second", "third") == ["second", "third"]
