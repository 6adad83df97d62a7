"""Items by id and by page."""

from __future__ import annotations

import pytest

from antwort.api.items import OpaqueItem
from antwort.api.wire import Plain, encode
from antwort.errors import InvalidField
from antwort.storage.base import ItemPage, Page, ResponseStore
from storage_cases import ME, asked, message, tell

OPAQUE: Plain = {
    "type": "shell_call",
    "id": "sh_1",
    "action": {"commands": ["ls", "naïve ☃"], "timeout": None},
    "weight": 1.50,
    "big": 12345678901234567890,
}


async def test_items_of_both_directions_are_found_by_id_across_responses(store: ResponseStore) -> None:
    first = asked([{"role": "user", "content": "one", "id": "msg_1"}])
    await store.begin(first)
    await tell(store, "two", message("answer", "msg_2"))
    found = await store.items(ME, ["msg_2", "msg_none", "msg_1"])
    assert found == {"msg_1": first.input[0], "msg_2": message("answer", "msg_2")}


async def test_an_item_without_an_id_is_found_by_the_one_it_was_given(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    assert await store.items(ME, [new.input[0].id]) == {new.input[0].id: new.input[0]}


async def test_the_newest_item_under_an_id_is_the_one_found(store: ResponseStore) -> None:
    for text in ("old", "newer"):
        await tell(store, [{"role": "user", "content": text, "id": "msg_x"}])
    assert encode((await store.items(ME, ["msg_x"]))["msg_x"]).count(b"newer") == 1
    await tell(store, "hi", message("newest", "msg_x"))
    assert (await store.items(ME, ["msg_x"]))["msg_x"] == message("newest", "msg_x")


async def test_a_thousand_items_are_found_at_once(store: ResponseStore) -> None:
    await tell(store, [{"role": "user", "content": f"{n}", "id": f"msg_{n}"} for n in range(1000)])
    found = await store.items(ME, [f"msg_{n}" for n in range(1200)])
    assert sorted(found) == sorted(f"msg_{n}" for n in range(1000))


async def test_no_ids_find_no_items(store: ResponseStore) -> None:
    await tell(store, "hello")
    assert await store.items(ME, []) == {}


@pytest.mark.parametrize("item_id", ["a\u0000b", "'; DROP TABLE items; --", "naïve ☃", " ", "x" * 512])
async def test_a_client_may_make_any_id(store: ResponseStore, item_id: str) -> None:
    new = asked([{"role": "user", "content": "hello", "id": item_id}, {"role": "user", "content": "a", "id": "a"}])
    await store.begin(new)
    assert await store.items(ME, [item_id]) == {item_id: new.input[0]}
    page = await store.input_items(ME, new.response.id, Page(order="asc", after=item_id))
    assert page == ItemPage(items=(new.input[1],), has_more=False)


async def test_an_item_of_an_unknown_type_comes_back_as_it_came(store: ResponseStore) -> None:
    new = asked([OPAQUE, {"type": "made_up", "nested": [{"deep": []}]}])
    await store.begin(new)
    [link] = await store.chain(ME, new.response.id)
    page = await store.input_items(ME, new.response.id, Page(order="asc"))
    assert page is not None
    assert link.input == page.items == new.input
    found = (await store.items(ME, ["sh_1"]))["sh_1"]
    assert isinstance(found, OpaqueItem)
    assert encode(found) == encode(OPAQUE)


# ---- pages ----


async def numbered(store: ResponseStore, count: int) -> str:
    """The id of a response whose request brought items "0" to `count` - 1."""
    items: list[Plain] = [{"role": "user", "content": f"{n}", "id": f"{n}"} for n in range(count)]
    return (await tell(store, items, message("an answer is not input"))).id


async def page_of(store: ResponseStore, response_id: str, page: Page) -> tuple[str, bool]:
    found = await store.input_items(ME, response_id, page)
    assert found is not None
    return "".join(item.id for item in found.items), found.has_more


@pytest.mark.parametrize(
    ("page", "ids", "has_more"),
    [
        (Page(), "9876543210", False),
        (Page(order="asc"), "0123456789", False),
        (Page(limit=3), "987", True),
        (Page(limit=10), "9876543210", False),
        (Page(limit=9), "987654321", True),
        (Page(limit=3, order="asc"), "012", True),
        (Page(limit=3, after="7"), "654", True),
        (Page(limit=3, after="3"), "210", False),
        (Page(limit=3, after="0"), "", False),
        (Page(limit=3, order="asc", after="7"), "89", False),
        (Page(limit=3, before="3"), "654", True),
        (Page(limit=3, before="6"), "987", False),
        (Page(limit=3, before="8"), "9", False),
        (Page(limit=3, before="9"), "", False),
        (Page(limit=3, order="asc", before="5"), "234", True),
        (Page(limit=2, after="8", before="4"), "76", True),
        (Page(limit=9, after="8", before="4"), "765", False),
        (Page(limit=9, after="4", before="8"), "", False),
    ],
)
async def test_a_page_of_input_items(store: ResponseStore, page: Page, ids: str, has_more: bool) -> None:
    assert await page_of(store, await numbered(store, 10), page) == (ids, has_more)


@pytest.mark.parametrize(
    ("page", "param"),
    [
        (Page(after="nine"), "after"),
        (Page(after=""), "after"),
        (Page(before="nine"), "before"),
        (Page(after="1", before="nine"), "before"),
    ],
)
async def test_a_cursor_that_is_none_of_the_items_is_named(store: ResponseStore, page: Page, param: str) -> None:
    response_id = await numbered(store, 3)
    with pytest.raises(InvalidField) as caught:
        await store.input_items(ME, response_id, page)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_a_response_without_input_has_an_empty_page(store: ResponseStore) -> None:
    response = await tell(store, [], message("hi"))
    assert await store.input_items(ME, response.id, Page()) == ItemPage(items=(), has_more=False)


async def test_paging_over_an_id_that_stands_twice_comes_to_an_end(store: ResponseStore) -> None:
    items: list[Plain] = [{"role": "user", "content": f"{n}", "id": item_id} for n, item_id in enumerate("axxb")]
    response = await tell(store, items)
    assert await page_of(store, response.id, Page(order="asc", limit=1, after="x")) == ("b", False)
    assert await page_of(store, response.id, Page(order="asc", before="x")) == ("a", False)
