"""pydantic-ai: `OpenAIResponsesModel`, by `Agent.run` and `Agent.run_stream`."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelMessage, ModelRetry, NativeOutput, Tool
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from clients.ground import KNOWN_MODEL, MODEL
from clients.tapped import tapped
from clients.trying import PNG, PNG_DIGEST, WHOLE, NotApplicable, Play, Trial

Settings = OpenAIResponsesModelSettings
E = TypeVar("E", bound=Exception)


class Person(BaseModel):
    name: str
    age: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Ran:
    """What is the same of a result, streamed or not."""

    def __init__(self, output: Any, messages: list[ModelMessage], requests: int) -> None:
        self.output, self.messages, self.requests = output, messages, requests

    @property
    def thoughts(self) -> list[ThinkingPart]:
        parts = [part for message in self.messages if isinstance(message, ModelResponse) for part in message.parts]
        return [part for part in parts if isinstance(part, ThinkingPart)]


@asynccontextmanager
async def model_at(at: Trial, name: str) -> AsyncIterator[OpenAIResponsesModel]:
    async with tapped() as http:
        client = AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0, timeout=60, http_client=http)
        yield OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=client))


async def run(
    at: Trial,
    said: str | Sequence[Any] | None,
    *,
    tools: Sequence[Callable[..., Any] | Tool] = (),
    output: Any = str,
    model: str = MODEL,
    settings: Settings | None = None,
    history: list[ModelMessage] | None = None,
) -> Ran:
    async with model_at(at, model) as asked:
        agent: Agent[None, Any] = Agent(
            asked, output_type=output, tools=list(tools), model_settings=settings, retries=1
        )
        return await ran_by(at, agent, said, history)


async def ran_by(
    at: Trial, agent: Agent[None, Any], said: str | Sequence[Any] | None, history: list[ModelMessage] | None = None
) -> Ran:
    if not at.streamed:
        whole = await agent.run(said, message_history=history)
        return Ran(whole.output, whole.all_messages(), whole.usage.requests)
    async with agent.run_stream(said, message_history=history) as streamed:
        seen = [piece async for piece in streamed.stream_output(debounce_by=None)]
        final = await streamed.get_output()
    assert seen[-1] == final
    return Ran(final, streamed.all_messages(), streamed.usage.requests)


# ---- cases ----


async def plain(at: Trial) -> None:
    ran = await run(at, f"case:plain {at.mark}")
    assert ran.output == f"You said: {at.mark}"
    last = ran.messages[-1]
    assert isinstance(last, ModelResponse)
    assert last.usage.output_tokens == 3
    assert last.finish_reason == "stop"


async def function(at: Trial) -> None:
    ran = await run(at, f'case:function call:add{{"a": 20, "b": 22}} {at.mark}', tools=[add])
    assert ran.output == "The tool says: 42."


async def parallel(at: Trial) -> None:
    prompt = f'case:parallel call:add{{"a": 1, "b": 2}} call:add{{"a": 30, "b": 40}} {at.mark}'
    ran = await run(at, prompt, tools=[add], settings=Settings(parallel_tool_calls=True))
    assert ran.output == "The tools say: 3 and 70."
    assert ran.requests == 2


async def structured(at: Trial) -> None:
    """By the format of the answer, and by a call of a tool, which is what it does if nothing else is said."""
    prompt = f'case:structured {{"name": "Ada", "age": 36}} {at.mark}'
    for output in (NativeOutput(Person), Person):
        ran = await run(at, prompt, output=output)
        assert ran.output == Person(name="Ada", age=36)
    formats = ["response_format" in body for body in at.reached()]
    assert formats == [True, False]


async def reasoning(at: Trial) -> None:
    ran = await run(at, f'case:reasoning call:add{{"a": 20, "b": 22}} {at.mark}', tools=[add])
    assert _raw(ran) == ["First I think about it: add", "Now I know."]
    assert ran.output == "The tool says: 42. I had thought: First I think about it: add"
    summed = Settings(openai_reasoning_summary="auto")
    ran = await run(at, f"case:reasoning {at.mark}", model=KNOWN_MODEL, settings=summed)
    assert [part.content for part in ran.thoughts] == [f"First I think about it: {at.mark}"]


def _raw(ran: Ran) -> list[str]:
    """What was thought itself stands beside the summary."""
    return ["".join((part.provider_details or {})["raw_content"]) for part in ran.thoughts]


async def image(at: Trial) -> None:
    picture = BinaryContent(base64.b64decode(PNG.partition(",")[2]), media_type="image/png")
    ran = await run(at, [f"case:image {at.mark}", picture])
    assert ran.output == f"I see an image, {PNG_DIGEST}."


def _remembered(at: Trial) -> str:
    said = f"My word is walrus. {at.mark}"
    return f"user: case:plain {said} | assistant: You said: {said} | user: case:remember"


async def by_id(at: Trial) -> None:
    chained = Settings(openai_previous_response_id="auto")
    first = await run(at, f"case:plain My word is walrus. {at.mark}", settings=chained)
    second = await run(at, "case:remember", settings=chained, history=first.messages)
    assert second.output == _remembered(at)


async def by_history(at: Trial) -> None:
    first = await run(at, f"case:plain My word is walrus. {at.mark}", settings=Settings(openai_store=False))
    second = await run(at, "case:remember", settings=Settings(openai_store=False), history=first.messages)
    assert second.output == _remembered(at)


async def tool_error(at: Trial) -> None:
    def broken() -> str:
        """Fail."""
        raise ModelRetry("Error: the saw is broken")

    ran = await run(at, f"case:tool-error {at.mark}", tools=[broken])
    assert ran.output == 'The tool failed: {"error":"Error: the saw is broken"}.'


# ---- errors ----


async def _refused(at: Trial, prompt: str, error: type[E], **more: Any) -> E:
    with pytest.raises(error) as caught:
        await run(at, f"{prompt} {at.mark}", **more)
    return caught.value


async def unknown_model(at: Trial) -> None:
    exc = await _refused(at, "case:plain", ModelHTTPError, model="no-such-model")
    assert exc.status_code == 404
    assert "no-such-model" in str(exc)


async def bad_request(at: Trial) -> None:
    exc = await _refused(at, "case:plain", ModelHTTPError, settings=Settings(temperature=9))
    assert exc.status_code == 400
    assert "temperature" in str(exc.body)
    exc = await _refused(at, "case:400", ModelHTTPError)
    assert exc.status_code == 400
    assert "not to the model's liking" in str(exc)


async def backend_429(at: Trial) -> None:
    exc = await _refused(at, "case:429", ModelHTTPError)
    assert exc.status_code == 429


async def backend_500(at: Trial) -> None:
    exc = await _refused(at, "case:500", ModelHTTPError)
    assert exc.status_code == 502
    assert len(at.reached()) == 1


async def cut_stream(at: Trial) -> None:
    exc = await _refused(at, "case:cut", ModelAPIError)
    assert "broke off" in str(exc)


# ---- besides ----


async def toolset(at: Trial) -> None:
    """To models that it knows, it sends the server's calls back without their results: those the server has."""
    workshop: Any = {
        "type": "mcp",
        "server_label": "workshop",
        "allowed_tools": ["add"],
        "require_approval": "never",
    }
    settings = Settings(openai_native_tools=[workshop])
    prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
    first = await run(at, prompt, settings=settings, model=KNOWN_MODEL)
    assert first.output == "The tool says: 42."
    second = await run(at, "case:remember", settings=settings, model=KNOWN_MODEL, history=first.messages)
    assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.' in second.output
    assert len(at.reached()) == 3


async def approval(_: Trial) -> None:
    raise NotApplicable("the client asks for no approvals, and passes over what waits for one")


async def sealed_reasoning(at: Trial) -> None:
    """It asks for it by itself, where it takes the model for one that reasons."""
    at = at.bared()
    sealed = Settings(openai_store=False, openai_reasoning_effort="low")
    first = await run(at, f"case:reasoning {at.mark}", settings=sealed, model=KNOWN_MODEL)
    assert first.thoughts[0].signature
    second = await run(at, "case:remember", settings=sealed, model=KNOWN_MODEL, history=first.messages)
    assert f"assistant thought: First I think about it: {at.mark}" in second.output


async def slow_tool(at: Trial) -> None:
    """The tool works longer than the client waits for a byte."""
    if not at.streamed:
        raise NotApplicable(WHOLE)
    slow: Any = {"type": "mcp", "server_label": "workshop", "allowed_tools": ["slow"], "require_approval": "never"}
    settings = Settings(openai_native_tools=[slow], timeout=1.5)
    ran = await run(at, f'case:slow-tool call:slow{{"seconds": 3}} {at.mark}', settings=settings)
    assert ran.output == "The tool says: worked for 3 s."


CASES: dict[str, Play] = {
    "plain": plain,
    "function": function,
    "parallel": parallel,
    "structured": structured,
    "reasoning": reasoning,
    "image": image,
    "by-id": by_id,
    "by-history": by_history,
    "tool-error": tool_error,
    "unknown-model": unknown_model,
    "bad-request": bad_request,
    "backend-429": backend_429,
    "backend-500": backend_500,
    "cut-stream": cut_stream,
    "toolset": toolset,
    "approval": approval,
    "sealed-reasoning": sealed_reasoning,
    "slow-tool": slow_tool,
}
