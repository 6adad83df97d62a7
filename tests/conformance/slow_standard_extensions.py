"""What the standard does not have, under the strict setting: it carries a prefix, is kept without, and can be sent
again as it came.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import sent
from raw_http import connected
from scenes import DEPOT, SCENES, WHOLE, Played, Scene, asked, body_of, data_of, engine_for, play
from serving import RESPONSES, serving
from socket_kit import connected as connected_socket
from standard import ITEMS, validate_error, validate_extended_event, validate_extended_response

every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
both_ways = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
ITEM_PATH = "/v1/responses/{}/input_items"


def types_of(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


@both_ways
@every_scene
async def test_every_response_is_the_standards_with_extensions(scene: Scene, streamed: bool) -> None:
    played = await play(scene, streamed=streamed, strict=True)
    for number, event in enumerate(played.events):
        assert event["sequence_number"] == number
        validate_extended_event(event)
    validate_extended_response(played.response)
    assert played.stored == played.response


@every_scene
async def test_over_a_websocket_it_is_the_same(scene: Scene) -> None:
    async with serving(engine_for(scene, strict=True)) as server, connected_socket(server.port, strict=True) as socket:
        await socket.ask(**{key: value for key, value in body_of(scene, streamed=True).items() if key != "stream"})
    for event in socket.heard:
        validate_extended_event(event)


async def test_the_items_the_events_and_the_tools_of_a_server_are_prefixed() -> None:
    scene = next(scene for scene in SCENES if scene.name == "tools of a server")
    played = await play(scene, streamed=True, strict=True)
    own = [kind if kind in ITEMS else f"antwort:{kind}" for kind in scene.kinds]
    assert types_of(played.response) == own
    assert played.response["tools"] == [{**DEPOT, "type": "antwort:mcp"}]
    foreign = {event["type"] for event in played.events if ":" in event["type"]}
    assert foreign == {
        f"antwort:response.{name}"
        for name in (
            "mcp_list_tools.in_progress",
            "mcp_list_tools.completed",
            "mcp_call.in_progress",
            "mcp_call_arguments.delta",
            "mcp_call_arguments.done",
            "mcp_call.completed",
        )
    }


# ---- what is kept does not depend on the setting ----


async def read_again(played: Played, store: MemoryStore, *, strict: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored response and the list of all, from another server."""
    engine = Engine(ScriptedProvider(), store=store, settings=EngineSettings(strict=strict))
    async with serving(engine) as server:
        one = await server.ask("GET", f"{RESPONSES}/{played.response['id']}")
        listed = await server.ask("GET", RESPONSES)
        return one.json(), listed.json()["data"][0]


async def made(scene: Scene, store: MemoryStore, *, strict: bool) -> Played:
    engine = Engine(
        ScriptedProvider(*scene.answers()),
        store=store,
        executors=list(scene.executors()),
        settings=EngineSettings(**{**scene.settings, "strict": strict}),
    )
    async with serving(engine) as server:
        return await asked(server, body_of(scene, streamed=WHOLE))


@every_scene
async def test_a_response_that_was_made_without_the_setting_is_read_in_the_standards_words(scene: Scene) -> None:
    store = MemoryStore()
    played = await made(scene, store, strict=False)
    one, listed = await read_again(played, store, strict=True)
    validate_extended_response(one)
    assert listed == one
    assert types_of(one) == [kind if kind in ITEMS else f"antwort:{kind}" for kind in types_of(played.response)]
    back, _ = await read_again(played, store, strict=False)
    assert back == played.response


@every_scene
async def test_a_response_that_was_made_with_the_setting_is_read_in_the_usual_words_without(scene: Scene) -> None:
    store = MemoryStore()
    played = await made(scene, store, strict=True)
    one, _ = await read_again(played, store, strict=False)
    assert "antwort:" not in json.dumps(one)
    assert types_of(one) == [kind.removeprefix("antwort:") for kind in types_of(played.response)]
    if one["error"] is not None:
        assert one["error"]["type"] in ("server_error", "invalid_request_error")


async def test_a_stream_that_is_read_again_by_its_key_is_in_the_words_of_the_server_that_sends_it() -> None:
    """From the record, where the events are kept as they were."""
    scene, store, key = SCENES[2], MemoryStore(), {"idempotency-key": "8e03978e-40d5"}
    body = {**body_of(scene, streamed=True), "input": "Think."}
    seen = []
    for strict in (False, True):
        engine = Engine(ScriptedProvider(*scene.answers()), store=store, settings=EngineSettings(strict=strict))
        async with serving(engine) as server:
            reply = await server.ask("POST", RESPONSES, body, key)
        seen.append([event["type"] for event in data_of(reply.body) if "reasoning" in event["type"]])
    assert {*seen[0]} == {"response.reasoning_text.delta", "response.reasoning_text.done"}
    assert seen[1] == [name.replace("reasoning_text", "reasoning") for name in seen[0]]


async def test_the_items_of_a_conversation_are_written_in_the_standards_words() -> None:
    call = {"type": "mcp_call", "server_label": "depot", "name": "lookup", "arguments": "{}", "output": "found"}
    store, path = MemoryStore(), ""
    for strict, said in ((True, "antwort:mcp_call"), (False, "mcp_call")):
        engine = Engine(ScriptedProvider(), store=store, settings=EngineSettings(strict=strict))
        async with serving(engine) as server:
            if not path:
                made = (await server.ask("POST", "/v1/conversations", {"items": [call]})).json()
                path = f"/v1/conversations/{made['id']}/items"
            before = (await server.ask("GET", path)).json()["data"]
            again = [{**item, "id": None} for item in before]
            added = (await server.ask("POST", path, {"items": again})).json()["data"]
        assert {item["type"] for item in (*before, *added)} == {said}
    assert len(added) == 2


async def test_an_item_that_looks_like_something_else_is_stored_and_read() -> None:
    odd = {"type": "foo", "id": "x_1", "object": "response", "output": [{"x": 1}]}
    said = {**odd, "type": "antwort:foo"}
    engine = Engine(ScriptedProvider(answer(say("Yes"))), store=MemoryStore(), settings=EngineSettings(strict=True))
    async with serving(engine) as server:
        made = (await server.ask("POST", "/v1/conversations", {"items": [odd]})).json()
        path = f"/v1/conversations/{made['id']}/items"
        listed = await server.ask("GET", path)
        added = await server.ask("POST", path, {"items": [{**odd, "id": "x_2"}]})
        one = await server.ask("GET", f"{path}/x_1")
        body = {"model": "scripted", "input": [odd, {"role": "user", "content": "Hello"}]}
        response = (await server.ask("POST", RESPONSES, body)).json()
        inputs = await server.ask("GET", ITEM_PATH.format(response["id"]) + "?order=asc")
    assert (listed.json()["data"], one.json(), inputs.json()["data"][0]) == ([said], said, said)
    assert added.json()["data"] == [{**said, "id": "x_2"}]


# ---- what was given out can be sent again ----


async def heard(output: list[dict[str, Any]], scene: Scene) -> list[dict[str, Any]]:
    """What the model gets to see of a talk with this output in it."""
    provider = ScriptedProvider(answer(say("Yes")))
    engine = Engine(provider, store=MemoryStore(), executors=list(scene.executors()))
    async with serving(engine) as server:
        talk = [{"role": "user", "content": "Hello"}, *output, {"role": "user", "content": "Go on"}]
        reply = await server.ask("POST", RESPONSES, {**scene.asked, "model": "scripted", "input": talk})
        assert reply.status == 200, reply.body
    messages: list[dict[str, Any]] = sent(provider.requests[0])["messages"]
    return messages


@every_scene
async def test_a_client_can_send_back_what_it_was_given(scene: Scene) -> None:
    played = await play(scene, streamed=WHOLE, strict=True)
    given = played.response["output"]
    plain = [{**item, "type": item["type"].removeprefix("antwort:")} for item in given]
    assert await heard(given, scene) == await heard(plain, scene)


async def test_what_a_client_sent_is_listed_in_the_standards_words() -> None:
    talk = [
        {"type": "antwort:mcp_call", "server_label": "depot", "name": "lookup", "arguments": "{}", "output": "found"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"role": "user", "content": "Go on"},
    ]
    store = MemoryStore()
    for strict, slug in ((True, "antwort:"), (False, "")):
        engine = Engine(ScriptedProvider(answer(say("Yes"))), store=store, settings=EngineSettings(strict=strict))
        async with serving(engine) as server:
            body = {"model": "scripted", "input": talk}
            response = (await server.ask("POST", RESPONSES, body)).json()
            listed = (await server.ask("GET", ITEM_PATH.format(response["id"]) + "?order=asc")).json()["data"]
        assert [item["type"] for item in listed] == [f"{slug}mcp_call", f"{slug}web_search_call", "message"]


async def test_the_tools_that_are_echoed_can_be_sent_again() -> None:
    scene = next(scene for scene in SCENES if scene.name == "tools of a server")
    async with serving(engine_for(scene, strict=True)) as server:
        first = await asked(server, body_of(scene, streamed=WHOLE))
    async with serving(engine_for(scene, strict=True)) as server:
        again = await asked(server, {**body_of(scene, streamed=WHOLE), "tools": first.response["tools"]})
    assert types_of(again.response) == types_of(first.response)


# ---- errors ----


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", RESPONSES, b"{", 400, "invalid_request"),
        ("POST", RESPONSES, {"input": [{"type": "message"}]}, 400, "invalid_request"),
        ("POST", RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, 404, "not_found"),
        ("GET", f"{RESPONSES}/resp_1", None, 404, "not_found"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("PUT", RESPONSES, {}, 405, "invalid_request"),
    ],
)
async def test_an_error_is_the_standards(method: str, path: str, body: Any, status: int, kind: str) -> None:
    engine = Engine(ScriptedProvider(), store=MemoryStore(), settings=EngineSettings(strict=True))
    async with serving(engine) as server:
        reply = await server.ask(method, path, {"model": "scripted", **body} if isinstance(body, dict) else body)
    assert (reply.status, reply.error["type"]) == (status, kind)
    validate_error(reply.json())


async def test_what_is_no_request_at_all_is_answered_in_the_standards_words_too() -> None:
    engine = Engine(ScriptedProvider(), store=MemoryStore(), settings=EngineSettings(strict=True))
    async with serving(engine) as server, connected(server.port) as wire:
        wire.writer.write(b"this is not http\r\n\r\n")
        reply = await wire.reply()
    assert (reply.status, reply.error["type"]) == (400, "invalid_request")


def test_the_event_that_the_standard_does_not_have_is_refused_with_the_setting() -> None:
    with pytest.raises(ValueError, match="requires_action cannot be `event`"):
        Engine(ScriptedProvider(), settings=EngineSettings(strict=True, requires_action="event"))
