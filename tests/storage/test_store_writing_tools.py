"""Tools that servers have listed as writing: nothing that a server does makes a store forget its own."""

from __future__ import annotations

import asyncio

from antwort.storage.base import (
    SEEN_AGAIN_SECONDS,
    WRITING_TOOLS_PER_SERVER,
    WRITING_TOOLS_PER_TENANT,
    ResponseStore,
)

NOW = 1_700_000_000
SERVERS = WRITING_TOOLS_PER_TENANT // WRITING_TOOLS_PER_SERVER
"""With all the tools that they may have, these are all that a tenant may have."""


def names(count: int, prefix: str = "tool") -> frozenset[str]:
    return frozenset(f"{prefix}_{number}" for number in range(count))


async def test_what_was_noted_once_is_found_with_each_later_list(store: ResponseStore) -> None:
    assert await store.note_writing_tools("acme", "s1", ["wipe", "format €"], NOW) == frozenset({"wipe", "format €"})
    assert await store.note_writing_tools("acme", "s1", [], NOW) == frozenset({"wipe", "format €"})
    more = await store.note_writing_tools("acme", "s1", ["wipe", "ship"], NOW)
    assert more == frozenset({"wipe", "format €", "ship"})


async def test_nothing_is_known_of_a_server_that_only_reads(store: ResponseStore) -> None:
    assert await store.note_writing_tools("acme", "s1", [], NOW) == frozenset()


async def test_tenants_and_servers_are_told_apart(store: ResponseStore) -> None:
    await store.note_writing_tools("acme", "s1", ["wipe"], NOW)
    assert await store.note_writing_tools("acme", "s2", [], NOW) == frozenset()
    assert await store.note_writing_tools("other", "s1", [], NOW) == frozenset()
    assert await store.note_writing_tools("", "s1", [], NOW) == frozenset()


async def test_a_server_with_too_many_names_has_only_writing_tools_from_then_on(store: ResponseStore) -> None:
    assert await store.note_writing_tools("acme", "s1", names(WRITING_TOOLS_PER_SERVER), NOW) is not None
    assert await store.note_writing_tools("acme", "s1", ["one_more"], NOW) is None
    assert await store.note_writing_tools("acme", "s1", [], NOW) is None
    assert await store.note_writing_tools("acme", "s2", names(WRITING_TOOLS_PER_SERVER + 1), NOW) is None
    assert await store.note_writing_tools("acme", "s2", [], NOW) is None


async def test_beyond_what_a_tenant_may_have_the_servers_listed_least_recently_are_forgotten(
    store: ResponseStore,
) -> None:
    some = names(WRITING_TOOLS_PER_SERVER)
    await store.note_writing_tools("acme", "first", some, NOW)
    await store.note_writing_tools("acme", "second", some, NOW + 1)
    await store.note_writing_tools("other", "first", some, NOW)
    for number in range(2, SERVERS):
        await store.note_writing_tools("acme", f"server {number}", some, NOW + 2)
    later = NOW + SEEN_AGAIN_SECONDS
    assert await store.note_writing_tools("acme", "first", [], later) == some  # it is in use
    await store.note_writing_tools("acme", "one more", ["wipe"], later)
    assert await store.note_writing_tools("acme", "second", [], later) == frozenset()
    assert await store.note_writing_tools("acme", "first", [], later) == some
    assert await store.note_writing_tools("other", "first", [], later) == some


async def test_a_server_does_not_push_out_its_own(store: ResponseStore) -> None:
    for number in range(SERVERS):
        await store.note_writing_tools("acme", f"server {number}", names(WRITING_TOOLS_PER_SERVER), NOW + 1)
    await store.note_writing_tools("acme", "s1", ["wipe"], NOW)
    await store.note_writing_tools("acme", "s1", names(WRITING_TOOLS_PER_SERVER - 1), NOW)
    all_of_them = names(WRITING_TOOLS_PER_SERVER - 1) | {"wipe"}
    assert await store.note_writing_tools("acme", "s1", [], NOW) == all_of_them


async def test_those_who_note_at_once_lose_nothing(store: ResponseStore) -> None:
    lists = [names(20, f"t{number % 3}") for number in range(8)]
    await asyncio.gather(*(store.note_writing_tools("acme", "s1", each, NOW) for each in lists))
    found = await store.note_writing_tools("acme", "s1", [], NOW)
    assert found == frozenset().union(*lists)
