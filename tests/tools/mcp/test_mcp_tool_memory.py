"""What a server has listed as writing stays so, whichever session it said that in, and as cheaply as can be."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from antwort.api.tools import McpTool
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.storage.base import WRITING_TOOLS_PER_SERVER
from antwort.storage.memory import MemoryStore
from antwort.tools.mcp.base import ServerSpec, ServerTool, ServerTools, server_id_of
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import McpPolicy, McpServer
from antwort.tools.mcp.tool_memory import SHARED, ToolMemory
from mcp_sessions_kit import ScriptedServer, ScriptedSessions

URL = "https://docs.example.com/mcp"
ANNE, BOB, EVE = Identity("acme", "anne"), Identity("acme", "bob"), Identity("other", "eve")
DOCS = McpTool(server_label="docs")
STRANGER = McpTool(server_label="theirs", server_url="https://tools.example.com/mcp")


def listing(*writing: str, reads: Collection[str] = ()) -> ServerTools:
    hint = {"readOnlyHint": True}
    tools = [ServerTool(name=name) for name in writing] + [ServerTool(name=name, annotations=hint) for name in reads]
    return ServerTools(tools=tuple(tools))


class Record:
    """A record that counts how often it is asked, and that can be away."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.asked = 0
        self.is_away = False

    async def note(self, tenant: str, server: str, names: Collection[str]) -> frozenset[str] | None:
        self.asked += 1
        if self.is_away:
            raise StoreFault("It is away.")
        return await self.store.note_writing_tools(tenant, server, names, 0)


def executor_of(
    record: Record, *servers: McpServer, theirs: ScriptedServer | None = None, **by_label: ScriptedServer
) -> McpExecutor:
    sessions = ScriptedSessions({"theirs": theirs or ScriptedServer(), **by_label})
    executor = McpExecutor(servers, McpPolicy(declared=True, require_approval="never"), sessions)
    executor.remember_with(record.note)
    return executor


def docs(**fields: Any) -> McpServer:
    return McpServer("docs", url=URL, require_approval="writes", **fields)


async def reading(executor: McpExecutor, declared: McpTool = DOCS, identity: Identity = ANNE) -> set[str]:
    """The tools that count as read-only."""
    found = await executor.discover(declared, identity)
    assert found is not None
    return {tool.name for tool in found if tool.read_only}


async def test_the_record_is_read_once_for_each_list_and_not_for_each_request() -> None:
    record, server = Record(), ScriptedServer(listing("wipe", reads=["find"]))
    executor = executor_of(record, docs(), docs=server)
    for identity in (ANNE, BOB, EVE, ANNE):
        assert await reading(executor, identity=identity) == {"find"}
    assert record.asked == 1
    server.listed = listing("wipe", reads=["find"])  # the same once more
    await reading(executor)
    assert record.asked == 1
    server.listed = listing("wipe", "ship", reads=["find"])
    assert await reading(executor) == {"find"}
    assert record.asked == 2


async def test_the_record_is_read_again_when_a_list_of_that_age_would_be() -> None:
    record, server = Record(), ScriptedServer(listing(reads=["find", "wipe"]))
    executor = executor_of(record, docs(list_age=1e-9), docs=server)
    assert await reading(executor) == {"find", "wipe"}
    await record.store.note_writing_tools("", server_id_of(URL), ["wipe"], 0)  # what another process has seen
    assert await reading(executor) == {"find"}


async def test_sessions_that_are_told_different_things_share_what_was_seen() -> None:
    record, server = Record(), ScriptedServer(listing("wipe"))
    executor = executor_of(record, theirs=server)
    assert await reading(executor, STRANGER, ANNE) == set()
    server.listed = listing(reads=["wipe"])
    assert await reading(executor, STRANGER, BOB) == set()
    assert await reading(executor, STRANGER, EVE) == {"wipe"}  # another tenant has not seen it


async def test_sessions_that_take_turns_in_contradicting_each_other_ask_the_record_no_more_often() -> None:
    record = Record()
    server = ScriptedServer(listing("wipe", reads=["find"]))
    executor = executor_of(record, theirs=server)
    lists = [listing("wipe", reads=["find"]), listing("find", reads=["wipe"])]
    for number in range(10):
        server.listed = lists[number % 2]
        assert await reading(executor, STRANGER, (ANNE, BOB)[number % 2]) == ({"find"} if number == 0 else set())
    assert record.asked == 2


async def test_what_another_session_learns_while_the_record_is_read_makes_a_finding_outdated() -> None:
    memory, may_read, is_read = ToolMemory(), asyncio.Event(), asyncio.Event()

    async def note(tenant: str, server: str, names: Collection[str]) -> frozenset[str] | None:
        if tenant == SHARED and not is_read.is_set():
            is_read.set()
            await may_read.wait()
        return frozenset(names)

    memory.note = note
    spec = ServerSpec(label="docs", url=URL, owner=("acme", "anne"))
    first = asyncio.create_task(memory.learn(spec, ("acme", SHARED), listing(reads=["wipe"])))
    await is_read.wait()
    await memory.learn(spec, ("acme", SHARED), listing("wipe"))
    may_read.set()
    assert not memory.is_current(await first)


async def test_a_label_and_its_address_share_what_was_seen() -> None:
    record, server = Record(), ScriptedServer(listing("wipe"))
    executor = executor_of(record, docs(), docs=server, theirs=server)
    await reading(executor)
    server.listed = listing(reads=["wipe"])
    by_address = McpTool(server_label="theirs", server_url=f"{URL}/?x=1")
    assert await reading(executor, by_address, EVE) == set()
    found = await executor.discover(by_address, EVE)
    assert found is not None
    assert found[0].needs_approval is True


async def test_a_server_that_lists_more_than_is_recorded_has_no_read_only_tool_left() -> None:
    record, server = Record(), ScriptedServer(listing("wipe"))
    executor = executor_of(record, docs(), docs=server)
    await reading(executor)
    server.listed = listing(*(f"t{number}" for number in range(WRITING_TOOLS_PER_SERVER)), reads=["find"])
    assert await reading(executor) == set()
    server.listed = listing(reads=["wipe", "find", "new"])
    assert await reading(executor) == set()
    assert await reading(executor_of(record, docs(), docs=server)) == set()  # after a restart


async def test_while_the_record_cannot_be_read_nothing_counts_as_read_only() -> None:
    record, server = Record(), ScriptedServer(listing("wipe", reads=["find"]))
    record.is_away = True
    executor = executor_of(record, docs(), docs=server)
    assert await reading(executor) == set()
    assert await reading(executor) == set()
    assert record.asked == 1  # it is not asked again with each request


async def test_what_was_read_before_holds_while_the_record_is_away() -> None:
    record, server = Record(), ScriptedServer(listing("wipe", reads=["find"]))
    executor = executor_of(record, docs(list_age=1e-9), docs=server)
    assert await reading(executor) == {"find"}
    record.is_away = True
    server.listed = listing("ship", reads=["wipe", "find"])
    assert await reading(executor) == {"find"}
    record.is_away = False
    restarted = executor_of(record, docs(), docs=ScriptedServer(listing(reads=["wipe", "ship", "find"])))
    assert await reading(restarted) == {"ship", "find"}  # nobody could write that down


@pytest.mark.parametrize("sessions", ["shared", "identity"])
async def test_a_program_is_remembered_by_its_label(sessions: Any) -> None:
    record, server = Record(), ScriptedServer(listing("wipe"))
    program = McpServer("docs", command=("run",), sessions=sessions)
    await reading(executor_of(record, program, docs=server))
    server.listed = listing(reads=["wipe"])
    assert await reading(executor_of(record, program, docs=server)) == set()
    other = McpServer("more", command=("run",), sessions=sessions)
    assert await reading(executor_of(record, other, more=server), McpTool(server_label="more")) == {"wipe"}


async def test_an_executor_of_no_engine_remembers_for_itself() -> None:
    server = ScriptedServer(listing("wipe"))
    executor = McpExecutor([docs()], None, ScriptedSessions(docs=server))
    await reading(executor)
    server.listed = listing(reads=["wipe"])
    assert await reading(executor) == set()
