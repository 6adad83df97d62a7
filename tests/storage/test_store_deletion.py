"""What is deleted is hidden from everything but the chains of its descendants."""

from __future__ import annotations

import pytest

from antwort.errors import ResponseNotFound
from antwort.storage.base import Page, ResponseStore
from storage_cases import ME, STOPPED, asked, chain_of, ended, message, said, tell, tell_chain


@pytest.mark.proves("RULING-6")
async def test_deleting_in_the_middle_keeps_the_items_for_the_descendants(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c")
    before = await store.chain(ME, "c")
    assert await store.delete(ME, "b")
    assert await store.delete(ME, "a")
    assert await store.chain(ME, "c") == before
    assert said(before) == ["a?", "a!", "b?", "b!", "c?", "c!"]


@pytest.mark.proves("RULING-6")
@pytest.mark.parametrize("has_descendants", [False, True])
async def test_a_deleted_response_is_not_found(store: ResponseStore, has_descendants: bool) -> None:
    question = [{"role": "user", "content": "hi", "id": "msg_q"}]
    await tell(store, question, message("yes", "msg_a"), response_id="a")
    if has_descendants:
        await tell_chain(store, "b", after="a")
    assert await store.delete(ME, "a")
    assert await store.get(ME, "a") is None
    assert await store.chain(ME, "a") == ()
    assert await store.input_items(ME, "a", Page()) is None
    assert await store.items(ME, ["msg_q", "msg_a"]) == {}
    assert not await store.delete(ME, "a")
    with pytest.raises(ResponseNotFound):
        await store.begin(asked("and?", after="a"))


async def test_an_item_that_stands_elsewhere_too_is_still_found(store: ResponseStore) -> None:
    shared = [{"role": "user", "content": "hi", "id": "msg_shared"}]
    await tell(store, shared, response_id="old")
    await tell(store, shared, response_id="new")
    await tell_chain(store, "child", after="new")
    await store.delete(ME, "new")
    assert set(await store.items(ME, ["msg_shared"])) == {"msg_shared"}
    await store.delete(ME, "old")
    assert await store.items(ME, ["msg_shared"]) == {}


async def test_a_response_deleted_while_it_ran_stays_deleted(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    assert await store.delete(ME, new.response.id)
    with pytest.raises(ResponseNotFound):
        await store.finish(ME, ended(new, message("late", "msg_late")), STOPPED)
    assert await store.get(ME, new.response.id) is None
    assert await store.items(ME, ["msg_late"]) == {}


async def test_a_response_hidden_while_it_ran_stays_hidden(store: ResponseStore) -> None:
    new = asked("hello", response_id="a")
    await store.begin(new)
    await tell_chain(store, "b", after="a")
    await store.delete(ME, "a")
    with pytest.raises(ResponseNotFound):
        await store.finish(ME, ended(new, message("late")), STOPPED)
    assert await chain_of(store, "b") == ["a", "b"]


async def test_the_end_of_a_chain_can_be_deleted_and_told_anew(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c")
    await store.delete(ME, "c")
    await tell_chain(store, "c2", after="b")
    assert await chain_of(store, "c2") == ["a", "b", "c2"]


async def test_an_id_is_free_again_when_its_last_descendant_is_gone(store: ResponseStore) -> None:
    """The hidden rows themselves go, which nothing else in the contract could show."""
    await tell_chain(store, "a", "b", "c")
    await store.delete(ME, "a")
    await store.delete(ME, "b")
    await store.delete(ME, "c")
    await tell_chain(store, "a", "b")
    assert await chain_of(store, "b") == ["a", "b"]


async def test_a_hidden_response_stays_while_one_of_its_branches_is_there(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c")
    await tell_chain(store, "b2", after="a")
    await store.delete(ME, "a")
    await store.delete(ME, "b")
    await store.delete(ME, "c")
    assert await chain_of(store, "b2") == ["a", "b2"]


async def test_a_thousand_hidden_responses_go_with_the_last_one(store: ResponseStore) -> None:
    names = [f"r{number}" for number in range(1000)]
    await tell_chain(store, *names)
    for name in names:
        assert await store.delete(ME, name)
    await tell_chain(store, "r0", "r500")
    assert await chain_of(store, "r500") == ["r0", "r500"]
