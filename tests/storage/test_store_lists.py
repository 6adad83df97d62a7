"""Lists of responses: the same pages from every store."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.responses import Response
from antwort.api.status import FINAL, ResponseStatus
from antwort.api.wire import replace
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import EVERYTHING, Page, ResponsePage, ResponseStore, Wanted
from antwort.storage.memory import MemoryStore
from antwort.storage.sql_store import SqlStore
from antwort.storage.sqlite import SqliteStore
from database_kit import query_plans
from storage_cases import COLLEAGUE, ME, STOPPED, STRANGER, asked, ended, message, tell

STATUSES: tuple[ResponseStatus, ...] = ("in_progress", *sorted(FINAL))


async def keep(
    store: ResponseStore,
    name: str,
    *,
    at: int = 1,
    model: str = "small",
    status: ResponseStatus = "completed",
    identity: Identity = ME,
) -> Response:
    new = asked("hello", identity=identity, response_id=name)
    new = replace(new, response=replace(new.response, created_at=at, model=model))
    await store.begin(new)
    if status not in FINAL:
        return new.response
    response = ended(new, message("hi"), status=status)
    await store.finish(identity, response, STOPPED)
    return response


def ids(page: ResponsePage) -> list[str]:
    return [response.id for response in page.responses]


async def listed(store: ResponseStore, wanted: Wanted = EVERYTHING, identity: Identity = ME) -> list[str]:
    return ids(await store.responses(identity, Page(order="asc", limit=100), wanted))


# ---- what is on a list ----


async def test_a_list_holds_whole_responses_the_newest_first(store: ResponseStore) -> None:
    first = await tell(store, "one", message("1"), message("2"))
    second = await keep(store, "running", at=first.created_at, status="in_progress")
    page = await store.responses(ME, Page(), EVERYTHING)
    assert page == ResponsePage(responses=(second, first), has_more=False)


async def test_an_empty_store_has_an_empty_list(store: ResponseStore) -> None:
    assert await store.responses(ME, Page(), EVERYTHING) == ResponsePage(responses=(), has_more=False)


async def test_the_order_is_by_creation_and_then_as_they_were_begun(store: ResponseStore) -> None:
    for name, at in (("b", 2), ("c", 3), ("a", 1), ("c2", 3)):
        await keep(store, name, at=at)
    assert await listed(store) == ["a", "b", "c", "c2"]


async def test_a_list_can_be_of_one_model_and_of_some_statuses(store: ResponseStore) -> None:
    for at, (model, status) in enumerate(itertools.product(("small", "large"), STATUSES)):
        await keep(store, f"{model} {status}", at=at, model=model, status=status)
    assert await listed(store, Wanted(model="large")) == [f"large {status}" for status in STATUSES]
    some = await listed(store, Wanted(statuses=("failed", "in_progress")))
    assert some == ["small in_progress", "small failed", "large in_progress", "large failed"]
    assert await listed(store, Wanted(model="small", statuses=("cancelled",))) == ["small cancelled"]
    assert await listed(store, Wanted(model="Small")) == []


async def test_a_status_is_the_one_a_response_has_now(store: ResponseStore) -> None:
    await keep(store, "a", status="in_progress")
    await store.fail_running("gone")
    assert await listed(store, Wanted(statuses=("in_progress",))) == []
    assert await listed(store, Wanted(statuses=("failed",))) == ["a"]


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_deleted_response_is_on_no_list_and_no_cursor(store: ResponseStore, is_followed: bool) -> None:
    await tell(store, "one", response_id="a")
    if is_followed:
        await tell(store, "two", response_id="b", after="a")
    await store.delete(ME, "a")
    assert await listed(store) == ["b"] * is_followed
    with pytest.raises(InvalidField):
        await store.responses(ME, Page(after="a"), EVERYTHING)


@pytest.mark.proves("RULING-6", "MISTAKE-29")
@pytest.mark.parametrize("other", [COLLEAGUE, STRANGER, ANONYMOUS, Identity("acme", "")])
async def test_others_find_nothing_of_mine_on_their_list(store: ResponseStore, other: Identity) -> None:
    await keep(store, "mine")
    await keep(store, "theirs", identity=other)
    assert await listed(store, identity=other) == ["theirs"]
    assert await listed(store) == ["mine"]
    for param in ("after", "before"):
        said = []
        for cursor in ("mine", "none"):
            with pytest.raises(InvalidField) as caught:
                await store.responses(other, replace(Page(), **{param: cursor}), EVERYTHING)
            said.append((caught.value.param, caught.value.message.replace(cursor, "…")))
        assert said[0] == said[1] == (param, f"Invalid '{param}': there is nothing with id '…' in this list.")


# ---- cursors ----


@pytest.fixture
async def five(store: ResponseStore) -> ResponseStore:
    """Some of the same second."""
    for name, at in (("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 3)):
        await keep(store, name, at=at, model="small" if name in "ace" else "large")
    return store


@pytest.mark.parametrize(
    ("page", "names", "has_more"),
    [
        (Page(limit=2), "ed", True),
        (Page(limit=5), "edcba", False),
        (Page(limit=2, after="d"), "cb", True),
        (Page(limit=2, after="c"), "ba", False),
        (Page(after="a"), "", False),
        (Page(limit=2, before="a"), "cb", True),
        (Page(limit=2, before="c"), "ed", False),
        (Page(before="e"), "", False),
        (Page(limit=2, order="asc"), "ab", True),
        (Page(limit=2, order="asc", after="b"), "cd", True),
        (Page(limit=2, order="asc", before="c"), "ab", False),
        (Page(limit=2, order="asc", before="e"), "cd", True),
        (Page(order="asc", after="a", before="d"), "bc", False),
        (Page(order="asc", limit=1, after="a", before="d"), "b", True),
        (Page(after="d", before="a"), "cb", False),
        (Page(after="a", before="d"), "", False),
    ],
    ids=str,
)
async def test_a_page_starts_after_or_ends_before(five: ResponseStore, page: Page, names: str, has_more: bool) -> None:
    found = await five.responses(ME, page, EVERYTHING)
    assert ("".join(ids(found)), found.has_more) == (names, has_more)


async def test_a_cursor_need_not_be_of_those_wanted(five: ResponseStore) -> None:
    found = await five.responses(ME, Page(after="d", limit=1), Wanted(model="small"))
    assert (ids(found), found.has_more) == (["c"], True)


async def test_a_cursor_that_nobody_has_is_named(five: ResponseStore) -> None:
    with pytest.raises(InvalidField) as caught:
        await five.responses(ME, Page(after="a", before="x" * 10_000), EVERYTHING)
    assert caught.value.param == "before"
    assert len(caught.value.message) < 300


# ---- paging ----

KEPT = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(("small", "large")), st.sampled_from(STATUSES), st.booleans()),
    max_size=12,
)
"""When, of which model, how it ended, and whether it was deleted then."""
WANTED = st.builds(
    Wanted,
    model=st.sampled_from((None, "small", "large", "none")),
    statuses=st.lists(st.sampled_from(STATUSES), max_size=2, unique=True).map(tuple),
)
TENANTS = itertools.count()


Order = Literal["asc", "desc"]


async def forwards(store: ResponseStore, identity: Identity, wanted: Wanted, order: Order, limit: int) -> list[str]:
    found: list[str] = []
    while True:
        page = Page(order=order, limit=limit, after=found[-1] if found else None)
        part = await store.responses(identity, page, wanted)
        assert len(part.responses) == limit or not part.has_more
        found += ids(part)
        if not part.has_more:
            return found


async def backwards(store: ResponseStore, identity: Identity, wanted: Wanted, order: Order, limit: int) -> list[str]:
    """From the last one on, which is found by asking the other way round."""
    opposite: Order = "asc" if order == "desc" else "desc"
    found = ids(await store.responses(identity, Page(order=opposite, limit=1), wanted))
    while found:
        part = await store.responses(identity, Page(order=order, limit=limit, before=found[0]), wanted)
        found = ids(part) + found
        if not part.has_more:
            break
    return found


@settings(deadline=None)
@given(kept=KEPT, wanted=WANTED, limit=st.integers(1, 5), order=st.sampled_from(("asc", "desc")))
def test_paging_in_either_direction_gives_each_once_and_all_that_fit(
    runner: asyncio.Runner,
    on_disk: SqlStore,
    kept: list[tuple[int, str, ResponseStatus, bool]],
    wanted: Wanted,
    limit: int,
    order: Order,
) -> None:
    identity = Identity(f"tenant {next(TENANTS)}", "ann")

    async def check(store: ResponseStore) -> None:
        there: list[Response] = []
        for number, (at, model, status, is_deleted) in enumerate(kept):
            response = await keep(store, f"r{number}", at=at, model=model, status=status, identity=identity)
            if is_deleted:
                await store.delete(identity, response.id)
            elif wanted.fits(response):
                there.append(response)
        there.sort(key=lambda response: response.created_at)
        expected = [response.id for response in (there if order == "asc" else reversed(there))]
        assert await forwards(store, identity, wanted, order, limit) == expected
        assert await backwards(store, identity, wanted, order, limit) == expected

    runner.run(check(MemoryStore()))
    runner.run(check(on_disk))


# ---- what it costs ----


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("cursor", [{}, {"after": "b"}, {"before": "b"}, {"after": "a", "before": "c"}])
@pytest.mark.parametrize("model", [None, "small"])
async def test_a_page_is_read_from_its_place_in_an_index_and_never_sorted(
    sqlite: SqliteStore, order: Literal["asc", "desc"], cursor: dict[str, str], model: str | None
) -> None:
    for name in ("a", "b", "c"):
        await keep(sqlite, name)
    page = Page(order=order, limit=1, **cursor)
    wanted = Wanted(model=model, statuses=("completed",))
    plans = await query_plans(sqlite.database, sqlite.responses(ME, page, wanted))
    listing = [plan for plan in plans if "ix_responses_listed" in plan]
    assert listing
    for plan in listing:
        assert "SEARCH responses USING INDEX ix_responses_listed (tenant=? AND owner=? AND status=?" in plan
    assert not [plan for plan in plans if "TEMP B-TREE" in plan or "SCAN" in plan]


# ---- pages that would be too large, and records that cannot be read ----


async def big(store: ResponseStore, count: int) -> list[str]:
    """So many responses of 3 MiB each, the oldest first."""
    names = [f"big-{number}" for number in range(count)]
    for name in names:
        await tell(store, "long", message("x" * 3 * 2**20), response_id=name)
    return names


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_ends_when_it_is_large_enough_and_the_next_goes_on_there(
    store: ResponseStore, order: Literal["asc", "desc"]
) -> None:
    names = await big(store, 7)
    walked: list[list[str]] = []
    has_more, after = True, None
    while has_more:
        page = await store.responses(ME, Page(order=order, limit=100, after=after), EVERYTHING)
        walked.append(ids(page))
        has_more, after = page.has_more, walked[-1][-1]
    assert [len(page) for page in walked] == [3, 3, 1]
    assert list(itertools.chain(*walked)) == (names if order == "asc" else names[::-1])


async def test_a_page_that_ends_somewhere_ends_there_when_it_is_large_enough(store: ResponseStore) -> None:
    names = await big(store, 5)
    page = await store.responses(ME, Page(order="asc", limit=100, before=names[-1]), EVERYTHING)
    assert (ids(page), page.has_more) == (names[1:4], True)
    page = await store.responses(ME, Page(order="asc", limit=100, before=names[1]), EVERYTHING)
    assert (ids(page), page.has_more) == (names[:1], False)


async def test_a_page_holds_one_however_large_it_is(store: ResponseStore) -> None:
    for name in ("first", "second"):
        await tell(store, "long", message("x" * 9 * 2**20), response_id=name)
    page = await store.responses(ME, Page(limit=100), EVERYTHING)
    assert (ids(page), page.has_more) == (["second"], True)


@pytest.mark.parametrize("harm", ["responses SET body", "items SET raw"])
@pytest.mark.parametrize("value", [b"{", "text", 7])
async def test_a_record_that_cannot_be_read_is_left_out_and_told_once(
    tmp_path: Path, harm: str, value: bytes | str | int, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "antwort.db")
    names = [f"r{number}" for number in range(6)]
    for name in names:
        await tell(store, "hello", message("hi"), response_id=name)
    where = "id IN" if "body" in harm else "response_key IN (SELECT key FROM responses WHERE id IN"
    damage = f"UPDATE {harm} = ? WHERE {where} ('r1', 'r2', 'r3'){')' if 'raw' in harm else ''}"
    await store.database.write(lambda connection: connection.execute(damage, (value,)))
    for order, expected in (("asc", [["r0", "r4"], ["r5"]]), ("desc", [["r5", "r4"], ["r0"]])):
        pages = await walk(store, "asc" if order == "asc" else "desc")
        assert pages == expected
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the record of {name} cannot be read: lists leave it out" for name in ("r1", "r2", "r3")]
    await store.close()


async def walk(store: ResponseStore, order: Literal["asc", "desc"]) -> list[list[str]]:
    """The pages of two, from the first to the last."""
    pages: list[list[str]] = []
    after: str | None = None
    while True:
        page = await store.responses(ME, Page(order=order, limit=2, after=after), EVERYTHING)
        pages.append(ids(page))
        if not page.has_more:
            return pages
        after = pages[-1][-1]
