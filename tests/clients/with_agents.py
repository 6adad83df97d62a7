"""openai-agents: `Runner.run` and `Runner.run_streamed`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    Tool,
    function_tool,
)
from agents.exceptions import ModelBehaviorError
from agents.items import ReasoningItem, TResponseInputItem
from agents.result import RunResultBase
from httpx2 import Timeout
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

from clients.ground import MODEL
from clients.tapped import tapped
from clients.trying import PNG, PNG_DIGEST, Play, Trial

QUIET = RunConfig(tracing_disabled=True)
"""Nothing is reported to anybody."""
logging.getLogger("openai.agents").addHandler(logging.NullHandler())  # else it tells of every error that is raised


class Person(BaseModel):
    name: str
    age: int


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _named(_: RunContextWrapper[Any], error: Exception) -> str:
    """By default the SDK tells the model nothing but that there was an error."""
    return f"Error: {error}"


@function_tool(failure_error_function=_named)
def broken() -> str:
    """Fail."""
    raise RuntimeError("the saw is broken")


@asynccontextmanager
async def model_at(at: Trial, name: str = MODEL, read: float = 60) -> AsyncIterator[OpenAIResponsesModel]:
    patience = Timeout(60, read=read)
    async with tapped() as http:
        client = AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0, timeout=patience, http_client=http)
        yield OpenAIResponsesModel(name, client)


async def run(
    at: Trial,
    said: str | list[TResponseInputItem],
    *,
    tools: Sequence[Tool] = (),
    settings: ModelSettings | None = None,
    model: str = MODEL,
    output: type[BaseModel] | None = None,
    **more: Any,
) -> RunResultBase:
    async with model_at(at, model) as asked:
        agent = Agent(
            name="worker",
            model=asked,
            tools=list(tools),
            model_settings=settings or ModelSettings(),
            output_type=output,
        )
        return await ran(at, agent, said, **more)


async def ran(at: Trial, agent: Agent, said: str | list[TResponseInputItem], **more: Any) -> RunResultBase:
    if not at.streamed:
        return await Runner.run(agent, said, run_config=QUIET, **more)
    result = Runner.run_streamed(agent, said, run_config=QUIET, **more)
    texts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    if isinstance(result.final_output, str):
        assert "".join(texts).endswith(result.final_output)
    return result


# ---- cases ----


async def plain(at: Trial) -> None:
    result = await run(at, f"case:plain {at.mark}")
    assert result.final_output == f"You said: {at.mark}"
    assert result.context_wrapper.usage.output_tokens == 3


async def function(at: Trial) -> None:
    result = await run(at, f'case:function call:add{{"a": 20, "b": 22}} {at.mark}', tools=[add])
    assert result.final_output == "The tool says: 42."


async def parallel(at: Trial) -> None:
    prompt = f'case:parallel call:add{{"a": 1, "b": 2}} call:add{{"a": 30, "b": 40}} {at.mark}'
    result = await run(at, prompt, tools=[add], settings=ModelSettings(parallel_tool_calls=True))
    assert result.final_output == "The tools say: 3 and 70."
    assert len(at.reached()) == 2


async def structured(at: Trial) -> None:
    result = await run(at, f'case:structured {{"name": "Ada", "age": 36}} {at.mark}', output=Person)
    assert result.final_output == Person(name="Ada", age=36)


async def reasoning(at: Trial) -> None:
    """The raw text is in the item; a summary is there when it is asked for. Both are kept over a call."""
    prompt = f'case:reasoning call:add{{"a": 20, "b": 22}} {at.mark}'
    result = await run(at, prompt, tools=[add])
    first = next(item for item in result.new_items if isinstance(item, ReasoningItem))
    assert first.raw_item.content is not None
    assert first.raw_item.content[0].text == "First I think about it: add"
    assert result.final_output == "The tool says: 42. I had thought: First I think about it: add"
    result = await run(at, f"case:reasoning {at.mark}", settings=ModelSettings(reasoning=Reasoning(summary="auto")))
    [item] = [item for item in result.new_items if isinstance(item, ReasoningItem)]
    assert item.raw_item.summary[0].text == f"First I think about it: {at.mark}"


async def image(at: Trial) -> None:
    text: Any = {"type": "input_text", "text": f"case:image {at.mark}"}
    picture: Any = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    result = await run(at, [{"role": "user", "content": [text, picture]}])
    assert result.final_output == f"I see an image, {PNG_DIGEST}."


def remembered(at: Trial) -> str:
    said = f"My word is walrus. {at.mark}"
    return f"user: case:plain {said} | assistant: You said: {said} | user: case:remember"


async def by_id(at: Trial) -> None:
    first = await run(at, f"case:plain My word is walrus. {at.mark}")
    second = await run(at, "case:remember", previous_response_id=first.last_response_id)
    assert second.final_output == remembered(at)


async def by_history(at: Trial) -> None:
    first = await run(at, f"case:plain My word is walrus. {at.mark}")
    second = await run(at, [*first.to_input_list(), {"role": "user", "content": "case:remember"}])
    assert second.final_output == remembered(at)


async def tool_error(at: Trial) -> None:
    result = await run(at, f"case:tool-error {at.mark}", tools=[broken])
    assert result.final_output == "The tool failed: Error: the saw is broken."


# ---- errors ----


async def _refused(at: Trial, prompt: str, error: type[openai.APIStatusError], **more: Any) -> openai.APIStatusError:
    with pytest.raises(error) as caught:
        await run(at, f"{prompt} {at.mark}", **more)
    return caught.value


async def unknown_model(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.NotFoundError, model="no-such-model")
    assert exc.code == "model_not_found"


async def bad_request(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.BadRequestError, settings=ModelSettings(temperature=9))
    assert exc.param == "temperature"
    exc = await _refused(at, "case:400", openai.BadRequestError)
    assert "not to the model's liking" in exc.message


async def backend_429(at: Trial) -> None:
    exc = await _refused(at, "case:429", openai.RateLimitError)
    assert exc.response.headers["retry-after"] == "7"


async def backend_500(at: Trial) -> None:
    exc = await _refused(at, "case:500", openai.InternalServerError)
    assert exc.type == "server_error"
    assert len(at.reached()) == 1


async def cut_stream(at: Trial) -> None:
    with pytest.raises(ModelBehaviorError, match="broke off"):
        await run(at, f"case:cut {at.mark}")


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
}
