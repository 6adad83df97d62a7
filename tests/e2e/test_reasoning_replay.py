"""What the model thought comes back to it: in the same response, by id, by history and sealed, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from antwort.app import build
from antwort.config.settings import BackendSettings, CapabilitySettings, Settings, ToolSettings
from antwort.testing import check_frames
from chat_backend import Answer, Calls, ChatBackend, Says
from serving import RESPONSES, Serving, serving

pytestmark = pytest.mark.proves("EN-021")

Field: TypeAlias = Literal["reasoning_content", "reasoning"] | None
FIELDS: list[Field] = ["reasoning_content", "reasoning", None]
INCLUDE = ["reasoning.encrypted_content"]
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
SUM = ("calculate", '{"expression": "2+3"}')
ASKED: dict[str, Any] = {"model": "test-model", "input": "Hello"}


@asynccontextmanager
async def between(*answers: Answer, field: Field, data: Path) -> AsyncIterator[tuple[ChatBackend, Serving]]:
    """A backend that takes reasoning in this field, and a server in front of it."""
    async with ChatBackend(*answers) as backend:
        takes = CapabilitySettings(reasoning_field=field)
        named = BackendSettings(name="b0", url=backend.url, capabilities=takes, tool_calling="native")
        app = await build(Settings(backends=(named,), data=str(data), tools=ToolSettings(demo=True)))
        async with serving(app.engine, app.asgi) as server:
            yield backend, server


async def post(server: Serving, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The response, whole or as the stream's last event has it."""
    reply = await server.ask("POST", RESPONSES, {**ASKED, **fields, "stream": stream})
    assert reply.status == 200, reply.body
    response: dict[str, Any] = events_of(reply.body)[-1]["response"] if stream else reply.json()
    assert response["status"] in ("completed", "requires_action")
    return response


def events_of(body: bytes) -> list[dict[str, Any]]:
    check_frames(body)
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def thoughts(backend: ChatBackend, field: Field) -> list[str | None]:
    """The reasoning of each message of the assistant that the backend was sent last, in the field it takes."""
    said = [message for message in backend.requests[-1]["messages"] if message["role"] == "assistant"]
    for message in said:
        assert {"reasoning", "reasoning_content"} & message.keys() <= {field}
    return [message.get(field) if field else None for message in said]


def seen(field: Field, *texts: str) -> list[str | None]:
    return [text if field else None for text in texts]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_across_the_tool_turns_of_one_response(field: Field, stream: bool, tmp_path: Path) -> None:
    answers = (Calls([SUM], thinks="How much is it?"), Calls([SUM], thinks="Once more."), Says(["Five."]))
    async with between(*answers, field=field, data=tmp_path) as (backend, server):
        tools = [{"type": "mcp", "server_label": "demo"}]
        response = await post(server, tools=tools, stream=stream, store=False)
        assert [item["type"] for item in response["output"] if item["type"] != "mcp_list_tools"] == [
            *("reasoning", "mcp_call", "reasoning", "mcp_call", "message"),
        ]
        assert [item["output"] for item in response["output"] if item["type"] == "mcp_call"] == ["2+3 = 5"] * 2
        assert thoughts(backend, field) == seen(field, "How much is it?", "Once more.")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("reasoning", [None, {"summary": "auto"}])
async def test_across_responses_by_id(field: Field, reasoning: Any, tmp_path: Path) -> None:
    answers = (Calls([("shell", "{}")], thinks="Let me look."), Says(["Done."], thinks="Good."), Says(["Bye."]))
    async with between(*answers, field=field, data=tmp_path) as (backend, server):
        first = await post(server, tools=[SHELL], reasoning=reasoning)
        call_id = first["output"][1]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        second = await post(server, input=[result], previous_response_id=first["id"], tools=[SHELL])
        await post(server, input="Thanks", previous_response_id=second["id"])
        assert thoughts(backend, field) == seen(field, "Let me look.", "Good.")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("reasoning", [None, {"summary": "detailed"}])
async def test_across_responses_by_the_history_that_the_client_sends(
    field: Field, reasoning: Any, tmp_path: Path
) -> None:
    answers = (Calls([("shell", "{}")], thinks="Let me look."), Says(["Done."], thinks="Good."), Says(["Bye."]))
    async with between(*answers, field=field, data=tmp_path) as (backend, server):
        said: list[Any] = [{"role": "user", "content": "Hello"}]
        first = await post(server, input=said, tools=[SHELL], store=False, reasoning=reasoning)
        result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "ok"}
        said += [*first["output"], result]
        second = await post(server, input=said, tools=[SHELL], store=False, reasoning=reasoning)
        await post(server, input=[*said, *second["output"], {"role": "user", "content": "Thanks"}], store=False)
        assert thoughts(backend, field) == seen(field, "Let me look.", "Good.")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("store", [False, True])
async def test_across_responses_sealed_and_across_a_restart(field: Field, store: bool, tmp_path: Path) -> None:
    async with between(Says(["Done."], thinks="Good."), field=field, data=tmp_path) as (_, server):
        first = await post(server, include=INCLUDE, store=store)
    thought, said = first["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Good."}]
    sealed = {"type": "reasoning", "id": "rs_mine", "summary": [], "encrypted_content": thought["encrypted_content"]}
    async with between(Says(["Bye."]), field=field, data=tmp_path) as (backend, server):
        await post(server, input=[sealed, said, {"role": "user", "content": "Thanks"}], store=store)
        assert thoughts(backend, field) == seen(field, "Good.")


async def test_the_items_of_a_stream_are_those_of_the_response(tmp_path: Path) -> None:
    async with between(Says(["Done."], thinks="Good."), field="reasoning", data=tmp_path) as (_, server):
        reply = await server.ask("POST", RESPONSES, {**ASKED, "stream": True, "include": INCLUDE})
    events = events_of(reply.body)
    added, done = (
        next(event["item"] for event in events if event["type"] == f"response.output_item.{kind}")
        for kind in ("added", "done")
    )
    assert added["type"] == done["type"] == "reasoning"
    assert "encrypted_content" not in added
    assert done["encrypted_content"].startswith("av1.")
    assert events[-1]["response"]["output"][0] == done


@pytest.mark.parametrize("field", FIELDS)
async def test_as_codex_does_it(field: Field, tmp_path: Path) -> None:
    """Nothing is stored; the client makes the ids, and sends back the items it has seen whole."""
    answers = (Calls([("shell", '{"cmd": "ls"}')], thinks="Let me look."), Says(["Done."]))
    asked: dict[str, Any] = {
        "model": "test-model",
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "include": INCLUDE,
        "reasoning": {"summary": "auto"},
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "client_metadata": {"x-codex-installation-id": "11111111-1111-4111-8111-111111111111"},
        "tools": [SHELL],
        "stream": True,
    }
    begun = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files"}], "id": "msg_u1"},
    ]
    async with between(*answers, field=field, data=tmp_path) as (backend, server):
        reply = await server.ask("POST", RESPONSES, {**asked, "input": begun})
        done = [event["item"] for event in events_of(reply.body) if event["type"] == "response.output_item.done"]
        thought, call = done
        assert thought["summary"] == [{"type": "summary_text", "text": "Let me look."}]
        again = [
            {
                "type": "reasoning",
                "id": "rs_11111111-1111-4111-8111-111111111111",
                "summary": thought["summary"],
                "content": None,
                "encrypted_content": thought["encrypted_content"],
            },
            {
                "type": "function_call",
                "id": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
                "call_id": call["call_id"],
            },
            {"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"], "output": "README.md"},
        ]
        await server.ask("POST", RESPONSES, {**asked, "input": [*begun, *again]})
        assert [message["role"] for message in backend.requests[-1]["messages"]] == [
            *("system", "user", "assistant", "tool"),
        ]
        assert thoughts(backend, field) == seen(field, "Let me look.")


async def test_what_cannot_be_opened_is_a_400_in_both_modes_and_the_backend_is_not_asked(tmp_path: Path) -> None:
    async with between(Says(), field="reasoning", data=tmp_path) as (backend, server):
        item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo-somebody-elses"}
        asked = [
            server.ask("POST", RESPONSES, {**ASKED, "input": [item], "stream": stream}) for stream in (False, True)
        ]
        for reply in await asyncio.gather(*asked):
            assert (reply.status, reply.error["code"]) == (400, "invalid_encrypted_content")
            assert reply.error["param"] == "input[0].encrypted_content"
            assert reply.error["type"] == "invalid_request_error"
        assert backend.requests == []
