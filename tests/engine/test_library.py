"""The engine as a program uses it: requests in any form, a store by default, and a context."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, get_type_hints

import pytest

from antwort.api.decoding import Limits
from antwort.api.events import OutputTextDelta, ResponseCompleted
from antwort.api.requests import CreateRequest
from antwort.config.settings import Settings
from antwort.engine.engine import Engine
from antwort.engine.request_fields import RequestFields
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField, ShuttingDown
from antwort.identity import ANONYMOUS
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.limits import ToolLimits
from antwort.tools.local import tool
from antwort.tools.toolset import Toolset
from engine_kit import ask, kinds, sent_messages, text_of


def hello(*more: str) -> ScriptedProvider:
    return ScriptedProvider(*(answer(say(text)) for text in ("Hello there", *more)))


@pytest.mark.parametrize("form", ["keywords", "plain", "read"])
async def test_a_request_is_given_by_keywords_as_plain_values_or_as_it_was_read(form: str) -> None:
    provider = hello()
    async with Engine(provider) as engine:
        match form:
            case "keywords":
                response = await engine.create(input="Hi", instructions="Be kind.")
            case "plain":
                response = await engine.create({"input": "Hi", "instructions": "Be kind."})
            case _:
                response = await engine.create(ask("Hi", instructions="Be kind."))
    assert text_of(response) == "Hello there"
    assert sent_messages(provider.requests[0]) == [("system", "Be kind."), ("user", "Hi")]


@pytest.mark.parametrize("form", ["keywords", "plain"])
async def test_events_are_read_one_by_one_in_any_form_of_the_request(form: str) -> None:
    async with Engine(hello()) as engine:
        events = engine.respond(input="Hi") if form == "keywords" else engine.respond({"input": "Hi", "stream": False})
        async with aclosing(events):
            seen = [event async for event in events]
    assert [event.delta for event in seen if isinstance(event, OutputTextDelta)] == ["Hello", " there"]
    assert isinstance(seen[-1], ResponseCompleted)


async def test_responses_are_kept_in_memory_unless_a_store_is_given() -> None:
    async with Engine(hello("And again")) as engine:
        first = await engine.create(input="Hi")
        assert await engine.retrieve(ANONYMOUS, first.id) == first
        second = await engine.create(input="Go on", previous_response_id=first.id)
        assert text_of(second) == "And again"


async def test_what_a_response_holds_can_be_sent_back_as_it_is() -> None:
    provider = hello("And again")
    async with Engine(provider) as engine:
        first = await engine.create(input="Hi", store=False)
        more: Any = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "Go on"}]
        await engine.create(input=more)
    assert sent_messages(provider.requests[1]) == [("user", "Hi"), ("assistant", "Hello there"), ("user", "Go on")]


@pytest.mark.proves("CP-036", "CP-030")
@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": "Hi", "temperature": 9}, "temperature"),
        ({"input": [{"type": "message", "role": "nobody", "content": "Hi"}]}, "input[0].role"),
        ({"input": "Hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "Hi", "metadata": object()}, "metadata"),
        ({"input": {1j: 2}}, "input"),
    ],
    ids=["a number", "an item", "a tool", "not JSON", "no key of JSON"],
)
async def test_a_wrong_request_is_refused_by_the_rules_of_the_api(asked: dict[str, Any], param: str | None) -> None:
    provider = ScriptedProvider()
    async with Engine(provider) as engine:
        with pytest.raises(InvalidField) as caught:
            await engine.create(asked)
        with pytest.raises(InvalidField):
            await anext(engine.respond(asked))
    assert caught.value.param == param
    assert provider.requests == []


async def test_a_request_is_given_whole_or_by_its_fields() -> None:
    async with Engine(ScriptedProvider()) as engine:
        with pytest.raises(TypeError, match="not both"):
            await engine.create({"input": "Hi"}, temperature=1)


async def test_a_request_that_asks_for_a_stream_can_be_had_whole_however_long_it_is() -> None:
    """Nobody reads the events then: a run that waited for a reader would wait for ever."""
    long = " ".join(str(number) for number in range(3000))
    async with Engine(ScriptedProvider(answer(say(long)))) as engine, asyncio.timeout(5):
        assert text_of(await engine.create(input="Count", stream=True)) == long


async def test_the_context_opens_the_engine_and_closes_what_it_was_given() -> None:
    provider = hello()
    engine = Engine(provider)
    opened = [engine.is_open]
    async with engine as entered:
        assert entered is engine
        opened.append(engine.is_open)
    assert [*opened, engine.is_open] == [False, True, False]
    assert provider.is_closed
    with pytest.raises(ShuttingDown):
        await engine.create(input="Hi")


async def test_tools_of_the_program_are_run_by_the_engine() -> None:
    clock = Toolset("clock")

    @clock.tool
    def now() -> str:
        return "noon"

    provider = ScriptedProvider(answer(call("now")), answer(say("It is noon.")))
    async with Engine(provider, executors=[clock]) as engine:
        response = await engine.create(input="What time?", tools=[{"type": "mcp", "server_label": "clock"}])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]


def test_the_keywords_are_the_fields_of_a_request() -> None:
    fields = set(CreateRequest.__struct_fields__) - {"raw", "raw_input", "additional", "unknown_fields"}
    assert set(get_type_hints(RequestFields)) == fields


# ---- what a program gets wrong ----


async def test_a_keyword_that_is_no_field_is_an_error_that_names_the_nearest() -> None:
    mistyped: Any = {"input": "Hi", "modle": "scripted"}
    unknown: Any = {"zzz": 1}
    async with Engine(ScriptedProvider()) as engine:
        with pytest.raises(TypeError, match=r"^A request has no field 'modle'; is 'model' meant\?$"):
            await engine.create(**mistyped)
        with pytest.raises(TypeError, match=r"^A request has no field 'zzz'\.$"):
            await anext(engine.respond(**unknown))


async def test_a_field_that_is_not_known_is_ignored_in_a_mapping_as_it_is_over_http() -> None:
    async with Engine(hello()) as engine:
        assert (await engine.create({"input": "Hi", "modle": "x"})).status == "completed"


@pytest.mark.parametrize(("given", "hint"), [("Hi", True), ([{"role": "user"}], True), (5, False)], ids=str)
async def test_a_request_that_is_no_request_is_told_what_one_is(given: Any, hint: bool) -> None:
    async with Engine(ScriptedProvider()) as engine:
        with pytest.raises(TypeError, match="A request is a mapping of its fields, or a CreateRequest") as caught:
            await engine.create(given)
    assert str(caught.value).endswith("; say input=… for what is asked.") is hint


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_turns": 0}, "EngineSettings: Invalid 'max_turns': expected `int` >= 1."),
        ({"deadline": -1.0}, "EngineSettings: Invalid 'deadline': expected `float` > 0.0."),
        ({"deadline": "x"}, "EngineSettings: Invalid 'deadline': expected `float`, got `str`."),
        ({"mixed_turns": "no"}, "EngineSettings: Invalid 'mixed_turns': invalid enum value 'no'."),
        (
            {"tool_limits": ToolLimits(timeout=1e9)},
            "EngineSettings: Invalid 'tool_limits.timeout': expected `float` <= 86400.0.",
        ),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_when_the_engine_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="EngineSettings") as caught:
        Engine(ScriptedProvider(), settings=EngineSettings(**wrong))
    assert str(caught.value) == said


def test_the_settings_of_a_server_are_not_those_of_an_engine() -> None:
    server: Any = Settings()
    with pytest.raises(TypeError, match=r"^The settings of an engine are EngineSettings, not Settings\.$"):
        Engine(ScriptedProvider(), settings=server)


async def test_a_function_that_is_a_tool_can_be_given_as_it_is() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    provider = ScriptedProvider(answer(call("add", a=2, b=3)), answer(say("Five.")))
    async with Engine(provider, executors=[add]) as engine:
        response = await engine.create(input="2 + 3?", tools=[{"type": "function", "name": "add"}])
    assert [type(item).__name__ for item in response.output] == ["FunctionCall", "FunctionCallOutput", "Message"]


# ---- opening ----


async def test_opening_an_engine_that_is_in_use_touches_none_of_its_responses() -> None:
    """Whether it was opened before, or has only been used."""
    go = asyncio.Event()
    for times in (0, 1):
        engine = Engine(ScriptedProvider(answer(say("It"), go, say("is done."))))
        for _ in range(times):
            await engine.open()
        run = await engine.start(ask())
        await engine.open()
        go.set()
        response = await run.result()
        assert response.status == "completed"
        assert await engine.retrieve(ANONYMOUS, response.id) == response
        await engine.close()


async def test_a_response_that_is_begun_while_the_engine_opens_is_not_ended_by_that() -> None:
    opening, go = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def fail_running(self, message: str) -> int:
            opening.set()
            await go.wait()
            return await super().fail_running(message)

    engine = Engine(hello(), store=Slow())
    others = [asyncio.create_task(engine.open()) for _ in range(2)]
    await opening.wait()
    asking = asyncio.create_task(engine.create(input="Hi"))
    await asyncio.sleep(0)
    go.set()
    assert (await asking).status == "completed"
    await asyncio.gather(*others)
    await engine.close()


async def test_other_settings_are_for_the_requests_that_come_next() -> None:
    async with Engine(hello("Again"), settings=EngineSettings(default_model="a")) as engine:
        first = await engine.create(input="Hi", metadata={"k": "v", "l": "w"})
        engine.reconfigure(EngineSettings(default_model="b", limits=Limits(metadata_keys=1)))
        second = await engine.create(input="Hi")
        assert (first.model, second.model) == ("a", "b")
        with pytest.raises(InvalidField, match="metadata"):
            await engine.create(input="Hi", metadata={"k": "v", "l": "w"})
        with pytest.raises(InvalidField, match="metadata"):
            await engine.conversations.create(metadata={"k": "v", "l": "w"})
        with pytest.raises(ValueError, match="max_turns"):
            engine.reconfigure(EngineSettings(max_turns=0))
        assert engine.settings.default_model == "b"
