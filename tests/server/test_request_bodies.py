"""Bodies are bounded in the values that they hold, and a text that was cut in the middle of a character is repaired."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from serving import RESPONSES, serving
from socket_kit import connected

MOST = 1000
LIMITED = EngineSettings(limits=Limits(body_values=MOST))


def scripted(answers: int = 1) -> ScriptedProvider:
    return ScriptedProvider(*(answer(say("ok")) for _ in range(answers)))


def body(count: int, field: str = "foo") -> str:
    """A request of so many values."""
    rest = count - 4  # the object, the model, the input, and the list
    return f'"model": "scripted", "input": "Hi, [you]", "{field}": [{"[]," * (rest - 1)}{{}}]'


@pytest.mark.proves("CP-036", "TR-005")
@pytest.mark.parametrize(
    "path", [RESPONSES, f"{RESPONSES}/compact", f"{RESPONSES}/input_tokens", "/v1/conversations", "/v1/conversations/c"]
)
async def test_a_body_of_more_values_than_allowed_is_refused_before_it_is_decoded(path: str) -> None:
    async with serving(Engine(scripted(), settings=LIMITED)) as server:
        reply = await server.ask("POST", path, f"{{{body(MOST + 1)}, and this is no JSON".encode())
    assert (reply.status, reply.error["code"], reply.error["param"]) == (413, "too_many_values", None)
    assert reply.error["message"] == "The request body holds more than 1000 JSON values (limits.body_values)."


async def test_a_body_of_as_many_values_as_allowed_is_taken() -> None:
    async with serving(Engine(scripted(), settings=LIMITED)) as server:
        reply = await server.ask("POST", RESPONSES, f"{{{body(MOST)}}}".encode())
    assert reply.status == 200


async def test_a_message_of_more_values_than_allowed_is_refused_and_the_connection_lives_on() -> None:
    async with serving(Engine(scripted(), settings=LIMITED)) as server, connected(server.port) as socket:
        await socket.say(f'{{"type": "response.create", {body(MOST + 1)}}}')
        error = await socket.error()
        assert (error["status"], error["code"]) == (413, "too_many_values")
        assert (await socket.ask()).output_text == "ok"


@pytest.mark.parametrize(
    ("start", "end", "param"),
    [
        ('"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"x": [', "]}}]", "tools"),
        ('"input": [{"role": "user", "content": [', "]}]", "input[0]"),
        ('"input": "x", "text": {"format": {"type": "json_schema", "schema": {"x": [', "]}}}", "text"),
        ('"input": "x", "metadata": {"a": [', "]}", "metadata"),
    ],
)
@pytest.mark.parametrize("most", [100, 40_000], ids=["small", "large"])
async def test_a_single_part_of_more_values_than_allowed_is_refused(
    start: str, end: str, param: str, most: int
) -> None:
    settings = EngineSettings(limits=Limits(item_values=most))
    async with serving(Engine(scripted(), settings=settings)) as server:
        reply = await server.ask("POST", RESPONSES, f'{{"model": "m", {start}{"0," * most}0{end}}}'.encode())
    assert (reply.status, reply.error["code"], reply.error["param"]) == (413, "too_many_values", param)
    assert reply.error["message"] == f"'{param}' holds more than {most} JSON values (limits.item_values)."


async def test_a_text_counts_as_one_value_whatever_it_says() -> None:
    async with serving(Engine(scripted(), settings=LIMITED)) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": '[{"a": 1}, ' * 5000})
    assert reply.status == 200


async def test_a_large_body_is_read_as_a_small_one_is() -> None:
    long = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 200_000}]}
    asked: dict[str, Any] = {
        "model": "scripted",
        "input": [long, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "metadata": {"a": "b"},
        "unknown": [[], {}],
    }
    provider = scripted(2)
    async with serving(Engine(provider)) as server:
        large = await server.ask("POST", RESPONSES, asked)
        small = await server.ask("POST", RESPONSES, {**asked, "input": [{"role": "user", "content": "x"}] * 2})
        kept = await server.ask("GET", f"{RESPONSES}/{large.json()['id']}/input_items?order=asc")
    assert (large.status, small.status) == (200, 200)
    assert large.json()["tools"] == small.json()["tools"] != []
    assert large.json()["metadata"] == {"a": "b"}
    assert kept.json()["data"][0]["content"] == long["content"]
    first, second = provider.requests
    assert [message.role for message in first.messages] == [message.role for message in second.messages]


async def test_unknown_fields_of_a_large_body_are_not_built() -> None:
    """The objects of this one would take 16 MB."""
    asked = b'{"model": "scripted", "input": "Hi", "unknown": [%b{}]}' % (b"{}," * 250_000)
    async with serving(Engine(scripted())) as server:
        tracemalloc.start()
        try:
            reply = await server.ask("POST", RESPONSES, asked)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert reply.status == 200
    assert peak < 8 * len(asked)


async def test_the_work_for_an_input_grows_as_its_items_do() -> None:
    async def calls_for(pairs: int) -> int:
        items = [
            item
            for i in range(pairs)
            for item in (
                {"role": "user", "content": f"Question {i}"},
                {"type": "function_call", "call_id": f"call_{i}", "name": "shell", "arguments": "{}"},
                {"type": "function_call_output", "call_id": f"call_{i}", "output": str(i)},
                {"type": "acme:mood", "level": i},
            )
        ]
        asked = json.dumps({"model": "scripted", "input": items}).encode()
        counted = Counter[str]()
        async with serving(Engine(scripted(), store=MemoryStore())) as server:
            sys.setprofile(lambda _frame, event, _argument: counted.update((event,)))
            try:
                reply = await server.ask("POST", RESPONSES, asked)
            finally:
                sys.setprofile(None)
        assert reply.status == 200
        return counted["call"] + counted["c_call"]

    first, second, fourth = [await calls_for(pairs) for pairs in (250, 500, 1000)]
    assert fourth - second < 2.2 * (second - first)


@pytest.mark.proves("CP-040")
async def test_as_many_items_as_allowed_are_read_and_continued() -> None:
    pairs = [
        item
        for i in range(5000)
        for item in (
            {"type": "function_call", "call_id": f"call_{i}", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"call_{i}", "output": str(i)},
        )
    ]
    provider = scripted(2)
    async with serving(Engine(provider)) as server:
        first = await server.ask("POST", RESPONSES, {"model": "scripted", "input": pairs})
        asked = {"model": "scripted", "input": "Go on", "previous_response_id": first.json()["id"]}
        second = await server.ask("POST", RESPONSES, asked)
        refused = await server.ask("POST", RESPONSES, {"model": "scripted", "input": [*pairs, pairs[0]]})
    assert (first.status, second.status) == (200, 200)
    assert (refused.status, refused.error["code"]) == (400, "too_many_items")
    messages = provider.requests[1].messages
    assert [message.content for message in messages if message.role == "tool"] == [str(i) for i in range(5000)]
    assert [message.content for message in messages[-2:]] == ["ok", "Go on"]


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ('"input": [{"role": "user", "content": 5}]', "input[0].content"),
        ('"input": "Hi", "tools": [{"type": "function", "name": "?"}]', "tools[0].name"),
        ('"input": "Hi", "metadata": {"a": 1}', "metadata.a"),
        ('"input": "Hi", "temperature": "hot"', "temperature"),
        ('"input": ' + "[" * 300 + "]" * 300, None),
        ('"input": "Hi"]', None),
        ('"input": "\xff"', None),
        ('"input": [{"role": "user", "content": "\xff"}]', None),
        ('"input": [{"type": "foo", "x": ' + "7" * 300 + "}]", None),
        (
            '"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": ' + "[" * 300 + "]" * 300 + "}]",
            None,
        ),
    ],
)
async def test_what_is_wrong_is_named_in_a_body_of_any_size(wrong: str, param: str | None, padding: int) -> None:
    async with serving(Engine(scripted())) as server:
        raw = f'{{"padding": "{"x" * padding}", "model": "scripted", {wrong}}}'.encode("latin-1")
        reply = await server.ask("POST", RESPONSES, raw)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert param is not None or reply.error["code"] == "invalid_json"


# ---- lone surrogates ----

HALF = r"half \ud83d, whole \ud83d\ude00"
WHOLE = "half \N{REPLACEMENT CHARACTER}, whole \N{GRINNING FACE}"


@pytest.fixture(params=[0, 100_000], ids=["small", "large"])
def cut(request: pytest.FixtureRequest) -> bytes:
    """A request that is full of texts that were cut."""
    return f"""{{"model": "scripted", "instructions": "{HALF}", "metadata": {{"key {HALF}": "{HALF}"}}, "foo": "{HALF}",
        "tools": [{{"type": "function", "name": "f", "description": "{HALF}"}}],
        "padding": "{"x" * request.param}",
        "input": [{{"role": "user", "content": "{HALF}"}},
            {{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{{\\"a\\": \\"{HALF}\\"}}"}},
            {{"type": "function_call_output", "call_id": "c", "output": "{HALF}"}}]}}""".encode()


async def test_half_of_a_surrogate_pair_in_a_request_is_replaced_wherever_it_stands(cut: bytes) -> None:
    provider = scripted()
    async with serving(Engine(provider)) as server:
        reply = await server.ask("POST", RESPONSES, cut, {"idempotency-key": "k"})
        again = await server.ask("POST", RESPONSES, cut, {"idempotency-key": "k"})
        kept = await server.ask("GET", f"{RESPONSES}/{reply.json()['id']}/input_items?order=asc")
    assert reply.status == 200
    assert again.json()["id"] == reply.json()["id"]
    assert reply.json()["instructions"] == WHOLE
    assert reply.json()["metadata"] == {f"key {WHOLE}": WHOLE}
    assert reply.json()["tools"][0]["description"] == WHOLE
    said, call, result = kept.json()["data"]
    assert said["content"][0]["text"] == result["output"] == WHOLE
    assert call["arguments"] == f'{{"a": "{WHOLE}"}}'
    assert provider.requests[0].messages[1].content == WHOLE


async def test_half_of_a_surrogate_pair_in_a_message_is_replaced() -> None:
    async with serving(Engine(scripted())) as server, connected(server.port) as socket:
        await socket.say(f'{{"type": "response.create", "model": "scripted", "input": "x", "instructions": "{HALF}"}}')
        assert (await socket.turn()).instructions == WHOLE


async def test_half_of_a_surrogate_pair_in_a_conversation_is_replaced() -> None:
    async with serving(Engine(scripted())) as server:
        item = f'{{"type": "message", "role": "user", "content": "{HALF}"}}'
        made = await server.ask("POST", "/v1/conversations", f'{{"items": [{item}]}}'.encode())
        items = await server.ask("GET", f"/v1/conversations/{made.json()['id']}/items")
    assert items.json()["data"][0]["content"][0]["text"] == WHOLE


# ---- what is written otherwise, or is not there ----


@pytest.mark.parametrize("field", ["max_output_tokens", "max_tool_calls", "top_logprobs", "token_budget", "max_turns"])
async def test_a_whole_number_may_be_written_with_a_point(field: str) -> None:
    async with serving(Engine(scripted())) as server:
        reply = await server.ask("POST", RESPONSES, f'{{"model": "scripted", "input": "x", "{field}": 5.0}}'.encode())
        wrong = await server.ask("POST", RESPONSES, f'{{"model": "scripted", "input": "x", "{field}": 5.5}}'.encode())
    assert reply.status == 200
    assert reply.json().get(field, 5) == 5
    assert (wrong.status, wrong.error["param"]) == (400, field)


async def test_a_whole_number_of_tokens_to_compact_from_may_be_written_with_a_point() -> None:
    async with serving(Engine(scripted())) as server:
        managed = [{"type": "compaction", "compact_threshold": 5e5}]
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": "x", "context_management": managed})
    assert reply.status == 200


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": LONG},
        {"input": [{"type": "item_reference", "id": LONG[:500]}]},
        {"tools": [{"type": "function", "name": LONG}]},
        {"tool_choice": {"type": "function", "name": LONG}},
        {"truncation": LONG},
        {"input": [{"type": "message", "role": LONG, "content": "x"}]},
        {"input": [{"type": "function_call_output", "call_id": LONG, "output": "x"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_is_long_and_wrong_is_not_repeated_whole(fields: dict[str, Any]) -> None:
    async with serving(Engine(scripted())) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": "x", **fields})
    assert reply.status in (400, 404)
    assert len(reply.body) < 1000


FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "allowed_tools": ["g"]}, "allowed_tools"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "g"}],
                }
            },
            "tool_choice.tools",
        ),
    ],
)
async def test_a_required_call_of_tools_that_are_not_there_is_refused(fields: dict[str, Any], param: str) -> None:
    provider = scripted()
    async with serving(Engine(provider)) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": "x", "tools": [FUNCTION], **fields})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unknown_tool", param)
    assert provider.requests == []
