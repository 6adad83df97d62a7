"""`/v1/approvals`: what waits for the client's approval, over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.testing import ScriptedProvider, answer, call, say
from approval_kit import GUARDED, depot
from serving import HELLO, RESPONSES, Serving, serving

APPROVALS = "/v1/approvals"
THREE = answer(*(call("ship", box=str(number)) for number in (1, 2, 3)))
ASKING: dict[str, Any] = {**HELLO, "tools": [GUARDED]}


def engine_of(*answers: Any, **settings: Any) -> Engine:
    return Engine(ScriptedProvider(*answers), executors=[depot()], settings=EngineSettings(**settings))


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(engine_of(THREE, answer(say("Done.")))) as server:
        yield server


async def asked(server: Serving) -> tuple[str, list[str]]:
    """The id of a response that asks, and those of what it asks for."""
    response = (await server.ask("POST", RESPONSES, ASKING)).json()
    return response["id"], [item["id"] for item in response["output"] if item["type"] == "mcp_approval_request"]


def decision(approval_id: str, *, approve: bool) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": approval_id, "approve": approve}


async def listed(server: Serving, query: str = "") -> dict[str, Any]:
    reply = await server.ask("GET", f"{APPROVALS}{query}")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()
    return found


async def test_an_approval_is_shown_with_all_that_it_takes_to_decide(server: Serving) -> None:
    response_id, (first, *_) = await asked(server)
    shown = (await server.ask("GET", f"{APPROVALS}/{first}")).json()
    assert shown.pop("expires_at") - shown.pop("created_at") == 86400
    assert re.fullmatch("[0-9a-f]{32}", shown.pop("tool_digest"))
    assert shown == {
        "id": first,
        "object": "approval",
        "status": "pending",
        "response_id": response_id,
        "server_label": "depot",
        "name": "ship",
        "arguments": '{"box":"1"}',
        "decided_by": None,
        "replaces": None,
    }


async def test_the_list_has_pages_as_other_lists_have(server: Serving) -> None:
    assert await listed(server) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    _, ids = await asked(server)
    page = await listed(server, "?limit=2&order=asc")
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:2], True)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[1])
    rest = await listed(server, f"?limit=2&order=asc&after={page['last_id']}")
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == (ids[2:], False)


async def test_the_list_tells_by_status_what_was_decided(server: Serving) -> None:
    response_id, ids = await asked(server)
    given = [decision(ids[0], approve=True), decision(ids[1], approve=False)]
    body = {**HELLO, "previous_response_id": response_id, "input": given}
    follow_up = (await server.ask("POST", RESPONSES, body)).json()
    found = {each: (await listed(server, f"?status={each}"))["data"] for each in ("approved", "denied", "pending")}
    assert [[each["id"] for each in data] for data in found.values()] == [[ids[0]], [ids[1]], [ids[2]]]
    assert [data[0]["decided_by"] for data in found.values()] == [follow_up["id"], follow_up["id"], None]


@pytest.mark.parametrize(
    ("query", "param"),
    [("?status=open", "status"), ("?limit=0", "limit"), ("?after=mcpr_x", "after"), ("?order=up", "order")],
)
async def test_a_query_that_cannot_be_read_names_its_parameter(server: Serving, query: str, param: str) -> None:
    reply = await server.ask("GET", f"{APPROVALS}{query}")
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("name", ["mcpr_x", "%20", "x" * 300])
async def test_what_is_not_there_is_not_found(server: Serving, name: str) -> None:
    reply = await server.ask("GET", f"{APPROVALS}/{name}")
    assert (reply.status, reply.error["code"]) == (404, "approval_not_found")


@pytest.mark.parametrize("path", [f"{APPROVALS}/", f"{APPROVALS}/a/b"])
async def test_there_is_nothing_below_an_approval(server: Serving, path: str) -> None:
    assert (await server.ask("GET", path)).error["code"] == "unknown_url"


async def test_approvals_are_not_written_here(server: Serving) -> None:
    _, (first, *_) = await asked(server)
    for method in ("POST", "DELETE"):
        assert (await server.ask(method, f"{APPROVALS}/{first}", {})).status == 405


async def test_deleting_the_response_withdraws_its_questions(server: Serving) -> None:
    response_id, (first, *_) = await asked(server)
    await server.ask("DELETE", f"{RESPONSES}/{response_id}")
    assert (await server.ask("GET", f"{APPROVALS}/{first}")).status == 404
    assert (await listed(server))["data"] == []


async def test_faults_of_decisions_are_told_over_http(server: Serving) -> None:
    response_id, (first, *_) = await asked(server)
    follow = {**HELLO, "previous_response_id": response_id}
    twice = {**follow, "input": [decision(first, approve=each) for each in (True, False)]}
    unknown = {**follow, "input": [decision("mcpr_x", approve=True)]}
    for body, place, code in (
        (twice, "input[1].approval_request_id", "duplicate_approval"),
        (unknown, "input[0].approval_request_id", "unknown_approval"),
    ):
        reply = await server.ask("POST", RESPONSES, body)
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, place, code)
    await server.ask("POST", RESPONSES, {**follow, "input": [decision(first, approve=True)]})
    reply = await server.ask("POST", RESPONSES, {**follow, "input": [decision(first, approve=False)]})
    assert (reply.status, reply.error["code"]) == (409, "approval_decided")


async def test_under_the_strict_setting_the_request_carries_the_prefix_and_is_taken_back_with_it() -> None:
    engine = engine_of(answer(call("ship", box="1")), answer(say("Done.")), strict=True)
    async with serving(engine) as server:
        first = (await server.ask("POST", RESPONSES, {**ASKING, "store": False})).json()
        request = first["output"][-1]
        assert request["type"] == "antwort:mcp_approval_request"
        given = {**decision(request["id"], approve=True), "type": "antwort:mcp_approval_response"}
        second = (await server.ask("POST", RESPONSES, {**ASKING, "store": False, "input": [request, given]})).json()
        assert [item["type"] for item in second["output"]][-2:] == ["antwort:mcp_call", "message"]
        assert second["output"][-2]["output"] == "shipped"
