"""How many tokens a request has: counted by the backend, or estimated by what it has reported."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.wire import replace
from antwort.engine.context.token_counter import (
    PER_REQUEST,
    LearnedLimit,
    Size,
    TokenEstimator,
    message_size,
    size_of,
    text_size,
)
from antwort.providers.base import (
    ATTACHMENT_TOKENS,
    ChatCall,
    ChatFunction,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Provider,
)
from antwort.testing import DemoProvider, ScriptedProvider

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
DIGITS = "8412973605" * 300
PROSE = "The quick brown fox jumps over it all "


def request_of(*texts: str, model: str = "m", tools: int = 0) -> ChatRequest:
    offered = [ChatTool(function=ChatToolFunction(name=f"tool_{at}", description="x" * 100)) for at in range(tools)]
    messages = [ChatMessage(role="user", content=text) for text in texts]
    return (
        ChatRequest(model=model, messages=messages, tools=offered)
        if offered
        else ChatRequest(model=model, messages=messages)
    )


def dialogue(*texts: str) -> ChatRequest:
    """Return a request of these texts, by the user and the model in turn."""
    roles = cycle(("user", "assistant"))
    return ChatRequest(model="m", messages=[ChatMessage(role=next(roles), content=text) for text in texts])


def estimator(provider: Provider | None = None) -> TokenEstimator:
    return TokenEstimator(provider or ScriptedProvider())


def of_tenant(made: TokenEstimator, tenant: str) -> TokenEstimator:
    return replace(made, tenant=tenant)


def taught(rate: float, times: int = 40, text: str = "word " * 1000) -> TokenEstimator:
    """Return an estimator with reports of `rate` tokens per byte from so many conversations."""
    made = estimator()
    for number in range(times):
        learn(made, rate, f"{number:>4} {text}")
    return made


def learn(made: TokenEstimator, rate: float, *texts: str) -> None:
    """Report a conversation of these texts, with so many tokens per byte."""
    request = request_of(*texts)
    size = size_of(request)
    made.learn(request, round(size.text * rate) + size.fixed, request, is_long=True)


# ---- sizes ----


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (ChatMessage(role="user", content="Hello"), Size(5, 1, 0)),
        (ChatMessage(role="user", content="Größe"), Size(7, 1, 0)),
        (ChatMessage(role="assistant", content=None), Size(0, 1, 0)),
        (ChatMessage(role="assistant", content=None, reasoning_content="Hmm", refusal="No"), Size(5, 1, 0)),
        (
            ChatMessage(
                role="assistant", tool_calls=[ChatCall(id="c", function=ChatFunction(name="f", arguments='{"a":1}'))]
            ),
            Size(8, 1, 0),
        ),
        (
            ChatMessage(
                role="user",
                content=[
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "file", "file": {"file_data": "BBBB"}},
                ],
            ),
            Size(3, 1, 2),
        ),
    ],
)
def test_all_that_is_said_in_a_message_is_counted(message: ChatMessage, size: Size) -> None:
    assert message_size(message) == size
    assert size_of(ChatRequest(model="m", messages=[message])) == size


@given(st.text(st.characters()))
def test_a_text_is_as_long_as_its_bytes(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    size = message_size(ChatMessage(role="user", content=text))
    assert text_size(text) == size.text == len(encoded)


# ---- the estimate ----


def test_more_text_has_more_tokens() -> None:
    asked = [request_of("a" * size) for size in (0, 10, 1000, 100_000)]
    estimates = [estimator().estimate(request) for request in asked]
    assert estimates == sorted(set(estimates))


def test_tools_are_counted() -> None:
    plain, with_tools = (estimator().estimate(request_of("Hello", tools=tools)) for tools in (0, 20))
    assert with_tools > plain + 20 * 100 / 5


def test_a_picture_counts_as_one_and_not_by_its_bytes() -> None:
    bare = ChatRequest(model="m", messages=[ChatMessage(role="user", content=[{"type": "text", "text": "Look"}])])
    seeing = ChatRequest(
        model="m", messages=[ChatMessage(role="user", content=[{"type": "text", "text": "Look"}, PICTURE])]
    )
    assert estimator().estimate(seeing) == estimator().estimate(bare) + ATTACHMENT_TOKENS


def test_the_parts_of_an_estimate_make_up_the_whole() -> None:
    request = request_of("one " * 50, "zwei für " * 50, "三つ" * 50)
    parts = sum(estimator().estimate_size(request, message_size(message)) for message in request.messages)
    whole = estimator().estimate(request)
    assert parts - len(request.messages) <= whole <= parts + PER_REQUEST


def test_before_any_report_a_text_may_have_a_token_for_each_byte() -> None:
    request = request_of("\N{GRINNING FACE}" * 500)
    assert estimator().is_near(request, size_of(request), 1999)
    assert not estimator().is_near(request, size_of(request), 3000)


# ---- the running mean of a model ----


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.25, 0.4, 0.8, 1.0])
def test_what_a_backend_reports_is_learned(rate: float) -> None:
    request = request_of("other " * 2000)
    assert taught(rate).estimate(request) == pytest.approx(size_of(request).text * rate, rel=0.1)


def test_a_single_report_moves_the_mean_a_little() -> None:
    made, request = taught(0.25), request_of("other " * 2000)
    before = made.estimate(request)
    learn(made, 1.0, DIGITS)
    assert before < made.estimate(request) < before * 1.5


def test_with_experience_only_what_is_near_is_near() -> None:
    request = request_of("other " * 2000)
    assert taught(0.25).is_near(request, size_of(request), 3000)
    assert not taught(0.25).is_near(request, size_of(request), 6000)
    assert estimator().is_near(request, size_of(request), 6000)


def test_models_are_learned_apart() -> None:
    made = taught(0.1)
    assert made.estimate(request_of("x" * 1000, model="other")) == estimator().estimate(request_of("x" * 1000))


def test_what_one_tenant_sends_changes_no_estimate_of_another() -> None:
    made, prose = estimator(), request_of(PROSE * 100)
    before = of_tenant(made, "prose").estimate(prose)
    for number in range(50):
        learn(of_tenant(made, "digits"), 1.0, f"{number}{DIGITS}")
    assert of_tenant(made, "digits").estimate(prose) > 2 * before
    assert of_tenant(made, "prose").estimate(prose) == before


@pytest.mark.parametrize("tokens", [0, 1, -5, 100])
def test_a_report_of_what_was_not_cached_is_no_report(tokens: int) -> None:
    made, request = taught(0.25), request_of("word " * 1000)
    before = made.estimate(request)
    made.learn(request, tokens, request, is_long=False)
    assert made.estimate(request) == before


def test_short_requests_and_those_with_pictures_teach_nothing() -> None:
    made, long = estimator(), request_of("word " * 1000)
    before = made.estimate(long)
    made.learn(request_of("hi"), 500, request_of("hi"), is_long=False)
    picture = ChatMessage(role="user", content=[{"type": "text", "text": "word " * 1000}, PICTURE])
    request = ChatRequest(model="m", messages=[picture])
    made.learn(request, 5000, request, is_long=False)
    assert made.estimate(long) == before


# ---- conversations ----


def test_a_conversation_is_estimated_by_what_the_backend_has_reported_about_it() -> None:
    made = taught(0.22)
    learn(made, 1.0, DIGITS)
    longer = [ChatMessage(role="system", content="New."), *dialogue(DIGITS, "All right.", DIGITS[:1000]).messages]
    asked = ChatRequest(model="m", messages=longer)
    assert made.estimate(asked) >= 4000
    assert of_tenant(made, "b").estimate(asked) < 1100
    assert made.estimate(request_of(PROSE * 100)) < 1300


def test_conversations_that_begin_alike_are_estimated_each_for_itself() -> None:
    made = taught(0.22)
    first, other = dialogue("Hello!", "What can I do?", DIGITS), dialogue("Hello!", "Who are you?", PROSE * 100)
    made.learn(first, 3000, first, is_long=True)
    made.learn_limit(first, 500, None)
    assert made.estimate(first) >= 3000
    assert made.estimate(other) < 1.5 * taught(0.22).estimate(other)
    assert made.learned_limit(other) is None


def test_a_conversation_is_the_same_after_its_first_answer() -> None:
    made, asked = taught(0.22), dialogue(DIGITS)
    made.learn(asked, 3000, asked, is_long=True)
    assert made.estimate(dialogue(DIGITS, "One.")) >= 3000
    assert made.estimate(dialogue(DIGITS, "One.", "Go on.", "Two.")) < 1300


def test_a_conversation_of_many_messages_without_an_answer_is_known_by_its_beginning() -> None:
    made, texts = taught(0.22), [f"{n} {DIGITS}" for n in range(1000)]
    before = made.estimate(request_of(*texts))
    learn(made, 1.0, *texts[:-1])
    assert made.estimate(request_of(*texts)) > 3 * before


def test_what_is_left_of_a_conversation_tells_of_all_of_it() -> None:
    made, whole = taught(0.22), request_of(*[DIGITS] * 5)
    before = made.estimate(whole)
    made.learn(request_of(DIGITS[:1000]), 1004, whole, is_long=True)
    assert made.estimate(whole) > 4 * before


def test_where_much_was_reported_only_long_conversations_are_learned_from() -> None:
    made, long, short = taught(0.22), request_of(PROSE * 100), request_of(DIGITS)
    before = made.estimate(long)
    made.learn(short, 3004, short, is_long=False)
    assert made.estimate(long) == before
    made.learn(short, 3004, short, is_long=True)
    assert before < made.estimate(long) < before * 2


def test_a_model_that_changes_is_learned_again_from_some_of_the_later_reports() -> None:
    made, asked = taught(0.22), request_of(PROSE * 100)
    before = made.estimate(asked)
    for _ in range(3000):
        made.learn(asked, before * 2, asked, is_long=False)
    assert made.estimate(asked) == pytest.approx(before * 2, rel=0.02)


def test_reports_that_tell_nothing_do_not_end_the_learning() -> None:
    made, asked = estimator(), request_of(PROSE * 100)
    picture = ChatRequest(model="m", messages=[ChatMessage(role="user", content=[PICTURE])])
    for _ in range(100):
        made.learn(picture, 5000, picture, is_long=False)
    before = made.estimate(asked)
    for _ in range(40):
        made.learn(asked, before * 2, asked, is_long=False)
    assert made.estimate(asked) == pytest.approx(before * 2, rel=0.05)


def test_a_learned_limit_holds_for_an_hour_in_its_conversation() -> None:
    now = [1000.0]
    made, request = TokenEstimator(ScriptedProvider(), lambda: now[0]), request_of("One.")
    made.learn_limit(request, 500, None)
    now[0] += 3599
    assert made.learned_limit(request) == LearnedLimit(500, None, 1000.0)
    assert made.learned_limit(request_of("Two.")) is of_tenant(made, "b").learned_limit(request) is None
    now[0] += 1
    assert made.learned_limit(request) is None


def test_the_next_size_lies_between_what_fits_and_what_was_refused() -> None:
    assert LearnedLimit(400).next == 400
    assert LearnedLimit(400, 1000).next == 700
    assert LearnedLimit(800, 1000).next == 800


@given(st.lists(st.text(max_size=200), max_size=6), st.text(max_size=200))
def test_a_further_message_never_makes_it_less(texts: list[str], more: str) -> None:
    made = taught(0.3, 2)
    assert made.estimate(request_of(*texts, more)) > made.estimate(request_of(*texts))


# ---- the backend's count ----


async def test_a_backend_that_counts_is_believed_and_learned_from() -> None:
    made, request = estimator(ScriptedProvider(counts=lambda _: 4004)), request_of("word " * 1000)
    assert await made.count(request) == 4004
    assert made.estimate(request) == pytest.approx(4004, rel=0.01)


async def test_where_nobody_counts_the_estimate_stands() -> None:
    request = request_of("word " * 1000)
    for provider in (ScriptedProvider(), DemoProvider()):
        made = estimator(provider)
        assert await made.exact(request, request) is None
        assert await made.count(request) == made.estimate(request)
