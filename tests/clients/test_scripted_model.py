"""The scripted model: it does what the cue says with what it is really sent, and refuses what makes no sense."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from clients.model import CONTEXTS, described_model, overflow, running
from clients.script import THOUGHT, Breaks, Calls, Refuses, Says, answer, digest
from clients.strict import Json, Malformed, check
from clients.trying import PNG, PNG_DIGEST
from clients.values import fitted, fitting

ADD_SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD: Json = {"type": "function", "function": {"name": "add", "parameters": ADD_SCHEMA}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def called(*ids: str, **more: Any) -> Json:
    calls = [{"id": each, "type": "function", "function": {"name": "add", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str, text: str = "42") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def request(*messages: Json, **more: Any) -> Json:
    made = {"model": "scripted", "messages": list(messages), **more}
    check(made)
    return made


# ---- what is refused ----

ORDERS: dict[str, list[Json]] = {
    "nothing": [],
    "a result without a call": [user("hi"), result("1")],
    "a call without a result": [user("hi"), called("1"), user("well?")],
    "a call without a result at the end": [user("hi"), called("1")],
    "half of the results": [user("hi"), called("1", "2"), result("1"), user("well?")],
    "a result twice": [user("hi"), called("1"), result("1"), result("1")],
    "a result of another turn": [user("hi"), called("1"), result("1"), user("more"), result("1")],
    "a role": [{"role": "developer", "content": "hi"}],
    "nothing said": [{"role": "assistant", "content": None}],
    "no content": [{"role": "user"}],
    "an image in a result": [
        called("1"),
        {**result("1"), "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
    "a part of the Responses API": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "an image without a url": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": None}}]}],
}


@pytest.mark.parametrize("messages", ORDERS.values(), ids=ORDERS.keys())
def test_a_history_that_makes_no_sense_is_refused(messages: list[Json]) -> None:
    with pytest.raises(Malformed):
        request(*messages)


def test_arguments_that_are_not_an_object_are_refused() -> None:
    turn = called("1")
    turn["tool_calls"][0]["function"]["arguments"] = "[1]"
    with pytest.raises(Malformed, match="not an object"):
        request(user("hi"), turn, result("1"))


@pytest.mark.parametrize(
    "more",
    [
        {"client_metadata": {}},
        {"tools": [ADD, ADD]},
        {"tools": [{"type": "custom", "name": "note"}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "description": None}}]},
        {"tool_choice": "required"},
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        {"tools": [ADD], "tool_choice": "any"},
        {"response_format": {"type": "json_schema", "schema": {}}},
    ],
    ids=lambda more: json.dumps(more)[:60],
)
def test_a_request_that_no_engine_takes_is_refused(more: Json) -> None:
    with pytest.raises(Malformed):
        request(user("hi"), **more)


def test_system_messages_may_stand_anywhere() -> None:
    request({"role": "system", "content": "a"}, user("hi"), {"role": "system", "content": "b"}, user("hi"))


# ---- what is said ----


def test_the_newest_cue_counts() -> None:
    made = request(user("case:500"), {"role": "assistant", "content": "no"}, user("case:plain hi"))
    assert answer(made) == Says("You said: hi")


def test_a_cue_of_the_system_counts_where_the_user_gives_none() -> None:
    system = {"role": "system", "content": "case:function"}
    assert answer(request(system, user("hi"), tools=[ADD])) == Calls([("add", '{"a": 1, "b": 1}')])


def test_a_tool_is_only_called_when_it_is_declared() -> None:
    assert answer(request(user("case:function call:add{}"))) == Says("No tools are offered.")
    told = answer(request(user("case:function call:sub{}"), tools=[ADD]))
    assert told == Says("No tool sub is offered, only add.")


def test_a_tool_may_stand_under_a_label() -> None:
    labelled: Json = {"type": "function", "function": {"name": "sums__add", "parameters": ADD_SCHEMA}}
    made = answer(request(user('case:function call:add{"a": 1, "b": 2}'), tools=[labelled]))
    assert made == Calls([("sums__add", '{"a": 1, "b": 2}')])


def test_results_are_told_in_their_order() -> None:
    made = request(user("case:parallel"), called("1", "2"), result("1", "one"), result("2", "two"), tools=[ADD])
    assert answer(made) == Says("The tools say: one and two.")


def test_steps_are_taken_one_by_one() -> None:
    steps = user('case:steps call:add{"a": 1, "b": 1} call:add{"a": 2, "b": 2}')
    assert answer(request(steps, tools=[ADD])) == Calls([("add", '{"a": 1, "b": 1}')])
    more = [called("1"), result("1", "2")]
    assert answer(request(steps, *more, tools=[ADD])) == Calls([("add", '{"a": 2, "b": 2}')])
    more += [called("2"), result("2", "4")]
    assert answer(request(steps, *more, tools=[ADD])) == Says("The tools say: 2 and 4.")


def test_a_tool_that_did_not_fail_is_not_said_to_have_failed() -> None:
    made = request(user("case:tool-error"), called("1"), result("1", "fine"), tools=[ADD])
    assert answer(made) == Says("The tool did not fail: fine.")


def test_thoughts_that_do_not_come_back_are_missed() -> None:
    cue = user('case:reasoning call:add{"a": 1, "b": 1}')
    assert answer(request(cue, tools=[ADD])) == Calls([("add", '{"a": 1, "b": 1}')], f"{THOUGHT} add")
    lost = answer(request(cue, called("1"), result("1"), tools=[ADD]))
    assert lost == Says("The tool says: 42. I had thought: ", "Now I know.")
    kept = answer(request(cue, called("1", reasoning_content="deep"), result("1"), tools=[ADD]))
    assert kept == Says("The tool says: 42. I had thought: deep", "Now I know.")


def test_free_text_goes_into_the_one_argument() -> None:
    schema = {"type": "object", "properties": {"input": {"type": "string"}}}
    note: Json = {"type": "function", "function": {"name": "note", "parameters": schema}}
    made = answer(request(user('case:custom call:note <<<\n"a"\nb\n>>>'), tools=[note]))
    assert made == Calls([("note", '{"input": "\\"a\\"\\nb"}')])


def test_without_a_form_there_is_no_form() -> None:
    cue = user('case:structured {"a": 7}')
    assert answer(request(cue)) == Says("No form is asked for.")
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": ADD_SCHEMA}}
    assert answer(request(cue, response_format=wanted)) == Says('{"a": 7, "b": 1}')


def test_images_are_told_by_their_bytes() -> None:
    assert digest(PNG) == PNG_DIGEST
    assert digest("https://example.com/a.png") == "at https://example.com/a.png"
    assert answer(request(user("case:image"))) == Says("I was shown nothing.")


def test_an_unknown_case_is_refused() -> None:
    assert isinstance(answer(request(user("case:magic"))), Refuses)
    assert isinstance(answer(request(user("case:cut"))), Breaks)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "walrus"),
        ({"enum": ["x", "y"]}, "x"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"type": ["integer", "null"], "minimum": 3}, 3),
        ({"type": "array", "items": {"const": 1}, "minItems": 2}, [1, 1]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, None),
        ({"type": "object", "properties": {"a": {"default": 5}, "b": {}}, "required": ["a"]}, {"a": 5}),
    ],
)
def test_values_fit_their_schema(schema: Json, value: object) -> None:
    assert fitting(schema) == value


def test_only_what_the_schema_has_is_taken_from_the_cue() -> None:
    assert fitted({"a": 2, "z": 3}, ADD_SCHEMA) == {"a": 2, "b": 1}


# ---- contexts ----


def test_a_word_that_only_fills_a_context_is_said_once() -> None:
    sand = " ".join(["sand"] * 50)
    assert answer(request(user(f"case:plain My word is {sand}. no no no"))) == Says(
        "You said: My word is sand. no no no"
    )
    assert answer(request(user(f"{sand} and {sand}"), user("case:remember"))) == Says(
        "user: sand and sand | user: case:remember"
    )


def test_what_is_longer_than_its_model_takes_is_refused() -> None:
    most = CONTEXTS["small"]
    fits = {**request(user(" ".join(["sand"] * most))), "model": "small"}
    assert overflow(fits) is None
    too_long = {**fits, "messages": [*fits["messages"], user("more")]}
    refused = overflow(too_long)
    assert refused is not None
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert overflow({**too_long, "model": "scripted"}) is None


def test_only_the_context_of_a_model_that_has_a_small_one_is_told() -> None:
    assert described_model("small")["max_model_len"] == CONTEXTS["small"]
    assert "max_model_len" not in described_model("scripted")


# ---- over HTTP ----


def test_it_keeps_what_it_was_asked() -> None:
    with running() as backend:
        connection = http.client.HTTPConnection("127.0.0.1", backend.server_port)
        for body, status in ((request(user("case:plain one")), 200), ({"model": "other"}, 404), ([], 400)):
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            reply = connection.getresponse()
            reply.read()
            assert reply.status == status
        connection.request("GET", "/requests?contains=one")
        [seen] = json.loads(connection.getresponse().read())["requests"]
        connection.request("DELETE", "/requests")
        connection.getresponse().read()
        connection.close()
        assert (seen["case"], seen["status"], seen["body"]["messages"][0]["content"]) == (
            "plain",
            200,
            "case:plain one",
        )
        assert backend.seen() == []
