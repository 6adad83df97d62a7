"""Approvals in a store: written with the end of their response, decided once, gone with it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from antwort.api.items import McpApprovalRequest
from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.responses import Response
from antwort.api.wire import encode, replace
from antwort.errors import ApprovalInUse, InvalidField, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import LARGEST_PAGE, Decision, Entry, NewResponse, Page, ResponseStore, as_of
from antwort.storage.memory import MemoryStore
from antwort.storage.migrations import upgrade
from antwort.storage.sqlite import SqliteStore
from storage_cases import COLLEAGUE, ME, STOPPED, STRANGER, asked, ended, message, open_conversation, tell

NOW, LATER = 1_700_000_000, 1_700_000_100


def waiting(
    approval_id: str, response_id: str, *, expires_at: int = LATER, arguments: str = '{"box":"7 €"}'
) -> Approval:
    return Approval(
        id=approval_id,
        created_at=NOW,
        expires_at=expires_at,
        response_id=response_id,
        server_label="depot",
        name="ship",
        arguments=arguments,
    )


async def asking(
    store: ResponseStore,
    *ids: str,
    identity: Identity = ME,
    response_id: str | None = None,
    **options: Any,
) -> Response:
    """A response that asks for these approvals; the options are those of `waiting`."""
    new = asked("hello", identity=identity, response_id=response_id)
    output = [McpApprovalRequest(id=each, server_label="depot", name="ship", arguments="{}") for each in ids]
    response = ended(new, *output, status="requires_action")
    await store.begin(new)
    approvals = [waiting(each, response.id, **options) for each in ids]
    await store.finish(identity, response, STOPPED, (), approvals)
    return response


def deciding(*decisions: Decision, after: str | None = None) -> NewResponse:
    return replace(asked("yes", after=after), decisions=decisions)


def approve(approval_id: str, after: str | None = None) -> Decision:
    return Decision(id=approval_id, status="approved", after=after)


def deny(approval_id: str) -> Decision:
    return Decision(id=approval_id, status="denied")


async def status_of(store: ResponseStore, approval_id: str) -> tuple[str, str | None]:
    found = (await store.find_approvals(ME, [approval_id]))[approval_id]
    return found.status, found.decided_by


async def listed(store: ResponseStore, *, status: ApprovalStatus | None = None, now: int = NOW) -> list[str]:
    return [each.id for each in (await store.approvals(ME, Page(), status, now)).approvals]


async def test_an_approval_is_kept_as_it_was_asked_for(store: ResponseStore) -> None:
    response = await asking(store, "mcpr_1")
    assert await store.find_approvals(ME, ["mcpr_1", "mcpr_2"]) == {"mcpr_1": waiting("mcpr_1", response.id)}
    assert (await store.approvals(ME, Page(), None, NOW)).approvals == (waiting("mcpr_1", response.id),)


async def test_an_approval_is_its_owners(store: ResponseStore) -> None:
    await asking(store, "mcpr_1")
    for other in (COLLEAGUE, STRANGER):
        assert await store.find_approvals(other, ["mcpr_1"]) == {}
        assert (await store.approvals(other, Page(), None, NOW)).approvals == ()
        await store.decide(other, "resp_x", [deny("mcpr_1")])
        with pytest.raises(InvalidField):
            await store.approvals(other, Page(after="mcpr_1"), None, NOW)
    assert await status_of(store, "mcpr_1") == ("pending", None)


async def test_it_is_decided_by_the_commit_that_begins_the_follow_up(store: ResponseStore) -> None:
    parent = await asking(store, "mcpr_1", "mcpr_2")
    new = deciding(approve("mcpr_1"), deny("mcpr_2"), after=parent.id)
    await store.begin(new)
    assert await status_of(store, "mcpr_1") == ("approved", new.response.id)
    assert await status_of(store, "mcpr_2") == ("denied", new.response.id)


async def test_a_follow_up_that_does_not_begin_decides_nothing(store: ResponseStore) -> None:
    await asking(store, "mcpr_1")
    with pytest.raises(ResponseNotFound):
        await store.begin(deciding(approve("mcpr_1"), after="resp_gone"))
    assert await status_of(store, "mcpr_1") == ("pending", None)


async def test_of_two_that_decide_at_once_one_begins(store: ResponseStore) -> None:
    parent = await asking(store, "mcpr_0", "mcpr_1")
    both = [deciding(approve("mcpr_1"), after=parent.id) for _ in range(2)]
    came = await asyncio.gather(*(store.begin(new) for new in both), return_exceptions=True)
    assert sorted(type(each).__name__ for each in came) == ["ApprovalInUse", "NoneType"]
    begun = [new for new, end in zip(both, came, strict=True) if end is None]
    assert await status_of(store, "mcpr_1") == ("approved", begun[0].response.id)
    lost = next(new for new in both if new is not begun[0])
    assert await store.get(ME, lost.response.id) is None


async def test_one_that_is_taken_keeps_all_decisions_of_a_request_back(store: ResponseStore) -> None:
    await asking(store, "mcpr_1", "mcpr_2")
    await store.decide(ME, "resp_a", [approve("mcpr_2")])
    with pytest.raises(ApprovalInUse):
        await store.decide(ME, "resp_b", [approve("mcpr_1"), approve("mcpr_2")])
    assert await status_of(store, "mcpr_1") == ("pending", None)


async def test_what_was_decided_can_be_handed_on_and_not_changed(store: ResponseStore) -> None:
    await asking(store, "mcpr_1")
    await store.decide(ME, "resp_a", [approve("mcpr_1")])
    await store.decide(ME, "resp_b", [approve("mcpr_1", after="resp_a")])
    assert await status_of(store, "mcpr_1") == ("approved", "resp_b")
    for wrong in (approve("mcpr_1", after="resp_a"), Decision(id="mcpr_1", status="denied", after="resp_b")):
        with pytest.raises(ApprovalInUse):
            await store.decide(ME, "resp_c", [wrong])
    assert await status_of(store, "mcpr_1") == ("approved", "resp_b")


async def test_a_decision_about_what_is_not_there_is_passed_over(store: ResponseStore) -> None:
    await store.decide(ME, "resp_a", [approve("mcpr_1")])
    assert await store.find_approvals(ME, ["mcpr_1"]) == {}


@pytest.mark.parametrize("has_child", [True, False])
async def test_an_approval_goes_with_its_response(store: ResponseStore, has_child: bool) -> None:
    parent = await asking(store, "mcpr_1")
    await asking(store, "mcpr_2")
    if has_child:
        await tell(store, "and?", message("hm"), after=parent.id)
    assert await store.delete(ME, parent.id)
    assert await store.find_approvals(ME, ["mcpr_1"]) == {}
    assert await listed(store) == ["mcpr_2"]


async def test_a_list_tells_those_that_have_expired_from_those_that_wait(store: ResponseStore) -> None:
    await asking(store, "mcpr_1", expires_at=NOW)
    await asking(store, "mcpr_2", "mcpr_3", "mcpr_4")
    await store.decide(ME, "resp_a", [approve("mcpr_3"), deny("mcpr_4")])
    statuses: list[ApprovalStatus] = ["expired", "pending", "approved", "denied"]
    assert [await listed(store, status=each) for each in statuses] == [["mcpr_1"], ["mcpr_2"], ["mcpr_3"], ["mcpr_4"]]
    assert await listed(store, status="expired", now=LATER) == ["mcpr_2", "mcpr_1"]
    assert await listed(store) == ["mcpr_4", "mcpr_3", "mcpr_2", "mcpr_1"]


def test_what_has_expired_is_said_and_not_written() -> None:
    approval = waiting("mcpr_1", "resp_1")
    assert as_of(approval, LATER - 1) is approval
    assert as_of(approval, LATER).status == "expired"
    denied = replace(approval, status="denied")
    assert as_of(denied, LATER) is denied


async def test_a_cursor_that_is_not_there_is_named(store: ResponseStore) -> None:
    for page in (Page(after="mcpr_x"), Page(before="mcpr_x")):
        with pytest.raises(InvalidField) as caught:
            await store.approvals(ME, page, None, NOW)
        assert caught.value.param == ("after" if page.after else "before")


async def test_a_page_of_large_arguments_ends_early(store: ResponseStore) -> None:
    await asking(store, "mcpr_1", "mcpr_2", "mcpr_3", arguments=f'{{"box":"{"x" * (LARGEST_PAGE // 2)}"}}')
    page = await store.approvals(ME, Page(), None, NOW)
    assert ([each.id for each in page.approvals], page.has_more) == (["mcpr_3", "mcpr_2"], True)


async def test_approvals_survive_the_process(path: Path) -> None:
    store = await SqliteStore.open(path)
    response = await asking(store, "mcpr_1")
    await store.close()
    store = await SqliteStore.open(path)
    try:
        assert await store.find_approvals(ME, ["mcpr_1"]) == {"mcpr_1": waiting("mcpr_1", response.id)}
    finally:
        await store.close()


async def test_a_file_from_before_approvals_gets_their_table(tmp_path: Path) -> None:
    old = tmp_path / "antwort.db"
    upgrade(old, "0003")
    store = await SqliteStore.open(old)
    try:
        await asking(store, "mcpr_1")
        assert await listed(store) == ["mcpr_1"]
    finally:
        await store.close()


async def test_what_waits_is_there_when_its_table_was_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "antwort.db"
    upgrade(path, "0004")  # which knows of no approvals without a response
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(
            "INSERT INTO responses (key, tenant, owner, id, thread_key, depth, model, status, background, created_at, "
            "schema_version, request, body) VALUES (1, 'acme', 'ann', 'r', 1, 0, 'm', 'failed', 0, 1, 1, '', '')"
        )
        old.execute(
            "INSERT INTO approvals (tenant, owner, id, response_key, response_id, status, created_at, expires_at, "
            "server_label, name, arguments) "
            "VALUES ('acme', 'ann', 'mcpr_1', 1, 'r', 'pending', ?, ?, 'depot', 'ship', ?)",
            (NOW, LATER, '{"box":"7 €"}'),
        )
    store = await SqliteStore.open(path)
    try:
        assert await store.find_approvals(ME, ["mcpr_1"]) == {"mcpr_1": waiting("mcpr_1", "r")}
        await store.delete(ME, "r")
        assert await listed(store) == []
    finally:
        await store.close()


async def test_a_response_that_is_driven_out_of_memory_takes_its_approvals_along() -> None:
    store = MemoryStore(max_responses=1)
    await asking(store, "mcpr_1")
    await asking(store, "mcpr_2")
    assert await listed(store) == ["mcpr_2"]


# ---- paging ----

IDS = tuple(f"mcpr_{number}" for number in range(7))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("status", [None, "pending", "denied"])
async def test_paging_in_either_direction_gives_each_once_and_all_that_fit(
    store: ResponseStore, limit: int, order: Literal["asc", "desc"], status: ApprovalStatus | None
) -> None:
    await asking(store, *IDS)
    await store.decide(ME, "resp_a", [deny(each) for each in IDS[::2]])
    fitting = [each for at, each in enumerate(IDS) if status is None or (at % 2 == 0) == (status == "denied")]
    wanted = fitting if order == "asc" else fitting[::-1]
    page = Page(limit=limit, order=order)
    assert await all_pages(store, page, status) == wanted
    assert await all_pages(store, replace(page, before=wanted[-1]), status) == wanted[:-1]


async def all_pages(store: ResponseStore, page: Page, status: ApprovalStatus | None) -> list[str]:
    """From the front; or, where it has an end, from there towards the front."""
    read: list[str] = []
    while True:
        found = await store.approvals(ME, page, status, NOW)
        ids = [each.id for each in found.approvals]
        read = [*read, *ids] if page.before is None else [*ids, *read]
        if not found.has_more:
            return read
        page = replace(page, after=ids[-1]) if page.before is None else replace(page, before=ids[0])


async def test_what_a_conversation_asks_for_goes_with_it_where_its_turn_is_not_kept(store: ResponseStore) -> None:
    kept = await asking(store, "mcpr_0")
    for name, approval in (("conv_1", "mcpr_1"), ("conv_2", "mcpr_2")):
        await open_conversation(store, conversation_id=name)
        request = McpApprovalRequest(id=approval, server_label="depot", name="ship", arguments="{}")
        added = [Entry(item=request, raw=encode(request), direction="output")]
        await store.add_entries(ME, name, added, [waiting(approval, "resp_none")])
    assert await listed(store) == ["mcpr_2", "mcpr_1", "mcpr_0"]
    await store.decide(ME, "resp_x", [approve("mcpr_1")])
    assert await status_of(store, "mcpr_1") == ("approved", "resp_x")
    await store.delete_conversation(ME, "conv_1")
    assert await listed(store) == ["mcpr_2", "mcpr_0"]
    await store.delete(ME, kept.id)
    assert await listed(store) == ["mcpr_2"]


async def test_a_conversation_that_is_gone_asks_for_nothing(store: ResponseStore) -> None:
    assert await store.add_entries(ME, "conv_none", [], [waiting("mcpr_1", "resp_none")]) is None
    assert await listed(store) == []


# ---- tools that change ----


async def test_what_the_tool_looked_like_is_kept_with_the_question(store: ResponseStore) -> None:
    new = asked("hello")
    response = ended(new, status="requires_action")
    approval = replace(waiting("mcpr_1", response.id), tool_digest="abc", replaces="mcpr_0")
    await store.begin(new)
    await store.finish(ME, response, STOPPED, (), [approval])
    assert await store.find_approvals(ME, ["mcpr_1"]) == {"mcpr_1": approval}


async def test_an_approval_may_become_outdated_and_nothing_else_after_that(store: ResponseStore) -> None:
    await asking(store, "mcpr_1", "mcpr_2", "mcpr_3")
    await store.decide(ME, "resp_a", [approve("mcpr_1"), deny("mcpr_3")])
    outdated = [Decision(id="mcpr_1", status="outdated", after="resp_a"), Decision(id="mcpr_2", status="outdated")]
    await store.decide(ME, "resp_b", outdated)
    assert await status_of(store, "mcpr_1") == ("outdated", "resp_b")
    assert await status_of(store, "mcpr_2") == ("outdated", "resp_b")
    assert await listed(store, status="outdated") == ["mcpr_2", "mcpr_1"]
    for wrong in (approve("mcpr_1", after="resp_b"), Decision(id="mcpr_3", status="outdated", after="resp_a")):
        with pytest.raises(ApprovalInUse):
            await store.decide(ME, "resp_c", [wrong])


async def test_a_question_that_is_asked_again_makes_the_approval_before_it_outdated(store: ResponseStore) -> None:
    await asking(store, "mcpr_1", "mcpr_2")
    await store.decide(ME, "resp_a", [approve("mcpr_1"), deny("mcpr_2")])
    new = asked("yes")
    response = ended(new, status="requires_action")
    again = [replace(waiting(f"mcpr_{n + 2}", response.id), replaces=f"mcpr_{n}") for n in (1, 2)]
    await store.begin(new)
    await store.finish(ME, response, STOPPED, (), again)
    assert await status_of(store, "mcpr_1") == ("outdated", "resp_a")
    assert await status_of(store, "mcpr_2") == ("denied", "resp_a")
