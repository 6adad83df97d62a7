"""The endpoints under `/v1/conversations`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from antwort.api.decoding import Limits
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import StoreFault
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.quotas import KeyLimits
from antwort.storage.memory import MemoryStore
from antwort.testing import demo_provider
from key_kit import a_key, bearing
from openapi_kit import faults
from raw_http import Reply
from serving import HELLO, RESPONSES, Serving, serving

CONVERSATIONS = "/v1/conversations"
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def says(text: str, item_id: str | None = None) -> dict[str, Any]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return item if item_id is None else {**item, "id": item_id}


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(Engine(demo_provider(), store=MemoryStore(), clock=lambda: 1_700_000_000.9)) as running:
        yield running


async def begun(server: Serving, *items: dict[str, Any], **fields: Any) -> str:
    """The address of a new conversation."""
    reply = await server.ask("POST", CONVERSATIONS, {"items": [*items], **fields})
    assert reply.status == 200, reply.body
    return f"{CONVERSATIONS}/{reply.json()['id']}"


async def listed(server: Serving, place: str, query: str = "?order=asc") -> list[str]:
    """The ids of the items on a page."""
    return [item["id"] for item in (await server.ask("GET", f"{place}/items{query}")).json()["data"]]


def said(reply: Reply) -> tuple[int, str | None, str]:
    return reply.status, reply.error["param"], reply.error["code"]


# ---- conversations ----


async def test_a_conversation_is_made_found_described_and_deleted(server: Serving) -> None:
    made = (await server.ask("POST", CONVERSATIONS, {"metadata": {"topic": "weather"}})).json()
    name = made["id"]
    assert name.startswith("conv_")
    assert made == {
        "id": name,
        "object": "conversation",
        "created_at": 1_700_000_000,
        "metadata": {"topic": "weather"},
    }
    place = f"{CONVERSATIONS}/{name}"
    assert (await server.ask("GET", place)).json() == made
    changed = (await server.ask("POST", place, {"metadata": {"mood": "good"}})).json()
    assert changed == {**made, "metadata": {"mood": "good"}}
    assert (await server.ask("GET", place)).json() == changed
    gone = await server.ask("DELETE", place)
    assert gone.json() == {"id": name, "object": "conversation.deleted", "deleted": True}
    assert said(await server.ask("GET", place)) == (404, None, "conversation_not_found")


@pytest.mark.parametrize("body", [None, {}, {"items": None, "metadata": None}, {"items": [], "unknown": 1}], ids=str)
async def test_a_conversation_may_be_begun_with_nothing(server: Serving, body: dict[str, Any] | None) -> None:
    reply = await server.ask("POST", CONVERSATIONS, body)
    assert (reply.status, reply.json()["metadata"]) == (200, {})
    page = (await server.ask("GET", f"{CONVERSATIONS}/{reply.json()['id']}/items")).json()
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_null_for_metadata_takes_it_away(server: Serving) -> None:
    place = await begun(server, metadata={"topic": "weather"})
    assert (await server.ask("POST", place, {"metadata": None})).json()["metadata"] == {}


async def test_a_conversation_cannot_be_listed_among_all_for_there_is_no_such_list(server: Serving) -> None:
    reply = await server.ask("GET", CONVERSATIONS)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("", "GET, HEAD, POST, DELETE"), ("/items", "GET, HEAD, POST"), ("/items/msg_1", "GET, HEAD, DELETE")],
)
async def test_what_is_not_offered_at_an_address_names_what_is(server: Serving, path: str, allowed: str) -> None:
    reply = await server.ask("PUT", f"{CONVERSATIONS}/conv_1{path}")
    assert (reply.status, reply.headers["allow"]) == (405, allowed)


async def test_what_can_be_read_can_be_asked_for_its_head(server: Serving) -> None:
    place = await begun(server, says("Hello", "msg_1"))
    for path in (place, f"{place}/items", f"{place}/items/msg_1"):
        whole, head = await server.ask("GET", path), await server.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]


async def test_conversations_count_for_no_quota() -> None:
    ring = Keyring([a_key("sk-ann", "ann", KeyLimits(requests_per_minute=1))])
    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, identify=ring.identify, quotas=ring.quotas)) as server:
        for _ in range(3):
            made = await server.ask("POST", CONVERSATIONS, {"items": [says("Hello")]}, bearing("sk-ann"))
            assert made.status == 200
            assert not [name for name in made.headers if name.startswith("x-ratelimit")]
        assert (await server.ask("POST", RESPONSES, HELLO, bearing("sk-ann"))).status == 200
        assert (await server.ask("POST", RESPONSES, HELLO, bearing("sk-ann"))).status == 429


# ---- items ----


async def test_an_item_comes_back_whole_under_the_id_it_came_with(server: Serving) -> None:
    brought = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, PICTURE], "id": "msg_mine"}
    place = await begun(server, brought)
    item = (await server.ask("GET", f"{place}/items/msg_mine?include[]=message.input_image.image_url")).json()
    assert item == {
        "type": "message",
        "id": "msg_mine",
        "role": "user",
        "status": "completed",
        "content": [brought["content"][0], {**PICTURE, "detail": "auto"}],
    }


async def test_items_without_an_id_get_one_of_their_kind(server: Serving) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
    place = await begun(server)
    added = (await server.ask("POST", f"{place}/items", {"items": [says("Look!"), call, result]})).json()
    ids = [item["id"] for item in added["data"]]
    assert [name.partition("_")[0] for name in ids] == ["msg", "fc", "fco"]
    assert (added["object"], added["first_id"], added["last_id"]) == ("list", ids[0], ids[2])
    assert added["has_more"] is False
    assert await listed(server, place) == ids


async def test_an_id_that_is_taken_gives_way_and_the_answer_says_so(server: Serving) -> None:
    place = await begun(server, says("first", "msg_1"))
    added = (await server.ask("POST", f"{place}/items", {"items": [says("second", "msg_1")]})).json()["data"]
    assert added[0]["id"] != "msg_1"
    assert await listed(server, place) == ["msg_1", added[0]["id"]]


async def test_an_item_of_a_kind_that_nobody_knows_is_kept_as_it_came(server: Serving) -> None:
    odd = {"type": "shell_call", "id": "sh_1", "action": {"commands": ["ls", None]}, "x": 1.5}
    place = await begun(server, odd)
    assert (await server.ask("GET", f"{place}/items/sh_1")).json() == odd


async def test_a_reference_becomes_a_copy_of_what_it_stands_for(server: Serving) -> None:
    response = (await server.ask("POST", RESPONSES, HELLO)).json()
    output = response["output"][0]
    place = await begun(server, {"type": "item_reference", "id": output["id"]})
    assert (await server.ask("GET", f"{place}/items/{output['id']}")).json() == output


async def test_a_reference_to_nothing_is_named(server: Serving) -> None:
    place = await begun(server)
    reply = await server.ask("POST", f"{place}/items", {"items": [says("Hello"), {"id": "msg_none"}]})
    assert said(reply) == (404, "items[1].id", "item_not_found")
    assert await listed(server, place) == []


async def test_an_item_that_is_taken_out_leaves_the_conversation(server: Serving) -> None:
    place = await begun(server, says("one", "msg_1"), says("two", "msg_2"))
    left = await server.ask("DELETE", f"{place}/items/msg_1")
    assert left.json() == (await server.ask("GET", place)).json()
    assert await listed(server, place) == ["msg_2"]
    assert said(await server.ask("DELETE", f"{place}/items/msg_1")) == (404, None, "item_not_found")
    assert said(await server.ask("GET", f"{place}/items/msg_1")) == (404, None, "item_not_found")


ODD_IDS = ["a/b", "../..", "ä ö", "%2F", "?after=x", "#", "nul\x00", "x" * 512, "items", "'; DROP TABLE items; --"]


@pytest.mark.parametrize("item_id", ODD_IDS, ids=ascii)
async def test_an_item_is_found_by_any_id_that_its_client_chose(server: Serving, item_id: str) -> None:
    place = await begun(server, says("odd", item_id))
    path = f"{place}/items/{quote(item_id, safe='')}"
    assert (await server.ask("GET", path)).json()["id"] == item_id
    assert (await server.ask("DELETE", path)).status == 200
    assert (await server.ask("GET", path)).status == 404


async def test_all_that_is_answered_is_as_it_is_described(server: Serving) -> None:
    odd = {"type": "shell_call", "id": "sh_1", "action": {"commands": ["ls"]}}
    body: dict[str, Any] = {"items": [says("Hello", "msg_1"), odd], "metadata": {"topic": "weather"}}
    place = await begun(server, *body["items"], metadata=body["metadata"])
    answers = [
        ("Conversation", "GET", place, None),
        ("Conversation", "POST", place, {"metadata": None}),
        ("ItemList", "GET", f"{place}/items", None),
        ("ItemList", "POST", f"{place}/items", {"items": [says("Bye")]}),
        ("Item", "GET", f"{place}/items/sh_1", None),
        ("Conversation", "DELETE", f"{place}/items/sh_1", None),
        ("ConversationDeleted", "DELETE", place, None),
    ]
    for name, method, path, asked in answers:
        assert faults(name, (await server.ask(method, path, asked)).json()) == []
    assert faults("CreateConversation", body) == []
    assert faults("CreateConversation", {"items": TWENTY_ONE}) != []
    assert faults("AddItems", {}) != []
    assert faults("UpdateConversation", {}) != []


# ---- pages ----


async def test_items_come_newest_first_in_pages_of_twenty(server: Serving) -> None:
    place = await begun(server, *[says(str(i), f"msg_{i}") for i in range(20)])
    await server.ask("POST", f"{place}/items", {"items": [says(str(i), f"msg_{i}") for i in range(20, 25)]})
    first = (await server.ask("GET", f"{place}/items")).json()
    assert [item["id"] for item in first["data"]] == [f"msg_{i}" for i in range(24, 4, -1)]
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("msg_24", "msg_5", True)
    rest = (await server.ask("GET", f"{place}/items?after=msg_5")).json()
    assert [item["id"] for item in rest["data"]] == [f"msg_{i}" for i in range(4, -1, -1)]
    assert rest["has_more"] is False


async def test_items_can_be_paged_from_the_oldest_on_and_back(server: Serving) -> None:
    place = await begun(server, *[says(str(i), f"msg_{i}") for i in range(7)])
    assert await listed(server, place, "?order=asc&limit=3&after=msg_1") == ["msg_2", "msg_3", "msg_4"]
    assert await listed(server, place, "?order=asc&limit=2&before=msg_4") == ["msg_2", "msg_3"]
    assert await listed(server, place, "?limit=1") == ["msg_6"]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=msg_none", "after")],
)
async def test_a_page_that_cannot_be_is_refused(server: Serving, query: str, param: str) -> None:
    place = await begun(server, says("Hello"))
    assert said(await server.ask("GET", f"{place}/items?{query}")) == (400, param, "invalid_value")


# ---- what is wrong ----

TWENTY_ONE = [says(str(i)) for i in range(21)]


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ("Hello", "items", "invalid_value"),
        ({"role": "user"}, "items", "invalid_value"),
        (["Hello"], "items[0]", "invalid_value"),
        ([says("Hello"), {"content": "?"}], "items[1].type", "missing_required_parameter"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "items[0].content[0].type", "invalid_value"),
        ([{**says("Hello"), "id": 5}], "items[0].id", "invalid_value"),
        ([says("Hello", "x" * 513)], "items[0].id", "string_above_max_length"),
        (TWENTY_ONE, "items", "too_many_items"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("way", ["create", "add"])
async def test_an_item_that_cannot_be_read_is_named_and_nothing_is_kept(
    server: Serving, way: str, items: object, param: str, code: str
) -> None:
    place = await begun(server)
    path = CONVERSATIONS if way == "create" else f"{place}/items"
    assert said(await server.ask("POST", path, {"items": items})) == (400, param, code)
    assert await listed(server, place) == []


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ("topic", "metadata", "invalid_value"),
        ({"topic": 1}, "metadata.topic", "invalid_value"),
        ({"topic": "x" * 513}, "metadata.topic", "invalid_value"),
        ({str(i): "" for i in range(17)}, "metadata", "too_many_keys"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_metadata_has_the_limits_that_it_has_everywhere(
    server: Serving, metadata: object, param: str, code: str
) -> None:
    place = await begun(server)
    for path in (CONVERSATIONS, place):
        assert said(await server.ask("POST", path, {"metadata": metadata})) == (400, param, code)


async def test_what_must_be_there_is_missed_by_its_name(server: Serving) -> None:
    place = await begun(server)
    missing = "missing_required_parameter"
    assert said(await server.ask("POST", f"{place}/items", {})) == (400, "items", missing)
    assert said(await server.ask("POST", place, {})) == (400, "metadata", missing)


@pytest.mark.parametrize(("body", "code"), [(b"{", "invalid_json"), (b"[]", "invalid_json"), (b"\xff", "invalid_json")])
async def test_a_body_that_is_no_object_is_refused(server: Serving, body: bytes, code: str) -> None:
    place = await begun(server)
    for path in (CONVERSATIONS, place, f"{place}/items"):
        reply = await server.ask("POST", path, body, {"content-type": "application/json"})
        assert (reply.status, reply.error["code"]) == (400, code)


async def test_a_body_of_another_kind_or_too_large_is_refused() -> None:
    engine = Engine(demo_provider(), store=MemoryStore())
    async with serving(engine, Transport(engine, body_limit=1000)) as server:
        place = await begun(server)
        for path in (CONVERSATIONS, place, f"{place}/items"):
            reply = await server.ask("POST", path, b"{}", {"content-type": "text/plain"})
            assert reply.status == 415
            large = {"metadata": {"x": "y" * 1000}, "items": []}
            assert (await server.ask("POST", path, large)).status == 413


async def test_how_many_items_may_come_at_once_can_be_set() -> None:
    engine = Engine(demo_provider(), settings=EngineSettings(limits=Limits(conversation_items=2)))
    async with serving(engine) as server:
        place = await begun(server, says("one"), says("two"))
        reply = await server.ask("POST", f"{place}/items", {"items": [says(str(i)) for i in range(3)]})
        assert said(reply) == (400, "items", "too_many_items")


@pytest.mark.parametrize("name", ["conv_unknown", "x" * 257, "with%20space", "nul%00byte", "%2e%2e", "conv%2F1"])
@pytest.mark.parametrize(
    ("method", "part", "body"),
    [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [says("Hello")]}),
    ],
)
async def test_a_conversation_that_is_not_there_is_a_404(
    server: Serving, method: str, part: str, body: dict[str, Any] | None, name: str
) -> None:
    reply = await server.ask(method, f"{CONVERSATIONS}/{name}{part}", body)
    assert said(reply) == (404, None, "conversation_not_found")
    assert len(reply.error["message"]) < 300


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("name", "item", "code"),
    [
        ("conv_unknown", "msg_1", "conversation_not_found"),
        ("with%20space", "msg_1", "conversation_not_found"),
        ("conv%2F1", "msg_1", "unknown_url"),
        ("conv_unknown", "x" * 513, "item_not_found"),
    ],
)
async def test_an_item_of_what_is_not_there_is_a_404(
    server: Serving, method: str, name: str, item: str, code: str
) -> None:
    reply = await server.ask(method, f"{CONVERSATIONS}/{name}/items/{item}")
    assert (reply.status, reply.error["code"]) == (404, code)
    assert len(reply.error["message"]) < 400


async def test_one_address_cannot_be_written_as_two_that_mean_the_same_item(server: Serving) -> None:
    place = await begun(server, says("odd", "a/b"))
    assert (await server.ask("GET", f"{place}/items/a%2Fb")).status == 200
    assert (await server.ask("GET", f"{place}%2Fa/items/b")).error["code"] == "unknown_url"
    assert (await server.ask("GET", f"{place}/items/a/b")).error["code"] == "unknown_url"


async def test_a_store_that_cannot_be_read_is_a_500_with_its_own_code() -> None:
    class Failing(MemoryStore):
        async def conversation(self, *_: object) -> None:
            raise StoreFault("The record could not be read.") from OSError("disk on fire")

    async with serving(Engine(demo_provider(), store=Failing())) as server:
        reply = await server.ask("GET", f"{CONVERSATIONS}/conv_1")
    assert (reply.status, reply.error["code"]) == (500, "storage_error")
    assert "disk" not in reply.error["message"]
