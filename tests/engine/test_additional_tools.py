"""`additional_tools` items declare tools from that item on, for the response and for all that continue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import Compaction, CustomToolCall, FunctionCall, McpCall, OpaqueItem
from antwort.api.requests import read_request
from antwort.api.responses import Response
from antwort.api.wire import encode, to_plain
from antwort.crypto import Vault
from antwort.engine.engine import Engine
from antwort.engine.history.recent_responses import RecentResponses
from antwort.errors import InvalidField, TooManyValues
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatRequest
from antwort.storage.base import Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from compaction_kit import SUMMED, TALK
from credentials_kit import SERVER as SEALED
from credentials_kit import Door, House
from engine_kit import CLOCK, SERVER, WEATHER, ask, engine_of, only, replies, stream
from window_kit import SmallModel

pytestmark = pytest.mark.proves("RULING-20")

USER = {"role": "user", "content": "Hello"}
EVERYTHING = Page(limit=100, order="asc")


def additional(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": [*tools], **fields}


def described(name: str, about: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": about}


def offered(request: ChatRequest) -> dict[str, str | None]:
    """What the model is told of its tools, by their names."""
    plain = to_plain(request)
    return {each["function"]["name"]: each["function"].get("description") for each in plain.get("tools", ())}


def spoken(*answers: Any) -> ScriptedProvider:
    return ScriptedProvider(*(answers or [answer(say("Hi.")) for _ in range(3)]))


def fault(*items: Any, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        ask([*items], **fields)
    return caught.value


# ---- one request ----


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_the_model_is_offered_the_tools_of_an_item_and_its_call_is_the_clients(is_streamed: bool) -> None:
    provider = spoken(answer(call("weather", city="Oslo")))
    engine = engine_of(provider)
    request = ask([additional(WEATHER), USER], tools=[CLOCK])
    response = (await stream(engine, request)).response if is_streamed else await engine.create(request)
    assert [*offered(provider.requests[0])] == ["clock", "weather"]
    assert only(response, FunctionCall).name == "weather"
    assert [tool["name"] for tool in response.tools] == ["clock"], "the item is not echoed"
    assert [message["role"] for message in to_plain(provider.requests[0])["messages"]] == ["user"]
    page = await engine.input_items(ANONYMOUS, response.id, EVERYTHING)
    assert to_plain(page.items[0]) == {**additional(WEATHER), "id": page.items[0].id}


@pytest.mark.parametrize("role", ["user", "system", "assistant", None])
def test_only_the_developer_declares_tools(role: str | None) -> None:
    assert fault(USER, additional(WEATHER, role=role)).param == "input[1].role"


def test_what_is_wrong_with_a_tool_is_told_with_its_place() -> None:
    assert fault(additional(CLOCK, {"type": "function"})).param == "input[0].tools[1].name"
    assert fault(USER, {"type": "additional_tools", "role": "developer"}).param == "input[1].tools"
    assert fault(additional(7)).param == "input[0].tools[0]"  # type: ignore[arg-type]


async def test_an_item_without_tools_is_legal() -> None:
    provider = spoken()
    response = await engine_of(provider).create(ask([additional(), USER]))
    assert response.status == "completed"
    assert offered(provider.requests[0]) == {}


async def test_of_two_with_one_name_the_later_counts_and_the_requests_own_before_all() -> None:
    provider = spoken()
    items = [additional(described("a", "1"), described("b", "1")), USER, additional(described("a", "2"))]
    await engine_of(provider).create(ask([*items, USER]))
    assert offered(provider.requests[0]) == {"a": "2", "b": "1"}
    await engine_of(provider).create(ask([*items, USER], tools=[described("b", "own")]))
    assert offered(provider.requests[1]) == {"b": "own", "a": "2"}


def test_they_count_for_the_limits_of_tools_and_servers() -> None:
    limits = Limits(tools=3, servers=1)
    many = [described(f"f{n}", "x") for n in range(3)]
    read_request({"input": [additional(*many), additional(*many)]}, limits)
    for fields in (
        {"input": [USER, additional(*many)], "tools": [CLOCK]},
        {"input": [USER, additional(*many, CLOCK)]},
        {"input": [USER, additional({"type": "namespace", "name": "n", "tools": [*many, CLOCK]})]},
    ):
        with pytest.raises(InvalidField, match=r"more than 3 tools; 'limits\.tools'") as caught:
            read_request(fields, limits)
        assert (caught.value.code, str(caught.value.param)[:8]) == ("too_many_tools", "input[1]")
    servers = [{"type": "mcp", "server_label": each, "server_url": f"https://{each}.example.com"} for each in "ab"]
    with pytest.raises(InvalidField, match="more than 1 servers"):
        read_request({"input": [additional(servers[0])], "tools": [servers[1]]}, limits)


def heavy(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", "examples": [[]] * 60}}


async def test_all_tools_together_hold_no_more_than_one_item_may() -> None:
    """Neither in several items, nor beside the tools of the request, nor turn by turn."""
    provider, limits = ScriptedProvider(answer(say("ok")), answer(say("ok"))), Limits(item_values=100)
    async with engine_of(provider, limits=limits) as engine:
        with pytest.raises(TooManyValues) as caught:
            await engine.create(model="m", input=[USER, additional(heavy("a")), additional(heavy("b"))])
        assert caught.value.param == "input[2].tools[0]"
        assert "'input[2].tools[0]', holds more than 100 JSON values (limits.item_values)" in caught.value.message
        with pytest.raises(TooManyValues):
            await engine.create(model="m", input=[USER, additional(heavy("a"))], tools=[heavy("b")])
        first = await engine.create(model="m", input=[USER, additional(heavy("a")), additional(heavy("a"))])
        again = await engine.create(model="m", input=[USER, additional(heavy("a"))], previous_response_id=first.id)
        with pytest.raises(TooManyValues):
            await engine.create(model="m", input=[USER, additional(heavy("b"))], previous_response_id=again.id)


async def test_choice_and_allowed_list_know_them() -> None:
    provider = spoken(answer(call("clock")), answer(call("clock")), answer(say("So.")))
    engine = engine_of(provider)
    forced = {"type": "function", "name": "clock"}
    response = await engine.create(ask([additional(CLOCK), USER], tool_choice=forced))
    assert only(response, FunctionCall).name == "clock"
    weather = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    refused = await engine.create(ask([additional(CLOCK, WEATHER), USER], tool_choice=weather))
    assert "not allowed" in (only(refused, McpCall).error_text or "")
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([additional(WEATHER), USER], tool_choice=forced))
    assert caught.value.param == "tool_choice.name"


async def test_namespaces_in_them_are_called_by_name_and_namespace_and_other_types_are_dropped() -> None:
    tools: list[dict[str, Any]] = [
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}, WEATHER]},
        {"type": "web_search"},
    ]
    provider = spoken(answer(call("functions__exec", input="print(1)")))
    response = await engine_of(provider).create(ask([additional(*tools), USER]))
    assert [*offered(provider.requests[0])] == ["functions__exec", "functions__weather"]
    made = only(response, CustomToolCall)
    assert (made.name, made.namespace, made.input) == ("exec", "functions", "print(1)")
    with pytest.raises(InvalidField) as caught:
        await engine_of(spoken(), unknown_tools="refuse").create(ask([USER, additional(*tools)]))
    assert caught.value.param == "input[1].tools[1].type"


async def test_a_server_in_them_is_listed_and_its_calls_are_run_here() -> None:
    provider = spoken(answer(call("lookup")), answer(say("Found.")))
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("found")))
    outcome = await stream(engine, ask([additional(SERVER), USER]))
    assert [each["type"] for each in to_plain(outcome.response.output)] == ["mcp_list_tools", "mcp_call", "message"]
    assert only(outcome.response, McpCall).output == "found"
    with pytest.raises(InvalidField) as caught:
        await engine.create(ask([additional({"type": "mcp", "server_label": "nobody"}), USER]))
    assert caught.value.param == "input[0].tools[0].server_label"


# ---- those that continue it ----


async def test_a_response_that_continues_has_them_too() -> None:
    provider = spoken()
    engine = engine_of(provider)
    first = await engine.create(ask([additional(described("a", "1"), CLOCK), USER]))
    second = await engine.create(ask([USER, additional(described("a", "2"))], previous_response_id=first.id))
    third = await engine.create(ask(previous_response_id=second.id, tools=[described("clock", "own")]))
    assert [offered(each) for each in provider.requests[1:]] == [
        {"a": "2", "clock": None},
        {"clock": "own", "a": "2"},
    ]
    assert third.tools[0]["description"] == "own"
    forced = ask(previous_response_id=third.id, tool_choice={"type": "function", "name": "a"})
    assert (await engine.plan(forced)).toolbox.tools.keys() == {"a", "clock"}


async def test_the_limit_counts_those_of_history() -> None:
    engine = engine_of(spoken(), limits=Limits(tools=2))
    first = await engine.create(ask([additional(CLOCK, WEATHER), USER]))
    with pytest.raises(InvalidField, match="more than 2 tools") as caught:
        await engine.create(ask(previous_response_id=first.id, tools=[described("a", "1")]))
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "too_many_tools")
    await engine.create(ask(previous_response_id=first.id, tools=[described("clock", "own")]))


@pytest.mark.parametrize("where", ["begun with it", "added to it", "sent in a turn"])
async def test_a_conversation_has_them(where: str) -> None:
    provider = spoken()
    engine = engine_of(provider)
    held = await engine.conversations.create([additional(CLOCK)] if where == "begun with it" else [])
    if where == "added to it":
        await engine.conversations.add(held.id, [additional(CLOCK)])
    elif where == "sent in a turn":
        await engine.create(ask([additional(CLOCK), USER], conversation=held.id))
    await engine.create(ask(conversation=held.id))
    assert [*offered(provider.requests[-1])] == ["clock"]


async def test_a_connection_that_stores_nothing_has_them_and_what_they_bring() -> None:
    house, recent = House(MemoryStore()), RecentResponses()
    engine = house.engine(answer(say("Hi.")), answer(call("lookup")), answer(say("Found.")))
    run = await engine.start(ask([additional(SEALED), USER], store=False), recent=recent)
    first = await run.result()
    recent.keep(run.chain())
    assert "sesame" not in encode([[link.request.decode(), link.input] for link in recent.links()]).decode()
    again = ask(previous_response_id=first.id)
    second = await (await engine.start(again, recent=recent)).result()
    assert only(second, McpCall).output == "found"
    assert [tool.authorization for tool in house.door.ran if tool] == ["sesame3"]
    engine = house.engine(answer(call("lookup")), answer(say("Found.")))
    assert only(await engine.create(ask(previous_response_id=second.id)), McpCall).output == "found"


async def test_they_survive_truncation() -> None:
    long, model = {"role": "user", "content": "walrus " * 80}, SmallModel(100)
    engine = engine_of(model)
    first = await engine.create(ask([additional(CLOCK), long], truncation="auto"))
    await engine.create(ask("Hello", previous_response_id=first.id, truncation="auto"))
    (message,) = model.requests[-1].messages
    assert "2 earlier messages" in str(message.content)
    assert [*offered(model.requests[-1])] == ["clock"]


async def test_they_survive_where_a_history_is_too_large_to_be_read_whole() -> None:
    provider = spoken()
    engine = engine_of(provider, limits=Limits(history_bytes=50_000))
    first = await engine.create(ask([additional(CLOCK), {"role": "user", "content": "walrus " * 5_000}]))
    second = await engine.create(ask("walrus " * 5_000, previous_response_id=first.id))
    await engine.create(ask("Hello", previous_response_id=second.id, truncation="auto"))
    assert str(provider.requests[-1].messages).count("walrus walrus") < str(provider.requests[-2].messages).count(
        "walrus walrus"
    )
    assert [*offered(provider.requests[-1])] == ["clock"]


async def test_a_compaction_holds_them_where_the_client_leaves_the_rest_away() -> None:
    provider = spoken(SUMMED, answer(call("clock")))
    engine = engine_of(provider)
    window = await engine.compact(model="scripted", input=[additional(CLOCK, SEALED), *TALK])
    assert "sesame" not in encode(window).decode()
    compaction = only(window, Compaction)  # type: ignore[arg-type]
    response = await engine.create(ask([to_plain(compaction), USER]))
    assert only(response, FunctionCall).name == "clock"
    assert [*offered(provider.requests[-1])] == ["clock"]


async def test_sent_again_they_are_one_item_and_a_reference_stands_for_it() -> None:
    provider = spoken()
    engine = engine_of(provider)
    first = await engine.create(ask([additional(CLOCK, id="at_1"), USER]))
    second = await engine.create(ask([additional(CLOCK, id="at_1"), USER], previous_response_id=first.id))
    page = await engine.input_items(ANONYMOUS, second.id, EVERYTHING)
    assert not [item for item in page.items if isinstance(item, OpaqueItem)]
    await engine.create(ask([{"type": "item_reference", "id": "at_1"}, USER]))
    assert [[*offered(each)] for each in provider.requests] == [["clock"]] * 3


# ---- what they bring to log in ----


@pytest.mark.parametrize("way", ["previous_response_id", "conversation"])
async def test_what_a_server_in_them_brings_is_sealed_and_used_by_those_that_continue(tmp_path: Path, way: str) -> None:
    store = await SqliteStore.open(tmp_path / "responses.db")
    house = House(store)
    engine = house.engine(answer(say("Hi.")))
    held = await engine.conversations.create([]) if way == "conversation" else None
    named = {} if held is None else {"conversation": held.id}
    first = await engine.create(ask([additional(SEALED), USER], **named))
    await _nothing_shown(engine, first, None if held is None else held.id)
    await store.close()
    written = _all_bytes(tmp_path)
    assert b"tools.example.com" in written
    assert b"sesame" not in written
    store = await SqliteStore.open(tmp_path / "responses.db")
    later = House(store)
    engine = later.engine(answer(call("lookup")), answer(say("Found.")))
    await engine.create(ask(**(named or {"previous_response_id": first.id})))
    assert [tool.authorization for tool in later.door.ran if tool] == ["sesame3"]
    assert [tool.server_url for tool in later.door.ran if tool] == [SEALED["server_url"]]
    await store.close()


def _all_bytes(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


async def _nothing_shown(engine: Engine, response: Response, conversation: str | None) -> None:
    page = await engine.input_items(ANONYMOUS, response.id, EVERYTHING)
    shown = encode([response, page.items]).decode()
    if conversation is not None:
        items = (await engine.conversations.items(conversation, EVERYTHING)).items
        shown += encode([items, await engine.conversations.item(conversation, items[0].id)]).decode()
        shown += encode(await engine.conversations.add(conversation, [additional(SEALED, id="at_2")])).decode()
        await engine.conversations.delete_item(conversation, "at_2")
    assert "https://tools.example.com" in shown
    assert "sesame" not in shown
    assert "antwort_credentials" not in shown


async def test_a_call_that_waited_is_run_with_what_the_item_brought() -> None:
    house = House(MemoryStore())
    engine = house.engine(answer(call("lookup"), call("clock")))
    first = await engine.create(ask([additional(SEALED, CLOCK), USER]))
    assert first.status == "requires_action"
    assert (await house.gone_on(first)).output == "found"
    assert [tool.authorization for tool in house.door.ran if tool] == ["sesame3"]


async def test_without_its_key_a_server_of_history_is_left_out_and_its_open_call_says_so() -> None:
    store: ResponseStore = MemoryStore()
    first = (
        await House(store).engine(answer(call("lookup"), call("clock"))).create(ask([additional(SEALED, CLOCK), USER]))
    )
    later = House(store, secret="another secret of a vault")
    item = await later.gone_on(first)
    assert item.error_text == "The address and the credentials of the server 'depot' are lost; declare it again."
    assert later.door.found == []


async def test_what_a_client_writes_in_the_place_of_what_is_sealed_is_not_kept() -> None:
    store = MemoryStore()
    engine = Engine(spoken(), executors=[Door()], vault=Vault(["one secret of a vault"]), store=store)
    forged = additional(CLOCK, antwort_credentials={"tools": [0], "sealed": "x"})
    first = await engine.create(ask([forged, USER]))
    [link] = await store.chain(ANONYMOUS, first.id)
    assert b"antwort_credentials" not in encode(link.input)
    await engine.create(ask(previous_response_id=first.id))
