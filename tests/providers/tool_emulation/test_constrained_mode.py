"""Constrained tool calls: the request goes out without tools, and the answer comes back with calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.items import LogProb
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.errors import BackendCut, BackendUnavailable
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatCall,
    ChatFunction,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    ReasoningDelta,
    TextDelta,
)
from antwort.providers.chat import ChatProvider
from antwort.providers.tool_emulation.emulation import Constrained
from antwort.testing.scripted import Piece, ScriptedProvider, answer, tokens
from chat_backend import ChatBackend, Says

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    ChatTool(function=ChatToolFunction(name="weather", description="Weather of a city.", parameters=CITY)),
    ChatTool(function=ChatToolFunction(name="now", parameters={"type": "object", "properties": {}})),
]
ASK = ChatMessage(role="user", content="How is Rome?")
CALLED = ChatMessage(
    role="assistant",
    content=None,
    tool_calls=[ChatCall(id="c1", function=ChatFunction(name="weather", arguments='{"city":"Rome"}'))],
)
RESULT = ChatMessage(role="tool", tool_call_id="c1", content="18 degrees")
REQUEST = ChatRequest(model="m", messages=[ASK], tools=TOOLS, stream=True)


def written(text: str, finish: str = "stop") -> list[Piece]:
    """A model that writes `text`, a few characters at a time."""
    return answer([TextDelta(text[at : at + 3]) for at in range(0, len(text), 3)], finish=finish, usage=tokens(9, 5))


async def deltas(provider: Constrained, request: ChatRequest) -> list[Delta]:
    return [delta async for batch in provider.infer(request) for delta in batch]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


# ---- out ----


async def test_tools_go_out_in_words_and_the_answer_is_held_to_a_schema() -> None:
    inner = ScriptedProvider(written('{"answer": "Fine."}'))
    await deltas(Constrained(inner, "constrained"), replace(REQUEST, tool_choice="auto", parallel_tool_calls=True))
    (sent,) = inner.requests
    assert (sent.tools, sent.tool_choice, sent.parallel_tool_calls) == (UNSET, UNSET, UNSET)
    assert sent.stream is True
    system, user = sent.messages
    assert isinstance(system.content, str)
    assert "weather(city: string) - Weather of a city.\nnow()" in system.content
    assert user == ASK
    assert isinstance(sent.response_format, dict)
    assert sent.response_format["type"] == "json_schema"
    assert set(sent.response_format["json_schema"]) == {"name", "strict", "schema"}


async def test_calls_and_results_of_the_past_go_out_in_words() -> None:
    inner = ScriptedProvider(written('{"answer": "Mild."}'))
    await deltas(Constrained(inner, "constrained"), replace(REQUEST, messages=[ASK, CALLED, RESULT]))
    _, user, call, result = inner.requests[0].messages
    assert user == ASK
    assert (call.role, call.content) == ("assistant", '{"calls": [{"name": "weather", "arguments": {"city": "Rome"}}]}')
    assert call.tool_calls is UNSET
    assert (result.role, result.content) == ("user", "Results:\nweather: 18 degrees")


async def test_probabilities_of_a_text_that_nobody_sees_are_not_asked_for() -> None:
    inner = ScriptedProvider(answer([TextDelta('{"answer": "Hi"}', (LogProb(token="x", logprob=-1.0),))]))
    out = await deltas(Constrained(inner, "constrained"), replace(REQUEST, logprobs=True, top_logprobs=3))
    assert (inner.requests[0].logprobs, inner.requests[0].top_logprobs) == (UNSET, UNSET)
    assert out[0] == TextDelta("Hi")


@pytest.mark.parametrize("mode", ["native", "constrained", "auto"])
async def test_a_request_that_has_nothing_to_do_with_tools_passes_untouched(mode: Any) -> None:
    plain = ChatRequest(model="m", messages=[ASK], logprobs=True)
    inner = ScriptedProvider(written('{"answer": "as it is"}'))
    out = await deltas(Constrained(inner, mode), plain)
    assert inner.requests[0] is plain
    assert "".join(delta.text for delta in out if isinstance(delta, TextDelta)) == '{"answer": "as it is"}'


@pytest.mark.parametrize("request_", [replace(REQUEST, tool_choice="none"), replace(REQUEST, tools=UNSET)])
async def test_where_nothing_may_be_called_and_calls_were_made_the_answer_is_held_to_words_and_streams(
    request_: ChatRequest,
) -> None:
    inner = ScriptedProvider(written('{"answer": "It is mild."}'))
    asked = replace(request_, messages=[ASK, CALLED, RESULT], logprobs=True)
    seen = [batch async for batch in Constrained(inner, "constrained").infer(asked)]
    sent = inner.requests[0]
    assert (sent.tools, sent.tool_choice, sent.logprobs) == (UNSET, UNSET, UNSET)
    assert isinstance(sent.response_format, dict)
    assert sent.response_format["json_schema"]["schema"]["properties"] == {"answer": {"type": "string"}}
    assert sent.messages[0].content == 'Reply with one JSON object: {"answer": "..."}'
    words = [delta.text for batch in seen for delta in batch if isinstance(delta, TextDelta)]
    assert "".join(words) == "It is mild."
    assert len(words) > 2


async def test_where_nothing_may_be_called_the_form_that_the_client_asks_for_holds_too() -> None:
    inner = ScriptedProvider(written('{"answer": {"city": "Rome"}}'))
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    asked = replace(REQUEST, tools=UNSET, messages=[ASK, CALLED, RESULT], response_format=form)
    out = await deltas(Constrained(inner, "constrained"), asked)
    sent = inner.requests[0].response_format
    assert isinstance(sent, dict)
    assert sent["json_schema"]["schema"]["properties"] == {"answer": CITY}
    assert "".join(delta.text for delta in out if isinstance(delta, TextDelta)) == '{"city": "Rome"}'


async def test_where_nothing_may_be_called_and_nothing_was_nothing_is_told_or_held() -> None:
    inner = ScriptedProvider(written("Fine."))
    await deltas(Constrained(inner, "constrained"), replace(REQUEST, tool_choice="none", logprobs=True))
    assert inner.requests == [replace(REQUEST, tools=UNSET, logprobs=True)]


@pytest.mark.parametrize(
    ("asked", "held_to"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
            CITY,
        ),
        (
            {"type": "json_object"},
            {"type": "object", "additionalProperties": True},
        ),
        ({"type": "text"}, {"type": "string"}),
        (UNSET, {"type": "string"}),
    ],
)
async def test_the_form_that_a_request_asks_for_is_the_form_of_the_answer(
    asked: dict[str, Any] | UnsetType, held_to: dict[str, Any]
) -> None:
    inner = ScriptedProvider(written('{"answer": "Fine."}'))
    await deltas(Constrained(inner, "constrained"), replace(REQUEST, response_format=asked))
    sent = inner.requests[0].response_format
    assert isinstance(sent, dict)
    assert sent["json_schema"]["schema"]["anyOf"][1]["properties"]["answer"] == held_to


# ---- back ----


async def test_calls_come_back_as_calls_with_the_cost_of_them() -> None:
    text = '{"calls": [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "now", "arguments": {}}]}'
    out = await deltas(Constrained(ScriptedProvider(written(text)), "constrained"), REQUEST)
    calls = [delta for delta in out if isinstance(delta, CallDelta)]
    assert [(call.index, call.name) for call in calls if call.name] == [(0, "weather"), (1, "now")]
    assert "".join(call.arguments for call in calls if call.index == 0) == '{"city": "Rome"}'
    assert out[-1] == Finished("tool_calls", tokens(9, 5))


async def test_json_that_the_client_asked_for_comes_back_as_it_is_written() -> None:
    inner = ScriptedProvider(written('{"answer": {"city": "R\\u00f6m"}}'))
    out = await deltas(Constrained(inner, "constrained"), replace(REQUEST, response_format={"type": "json_object"}))
    assert "".join(delta.text for delta in out if isinstance(delta, TextDelta)) == '{"city": "R\\u00f6m"}'


async def test_a_call_that_a_limit_cuts_off_does_not_look_complete() -> None:
    inner = ScriptedProvider(written('{"calls": [{"name": "weather", "arguments": {"ci', finish="length"))
    out = await deltas(Constrained(inner, "constrained"), REQUEST)
    assert out[-1] == Finished("length", tokens(9, 5))


async def test_thoughts_come_through_and_batches_without_news_do_not() -> None:
    inner = ScriptedProvider(answer([ReasoningDelta("hm"), TextDelta('{"ans'), TextDelta('wer": "x'), TextDelta('"}')]))
    seen = [batch async for batch in Constrained(inner, "constrained").infer(REQUEST)]
    assert seen == [[], [ReasoningDelta("hm")], [TextDelta("x")], [Finished("stop")]]


async def test_a_failure_comes_through_as_it_is() -> None:
    inner = ScriptedProvider(answer([TextDelta('{"answer": "x')], BackendCut("cut")))
    with pytest.raises(BackendCut):
        await deltas(Constrained(inner, "constrained"), REQUEST)


@pytest.mark.parametrize("mode", ["native", "constrained", "auto"])
async def test_who_stops_reading_stops_the_backend(mode: Any) -> None:
    inner = ScriptedProvider(written('{"answer": "a long story"}'))
    batches = Constrained(inner, mode).infer(REQUEST)
    assert await anext(batches) == []
    assert inner.under_way == 1
    await batches.aclose()
    assert inner.under_way == 0


# ---- the rest of a provider ----


async def test_it_is_its_backend_in_all_else() -> None:
    class Down(ScriptedProvider):
        async def check(self) -> None:
            raise BackendUnavailable("down")

    inner = Down(models=["m1"])
    provider = Constrained(inner, "constrained")
    assert [model.id for model in await provider.models()] == ["m1"]
    with pytest.raises(BackendUnavailable):
        await provider.check()
    await provider.close()
    assert inner.is_closed


@pytest.mark.parametrize(("mode", "takes"), [("native", False), ("constrained", True), ("auto", True)])
def test_it_takes_lists_of_allowed_tools_where_it_can_hold_to_them(mode: Any, takes: bool) -> None:
    inner = Capabilities(vision=False)
    provider = Constrained(ScriptedProvider(capabilities=inner), mode)
    assert provider.capabilities("m").allowed_tools is takes
    assert provider.capabilities("m").vision is False


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("now")]}}


@pytest.mark.parametrize("mode", ["native", "auto"])
@pytest.mark.parametrize(("takes", "sent"), [(True, ALLOWED), (False, "required")])
async def test_natively_a_list_of_allowed_tools_goes_only_to_who_knows_such(mode: Any, takes: bool, sent: Any) -> None:
    inner = ScriptedProvider(answer([CallDelta(0, "now", "{}")]), capabilities=Capabilities(allowed_tools=takes))
    await deltas(Constrained(inner, mode), replace(REQUEST, tool_choice=ALLOWED))
    assert inner.requests[0].tool_choice == sent
    assert inner.requests[0].tools == TOOLS


@pytest.mark.parametrize("stream", [True, UNSET])
async def test_over_http_a_whole_answer_reads_like_a_streamed_one(stream: bool | UnsetType) -> None:
    text = '{"calls": [{"name": "weather", "arguments": {"city": "Rome"}}]}'
    async with ChatBackend(Says(pieces=[text[:20], text[20:44], text[44:]])) as backend:
        provider = Constrained(ChatProvider(backend.url), "constrained")
        out = await deltas(provider, replace(REQUEST, stream=stream))
        await provider.close()
    assert "tools" not in backend.requests[0]
    assert backend.requests[0]["response_format"]["json_schema"]["strict"] is True
    assert json.loads("".join(delta.arguments for delta in out if isinstance(delta, CallDelta))) == {"city": "Rome"}
    assert isinstance(out[-1], Finished)
    assert out[-1].finish == "tool_calls"
