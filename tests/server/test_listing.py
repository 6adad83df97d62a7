"""`GET /v1/responses`: the responses that are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.pagination import AsyncCursorPage
from openai.types.responses import Response as SdkResponse

from antwort.api.events import Mark
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import Entry, PackedLog
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, demo_provider, say
from raw_http import Reply
from serving import HELLO, RESPONSES, Serving, serving, until


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(Engine(demo_provider(), store=MemoryStore())) as running:
        yield running


async def made(server: Serving, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [(await server.ask("POST", RESPONSES, {**HELLO, **fields})).json() for _ in range(count)]


async def listed(server: Serving, query: str = "") -> dict[str, Any]:
    reply = await server.ask("GET", f"{RESPONSES}{query}")
    assert reply.status == 200
    page: dict[str, Any] = reply.json()
    assert list(page) == ["object", "data", "first_id", "last_id", "has_more"]
    return page


async def test_a_list_holds_responses_as_they_are_retrieved_the_newest_first(server: Serving) -> None:
    first, second = await made(server, 2)
    assert await listed(server) == {
        "object": "list",
        "data": [second, first],
        "first_id": second["id"],
        "last_id": first["id"],
        "has_more": False,
    }
    assert (await server.ask("GET", f"{RESPONSES}/{first['id']}")).json() == first


async def test_there_is_an_empty_list(server: Serving) -> None:
    page = await listed(server, "?model=none")
    assert (page["data"], page["first_id"], page["last_id"], page["has_more"]) == ([], None, None, False)


async def test_pages_are_of_twenty_and_go_on_from_a_cursor(server: Serving) -> None:
    ids = [response["id"] for response in await made(server, 23)]
    first = await listed(server)
    assert ([found["id"] for found in first["data"]], first["has_more"]) == (ids[:2:-1], True)
    rest = await listed(server, f"?after={first['last_id']}")
    assert ([found["id"] for found in rest["data"]], rest["has_more"]) == (ids[2::-1], False)
    back = await listed(server, f"?before={rest['first_id']}&limit=1")
    assert ([found["id"] for found in back["data"]], back["has_more"]) == ([ids[3]], True)
    assert [found["id"] for found in (await listed(server, "?order=asc&limit=2"))["data"]] == ids[:2]


async def test_what_is_deleted_or_never_stored_is_not_listed(server: Serving) -> None:
    kept, gone = await made(server, 2)
    await made(server, 1, store=False)
    await server.ask("DELETE", f"{RESPONSES}/{gone['id']}")
    assert (await listed(server))["data"] == [kept]


async def test_a_list_can_be_of_one_model_and_of_some_statuses(server: Serving) -> None:
    [small] = await made(server, 1, model="small")
    [large] = await made(server, 1, model="large")
    for query, expected in {
        "?model=small": [small],
        "?model=": [large, small],
        "?status=completed": [large, small],
        "?status=failed": [],
        "?status=failed,completed&model=large": [large],
        "?status=failed&status=completed": [large, small],
        "?status[]=failed&status[]=completed": [large, small],
        "?status=": [large, small],
        "?unknown=1&include[]=x": [large, small],
    }.items():
        assert (await listed(server, query))["data"] == expected, query


@pytest.mark.proves("CP-030")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=newest", "order"),
        ("status=done", "status"),
        ("status=completed,", "status"),
        ("after=resp_unknown", "after"),
        ("before=resp_unknown", "before"),
        ("before=%00%FF", "before"),
    ],
)
async def test_a_wrong_value_is_a_400_that_names_it(server: Serving, query: str, param: str) -> None:
    reply = await server.ask("GET", f"{RESPONSES}?{query}")
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_the_head_of_a_list_can_be_asked_for(server: Serving) -> None:
    assert (await server.ask("HEAD", RESPONSES)).status == 200


async def test_a_client_library_pages_through_the_list(server: Serving) -> None:
    ids = [response["id"] for response in await made(server, 5)]
    async with AsyncOpenAI(base_url=server.url, api_key="none") as client:
        options: Any = {"params": {"limit": 2, "status": ["completed", "failed"]}}
        pages = client.get_api_list("/responses", model=SdkResponse, page=AsyncCursorPage[SdkResponse], options=options)
        assert [found.id async for found in pages] == ids[::-1]


# ---- responses under way ----


async def test_a_response_that_runs_is_listed_as_it_stands() -> None:
    hold = asyncio.Event()
    provider = ScriptedProvider(answer(say("Hello"), hold, say("there")))
    async with serving(Engine(provider, store=MemoryStore())) as server:
        asking = asyncio.create_task(server.ask("POST", RESPONSES, HELLO))
        await until(lambda: any(run.response.output for run in server.engine.live_runs.values()))
        [response_id] = server.engine.live_runs
        [running] = (await listed(server, "?status=in_progress"))["data"]
        assert running == (await server.ask("GET", f"{RESPONSES}/{response_id}")).json()
        assert (running["status"], len(running["output"])) == ("in_progress", 1)
        hold.set()
        finished = (await asking).json()
        assert (await listed(server))["data"] == [finished]
        assert (await listed(server, "?status=in_progress"))["data"] == []


class Failing(MemoryStore):
    """Writes no ends until it is told to."""

    is_broken = True

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        if self.is_broken:
            raise StoreFault("The disk is full.")
        await super().finish(identity, response, marks, entries, approvals, log)


async def test_an_end_that_could_not_be_written_is_written_for_the_list() -> None:
    store = Failing()
    async with serving(Engine(demo_provider(), store=store)) as server:
        await server.ask("POST", RESPONSES, HELLO)
        reply: Reply = await server.ask("GET", RESPONSES)
        assert (reply.status, reply.error["code"]) == (500, "storage_error")
        store.is_broken = False
        [found] = (await listed(server, "?status=failed"))["data"]
        assert found["error"]["message"] == "The disk is full."
        assert (await listed(server, "?status=in_progress"))["data"] == []
