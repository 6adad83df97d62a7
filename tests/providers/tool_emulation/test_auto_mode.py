"""`auto`: backends are asked for tool calls natively, and constrained where that does not work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from antwort.api.wire import UNSET, replace
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ModelNotFound,
    NotFound,
    RequestError,
)
from antwort.notes import reason_behind
from antwort.providers.base import (
    CallDelta,
    ChatCall,
    ChatFunction,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.providers.chat import ChatProvider
from antwort.providers.errors import refuses_tools
from antwort.providers.tool_emulation.emulation import Constrained
from antwort.testing.scripted import Answer, ScriptedProvider, answer, call, say, tokens
from chat_backend import ChatBackend, Refuses, Says

TOOLS = [ChatTool(function=ChatToolFunction(name=name)) for name in ("weather", "now")]
REQUEST = ChatRequest(model="m", messages=[ChatMessage(role="user", content="Hi")], tools=TOOLS)
REQUIRED = replace(REQUEST, tool_choice="required")
NAMED = replace(REQUEST, tool_choice={"type": "function", "function": {"name": "now"}})
REFUSAL = BackendRefused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
NOW = [TextDelta('{"calls": [{"name": "now", "arguments": {}}]}')]
NOW_PARSED: list[Delta] = [CallDelta(0, "now"), CallDelta(0, "", "{}"), Finished("tool_calls")]


def auto(*answers: Answer, clock: Callable[[], float] = lambda: 0.0) -> tuple[Constrained, ScriptedProvider]:
    inner = ScriptedProvider(*answers)
    return Constrained(inner, "auto", clock=clock), inner


async def deltas(provider: Constrained, request: ChatRequest) -> list[Delta]:
    return [delta async for batch in provider.infer(request) for delta in batch]


def ways(inner: ScriptedProvider) -> list[str]:
    return ["native" if request.tools is not UNSET else "constrained" for request in inner.requests]


# ---- a backend that refuses ----


async def test_a_backend_that_calls_tools_is_asked_as_it_is_and_answers_as_it_does() -> None:
    provider, inner = auto(answer(say("One moment."), call("now")))
    seen = [batch async for batch in provider.infer(REQUEST)]
    assert inner.requests == [REQUEST]
    assert seen[0] == []
    assert [len(batch) for batch in seen[1:]] == [1, 1, 1, 1, 1]  # batch by batch, nothing held


async def test_a_backend_that_refuses_tools_is_asked_again_and_from_then_on_constrained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider, inner = auto([REFUSAL], answer(NOW), answer(NOW))
    with caplog.at_level(logging.INFO, "antwort.providers"):
        assert await deltas(provider, REQUEST) == NOW_PARSED
        assert await deltas(provider, REQUEST) == NOW_PARSED
    assert ways(inner) == ["native", "constrained", "constrained"]
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "the backend refuses tools" in caplog.messages[0]


async def test_it_is_remembered_for_that_model_and_that_kind_of_choice_only() -> None:
    provider, inner = auto([REFUSAL], answer(NOW), answer(call("now")), answer(call("now")))
    await deltas(provider, REQUEST)
    await deltas(provider, REQUIRED)
    await deltas(provider, replace(REQUEST, model="other"))
    assert ways(inner) == ["native", "constrained", "native", "native"]


async def test_a_refusal_after_the_headers_counts_as_long_as_nothing_came() -> None:
    provider, inner = auto([[], REFUSAL], answer(NOW))
    assert await deltas(provider, REQUEST) == NOW_PARSED
    assert ways(inner) == ["native", "constrained"]


@pytest.mark.parametrize("request_", [REQUEST, REQUIRED])
async def test_that_the_backend_answers_is_told_at_once_by_whichever_answer(request_: ChatRequest) -> None:
    hold = asyncio.Event()
    provider, _ = auto([REFUSAL], answer(hold, NOW))
    batches = provider.infer(request_)
    assert await anext(batches) == []
    hold.set()
    assert [delta async for batch in batches for delta in batch] == NOW_PARSED


async def test_what_was_let_out_is_not_taken_back() -> None:
    provider, inner = auto(answer(say("One"), REFUSAL))
    with pytest.raises(BackendRefused):
        await deltas(provider, REQUEST)
    assert ways(inner) == ["native"]


@pytest.mark.parametrize("error", [BackendRefused("The tool 'x' has no description."), BackendUnavailable("down")])
async def test_another_failure_is_no_refusal(error: AntwortError) -> None:
    provider, inner = auto([error], [error])
    for request in (REQUEST, REQUIRED):
        with pytest.raises(type(error)):
            await deltas(provider, request)
    assert ways(inner) == ["native", "native"]


async def test_where_a_schema_is_refused_too_the_first_refusal_stands_and_nothing_is_remembered() -> None:
    provider, inner = auto([REFUSAL], [BackendRefused("no json_schema here")], answer(call("now")))
    with pytest.raises(BackendRefused, match="auto-tool-choice"):
        await deltas(provider, REQUEST)
    await deltas(provider, REQUEST)
    assert ways(inner) == ["native", "constrained", "native"]


async def test_a_backend_that_is_lost_in_between_is_what_is_told() -> None:
    provider, _ = auto([REFUSAL], [BackendUnavailable("down")])
    with pytest.raises(BackendUnavailable):
        await deltas(provider, REQUEST)


async def test_one_that_is_lost_in_between_is_not_its_own_cause() -> None:
    provider, _ = auto([REFUSAL], [BackendUnavailable("gone")])
    with pytest.raises(BackendUnavailable) as caught:
        await deltas(provider, REQUEST)
    assert caught.value.__cause__ is None
    assert reason_behind(caught.value) == ""  # whoever looks for the bottom of it comes to one


async def test_a_second_answer_that_breaks_off_has_broken_off() -> None:
    provider, _ = auto([REFUSAL], answer([TextDelta('{"answer": "x')], BackendCut("cut")))
    with pytest.raises(BackendCut):
        await deltas(provider, REQUEST)


async def test_calls_of_the_past_go_out_in_words_to_a_model_that_is_known_not_to_read_them() -> None:
    provider, inner = auto([REFUSAL], answer(NOW), answer(say("Done.")), answer(say("Done.")))
    called = ChatCall(id="c", function=ChatFunction(name="now", arguments="{}"))
    past = [ChatMessage(role="assistant", tool_calls=[called]), ChatMessage(role="tool", tool_call_id="c", content="9")]
    asked = replace(REQUEST, messages=[*REQUEST.messages, *past], tools=UNSET)
    await deltas(provider, REQUEST)
    await deltas(provider, asked)
    await deltas(provider, replace(asked, model="unknown"))
    assert [message.role for message in inner.requests[2].messages] == ["system", "user", "assistant", "user"]
    assert inner.requests[2].response_format is not UNSET
    assert inner.requests[3].messages == asked.messages


async def test_llama_cpp_without_templates_refuses_with_a_500() -> None:
    refusal = Refuses(500, "tools param requires --jinja flag")
    async with ChatBackend(refusal, Says(pieces=['{"answer": "Hi"}'])) as backend:
        provider = Constrained(ChatProvider(backend.url), "auto")
        out = await deltas(provider, REQUEST)
        await provider.close()
    assert out[0] == TextDelta("Hi")
    assert ["tools" in request for request in backend.requests] == [True, False]


# ---- a call that must come ----


@pytest.mark.parametrize("request_", [REQUIRED, NAMED])
async def test_a_call_that_comes_natively_is_let_out_with_all_that_was_held(request_: ChatRequest) -> None:
    provider, inner = auto(answer([ReasoningDelta("hm")], say("So be it"), call("now"), usage=tokens(3, 4)))
    seen = [batch async for batch in provider.infer(request_)]
    assert seen[:3] == [
        [],
        [ReasoningDelta("hm")],  # thoughts commit to nothing
        [TextDelta("So"), TextDelta(" be"), TextDelta(" it"), CallDelta(0, "now", "{")],
    ]
    assert seen[3:] == [[CallDelta(0, "", "}")], [Finished("tool_calls", tokens(3, 4))]]
    assert ways(inner) == ["native"]


@pytest.mark.parametrize("request_", [REQUIRED, NAMED])
async def test_a_call_that_does_not_come_is_asked_for_again_and_from_then_on_constrained(
    request_: ChatRequest, caplog: pytest.LogCaptureFixture
) -> None:
    provider, inner = auto(answer(say("I would rather talk.")), answer(NOW), answer(NOW))
    with caplog.at_level(logging.INFO, "antwort.providers"):
        assert await deltas(provider, request_) == NOW_PARSED
        assert await deltas(provider, request_) == NOW_PARSED
    assert ways(inner) == ["native", "constrained", "constrained"]
    assert len(caplog.records) == 1
    assert "did not come" in caplog.messages[0]


async def test_an_answer_that_a_limit_cut_off_is_asked_for_again_and_teaches_nothing() -> None:
    provider, inner = auto(answer(say("I would"), finish="length"), answer(NOW), answer(call("now")))
    assert await deltas(provider, REQUIRED) == NOW_PARSED
    await deltas(provider, REQUIRED)
    assert ways(inner) == ["native", "constrained", "native"]


async def test_a_call_that_a_limit_cut_off_stands() -> None:
    cut = answer([CallDelta(0, "now", '{"a')], finish="length")
    provider, inner = auto(cut)
    assert await deltas(provider, REQUIRED) == [CallDelta(0, "now", '{"a'), Finished("length")]
    assert ways(inner) == ["native"]


async def test_what_the_discarded_answer_cost_is_in_the_cost() -> None:
    for first, second, both in [
        (tokens(9, 5), tokens(20, 7), tokens(29, 12)),
        (tokens(9, 5), None, tokens(9, 5)),
        (None, tokens(20, 7), tokens(20, 7)),
    ]:
        provider, _ = auto(answer(say("No."), usage=first), answer(NOW, usage=second))
        is_sum = first is not None
        assert (await deltas(provider, REQUIRED))[-1] == Finished("tool_calls", both, is_sum=is_sum)


@pytest.mark.proves("FR-005", "RULING-17")
async def test_an_answer_is_held_until_its_call_also_where_calls_came_natively_before() -> None:
    words, calls = answer(say("Well then")), answer(say("Well then"), call("now"))
    provider, inner = auto(calls, calls, words, answer(NOW))
    for _ in range(2):
        seen = [batch async for batch in provider.infer(REQUIRED)]
        assert seen[1] == [TextDelta("Well"), TextDelta(" then"), CallDelta(0, "now", "{")]
    assert await deltas(provider, REQUIRED) == NOW_PARSED
    assert ways(inner) == ["native", "native", "native", "constrained"]


async def test_what_was_found_out_is_found_out_again_after_ten_minutes() -> None:
    now = 0.0
    calls = answer(call("now"))
    provider, inner = auto([REFUSAL], answer(NOW), answer(NOW), calls, clock=lambda: now)
    await deltas(provider, REQUEST)
    now = 599.0
    await deltas(provider, REQUEST)
    now = 600.0
    assert (await deltas(provider, REQUEST))[0] == CallDelta(0, "now", "{")
    assert ways(inner) == ["native", "constrained", "constrained", "native"]


@pytest.mark.parametrize(
    "second", [[BackendRefused("response_format of type json_schema is not supported")], answer(say("Other words"))]
)
async def test_where_a_schema_does_not_help_either_it_is_not_asked_twice_for_a_while(second: Answer) -> None:
    now = 0.0
    words = answer(say("Words"))
    provider, inner = auto(words, second, words, words, second, clock=lambda: now)
    for moment in (0.0, 1.0, 601.0):
        now = moment
        assert (await deltas(provider, REQUIRED))[0] == TextDelta("Words")
    assert ways(inner) == ["native", "constrained", "native", "native", "constrained"]


async def test_a_schema_that_is_refused_for_what_is_in_it_says_nothing_of_others() -> None:
    words, bad = answer(say("Words")), [BackendRefused("response_format: 'pattern' is not supported")]
    provider, inner = auto(words, bad, words, answer(NOW))
    await deltas(provider, REQUIRED)
    assert await deltas(provider, REQUIRED) == NOW_PARSED
    assert ways(inner) == ["native", "constrained"] * 2


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "No endpoints found that support tool use."),
        (500, "tools are not supported"),
        (501, "tools not implemented"),
    ],
)
async def test_a_refusal_is_one_under_other_statuses_too(status: int, message: str) -> None:
    async with ChatBackend(Refuses(status, message), Says(pieces=['{"answer": "Hi"}'])) as backend:
        provider = Constrained(ChatProvider(backend.url), "auto")
        assert (await deltas(provider, REQUEST))[0] == TextDelta("Hi")
        await provider.close()


async def test_a_call_of_another_tool_is_not_the_one_that_was_asked_for() -> None:
    provider, inner = auto(answer(call("weather")), answer(NOW))
    assert await deltas(provider, NAMED) == NOW_PARSED
    assert ways(inner) == ["native", "constrained"]


async def test_a_call_beyond_the_allowed_list_is_not_the_one_that_was_asked_for() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
    provider, _ = auto(answer(call("weather")), answer(NOW))
    assert await deltas(provider, replace(REQUEST, tool_choice=allowed)) == NOW_PARSED


async def test_what_is_remembered_of_one_kind_of_choice_leaves_the_others_alone() -> None:
    provider, inner = auto(answer(say("No.")), answer(NOW), answer(call("now")), answer(call("now")))
    await deltas(provider, NAMED)
    await deltas(provider, REQUIRED)
    await deltas(provider, REQUEST)
    assert ways(inner) == ["native", "constrained", "native", "native"]


async def test_where_no_call_comes_either_way_nothing_is_remembered() -> None:
    """A limit that is too low for any call says nothing of the backend."""
    provider, inner = auto(
        answer([], finish="length"), answer([TextDelta('{"ca')], finish="length"), answer(call("now"))
    )
    assert await deltas(provider, REQUIRED) == [Finished("length")]
    await deltas(provider, REQUIRED)
    assert ways(inner) == ["native", "constrained", "native"]


@pytest.mark.parametrize("error", [BackendRefused("no json_schema here"), BackendError("failed")])
async def test_where_a_schema_does_not_work_what_came_natively_stands(error: AntwortError) -> None:
    provider, _ = auto(answer(say("Words")), [error])
    assert await deltas(provider, REQUIRED) == [TextDelta("Words"), Finished("stop")]


async def test_a_backend_that_refuses_such_a_choice_is_asked_constrained() -> None:
    provider, inner = auto([BackendRefused("tool_choice 'required' is not supported")], answer(NOW))
    assert await deltas(provider, REQUIRED) == NOW_PARSED
    assert ways(inner) == ["native", "constrained"]


@pytest.mark.parametrize(
    "pieces", [answer([RefusalDelta("I must not.")]), answer(say("It is"), finish="content_filter")]
)
async def test_a_model_that_may_not_answer_is_not_asked_again(pieces: Answer) -> None:
    provider, inner = auto(pieces)
    await deltas(provider, REQUIRED)
    assert ways(inner) == ["native"]


async def test_a_failure_while_the_answer_is_held_is_a_failure() -> None:
    provider, inner = auto(answer(say("One"), BackendCut("cut")))
    with pytest.raises(BackendCut):
        await deltas(provider, REQUIRED)
    assert ways(inner) == ["native"]


async def test_no_more_is_remembered_than_a_thousand_models() -> None:
    answers: list[Any] = [step for _ in range(1025) for step in ([REFUSAL], answer(NOW))]
    provider, inner = auto(*answers, answer(NOW), answer(call("now")))
    for number in range(1025):
        await deltas(provider, replace(REQUEST, model=f"m{number}"))
    await deltas(provider, replace(REQUEST, model="m1024"))
    await deltas(provider, replace(REQUEST, model="m0"))
    assert ways(inner)[-2:] == ["constrained", "native"]


async def test_nothing_is_remembered_of_names_that_are_as_long_as_a_body() -> None:
    provider, inner = auto([REFUSAL], answer(NOW), [REFUSAL], answer(NOW))
    request = replace(REQUEST, model="m" * 100_000)
    assert await deltas(provider, request) == NOW_PARSED
    assert await deltas(provider, request) == NOW_PARSED
    assert ways(inner) == ["native", "constrained", "native", "constrained"]


# ---- what a refusal is ----


@pytest.mark.parametrize(
    "message",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "registry.ollama.ai/library/gemma:2b does not support tools",
        "tools param requires --jinja flag",
        "This model does not support function calling.",
        "Function calling is not enabled for this model",
        "tool_choice 'required' is not supported",
        "Unrecognized request argument supplied: tools",
        "Extra inputs are not permitted: tools",
        "unknown field `tools`",
        "Tool use is not currently supported",
        "The tools parameter is not supported by this model",
        (
            '[{"type":"extra_forbidden","loc":["body","tools"],"msg":"Extra inputs are not permitted",'
            '"input":[{"function":{"name":"f","parameters":{"oneOf":[]}}}]}]'
        ),
        "The backend does not support tools, or not as they were asked for.",
    ],
)
def test_a_backend_that_has_no_tool_calls_says_so_in_many_ways(message: str) -> None:
    assert refuses_tools(BackendRefused(message))
    assert refuses_tools(NotFound(message))
    assert not refuses_tools(BackendError(message))


@pytest.mark.parametrize(
    "error",
    [
        BackendRefused("The tool 'x' has no description."),
        BackendRefused("Invalid schema for function 'f': 'strin' is not valid"),
        BackendRefused("The tool specified in `tool_choice` does not match any of the specified `tools`"),
        BackendRefused("images are not supported"),
        BackendRefused("tools[0].function.parameters: 'oneOf' is not supported"),
        BackendRefused("tools.0.custom.input_schema: unexpected key"),
        BackendRefused('[{"loc":["body","tools",0,"function","strict"],"msg":"Extra inputs are not permitted"}]'),
        BackendRefused("Tool name 'a b' is not allowed: must match ^[a-z]+$"),
        BackendRefused("'oneOf' is not supported in tools"),
        BackendRefused("The schema of a tool has a keyword that is not supported: not"),
        BackendRefused("Tool 'search' is not supported"),
        BackendRefused("Unsupported function parameter type in tool 3"),
        ModelNotFound("toolmaker"),
        RequestError("The context is too long"),
    ],
)
def test_a_fault_of_the_request_is_no_such_refusal(error: AntwortError) -> None:
    assert not refuses_tools(error)
