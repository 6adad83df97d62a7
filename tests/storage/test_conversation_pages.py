"""The items of a conversation, page by page."""

from __future__ import annotations

from typing import Literal

import pytest

from antwort.errors import InvalidField
from antwort.storage.base import LARGEST_PAGE, Page, ResponseStore
from storage_cases import ME, STRANGER, entries, open_conversation


async def page_of(store: ResponseStore, conversation_id: str, page: Page) -> tuple[list[str], bool]:
    found = await store.conversation_items(ME, conversation_id, page)
    assert found is not None
    return [item.id for item in found.items], found.has_more


async def numbered(store: ResponseStore, count: int) -> str:
    """A conversation with items of which some were taken out: "0" to `count` - 1 are left."""
    conversation = await open_conversation(store)
    for number in range(count):
        named = [{"role": "user", "content": name, "id": name} for name in (f"gone {number}", f"{number}")]
        await store.add_entries(ME, conversation.id, entries(*named))
        await store.delete_entry(ME, conversation.id, f"gone {number}")
    return conversation.id


@pytest.mark.parametrize(
    ("page", "ids", "has_more"),
    [
        (Page(limit=3), "987", True),
        (Page(limit=3, order="asc"), "012", True),
        (Page(limit=100, order="asc"), "0123456789", False),
        (Page(limit=3, order="asc", after="6"), "789", False),
        (Page(limit=2, order="asc", after="6"), "78", True),
        (Page(limit=3, after="2"), "10", False),
        (Page(limit=3, order="asc", before="4"), "123", True),
        (Page(limit=3, before="4"), "765", True),
        (Page(limit=9, before="4"), "98765", False),
        (Page(limit=9, order="asc", after="2", before="6"), "345", False),
        (Page(limit=2, order="asc", after="2", before="6"), "34", True),
        (Page(order="asc", after="6", before="2"), "", False),
        (Page(order="asc", after="9"), "", False),
    ],
    ids=str,
)
async def test_a_page_is_the_part_that_was_asked_for(
    store: ResponseStore, page: Page, ids: str, has_more: bool
) -> None:
    assert await page_of(store, await numbered(store, 10), page) == (list(ids), has_more)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_paging_either_way_shows_every_item_once(store: ResponseStore, order: Literal["asc", "desc"]) -> None:
    conversation_id = await numbered(store, 10)
    seen: list[str] = []
    more = True
    while more:
        page = Page(limit=3, order=order, after=seen[-1] if seen else None)
        ids, more = await page_of(store, conversation_id, page)
        seen += ids
    assert seen == [str(number) for number in (range(10) if order == "asc" else range(9, -1, -1))]


@pytest.mark.parametrize("cursor", [Page(after="none"), Page(before="none"), Page(after="gone 1")], ids=str)
async def test_a_page_from_what_is_not_there_is_refused(store: ResponseStore, cursor: Page) -> None:
    conversation_id = await numbered(store, 3)
    with pytest.raises(InvalidField) as caught:
        await page_of(store, conversation_id, cursor)
    assert caught.value.param in ("after", "before")


async def test_the_cursor_of_another_conversation_is_none_of_this_one(store: ResponseStore) -> None:
    await open_conversation(store, {"role": "user", "content": "there", "id": "elsewhere"})
    with pytest.raises(InvalidField):
        await page_of(store, await numbered(store, 3), Page(after="elsewhere"))


async def test_there_is_no_page_of_what_is_not_there(store: ResponseStore) -> None:
    conversation = await open_conversation(store, identity=STRANGER)
    assert await store.conversation_items(ME, conversation.id, Page()) is None


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_of_large_items_ends_early_and_says_that_there_are_more(
    store: ResponseStore, order: Literal["asc", "desc"]
) -> None:
    large = {"role": "user", "content": "x" * (LARGEST_PAGE // 3)}
    conversation = await open_conversation(store, *[{**large, "id": str(number)} for number in range(5)])
    ids, has_more = await page_of(store, conversation.id, Page(order=order))
    assert (ids, has_more) == ((["0", "1", "2"] if order == "asc" else ["4", "3", "2"]), True)
    ids, has_more = await page_of(store, conversation.id, Page(order=order, before=ids[2]))
    assert (ids, has_more) == ((["0", "1"] if order == "asc" else ["4", "3"]), False)
    ids, has_more = await page_of(store, conversation.id, Page(order=order, before="4" if order == "asc" else "0"))
    assert (ids, has_more) == ((["1", "2", "3"] if order == "asc" else ["3", "2", "1"]), True)
