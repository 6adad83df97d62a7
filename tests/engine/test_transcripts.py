"""Every recorded answer of a real engine, replayed through the whole engine, becomes the right items."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from antwort.api.items import FunctionCall, Message, OutputItem, OutputText, Reasoning
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import UNSET
from antwort.engine.engine import Engine
from antwort.errors import AntwortError, BackendRefused, ContextTooLong, ModelNotFound
from antwort.providers.base import Provider
from antwort.providers.chat import ChatProvider
from antwort.providers.errors import NotReady
from antwort.providers.responses_parser import ResponsesParser
from antwort.testing import ScriptedProvider
from antwort.tools.base import ToolExecutor
from antwort.tools.local import LocalExecutor
from engine_kit import ask, engine_of, kinds, only, outputs, stream, text_of
from replay_backend import CASES, Backend, Case, serve

Item: TypeAlias = tuple[str, ...]
"""What an item says, and how it ended."""


@dataclass(frozen=True)
class Comes:
    """What a response comes to. `usage` is the tokens in, out, in total, and of those in, how many were cached."""

    items: tuple[Item, ...]
    usage: tuple[int, int, int, int] | None
    reason: str | None = None

    @property
    def status(self) -> str:
        return "completed" if self.reason is None else "incomplete"


@dataclass(frozen=True)
class Fails:
    """The error that a client is told before anything is sent, with its status."""

    error: type[AntwortError]
    status: int


def message(text: str, status: str = "completed") -> Item:
    return "message", text, status


def reasoning(text: str, status: str = "completed") -> Item:
    return "reasoning", text, status


def call(name: str, arguments: str, status: str = "completed") -> Item:
    return "function_call", name, arguments, status


CUT = "max_output_tokens"
PARIS = "The capital of France is Paris."
FRANCE = '{\n  "city": "Paris",\n  "country": "FRANCE"\n}'
SUM = "\nThe answer to this classic math problem is 4."
WEATHER_IN_PARIS = call("get_weather", '{"city": "Paris"}')
WEATHER_IN_ROME = call("get_weather", '{"city": "Rome"}')
STORY = "The story is a classic example of a"
IGNORED = (
    "Paris, the City of Light, the capital of art and culture. The weather in Paris is indeed quite unique. "
    "The city is known for its warm"
)
PROSE = (
    "The weather in Paris is Paris.\n\nThe function is:\n```\nfunction get_weather(city) {\n"
    '  return {\n    "description'
)
TOKYO = '"The weather in Tokyo is hot and sunny, with a high of 12C and a low of 1C."'

EXPECTED: dict[str, Comes | Fails] = {
    "llama.cpp/err_bad_json": Fails(BackendRefused, 400),
    "llama.cpp/err_bad_role": Comes((message("You are a helpful", "incomplete"),), (24, 4, 28, 21), CUT),
    "llama.cpp/err_context_stream": Fails(ContextTooLong, 400),
    "llama.cpp/err_loading": Fails(NotReady, 503),
    "llama.cpp/err_tool_choice_object": Comes(
        (message("I'm glad you're happy with the", "incomplete"),), (244, 8, 252, 238), CUT
    ),
    "llama.cpp/json_schema_stream": Comes((message(FRANCE),), (40, 19, 59, 23)),
    "llama.cpp/length_stream": Comes((message(STORY + ' "story of the', "incomplete"),), (34, 12, 46, 23), CUT),
    "llama.cpp/logprobs_stream": Comes((message("I'm here to", "incomplete"),), (31, 4, 35, 23), CUT),
    "llama.cpp/reasoning_nonstream": Comes((reasoning(SUM),), (39, 13, 52, 38)),
    "llama.cpp/reasoning_stream": Comes((reasoning(SUM),), (39, 13, 52, 0)),
    "llama.cpp/reasoning_truncated_stream": Comes(
        (reasoning("\nThe answer to this classic math problem is ", "incomplete"),), (39, 10, 49, 38), CUT
    ),
    "llama.cpp/responses_native_stream": Comes((message(PARIS),), (35, 8, 43, 21)),
    "llama.cpp/stop_seq_stream": Comes((message("The capital of France is"),), (35, 6, 41, 23)),
    "llama.cpp/text_nonstream": Comes((message(PARIS),), (35, 8, 43, 34)),
    "llama.cpp/text_stream_nousage": Comes((message(PARIS),), None),
    "llama.cpp/text_stream_usage": Comes((message(PARIS),), (35, 8, 43, 0)),
    "llama.cpp/tool_auto_stream": Comes(
        (call("get_weather", '{"city": "Tokyo_1' + "_" * 35, "incomplete"),), (410, 60, 470, 403), CUT
    ),
    "llama.cpp/tool_parallel_stream": Comes(
        (call("get_weather", '{"city": "Paris' + "_" * 88, "incomplete"),), (413, 110, 523, 403), CUT
    ),
    "llama.cpp/tool_required_ignored_stream": Comes((message(IGNORED, "incomplete"),), (37, 30, 67, 0), CUT),
    "llama.cpp/tool_required_nonstream": Comes((WEATHER_IN_PARIS,), (410, 32, 442, 409)),
    "llama.cpp/tool_required_prose_stream": Comes((message(PROSE, "incomplete"),), (250, 30, 280, 240), CUT),
    "llama.cpp/tool_required_stream": Comes((WEATHER_IN_PARIS,), (410, 32, 442, 0)),
    "llama.cpp/tool_result_final_stream": Comes((message("18 C, light rain"),), (384, 7, 391, 240)),
    "llama.cpp/tool_truncated_stream": Comes((call("get_weather", "{", "incomplete"),), (410, 16, 426, 404), CUT),
    "vllm/err_bad_json": Fails(BackendRefused, 400),
    "vllm/err_context_stream": Fails(ContextTooLong, 400),
    "vllm/err_model": Fails(ModelNotFound, 404),
    "vllm/json_schema_stream": Comes((message(FRANCE),), (36, 19, 55, 0)),
    "vllm/length_stream": Comes((message(STORY, "incomplete"),), (34, 8, 42, 0), CUT),
    "vllm/responses_native_stream": Comes((message(PARIS),), (35, 8, 43, 0)),
    "vllm/stop_seq_stream": Comes((message("The capital of France is"),), (35, 6, 41, 0)),
    "vllm/text_nonstream": Comes((message(PARIS),), (35, 8, 43, 0)),
    "vllm/text_stream_continuous_usage": Comes((message(PARIS),), (35, 8, 43, 0)),
    "vllm/text_stream_nousage": Comes((message(PARIS),), None),
    "vllm/text_stream_usage": Comes((message(PARIS),), (35, 8, 43, 0)),
    "vllm/tool_auto_stream": Comes((message(TOKYO),), (410, 27, 437, 0)),
    "vllm/tool_named_nonstream": Comes((WEATHER_IN_ROME,), (410, 31, 441, 0)),
    "vllm/tool_named_stream": Comes((WEATHER_IN_ROME,), (410, 31, 441, 0)),
    "vllm/tool_required_nonstream": Comes((WEATHER_IN_PARIS,), (410, 31, 441, 0)),
    "vllm/tool_required_stream": Comes((WEATHER_IN_PARIS,), (410, 31, 441, 0)),
    "vllm/tool_truncated_stream": Comes((), (410, 12, 422, 0), CUT),
}


def names_of(kind: type[Comes | Fails]) -> list[str]:
    return [name for name, expected in EXPECTED.items() if isinstance(expected, kind)]


# ---- the request that a client would have sent for it ----

DECODE_ERRORS = ("llama.cpp/err_bad_json", "vllm/err_bad_json", "llama.cpp/err_bad_role")
"""What was sent there is refused here before a backend hears of it."""


def request_for(case: Case) -> CreateRequest:
    """The recorded request, as a client of ours would put it."""
    if case.name in DECODE_ERRORS:
        return ask()
    chat = json.loads(case.request)
    if case.is_native:
        return ask(**{key: chat[key] for key in ("input", "model", "stream", "max_output_tokens", "temperature")})
    return ask(
        [item for entry in chat["messages"] for item in _items(entry)],
        model=chat["model"],
        temperature=chat.get("temperature"),
        max_output_tokens=chat.get("max_tokens"),
        top_logprobs=chat.get("top_logprobs"),
        tools=[{"type": "function", **tool["function"]} for tool in chat.get("tools", [])],
        tool_choice=_choice(chat.get("tool_choice")),
        text={"format": _format(chat.get("response_format"))},
        stream=chat.get("stream"),
    )


def _items(entry: dict[str, Any]) -> list[dict[str, Any]]:
    if entry["role"] == "tool":
        return [{"type": "function_call_output", "call_id": entry["tool_call_id"], "output": entry["content"]}]
    calls = [
        {"type": "function_call", "call_id": each["id"], **each["function"]} for each in entry.get("tool_calls", [])
    ]
    return calls or [entry]


def _choice(choice: Any) -> Any:
    return {"type": "function", **choice["function"]} if isinstance(choice, dict) else choice


def _format(form: Any) -> Any:
    return {"type": "text"} if form is None else {"type": form["type"], **form["json_schema"]}


# ---- playing it ----


@asynccontextmanager
async def engine_for(*cases: Case, executors: tuple[ToolExecutor, ...] = ()) -> AsyncGenerator[tuple[Engine, Backend]]:
    """An engine in front of a backend that plays `cases`, one for each inference."""
    async with serve(*cases) as backend:
        engine = engine_of(_provider(cases[0], backend), *executors)
        try:
            yield engine, backend
        finally:
            await engine.close()


def _provider(case: Case, backend: Backend) -> Provider:
    if not case.is_native:
        return ChatProvider(backend.url)
    parser = ResponsesParser()
    pieces = [case.body[at : at + 100] for at in range(0, len(case.body), 100)]
    return ScriptedProvider([*(parser.feed(piece) for piece in pieces), parser.finish()])


async def answered(engine: Engine, request: CreateRequest) -> Response:
    """In the way the client asked for it; on the streamed way the grammar is checked."""
    return (await stream(engine, request)).response if request.stream else await engine.create(request)


def summed_up(item: OutputItem) -> Item:
    match item:
        case Message():
            return message("".join(part.text for part in item.content if isinstance(part, OutputText)), item.status)
        case Reasoning():
            content = () if item.content is UNSET else item.content
            return reasoning("".join(part.text for part in content), item.status)
        case FunctionCall():
            return call(item.name, item.arguments, item.status)
        case _:
            raise AssertionError(f"no recording holds a {type(item).__name__}")


def comes_to(response: Response) -> Comes:
    usage, details = response.usage, response.incomplete_details
    spent = None
    if usage is not None:
        cached = usage.input_tokens_details.cached_tokens
        spent = (usage.input_tokens, usage.output_tokens, usage.total_tokens, cached)
    return Comes(tuple(map(summed_up, response.output)), spent, None if details is None else details.reason)


# ---- the tests ----


def test_every_recording_is_expected() -> None:
    assert set(EXPECTED) == set(CASES)
    assert len(EXPECTED) == 41


@pytest.mark.proves("EDGE-5", "EDGE-6", "MISTAKE-05", "MISTAKE-07", "MISTAKE-08", "RULING-4")
@pytest.mark.parametrize("name", names_of(Comes))
async def test_a_recorded_answer_becomes_its_items(name: str) -> None:
    expected = EXPECTED[name]
    assert isinstance(expected, Comes)
    async with engine_for(CASES[name]) as (engine, _):
        response = await answered(engine, request_for(CASES[name]))
    assert comes_to(response) == expected
    assert response.status == expected.status


@pytest.mark.proves("EN-034", "RULING-8", "TR-015")
@pytest.mark.parametrize("name", names_of(Fails))
async def test_a_recorded_refusal_is_an_error_before_anything_is_sent(name: str) -> None:
    expected = EXPECTED[name]
    assert isinstance(expected, Fails)
    async with engine_for(CASES[name]) as (engine, backend):
        with pytest.raises(expected.error) as caught:
            await answered(engine, request_for(CASES[name]))
    assert (type(caught.value), caught.value.status) == (expected.error, expected.status)
    assert "127.0.0.1" not in caught.value.message
    assert [each.method for each in backend.requests].count("POST") == 1


@pytest.mark.proves("FR-027")
@pytest.mark.parametrize("name", [name for name in names_of(Comes) if not CASES[name].is_streamed])
async def test_an_answer_in_one_piece_streams_to_the_same_items(name: str) -> None:
    """A backend may answer whole where a stream was asked for."""
    async with engine_for(CASES[name]) as (engine, _):
        outcome = await stream(engine, request_for(CASES[name]))
    assert comes_to(outcome.response) == EXPECTED[name]


SENT = (
    "model",
    "messages",
    "tools",
    "temperature",
    "max_tokens",
    "response_format",
    "logprobs",
    "top_logprobs",
    "stream",
)


@pytest.mark.proves("EN-023", "EN-024")
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not case.is_native and name not in DECODE_ERRORS]
)
async def test_the_backend_is_asked_what_it_was_asked_when_it_was_recorded(name: str) -> None:
    case = CASES[name]
    async with engine_for(case) as (engine, backend):
        try:
            await answered(engine, request_for(case))
        except AntwortError:
            assert isinstance(EXPECTED[name], Fails)
    recorded, now = json.loads(case.request), json.loads(backend.requests[0].body)
    assert {key: now.get(key) for key in SENT} == {key: recorded.get(key) for key in SENT}
    assert now.get("tool_choice", "auto") == recorded.get("tool_choice", "auto")


# ---- with somebody to run the calls ----


def weather_station(asked: list[str]) -> LocalExecutor:
    async def get_weather(city: str) -> str:
        asked.append(city)
        return "18 C, light rain"

    return LocalExecutor(get_weather)


@pytest.mark.proves("FR-011", "FR-028")
@pytest.mark.parametrize(
    ("name", "city", "usage"),
    [
        ("llama.cpp/tool_required_stream", "Paris", (794, 39, 833, 240)),
        ("llama.cpp/tool_required_nonstream", "Paris", (794, 39, 833, 649)),
        ("vllm/tool_required_stream", "Paris", (794, 38, 832, 240)),
        ("vllm/tool_named_stream", "Rome", (794, 38, 832, 240)),
        ("vllm/tool_named_nonstream", "Rome", (794, 38, 832, 240)),
    ],
)
async def test_a_recorded_call_is_run_and_a_recorded_answer_ends_the_loop(
    name: str, city: str, usage: tuple[int, ...]
) -> None:
    asked: list[str] = []
    cases = (CASES[name], CASES["llama.cpp/tool_result_final_stream"])
    async with engine_for(*cases, executors=(weather_station(asked),)) as (engine, backend):
        response = await answered(engine, request_for(CASES[name]))
    assert asked == [city]
    assert (response.status, kinds(response)) == ("completed", ["function_call", "function_call_output", "message"])
    assert text_of(response) == "18 C, light rain"
    (output,) = outputs(response)
    assert (output.call_id, output.output) == (only(response, FunctionCall).call_id, "18 C, light rain")
    assert comes_to_usage(response) == usage
    told = json.loads(backend.requests[1].body)["messages"][-1]
    assert told == {"role": "tool", "tool_call_id": output.call_id, "content": "18 C, light rain"}


def comes_to_usage(response: Response) -> tuple[int, ...]:
    assert response.usage is not None
    usage = response.usage
    return usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.input_tokens_details.cached_tokens


@pytest.mark.proves("EDGE-5", "MISTAKE-07")
@pytest.mark.parametrize(
    "name", ["llama.cpp/tool_truncated_stream", "llama.cpp/tool_auto_stream", "vllm/tool_truncated_stream"]
)
async def test_a_recorded_call_that_was_cut_is_never_run(name: str) -> None:
    asked: list[str] = []
    async with engine_for(CASES[name], executors=(weather_station(asked),)) as (engine, backend):
        response = await answered(engine, request_for(CASES[name]))
    assert comes_to(response) == EXPECTED[name]
    assert (asked, len(backend.requests)) == ([], 1)


async def test_recorded_log_probabilities_reach_the_item() -> None:
    case = CASES["llama.cpp/logprobs_stream"]
    async with engine_for(case) as (engine, _):
        response = await answered(engine, request_for(case))
    (part,) = only(response, Message).content
    assert isinstance(part, OutputText)
    assert [prob.token for prob in part.logprobs] == ["I", "'m", " here", " to"]
    assert [len(prob.top_logprobs) for prob in part.logprobs] == [2, 2, 2, 2]
