"""Claims on calls and the turns of running responses: what survives in every store."""

from __future__ import annotations

import asyncio

import pytest

from antwort.api.events import CallEnded, Mark, TurnEnded
from antwort.api.items import FunctionCall, FunctionCallOutput, InputText
from antwort.api.responses import Usage
from antwort.api.status import IllegalTransition
from antwort.api.wire import replace
from antwort.errors import ConversationNotFound, ResponseNotFound
from antwort.storage.base import CallClaim, CallRecord, CallResult, NewResponse, Page, ResponseStore, Wanted
from storage_cases import COLLEAGUE, ME, STOPPED, STRANGER, asked, ended, message, open_conversation, tell

PAID = CallResult("paid")
DECLINED = CallResult("not run", is_error=True)


def claim(call_id: str, holder: str, *, by: str = "resp_2", instead_of: str | None = None) -> CallClaim:
    return CallClaim(call_id=call_id, settled_by=by, response_id=holder, instead_of=instead_of)


# ---- claims ----


async def test_the_first_claim_holds_and_the_others_see_it(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    assert await store.claim_call(ME, claim("call_1", paused.id)) is None
    assert await store.claim_call(ME, claim("call_1", paused.id, by="resp_3")) == CallRecord("resp_2", None)
    assert await store.claim_call(ME, claim("call_2", paused.id, by="resp_3")) is None


async def test_of_many_claims_at_once_one_holds(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    claims = [claim("call_1", paused.id, by=f"resp_{number}") for number in range(20)]
    found = await asyncio.gather(*(store.claim_call(ME, each) for each in claims))
    assert found.count(None) == 1
    assert {each.settled_by for each in found if each is not None} == {f"resp_{found.index(None)}"}


async def test_the_result_is_read_by_those_who_come_later(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    await store.finish_call(ME, "call_1", "resp_2", PAID)
    assert await store.claim_call(ME, claim("call_1", paused.id, by="resp_3")) == CallRecord("resp_2", PAID)
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", PAID)


async def test_a_result_of_several_parts_is_kept_whole(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    parts = CallResult((InputText(text="one"), InputText(text="two €")))
    await store.claim_call(ME, claim("call_1", paused.id))
    await store.finish_call(ME, "call_1", "resp_2", parts)
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", parts)


async def test_the_first_result_counts_and_only_that_of_the_holder(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    await store.finish_call(ME, "call_1", "resp_3", DECLINED)
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", None)
    await store.finish_call(ME, "call_1", "resp_2", PAID)
    await store.finish_call(ME, "call_1", "resp_2", DECLINED)
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", PAID)


async def test_a_declined_call_has_its_result_with_the_claim(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    declined = CallClaim(call_id="call_1", settled_by="resp_2", response_id=paused.id, result=DECLINED)
    assert await store.claim_call(ME, declined) is None
    assert await store.claim_call(ME, claim("call_1", paused.id, by="resp_3")) == CallRecord("resp_2", DECLINED)


async def test_a_claim_without_a_result_can_be_taken_over_from_its_holder(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    other = claim("call_1", paused.id, by="resp_4", instead_of="resp_3")
    assert await store.claim_call(ME, other) == CallRecord("resp_2", None)
    again = claim("call_1", paused.id, by="resp_3", instead_of="resp_2")
    assert await store.claim_call(ME, again) is None
    assert await store.call_record(ME, "call_1") == CallRecord("resp_3", None)
    await store.finish_call(ME, "call_1", "resp_3", PAID)
    late = claim("call_1", paused.id, by="resp_4", instead_of="resp_3")
    assert await store.claim_call(ME, late) == CallRecord("resp_3", PAID)


async def test_a_claim_is_its_owners(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    for other in (COLLEAGUE, STRANGER):
        assert await store.call_record(other, "call_1") is None
        await store.release_call(other, "call_1", "resp_2")
        with pytest.raises(ResponseNotFound):
            await store.claim_call(other, claim("call_1", paused.id))
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", None)


async def test_what_does_not_exist_holds_no_claim(store: ResponseStore) -> None:
    with pytest.raises(ResponseNotFound):
        await store.claim_call(ME, claim("call_1", "resp_gone"))
    with pytest.raises(ConversationNotFound):
        await store.claim_call(ME, CallClaim(call_id="call_1", settled_by="resp_2", conversation_id="conv_gone"))
    assert await store.call_record(ME, "call_1") is None


async def test_a_claim_whose_call_has_not_begun_can_be_given_up(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    await store.release_call(ME, "call_1", "resp_3")
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", None)
    await store.release_call(ME, "call_1", "resp_2")
    assert await store.claim_call(ME, claim("call_1", paused.id, by="resp_3")) is None
    await store.finish_call(ME, "call_1", "resp_3", PAID)
    await store.release_call(ME, "call_1", "resp_3")
    assert await store.call_record(ME, "call_1") == CallRecord("resp_3", PAID)


async def test_a_claim_goes_with_its_response(store: ResponseStore) -> None:
    paused = await tell(store, "hello")
    await store.claim_call(ME, claim("call_1", paused.id))
    await store.delete(ME, paused.id)
    assert await store.call_record(ME, "call_1") is None


async def test_a_claim_goes_with_its_conversation(store: ResponseStore) -> None:
    conversation = await open_conversation(store, "Hello")
    held = CallClaim(call_id="call_1", settled_by="resp_2", conversation_id=conversation.id)
    assert await store.claim_call(ME, held) is None
    assert await store.call_record(ME, "call_1") == CallRecord("resp_2", None)
    await store.delete_conversation(ME, conversation.id)
    assert await store.call_record(ME, "call_1") is None


# ---- turns of a running response ----

CALL = FunctionCall(id="fc_1", call_id="call_1", name="pay", arguments="{}", status="completed")
RESULT = FunctionCallOutput(id="fco_1", call_id="call_1", output="paid")
TURN: tuple[tuple[int, Mark], ...] = (
    (1, TurnEnded(finish="tool_calls", usage=Usage(input_tokens=3))),
    (2, CallEnded(call_id="call_1", outcome="ran")),
)


async def one_turn(store: ResponseStore) -> NewResponse:
    new = asked("hello")
    await store.begin(new)
    running = replace(new.response, output=(CALL, RESULT), usage=Usage(input_tokens=3))
    await store.record_turn(ME, running, TURN)
    return new


async def test_a_recorded_turn_is_seen_while_the_response_runs(store: ResponseStore) -> None:
    new = await one_turn(store)
    found = await store.get(ME, new.response.id)
    assert found is not None
    assert (found.status, found.output, found.usage) == ("in_progress", (CALL, RESULT), Usage(input_tokens=3))
    assert (await store.items(ME, ["fco_1"])) == {"fco_1": RESULT}


async def test_a_recorded_turn_survives_its_process(store: ResponseStore) -> None:
    new = await one_turn(store)
    assert await store.fail_running("The server was stopped.") == 1
    (link,) = await store.chain(ME, new.response.id)
    assert (link.response.status, link.output, link.turn_ends) == ("failed", (CALL, RESULT), (1,))


async def test_the_end_of_a_response_adds_to_its_recorded_turns(store: ResponseStore) -> None:
    new = await one_turn(store)
    words = message("Done.", "msg_1")
    response = ended(new, CALL, RESULT, words)
    await store.finish(ME, response, (*TURN, (3, TurnEnded(finish="stop"))))
    assert await store.get(ME, new.response.id) == response
    (link,) = await store.chain(ME, new.response.id)
    assert (link.output, link.turn_ends) == ((CALL, RESULT, words), (1, 3))
    assert (await store.items(ME, ["fc_1", "msg_1"])) == {"fc_1": CALL, "msg_1": words}


async def test_turns_are_recorded_one_after_the_other(store: ResponseStore) -> None:
    new = await one_turn(store)
    second, result = replace(CALL, id="fc_2", call_id="call_2"), replace(RESULT, id="fco_2", call_id="call_2")
    running = replace(new.response, output=(CALL, RESULT, second, result))
    marks = (*TURN, (3, TurnEnded(finish="tool_calls")), (4, CallEnded(call_id="call_2", outcome="ran")))
    await store.record_turn(ME, running, marks, 2)
    (link,) = await store.chain(ME, new.response.id)
    assert (link.output, link.turn_ends) == ((CALL, RESULT, second, result), (1, 3))


async def test_nothing_is_recorded_of_a_response_that_has_ended_or_is_gone(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    response = ended(new, message("Done."))
    await store.finish(ME, response, STOPPED)
    with pytest.raises(IllegalTransition):
        await store.record_turn(ME, replace(new.response, output=(CALL, RESULT)), TURN)
    assert await store.get(ME, new.response.id) == response
    await store.delete(ME, new.response.id)
    with pytest.raises(ResponseNotFound):
        await store.record_turn(ME, new.response, TURN)
    assert (await store.responses(ME, Page(), Wanted())).responses == ()
