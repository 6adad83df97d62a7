"""Everything is found within the identity's tenant and owner only."""

from __future__ import annotations

import pytest

from antwort.errors import ResponseNotFound
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Page, ResponseStore
from storage_cases import COLLEAGUE, ME, STRANGER, asked, ended, message, tell

OTHERS = [COLLEAGUE, STRANGER, ANONYMOUS, Identity("acme", "")]


@pytest.mark.proves("RULING-6", "MISTAKE-29")
@pytest.mark.parametrize("other", OTHERS)
async def test_others_find_nothing_of_mine(store: ResponseStore, other: Identity) -> None:
    mine = await tell(store, [{"role": "user", "content": "secret", "id": "msg_mine"}], message("yes", "msg_answer"))
    assert await store.get(other, mine.id) is None
    assert await store.chain(other, mine.id) == ()
    assert await store.input_items(other, mine.id, Page()) is None
    assert await store.items(other, ["msg_mine", "msg_answer"]) == {}
    assert not await store.delete(other, mine.id)
    assert await store.get(ME, mine.id) == mine


@pytest.mark.proves("RULING-6", "MISTAKE-28")
@pytest.mark.parametrize("other", OTHERS)
async def test_others_cannot_end_what_i_run(store: ResponseStore, other: Identity) -> None:
    new = asked("hello")
    await store.begin(new)
    with pytest.raises(ResponseNotFound):
        await store.finish(other, ended(new, status="cancelled"), ())
    assert await store.get(ME, new.response.id) == new.response


@pytest.mark.proves("RULING-6")
@pytest.mark.parametrize("other", OTHERS)
async def test_others_cannot_follow_what_i_said(store: ResponseStore, other: Identity) -> None:
    mine = await tell(store, "hello", message("hi"))
    with pytest.raises(ResponseNotFound):
        await store.begin(asked("and?", after=mine.id, identity=other))


@pytest.mark.proves("MISTAKE-29")
async def test_what_has_no_owner_is_not_everybodys(store: ResponseStore) -> None:
    nobodys = await tell(store, "hello", message("hi", "msg_1"), identity=ANONYMOUS)
    for other in (ME, STRANGER, Identity("default", "ann")):
        assert await store.get(other, nobodys.id) is None
        assert await store.items(other, ["msg_1"]) == {}
    assert await store.get(ANONYMOUS, nobodys.id) == nobodys


async def test_the_same_ids_in_two_tenants_are_two_records(store: ResponseStore) -> None:
    for identity, text in ((ME, "mine"), (STRANGER, "theirs")):
        question = [{"role": "user", "content": text, "id": "msg_q"}]
        await tell(store, question, message(text, "msg_a"), identity=identity, response_id="resp_1")
    assert await store.delete(STRANGER, "resp_1")
    assert (await store.items(ME, ["msg_a"]))["msg_a"] == message("mine", "msg_a")
    assert [link.response.id for link in await store.chain(ME, "resp_1")] == ["resp_1"]
    assert await store.items(STRANGER, ["msg_a", "msg_q"]) == {}


async def test_what_others_left_running_is_failed_for_them_too(store: ResponseStore) -> None:
    news = [asked("hello", identity=identity) for identity in (ME, COLLEAGUE, STRANGER)]
    for new in news:
        await store.begin(new)
    assert await store.fail_running("gone") == 3
