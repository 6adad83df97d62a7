"""How much of a history is read: bounded in bytes, and known before anything is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from antwort.api.items import Compaction
from antwort.api.wire import encode
from antwort.storage.base import ITEM_BYTES, Bound, HistoryTooLarge, Link, ResponseStore
from storage_cases import ME, answer, entries, message, open_conversation, tell, texts

TEXT = "x" * 10_000
WHOLE = 2**30


async def tell_long(store: ResponseStore, *names: str, text: str = TEXT) -> None:
    """Responses that follow one another, each of about the size of the text."""
    after = None
    for name in names:
        await tell(store, text, message(f"{name}!"), after=after, response_id=name)
        after = name


def ids(chain: Sequence[Link]) -> list[str]:
    return [link.response.id for link in chain]


async def size_of(store: ResponseStore, response_id: str) -> int:
    with pytest.raises(HistoryTooLarge) as caught:
        await store.chain(ME, response_id, Bound(most=1))
    return caught.value.size


async def test_a_chain_beyond_the_bound_is_refused_with_its_size(store: ResponseStore) -> None:
    await tell_long(store, "a", "b", "c")
    one, three = await size_of(store, "a"), await size_of(store, "c")
    assert len(TEXT) + 2 * ITEM_BYTES < one < len(TEXT) + 2 * ITEM_BYTES + 2000
    assert abs(three - 3 * one) < 200  # but for the ids of those before
    assert ids(await store.chain(ME, "c", Bound(most=three))) == ["a", "b", "c"]
    with pytest.raises(HistoryTooLarge) as caught:
        await store.chain(ME, "c", Bound(most=three - 1))
    assert (caught.value.size, caught.value.recent) == (three, three)
    assert await store.chain(ME, "nothing", Bound(most=1)) == ()


async def test_of_a_chain_beyond_the_bound_the_newest_are_read_where_it_may_be_cut(store: ResponseStore) -> None:
    await tell_long(store, "a", "b", "c", "d")
    one = await size_of(store, "a")
    cut = await store.chain(ME, "d", Bound(most=2 * one + 500, cut="oldest"))
    assert cut == (await store.chain(ME, "d"))[-2:]
    assert ids(await store.chain(ME, "d", Bound(most=WHOLE, cut="oldest"))) == ["a", "b", "c", "d"]
    with pytest.raises(HistoryTooLarge):  # not even the last
        await store.chain(ME, "d", Bound(most=one // 2, cut="oldest"))


@pytest.mark.proves("RULING-20")
async def test_tools_that_were_declared_in_what_is_cut_off_are_read_all_the_same(store: ResponseStore) -> None:
    declaring = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}
    said = {"role": "user", "content": TEXT}
    await tell(store, [{**declaring, "id": "at_1"}, said], message("a!"), response_id="a")
    for name, after in (("b", "a"), ("c", "b"), ("d", "c")):
        await tell(store, TEXT, message(f"{name}!"), after=after, response_id=name)
    one = await size_of(store, "a")
    first, *rest = await store.chain(ME, "d", Bound(most=2 * one, cut="oldest"))
    assert ([item.id for item in first.input], first.output) == (["at_1"], ())
    assert tuple(rest) == (await store.chain(ME, "d"))[-2:]
    conversation = (await open_conversation(store, declaring, *(f"{at}{TEXT}" for at in range(4)))).id
    items = await store.said(ME, conversation, Bound(most=2 * one, cut="oldest")) or ()
    assert [getattr(item, "type", None) or type(item).__name__ for item in items] == [
        "additional_tools",
        *["Message"] * 2,
    ]


@pytest.mark.parametrize("cut", ["compacted", "oldest"])
async def test_what_stands_before_a_compaction_does_not_count(store: ResponseStore, cut: str) -> None:
    await tell_long(store, "a", "b")
    await tell(store, "sum up", Compaction(id="cmp_1", encrypted_content="sealed"), after="b", response_id="c")
    await tell(store, "go on", message("d!"), after="c", response_id="d")
    bound = msgspec.convert({"most": 8000, "cut": cut}, Bound)
    assert ids(await store.chain(ME, "d", bound)) == ["c", "d"]
    with pytest.raises(HistoryTooLarge) as caught:
        await store.chain(ME, "d", Bound(most=8000))
    assert caught.value.recent < 8000 < caught.value.size


async def test_a_large_chain_is_read_as_a_small_one_is(store: ResponseStore) -> None:
    text = "y" * 3_000_000
    await tell_long(store, "a", "b", "c", text=text)
    chain = await store.chain(ME, "c", Bound(most=WHOLE))
    assert ids(chain) == ["a", "b", "c"]
    assert [texts(link.input) for link in chain] == [[text]] * 3
    assert [texts(link.output) for link in chain] == [["a!"], ["b!"], ["c!"]]
    assert all(link.turn_ends == (1,) for link in chain)


async def test_one_link_is_read_alone_with_the_request_as_it_came(store: ResponseStore) -> None:
    await tell_long(store, "a", "b", text="z" * 100_000)
    link = await store.link(ME, "b")
    assert link is not None
    assert (link.response.id, texts(link.input), texts(link.output)) == ("b", ["z" * 100_000], ["b!"])
    assert msgspec.json.decode(link.request)["input"] == "z" * 100_000
    bare = await store.link(ME, "b", with_input=False)
    assert bare is not None
    assert (bare.response, bare.input) == (link.response, ())
    assert msgspec.json.decode(bare.request)["model"] == "test-model"
    assert await store.link(ME, "nothing") is None


async def test_a_conversation_is_held_to_the_same_bound(store: ResponseStore) -> None:
    conversation = (await open_conversation(store, *(f"{at}{TEXT}" for at in range(4)))).id
    with pytest.raises(HistoryTooLarge) as caught:
        await store.said(ME, conversation, Bound(most=20_000))
    whole = caught.value.size
    assert await store.said(ME, conversation, Bound(most=whole)) == await store.said(ME, conversation)
    items = await store.said(ME, conversation, Bound(most=whole // 2, cut="oldest"))
    assert [text[0] for text in texts(items or ())] == ["2", "3"]
    await store.add_entries(ME, conversation, answer(Compaction(id="cmp_1", encrypted_content="sealed")))
    await store.add_entries(ME, conversation, entries("after"))
    items = await store.said(ME, conversation, Bound(most=20_000, cut="compacted"))
    assert [type(item).__name__ for item in items or ()] == ["Compaction", "Message"]
    assert await store.said(ME, "nothing", Bound(most=1)) is None


async def test_what_is_taken_out_of_a_conversation_does_not_count_any_more(store: ResponseStore) -> None:
    named = [{"role": "user", "content": TEXT, "id": name} for name in ("one", "two")]
    conversation = (await open_conversation(store, *named)).id
    with pytest.raises(HistoryTooLarge):
        await store.said(ME, conversation, Bound(most=15_000))
    await store.delete_entry(ME, conversation, "one")
    assert len(await store.said(ME, conversation, Bound(most=15_000)) or ()) == 1


async def test_a_large_conversation_is_read_as_a_small_one_is(store: ResponseStore) -> None:
    said = [f"{at}{'y' * 3_000_000}" for at in range(3)]
    conversation = (await open_conversation(store, *said)).id
    assert texts(await store.said(ME, conversation, Bound(most=WHOLE)) or ()) == said


async def test_items_are_not_read_where_they_are_too_large_together(store: ResponseStore) -> None:
    output = [message(TEXT, f"msg_{at}") for at in range(3)]
    await tell(store, "hello", *output)
    size = sum(len(encode(item)) + ITEM_BYTES for item in output)
    wanted = [item.id for item in output]
    assert set(await store.items(ME, wanted, Bound(most=size))) == {*wanted}
    with pytest.raises(HistoryTooLarge) as caught:
        await store.items(ME, wanted, Bound(most=size - 1))
    assert caught.value.size == size
