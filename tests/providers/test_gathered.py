"""An inference that is not streamed comes to the same without the streams between: said, refused, retried, counted."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendRefused,
    BackendUnavailable,
    ContextTooLong,
    RateLimited,
)
from antwort.providers.base import (
    CallDelta,
    ChatFunction,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    Heard,
    TextDelta,
    whole_of,
)
from antwort.providers.base import ChatCall as Call
from antwort.providers.base import ChatMessage as Message
from antwort.providers.chat import ChatProvider
from antwort.providers.constrained import Constrained
from antwort.providers.fleet import Fleet, Member
from antwort.providers.gathered import Gathered, gather
from antwort.providers.member import BackendStatus
from antwort.providers.resilience import Retrying
from antwort.providers.routing import Route, RouteTo, Rules
from antwort.telemetry.counting import Key
from antwort.telemetry.metrics import Metrics
from antwort.telemetry.provider import MeasuredProvider
from chat_backend import ChatBackend, Refuses, Says
from chat_kit import ANSWER, KEY, SAID, STREAM, provider_of
from fleet_kit import HEADERS, FakeBackend, Step, Time, asking, fleet_of, member_of
from replay_backend import Answer, serve, whole

ECHO = ChatTool(function=ChatToolFunction(name="echo", parameters={"type": "object"}))
CALLED = Message(role="assistant", tool_calls=[Call(id="c", function=ChatFunction(name="echo", arguments="{}"))])


class WholeBackend(FakeBackend):
    """The same, for those who want no stream."""

    began: asyncio.Event | None = None

    async def whole(self, request: ChatRequest, heard: Heard) -> list[Delta]:
        if self.began is not None:
            self.began.set()
        return await gather(self.infer(request), heard)


class Stack:
    """All that stands around backends, with what is to be seen of them afterwards."""

    def __init__(self, *backends: FakeBackend) -> None:
        self.time, self.metrics = Time(), Metrics()
        self.backends = backends
        members = [member_of(each, self.time, models=["m"]) for each in backends]
        for member in members:
            measured = MeasuredProvider(member.provider, member.name, self.metrics)
            member.provider = Constrained(measured, clock=self.time)
        self.fleet = Fleet(members, clock=self.time, later=self.time.later, random=lambda: 0.5)
        self.top = Retrying(self.fleet, sleep=self._sleep, random=lambda: 0.5, clock=self.time)

    async def _sleep(self, seconds: float) -> None:
        self.time.pass_by(seconds)


class Outcome(NamedTuple):
    said: list[Delta]
    has_answered: bool
    error: tuple[type[AntwortError], str] | None


class Traces(NamedTuple):
    outcomes: list[Outcome]
    requests: list[list[ChatRequest]]
    status: Sequence[BackendStatus]
    counted: tuple[tuple[Key, float], ...]


async def outcome(stack: Stack, request: ChatRequest) -> Outcome:
    said: list[Delta] = []
    has_answered = False
    try:
        async for batch in stack.top.infer(request):
            has_answered = True
            said += batch
    except AntwortError as error:
        return Outcome(said, has_answered, (type(error), error.message))
    return Outcome(said, has_answered, None)


async def traces(kind: type[FakeBackend], scripts: Sequence[Sequence[Sequence[Step]]], asked: ChatRequest) -> Traces:
    stack = Stack(*(kind(f"b{at}", *copy.deepcopy(each)) for at, each in enumerate(scripts)))
    assert isinstance(stack.top.infer(asked), Gathered) is (kind is WholeBackend)
    outcomes = [await outcome(stack, asked) for _ in range(3)]
    requests = [backend.requests for backend in stack.backends]
    counted = stack.metrics.inferences.read().numbers
    return Traces(outcomes, requests, stack.fleet.status(), counted)


ERRORS = (
    BackendUnavailable("away"),
    BackendUnavailable("closed", code="backend_closed"),
    BackendError("broken"),
    BackendCut("cut"),
    BackendRefused("this model does not support tools"),
    BackendRefused("no"),
    ContextTooLong("too long"),
    RateLimited("later", retry_after=0.5),
    RateLimited("much later", retry_after=60),
)
ANSWERS: tuple[list[Delta], ...] = ([TextDelta("a")], [CallDelta(0, "echo", "{}")], [TextDelta("b"), Finished("stop")])
scripts = st.lists(st.sampled_from([HEADERS, *ANSWERS, *ERRORS]), max_size=4).map(
    lambda steps: [*steps, [Finished("stop")]]
)
requests = st.sampled_from(
    [
        asking(),
        asking(tools=[ECHO]),
        asking(tools=[ECHO], tool_choice="required"),
        asking(tools=[ECHO], tool_choice="none"),
        ChatRequest(model="m", messages=[CALLED]),
    ]
)


@given(st.lists(st.lists(scripts, max_size=3), min_size=1, max_size=2), requests)
def test_a_gathered_inference_is_the_sum_of_its_stream(played: list[list[list[Step]]], asked: ChatRequest) -> None:
    assert asyncio.run(traces(WholeBackend, played, asked)) == asyncio.run(traces(FakeBackend, played, asked))


async def test_a_stream_that_is_asked_for_is_one() -> None:
    stack = Stack(WholeBackend("b"))
    batches = [batch async for batch in stack.top.infer(asking(stream=True))]
    assert batches == [[], [TextDelta("b")], [Finished("stop")]]


async def test_one_backend_that_only_streams_makes_streams_of_all() -> None:
    assert not isinstance(Stack(WholeBackend("a"), FakeBackend("b")).top.infer(asking()), Gathered)


@pytest.mark.parametrize("kind", [WholeBackend, FakeBackend])
async def test_one_that_answers_by_its_other_model_is_trusted_as_before(kind: type[FakeBackend]) -> None:
    broken: list[Step] = [BackendError("broken")]
    backend = kind("b", broken, [HEADERS, [TextDelta("a"), Finished("stop")]], broken, broken, models=["m", "n"])
    both = Route(model="m", to=(RouteTo(backend="b"), RouteTo(backend="b", model="n")))
    fleet = fleet_of(backend, rules=Rules(routes=(both,)))
    assert [batch async for batch in Retrying(fleet).infer(asking()) if batch] == [[TextDelta("a"), Finished("stop")]]
    for _ in range(2):
        with pytest.raises(BackendError):
            await anext(Retrying(fleet).infer(asking("n")))
    assert [request.model for request in backend.requests] == ["m", "n", "n", "n"]
    assert [each.state for each in fleet.status()] == ["ok"]  # it is left alone after three failures in a row


async def test_an_answer_that_came_before_the_failure_is_said_before_it() -> None:
    stack = Stack(WholeBackend("b", [HEADERS, [TextDelta("a")], BackendCut("cut")]))
    stream = stack.top.infer(asking())
    assert await anext(stream) == [TextDelta("a")]
    with pytest.raises(BackendCut):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_whoever_closes_it_hears_no_more() -> None:
    stream = Stack(WholeBackend("b", [HEADERS, BackendCut("cut")])).top.infer(asking())
    assert await anext(stream) == HEADERS
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_breaking_it_off_stops_the_backend() -> None:
    backend = WholeBackend("b", [HEADERS, asyncio.Event()])
    backend.began = asyncio.Event()
    asked = asyncio.ensure_future(anext(Stack(backend).top.infer(asking())))
    await backend.began.wait()
    assert backend.under_way
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not backend.under_way


@pytest.mark.parametrize("stream", [True, False])
async def test_over_http_both_say_the_same(stream: bool) -> None:
    async with ChatBackend(Refuses(503), Says(["Hel", "lo"])) as backend:
        provider = ChatProvider(backend.url)
        fleet = Retrying(Fleet([Member("b", provider)]), base=0)
        request = asking("test-model", **({"stream": True} if stream else {}))
        deltas = [delta async for batch in fleet.infer(request) for delta in batch]
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello"
        assert isinstance(deltas[-1], Finished)
        assert len(backend.requests) == 2
        await fleet.close()


async def test_a_stream_that_nobody_asked_for_is_read_all_the_same() -> None:
    async with ChatBackend(Says(["Hel", "lo"])) as backend:
        provider = ChatProvider(backend.url)
        ask = whole_of(provider)
        assert ask is not None
        heard: Heard = []
        last = await ask(asking("test-model", stream=True), heard)
        said = [delta for batch in (*heard, last) for delta in batch]
        assert "".join(delta.text for delta in said if isinstance(delta, TextDelta)) == "Hello"
        await provider.close()


BODY = b"".join(ANSWER.pieces)


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        ANSWER.split(7),
        whole(BODY, headers={"content-type": "application/json; charset=utf-8"}),
        whole(BODY, headers={"content-type": "text/plain"}),
        whole(BODY, 201),
        whole(b" " + BODY.replace(b'"stop"', b"null")),
        Answer((BODY,), headers={"content-type": "application/json"}, framing="chunked"),
        Answer((BODY,), headers={"content-type": "application/json"}, framing="eof"),
        STREAM,
        whole(b"".join(STREAM.pieces), headers={"content-type": "application/json; charset=utf-8, text/event-stream"}),
    ],
)
async def test_whatever_form_an_answer_has_the_same_is_heard_of_it(answer: Answer) -> None:
    async with serve(answer, answer) as backend, provider_of(backend) as provider:
        for _ in range(2):
            heard: Heard = []
            last = await provider.whole(asking(), heard)
            assert heard[0] == [], "the backend has answered"
            assert [delta for batch in (*heard, last) for delta in batch] == SAID


@pytest.mark.parametrize("form", [b"%b", b"\n%b"])
async def test_an_error_that_is_no_plain_answer_names_neither_key_nor_address(form: bytes) -> None:
    answer = whole(form % b'{"error": {"message": "sk-very-secret-1234 is not known", "code": 400}}')
    async with serve(answer) as backend, provider_of(backend, api_key=KEY) as provider:
        with pytest.raises(AntwortError) as caught:
            await provider.whole(asking(), [])
    assert KEY not in caught.value.message
