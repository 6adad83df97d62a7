"""The record: there before the first inference, committed before the last event, true whatever happens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antwort.api.events import Mark, ResponseFailed
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.errors import ResponseNotFound, StoreFault
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest
from antwort.storage.base import Entry, NewResponse, PackedLog, Page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import CLOCK, SERVER, WEATHER, ask, engine_of, outputs, replies, stream, text_of, weather_tool


class BrokenStore(MemoryStore):
    """A memory store that fails where it is told to."""

    def __init__(self, *, at: str) -> None:
        super().__init__()
        self._at = at

    def mend(self) -> None:
        self._at = "nowhere"

    async def begin(self, new: NewResponse) -> None:
        if self._at == "begin":
            raise StoreFault("The disk is full.")
        await super().begin(new)

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        if self._at == "finish":
            raise StoreFault("The disk is full.")
        if self._at == "unexpected":
            raise ZeroDivisionError("secret")
        await super().finish(identity, response, marks, entries, approvals, log)

    async def check(self) -> None:
        raise StoreFault("The disk is full.")


@pytest.mark.proves("CP-018")
async def test_responses_are_kept_unless_told_otherwise() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))))
    response = await engine.create(ask())
    assert response.store is True
    assert await engine.retrieve(ANONYMOUS, response.id) == response


@pytest.mark.proves("CP-033")
async def test_with_store_false_nothing_is_kept() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))))
    response = await engine.create(ask(store=False))
    assert (response.status, response.store) == ("completed", False)
    with pytest.raises(ResponseNotFound):
        await engine.retrieve(ANONYMOUS, response.id)
    with pytest.raises(ResponseNotFound):
        await engine.input_items(ANONYMOUS, response.id, Page())
    with pytest.raises(ResponseNotFound):
        await engine.create(ask(previous_response_id=response.id))


@pytest.mark.proves("MISTAKE-02")
async def test_the_row_is_there_before_the_first_inference() -> None:
    store = MemoryStore()
    seen: list[Response | None] = []

    class Looking(ScriptedProvider):
        async def infer(self, request: ChatRequest):  # type: ignore[no-untyped-def]
            (new,) = started
            seen.append(await store.get(ANONYMOUS, new))
            async for deltas in super().infer(request):
                yield deltas

    started: list[str] = []
    engine = engine_of(Looking(answer(say("Hi"))), store=store)
    run = await engine.start(ask())
    started.append(run.response_id)
    await run.result()
    assert [response and response.status for response in seen] == ["in_progress"]


@pytest.mark.proves("MISTAKE-02", "MISTAKE-01")
async def test_the_record_is_committed_when_the_terminal_event_goes_out() -> None:
    store = MemoryStore()
    engine = engine_of(ScriptedProvider(answer(call("clock"))), weather_tool(), store=store)
    async for event in engine.respond(ask(tools=[CLOCK])):
        last = event
        if type(event).__name__ == "ResponseCompleted":
            stored = await store.get(ANONYMOUS, event.response.id)  # type: ignore[union-attr]
            assert stored is not None
            assert stored.status == "requires_action"
    assert last.response.status == "requires_action"  # type: ignore[union-attr]


async def test_a_store_that_cannot_begin_fails_the_request_before_any_inference() -> None:
    provider = ScriptedProvider(answer(say("Hi")))
    with pytest.raises(StoreFault, match=r"The disk is full\."):
        await engine_of(provider, store=BrokenStore(at="begin")).create(ask())
    assert provider.requests == []


@pytest.mark.proves("MISTAKE-02")
async def test_a_store_that_cannot_finish_turns_completed_into_failed_under_the_same_number() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))), store=BrokenStore(at="finish"))
    outcome = await stream(engine, ask())
    assert isinstance(outcome.events[-1], ResponseFailed)
    assert outcome.response.error is not None
    assert (outcome.response.error.code, outcome.response.error.message) == ("storage_error", "The disk is full.")
    assert (text_of(outcome.response), outcome.response.completed_at) == ("Hi", None)


@pytest.mark.proves("MISTAKE-02", "RULING-6")
async def test_an_end_that_could_not_be_written_is_written_when_somebody_asks() -> None:
    store = BrokenStore(at="finish")
    engine = engine_of(ScriptedProvider(answer(say("Hi")), answer(say("Again"))), store=store)
    first = await engine.create(ask())
    assert first.status == "failed"
    with pytest.raises(StoreFault):
        await engine.retrieve(ANONYMOUS, first.id)
    store.mend()
    assert await engine.retrieve(ANONYMOUS, first.id) == first
    second = await engine.create(ask("Go on.", previous_response_id=first.id))
    assert second.status == "completed"


@pytest.mark.proves("RULING-6")
async def test_a_follow_up_finds_the_end_of_its_parent_written() -> None:
    store = BrokenStore(at="finish")
    engine = engine_of(ScriptedProvider(answer(say("Hi")), answer(say("Again"))), store=store)
    first = await engine.create(ask())
    store.mend()
    assert (await engine.create(ask("Go on.", previous_response_id=first.id))).status == "completed"


async def test_credentials_of_a_request_are_not_kept() -> None:
    store = MemoryStore()
    depot = ToolServerFake("depot", lookup=replies("found"))
    engine = engine_of(ScriptedProvider(answer(say("Hi"))), depot, store=store)
    secret = {
        **SERVER,
        "authorization": "sesame",
        "headers": {"X-Key": "sesame"},
        "server_url": "https://u:sesame@x/?k=sesame",
    }
    response = await engine.create(ask(tools=[secret]))
    (link,) = await store.chain(ANONYMOUS, response.id)
    assert b'"authorization"' not in link.request
    assert b'"headers"' not in link.request
    assert "sesame" not in str(response.tools)


async def test_a_store_that_breaks_in_an_unexpected_way_tells_no_secrets() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))), store=BrokenStore(at="unexpected"))
    response = await engine.create(ask())
    assert response.status == "failed"
    assert response.error is not None
    assert "secret" not in response.error.message


async def test_readiness_names_the_part_that_is_missing() -> None:
    engine = engine_of(ScriptedProvider(), store=BrokenStore(at="nowhere"))
    assert await engine.check() == {"store": "The disk is full.", "backend": "ok"}


@pytest.mark.proves("RULING-15")
async def test_rows_that_a_dead_process_left_running_are_failed_at_the_next_start() -> None:
    store = MemoryStore()
    engine = engine_of(ScriptedProvider(answer(say("Hi"))), store=store)
    run = await engine.start(ask())
    later = engine_of(ScriptedProvider(), store=store)
    await later.open()
    stored = await later.retrieve(ANONYMOUS, run.response_id)
    assert stored.status == "failed"
    assert stored.error is not None
    response = await run.result()
    assert response.status == "failed", "a run that lost its row does not claim to have completed"


async def test_the_turns_of_a_response_are_on_record() -> None:
    store = MemoryStore()
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny.")))
    engine = engine_of(provider, weather_tool(), store=store)
    response = await engine.create(ask(tools=[WEATHER]))
    (link,) = await store.chain(ANONYMOUS, response.id)
    assert link.turn_ends == (1, 3)
    assert len(outputs(response)) == 1
