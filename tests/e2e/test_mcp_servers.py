"""A whole server and real MCP servers over streamable HTTP: by label, by address, standing, and in whose name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort import Engine, McpExecutor, McpServer
from antwort.api.items import McpCall
from antwort.api.wire import replace
from antwort.config import Secret, Settings
from antwort.config.settings import (
    AuthSettings,
    KeySettings,
    McpServerSettings,
    McpSettings,
    ReachSettings,
    StandingSettings,
    ToolSettings,
)
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.testing.mcp import Faults, Served, TryServer, served
from antwort.testing.mcp.tools import PIXEL
from key_kit import bearing
from mcp_house import Call, House, called, house, listed, nothing_left_behind, request
from mcp_kit import nobody_there
from serving import RESPONSES
from settings_kit import in_front_of

ECHO = ("echo", {"text": "hello"})
ANNE, BOB = "sk-anne-0123456789", "sk-bob-0123456789"


@pytest.fixture(autouse=True)
async def counted() -> AsyncIterator[None]:
    async with nothing_left_behind():
        yield


def at(server: Served | str, label: str = "try", **more: Any) -> McpServerSettings:
    return McpServerSettings(label=label, url=server if isinstance(server, str) else server.url, **more)


def by_address(server: Served | str, **more: Any) -> dict[str, Any]:
    url = server if isinstance(server, str) else server.url
    return {"server_label": "theirs", "server_url": url, "require_approval": "never", **more}


def with_keys() -> Settings:
    keys = (
        KeySettings(name="anne", key=Secret(ANNE), metrics=True),
        KeySettings(name="bob", key=Secret(BOB)),
    )
    return replace(in_front_of(), auth=AuthSettings(keys=keys))


async def ask_as(ours: House, key: str, declared: Any, *calls: Any, **more: Any) -> dict[str, Any]:
    reply = await ours.server.ask("POST", RESPONSES, request(declared, *calls, **more), bearing(key))
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json()
    return answer


# ---- by label and by address ----


async def test_a_server_is_named_by_its_label_and_its_list_is_asked_for_once() -> None:
    async with served() as server, house(at(server)) as ours:
        responses = [await ours.ask("try", ECHO) for _ in range(3)]
        assert [called(response)[0]["output"] for response in responses] == ["hello"] * 3
        assert server.server.record.count("listed") == 1
        echo = next(tool for tool in listed(responses[0])["tools"] if tool["name"] == "echo")
    assert echo["annotations"]["readOnlyHint"] is True
    assert "error" not in listed(responses[0])


async def test_a_streamed_response_shows_the_list_the_call_and_its_result() -> None:
    async with served() as server, house(at(server)) as ours:
        reply = await ours.reply("try", ECHO, stream=True)
    assert reply.status == 200
    for name in ("mcp_list_tools.completed", "mcp_call.in_progress", "mcp_call_arguments.done", "mcp_call.completed"):
        assert f"event: response.{name}\n".encode() in reply.body


async def test_a_server_is_named_by_its_address() -> None:
    async with served() as server, house() as ours:
        response = await ours.ask(by_address(server), ECHO)
        assert (called(response)[0]["server_label"], called(response)[0]["output"]) == ("theirs", "hello")


@pytest.mark.parametrize(
    ("mcp", "code"),
    [
        (McpSettings(declared=False), "unsupported_parameter"),
        (McpSettings(reach=ReachSettings(loopback="never")), "server_not_allowed"),
        (McpSettings(reach=ReachSettings(only_allowed=True, allow=("tools.example.com",))), "server_not_allowed"),
    ],
)
async def test_an_address_is_named_only_where_the_operator_lets_it(mcp: McpSettings, code: str) -> None:
    async with served() as server, house(mcp=mcp) as ours:
        reply = await ours.reply(by_address(server), ECHO)
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "tools[0].server_url", code)
        assert server.server.record.entries == []


async def test_the_operators_server_is_not_to_be_had_at_another_address() -> None:
    async with served() as server, house(at(server)) as ours:
        reply = await ours.reply(by_address("https://example.com/mcp", server_label="try"), ECHO)
    assert (reply.status, reply.error["param"]) == (400, "tools[0].server_url")


async def test_servers_whose_tools_have_one_name_are_told_apart() -> None:
    async with served() as one, served() as other, house(at(one, "one"), at(other, "other")) as ours:
        asked = request("one", ("other__echo", {"text": "hi"}))
        asked["tools"].append({"type": "mcp", "server_label": "other"})
        response = (await ours.server.ask("POST", RESPONSES, asked)).json()
        (only,) = called(response)
        assert (only["server_label"], only["name"], only["output"]) == ("other", "echo", "hi")
        assert (one.server.record.count("called"), other.server.record.count("called")) == (0, 1)


# ---- what comes back ----


async def test_pictures_resources_structured_content_and_errors_come_through() -> None:
    calls: list[Call] = [("image", {}), ("resource", {}), ("add", {"a": 1, "b": 2}), ("fail", {"message": "no luck"})]
    async with served() as server, house(at(server)) as ours:
        response = await ours.ask("try", *calls)
        image, resource, added, failed = sorted(
            called(response), key=lambda item: [c[0] for c in calls].index(item["name"])
        )
        assert image["content"][1]["image_url"] == f"data:image/png;base64,{PIXEL}"
        assert resource["output"].splitlines()[0] == "Buy milk."
        assert "note://tomorrow" in resource["output"]
        assert (added["output"], failed["error"]["content"][0]["text"]) == ("3", "no luck")
        assert any("image_url" in str(message["content"]) for message in ours.backend.requests[-1]["messages"])


async def test_a_list_that_changes_shows_in_the_next_request() -> None:
    async with served() as server, house(at(server)) as ours:
        await ours.ask("try", ("change", {"name": "brand_new"}))
        async with asyncio.timeout(30):  # the old list serves until the new one is there
            while "brand_new" not in str(listed(await ours.ask("try", ECHO))):
                pass
        response = await ours.ask("try", ("brand_new", {}))
        assert called(response)[0]["output"] == "This is brand_new."


# ---- standing ----


async def test_a_standing_server_is_in_every_request_it_stands_for() -> None:
    async with served() as server, house(at(server, standing=StandingSettings(models=("test-*",)))) as ours:
        asked = request("try", ECHO)
        del asked["tools"]
        response = (await ours.server.ask("POST", RESPONSES, asked)).json()
        assert (called(response)[0]["output"], response["tools"]) == ("hello", [])
        other = (await ours.server.ask("POST", RESPONSES, {**asked, "model": "other", "input": "Hi"})).json()
        assert [item["type"] for item in other["output"]] == ["message"]


async def test_a_standing_server_is_there_for_its_subjects_alone() -> None:
    standing = StandingSettings(subjects=("anne",))
    async with served() as server, house(at(server, standing=standing), settings=with_keys()) as ours:
        asked = {"model": "test-model", "input": "Hi"}
        for key, is_there in ((ANNE, True), (BOB, False)):
            response = (await ours.server.ask("POST", RESPONSES, asked, bearing(key))).json()
            assert any(item["type"] == "mcp_list_tools" for item in response["output"]) is is_there


# ---- in whose name ----


async def test_credentials_of_one_identity_are_of_no_use_to_another() -> None:
    guarded = TryServer(faults=Faults(token="annes-own"))
    async with served(guarded) as server, house(at(server, authorization="request"), settings=with_keys()) as ours:
        mine = {"server_label": "try", "authorization": "annes-own"}
        response = await ask_as(ours, ANNE, mine, ECHO)
        assert called(response)[0]["output"] == "hello"
        for declared in ({"server_label": "try"}, {"server_label": "try", "authorization": "bobs"}):
            refused = await ask_as(ours, BOB, declared)
            assert listed(refused)["error"] == "The MCP server 'try' wants other credentials."
            assert listed(refused)["tools"] == []
        assert server.server.record.count("called") == 1
        assert "annes-own" not in str(response)


async def test_what_a_request_brings_to_a_strangers_server_is_its_own() -> None:
    guarded = TryServer(faults=Faults(token="annes-own"))
    near = McpSettings(reach=ReachSettings(loopback="always"))
    async with served(guarded) as server, house(settings=with_keys(), mcp=near) as ours:
        response = await ask_as(ours, ANNE, by_address(server, authorization="annes-own"), ECHO)
        assert called(response)[0]["output"] == "hello"
        assert "error" in listed(await ask_as(ours, BOB, by_address(server)))
        assert "error" in listed(await ask_as(ours, ANNE, by_address(server)))


async def test_the_operators_token_is_sent_and_a_request_may_not_bring_its_own() -> None:
    guarded = TryServer(faults=Faults(token="operators"))
    async with served(guarded) as server, house(at(server, token=Secret("operators"))) as ours:
        assert called(await ours.ask("try", ECHO))[0]["output"] == "hello"
        reply = await ours.reply({"server_label": "try", "authorization": "mine"}, ECHO)
        assert (reply.status, reply.error["param"]) == (400, "tools[0].authorization")
        assert "mine" not in reply.error["message"]


# ---- the operator's view ----


async def test_a_server_that_is_down_is_told_once_and_leaves_the_server_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "antwort.tools.mcp")
    async with house(at(f"http://127.0.0.1:{nobody_there()}/mcp")) as ours:
        for _ in range(3):
            assert listed(await ours.ask("try"))["error"].startswith("The MCP server 'try' cannot be reached.")
        assert (await ours.server.ask("GET", "/readyz")).status == 200
        metrics = (await ours.server.ask("GET", "/metrics")).body.decode()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["the MCP server 'try' cannot be used: The MCP server 'try' cannot be reached."]
    assert 'antwort_mcp_server_up{server_label="try"} 0.0' in metrics
    assert 'antwort_mcp_failures_total{server_label="other"} 0.0' in metrics


@pytest.mark.proves("MISTAKE-34")
async def test_labels_of_the_operators_show_in_metrics_and_those_of_strangers_never() -> None:
    async with served() as server, house(at(server)) as ours:
        await ours.ask("try", ECHO)
        await ours.ask(by_address(server), ECHO)
        metrics = (await ours.server.ask("GET", "/metrics")).body.decode()
        toolsets = (await ours.server.ask("GET", "/v1/toolsets")).json()
    assert 'antwort_tool_calls_total{outcome="ok",server_label="try",tool="echo"} 1.0' in metrics
    assert 'antwort_tool_calls_total{outcome="ok",server_label="other",tool="other"} 1.0' in metrics
    assert "theirs" not in metrics
    assert 'antwort_mcp_server_up{server_label="try"} 1.0' in metrics
    assert [entry["server_label"] for entry in toolsets["data"]] == ["try"]


async def test_toolsets_of_this_process_and_mcp_servers_are_reached_alike() -> None:
    settings = replace(in_front_of(), tools=ToolSettings(demo=True))
    async with served() as server, house(at(server), settings=settings) as ours:
        asked = request("try", ECHO, ("convert", {"value": 1, "from_unit": "km", "to_unit": "m"}))
        asked["tools"].append({"type": "mcp", "server_label": "demo"})
        response = (await ours.server.ask("POST", RESPONSES, asked)).json()
        labels = {item["server_label"] for item in response["output"] if item["type"] == "mcp_list_tools"}
        assert labels == {"try", "demo"}


async def test_a_conversation_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    settings = in_front_of(data=tmp_path)
    async with served() as server:
        async with house(at(server), settings=settings) as ours:
            first = await ours.ask("try", ECHO)
        async with house(at(server), settings=settings) as ours:
            more = await ours.ask("try", ("echo", {"text": "again"}), previous_response_id=first["id"])
            assert called(more)[0]["output"] == "again"
            assert ours.backend.results == ["hello", "again"]


async def test_a_program_gives_an_engine_servers_of_its_own() -> None:
    provider = ScriptedProvider(answer(call("echo", text="hello")), answer(say("Done.")))
    async with served() as server:
        tools = McpExecutor([McpServer("try", url=server.url)])
        async with Engine(provider, executors=[tools]) as engine:
            response = await engine.create(input="Hi", tools=[{"type": "mcp", "server_label": "try"}])
        assert [item.output for item in response.output if isinstance(item, McpCall)] == ["hello"]
