"""Free-form tools with the official SDK, in front of a backend that knows nothing but functions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import (
    CustomToolParam,
    FunctionToolParam,
    Response,
    ResponseCustomToolCall,
    ResponseInputParam,
)
from openai.types.responses.response_custom_tool_call_output_param import ResponseCustomToolCallOutputParam

from antwort.app import build
from chat_backend import Calls, ChatBackend, Says
from grammar_kit import PATCHES
from serving import serving
from settings_kit import in_front_of

MODEL = "test-model"
PATCH = '*** Begin Patch\n*** Add File: a.txt\n+one "two" é\n*** End Patch\n'
NOTE: CustomToolParam = {"type": "custom", "name": "note", "description": "Takes a note."}
APPLY_PATCH: CustomToolParam = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCHES},
}

SHELL: FunctionToolParam = {"type": "function", "name": "shell", "parameters": None, "strict": None}


@pytest.fixture
async def client(backend: ChatBackend, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    app = await build(in_front_of(backend.url, data=tmp_path))
    async with (
        serving(app.engine, app.asgi) as server,
        AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=30) as connected,
    ):
        yield connected


def calls(name: str, text: str) -> Calls:
    return Calls([(name, json.dumps({"input": text}))])


def call_in(response: Response) -> ResponseCustomToolCall:
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    return call


async def test_a_streamed_call_brings_its_input_as_text(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [calls("note", "one\ntwo")]
    async with client.responses.stream(model=MODEL, input="Note it.", tools=[NOTE]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    done = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert ("".join(deltas), done) == ("one\ntwo", ["one\ntwo"])
    assert [item.to_dict() for item in items] == [item.to_dict() for item in final.output]
    call = call_in(final)
    assert (call.name, call.input) == ("note", "one\ntwo")
    (tool,) = backend.requests[-1]["tools"]
    assert (tool["type"], tool["function"]["name"]) == ("function", "note")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_wrong_patch_is_corrected_and_its_result_goes_back(
    client: AsyncOpenAI, backend: ChatBackend, streamed: bool
) -> None:
    backend.answers = [calls("apply_patch", "add a.txt"), calls("apply_patch", PATCH), Says(["Done."])]
    first = await asked(client, streamed, "Add a file.")
    call = call_in(first)
    assert call.input == PATCH
    told = backend.requests[1]["messages"][-1]
    assert told["role"] == "tool"
    assert 'It stops matching at line 1, column 1, at "add a.txt".' in told["content"]
    output: ResponseCustomToolCallOutputParam = {
        "type": "custom_tool_call_output",
        "call_id": call.call_id,
        "output": "ok",
    }
    second = await asked(client, streamed, [output], first.id)
    assert second.output_text == "Done."
    *_, made, result = backend.requests[-1]["messages"]
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"input": PATCH}
    assert (result["role"], result["content"]) == ("tool", "ok")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("patch", [PATCH, "add a.txt"], ids=["right", "wrong"])
async def test_a_patch_and_the_command_that_needs_it_come_in_the_order_of_the_model(
    client: AsyncOpenAI, backend: ChatBackend, patch: str, streamed: bool
) -> None:
    backend.answers = [Calls([("apply_patch", json.dumps({"input": patch})), ("shell", '{"command": "cat a.txt"}')])]
    response = await asked(client, streamed, "Add a file, and show it.")
    first, second = response.output
    assert (first.type, second.type) == ("custom_tool_call", "function_call")
    assert call_in(response).input == patch


async def asked(
    client: AsyncOpenAI, streamed: bool, question: str | ResponseInputParam, previous: str | None = None
) -> Response:
    if not streamed:
        return await client.responses.create(
            model=MODEL, input=question, tools=[APPLY_PATCH, SHELL], previous_response_id=previous
        )
    async with client.responses.stream(
        model=MODEL, input=question, tools=[APPLY_PATCH, SHELL], previous_response_id=previous
    ) as stream:
        return await stream.get_final_response()


async def test_a_grammar_that_cannot_be_read_is_refused_by_its_path(client: AsyncOpenAI) -> None:
    broken: CustomToolParam = {**APPLY_PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "("}}
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="Hello", tools=[NOTE, broken])
    assert caught.value.param == "tools[1].format.definition"
    assert "unclosed group" in str(caught.value)
