"""The endpoints beside `POST /v1/responses`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antwort.engine.engine import Engine
from antwort.errors import BackendUnavailable, StoreFault
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, demo_provider, say
from serving import HELLO, RESPONSES, Serving, serving, until


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(Engine(demo_provider(), store=MemoryStore())) as running:
        yield running


async def created(server: Serving, body: dict[str, Any] = HELLO) -> dict[str, Any]:
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200
    response: dict[str, Any] = reply.json()
    return response


# ---- responses ----


async def test_an_answer_is_the_response_and_can_be_fetched_again(server: Serving) -> None:
    response = await created(server)
    assert response["output"][0]["content"][0]["text"] == "You said: Hello"
    fetched = await server.ask("GET", f"{RESPONSES}/{response['id']}?include[]=x&unknown=1")
    assert fetched.json() == response


@pytest.mark.proves("TR-013")
@pytest.mark.parametrize(
    ("method", "part"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
@pytest.mark.parametrize("response_id", ["resp_unknown", "x" * 257, "with%20space", "nul%00byte"])
async def test_a_response_that_is_not_there_is_a_404(server: Serving, method: str, part: str, response_id: str) -> None:
    reply = await server.ask(method, f"{RESPONSES}/{response_id}{part}")
    assert (reply.status, reply.error["code"]) == (404, "response_not_found")
    assert len(reply.error["message"]) < 300


async def test_a_deleted_response_is_gone(server: Serving) -> None:
    place = f"{RESPONSES}/{(await created(server))['id']}"
    reply = await server.ask("DELETE", place)
    assert reply.json() == {"id": place.rpartition("/")[2], "object": "response", "deleted": True}
    assert (await server.ask("GET", place)).status == 404
    assert (await server.ask("DELETE", place)).status == 404


@pytest.mark.proves("RULING-7")
async def test_cancelling_a_finished_response_returns_it_unchanged(server: Serving) -> None:
    response = await created(server)
    reply = await server.ask("POST", f"{RESPONSES}/{response['id']}/cancel", {})
    assert (reply.status, reply.json()) == (200, response)


async def test_a_store_that_cannot_be_read_is_a_500_with_its_own_code() -> None:
    class Failing(MemoryStore):
        async def get(self, *_: object) -> None:
            raise StoreFault("The record could not be read.") from OSError("disk on fire")

    async with serving(Engine(demo_provider(), store=Failing())) as server:
        reply = await server.ask("GET", f"{RESPONSES}/resp_1")
    assert (reply.status, reply.error["code"]) == (500, "storage_error")
    assert "disk" not in reply.error["message"]


# ---- input items ----

ITEMS = [{"type": "message", "role": "user", "content": f"number {i}", "id": f"msg_{i}"} for i in range(25)]


async def pages(server: Serving, response_id: str, query: str) -> dict[str, Any]:
    reply = await server.ask("GET", f"{RESPONSES}/{response_id}/input_items{query}")
    assert reply.status == 200
    page: dict[str, Any] = reply.json()
    assert sorted(page) == ["data", "first_id", "has_more", "last_id", "object"]
    assert page["object"] == "list"
    return page


async def test_input_items_come_newest_first_in_pages_of_twenty(server: Serving) -> None:
    response = await created(server, {**HELLO, "input": ITEMS})
    first = await pages(server, response["id"], "")
    assert [item["id"] for item in first["data"]] == [f"msg_{i}" for i in range(24, 4, -1)]
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("msg_24", "msg_5", True)
    last = await pages(server, response["id"], "?after=msg_5")
    assert [item["id"] for item in last["data"]] == ["msg_4", "msg_3", "msg_2", "msg_1", "msg_0"]
    assert last["has_more"] is False


async def test_input_items_can_be_asked_for_in_order_and_by_number(server: Serving) -> None:
    response = await created(server, {**HELLO, "input": ITEMS})
    page = await pages(server, response["id"], "?order=asc&limit=2&after=msg_3")
    assert [item["id"] for item in page["data"]] == ["msg_4", "msg_5"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "number 4"}]
    everything = await pages(server, response["id"], "?limit=100&order=asc")
    assert (len(everything["data"]), everything["has_more"]) == (25, False)


@pytest.mark.proves("RULING-20")
async def test_input_items_keep_their_callers_and_unknown_kinds_stand_in_their_place(server: Serving) -> None:
    caller = {"type": "program", "caller_id": "call_0"}
    given: list[dict[str, Any]] = [
        {"type": "program", "id": "prog_1", "call_id": "call_0", "code": "1 + 1", "fingerprint": "f"},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "caller": caller},
        {"type": "acme:mood", "id": "mood_1", "level": {"of": [3, None]}},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "1", "caller": caller},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "d", "name": "g", "input": "x", "caller": None},
        {
            "type": "custom_tool_call_output",
            "id": "ctco_1",
            "call_id": "d",
            "output": "2",
            "caller": {"type": "direct"},
        },
        {"type": "program_output", "id": "po_1", "call_id": "call_0", "result": "2"},
    ]
    known = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
    expected = [{**item, "status": "completed"} if item["type"] in known else item for item in given]
    response = await created(server, {**HELLO, "input": given})
    assert (await pages(server, response["id"], "?order=asc"))["data"] == expected
    assert (await pages(server, response["id"], ""))["data"] == expected[::-1]


async def test_a_response_without_input_has_an_empty_list_of_items(server: Serving) -> None:
    response = await created(server, {"model": "scripted", "instructions": "Be brief.", "input": []})
    page = await pages(server, response["id"], "")
    assert (page["data"], page["first_id"], page["last_id"], page["has_more"]) == ([], None, None, False)


@pytest.mark.proves("CP-030")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=ten", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("after=msg_unknown", "after"),
        ("before=msg_unknown", "before"),
    ],
)
async def test_a_wrong_value_in_the_query_is_a_400_that_names_it(server: Serving, query: str, param: str) -> None:
    response = await created(server)
    reply = await server.ask("GET", f"{RESPONSES}/{response['id']}/input_items?{query}")
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_query_without_end_is_a_400(server: Serving) -> None:
    reply = await server.ask("GET", f"{RESPONSES}/resp_1?" + "&".join(f"a{i}=1" for i in range(101)))
    assert reply.status == 400


# ---- models ----


async def test_models_are_listed_and_found_by_name_also_with_slashes() -> None:
    provider = ScriptedProvider(models=("small", "org/large"))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        listed = (await server.ask("GET", "/v1/models")).json()
        found = (await server.ask("GET", "/v1/models/org%2Flarge")).json()
        missing = await server.ask("GET", "/v1/models/other")
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["small", "org/large"]
    assert found == {"id": "org/large", "object": "model", "created": 0, "owned_by": "antwort"}
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


# ---- health ----


async def test_a_server_whose_parts_are_there_is_ready(server: Serving) -> None:
    reply = await server.ask("GET", "/readyz")
    assert (reply.status, reply.json()) == (200, {"status": "ok", "store": "ok", "backend": "ok"})


class Away(ScriptedProvider):
    async def check(self) -> None:
        raise BackendUnavailable("The backend cannot be reached.")


class Unwritable(MemoryStore):
    async def check(self) -> None:
        raise StoreFault("The store cannot be written.")


@pytest.mark.parametrize(
    ("engine", "part", "sentence"),
    [
        (Engine(Away(), store=MemoryStore()), "backend", "The backend cannot be reached."),
        (Engine(ScriptedProvider(), store=Unwritable()), "store", "The store cannot be written."),
    ],
)
async def test_a_server_with_a_part_missing_is_alive_but_not_ready(engine: Engine, part: str, sentence: str) -> None:
    async with serving(engine) as server:
        reply = await server.ask("GET", "/readyz")
        assert (reply.status, reply.json()["status"], reply.json()[part]) == (503, "unavailable", sentence)
        assert (await server.ask("GET", "/healthz")).status == 200


async def test_a_response_that_runs_can_be_seen_and_is_in_progress() -> None:
    hold = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), hold, say("there")))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        asking = asyncio.create_task(server.ask("POST", RESPONSES, HELLO))
        await until(lambda: server.engine.live == 1)
        [response_id] = server.engine.live_runs
        running = (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
        hold.set()
        finished = (await asking).json()
    assert (running["id"], running["status"]) == (finished["id"], "in_progress")
    assert finished["status"] == "completed"
