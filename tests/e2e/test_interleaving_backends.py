"""Backends that write the pieces of several calls at the same time, over real HTTP: the stream shows one item after the
other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort.app import build
from antwort.testing import check_frames
from chat_backend import ChatBackend, Deltas, Says
from serving import RESPONSES, Serving, serving
from settings_kit import in_front_of

pytestmark = pytest.mark.proves("RULING-3b")

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "shell", "parameters": {"type": "object"}},
    {"type": "custom", "name": "note"},
]


@pytest.fixture
async def server(backend: ChatBackend, tmp_path: Path) -> AsyncIterator[Serving]:
    app = await build(in_front_of(backend.url, data=tmp_path))
    async with serving(app.engine, app.asgi) as running:
        yield running


def piece(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function}]}


async def streamed(server: Serving, backend: ChatBackend, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    backend.answers = [Deltas(deltas), Says(["Ok."])]
    request = {"model": "test-model", "input": "Go.", "tools": TOOLS, "stream": True}
    reply = await server.ask("POST", RESPONSES, request)
    assert reply.status == 200, reply.body
    check_frames(reply.body)
    lines = [line.removeprefix(b"data: ") for line in reply.body.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def order(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """When items are added and done."""
    marks = [(event["type"].rpartition(".")[2], event) for event in events if ".output_item." in event["type"]]
    return [(word, event["output_index"]) for word, event in marks]


def calls(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    response = events[-1]["response"]
    items = [item for item in response["output"] if item["type"] in ("function_call", "custom_tool_call")]
    return [(item["name"], item.get("arguments", item.get("input"))) for item in items]


async def test_calls_whose_pieces_interleave_come_one_after_the_other(server: Serving, backend: ChatBackend) -> None:
    events = await streamed(
        server,
        backend,
        piece(0, '{"x":', "shell"),
        piece(1, '{"input": "a', "note"),
        piece(2, '{"y":', "shell"),
        piece(1, ' b"}'),
        piece(0, "1}"),
        piece(2, "2}"),
        piece(0, ""),
        piece(1, " "),
    )
    assert order(events) == [(word, at) for at in range(3) for word in ("added", "done")]
    assert calls(events) == [("shell", '{"x":1}'), ("note", "a b"), ("shell", '{"y":2}')]
    assert events[-1]["response"]["status"] == "completed"


async def test_words_inside_a_call_come_behind_it(server: Serving, backend: ChatBackend) -> None:
    said: list[dict[str, Any]] = [{"reasoning_content": "hm"}, {"content": "Wait."}]
    events = await streamed(server, backend, piece(0, '{"x":', "shell"), *said, piece(0, "1}"))
    assert order(events) == [(word, at) for at in range(3) for word in ("added", "done")]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call", "reasoning", "message"]
    assert calls(events) == [("shell", '{"x":1}')]


async def test_a_call_is_done_when_the_next_item_is_added_and_not_at_the_end(
    server: Serving, backend: ChatBackend
) -> None:
    events = await streamed(server, backend, piece(0, "{}", "shell"), {"content": "And"}, piece(1, "{}", "shell"))
    assert order(events) == [(word, at) for at in range(3) for word in ("added", "done")]


@pytest.mark.parametrize("behind", [piece(1, "{}", "shell"), {"content": "So."}], ids=["a call", "words"])
async def test_more_of_a_call_that_is_done_fails_the_response(
    server: Serving, backend: ChatBackend, behind: dict[str, Any]
) -> None:
    events = await streamed(server, backend, piece(0, "{}", "shell"), behind, piece(0, '{"x":1}'))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"]["code"] == "backend_error"
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert len(backend.requests) == 1
