"""The life of a response in a store."""

from __future__ import annotations

import asyncio

import pytest

from antwort.api.items import FunctionCall, FunctionCallOutput, InputText, McpCall, Reasoning, ReasoningText
from antwort.api.status import FINAL, IllegalTransition, ResponseStatus
from antwort.errors import ResponseNotFound, StoreFault
from antwort.storage.base import Page, ResponseStore
from storage_cases import ME, STOPPED, asked, ended, message, tell, texts


async def test_a_response_is_found_before_its_first_inference(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    assert await store.get(ME, new.response.id) == new.response


@pytest.mark.proves("MISTAKE-02")
async def test_a_finished_response_is_given_back_whole(store: ResponseStore) -> None:
    new = asked("hello")
    output = (
        Reasoning(id="rs_1", content=(ReasoningText(text="hm"),)),
        FunctionCall(id="fc_1", call_id="call_1", name="look", arguments='{"x": 1.0}'),
        FunctionCallOutput(id="fco_1", call_id="call_1", output=(InputText(text="a"), InputText(text="b"))),
        McpCall(id="mcp_1", server_label="antwort", name="other", arguments="{}", status="failed", error="no"),
        message("done"),
    )
    await store.begin(new)
    await store.finish(ME, ended(new, *output), STOPPED)
    assert await store.get(ME, new.response.id) == ended(new, *output)


async def test_an_unknown_response_is_not_found(store: ResponseStore) -> None:
    assert await store.get(ME, "resp_none") is None
    assert await store.chain(ME, "resp_none") == ()
    assert await store.input_items(ME, "resp_none", Page()) is None
    assert not await store.delete(ME, "resp_none")


@pytest.mark.proves("MISTAKE-01", "CP-024")
@pytest.mark.parametrize("status", sorted(FINAL))
async def test_every_ending_is_kept_and_can_be_followed(store: ResponseStore, status: ResponseStatus) -> None:
    parent = await tell(store, "hello", message("hi"), status=status)
    child = await tell(store, "and?", after=parent.id)
    links = await store.chain(ME, child.id)
    assert [link.response for link in links] == [parent, child]


@pytest.mark.proves("CP-024")
async def test_an_outcome_is_written_once(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    await store.finish(ME, ended(new, message("first")), STOPPED)
    for status in sorted(FINAL):
        with pytest.raises(IllegalTransition):
            await store.finish(ME, ended(new, message("second"), status=status), STOPPED)
    found = await store.get(ME, new.response.id)
    assert found is not None
    assert found.status == "completed"
    assert texts(found.output) == ["first"]


@pytest.mark.proves("CP-024")
async def test_a_running_status_is_no_outcome(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    with pytest.raises(IllegalTransition):
        await store.finish(ME, new.response, ())


@pytest.mark.proves("CP-024")
async def test_a_response_cannot_begin_at_its_end(store: ResponseStore) -> None:
    with pytest.raises(IllegalTransition):
        await store.begin(asked("hello", status="completed"))


@pytest.mark.proves("CP-024")
async def test_a_queued_response_can_be_cancelled_and_not_completed(store: ResponseStore) -> None:
    new = asked("hello", status="queued")
    await store.begin(new)
    with pytest.raises(IllegalTransition):
        await store.finish(ME, ended(new), ())
    await store.finish(ME, ended(new, status="cancelled"), ())
    assert await store.get(ME, new.response.id) == ended(new, status="cancelled")


async def test_finishing_what_never_began_finds_nothing(store: ResponseStore) -> None:
    with pytest.raises(ResponseNotFound):
        await store.finish(ME, ended(asked("hello")), STOPPED)


async def test_an_id_can_begin_only_once(store: ResponseStore) -> None:
    first = asked("first", response_id="resp_same")
    await store.begin(first)
    with pytest.raises(StoreFault):
        await store.begin(asked("second", response_id="resp_same"))
    [link] = await store.chain(ME, "resp_same")
    assert link.request == first.request


async def test_a_response_cannot_follow_one_that_is_not_there(store: ResponseStore) -> None:
    new = asked("hello", after="resp_none")
    with pytest.raises(ResponseNotFound) as caught:
        await store.begin(new)
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")
    assert await store.get(ME, new.response.id) is None
    assert await store.items(ME, [new.input[0].id]) == {}


async def test_output_is_kept_when_the_response_is_finished_and_not_before(store: ResponseStore) -> None:
    new = asked("hello")
    early = ended(new, message("early"), status="in_progress")
    await store.begin(type(new)(identity=ME, response=early, request=b"{}", input=(), raw_input=()))
    found = await store.get(ME, new.response.id)
    assert found is not None
    assert found.output == ()


async def test_two_hundred_responses_that_begin_at_once_all_land(store: ResponseStore) -> None:
    news = [asked(f"question {number}") for number in range(200)]
    await asyncio.gather(*(store.begin(new) for new in news))
    await asyncio.gather(*(store.finish(ME, ended(new, message("yes")), STOPPED) for new in news))
    found = await asyncio.gather(*(store.get(ME, new.response.id) for new in news))
    assert [response.status for response in found if response is not None] == ["completed"] * 200


@pytest.mark.proves("RULING-15")
async def test_what_a_dead_process_left_running_becomes_failed(store: ResponseStore) -> None:
    queued, running = asked("a", status="queued"), asked("b")
    done = await tell(store, "c", message("d"))
    for new in (queued, running):
        await store.begin(new)
    assert await store.fail_running("The server stopped before the response was finished.") == 2
    for new in (queued, running):
        found = await store.get(ME, new.response.id)
        assert found is not None
        assert found.error is not None
        assert (found.status, found.completed_at) == ("failed", None)
        assert (found.error.code, found.error.message) == (
            "server_error",
            "The server stopped before the response was finished.",
        )
    assert await store.get(ME, done.id) == done
    assert await store.fail_running("again") == 0


@pytest.mark.proves("RULING-15", "CP-024")
async def test_what_was_failed_at_the_start_cannot_be_finished_later(store: ResponseStore) -> None:
    new = asked("hello")
    await store.begin(new)
    await store.fail_running("gone")
    with pytest.raises(IllegalTransition):
        await store.finish(ME, ended(new), STOPPED)


async def test_a_store_that_works_passes_its_check(store: ResponseStore) -> None:
    await store.check()


async def test_a_response_of_many_items_is_kept_whole(store: ResponseStore) -> None:
    response = await tell(store, "hello", *[message(str(number)) for number in range(1_200)])
    assert await store.get(ME, response.id) == response
