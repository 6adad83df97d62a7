"""What the tests of the engine share: an engine on a script, a request from keywords, and all that came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from antwort import CreateRequest, Engine, EngineSettings, Identity, LocalExecutor, MemoryStore, Response, StreamEvent
from antwort.api.decoding import Limits
from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, Message, OutputItem, OutputText
from antwort.api.requests import read_request
from antwort.api.wire import to_plain
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatRequest, Provider
from antwort.storage.base import ResponseStore
from antwort.testing import StreamChecker
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult

T = TypeVar("T")

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
SERVER = {"type": "mcp", "server_label": "depot"}


def ask(input: Any = "Hello", **fields: Any) -> CreateRequest:  # noqa: A002
    """A request from what a client would send."""
    return read_request({"model": "scripted", "input": input, **fields}, Limits())


def engine_of(
    provider: Provider,
    *executors: ToolExecutor,
    store: ResponseStore | None = None,
    **settings: Any,
) -> Engine:
    return Engine(provider, store=store or MemoryStore(), executors=executors, settings=EngineSettings(**settings))


class FunctionExecutor:
    """Claims no tool, so it never counts as registered."""

    kind = ToolKind.FUNCTION

    def can_execute(self, tool: ToolDefinition) -> bool:
        return False

    async def execute(self, call: ToolCall, context: ToolContext) -> NoReturn:
        raise ClientsTurn(call)


class Outcome(msgspec.Struct):
    """All that a streamed response sent, and what it came to."""

    events: list[StreamEvent]
    response: Response

    @property
    def names(self) -> list[str]:
        return [name_of(event) for event in self.events]


async def stream(engine: Engine, request: CreateRequest, identity: Identity = ANONYMOUS) -> Outcome:
    """Read a response to its end; the grammar holds on the way."""
    checker = StreamChecker()
    events: list[StreamEvent] = []
    async for event in engine.respond(request, identity):
        checker.feed(len(events), event)
        events.append(event)
    return Outcome(events, checker.finish())


def name_of(value: msgspec.Struct) -> str:
    """The type of an event or an item, as it stands on the wire."""
    tag = type(value).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def kinds(response: Response) -> list[str]:
    return [name_of(item) for item in response.output]


def text_of(response: Response) -> str:
    messages = [item for item in response.output if isinstance(item, Message)]
    return "".join(part.text for item in messages for part in item.content if isinstance(part, OutputText))


def items_of(response: Response, kind: type[T]) -> list[T]:
    return [item for item in response.output if isinstance(item, kind)]


def only(response: Response, kind: type[T]) -> T:
    (item,) = items_of(response, kind)
    return item


def function_calls(response: Response) -> list[FunctionCall]:
    return items_of(response, FunctionCall)


def server_calls(response: Response) -> list[McpCall]:
    return items_of(response, McpCall)


def outputs(response: Response) -> list[FunctionCallOutput]:
    return items_of(response, FunctionCallOutput)


def sent(request: ChatRequest) -> dict[str, Any]:
    """The chat request as the backend gets it."""
    plain: dict[str, Any] = to_plain(request)
    return plain


def sent_messages(request: ChatRequest) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in sent(request)["messages"]]


def weather_tool(*, answer: str = "sunny") -> LocalExecutor:
    """A local executor for `weather`."""

    async def weather(city: str) -> str:
        return f"{answer} in {city}"

    return LocalExecutor(weather)


def replies(text: str) -> Callable[[ToolCall, ToolContext], Awaitable[ToolResult | str]]:
    """A server's tool that always answers `text`."""

    async def reply(call: ToolCall, context: ToolContext) -> str:
        return text

    return reply


def same_but_for_ids(one: Sequence[OutputItem], other: Sequence[OutputItem]) -> bool:
    return _shape(one) == _shape(other)


def shape_of(response: Response) -> dict[str, Any]:
    """A response without what is new each time: ids, times, and what names them."""
    plain: dict[str, Any] = to_plain(response)
    for key in ("id", "created_at", "completed_at", "previous_response_id"):
        plain.pop(key)
    plain["output"] = _shape(response.output)
    return plain


def _shape(items: Sequence[OutputItem]) -> list[dict[str, Any]]:
    known: dict[str, str] = {}
    shapes = []
    for item in items:
        plain: dict[str, Any] = to_plain(item)
        plain.pop("id")
        if "call_id" in plain:
            plain["call_id"] = known.setdefault(plain["call_id"], f"call {len(known)}")
        shapes.append(plain)
    return shapes
