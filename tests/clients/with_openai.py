"""openai-python: `create`, `create(stream=True)` and `.stream()`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from clients.ground import MODEL
from clients.tapped import tapped
from clients.trying import PNG, PNG_DIGEST, Play, Trial

ADD = {
    "type": "function",
    "name": "add",
    "description": None,
    "strict": True,
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


class Person(BaseModel):
    name: str
    age: int


@asynccontextmanager
async def client_of(at: Trial) -> AsyncIterator[AsyncOpenAI]:
    async with tapped() as http:
        yield AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0, timeout=60, http_client=http)


async def asked(at: Trial, said: Any, **more: Any) -> Response:
    """The response; streamed, once by the plain events and once by the client's own bookkeeping."""
    request = {"model": MODEL, "input": said, **more}
    async with client_of(at) as client:
        if not at.streamed:
            made: Response = await client.responses.create(**request)
            return made
        await _plain_events(client, request)
        async with client.responses.stream(**request) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final: Response = await stream.get_final_response()
        assert "".join(texts) == final.output_text
        return final


async def _plain_events(client: AsyncOpenAI, request: dict[str, Any]) -> None:
    events = [event async for event in await client.responses.create(**request, stream=True)]
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    if last.type == "response.failed":
        raise Failed(last.response)
    assert last.type == "response.completed", last.type
    assert "".join(texts) == last.response.output_text


class Failed(Exception):
    """A response that failed after the stream had begun."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.error}")
        self.response = response


# ---- cases ----


async def plain(at: Trial) -> None:
    response = await asked(at, f"case:plain {at.mark}")
    assert response.output_text == f"You said: {at.mark}"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == 3


async def function(at: Trial) -> None:
    prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
    first = await asked(at, prompt, tools=[ADD])
    second = await asked(at, _answered(prompt, first), tools=[ADD])
    assert second.output_text == "The tool says: 42."


async def parallel(at: Trial) -> None:
    prompt = f'case:parallel call:add{{"a": 1, "b": 2}} call:add{{"a": 30, "b": 40}} {at.mark}'
    first = await asked(at, prompt, tools=[ADD], parallel_tool_calls=True)
    assert [item.type for item in first.output] == ["function_call"] * 2
    second = await asked(at, results(first), tools=[ADD], previous_response_id=first.id)
    assert second.output_text == "The tools say: 3 and 70."


def _answered(prompt: str, first: Response) -> list[Any]:
    """The whole conversation so far, as a client that keeps it itself sends it."""
    said = [{"role": "user", "content": prompt}]
    return [*said, *[item.to_dict() for item in first.output], *results(first)]


def results(first: Response) -> list[Any]:
    """What the client answers the calls with."""
    made = []
    for item in first.output:
        assert item.type == "function_call"
        total = sum(json.loads(item.arguments).values())
        made.append({"type": "function_call_output", "call_id": item.call_id, "output": str(total)})
    return made


async def structured(at: Trial) -> None:
    prompt = f'case:structured {{"name": "Ada", "age": 36}} {at.mark}'
    async with client_of(at) as client:
        if at.streamed:
            async with client.responses.stream(model=MODEL, input=prompt, text_format=Person) as stream:
                parsed = (await stream.get_final_response()).output_parsed
        else:
            parsed = (await client.responses.parse(model=MODEL, input=prompt, text_format=Person)).output_parsed
    assert parsed == Person(name="Ada", age=36)


async def reasoning(at: Trial) -> None:
    response = await asked(at, f"case:reasoning {at.mark}")
    thought = response.output[0]
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == f"First I think about it: {at.mark}"
    assert thought.summary == []
    assert response.output_text == f"I have thought about: {at.mark}"
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 6
    summed = await asked(at, f"case:reasoning {at.mark}", reasoning={"summary": "auto"})
    assert summed.output[0].type == "reasoning"
    assert summed.output[0].summary[0].text == f"First I think about it: {at.mark}"


async def image(at: Trial) -> None:
    parts = [{"type": "input_text", "text": f"case:image {at.mark}"}, {"type": "input_image", "image_url": PNG}]
    response = await asked(at, [{"role": "user", "content": parts}])
    assert response.output_text == f"I see an image, {PNG_DIGEST}."


async def by_id(at: Trial) -> None:
    first = await asked(at, f"case:plain My word is walrus. {at.mark}")
    second = await asked(at, "case:remember", previous_response_id=first.id)
    assert second.output_text == remembered(at)


async def by_history(at: Trial) -> None:
    prompt = {"role": "user", "content": f"case:plain My word is walrus. {at.mark}"}
    first = await asked(at, [prompt], store=False)
    kept = [item.to_dict() for item in first.output]
    second = await asked(at, [prompt, *kept, {"role": "user", "content": "case:remember"}], store=False)
    assert second.output_text == remembered(at)


def remembered(at: Trial) -> str:
    said = f"My word is walrus. {at.mark}"
    return f"user: case:plain {said} | assistant: You said: {said} | user: case:remember"


async def tool_error(at: Trial) -> None:
    prompt = f"case:tool-error {at.mark}"
    first = await asked(at, prompt, tools=[ADD])
    call = first.output[0]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Error: the saw is broken"}
    second = await asked(at, [result], tools=[ADD], previous_response_id=first.id)
    assert second.output_text == "The tool failed: Error: the saw is broken."


# ---- errors ----


async def _refused(at: Trial, prompt: str, error: type[openai.APIStatusError], **more: Any) -> openai.APIStatusError:
    """All ways to ask raise the same."""
    request = {"model": MODEL, "input": f"{prompt} {at.mark}", **more}
    async with client_of(at) as client:
        with pytest.raises(error) as caught:
            await client.responses.create(**request, stream=at.streamed)
        if at.streamed:
            with pytest.raises(error):
                await _entered(client, request)
    return caught.value


async def _entered(client: AsyncOpenAI, request: dict[str, Any]) -> None:
    async with client.responses.stream(**request) as stream:
        await stream.get_final_response()


async def unknown_model(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.NotFoundError, model="no-such-model")
    assert exc.code == "model_not_found"
    assert "no-such-model" in exc.message


async def bad_request(at: Trial) -> None:
    exc = await _refused(at, "case:plain", openai.BadRequestError, temperature=9)
    assert (exc.param, exc.type) == ("temperature", "invalid_request_error")
    assert at.reached() == []
    exc = await _refused(at, "case:400", openai.BadRequestError)
    assert "not to the model's liking" in exc.message


async def backend_429(at: Trial) -> None:
    exc = await _refused(at, "case:429", openai.RateLimitError)
    assert exc.code == "rate_limit_exceeded"
    assert exc.response.headers["retry-after"] == "7"


async def backend_500(at: Trial) -> None:
    exc = await _refused(at, "case:500", openai.InternalServerError)
    assert exc.type == "server_error"
    assert len(at.reached()) == 1 + at.streamed


async def cut_stream(at: Trial) -> None:
    request: dict[str, Any] = {"model": MODEL, "input": f"case:cut {at.mark}"}
    async with client_of(at) as client:
        if not at.streamed:
            response = await client.responses.create(**request)
            assert response.status == "failed"
            assert response.error is not None
            assert "broke off" in response.error.message
            return
        with pytest.raises(Failed, match="broke off") as caught:
            await _plain_events(client, request)
        assert caught.value.response.output_text == f"This breaks off: {at.mark}"
        with pytest.raises(RuntimeError, match=r"response\.completed"):  # the SDK's own words
            await _entered(client, request)


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
