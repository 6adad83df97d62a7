"""Chains of responses and their branches."""

from __future__ import annotations

import pytest

from antwort.api.events import CallEnded, Mark, TurnAbandoned, TurnEnded
from antwort.api.items import FunctionCall, FunctionCallOutput, InputImage, InputText, Message
from antwort.storage.base import ResponseStore
from storage_cases import ME, asked, chain_of, ended, message, said, tell, tell_chain


@pytest.mark.proves("EN-015")
async def test_a_chain_is_told_oldest_first(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c")
    assert said(await store.chain(ME, "c")) == ["a?", "a!", "b?", "b!", "c?", "c!"]
    assert said(await store.chain(ME, "b")) == ["a?", "a!", "b?", "b!"]
    assert said(await store.chain(ME, "a")) == ["a?", "a!"]


async def test_a_link_holds_all_that_a_later_inference_needs(store: ResponseStore) -> None:
    new = asked("look twice")
    call = FunctionCall(id="fc_1", call_id="call_1", name="look", arguments="{}")
    result = FunctionCallOutput(id="fco_1", call_id="call_1", output="rain")
    response = ended(new, message("looking"), call, result, message("rain"))
    marks: list[tuple[int, Mark]] = [
        (2, TurnEnded(finish="tool_calls")),
        (3, CallEnded(call_id="call_1", outcome="ran")),
        (4, TurnEnded(finish="stop")),
    ]
    await store.begin(new)
    await store.finish(ME, response, marks)
    [link] = await store.chain(ME, response.id)
    assert link.response == response
    assert link.output == response.output
    assert (link.request, link.input, link.turn_ends) == (new.request, new.input, (2, 4))


async def test_a_link_tells_which_of_its_items_were_said_anew(store: ResponseStore) -> None:
    new = asked("look")
    response = ended(
        new, message("Let m"), message("Let"), message("Let me look."), message("It rai"), message("Rain.")
    )
    marks: list[tuple[int, Mark]] = [
        (1, TurnAbandoned(start=0)),
        (2, TurnAbandoned(start=1)),
        (3, TurnEnded(finish="tool_calls")),
        (4, TurnAbandoned(start=3)),
        (5, TurnEnded(finish="stop")),
    ]
    await store.begin(new)
    await store.finish(ME, response, marks)
    [link] = await store.chain(ME, response.id)
    assert (link.turn_ends, link.abandoned) == ((3, 5), ((0, 1), (1, 2), (3, 4)))
    assert link.output == response.output
    assert link.said() == (response.output[2], response.output[4])
    assert link.said(3) == (response.output[4],)


@pytest.mark.proves("EN-015")
async def test_the_second_to_follow_a_response_starts_a_branch(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c")
    await tell_chain(store, "b2", "b3", after="a")
    await tell_chain(store, "d", after="c")
    assert await chain_of(store, "d") == ["a", "b", "c", "d"]
    assert await chain_of(store, "b3") == ["a", "b2", "b3"]


@pytest.mark.proves("EN-015")
async def test_a_branch_of_a_branch_of_a_branch_knows_where_it_comes_from(store: ResponseStore) -> None:
    await tell_chain(store, "a", "b", "c", "d")
    await tell_chain(store, "c1", "c2", "c3", after="b")
    await tell_chain(store, "c2x", "c2y", after="c1")
    await tell_chain(store, "c2z", after="c2x")
    assert await chain_of(store, "c2z") == ["a", "b", "c1", "c2x", "c2z"]
    assert await chain_of(store, "c2y") == ["a", "b", "c1", "c2x", "c2y"]
    assert await chain_of(store, "c3") == ["a", "b", "c1", "c2", "c3"]
    assert await chain_of(store, "d") == ["a", "b", "c", "d"]


async def test_many_branches_from_one_response_stand_apart(store: ResponseStore) -> None:
    await tell_chain(store, "a")
    for name in ("b", "c", "d", "e"):
        await tell_chain(store, name, f"{name}{name}", after="a")
    for name in ("b", "c", "d", "e"):
        assert await chain_of(store, name * 2) == ["a", name, name * 2]


async def test_a_running_response_is_the_last_link_without_output(store: ResponseStore) -> None:
    await tell_chain(store, "a")
    await store.begin(asked("b?", after="a", response_id="b"))
    assert said(await store.chain(ME, "b")) == ["a?", "a!", "b?"]


@pytest.mark.proves("MISTAKE-32")
async def test_every_content_part_of_an_old_message_survives(store: ResponseStore) -> None:
    content = [
        {"type": "input_text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "input_text", "text": "this?"},
    ]
    new = asked([{"role": "user", "content": content}])
    await store.begin(new)
    [link] = await store.chain(ME, new.response.id)
    [item] = link.input
    assert isinstance(item, Message)
    assert item.content == (
        InputText(text="what is"),
        InputImage(image_url="https://example.org/a.png", detail="low"),
        InputText(text="this?"),
    )


@pytest.mark.proves("EN-015")
async def test_a_thousand_responses_are_one_chain(store: ResponseStore) -> None:
    names = [f"r{number}" for number in range(1000)]
    await tell_chain(store, *names)
    await tell(store, "branch?", message("branch!"), after="r499", response_id="branch")
    assert await chain_of(store, "r999") == names
    assert await chain_of(store, "branch") == [*names[:500], "branch"]
