"""What becomes of a response whose conversation is longer than the model's context."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antwort.api.responses import Response
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.context.window import Window
from antwort.engine.engine import Engine
from antwort.engine.loop.call_display import Shown
from antwort.engine.loop.turn import Turn
from antwort.errors import ContextTooLong
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta, Finished, TextDelta
from antwort.testing.demo import words_in
from antwort.testing.scripted import answer, call, say, tokens
from compaction_kit import threshold
from engine_kit import WEATHER, ask, engine_of, kinds, sent_messages, stream, text_of, weather_tool
from fitting_kit import CUT, GONE, PICTURE, user
from fitting_kit import text_of as said_in
from serving import until
from window_kit import SmallModel, words

AUTO: dict[str, Any] = {"truncation": "auto"}


async def chat(engine: Engine, turns: int, each: int = 40, **fields: Any) -> list[Response]:
    """A conversation of so many turns, of so many words each."""
    said: list[Response] = []
    for n in range(turns):
        before = said[-1].id if said else None
        request = ask(f"turn-{n} {words(each)}", previous_response_id=before, **AUTO, **fields)
        said.append((await stream(engine, request)).response)
    return said


# ---- auto ----


@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_a_conversation_three_times_the_context_goes_on(has_tokenizer: bool) -> None:
    model = SmallModel(400, has_tokenizer=has_tokenizer)
    responses = await chat(engine_of(model), 30, instructions="Be brief.")
    assert {response.status for response in responses} == {"completed"}
    assert {response.truncation for response in responses} == {"auto"}
    last = sent_messages(model.requests[-1])
    assert last[0] == ("system", "Be brief.")
    assert last[1][1].startswith(GONE)
    assert last[-1] == ("user", f"turn-29 {words(40)}")
    assert len(last) > 6
    assert len(model.refused) == 0
    assert len(model.requests) == 30


async def test_the_cut_stays_for_several_turns() -> None:
    """So that the backend can go on from what it has read."""
    model = SmallModel(1000)
    await chat(engine_of(model), 60)
    first = [sent_messages(request)[0] for request in model.requests if said_in(request.messages[0]).startswith(GONE)]
    assert len(first) > 30
    assert len({text for _, text in first}) <= len(first) / 2


async def test_nobody_is_asked_to_count_far_from_the_end() -> None:
    model = SmallModel(4000)
    await chat(engine_of(model), 5)
    assert model.counted == 0
    assert len(model.requests[-1].messages) == 9


async def test_tool_results_that_overflow_the_context_between_two_turns_are_shortened() -> None:
    steps = [answer(call("weather", city=f"city-{n}")) for n in range(8)]
    model = SmallModel(400, *steps, answer(say("Done.")))
    engine = engine_of(model, weather_tool(answer=words(150, "wind")), max_turns=20)
    outcome = await stream(engine, ask("The task.", tools=[WEATHER], **AUTO))
    assert (outcome.response.status, text_of(outcome.response)) == ("completed", "Done.")
    assert not model.refused
    last = [(role, str(text)) for role, text in sent_messages(model.requests[-1])]
    assert last[0][1].startswith("The task.")
    assert any(CUT.search(text) for role, text in last if role == "tool")
    shown = [item for item in outcome.response.output if "wind149" in str(item)]
    assert len(shown) == 8, "what the client sees is whole"


@pytest.mark.parametrize("says_limit", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
async def test_a_refusal_for_length_is_met_with_less_where_nobody_knows_the_context(
    says_limit: bool, is_late: bool
) -> None:
    model = SmallModel(400, length=None)
    model.says_limit, model.refuses_late = says_limit, is_late
    responses = await chat(engine_of(model), 12)
    assert {response.status for response in responses} == {"completed"}
    assert model.refused
    assert sent_messages(model.requests[-1])[-1] == ("user", f"turn-11 {words(40)}")


async def test_a_context_that_is_smaller_than_it_is_said_to_be_is_found_out() -> None:
    model = SmallModel(300, length=100_000)
    responses = await chat(engine_of(model), 12)
    assert {response.status for response in responses} == {"completed"}


async def test_the_longest_answer_is_no_longer_than_what_is_left() -> None:
    model = SmallModel(400)
    await engine_of(model).create(ask(words(200), max_output_tokens=390, **AUTO))
    assert model.requests[-1].max_tokens == 200
    await engine_of(model).create(ask(words(10), max_output_tokens=50, **AUTO))
    assert model.requests[-1].max_tokens == 50


async def test_a_quarter_of_the_context_at_most_is_kept_for_the_answer() -> None:
    model = SmallModel(400)
    engine = engine_of(model, reserve=10_000)
    first = await engine.create(ask(words(100), **AUTO))
    await engine.create(ask(words(150), previous_response_id=first.id, **AUTO))
    assert len(model.requests[-1].messages) == 3
    await engine.create(ask(words(280), previous_response_id=first.id, **AUTO))
    assert len(model.requests[-1].messages) == 1


async def test_the_last_message_may_take_what_is_kept_for_the_answer() -> None:
    """What would be sent without truncation is not refused with it."""
    model = SmallModel(400)
    first = await engine_of(model).create(ask(words(390), **AUTO))
    assert first.status == "completed"


async def test_what_does_not_fit_whatever_is_left_out_is_refused_with_numbers() -> None:
    model = SmallModel(400)
    with pytest.raises(ContextTooLong) as raised:
        await engine_of(model).create(ask(words(500), **AUTO))
    assert raised.value.message == (
        "The input has 500 tokens, and the model's context has 400. All that can be left out is left out. Shorten the "
        "last message, the instructions or the tools."
    )
    assert not model.requests
    assert not model.refused


async def test_what_the_backend_refuses_to_the_end_is_told_in_its_words() -> None:
    model = SmallModel(400, length=None)
    with pytest.raises(ContextTooLong, match="The backend says: too long"):
        await engine_of(model).create(ask(words(5000), **AUTO))
    assert len(model.refused) <= 5


async def test_the_definitions_of_tools_take_room_as_well() -> None:
    model = SmallModel(2000, has_tokenizer=False)
    said = [{"role": role, "content": words(20, f"{n}-")} for n in range(14) for role in ("user", "assistant")]
    many = [{**WEATHER, "name": f"tool_{n}", "description": "d" * 300} for n in range(9)]
    for tools in ([], many):
        await engine_of(model).create(ask([*said, {"role": "user", "content": "So?"}], tools=tools, **AUTO))
    assert len(model.requests[0].messages) == 29
    assert 3 < len(model.requests[1].messages) < 29


async def test_a_log_line_says_how_much_was_left_out_and_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antwort.engine")
    await chat(engine_of(SmallModel(400)), 12)
    records = [record for record in caplog.records if record.message.startswith("truncated")]
    assert records
    assert re.fullmatch(r"truncated to fit the context: 1\d messages left out, 0 shortened", records[-1].message)
    assert records[-1].__dict__["fields"]["context_length"] == 400
    assert "word1" not in caplog.text


PROSE = "The quick brown fox jumps over it all "


def dialogue(text: str, turns: int) -> list[dict[str, Any]]:
    """A conversation of so many turns, each of which says this text twice, and a question."""
    said = [{"role": role, "content": f"{n} {text}"} for n in range(turns) for role in ("user", "assistant")]
    return [*said, {"role": "user", "content": "So?"}]


class Bytes(SmallModel):
    """It has a token for each digit, and one for five other characters, and nobody can ask how many there are."""

    def __init__(self, context: int, **fields: Any) -> None:
        super().__init__(10**9, length=context, has_tokenizer=False, **fields)
        self.room = context
        self.reports_usage = True

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        texts = "".join(said_in(message) for message in request.messages)
        digits = sum(character.isdigit() for character in texts)
        read = digits + (len(texts) - digits) // 5
        if read >= self.room:
            self.refused.append(request)
            limit = self.room if self.says_limit else None
            raise ContextTooLong("The backend says: too long.", param="input", limit=limit)
        self.requests.append(request)
        yield [TextDelta("All right."), Finished("stop", tokens(read, 5) if self.reports_usage else None)]


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_odd_texts_of_others_do_not_make_what_fits_too_long(truncation: str) -> None:
    model = Bytes(8192)
    engine = engine_of(model)
    for n in range(8):
        await engine.create(ask(f"{n}" + "8412973605" * 300), Identity(tenant="digits"))
    said = [{"role": role, "content": PROSE * 40} for _ in range(9) for role in ("user", "assistant")]
    await engine.create(ask([*said, {"role": "user", "content": "So?"}], truncation=truncation))
    assert len(model.requests[-1].messages) == 19


async def test_a_conversation_of_dense_text_is_refused_once_and_then_known() -> None:
    model = Bytes(2000)
    engine, before = engine_of(model), None
    for n in range(6):
        request = ask(f"{n}" + "8412973605" * 60, previous_response_id=before, **AUTO)
        before = (await engine.create(request)).id
    assert len(model.refused) <= 1
    assert len(model.requests[-1].messages) >= 3


async def prose(engine: Engine) -> None:
    for n in range(40):
        await engine.create(ask(f"{n} {PROSE * 20}"))


@pytest.mark.parametrize("length", [2000, None], ids=["a known context", "an unknown context"])
@pytest.mark.parametrize("says_limit", [True, False], ids=["with a number", "without"])
async def test_a_conversation_that_is_denser_than_all_others_goes_on_with_less(
    length: int | None, says_limit: bool
) -> None:
    model = Bytes(2000)
    model.length, model.says_limit = length, says_limit
    engine, before = engine_of(model), None
    await prose(engine)
    for n in range(20):
        request = ask(f"{n}" + "8412973605" * 60, previous_response_id=before, **AUTO)
        response = await engine.create(request)
        before = response.id
        assert response.status == "completed"
    assert len(model.refused) <= 1
    is_known = length is not None or says_limit
    assert len(model.requests[-1].messages) >= (3 if is_known else 1)


@pytest.mark.parametrize("reports_usage", [True, False])
async def test_what_was_refused_to_a_conversation_of_dense_text_leaves_others_whole(reports_usage: bool) -> None:
    model = Bytes(4000)
    model.length, model.says_limit, model.reports_usage = None, False, reports_usage
    engine = engine_of(model)
    dense, said = dialogue("8412973605" * 40, 10), dialogue(PROSE * 10, 20)
    for _ in range(2):
        await engine.create(ask(dense, **AUTO))
    assert model.refused
    for _ in range(5):
        await engine.create(ask(said, **AUTO))
        assert len(model.requests[-1].messages) == 41


async def test_a_conversation_that_is_denser_than_all_others_is_compacted_before_it_is_too_long() -> None:
    model = Bytes(2000)
    engine, before, compacted = engine_of(model, compaction_keep=200), None, []
    for n in range(20):
        for _ in range(3):
            await engine.create(ask(f"{n} {PROSE * 140}"))
        request = ask(f"{n} " + "8412973605" * 15, previous_response_id=before, context_management=[threshold(1500)])
        response = await engine.create(request)
        before = response.id
        assert response.status == "completed"
        compacted += [n] * (kinds(response)[0] == "compaction")
    assert len(compacted) in (1, 2)
    assert not model.refused


async def test_a_number_that_goes_against_what_is_known_holds_for_one_inference() -> None:
    """It may be that of a small backend which has stood in for a larger one."""
    model = SmallModel(300, length=2000)
    engine, said = engine_of(model), long_talk(10)
    await engine.create(ask(said, **AUTO))
    assert len(model.requests[-1].messages) < 21
    model.context = 2000
    await engine.create(ask(said, **AUTO))
    assert len(model.requests[-1].messages) == 21


# ---- refusals without a number ----


def long_talk(turns: int) -> list[dict[str, Any]]:
    said = [{"role": role, "content": words(40, f"{n}-")} for n in range(turns) for role in ("user", "assistant")]
    return [*said, {"role": "user", "content": "So?"}]


@pytest.mark.parametrize("turns", [6, 60, 450])
async def test_a_conversation_many_times_as_long_as_the_context_goes_on_though_nobody_says_how_long_that_is(
    turns: int,
) -> None:
    model = SmallModel(400, length=None, has_tokenizer=False)
    model.says_limit = False
    response = await engine_of(model).create(ask(long_talk(turns), **AUTO))
    assert response.status == "completed"
    assert len(model.refused) <= 5


async def test_the_next_turn_does_not_pay_for_it_again() -> None:
    model = SmallModel(400, length=None, has_tokenizer=False)
    model.says_limit = False
    engine, said = engine_of(model), long_talk(30)
    refused: list[int] = []
    for n in range(10):
        await engine.create(ask(said, **AUTO))
        refused.append(len(model.refused))
        said += [{"role": "assistant", "content": "All right."}, {"role": "user", "content": f"{n} {words(20)}"}]
    assert refused[0] >= 2
    assert refused[-1] - refused[0] <= 2, "it is only tried whether more fits"
    assert refused[-1] == refused[-4]
    sent = words_in(model.requests[-1])
    assert 100 < sent <= 400


async def test_a_context_that_is_said_to_be_longer_than_it_is_is_refused_a_few_times_and_then_known() -> None:
    model = SmallModel(400, length=1000, has_tokenizer=False)
    model.says_limit = False
    engine, said = engine_of(model), long_talk(30)
    refused: list[int] = []
    for n in range(8):
        await engine.create(ask(said, **AUTO))
        refused.append(len(model.refused))
        said += [{"role": "assistant", "content": "All right."}, {"role": "user", "content": f"{n} {words(20)}"}]
    assert refused[0] >= 1
    assert refused[2] == refused[-1] <= 5


async def test_what_was_refused_to_one_leaves_others_alone() -> None:
    model = SmallModel(400, length=None, has_tokenizer=False)
    model.says_limit = False
    engine = engine_of(model)
    await engine.create(ask(long_talk(30), **AUTO), Identity(tenant="other"))
    already = len(model.refused)
    await engine.create(ask(long_talk(4), **AUTO))
    assert len(model.requests[-1].messages) == 9
    assert len(model.refused) == already


async def test_the_same_is_never_sent_twice() -> None:
    model = SmallModel(400, length=None)
    model.says_limit = False
    with pytest.raises(ContextTooLong, match="The backend says: too long"):
        await engine_of(model).create(ask([*long_talk(3), {"role": "user", "content": words(500)}], **AUTO))
    sizes = [words_in(request) for request in model.refused]
    assert sizes == sorted(set(sizes), reverse=True)


async def test_the_cost_of_two_requests_is_not_taken_for_that_of_one() -> None:
    estimator, sent = TokenEstimator(SmallModel(400)), ChatRequest(model="m", messages=[user(words(500))])
    before = estimator.estimate(sent)
    turn = Turn(0, lambda _: Shown(""))
    turn.feed(Finished("stop", tokens(500, 5) + tokens(500, 5), is_sum=True))
    Window(estimator=estimator, length=None).learn(sent, sent, turn.usage)
    assert estimator.estimate(sent) == before


# ---- disabled ----


async def test_too_much_is_refused_before_the_backend_is_asked() -> None:
    model = SmallModel(400)
    with pytest.raises(ContextTooLong) as raised:
        await engine_of(model).create(ask(words(500)))
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "context_length_exceeded", "input")
    assert raised.value.message == (
        "The input has 500 tokens, and the model's context has 400. Shorten it, or let the oldest turns be left out "
        "with 'truncation': 'auto'."
    )
    assert not model.requests
    assert not model.refused


async def test_what_is_only_estimated_is_refused_where_it_is_far_above() -> None:
    model = SmallModel(400, has_tokenizer=False)
    with pytest.raises(ContextTooLong, match="about"):
        await engine_of(model).create(ask(words(4000)))
    assert not model.refused
    with pytest.raises(ContextTooLong, match="The backend says"):
        await engine_of(model).create(ask(words(401)))
    assert len(model.refused) == 1


async def test_an_estimate_refuses_nothing_that_may_fit() -> None:
    """Whatever was learned, and though the text is mostly gaps."""
    model = Bytes(8192)
    engine = engine_of(model)
    for n in range(40):
        await engine.create(ask(f"{n}" + "8412973605" * 300))
    await engine.create(ask(PROSE * 900))
    model.room = 10**9
    await engine.create(ask(("x" + " " * 200) * 1000))
    assert not model.refused


async def test_nothing_is_refused_for_what_a_picture_may_have() -> None:
    model = SmallModel(400)
    parts = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": PICTURE["image_url"]["url"]}]
    response = await engine_of(model).create(ask([{"role": "user", "content": parts}]))
    assert response.status == "completed"


async def test_nothing_is_ever_left_out() -> None:
    model = SmallModel(400)
    engine = engine_of(model)
    first = await engine.create(ask(words(300)))
    with pytest.raises(ContextTooLong):
        await engine.create(ask(words(200), previous_response_id=first.id))
    assert first.truncation == "disabled"


async def test_an_overflow_between_two_turns_fails_the_response_with_that_code() -> None:
    model = SmallModel(400, answer(call("weather", city="Rome")))
    engine = engine_of(model, weather_tool(answer=words(500)))
    response = (await stream(engine, ask("Weather?", tools=[WEATHER]))).response
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "context_length_exceeded"
    assert await engine.retrieve(ANONYMOUS, response.id) == response
    assert len(model.requests) == 1


# ---- both ----


async def test_the_setting_holds_for_requests_that_do_not_say() -> None:
    model = SmallModel(400)
    engine = engine_of(model, truncation="auto")
    first = await engine.create(ask(words(250)))
    second = await engine.create(ask(words(250), previous_response_id=first.id))
    assert (second.truncation, second.status) == ("auto", "completed")
    with pytest.raises(ContextTooLong):
        await engine.create(ask(words(250), previous_response_id=second.id, truncation="disabled"))


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_a_count_that_takes_long_is_broken_off_with_the_run(truncation: str) -> None:
    model = SmallModel(400)
    model.hold = asyncio.Event()
    engine = engine_of(model)
    run = await engine.start(ask(words(500), truncation=truncation))
    await until(lambda: model.counted == 1)
    response = await engine.cancel(ANONYMOUS, run.response_id)
    assert response.status == "cancelled"
    assert (model.requests, model.waiting) == ([], 0)
