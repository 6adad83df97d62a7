"""Real clients on streams that have nothing to say for a while: each sign of life is one they take.

The times are short and stand still for nobody: a gate in the script opens when the server has sent the next sign, so a
stream that sent none would hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import Agent, FunctionTool, OpenAIResponsesModel, RunConfig, Runner
from agents.tool_context import ToolContext as AgentContext
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models._client_utils import StreamChunkTimeoutError
from openai import AsyncOpenAI
from pydantic import SecretStr
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticModel
from pydantic_ai.providers.openai import OpenAIProvider

from antwort.engine.engine import Engine
from antwort.server.exchange import Message, Receive, Scope, Send
from antwort.server.http import Transport
from antwort.testing import ScriptedProvider, answer, call, say, think
from antwort.testing.scripted import Answer, Piece
from antwort.tools.toolset import Toolset
from engine_kit import engine_of
from serving import Serving, serving

MODEL = "scripted"
SOON, LATE = 0.02, 600.0
SIGNS = (b"event: response.in_progress\n", b"event: response.mcp_call.in_progress\n")


class Overheard(Transport):
    """Counts the signs of life that go out, and opens one gate for each."""

    def __init__(self, engine: Engine, gates: Sequence[asyncio.Event] = ()) -> None:
        super().__init__(engine)
        self.signs = 0
        self.gates = list(gates)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def overhear(message: Message) -> None:
            await send(message)
            body: bytes = message.get("body", b"")
            said = sum(body.count(sign) for sign in SIGNS) - body.count(b"event: response.created\n")
            for _ in range(said):
                self.signs += 1
                if self.gates:
                    self.gates.pop(0).set()

        await super().__call__(scope, receive, overhear)


# ---- in the middle of everything ----


class Script:
    """A conversation of two answers with a silence wherever one can be."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []

    def silence(self) -> asyncio.Event:
        self.gates.append(asyncio.Event())
        return self.gates[-1]

    def calls(self) -> Answer:
        first, second = call("weather", city="Paris")
        pieces: list[list[Piece] | asyncio.Event] = [
            self.silence(), think("Let me"), self.silence(), think("see"), self.silence(),
            [first], self.silence(), [second], self.silence(),
        ]  # fmt: skip
        return answer(*pieces)

    def says(self) -> Answer:
        return answer(self.silence(), say("Sunny"), self.silence(), say(" again"), self.silence())


WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
Client = Callable[[str], Awaitable[str]]


async def openai_raw(url: str) -> str:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        tool = {"type": "function", "name": "weather", "parameters": WEATHER_SCHEMA, "strict": True}
        first = [event async for event in await client.responses.create(**_asked(tool), stream=True)]
        assert first[-1].type == "response.completed"
        output = _output(first[-1].response)
        second = await client.responses.create(**_asked(tool, output, first[-1].response.id), stream=True)
        return "".join([event.delta async for event in second if event.type == "response.output_text.delta"])


async def openai_stream(url: str) -> str:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        tool = {"type": "function", "name": "weather", "parameters": WEATHER_SCHEMA, "strict": True}
        async with client.responses.stream(**_asked(tool)) as stream:
            first = await stream.get_final_response()
        async with client.responses.stream(**_asked(tool, _output(first), first.id)) as stream:
            final = await stream.get_final_response()
        text: str = final.output_text
        return text


def _asked(tool: dict[str, Any], output: dict[str, Any] | None = None, previous: str | None = None) -> dict[str, Any]:
    said = "Weather?" if output is None else [output]
    return {"model": MODEL, "input": said, "tools": [tool], "previous_response_id": previous}


def _output(response: Any) -> dict[str, Any]:
    (called,) = [item for item in response.output if item.type == "function_call"]
    assert called.arguments == '{"city":"Paris"}'
    return {"type": "function_call_output", "call_id": called.call_id, "output": "sun"}


async def agents(url: str) -> str:
    async def weather(_: AgentContext[Any], arguments: str) -> str:
        assert arguments == '{"city":"Paris"}'
        return "sun"

    tool = FunctionTool(
        name="weather",
        description="",
        params_json_schema=WEATHER_SCHEMA,
        on_invoke_tool=weather,
        strict_json_schema=True,
    )
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(MODEL, client)
        agent = Agent(name="forecaster", model=model, tools=[tool])
        result = Runner.run_streamed(agent, "Weather?", run_config=RunConfig(tracing_disabled=True))
        async for _ in result.stream_events():
            pass
        return str(result.final_output)


async def langchain(url: str) -> str:
    async with chat_model(url) as model:
        bound = model.bind_tools([{"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}}])
        first = await _whole_of(bound.astream("Weather?"))
        (called,) = first.tool_calls
        assert called["args"] == {"city": "Paris"}
        talk = [HumanMessage("Weather?"), first, ToolMessage("sun", tool_call_id=called["id"])]
        return str((await _whole_of(bound.astream(talk))).text)


@asynccontextmanager
async def chat_model(url: str, patience: float = 60.0) -> AsyncIterator[ChatOpenAI]:
    """LangChain leaves the connections of its async client to the garbage; we do not."""
    model = ChatOpenAI(
        model=MODEL,
        base_url=url,
        api_key=SecretStr("none"),
        use_responses_api=True,
        max_retries=0,
        stream_chunk_timeout=patience,
    )
    try:
        yield model
    finally:
        await model.root_async_client.close()


async def _whole_of(chunks: Any) -> AIMessageChunk:
    whole: AIMessageChunk | None = None
    async for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return whole


async def pydantic_ai(url: str) -> str:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        agent = PydanticAgent(PydanticModel(MODEL, provider=OpenAIProvider(openai_client=client)))

        @agent.tool_plain
        def weather(city: str) -> str:
            assert city == "Paris"
            return "sun"

        async with agent.run_stream("Weather?") as result:
            return await result.get_output()


@pytest.mark.proves("RULING-10")
@pytest.mark.parametrize("client", [openai_raw, openai_stream, agents, langchain, pydantic_ai])
async def test_a_silence_may_be_broken_anywhere_by_saying_that_the_response_goes_on(client: Client) -> None:
    script = Script()
    engine = engine_of(ScriptedProvider(script.calls(), script.says()), longest_silence=SOON, hold_back=0)
    app = Overheard(engine, script.gates)
    async with serving(engine, app) as server, asyncio.timeout(30):
        assert await client(server.url) == "Sunny again"
    assert app.signs >= len(script.gates)
    assert not app.gates, "every silence was broken"


# ---- while a tool works ----

PATIENCE = 1.0
OFTEN = 0.1
ENOUGH = 14
"""So many signs take longer than the client would wait without any."""


def digging(gate: asyncio.Event, **settings: Any) -> Engine:
    async def dig() -> str:
        await gate.wait()
        return "gold"

    return engine_of(
        ScriptedProvider(answer(call("dig")), answer(say("Gold!"))),
        Toolset("mine", dig),
        keepalive_interval=SOON,
        **settings,
    )


async def ask_langchain(server: Serving) -> str:
    mine = {"type": "mcp", "server_label": "mine", "require_approval": "never"}
    async with chat_model(server.url, PATIENCE) as model:
        return str((await _whole_of(model.bind_tools([mine]).astream("Dig."))).text)


async def test_a_tool_that_works_for_long_does_not_trip_the_timer_of_langchain() -> None:
    gate = asyncio.Event()
    engine = digging(gate, progress_interval=OFTEN)
    app = Overheard(engine, [asyncio.Event() for _ in range(ENOUGH - 1)] + [gate])
    async with serving(engine, app) as server, asyncio.timeout(30):
        assert await ask_langchain(server) == "Gold!"
    assert app.signs >= ENOUGH


async def test_comments_alone_trip_the_timer_of_langchain() -> None:
    gate = asyncio.Event()
    engine = digging(gate, progress_interval=LATE, longest_silence=LATE)
    app = Overheard(engine)
    async with serving(engine, app) as server, asyncio.timeout(30):
        with pytest.raises(StreamChunkTimeoutError):
            await ask_langchain(server)
        gate.set()
    assert app.signs == 1, "the call was shown once, when it began"
