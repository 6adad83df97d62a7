"""How many tokens a request has: an estimate that learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.context import rates
from antwort.engine.context import token_counter as meters
from antwort.engine.context.text_sizes import PER_REQUEST, size_of
from antwort.engine.context.token_counter import Meter
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool, ChatToolFunction, Provider
from antwort.testing import DemoProvider, ScriptedProvider

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def request_of(*texts: str, model: str = "m", tools: int = 0) -> ChatRequest:
    offered = [ChatTool(function=ChatToolFunction(name=f"tool_{at}", description="x" * 100)) for at in range(tools)]
    messages = [ChatMessage(role="user", content=text) for text in texts]
    return (
        ChatRequest(model=model, messages=messages, tools=offered)
        if offered
        else ChatRequest(model=model, messages=messages)
    )


def meter(provider: Provider | None = None) -> Meter:
    return Meter(provider or ScriptedProvider())


def taught(rate: float, times: int = 12, text: str = "word " * 1000) -> Meter:
    """A meter that has heard of `rate` tokens for each byte, in so many conversations."""
    made = meter()
    for number in range(times):
        learn(made, rate, f"{number:>4} {text}")
    return made


def learn(made: Meter, rate: float, *texts: str, who: str = "") -> None:
    """There was a conversation of these texts, with so many tokens for each byte."""
    request = request_of(*texts)
    size = size_of(request)
    made.learn(request, round(size.text * rate) + size.fixed, who=who)


# ---- the estimate ----


def test_more_text_has_more_tokens() -> None:
    asked = [request_of("a" * size) for size in (0, 10, 1000, 100_000)]
    estimates = [meter().estimate(request) for request in asked]
    assert estimates == sorted(set(estimates))


def test_tools_are_counted() -> None:
    plain, with_tools = (meter().estimate(request_of("Hello", tools=tools)) for tools in (0, 20))
    assert with_tools > plain + 20 * 100 / 5


def test_a_picture_counts_as_one_and_not_by_its_bytes() -> None:
    bare = ChatRequest(model="m", messages=[ChatMessage(role="user", content=[{"type": "text", "text": "Look"}])])
    seeing = ChatRequest(
        model="m", messages=[ChatMessage(role="user", content=[{"type": "text", "text": "Look"}, PICTURE])]
    )
    assert meter().estimate(seeing) == meter().estimate(bare) + ATTACHMENT_TOKENS


def test_the_parts_of_an_estimate_make_up_the_whole() -> None:
    request = request_of("one " * 50, "zwei für " * 50, "三つ" * 50)
    parts = sum(meter().estimate_message("m", message) for message in request.messages)
    whole = meter().estimate(request)
    assert parts - len(request.messages) <= whole <= parts + PER_REQUEST


def test_nothing_that_is_unknown_is_taken_for_short() -> None:
    request = request_of("\N{GRINNING FACE}" * 500)
    assert meter().at_most(request) >= 2000  # a token for each byte
    assert meter().is_near(request, 1999)
    assert not meter().is_near(request, 3000)


# ---- learning ----


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.25, 0.4, 0.8, 1.0])
def test_what_a_backend_reports_is_learned(rate: float) -> None:
    request = request_of("other " * 2000)
    true = size_of(request).text * rate
    assert true <= taught(rate).estimate(request) <= true * 1.25 + 100


def test_with_experience_only_what_is_near_is_near() -> None:
    request = request_of("other " * 2000)
    assert taught(0.25).is_near(request, 3000)
    assert not taught(0.25).is_near(request, 6000)
    assert meter().is_near(request, 6000)


def test_scripts_are_learned_apart() -> None:
    made, dense = taught(0.2), request_of("日本語" * 500)
    for number in range(12):
        made.learn(request_of(f"{number:>4}" + "日本語" * 500), round(4500 * 0.7))
    assert made.estimate(request_of("word " * 1000)) < 5000 * 0.25
    assert made.estimate(dense) > 4500 * 0.65


def test_models_are_learned_apart() -> None:
    made = taught(0.1)
    assert made.estimate(request_of("x" * 1000, model="other")) == meter().estimate(request_of("x" * 1000))


@pytest.mark.parametrize("tokens", [0, 1, -5, 100])
def test_a_report_of_what_was_not_cached_is_no_report(tokens: int) -> None:
    made, request = taught(0.25), request_of("word " * 1000)
    before = made.estimate(request)
    made.learn(request, tokens)
    assert made.estimate(request) == before


def test_short_requests_and_those_with_pictures_teach_nothing() -> None:
    made, long = meter(), request_of("word " * 1000)
    before = made.estimate(long)
    made.learn(request_of("hi"), 500)
    picture = ChatMessage(role="user", content=[{"type": "text", "text": "word " * 1000}, PICTURE])
    made.learn(ChatRequest(model="m", messages=[picture]), 5000)
    assert made.estimate(long) == before


@pytest.mark.parametrize("odd", [1, 10**3, 10**9])
def test_one_odd_report_does_not_break_it(odd: int) -> None:
    made, request = taught(0.25), request_of("word " * 1000)
    before = made.estimate(request)
    made.learn(request_of("odd " * 1000), odd)
    assert made.estimate(request) == before


def test_it_remembers_only_so_many_models() -> None:
    made = meter()
    for number in range(meters._MODELS + 50):
        made.learn(request_of("word " * 1000, model=f"m{number}"), 3000)
    assert len(made._rates) == meters._MODELS
    assert "m0" not in made._rates


DIGITS = "8412973605" * 300
PROSE = "The quick brown fox jumps over it all "


def test_texts_of_another_kind_do_not_make_prose_long() -> None:
    """A page of digits has six times the tokens of a page of prose."""
    made, prose = taught(0.22, 3), request_of(PROSE * 100)
    for number in range(9):
        learn(made, 1.0, f"{number}{DIGITS}")
    assert made.estimate(prose) <= size_of(prose).text * 0.3 + 20


def test_one_client_does_not_set_the_rate_for_all() -> None:
    made, prose = meter(), request_of(PROSE * 100)
    for number in range(20):
        learn(made, 0.22, f"{number} {PROSE * 30}", who="many words")
    for number in range(500):
        learn(made, 1.0, f"{number}{DIGITS}", who="many digits")
    assert made.estimate(prose) <= size_of(prose).text * 0.3 + 20


def test_a_conversation_is_estimated_by_what_the_backend_has_said_of_it() -> None:
    made = taught(0.22)
    learn(made, 1.0, DIGITS, who="a")
    longer = request_of(DIGITS, "All right.", DIGITS[:1000])
    assert made.estimate(longer, made.factor(longer, "a")) >= 3000 + 1000 * 0.2
    assert made.factor(longer, "b") == 1.0
    assert made.factor(request_of(PROSE * 100), "a") == 1.0


def test_what_is_left_of_a_conversation_tells_of_all_of_it() -> None:
    made, whole = taught(0.22), request_of(*[DIGITS] * 5)
    made.learn(request_of(DIGITS), 3004, whole)
    assert made.estimate(whole, made.factor(whole)) == pytest.approx(15_000, rel=0.01)


def test_a_conversation_counts_once_however_long_it_goes_on() -> None:
    made, texts = taught(0.22), []
    for number in range(40):
        texts.append(f"{number}{DIGITS}")
        learn(made, 1.0, *texts)
    prose = request_of(PROSE * 100)
    assert made.estimate(prose) <= size_of(prose).text * 0.3 + 20


def test_instructions_alone_set_no_rate_for_what_is_said() -> None:
    made, prose = taught(0.22), request_of(PROSE * 100)
    made.learn(ChatRequest(model="m", messages=[ChatMessage(role="developer", content=DIGITS)]), 3004)
    assert made.factor(prose) == 1.0


def test_conversations_that_begin_alike_count_each_for_itself() -> None:
    """Clients put the same words in front of all of them."""
    made, prose = meter(), request_of(PROSE * 100)
    for number in range(20):
        learn(made, 0.5, "The folder is /home.", f"{number} {PROSE * 30}")
    assert made.estimate(prose) >= size_of(prose).text * 0.45


def test_nothing_is_worked_out_far_from_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, request = taught(0.25), request_of("word " * 1000)
    monkeypatch.delattr(rates, "_share")
    assert not made.is_near(request, 100_000)
    learn(made, 0.25, "other " * 1000)
    with pytest.raises(NameError):
        made.is_near(request, 3000)


@given(st.lists(st.text(max_size=300), max_size=8), st.floats(0.07, 1.0))
def test_an_estimate_is_never_above_what_it_is_at_most(texts: list[str], rate: float) -> None:
    for made in (meter(), taught(rate, 3)):
        request = request_of(*texts)
        assert 0 < made.estimate(request) <= made.at_most(request)


@given(st.lists(st.text(max_size=200), max_size=6), st.text(max_size=200))
def test_a_further_message_never_makes_it_less(texts: list[str], more: str) -> None:
    made = taught(0.3, 2)
    assert made.estimate(request_of(*texts, more)) > made.estimate(request_of(*texts))


# ---- the backend's count ----


async def test_a_backend_that_counts_is_believed_and_learned_from() -> None:
    made, request = meter(ScriptedProvider(counts=lambda _: 4004)), request_of("word " * 1000)
    assert await made.count(request) == 4004
    assert made.estimate(request, made.factor(request)) == pytest.approx(4004, rel=0.01)


async def test_where_nobody_counts_the_estimate_stands() -> None:
    request = request_of("word " * 1000)
    for provider in (ScriptedProvider(), DemoProvider()):
        made = meter(provider)
        assert await made.exact(request) is None
        assert await made.count(request) == made.estimate(request)
