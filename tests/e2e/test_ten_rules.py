"""Ten rules that real clients live by, each sentence held against every kind of response, on the wire.

What the official SDKs check is checked by them where they can be asked; the rest (what zod schemas, Rust structs and
other people's models demand) is stated here in plain assertions.
"""

from __future__ import annotations

import asyncio
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai._streaming import SSEDecoder
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from antwort.api.events import ErrorEvent
from antwort.api.wire import encode
from antwort.engine.settings import LoopSettings
from antwort.testing import answer, say
from raw_http import connected
from scenes import SCENES, STREAMED, WHOLE, Played, Scene, body_of, data_of, engine_for, play
from serving import RESPONSES, serving

BY_NAME = {scene.name: scene for scene in SCENES}
every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
both_ways = pytest.mark.parametrize("streamed", [STREAMED, WHOLE], ids=["streamed", "whole"])
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
LIFECYCLE = ("response.created", "response.in_progress", *TERMINAL)


_played: dict[tuple[str, bool], Played] = {}


async def play_once(scene: Scene, *, streamed: bool) -> Played:
    """What came of the scene, which is the same for all who look at it."""
    key = scene.name, streamed
    if key not in _played:
        _played[key] = await play(scene, streamed=streamed)
    return _played[key]


def scenes(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", [BY_NAME[name] for name in names], ids=names)


@every_scene
@both_ways
async def test_every_scene_ends_as_it_is_meant_to_and_is_stored_as_it_was_told(scene: Scene, streamed: bool) -> None:
    played = await play_once(scene, streamed=streamed)
    assert played.response["status"] == scene.status
    assert tuple(item["type"] for item in played.response["output"]) == scene.kinds
    error = played.response["error"]
    assert (error and error["code"]) == scene.code
    assert played.stored == played.response


# ---- 1: how a stream ends ----


@pytest.mark.proves("FR-024")
@every_scene
async def test_rule_1_a_stream_has_one_terminal_event_of_a_name_that_clients_know_and_it_is_the_last(
    scene: Scene,
) -> None:
    played = await play_once(scene, streamed=STREAMED)
    names = [event["type"] for event in played.events]
    assert [name for name in names if name in TERMINAL] == [names[-1]]
    assert not {"response.requires_action", "response.cancelled"} & set(names)


# ---- 2: the client's turn ----


@pytest.mark.proves("FR-019", "FR-026")
@scenes("a call for the client beside tools of ours")
@pytest.mark.parametrize(("setting", "status"), [("status", "requires_action"), ("completed", "completed")])
@both_ways
async def test_rule_2_the_clients_turn_is_a_status_inside_response_completed(
    scene: Scene, setting: str, status: str, streamed: bool
) -> None:
    played = await play(scene, streamed=streamed, requires_action=setting)
    assert played.response["status"] == status
    assert [item["type"] for item in played.response["output"]] == ["function_call"]
    if streamed:
        assert played.events[-1]["type"] == "response.completed"


# ---- 3: what is the client's to run ----


@pytest.mark.proves("RULING-1")
@every_scene
@both_ways
async def test_rule_3_a_call_is_a_function_call_only_if_the_request_declares_that_function(
    scene: Scene, streamed: bool
) -> None:
    played = await play_once(scene, streamed=streamed)
    declared = {tool.get("name") for tool in scene.asked.get("tools", [])}
    shown = [*played.response["output"], *(event["item"] for event in played.events if "item" in event)]
    assert {item["name"] for item in shown if item["type"] in ("function_call", "custom_tool_call")} <= declared


@scenes(
    "tools of a server",
    "a tool of a server that fails",
    "a call to a name that nobody knows",
    "a call that is not allowed",
)
@both_ways
async def test_rule_3_what_a_server_runs_or_refuses_is_an_mcp_call_after_a_list_of_tools(
    scene: Scene, streamed: bool
) -> None:
    played = await play_once(scene, streamed=streamed)
    kinds = [item["type"] for item in played.response["output"]]
    assert kinds.index("mcp_list_tools") < kinds.index("mcp_call")
    assert not {"function_call", "function_call_output"} & set(kinds)


# ---- 4: nothing of our own invention ----


def _tags(union: Any) -> set[str]:
    members = typing.get_args(typing.get_args(union)[0])
    return {typing.get_args(member.model_fields["type"].annotation)[0] for member in members}


KNOWN_EVENTS, KNOWN_ITEMS = _tags(ResponseStreamEvent), _tags(ResponseOutputItem)


@every_scene
@both_ways
async def test_rule_4_events_and_items_are_of_types_that_the_sdks_know(scene: Scene, streamed: bool) -> None:
    played = await play_once(scene, streamed=streamed)
    assert {event["type"] for event in played.events} <= KNOWN_EVENTS
    assert {item["type"] for item in played.response["output"]} <= KNOWN_ITEMS


# ---- 5: no silence without end (with real clients in test_silent_streams.py) ----

LANGCHAIN, CODEX = 120.0, 300.0
"""Seconds without an event after which these give up."""


def test_rule_5_by_default_no_silence_lasts_as_long_as_a_client_waits_for_an_event() -> None:
    settings = LoopSettings()
    looked_at = 1.25  # a silence is noticed that much later at most
    assert settings.progress_interval is not None
    assert settings.longest_silence is not None
    assert settings.progress_interval <= settings.longest_silence
    assert settings.longest_silence * looked_at < min(LANGCHAIN, CODEX)


# ---- 6: frames ----


def is_sound(body: bytes) -> int:
    """Whether every frame is an event with data, or a comment that stands alone; gives how many comments there are."""
    comments = 0
    assert body.endswith(b"\n\n")
    for frame in body.decode().removesuffix("\n\n").split("\n\n"):
        fields = [line.partition(": ")[0] for line in frame.split("\n")]
        assert fields in (["event", "data"], ["data"], [""])
        comments += fields == [""]
    return comments


@pytest.mark.proves("TR-009")
@every_scene
async def test_rule_6_no_frame_has_an_id_and_every_frame_has_data(scene: Scene) -> None:
    assert is_sound((await play_once(scene, streamed=STREAMED)).reply.body) == 0


async def test_rule_6_comments_stand_between_frames_and_the_sdk_makes_no_events_of_them() -> None:
    gate = asyncio.Event()
    scene = Scene("silent", lambda: [answer(say("Hel"), gate, say("lo"))])
    chunks: list[bytes] = []
    async with serving(engine_for(scene, keepalive_interval=0.01)) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, body_of(scene, streamed=STREAMED))
        await wire.head()
        while chunk := await wire.chunk():
            chunks.append(chunk)
            if chunk.startswith(b":"):
                gate.set()
    body = b"".join(chunks)
    assert is_sound(body) >= 1
    decoded = list(SSEDecoder().iter_bytes(iter(chunks)))
    assert all(event.data for event in decoded)
    assert [event.event for event in decoded[:-1]] == [event["type"] for event in data_of(body)]


# ---- 7: the end of the body ----


@pytest.mark.proves("TR-010")
@every_scene
async def test_rule_7_the_terminal_event_the_mark_and_the_end_of_the_body_are_one_write(scene: Scene) -> None:
    async with serving(engine_for(scene)) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, body_of(scene, streamed=STREAMED), {"connection": "close"})
        assert (await wire.head()).status == 200
        raw = await wire.reader.read()
    last = raw.rpartition(b"event: response.")[2]
    assert re.fullmatch(rb"(completed|incomplete|failed)\ndata: \{.*\}\n\ndata: \[DONE\]\n\n\r\n0\r\n\r\n", last)


@pytest.mark.proves("TR-010", "TR-022", "RULING-9")
@pytest.mark.parametrize("how", ["cancelled", "shut down", "past its deadline"])
async def test_rule_7_a_run_that_is_stopped_from_outside_ends_the_body_the_same_way(how: str) -> None:
    scene = Scene("hanging", lambda: [answer(say("Hel"), asyncio.Event())])
    engine = engine_for(scene, deadline=0.2 if how == "past its deadline" else 600)
    async with serving(engine) as server, connected(server.port) as wire:
        wire.send("POST", RESPONSES, body_of(scene, streamed=STREAMED), {"connection": "close"})
        await wire.head()
        raw = await wire.reader.readuntil(b"delta")
        found = re.search(rb'"id":"(resp_\w+)"', raw)
        assert found
        if how == "cancelled":
            await server.ask("POST", f"{RESPONSES}/{found[1].decode()}/cancel")
        elif how == "shut down":
            await engine.drain(0)
        raw += await wire.reader.read()
    event = rb"failed" if how == "shut down" else rb"incomplete"
    last = raw.rpartition(b"event: response.")[2]
    assert re.fullmatch(event + rb"\ndata: \{.*\}\n\ndata: \[DONE\]\n\n\r\n0\r\n\r\n", last)


# ---- 8: failures ----

FAILED = [scene for scene in SCENES if scene.status == "failed"]


@pytest.mark.proves("TR-016", "EN-036")
@pytest.mark.parametrize("scene", FAILED, ids=lambda scene: scene.name)
@both_ways
async def test_rule_8_a_failure_on_the_way_is_response_failed_with_a_code_and_a_message(
    scene: Scene, streamed: bool
) -> None:
    played = await play_once(scene, streamed=streamed)
    error = played.response["error"]
    assert {key: type(value) for key, value in error.items()} == {"code": str, "message": str, "type": str}
    assert error["message"]
    assert played.stored["error"] == error
    if streamed:
        assert played.events[-1]["type"] == "response.failed"


@every_scene
async def test_rule_8_no_event_is_an_error_event_or_carries_an_error_at_its_top(scene: Scene) -> None:
    played = await play_once(scene, streamed=STREAMED)
    assert all(event["type"] != "error" and "error" not in event for event in played.events)


def test_rule_8_an_error_event_where_there_is_no_response_has_both_shapes() -> None:
    nested = {"type": "server_error", "code": "c", "message": "m", "param": None}
    event = ErrorEvent(code="c", message="m", param=None, error=nested)
    assert encode(event) == (
        b'{"type":"error","code":"c","message":"m","param":null,'
        b'"error":{"type":"server_error","code":"c","message":"m","param":null}}'
    )


# ---- 9: null, absent, present ----


def items_of(played: Played) -> Iterator[dict[str, Any]]:
    """Every item that a client gets to see: as it was added, as it was done, and in the response."""
    for event in played.events:
        if "item" in event:
            yield event["item"]
        if "response" in event:
            yield from event["response"]["output"]
    yield from played.response["output"]


def responses_of(played: Played) -> Iterator[dict[str, Any]]:
    yield from (event["response"] for event in played.events if "response" in event)
    yield played.response
    yield played.stored


@every_scene
@both_ways
async def test_rule_9_what_ai_sdk_wants_absent_is_never_null(scene: Scene, streamed: bool) -> None:
    for item in items_of(await play_once(scene, streamed=streamed)):
        if item["type"] == "mcp_list_tools":
            assert item.get("error", "absent") is not None
            for tool in item["tools"]:
                assert tool.get("description", "absent") is not None
                assert tool.get("annotations", "absent") is not None
        if item["type"] == "mcp_call":
            assert "approval_request_id" not in item
            assert {"output", "error"} <= item.keys(), "these it takes as null, as OpenAI writes them"


@every_scene
@both_ways
async def test_rule_9_texts_bring_their_annotations_and_logprobs(scene: Scene, streamed: bool) -> None:
    played = await play_once(scene, streamed=streamed)
    parts = [part for item in items_of(played) if item["type"] == "message" for part in item["content"]]
    parts += [event["part"] for event in played.events if "part" in event]
    for part in parts:
        if part["type"] == "output_text":
            assert part["annotations"] == []
            assert part["logprobs"] == []
    for event in played.events:
        if event["type"] in ("response.output_text.delta", "response.output_text.done"):
            assert event["logprobs"] == []


@every_scene
@both_ways
async def test_rule_9_items_have_what_clients_know_them_by(scene: Scene, streamed: bool) -> None:
    for item in items_of(await play_once(scene, streamed=streamed)):
        assert item["id"]
        assert item["status"]
        if item["type"] in ("function_call", "custom_tool_call", "function_call_output"):
            assert item["call_id"]
        if item["type"] == "reasoning":
            assert isinstance(item["summary"], list)
            assert item.get("content", []) is not None
            assert item.get("encrypted_content", "absent") is not None
        if item["type"] == "message":
            assert item["role"] == "assistant"
            assert item.get("phase", "absent") is not None


@every_scene
@both_ways
async def test_rule_9_responses_have_all_that_models_of_them_demand(scene: Scene, streamed: bool) -> None:
    for response in responses_of(await play_once(scene, streamed=streamed)):
        assert response["model"] == "scripted"
        assert type(response["created_at"]) is int
        assert {"parallel_tool_calls", "tool_choice", "tools"} <= response.keys()
        assert isinstance(response["tools"], list)
        assert isinstance(response.get("conversation", {}), dict)
        if (error := response["error"]) is not None:
            assert isinstance(error["type"], str)
            assert isinstance(error["code"], str)
        if (usage := response["usage"]) is not None:
            assert {"cached_tokens", "cache_write_tokens"} <= usage["input_tokens_details"].keys()
            assert "reasoning_tokens" in usage["output_tokens_details"]


@every_scene
@both_ways
async def test_rule_9_the_strict_models_of_the_sdk_take_events_and_responses(scene: Scene, streamed: bool) -> None:
    """All but the two statuses and the two codes that are in none of its literals."""
    played = await play_once(scene, streamed=streamed)
    event_model: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in played.events:
        event_model.validate_python(_in_its_words(event))
    SdkResponse.model_validate(_in_its_words({"response": played.response})["response"])


def _in_its_words(event: dict[str, Any]) -> dict[str, Any]:
    if "response" not in event:
        return event
    response = dict(event["response"])
    if response["status"] == "requires_action":
        response["status"] = "completed"
    if response["error"] is not None:
        response["error"] = {**response["error"], "code": "server_error"}
    if response["incomplete_details"] is not None:
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    return {**event, "response": response}


# ---- 10: identities ----


@pytest.mark.proves("CP-028", "FR-023")
@every_scene
async def test_rule_10_a_stream_begins_with_an_empty_snapshot_and_no_id_changes(scene: Scene) -> None:
    played = await play_once(scene, streamed=STREAMED)
    first, *_ = played.events
    assert first["type"] == "response.created"
    assert first["response"]["output"] == []
    assert len({event["response"]["id"] for event in played.events if "response" in event}) == 1
    added = {event["output_index"]: event["item"] for event in played.of("response.output_item.added")}
    assert list(added) == list(range(len(added))), "no index twice, none left out"
    done = {event["output_index"]: event["item"] for event in played.of("response.output_item.done")}
    assert done.keys() == added.keys()
    for at, item in done.items():
        for key in ("type", "id", "call_id"):
            assert item.get(key) == added[at].get(key)
    assert played.response["output"] == [done[at] for at in sorted(done)]


@every_scene
async def test_rule_10_texts_have_a_part_before_them_and_calls_begin_empty(scene: Scene) -> None:
    played = await play_once(scene, streamed=STREAMED)
    parts: set[tuple[str, int]] = set()
    for event in played.events:
        if event["type"] == "response.content_part.added":
            parts.add((event["item_id"], event["content_index"]))
        elif "content_index" in event:
            assert (event["item_id"], event["content_index"]) in parts
        elif event["type"] == "response.output_item.added":
            item = event["item"]
            if item["type"] in ("function_call", "mcp_call"):
                assert item["arguments"] == ""
            if item["type"] == "custom_tool_call":
                assert item["input"] == ""


@every_scene
async def test_rule_10_the_stream_of_the_sdk_that_checks_all_this_reads_to_the_end(scene: Scene) -> None:
    async with serving(engine_for(scene)) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
        async with client, client.responses.stream(**_asked(scene)) as stream:
            events = [event async for event in stream]
            if scene.status in ("completed", "requires_action"):
                final = await stream.get_final_response()
                assert [item.type for item in final.output] == list(scene.kinds)
    assert events[-1].type in TERMINAL


def _asked(scene: Scene) -> dict[str, Any]:
    """Its helper takes fields that are not in its signature apart."""
    asked = {"model": "scripted", "input": "Hello", **scene.asked}
    extra = {"allowed_tools": asked.pop("allowed_tools")} if "allowed_tools" in asked else None
    return {**asked, "extra_body": extra}


def test_every_ending_is_among_the_scenes() -> None:
    endings = {"completed", "requires_action", "incomplete", "cancelled", "failed"}
    assert {scene.status for scene in SCENES} == endings
