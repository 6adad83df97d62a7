"""langchain-openai: `ChatOpenAI(use_responses_api=True)`.

Each case goes by `invoke` and `ainvoke`, or by `stream` and `astream`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from operator import add as joined
from typing import Any, TypeAlias, TypeVar

import openai
import pytest
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import DefaultHttpxClient
from pydantic import BaseModel, SecretStr

from clients.ground import MODEL
from clients.tapped import tapped
from clients.trying import PNG, PNG_DIGEST, WHOLE, NotApplicable, Play, Trial

os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")  # nothing is reported to anybody

E = TypeVar("E", bound=Exception)
Model: TypeAlias = Runnable[LanguageModelInput, AIMessage]


class Person(BaseModel):
    name: str
    age: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise RuntimeError("the saw is broken")


@asynccontextmanager
async def chat(at: Trial, **more: Any) -> AsyncIterator[ChatOpenAI]:
    """With connections of its own: else they are shared between event loops."""
    given = {"model": MODEL, "use_responses_api": True, "max_retries": 0, "timeout": 60, **more}
    async with tapped() as http:
        with DefaultHttpxClient() as blocking:
            key = SecretStr("none")
            yield ChatOpenAI(base_url=at.ground.url, api_key=key, http_async_client=http, http_client=blocking, **given)


def blocked(at: Trial, model: Model, said: LanguageModelInput) -> AIMessage:
    return reduce(joined, model.stream(said)) if at.streamed else model.invoke(said)


async def awaited(at: Trial, model: Model, said: LanguageModelInput) -> AIMessage:
    if not at.streamed:
        return await model.ainvoke(said)
    message = reduce(joined, [piece async for piece in model.astream(said)])
    assert isinstance(message, AIMessageChunk)
    assert message.chunk_position == "last"
    return message


async def asked(at: Trial, model: Model, said: LanguageModelInput) -> AIMessage:
    """The message that the async face gives; the other one must say the same."""
    message = await awaited(at, model, said)
    other = await asyncio.to_thread(blocked, at, model, said)
    assert other.text == message.text
    assert [call["args"] for call in other.tool_calls] == [call["args"] for call in message.tool_calls]
    return message


async def conversed(at: Trial, model: Model, prompt: str, tools: Sequence[Any] = (add,)) -> AIMessage:
    """The answer after the calls that the model asks for are made, as a simple agent does it."""
    history: list[BaseMessage] = [HumanMessage(prompt)]
    while (message := await asked(at, model, history)).tool_calls:
        history.append(message)
        history += [await _result(call, tools) for call in message.tool_calls]
    return message


async def _result(call: Any, tools: Sequence[Any]) -> ToolMessage:
    [found] = [each for each in tools if each.name == call["name"]]
    try:
        message: ToolMessage = await found.ainvoke(call)
    except RuntimeError as exc:
        return ToolMessage(f"Error: {exc}", tool_call_id=call["id"], status="error")
    return message


# ---- cases ----


async def plain(at: Trial) -> None:
    async with chat(at) as model:
        message = await asked(at, model, f"case:plain {at.mark}")
    assert message.text == f"You said: {at.mark}"
    assert message.response_metadata["status"] == "completed"
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == 3


async def function(at: Trial) -> None:
    async with chat(at) as model:
        prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        message = await conversed(at, model.bind_tools([add]), prompt)
    assert message.text == "The tool says: 42."


async def parallel(at: Trial) -> None:
    async with chat(at) as model:
        prompt = f'case:parallel call:add{{"a": 1, "b": 2}} call:add{{"a": 30, "b": 40}} {at.mark}'
        message = await conversed(at, model.bind_tools([add], parallel_tool_calls=True), prompt)
    assert message.text == "The tools say: 3 and 70."


async def structured(at: Trial) -> None:
    prompt = f'case:structured {{"name": "Ada", "age": 36}} {at.mark}'
    async with chat(at) as plain_model:
        model = plain_model.with_structured_output(Person)
        if at.streamed:
            found = [[each async for each in model.astream(prompt)][-1], list(model.stream(prompt))[-1]]
        else:
            found = [await model.ainvoke(prompt), model.invoke(prompt)]
    assert found == [Person(name="Ada", age=36)] * 2


async def reasoning(at: Trial) -> None:
    """It shows summaries only, so one is asked for; over a call the thought reaches the model again."""
    async with chat(at, reasoning={"summary": "auto"}) as model:
        message = await asked(at, model, f"case:reasoning {at.mark}")
        prompt = f'case:reasoning call:add{{"a": 20, "b": 22}} {at.mark}'
        second = await conversed(at, model.bind_tools([add]), prompt)
    thoughts = [block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning"]
    assert thoughts == [f"First I think about it: {at.mark}"]
    assert message.text == f"I have thought about: {at.mark}"
    assert second.text == "The tool says: 42. I had thought: First I think about it: add"


async def image(at: Trial) -> None:
    content: list[Any] = [
        {"type": "text", "text": f"case:image {at.mark}"},
        {"type": "image", "base64": PNG.partition(",")[2], "mime_type": "image/png"},
    ]
    async with chat(at) as model:
        message = await asked(at, model, [HumanMessage(content)])
    assert message.text == f"I see an image, {PNG_DIGEST}."


def _remembered(at: Trial) -> str:
    said = f"My word is walrus. {at.mark}"
    return f"user: case:plain {said} | assistant: You said: {said} | user: case:remember"


async def _twice(at: Trial, **more: Any) -> str:
    """Something to remember, and what is remembered."""
    first = HumanMessage(f"case:plain My word is walrus. {at.mark}")
    async with chat(at, **more) as model:
        answer = await asked(at, model, [first])
        second = await asked(at, model, [first, answer, HumanMessage("case:remember")])
    return str(second.text)


async def by_id(at: Trial) -> None:
    assert await _twice(at, use_previous_response_id=True) == _remembered(at)


async def by_history(at: Trial) -> None:
    assert await _twice(at, store=False) == _remembered(at)


async def tool_error(at: Trial) -> None:
    async with chat(at) as model:
        message = await conversed(at, model.bind_tools([broken]), f"case:tool-error {at.mark}", [broken])
    assert message.text == "The tool failed: Error: the saw is broken."


# ---- errors ----


async def _refused(at: Trial, prompt: str, error: type[E], **more: Any) -> E:
    """By both faces."""
    async with chat(at, **more) as model:
        with pytest.raises(error):
            await asyncio.to_thread(blocked, at, model, f"{prompt} {at.mark}")
        with pytest.raises(error) as caught:
            await awaited(at, model, f"{prompt} {at.mark}")
    return caught.value


async def unknown_model(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.NotFoundError, model="no-such-model")
    assert exc.code == "model_not_found"


async def bad_request(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.BadRequestError, temperature=9)
    assert exc.param == "temperature"
    exc = await _refused(at, "case:400", openai.BadRequestError)
    assert "not to the model's liking" in exc.message


async def backend_429(at: Trial) -> None:
    exc = await _refused(at, "case:429", openai.RateLimitError)
    assert exc.response.headers["retry-after"] == "7"


async def backend_500(at: Trial) -> None:
    exc = await _refused(at, "case:500", openai.InternalServerError)
    assert exc.type == "server_error"


async def cut_stream(at: Trial) -> None:
    exc = await _refused(at, "case:cut", ValueError)
    assert "broke off" in str(exc)


# ---- besides ----

WORKSHOP = {"type": "mcp", "server_label": "workshop", "require_approval": "never"}


async def toolset(at: Trial) -> None:
    first = HumanMessage(f'case:function call:add{{"a": 20, "b": 22}} {at.mark}')
    async with chat(at, store=False) as plain_model:
        model = plain_model.bind_tools([{**WORKSHOP, "allowed_tools": ["add"]}])
        answer = await asked(at, model, [first])
        second = await asked(at, model, [first, answer, HumanMessage("case:remember")])
    assert answer.text == "The tool says: 42."
    assert answer.tool_calls == []
    assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.' in second.text


async def approval(at: Trial) -> None:
    """The decision is a block of what the user says."""
    first = HumanMessage(f'case:function call:add{{"a": 20, "b": 22}} {at.mark}')
    async with chat(at, store=False) as plain_model:
        model = plain_model.bind_tools([{**WORKSHOP, "allowed_tools": ["add"], "require_approval": "always"}])
        answer = await asked(at, model, [first])
        [request] = [block for block in answer.content if isinstance(block, dict) and "approval" in block["type"]]
        assert (request["type"], request["name"]) == ("mcp_approval_request", "add")
        for approve, told in ((True, "42"), (False, "The user denied this call.")):
            given = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
            second = await asked(at, model, [first, answer, HumanMessage([given])])
            assert second.text == f"The tool says: {told}."


async def sealed_reasoning(at: Trial) -> None:
    at = at.bared()
    first = HumanMessage(f"case:reasoning {at.mark}")
    sealed = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    async with chat(at, **sealed) as model:
        answer = await asked(at, model, [first])
        second = await asked(at, model, [first, answer, HumanMessage("case:remember")])
    assert any(isinstance(block, dict) and block.get("encrypted_content") for block in answer.content)
    assert f"assistant thought: First I think about it: {at.mark}" in second.text


async def slow_tool(at: Trial) -> None:
    """The tool works longer than the client waits for an event."""
    if not at.streamed:
        raise NotApplicable(WHOLE)
    async with chat(at, stream_chunk_timeout=1.5) as plain_model:
        model = plain_model.bind_tools([{**WORKSHOP, "allowed_tools": ["slow"]}])
        message = await awaited(at, model, f'case:slow-tool call:slow{{"seconds": 3}} {at.mark}')
    assert message.text == "The tool says: worked for 3 s."


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
