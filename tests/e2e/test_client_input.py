"""What clients send, over real HTTP, and what the backend is sent of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.app import build
from antwort.config.settings import BackendSettings, CapabilitySettings, Limits, Settings
from chat_backend import ChatBackend
from raw_http import Reply
from serving import RESPONSES, Serving, serving

DATA = "data:image/png;base64,iVBORw0KGgo="
TEXT = "data:text/plain;base64,aGk="
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
CUSTOM: dict[str, Any] = {"type": "custom_tool_call", "call_id": "c", "name": "view", "input": "x"}


class Bystander:
    """Somebody whose address stands in a request. Nobody is to come."""

    visits = 0
    url = ""


@pytest.fixture
async def bystander() -> AsyncIterator[Bystander]:
    seen = Bystander()

    def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.visits += 1
        writer.close()

    async with await asyncio.start_server(visited, "127.0.0.1", 0) as listening:
        seen.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/secret"
        yield seen
        assert seen.visits == 0, "an address in a request was fetched"


class Both:
    """A server, and the backend behind it."""

    def __init__(self, server: Serving, backend: ChatBackend) -> None:
        self.server, self.backend = server, backend

    async def ask(self, *items: Any, **fields: Any) -> Reply:
        given = {"model": "test-model", "input": [*items] or "Hello", **fields}
        return await self.server.ask("POST", RESPONSES, given)

    async def sends(self, *items: Any, **fields: Any) -> dict[str, Any]:
        """What the backend is sent for this request, which is answered."""
        reply = await self.ask(*items, **fields)
        assert reply.status == 200, reply.body
        return self.backend.requests[-1]

    async def messages(self, *items: Any, **fields: Any) -> list[Any]:
        found: list[Any] = (await self.sends(*items, **fields))["messages"]
        return found


@asynccontextmanager
async def both(**takes: Any) -> AsyncIterator[Both]:
    async with ChatBackend() as backend:
        named = BackendSettings(name="b0", url=backend.url, capabilities=CapabilitySettings(**takes))
        limits = Limits(media_hosts=("127.0.0.1",))  # where the bystander is
        app = await build(Settings(backends=(named,), memory=True, limits=limits))
        async with serving(app.engine, app.asgi) as server:
            yield Both(server, backend)


# ---- pictures and files ----


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def shown(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_address_of_a_picture_is_passed_on_and_never_visited(stream: bool, bystander: Bystander) -> None:
    url = bystander.url
    parts = [{"type": "input_text", "text": "Look:"}, image(url), image(DATA, detail="low"), image(url, detail=None)]
    more = [image(url, detail="high"), image(url, detail="original"), image(url, detail="auto")]
    async with both() as between:
        (message,) = await between.messages({"role": "user", "content": [*parts, *more]}, stream=stream)
    assert message["content"] == [
        *({"type": "text", "text": "Look:"}, shown(url), shown(DATA, detail="low"), shown(url)),
        *(shown(url, detail="high"), shown(url, detail="high"), shown(url)),
    ]


RESULT = [{"type": "input_text", "text": "before"}, image("PLACE"), {"type": "input_text", "text": "after"}]
CALLED: list[tuple[dict[str, Any], ...]] = [
    (CALL, {"type": "function_call_output", "call_id": "c", "output": RESULT}),
    (CUSTOM, {"type": "custom_tool_call_output", "call_id": "c", "output": RESULT}),
    ({"type": "mcp_call", "id": "c", "server_label": "d", "name": "view", "arguments": "{}", "output": RESULT},),
    (
        {"type": "shell_call", "call_id": "c", "action": {}},
        {"type": "shell_call_output", "call_id": "c", "output": RESULT},
    ),
]


@pytest.mark.parametrize("items", CALLED, ids=lambda items: items[-1]["type"])
@pytest.mark.parametrize("is_data", [False, True])
async def test_pictures_in_results_follow_them_in_a_message_of_the_user(
    items: tuple[dict[str, Any], ...], is_data: bool, bystander: Bystander
) -> None:
    url = DATA if is_data else bystander.url
    output = [{**part, "image_url": url} if "image_url" in part else part for part in RESULT]
    *calls, result = items
    async with both() as between:
        messages = await between.messages(USER, *calls, {**result, "output": output}, USER)
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "user"]
        assert messages[2]["content"] == "before\n[input_image: shown in the next message]\nafter"
        assert messages[3]["content"] == [shown(url)]


async def test_a_tools_picture_is_told_in_words_to_a_model_that_takes_none() -> None:
    result = {"type": "function_call_output", "call_id": "c", "output": [image(DATA), "after"]}
    async with both(vision=False) as between:
        messages = await between.messages(USER, CALL, result)
    assert messages[-1]["content"] == "[input_image: the model does not take it]\nafter"


FILE = {"type": "input_file", "filename": "a.txt", "file_data": TEXT}


async def test_a_file_goes_to_a_backend_that_takes_files() -> None:
    async with both(files=True) as between:
        (message,) = await between.messages({"role": "user", "content": [FILE, "Read it."]})
        assert message["content"] == [
            {"type": "file", "file": {"filename": "a.txt", "file_data": TEXT}},
            {"type": "text", "text": "Read it."},
        ]
        result = {"type": "function_call_output", "call_id": "c", "output": [FILE]}
        *_, told, file = await between.messages(CALL, result)
        assert told["content"] == "[input_file: shown in the next message]"
        assert file["content"] == [{"type": "file", "file": {"filename": "a.txt", "file_data": TEXT}}]


@pytest.mark.parametrize(
    ("part", "takes", "said"),
    [
        (FILE, False, "does not take files"),
        ({"type": "input_file", "file_url": "URL"}, True, "'file_data' only"),
        ({"type": "input_file", "file_id": "file_1"}, True, "'file_data' only"),
        ({"type": "input_image", "file_id": "file_1"}, True, "'image_url' only"),
    ],
)
async def test_a_file_that_cannot_be_had_is_a_clear_400(
    part: Any, takes: bool, said: str, bystander: Bystander
) -> None:
    given = {key: bystander.url if value == "URL" else value for key, value in part.items()}
    async with both(files=takes) as between:
        reply = await between.ask(USER, {"role": "user", "content": ["Read:", given]})
        assert (reply.status, reply.error["param"]) == (400, "input[1].content[1]")
        assert said in reply.error["message"]
        assert between.backend.requests == []


# ---- what goes on, and what stays here ----


async def test_what_only_some_backends_take_goes_to_those() -> None:
    asked = {"prompt_cache_key": "k", "text": {"verbosity": "low"}}
    async with both() as between:
        assert not {"prompt_cache_key", "verbosity"} & (await between.sends(**asked)).keys()
    async with both(prompt_cache_key=True, verbosity=True) as between:
        sent = await between.sends(**asked)
        assert (sent["prompt_cache_key"], sent["verbosity"]) == ("k", "low")


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "sent", "echoed"),
    [
        ({"type": "text"}, None, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": None, "description": None},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False, "description": None},
        ),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}},
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
        ),
    ],
)
async def test_the_form_of_the_answer_is_passed_on_and_echoed(form: Any, sent: Any, echoed: Any) -> None:
    async with both() as between:
        reply = await between.ask(text={"format": form, "verbosity": None})
        assert reply.json()["text"] == {"format": echoed}
        assert between.backend.requests[-1].get("response_format") == sent


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, (None, None)),
        ({"include": ["something.new"]}, (None, None)),
        ({"include": ["message.output_text.logprobs"]}, (True, None)),
        ({"include": ["message.output_text.logprobs", "something.new"], "top_logprobs": 3}, (True, 3)),
        ({"top_logprobs": 3}, (True, 3)),
        ({"top_logprobs": 0}, (None, None)),
    ],
)
async def test_logprobs_are_asked_for(fields: Any, sent: Any) -> None:
    async with both() as between:
        asked = await between.sends(**fields)
    assert (asked.get("logprobs"), asked.get("top_logprobs")) == sent


async def test_what_is_ours_to_keep_is_echoed_and_not_sent() -> None:
    asked: dict[str, Any] = {
        "metadata": {"topic": "x"},
        "client_metadata": {"a": {"b": [1]}},
        "prompt_cache_options": {"ttl": "30m"},
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "service_tier": "something new",
        "stream_options": {"include_obfuscation": False, "include_usage": True},
        "include": ["something.new"],
        "truncation": "disabled",
        "user": None,
        "max_tool_calls": 5,
        "moderation": {"model": "x"},
        "context_management": [{"type": "compaction", "compact_threshold": 5}],
        "something_new": [1, {"a": None}],
    }
    async with both() as between:
        reply = await between.ask(**asked)
        assert (reply.status, reply.json()["metadata"]) == (200, {"topic": "x"})
        assert reply.json()["safety_identifier"] == "s"
        assert between.backend.requests[-1].keys() == {"model", "messages"}


async def test_the_phase_of_an_answer_is_kept_and_not_sent() -> None:
    said = {"role": "assistant", "content": "Look.", "phase": "commentary", "id": "msg_1"}
    async with both() as between:
        reply = await between.ask(USER, said, USER)
        items = await between.server.ask("GET", f"{RESPONSES}/{reply.json()['id']}/input_items?order=asc")
        assert items.json()["data"][1]["phase"] == "commentary"
        assert [message.keys() for message in between.backend.requests[-1]["messages"]] == [{"role", "content"}] * 3


async def test_all_that_an_agent_replays_is_taken_and_shown_in_order() -> None:
    """Tools of servers and of the client, custom ones and hosted ones, in one history without a single id of ours."""
    history: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Go"}]},
        {"type": "mcp_list_tools", "id": "l", "server_label": "d", "tools": [{"name": "a", "input_schema": None}]},
        {"type": "mcp_approval_request", "id": "r", "server_label": "d", "name": "a", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "mcp_call", "id": "m", "server_label": "d", "name": "a", "arguments": "{}", "output": "one"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}},
        {"role": "assistant", "content": "So far."},
        {**CALL, "call_id": "c1"},
        {**CUSTOM, "call_id": "c2", "namespace": "n"},
        {"type": "local_shell_call", "id": "x", "call_id": "c3", "action": {"command": ["ls"]}},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "two"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "three"}]},
        {"type": "function_call_output", "call_id": "c3", "output": "four"},
        {"role": "user", "content": "And?"},
    ]
    async with both() as between:
        messages = await between.messages(*history, store=False)
    assert [(message["role"], message["content"]) for message in messages] == [
        *(("system", "Be brief."), ("user", "Go"), ("assistant", None), ("tool", "one"), ("assistant", "So far.")),
        *(("tool", "three"), ("tool", "two"), ("tool", "four"), ("user", "And?")),
    ]
    assert messages[2]["reasoning_content"] == "Hm."
    assert [call["id"] for call in messages[4]["tool_calls"]] == ["c1", "c2", "c3"]
