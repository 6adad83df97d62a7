"""openai-python, taken through more than all clients are."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from httpx2 import Timeout
from openai import AsyncOpenAI

from clients.ground import MODEL
from clients.trying import PNG, PNG_DIGEST, WHOLE, NotApplicable, Play, Trial
from clients.with_openai import ADD, asked

WORKSHOP: dict[str, Any] = {"type": "mcp", "server_label": "workshop", "require_approval": "never"}


async def toolset(at: Trial) -> None:
    """The server's calls come back as input, and nothing is stored."""
    tools = [{**WORKSHOP, "allowed_tools": ["add"]}]
    prompt = {"role": "user", "content": f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'}
    first = await asked(at, [prompt], tools=tools, store=False)
    assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert first.output_text == "The tool says: 42."
    kept = [item.to_dict() for item in first.output]
    second = await asked(at, [prompt, *kept, {"role": "user", "content": "case:remember"}], tools=tools, store=False)
    assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.' in second.output_text


async def approval(at: Trial) -> None:
    """Approved by the id of the response; denied by one who sends all again, and nothing is stored."""
    tools = [{**WORKSHOP, "allowed_tools": ["add"], "require_approval": "always"}]
    prompt = {"role": "user", "content": f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'}
    first = await asked(at, [prompt], tools=tools)
    request = first.output[-1]
    assert request.type == "mcp_approval_request"
    assert (request.server_label, request.name, request.arguments) == ("workshop", "add", '{"a": 20, "b": 22}')
    approved = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = await asked(at, [approved], tools=tools, previous_response_id=first.id)
    assert second.output_text == "The tool says: 42."
    # Streamed, it is asked in two ways: for the second one, the call has been run, and is not run again.
    runs = [item.approval_request_id for item in second.output if item.type == "mcp_call"]
    assert runs == ([] if at.streamed else [request.id])
    unkept = await asked(at, [prompt], tools=tools, store=False)
    kept = [item.to_dict() for item in unkept.output]
    denied = {"type": "mcp_approval_response", "approval_request_id": kept[-1]["id"], "approve": False, "reason": "No."}
    last = await asked(at, [prompt, *kept, denied], tools=tools, store=False)
    assert last.output_text == "The tool says: The user denied this call. The reason: No.."


async def sealed_reasoning(at: Trial) -> None:
    sealed = {"store": False, "include": ["reasoning.encrypted_content"]}
    prompt = {"role": "user", "content": f"case:reasoning {at.mark}"}
    first = await asked(at, [prompt], **sealed)
    thought = first.output[0]
    assert thought.type == "reasoning"
    assert thought.encrypted_content
    kept = [{"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}]
    words = {"role": "assistant", "content": first.output_text}
    second = await asked(at, [prompt, *kept, words, {"role": "user", "content": "case:remember"}], **sealed)
    assert f"assistant thought: First I think about it: {at.mark}" in second.output_text


async def item_reference(at: Trial) -> None:
    first = await asked(at, f"case:plain My word is walrus. {at.mark}")
    reference = {"type": "item_reference", "id": first.output[0].id}
    second = await asked(at, [reference, {"role": "user", "content": f"case:remember {at.mark}"}])
    assert second.output_text == (f"assistant: You said: My word is walrus. {at.mark} | user: case:remember {at.mark}")


async def slow_tool(at: Trial) -> None:
    """The tool works longer than the client waits for a byte."""
    if not at.streamed:
        raise NotApplicable(WHOLE)
    tools = [{**WORKSHOP, "allowed_tools": ["slow"]}]
    patience = Timeout(60, read=1.5)
    response = await asked(at, f'case:slow-tool call:slow{{"seconds": 3}} {at.mark}', tools=tools, timeout=patience)
    assert response.output_text == "The tool says: worked for 3 s."


async def custom_tool(at: Trial) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z ]+"}
    tools = [{"type": "custom", "name": "note", "description": "Note something.", "format": grammar}]
    first = await asked(at, f"case:custom call:note <<<a walrus>>> {at.mark}", tools=tools)
    call = first.output[0]
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("note", "a walrus")
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "noted"}
    second = await asked(at, [result], tools=tools, previous_response_id=first.id)
    assert second.output_text == "The tool says: noted."


async def namespace(at: Trial) -> None:
    tools = [{"type": "namespace", "name": "sums", "description": "All that adds.", "tools": [ADD]}]
    first = await asked(at, f'case:function call:add{{"a": 20, "b": 22}} {at.mark}', tools=tools)
    call = first.output[0]
    assert call.type == "function_call"
    assert (call.name, call.namespace) == ("add", "sums")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await asked(at, [result], tools=tools, previous_response_id=first.id)
    assert second.output_text == "The tool says: 42."


async def tool_image(at: Trial) -> None:
    first = await asked(at, f"case:function {at.mark}", tools=[ADD])
    call = first.output[0]
    assert call.type == "function_call"
    parts = [{"type": "input_text", "text": "a picture"}, {"type": "input_image", "image_url": PNG}]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": parts}
    second = await asked(at, [result], tools=[ADD], previous_response_id=first.id)
    assert "The tool says: a picture" in second.output_text
    assert f"I see an image, {PNG_DIGEST}." in second.output_text


async def retries(at: Trial) -> None:
    """A conflict is what the client tries twice more by itself; it is told that there is no use."""
    tries = 0
    await asked(at._replace(streamed=False), f"case:plain {at.mark}", extra_headers={"Idempotency-Key": at.mark})

    async def count(_: object) -> None:
        nonlocal tries
        tries += 1

    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]})
    async with AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=2, http_client=http) as client:
        with pytest.raises(openai.ConflictError) as caught:
            await client.responses.create(
                model=MODEL,
                input=f"case:plain Something else. {at.mark}",
                stream=at.streamed,
                extra_headers={"Idempotency-Key": at.mark},
            )
    assert caught.value.code == "idempotency_key_reused"
    assert tries == 1


MORE: dict[str, Play] = {
    "toolset": toolset,
    "approval": approval,
    "sealed-reasoning": sealed_reasoning,
    "item-reference": item_reference,
    "slow-tool": slow_tool,
    "custom-tool": custom_tool,
    "namespace": namespace,
    "tool-image": tool_image,
    "retries": retries,
}
