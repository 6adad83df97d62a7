"""The official SDK against a live server in front of a scripted backend over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseInputParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import BaseModel

from chat_backend import Breaks, Calls, ChatBackend, Refuses, Says

MODEL = "test-model"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as connected:
        yield connected


async def test_create(client: AsyncOpenAI, backend: ChatBackend) -> None:
    response = await client.responses.create(model=MODEL, input="Hello", instructions="Be kind.", temperature=0.5)
    assert response.output_text == "Hello there"
    assert (response.status, response.model, response.error) == ("completed", MODEL, None)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (5, 7, 12)
    assert backend.requests[-1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]
    assert backend.requests[-1]["temperature"] == 0.5


async def test_create_streamed(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["Hello", " there"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello there"


async def test_the_stream_that_keeps_the_whole(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="Hello") as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "Hello there"
    assert final.status == "completed"


class Person(BaseModel):
    name: str
    age: int


async def test_parse(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Says(['{"name": "Ada"', ', "age": 36}'])]
    response = await client.responses.parse(model=MODEL, input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)
    wanted = backend.requests[-1]["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["schema"]["required"] == ["name", "age"]


async def test_parse_streamed(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Says(['{"name": "Ada"', ', "age": 36}'])]
    async with client.responses.stream(model=MODEL, input="Who?", text_format=Person) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Person(name="Ada", age=36)


async def test_retrieve_and_delete(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="Hello", metadata={"topic": "greeting"})
    found = await client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found"


@pytest.mark.proves("CP-033")
async def test_a_response_that_is_not_stored_is_not_found(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="Hello", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


@pytest.mark.proves("RULING-7", "RULING-9", "EN-040")
async def test_cancel_in_mid_stream(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Says(["Hello", " there"], hold=asyncio.Event())]
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    created = await anext(stream)
    assert created.type == "response.created"
    while (await anext(stream)).type != "response.output_text.delta":
        pass
    cancelled = await client.responses.cancel(created.response.id)
    assert cancelled.status == "cancelled"
    *_, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert (await client.responses.retrieve(cancelled.id)).status == "cancelled"
    async with asyncio.timeout(1):
        await backend.until(lambda: backend.open_requests == 0)


async def test_input_items(client: AsyncOpenAI) -> None:
    texts = [f"number {i}" for i in range(25)]
    made = await client.responses.create(model=MODEL, input=[{"role": "user", "content": text} for text in texts])
    found = [item async for item in await client.responses.input_items.list(made.id, limit=10, order="asc")]
    assert [item.to_dict()["content"] for item in found] == [[{"type": "input_text", "text": text}] for text in texts]


@pytest.mark.proves("FR-021", "MISTAKE-01")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_function_round_trip_by_previous_response_id(
    client: AsyncOpenAI, backend: ChatBackend, streamed: bool
) -> None:
    backend.answers = [Calls([("weather", '{"city": "Paris"}')]), Says(["Sunny."])]
    first = await asked(client, streamed, "Weather?")
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
    output: FunctionCallOutput = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    second = await asked(client, streamed, [output], first.id)
    assert second.output_text == "Sunny."
    assert second.previous_response_id == first.id
    said, called, answered = backend.requests[-1]["messages"]
    assert (said["role"], said["content"]) == ("user", "Weather?")
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert (answered["role"], answered["content"]) == ("tool", "sun")


async def asked(
    client: AsyncOpenAI, streamed: bool, said: str | ResponseInputParam, previous: str | None = None
) -> Response:
    if not streamed:
        return await client.responses.create(model=MODEL, input=said, previous_response_id=previous, tools=[WEATHER])
    stream = client.responses.stream(model=MODEL, input=said, previous_response_id=previous, tools=[WEATHER])
    async with stream as events:
        final: Response = await events.get_final_response()
        return final


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in await client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


# ---- errors ----


async def test_a_wrong_request_is_a_bad_request_error(client: AsyncOpenAI, backend: ChatBackend) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="Hello", temperature=9)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    assert backend.requests == []


@pytest.mark.proves("TR-015", "RULING-8", "EN-034")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Refuses(429, headers={"retry-after": "30"}), openai.RateLimitError),
        (Refuses(400, "bad prompt"), openai.BadRequestError),
        (Refuses(404), openai.NotFoundError),
        (Refuses(401, "wrong key sk-123"), openai.InternalServerError),
    ],
    ids=["429", "400", "404", "401"],
)
async def test_an_error_of_the_backend_is_the_sdks_own(
    client: AsyncOpenAI,
    backend: ChatBackend,
    streamed: bool,
    refusal: Refuses,
    error: type[openai.APIStatusError],
) -> None:
    backend.answers = [refusal]
    with pytest.raises(error) as caught:
        await client.responses.create(model=MODEL, input="Hello", stream=streamed)
    assert "sk-123" not in str(caught.value)
    assert caught.value.response.headers.get("retry-after") == refusal.headers.get("retry-after")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [401, 403])
async def test_the_sdk_does_not_try_again_where_the_backend_refuses_the_servers_key(
    base_url: str, backend: ChatBackend, status: int, streamed: bool
) -> None:
    backend.answers = [Refuses(status, "wrong key sk-123")]
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=2, timeout=30) as patient:
        with pytest.raises(openai.InternalServerError) as caught:
            await patient.responses.create(model=MODEL, input="Hello", stream=streamed)
    assert (caught.value.status_code, caught.value.code) == (502, "backend_unauthorized")
    assert len(backend.requests) == 1


@pytest.mark.proves("TR-016", "EN-036")
async def test_a_backend_that_breaks_off_in_mid_stream_is_a_failed_response(
    client: AsyncOpenAI, backend: ChatBackend
) -> None:
    backend.answers = [Breaks()]
    events = [event async for event in await client.responses.create(model=MODEL, input="Hello", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.output_text == "Hel"


# ---- the client without async ----


async def test_the_synchronous_client(base_url: str, backend: ChatBackend) -> None:
    def use() -> tuple[str, str, list[str]]:
        with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
            made = client.responses.create(model=MODEL, input="Hello")
            with client.responses.stream(model=MODEL, input="Hello", previous_response_id=made.id) as stream:
                texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
                final = stream.get_final_response()
            models = [model.id for model in client.models.list()]
            return made.output_text, "".join(texts) or final.output_text, models

    assert await asyncio.to_thread(use) == ("Hello there", "Hello there", [MODEL])
    assert [message["role"] for message in backend.requests[-1]["messages"]] == ["user", "assistant", "user"]
