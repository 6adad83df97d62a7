"""Errors that say what to send instead, and warnings for what is tolerated."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from antwort import Engine, EngineSettings, Toolset
from antwort.api.responses import Model
from antwort.errors import InvalidField, ModelNotFound, NotFound, NotPermitted
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.cors import Cors
from antwort.server.http import Transport
from antwort.testing import ScriptedProvider, answer, say
from key_kit import SECRET, a_key, bearing
from serving import HELLO, RESPONSES, serving
from socket_kit import connected

ANN = bearing(SECRET)
LARGE = "x" * 100_000
MISSING = "Missing 'input'. Send text or items, or continue with 'previous_response_id'."
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


def engine_of(*models: str, turns: int = 1, **settings: Any) -> Engine:
    provider = ScriptedProvider(*[answer(say("Hello"))] * turns, models=models or ("scripted",))
    return Engine(provider, settings=EngineSettings(**settings), executors=[Toolset("weather")])


# ---- input ----


@pytest.mark.parametrize("padding", [{}, {"instruction": LARGE}], ids=["small", "large"])
@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CHAT, f"{MISSING} (Chat Completions 'messages' are not accepted here.)"),
        ({"model": "scripted", "inptu": "Hi"}, f"{MISSING} Unknown field 'inptu': did you mean 'input'?"),
        ({"model": "scripted"}, MISSING),
    ],
    ids=["chat", "misspelt", "none"],
)
async def test_a_request_without_input_is_told_what_to_send(
    body: dict[str, Any], said: str, is_strict: bool, padding: dict[str, str]
) -> None:
    async with serving(engine_of(strict=is_strict)) as server:
        error = (await server.ask("POST", RESPONSES, {**body, **padding})).error
    assert error == {
        "message": said,
        "type": "invalid_request" if is_strict else "invalid_request_error",
        "param": "input",
        "code": "missing_required_parameter",
    }


async def test_the_same_is_said_over_a_websocket_and_in_the_library() -> None:
    said = f"{MISSING} (Chat Completions 'messages' are not accepted here.)"
    async with serving(engine_of()) as server:
        async with connected(server.port) as socket:
            await socket.create(**CHAT, input=[])
            assert (await socket.error())["message"] == said
        with pytest.raises(InvalidField) as caught:
            await server.engine.create(CHAT)
    assert caught.value.message == said


# ---- fields that are not known ----


async def warned(body: dict[str, Any], **headers: str) -> str | None:
    async with serving(engine_of(), Transport(engine_of(), cors=Cors(["https://a.example"]))) as server:
        reply = await server.ask("POST", RESPONSES, body, headers)
    assert reply.status == 200, reply.body
    if headers:
        assert "antwort-warning" in reply.headers["access-control-expose-headers"]
    return reply.headers.get("antwort-warning")


@pytest.mark.parametrize("padding", ["", LARGE], ids=["small", "large"])
async def test_fields_that_are_not_known_are_tolerated_and_named(padding: str) -> None:
    body = {**HELLO, "temprature": 1, "metadata": {}, "zzz": [{"deep": 1}], "instructions": padding}
    assert await warned(body, origin="https://a.example") == (
        "unknown field 'temprature', did you mean 'temperature'?; unknown field 'zzz'"
    )


async def test_a_request_without_unknown_fields_is_not_warned() -> None:
    assert await warned({**HELLO, "instructions": LARGE}) is None
    assert await warned(HELLO) is None


@pytest.mark.parametrize("padding", ["", LARGE], ids=["small", "large"])
async def test_no_name_of_a_field_can_add_a_header(padding: str) -> None:
    names = ["a\r\nset-cookie: b=c", "\x00\u2028ü", "long" * 1000, *(f"f{n}" for n in range(50))]
    warning = await warned({**HELLO, "instructions": padding, **dict.fromkeys(names, 1)})
    assert warning is not None
    assert warning.isascii()
    assert warning.isprintable()
    assert (warning.count("unknown field"), len(warning) < 8000) == (8, True)


async def test_a_large_body_of_very_many_names_is_answered_without_naming_them() -> None:
    assert await warned({**HELLO, **{f"field_{n}": n for n in range(40_000)}, "moderation": {}}) == (
        "field without effect 'moderation'"
    )


async def test_unknown_fields_are_a_debug_line_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    body = {**HELLO, "temprature": 1}
    said = "unknown field 'temprature', did you mean 'temperature'?"
    with caplog.at_level(logging.DEBUG, "antwort.engine"):
        async with serving(engine_of(turns=3)) as server:
            await server.ask("POST", RESPONSES, body)
            await server.engine.create(body)
            async with connected(server.port) as socket:
                await socket.ask(**body)
    assert [record.message for record in caplog.records if "unknown field" in record.message] == [said] * 3


# ---- models and labels ----


async def test_a_model_that_is_not_served_leads_to_those_that_are() -> None:
    said = "The model 'qwen4' does not exist. Did you mean 'qwen3'? Available: 'qwen3', 'llama'."
    provider = ScriptedProvider(
        answer(ModelNotFound("inner")), answer(ModelNotFound("inner")), models=("qwen3", "llama")
    )
    async with serving(Engine(provider)) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "qwen4", "input": "Hi"})
        assert (reply.status, reply.error["code"], reply.error["message"]) == (404, "model_not_found", said)
        assert (await server.ask("GET", "/v1/models/qwen4")).error["message"] == said
        with pytest.raises(NotFound) as caught:
            await server.engine.create(model="qwen4", input="Hi")
    assert caught.value.message == said


class Unlisted(ScriptedProvider):
    """It does not know the model of a request, and fails to list those that it knows."""

    def __init__(self) -> None:
        super().__init__(answer(ModelNotFound("scripted")))

    async def models(self) -> list[Model]:
        raise RuntimeError("There is no list.")


async def test_an_unknown_model_is_a_404_also_where_the_models_cannot_be_listed() -> None:
    async with serving(Engine(Unlisted())) as server:
        reply = await server.ask("POST", RESPONSES, HELLO)
        assert (reply.status, reply.error["message"]) == (404, "The model 'scripted' does not exist.")
    with pytest.raises(NotPermitted, match="You may not use the model 'scripted'"):
        await Engine(Unlisted()).create(HELLO, Identity(models=("other",)))


@pytest.mark.parametrize("path", ["/v1/models/large", RESPONSES])
async def test_a_key_is_never_told_of_a_model_that_it_may_not_see(path: str) -> None:
    ring = Keyring([a_key(identity=Identity("acme", "ann", ("small", "org/*"), "ann"))])
    engine = engine_of("small", "large-1", "org/one", "secret")
    async with serving(engine, Transport(engine, identify=ring.identify)) as server:
        body = {"model": "large", "input": "Hi"} if path == RESPONSES else None
        error = (await server.ask("POST" if body else "GET", path, body, ANN)).error
    assert error["message"].endswith("Available: 'small', 'org/one'.")
    assert "secret" not in error["message"]
    assert "large-1" not in error["message"]


async def test_a_request_that_must_name_a_model_is_told_which_there_are() -> None:
    async with serving(engine_of("one", "two")) as server:
        error = (await server.ask("POST", RESPONSES, {"input": "Hi", "modle": "one"})).error
    assert error["message"] == (
        "Missing 'model'. There is not just one to choose from. Available: 'one', 'two'. "
        "Unknown field 'modle': did you mean 'model'?"
    )


async def test_a_label_that_nobody_has_leads_to_the_nearest() -> None:
    async with serving(engine_of()) as server:
        error = (
            await server.ask("POST", RESPONSES, {**HELLO, "tools": [{"type": "mcp", "server_label": "wether"}]})
        ).error
    assert (error["code"], error["param"]) == ("unknown_tool_server", "tools[0].server_label")
    assert error["message"].endswith("under the label 'wether'. Did you mean 'weather'?")


# ---- addresses ----


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/", "There is nothing at '/'. Requests go to POST /v1/responses; /docs describes all there is."),
        ("GET", "/v1/foo", "Requests go to POST /v1/responses"),
        ("POST", "/v1/response", "Did you mean '/v1/responses'?"),
        ("POST", "/v1/chat/completions", "send 'input' in place of 'messages' to POST /v1/responses"),
    ],
)
async def test_an_unknown_address_says_what_there_is(method: str, path: str, said: str) -> None:
    async with serving(engine_of()) as server:
        reply = await server.ask(method, path, CHAT if method == "POST" else None)
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert said in reply.error["message"]
