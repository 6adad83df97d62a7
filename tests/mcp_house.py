"""A whole server with MCP servers beside it, in front of a backend that calls whatever it is told to call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antwort.api.wire import replace
from antwort.app import build
from antwort.config import Settings
from antwort.config.settings import McpServerSettings, McpSettings
from chat_backend import Answer, Calls, ChatBackend, Says
from mcp_kit import children
from raw_http import Reply
from serving import RESPONSES, Serving, serving, until
from settings_kit import in_front_of

Call = tuple[str, Mapping[str, Any] | None]

_FOREIGN = ("_shutdown_watcher",)
"""Tasks that the SDK's server leaves in the loop it ran in, by the names of their functions."""


class ObedientBackend(ChatBackend):
    """Its model calls what the last message of the user says (a JSON list of names and arguments), and then talks."""

    def answer(self, request: dict[str, Any]) -> Answer:
        last = request["messages"][-1]
        if last["role"] != "user" or not isinstance(last["content"], str):  # what a tool has to show comes as parts
            return Says(["I have", " seen it."])
        try:
            wanted = json.loads(last["content"])
        except ValueError:
            return Says()
        return Calls([(name, json.dumps(arguments)) for name, arguments in wanted]) if wanted else Says()

    @property
    def results(self) -> list[str]:
        """What the model was told of the calls in its last inference, in the order that it was told."""
        return [str(each["content"]) for each in self.requests[-1]["messages"] if each["role"] == "tool"]

    @property
    def offered(self) -> list[str]:
        """The names of the tools in the last inference."""
        return [each["function"]["name"] for each in self.requests[-1].get("tools", [])]


class House:
    def __init__(self, server: Serving, backend: ObedientBackend) -> None:
        self.server, self.backend = server, backend

    async def ask(self, label: str | Mapping[str, Any], *calls: Call, **more: Any) -> dict[str, Any]:
        """A response whose model makes these calls, in one turn, to tools of that server."""
        reply = await self.reply(label, *calls, **more)
        assert reply.status == 200, reply.body
        answer: dict[str, Any] = reply.json()
        return answer

    async def reply(self, label: str | Mapping[str, Any], *calls: Call, **more: Any) -> Reply:
        return await self.server.ask("POST", RESPONSES, request(label, *calls, **more))


def request(label: str | Mapping[str, Any], *calls: Call, **more: Any) -> dict[str, Any]:
    declared = {"type": "mcp", **({"server_label": label} if isinstance(label, str) else label)}
    return {"model": "test-model", "input": json.dumps(calls), "tools": [declared], **more}


def called(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls that servers ran, in the order of the output."""
    return [item for item in response["output"] if item["type"] == "mcp_call"]


def listed(response: Mapping[str, Any]) -> dict[str, Any]:
    """The one list of tools in it."""
    (found,) = (item for item in response["output"] if item["type"] == "mcp_list_tools")
    return dict(found)


def spoke(response: Mapping[str, Any]) -> bool:
    """Whether it has come to its end, with the model's last words."""
    last = response["output"][-1]
    return bool(response["status"] == "completed" and last["type"] == "message")


def with_servers(settings: Settings, *servers: McpServerSettings, mcp: McpSettings | None = None) -> Settings:
    return replace(settings, mcp_servers=servers, mcp=mcp or settings.mcp)


@asynccontextmanager
async def house(
    *servers: McpServerSettings, settings: Settings | None = None, mcp: McpSettings | None = None
) -> AsyncIterator[House]:
    """Up and running, in front of its backend."""
    async with ObedientBackend() as backend:
        asked = with_servers(settings or in_front_of(), *servers, mcp=mcp)
        patient = replace(asked.loop, discovery=60.0)  # a machine may be busy
        app = await build(replace(asked, backends=in_front_of(backend.url).backends, loop=patient))
        async with serving(app.engine, app.asgi) as server:
            yield House(server, backend)


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Tasks and processes are counted, before and after."""
    tasks, processes = asyncio.all_tasks(), children(os.getpid())
    yield
    await until(lambda: not left_of(tasks))
    await until(lambda: set(children(os.getpid())) <= set(processes))


def left_of(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The tasks that came after, but for the one that asks."""
    after = asyncio.all_tasks() - before - {asyncio.current_task()}
    return {task for task in after if not any(name in repr(task) for name in _FOREIGN)}
