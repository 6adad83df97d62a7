"""A whole answer of a backend is read the same in whatever form it comes."""

from __future__ import annotations

import pytest

from antwort.errors import AntwortError, BackendError
from antwort.providers.base import Delta, Finished, TextDelta
from antwort.providers.chat import ChatProvider
from antwort.providers.fleet import Fleet, Member, Retrying
from antwort.providers.routing import Route, RouteTo, Rules
from chat_backend import ChatBackend, Refuses, Says
from chat_kit import ANSWER, KEY, SAID, STREAM, provider_of
from fleet_kit import HEADERS, FakeBackend, Step, asking, fleet_of
from replay_backend import Answer, serve, whole

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
async def test_the_same_is_read_in_whatever_form_an_answer_comes(answer: Answer) -> None:
    async with serve(answer, answer) as backend, provider_of(backend) as provider:
        for _ in range(2):
            assert [delta async for batch in provider.infer(asking()) for delta in batch] == SAID


@pytest.mark.parametrize("answer", [STREAM, ANSWER])
async def test_an_empty_batch_says_that_the_backend_has_answered_a_streamed_request(answer: Answer) -> None:
    async with serve(answer) as backend, provider_of(backend) as provider:
        batches = [batch async for batch in provider.infer(asking(stream=True))]
    assert batches[0] == []
    assert [delta for batch in batches for delta in batch] == SAID


@pytest.mark.parametrize("answer", [STREAM, ANSWER])
async def test_the_answer_to_a_request_that_is_not_streamed_is_one_batch(answer: Answer) -> None:
    async with serve(answer) as backend, provider_of(backend) as provider:
        assert [batch async for batch in provider.infer(asking())] == [SAID]


@pytest.mark.parametrize(
    ("answer", "before"), [(whole(b"{"), []), (Answer(STREAM.pieces[:1], headers=STREAM.headers), SAID[:1])]
)
async def test_a_failure_after_the_head_comes_after_all_that_was_read(answer: Answer, before: list[Delta]) -> None:
    async with serve(answer) as backend, provider_of(backend) as provider:
        batches = provider.infer(asking())
        assert await anext(batches) == before
        with pytest.raises(BackendError):
            await anext(batches)


@pytest.mark.parametrize("form", [b"%b", b"\n%b"])
async def test_an_error_under_a_200_names_neither_key_nor_address(form: bytes) -> None:
    answer = whole(form % b'{"error": {"message": "sk-very-secret-1234 is not known", "code": 400}}')
    async with serve(answer) as backend, provider_of(backend, api_key=KEY) as provider:
        with pytest.raises(AntwortError) as caught:
            _ = [batch async for batch in provider.infer(asking())]
    assert KEY not in caught.value.message


@pytest.mark.parametrize("stream", [True, False])
async def test_streamed_and_whole_answers_say_the_same_after_a_retry(stream: bool) -> None:
    async with ChatBackend(Refuses(503), Says(["Hel", "lo"])) as backend:
        fleet = Retrying(Fleet([Member("b", ChatProvider(backend.url))]), base=0)
        request = asking("test-model", **({"stream": True} if stream else {}))
        deltas = [delta async for batch in fleet.infer(request) for delta in batch]
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello"
        assert isinstance(deltas[-1], Finished)
        assert len(backend.requests) == 2
        await fleet.close()


async def test_a_backend_that_answers_for_another_of_its_models_stays_healthy() -> None:
    broken: list[Step] = [BackendError("broken")]
    backend = FakeBackend("b", broken, [HEADERS, [TextDelta("a"), Finished("stop")]], broken, broken, models=["m", "n"])
    both = Route(model="m", to=(RouteTo(backend="b"), RouteTo(backend="b", model="n")))
    fleet = fleet_of(backend, rules=Rules(routes=(both,)))
    assert [batch async for batch in fleet.infer(asking()) if batch] == [[TextDelta("a"), Finished("stop")]]
    for _ in range(2):
        with pytest.raises(BackendError):
            await anext(fleet.infer(asking("n")))
    assert [request.model for request in backend.requests] == ["m", "n", "n", "n"]
    assert [each.state for each in fleet.status()] == ["ok"]
