"""Scenes: every kind of response that a client can get, each played on the real server, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from antwort import Engine, EngineSettings, Identity, MemoryStore
from antwort.api.tools import McpTool
from antwort.errors import BackendCut, BackendRefused, Cancelled, DeadlinePassed, ModelNotFound, ShuttingDown
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, refuse, say, think
from antwort.testing.scripted import Answer, tokens
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolExecutor
from engine_kit import CLOCK, WEATHER, weather_tool
from raw_http import Reply
from serving import RESPONSES, Serving, serving

DEPOT = {"type": "mcp", "server_label": "depot"}
PATCH = {"type": "custom", "name": "patch", "description": "Apply a patch."}
STREAMED, WHOLE = True, False


class Closed(ToolServerFake):
    """A tool server that does not say what it offers."""

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        if declared.server_label == "closed":
            raise OSError("the door is shut")
        return None


async def _lookup(asked: ToolCall, context: ToolContext) -> str:
    return "found"


async def _stumble(asked: ToolCall, context: ToolContext) -> str:
    raise RuntimeError("stumbled")


def _depot() -> ToolServerFake:
    return ToolServerFake("depot", lookup=_lookup, stumble=_stumble)


@dataclass
class Scene:
    """What the model says, what is asked, and how the response ends."""

    name: str
    answers: Callable[[], Sequence[Answer]]
    asked: dict[str, Any] = field(default_factory=dict)
    executors: Callable[[], Sequence[ToolExecutor]] = tuple
    status: str = "completed"
    code: str | None = None
    kinds: tuple[str, ...] = ()
    """The types of the items in the output."""
    settings: dict[str, Any] = field(default_factory=dict)


SCENES = [
    Scene("text", lambda: [answer(say("Hello out there"), usage=tokens(5, 3))], kinds=("message",)),
    Scene("nothing", lambda: [answer()]),
    Scene("reasoning", lambda: [answer(think("Hm so"), say("Yes"))], kinds=("reasoning", "message")),
    Scene(
        "summary",
        lambda: [answer(think("Hm so"), say("Yes"))],
        {"reasoning": {"summary": "auto"}},
        kinds=("reasoning", "message"),
    ),
    Scene("refusal", lambda: [answer(refuse("I will not."))], kinds=("message",)),
    Scene(
        "a call for the client",
        lambda: [answer(say("Let me see"), call("weather", city="Paris"))],
        {"tools": [WEATHER]},
        kinds=("message", "function_call"),
    ),
    Scene(
        "a call for the client beside tools of ours",
        lambda: [answer(call("clock"))],
        {"tools": [CLOCK]},
        lambda: [weather_tool()],
        status="requires_action",
        kinds=("function_call",),
    ),
    Scene(
        "a free-form call",
        lambda: [answer(call("patch", input="*** Begin Patch"))],
        {"tools": [PATCH]},
        kinds=("custom_tool_call",),
    ),
    Scene(
        "a declared function that runs here",
        lambda: [answer(call("weather", city="Paris")), answer(say("Sunny"))],
        {"tools": [WEATHER]},
        lambda: [weather_tool()],
        kinds=("function_call", "function_call_output", "message"),
    ),
    Scene(
        "tools of a server",
        lambda: [answer(think("Hm"), call("lookup"), call("lookup")), answer(say("Found"))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        kinds=("mcp_list_tools", "reasoning", "mcp_call", "mcp_call", "message"),
    ),
    Scene(
        "a tool of a server that fails",
        lambda: [answer(call("stumble")), answer(say("It fell"))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        kinds=("mcp_list_tools", "mcp_call", "message"),
    ),
    Scene(
        "a server that does not list its tools",
        lambda: [answer(say("Without it, then"))],
        {"tools": [{"type": "mcp", "server_label": "closed"}]},
        lambda: [Closed("closed")],
        kinds=("mcp_list_tools", "message"),
    ),
    Scene(
        "a call to a name that nobody knows",
        lambda: [answer(call("magic")), answer(say("Never mind"))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        kinds=("mcp_list_tools", "mcp_call", "message"),
    ),
    Scene(
        "a call that is not allowed",
        lambda: [answer(call("stumble")), answer(say("Never mind"))],
        {"tools": [DEPOT], "allowed_tools": ["lookup"]},
        lambda: [_depot()],
        kinds=("mcp_list_tools", "mcp_call", "message"),
    ),
    Scene("cut short", lambda: [answer(say("Hello ou"), finish="length")], status="incomplete", kinds=("message",)),
    Scene(
        "the limit of turns",
        lambda: [answer(call("lookup"))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        status="incomplete",
        kinds=("mcp_list_tools", "mcp_call"),
        settings={"max_turns": 1},
    ),
    Scene("the deadline", lambda: [answer(say("Hel"), DeadlinePassed())], status="incomplete", kinds=("message",)),
    Scene("cancelled", lambda: [answer(say("Hel"), Cancelled())], status="cancelled", kinds=("message",)),
    Scene(
        "the backend breaks off",
        lambda: [answer(say("Hel"), BackendCut("It broke off."))],
        status="failed",
        code="backend_stream_cut",
        kinds=("message",),
    ),
    Scene(
        "the server stops",
        lambda: [answer(say("Hel"), ShuttingDown())],
        status="failed",
        code="server_shutting_down",
        kinds=("message",),
    ),
    Scene(
        "the model is gone in the second turn",
        lambda: [answer(call("lookup")), answer(ModelNotFound("scripted"))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        status="failed",
        code="invalid_prompt",
        kinds=("mcp_list_tools", "mcp_call"),
    ),
    Scene(
        "the prompt is refused in the second turn",
        lambda: [answer(call("lookup")), answer(BackendRefused("Not this."))],
        {"tools": [DEPOT]},
        lambda: [_depot()],
        status="failed",
        code="invalid_prompt",
        kinds=("mcp_list_tools", "mcp_call"),
    ),
]


@dataclass
class Played:
    """What came over the wire."""

    reply: Reply
    events: list[dict[str, Any]]
    """Of a stream, the data of its frames."""
    response: dict[str, Any]
    stored: dict[str, Any]
    """The same response, asked for again."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def engine_for(scene: Scene, **settings: Any) -> Engine:
    return Engine(
        ScriptedProvider(*scene.answers()),
        store=MemoryStore(),
        executors=list(scene.executors()),
        settings=EngineSettings(**{**scene.settings, **settings}),
    )


def body_of(scene: Scene, *, streamed: bool) -> dict[str, Any]:
    return {"model": "scripted", "input": "Hello", "stream": streamed, **scene.asked}


async def play(scene: Scene, *, streamed: bool, **settings: Any) -> Played:
    """The scene on a server of its own."""
    async with serving(engine_for(scene, **settings)) as server:
        return await asked(server, body_of(scene, streamed=streamed))


async def asked(server: Serving, body: dict[str, Any]) -> Played:
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200, reply.body
    events = data_of(reply.body) if body["stream"] else []
    response = events[-1]["response"] if events else reply.json()
    stored = await server.ask("GET", f"{RESPONSES}/{response['id']}")
    return Played(reply, events, response, stored.json())


def data_of(body: bytes) -> list[dict[str, Any]]:
    """The data of every frame but the last, which is the mark of the end."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
