"""What backends send that others do not, byte by byte, behind a real server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort import tool
from antwort.api.decoding import Limits
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.providers.chat import ChatProvider
from antwort.providers.http import HttpProvider, Timeouts
from antwort.providers.responses import ResponsesProvider
from antwort.tools.toolset import Toolset
from chunk_kit import DONE, Json, calls, delta, event, piece
from replay_backend import Answer, Backend, serve, sse, whole
from scenes import data_of
from serving import RESPONSES, Serving, serving

STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
SAID = sse(delta(content="Done."), delta("stop"), DONE)

ran: list[Any] = []


@tool
async def add(a: int = 0, b: int = 0) -> str:
    """Add two numbers."""
    ran.append((a, b))
    return str(a + b)


@tool
async def note(text: str) -> str:
    """Take a note."""
    ran.append(text)
    return f"noted {text}"


async def total(a: int = 0, b: int = 0) -> str:
    """Add two numbers."""
    ran.append((a, b))
    return str(a + b)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
NOTE = {"type": "function", "name": "note", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def server_over(
    *answers: Answer, kind: type[HttpProvider] = ChatProvider, limits: Limits | None = None
) -> AsyncIterator[tuple[Serving, Backend]]:
    limits = limits or Limits()
    async with serve(*answers) as backend:
        provider = kind(backend.url, timeouts=Timeouts(connect=30), output_bytes=limits.output_bytes)
        engine = Engine(provider, executors=[add, note, Toolset("sums", total)], settings=EngineSettings(limits=limits))
        async with serving(engine) as server:
            yield server, backend


async def respond(server: Serving, *, streamed: bool, **fields: Any) -> Json:
    body = {"model": "m", "input": "Go on.", "tools": [ADD, NOTE], "stream": streamed, **fields}
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200, reply.body
    response: Json = data_of(reply.body)[-1]["response"] if streamed else reply.json()
    return response


def text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or ())


def answer(message: Json, finish: str | None = "stop", **fields: Any) -> Answer:
    return whole(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}], **fields}).encode()
    )


def native(kind: str, **fields: Any) -> bytes:
    return event({"type": f"response.{kind}", **fields})


# ---- what a backend may write in one turn ----

LIMITS = Limits(output_bytes=5000, turn_calls=3)
WORDS = "x" * 100


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ChatProvider, delta(content=WORDS)),
        (ChatProvider, delta(reasoning_content=WORDS)),
        (ChatProvider, delta(refusal=WORDS)),
        (ChatProvider, delta(content="é" * 50)),
        (ResponsesProvider, native("output_text.delta", delta=WORDS)),
        (ResponsesProvider, native("reasoning_text.delta", delta=WORDS)),
    ],
    ids=["text", "reasoning", "refusal", "not ascii", "native text", "native reasoning"],
)
@STREAMED
async def test_a_backend_that_does_not_stop_is_hung_up_on_and_what_it_said_is_kept(
    kind: type[HttpProvider], said: bytes, streamed: bool
) -> None:
    async with server_over(sse(*[said] * 60, ending="hold"), kind=kind, limits=LIMITS) as (server, backend):
        response = await respond(server, streamed=streamed)
        await asyncio.wait_for(backend.left.wait(), 5)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_bytes"})
    [item] = response["output"]
    assert item["status"] == "incomplete"
    [part] = item["content"]
    assert len((part.get("text") or part.get("refusal")).encode()) == 5000


@pytest.mark.parametrize("native_kind", [False, True], ids=["chat", "native"])
async def test_a_whole_answer_that_is_too_long_is_cut_as_a_streamed_one_is(native_kind: bool) -> None:
    text, usage = "x" * 9000, {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    if native_kind:
        message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        long = whole(json.dumps({"status": "completed", "output": [message]}).encode())
    else:
        long = answer({"content": text}, usage=usage)
    kind = ResponsesProvider if native_kind else ChatProvider
    async with server_over(long, kind=kind, limits=LIMITS) as (server, _):
        response = await respond(server, streamed=False)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_bytes"})
    assert text_of(response) == "x" * 5000
    assert native_kind or response["usage"]["total_tokens"] == 3


@pytest.mark.parametrize(
    ("kind", "first", "more"),
    [
        (ChatProvider, calls(piece("note", '{"text": "', index=0)), calls(piece(None, WORDS, index=0))),
        (ChatProvider, b"", calls(piece(None, WORDS, index=0))),
        (ChatProvider, b"", delta(function_call={"name": "note", "arguments": WORDS})),
        (
            ResponsesProvider,
            native("output_item.added", output_index=0, item={"type": "function_call", "name": "note"}),
            native("function_call_arguments.delta", output_index=0, delta=WORDS),
        ),
    ],
    ids=["chat", "before the name", "legacy", "native"],
)
@STREAMED
async def test_arguments_without_end_are_cut_while_they_come_and_the_call_is_not_run(
    kind: type[HttpProvider], first: bytes, more: bytes, streamed: bool
) -> None:
    talking = sse(*filter(None, [first]), *[more] * 60, ending="hold")
    async with server_over(talking, kind=kind, limits=LIMITS) as (server, backend):
        response = await respond(server, streamed=streamed)
        await asyncio.wait_for(backend.left.wait(), 5)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_bytes"})
    assert sum(len(item["arguments"]) for item in response["output"]) <= 5000
    assert {item["status"] for item in response["output"]} <= {"incomplete"}
    assert ran == []


@STREAMED
async def test_more_calls_in_a_turn_than_may_be_end_it_and_none_is_run(streamed: bool) -> None:
    many = b"".join(calls(piece("add", "{}", index=at, id=f"c{at}")) for at in range(4))
    async with server_over(sse(many, ending="hold"), limits=LIMITS) as (server, backend):
        response = await respond(server, streamed=streamed)
        await asyncio.wait_for(backend.left.wait(), 5)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_turn_calls"})
    assert len(response["output"]) == 3
    assert ran == []


async def test_what_a_whole_answer_with_too_many_calls_has_cost_is_told() -> None:
    made = [{"id": f"c{at}", "type": "function", "function": {"name": "add", "arguments": "{}"}} for at in range(4)]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    async with server_over(answer({"tool_calls": made}, "tool_calls", usage=usage), limits=LIMITS) as (server, _):
        response = await respond(server, streamed=False)
    assert response["incomplete_details"] == {"reason": "max_turn_calls"}
    assert response["usage"]["total_tokens"] == 3


async def test_much_that_came_at_once_is_read_in_portions_between_which_others_have_their_turn() -> None:
    one, turns = delta(content="x"), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with serve(sse(one * 4000, delta("stop"), DONE)) as backend:
        provider, counting = ChatProvider(backend.url), asyncio.create_task(count())
        request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="Hi")], stream=True)
        seen = [(turns, len(batch)) async for batch in provider.infer(request) if batch]
        counting.cancel()
        await provider.close()
    assert max(size for _, size in seen) <= 2**16 // len(one) + 1
    assert max(Counter(at for at, size in seen if size > 2**14 // len(one)).values()) == 1


# ---- halves of characters ----

HALF = rb"fine \ud83d"


@pytest.mark.parametrize("half", [HALF, rb"fine \ude00", rb"fine \ud83d\ud83d", rb"fine \uD83Dx"])
@STREAMED
async def test_half_a_character_in_a_text_is_repaired(half: bytes, streamed: bool) -> None:
    played = sse(b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % half, delta("stop"), DONE)
    if not streamed:
        played = whole(b'{"choices": [{"message": {"content": "%b"}, "finish_reason": "stop"}]}' % half)
    async with server_over(played) as (server, _):
        response = await respond(server, streamed=streamed)
    assert response["status"] == "completed"
    assert text_of(response).startswith("fine \ufffd")


@STREAMED
async def test_half_a_character_is_repaired_in_a_response_of_a_backend_too(streamed: bool) -> None:
    ended = b'"status": "completed", "output": [{"type": "message", "content": [{"text": "%b"}]}]' % HALF
    played = sse(b'data: {"type": "response.completed", "response": {%b}}\n\n' % ended)
    if not streamed:
        played = whole(b"{%b}" % ended)
    async with server_over(played, kind=ResponsesProvider) as (server, _):
        response = await respond(server, streamed=streamed)
    assert (response["status"], text_of(response)) == ("completed", "fine \ufffd")


async def test_a_pair_that_is_cut_between_two_deltas_is_repaired_on_both_sides() -> None:
    pieces = [b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % half for half in (rb"a\ud83d", rb"\ude00z")]
    async with server_over(sse(*pieces, delta("stop"), DONE)) as (server, _):
        response = await respond(server, streamed=True)
    assert (response["status"], text_of(response)) == ("completed", "a\ufffd\ufffdz")


@STREAMED
async def test_half_a_character_in_the_arguments_of_a_call_is_repaired_where_it_is_run(streamed: bool) -> None:
    written = '{"text": "half \\ud83d"}'
    asked = sse(calls(piece("note", written, index=0)), delta("tool_calls"), DONE)
    if not streamed:
        asked = answer({"tool_calls": [{"function": {"name": "note", "arguments": written}}]}, "tool_calls")
    async with server_over(asked, SAID if streamed else answer({"content": "Done."})) as (server, _):
        response = await respond(server, streamed=streamed)
    assert (response["status"], ran) == ("completed", ["half \ufffd"])
    assert response["output"][0]["arguments"] == written


# ---- calls ----


@pytest.mark.parametrize("nothing", ["null", " null\n", "", " "])
@STREAMED
async def test_null_for_arguments_is_none_of_them(nothing: str, streamed: bool) -> None:
    asked = sse(calls(piece("add", nothing, index=0)), delta("tool_calls"), DONE)
    if not streamed:
        asked = answer({"tool_calls": [{"function": {"name": "add", "arguments": nothing}}]}, "tool_calls")
    async with server_over(asked, SAID if streamed else answer({"content": "Done."})) as (server, backend):
        response = await respond(server, streamed=streamed)
    assert (response["status"], ran) == ("completed", [(0, 0)])
    assert response["output"][0]["arguments"] == nothing
    [again] = [m for m in json.loads(backend.requests[-1].body)["messages"] if m.get("tool_calls")]
    assert again["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("nothing", ["null", " null\n"])
@STREAMED
async def test_so_it_is_for_a_tool_of_a_toolset(nothing: str, streamed: bool) -> None:
    asked = sse(calls(piece("total", nothing, index=0)), delta("tool_calls"), DONE)
    if not streamed:
        asked = answer({"tool_calls": [{"function": {"name": "total", "arguments": nothing}}]}, "tool_calls")
    async with server_over(asked, SAID if streamed else answer({"content": "Done."})) as (server, _):
        response = await respond(server, streamed=streamed, tools=[{"type": "mcp", "server_label": "sums"}])
    assert (response["status"], ran) == ("completed", [(0, 0)])
    [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (call["arguments"], call["output"], call["error"]) == (nothing, "0", None)


LEGACY = [delta(function_call={"name": "ad"}), delta(function_call={"name": "d", "arguments": '{"a": 1}'})]
PIECES = [calls(piece("ad", index=0, id="c")), calls(piece("d", "", index=0)), calls(piece(None, '{"a": 1}', index=0))]
REPEATED = [
    calls(piece("add", "", index=0)),
    calls(piece("add", '{"a"', index=0)),
    calls(piece("add", ": 1}", index=0)),
]


@pytest.mark.parametrize("asked", [LEGACY, PIECES, REPEATED], ids=["legacy", "name in pieces", "name repeated"])
@pytest.mark.parametrize("ends", [[delta("tool_calls"), DONE], [DONE]], ids=["reason", "done alone"])
async def test_a_call_is_run_however_its_name_comes_and_its_turn_ends(asked: list[bytes], ends: list[bytes]) -> None:
    async with server_over(sse(*asked, *ends), SAID) as (server, _):
        response = await respond(server, streamed=True)
    assert (response["status"], text_of(response), ran) == ("completed", "Done.", [(1, 0)])


@pytest.mark.parametrize("finish", ["function_call", None])
async def test_a_legacy_call_in_a_whole_answer_is_run(finish: str | None) -> None:
    asked = answer({"content": None, "function_call": {"name": "add", "arguments": '{"b": 2}'}}, finish)
    async with server_over(asked, answer({"content": "Done."})) as (server, _):
        response = await respond(server, streamed=False)
    assert (response["status"], text_of(response), ran) == ("completed", "Done.", [(0, 2)])


@pytest.mark.parametrize("odd", ["", [], "auto", {}, {"name": None, "arguments": ""}], ids=str)
async def test_a_legacy_call_that_is_none_spoils_no_answer(odd: object) -> None:
    async with server_over(sse(delta(content="Hi.", function_call=odd), delta("stop"), DONE)) as (server, _):
        response = await respond(server, streamed=True)
    assert (response["status"], text_of(response), ran) == ("completed", "Hi.", [])


@STREAMED
async def test_a_stream_without_done_and_without_a_reason_was_cut_and_nothing_is_run(streamed: bool) -> None:
    async with server_over(sse(calls(piece("add", "{}", index=0, id="c")))) as (server, _):
        response = await respond(server, streamed=streamed)
    assert (response["status"], response["error"]["code"]) == ("failed", "backend_stream_cut")
    assert ran == []


# ---- usage ----


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        ({"prompt_tokens": 10.0, "completion_tokens": 2.0, "total_tokens": 12.0}, (10, 2, 12)),
        ({"prompt_tokens": 10, "completion_tokens": -1, "total_tokens": None}, (10, 0, 10)),
        ({"prompt_tokens": 10, "completion_tokens": "2", "total_tokens": 2.5}, (10, 0, 10)),
        ({"prompt_tokens": None, "completion_tokens": "many"}, None),
    ],
)
@STREAMED
async def test_of_what_a_backend_tells_of_tokens_whole_numbers_count(
    told: Json, counted: tuple[int, int, int] | None, streamed: bool
) -> None:
    played = sse(delta(content="Hi"), delta("stop"), event({"choices": [], "usage": told}), DONE)
    if not streamed:
        played = answer({"content": "Hi"}, usage=told)
    async with server_over(played) as (server, _):
        usage = (await respond(server, streamed=streamed))["usage"]
    assert counted == (usage and (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]))
