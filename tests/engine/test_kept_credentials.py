"""What requests bring to log in to tool servers: kept sealed for calls that wait, and shown to nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from antwort.api.decoding import Limits, at_once
from antwort.api.items import McpCall
from antwort.api.requests import CreateRequest, parse_request
from antwort.api.tool_parsing import KEY
from antwort.api.tools import McpTool, same_place, shown_url
from antwort.api.wire import UNSET, decode, encode
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.engine.history.recent_responses import RecentResponses
from antwort.engine.history.sealed_items import SealedItems, without_credentials
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Link
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, answer, call, say
from compaction_kit import TALK, TRIGGER
from credentials_kit import KEY_ONE, KEY_TWO, SERVER, URL, House, noon
from engine_kit import CLOCK, ask, only


@pytest.fixture
def house() -> House:
    return House(MemoryStore())


async def test_a_call_that_waited_is_run_with_what_its_request_brought(house: House) -> None:
    first = await house.paused()
    assert first.status == "requires_action"
    assert (await house.gone_on(first)).output == "found"
    assert house.door.ran == [
        McpTool(
            server_label="depot",
            server_url=URL,
            authorization="sesame3",
            headers={"X-Key": "sesame4"},
            require_approval="never",
        )
    ]


async def test_it_is_sealed_in_the_store_and_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "responses.db"
    store = await SqliteStore.open(file)
    first = await House(store).paused()
    await store.close()
    assert b"sesame" not in _all_bytes(tmp_path)
    store = await SqliteStore.open(file)
    later = House(store)
    assert (await later.gone_on(first)).output == "found"
    assert [tool.authorization for tool in later.door.ran if tool] == ["sesame3"]
    assert "sesame" not in encode(await Engine(ScriptedProvider(), store=store).retrieve(ANONYMOUS, first.id)).decode()
    await store.close()


def _all_bytes(folder: Path) -> bytes:
    written = b"".join(each.read_bytes() for each in folder.iterdir())
    assert b"tools.example.com" in written, "the rest of the request is there"
    return written


DEEP: dict[str, Any] = SERVER
for _ in range(300):
    DEEP = {"type": "namespace", "name": "n", "tools": [DEEP]}


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "namespace", "name": "n", "description": "d", "tools": [SERVER, CLOCK]}],
        [{"type": "namespace", "name": "n", "tools": [{"type": "antwort:mcp", **SERVER}]}],
        [{"type": "namespace", "name": "n", "tools": [DEEP]}],
        [{"type": "some_mcp", "server_url": URL, "authorization": "sesame5"}],
    ],
    ids=["in a namespace", "under the longer name", "very deep", "of another type"],
)
async def test_what_stands_where_no_server_can_is_kept_without_it(tmp_path: Path, tools: list[Any]) -> None:
    store = await SqliteStore.open(tmp_path / "responses.db")
    first = await House(store).engine(answer(say("Hi."))).create(ask(tools=tools))
    assert "sesame" not in encode(first).decode()
    await store.close()
    assert b"sesame" not in _all_bytes(tmp_path)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "additional_tools", "role": "developer", "tools": [SERVER]},
        {"type": "tool_search_output", "call_id": "x", "status": "completed", "tools": [DEEP]},
        {"type": "message", "role": "user", "content": "Hi", "tools": [SERVER]},
    ],
    ids=lambda item: str(item["type"]),
)
async def test_items_with_servers_in_them_are_kept_and_given_back_without_it(
    tmp_path: Path, item: dict[str, Any]
) -> None:
    store = await SqliteStore.open(tmp_path / "responses.db")
    engine = House(store).engine(answer(say("Hi.")))
    held = await engine.conversations.create([item])
    first = await engine.create(ask([{"role": "user", "content": "Hi"}, item], conversation=held.id))
    [link] = await store.chain(ANONYMOUS, first.id)
    assert "sesame" not in encode(link.input).decode()
    await store.close()
    assert b"sesame" not in _all_bytes(tmp_path)
    assert "sesame" in str(item), "what the caller holds is not touched"


def test_what_a_request_says_twice_is_kept_without_the_first_of_it() -> None:
    raw = b'{"input": "Hi", "tools": [' + encode(SERVER) + b'], "tools": []}'
    assert b"sesame" not in without_credentials(parse_request(raw, Limits()))


def test_what_a_client_writes_in_the_place_of_what_is_sealed_is_not_kept() -> None:
    assert KEY.encode() not in without_credentials(parse_request(encode({"input": "Hi", KEY: 5}), Limits()))


def test_a_schema_that_speaks_of_such_fields_is_kept_as_it_is() -> None:
    fields = {"authorization": {"type": "string"}, "headers": {}, "server_url": {"type": "string"}}
    tool = {"name": "fetch", "input_schema": {"type": "object", "properties": fields}}
    [raw] = ask([{"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "d", "tools": [tool]}]).raw_input
    assert decode(raw, dict)["tools"] == [tool]


async def test_a_response_shows_none_of_it(house: House) -> None:
    first = await house.paused()
    assert "sesame" not in encode(first).decode()
    assert first.tools[0]["server_url"] == "https://tools.example.com"
    [link] = await house.store.chain(ANONYMOUS, first.id)
    assert b"sesame" not in link.request
    assert "sesame" not in repr((house.door.found, ask(tools=[SERVER]), await house.engine().plan(ask(tools=[SERVER]))))


async def test_a_key_that_is_gone_answers_the_call_with_a_clear_error(house: House) -> None:
    first = await house.paused()
    house.secret = KEY_TWO
    item = await house.gone_on(first)
    assert item.status == "failed"
    assert item.error_text == "The address and the credentials of the server 'depot' are lost; declare it again."
    assert house.door.found == [], "nobody is asked without them"


async def test_a_follow_up_that_brings_its_own_for_the_same_server_goes_before(house: House) -> None:
    first = await house.paused()
    await house.gone_on(first, {**SERVER, "authorization": "newer", "headers": None, "require_approval": "never"})
    [ran] = house.door.ran
    assert ran is not None
    assert (ran.authorization, ran.headers, ran.server_url) == ("newer", UNSET, URL)


@pytest.mark.parametrize(
    "again",
    [
        {**SERVER, "authorization": "newer", "server_url": "https://tools.example.com/other"},
        {**SERVER, "authorization": "newer", "server_url": "https://evil.example/u/sesame1/mcp"},
        {"type": "mcp", "server_label": "depot", "authorization": "newer"},
        {"type": "mcp", "server_label": "depot", "server_url": URL},
    ],
    ids=["another path", "another host", "by its label", "nothing brought"],
)
async def test_what_is_brought_for_another_server_of_that_label_does_not_count(
    house: House, again: dict[str, Any]
) -> None:
    first = await house.paused()
    await house.gone_on(first, again)
    [ran] = house.door.ran
    assert ran is not None
    assert (ran.authorization, ran.server_url) == ("sesame3", URL)


async def test_what_is_brought_again_replaces_what_is_lost(house: House) -> None:
    first = await house.paused()
    house.secret = KEY_TWO
    assert (await house.gone_on(first, SERVER)).output == "found"
    assert [tool.authorization for tool in house.door.ran if tool] == ["sesame3"]


async def test_what_is_lost_is_not_brought_by_a_server_elsewhere(house: House) -> None:
    first = await house.paused()
    house.secret = KEY_TWO
    item = await house.gone_on(first, {**SERVER, "server_url": "https://evil.example/u/sesame1/mcp"})
    assert item.error_text is not None
    assert "lost" in item.error_text


async def test_another_server_of_the_same_request_is_not_touched_by_what_is_lost(house: House) -> None:
    plain = {"type": "mcp", "server_label": "depot"}
    other = {**SERVER, "server_label": "elsewhere"}
    request = ask(tools=[other, plain])
    link = Link(response=await house.paused(), request=b"", input=(), turn_ends=())
    kept = SealedItems(Vault([KEY_ONE]), ANONYMOUS).sealed_request(request, link.response.id)
    link = msgspec.structs.replace(link, request=kept)
    parent = at_once(SealedItems(Vault([KEY_TWO]), ANONYMOUS).parent_steps(link, ask()))
    assert parent.locked == {"elsewhere"}
    assert [tool.server_label for tool in parent.request.tools if isinstance(tool, McpTool)] == ["depot"]


@pytest.mark.parametrize(
    ("identity", "response_id"),
    [(Identity("a", "bob"), "resp_1"), (Identity("b", "ann"), "resp_1"), (Identity("a", "ann"), "resp_2")],
    ids=["another owner", "another tenant", "another response"],
)
async def test_it_opens_for_its_own_identity_and_response_alone(
    house: House, identity: Identity, response_id: str
) -> None:
    vault = Vault([KEY_ONE])
    kept = SealedItems(vault, Identity("a", "ann")).sealed_request(ask(tools=[SERVER]), "resp_1")
    response = msgspec.structs.replace(await house.paused(), id=response_id)
    link = Link(response=response, request=kept, input=(), turn_ends=())
    assert at_once(SealedItems(vault, identity).parent_steps(link, ask())).locked == {"depot"}


async def test_a_connection_that_remembers_what_no_store_keeps_holds_it_sealed_too(house: House) -> None:
    engine = house.engine(answer(call("lookup"), call("clock")), answer(say("Done.")))
    recent = RecentResponses()
    run = await engine.start(ask(tools=[SERVER, CLOCK], store=False), recent=recent)
    first = await run.result()
    recent.keep(run.chain())
    assert "sesame" not in str([link.request for link in recent.links()])
    again = ask([noon(first)], previous_response_id=first.id, store=False)
    second = await (await engine.start(again, recent=recent)).result()
    assert only(second, McpCall).output == "found"
    assert [tool.headers for tool in house.door.ran if tool] == [{"X-Key": "sesame4"}]


class Unused(Vault):
    def seal(self, purpose: str, tenant: str, data: bytes) -> str:
        raise AssertionError("there is nothing to seal")


def test_a_request_that_brings_nothing_is_kept_as_it_came() -> None:
    request = ask(tools=[{"type": "mcp", "server_label": "depot"}, CLOCK])
    assert SealedItems(Unused([KEY_ONE]), ANONYMOUS).sealed_request(request, "resp_1") is request.raw


def test_an_address_alone_is_sealed_for_what_it_may_hold() -> None:
    request = ask(tools=[{"type": "mcp", "server_label": "depot", "server_url": URL}])
    assert b"sesame" not in SealedItems(Vault.ephemeral(), ANONYMOUS).sealed_request(request, "resp_1")
    assert b"sesame" not in without_credentials(request)


def test_what_a_client_writes_where_it_is_kept_is_not_kept() -> None:
    planted: CreateRequest = ask(
        tools=[{"type": "mcp", "server_label": "depot"}], **{KEY: {"tools": [0], "sealed": "x"}}
    )
    assert KEY not in decode(SealedItems(Unused([KEY_ONE]), ANONYMOUS).sealed_request(planted, "resp_1"), dict)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://tools.example.com", "https://tools.example.com"),
        ("https://tools.example.com:8443/u/key/mcp?k=1#f", "https://tools.example.com:8443"),
        ("https://user:key@tools.example.com/", "https://tools.example.com"),
        ("https://[broken/", ""),
    ],
)
def test_an_address_is_shown_up_to_its_host(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("https://x/mcp?k=1", "https://x/mcp/?k=2", True),
        ("https://x/mcp", "https://x/mcp2", False),
        (UNSET, UNSET, True),
        ("https://x/mcp", UNSET, False),
    ],
)
def test_a_server_is_the_same_by_its_address_less_the_query(one: Any, other: Any, *, is_same: bool) -> None:
    assert same_place(one, other) is is_same


async def test_what_is_summed_up_leaves_them_with_nothing_that_others_have_too(house: House) -> None:
    engine = house.engine(answer(say("Ada likes tea.")))
    response = await engine.create(ask([*TALK, TRIGGER], tools=[SERVER]))
    assert [tool["server_label"] for tool in response.tools] == ["depot"]
    (made,) = engine._planner.toolboxes.values()
    assert not made.toolbox.tools
