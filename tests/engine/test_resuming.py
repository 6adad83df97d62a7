"""A run is planned anew from what is on record, whoever goes on with it, and ends properly where nobody can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import msgspec
import pytest

from antwort.api.events import CallBegun, OutputTextDelta, ResponseInProgress
from antwort.api.items import FunctionCallOutput, McpCall, McpListTools
from antwort.api.responses import Response
from antwort.api.tools import McpTool
from antwort.api.wire import encode
from antwort.crypto import Vault
from antwort.engine.history.refusals import PROCESS_LOST
from antwort.errors import StoreFault
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.base import Link
from antwort.storage.event_codec import decode_events
from antwort.testing import ScriptedProvider, answer, call, say, tokens
from antwort.tools.base import ToolDefinition, Unanswered
from antwort.tools.local import LocalExecutor
from antwort.tools.toolset import Toolset
from approval_kit import decision
from conversation_kit import begun, said, user, words
from engine_kit import WEATHER, ask, items_of, outputs, sent_messages, server_calls, text_of
from jumping_time import jumping_time
from takeover_kit import DEPOT, Depot, Log, Rows, Story, Watched, engine_on, events_of, front_of, records_of

# ---- what goes with a run ----


@jumping_time
async def test_a_run_is_made_by_whoever_has_a_place_for_it_and_stays_the_same_response() -> None:
    log, provider = Log(), ScriptedProvider(answer(say("Hello.")))
    identity = Identity(tenant="acme", owner="jo", models=("scripted",), key="laptop")
    async with front_of(log) as front, engine_on(log, provider) as other:
        asked = ask("Hi", background=True, metadata={"a": "b"}, instructions="Be brief.", temperature=0.5)
        queued = await front.create(asked, identity)
        response = await other.ended(queued.id, identity)
    assert (queued.status, queued.background, queued.metadata) == ("queued", True, {"a": "b"})
    same = msgspec.structs.replace(
        queued, status="completed", output=response.output, completed_at=response.completed_at, usage=response.usage
    )
    assert response == same
    assert sent_messages(provider.requests[0])[-1][0] == "user"
    assert [ended.plan.identity for ended in other.told] == [identity]
    assert not front.told


@jumping_time
async def test_it_goes_on_from_the_response_before_it() -> None:
    log = Log()
    provider = ScriptedProvider(answer(say("I am Al.")), answer(say("Al.")))
    async with engine_on(log, provider) as engine:
        first = await engine.create(ask("Who are you?"))
        async with front_of(log) as front:
            queued = await front.create(ask("Once more?", previous_response_id=first.id, background=True))
            await engine.ended(queued.id)
    said_before = [content for _, content in sent_messages(provider.requests[1])]
    assert said_before == ["Who are you?", "I am Al.", "Once more?"]


class Door(Depot):
    """Keeps by which declarations its tools were looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[McpTool] = []

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        self.found.append(declared)
        return await super().discover(declared, identity)


BROUGHT = {
    **DEPOT,
    "server_url": "https://tools.example.com/mcp",
    "authorization": "sesame",
    "headers": {"X-K": "open"},
}


IN_AN_ITEM = [
    {"type": "additional_tools", "role": "developer", "tools": [BROUGHT]},
    {"role": "user", "content": "Hello"},
]


@pytest.mark.parametrize("fields", [{"tools": [BROUGHT]}, {"input": IN_AN_ITEM}], ids=["tools", "additional_tools"])
@jumping_time
async def test_what_a_request_brought_to_log_in_goes_with_its_run_and_is_nowhere_in_clear(
    fields: dict[str, Any],
) -> None:
    log, door = Log(), Door()
    vault = Vault(["one secret of a vault"])
    story = Story(answer(call("look", n=1)), answer(say("Done.")))
    async with front_of(log, Depot(), vault=vault) as front, engine_on(log, story, door, vault=vault) as other:
        queued = await front.create(ask(background=True, **fields))
        [link] = await log.store.chain(ANONYMOUS, queued.id)
        response = await other.ended(queued.id)
    assert b"sesame" not in link.request + encode(link.input)
    assert b"sesame" not in encode(events_of(await records_of(log, queued.id, follow=False)))
    assert [(tool.authorization, tool.headers) for tool in door.found] == [("sesame", {"X-K": "open"})]
    assert response.status == "completed"


@pytest.mark.parametrize("fields", [{"tools": [BROUGHT]}, {"input": IN_AN_ITEM}], ids=["tools", "additional_tools"])
@jumping_time
async def test_where_that_cannot_be_opened_the_run_fails_and_says_so(fields: dict[str, Any]) -> None:
    log = Log()
    front = front_of(log, Depot(), vault=Vault(["one secret of a vault"]))
    other = engine_on(log, Story(answer(say("Done."))), Depot(), vault=Vault(["another secret of a vault"]))
    async with front, other:
        response = await other.ended((await front.create(ask(background=True, **fields))).id)
    assert response.status == "failed"
    assert response.error is not None
    assert "cannot be opened" in response.error.message
    assert "depot" in response.error.message


@jumping_time
async def test_turns_of_a_conversation_are_made_in_their_order_each_with_what_was_said_before() -> None:
    log = Log()
    provider = ScriptedProvider(answer(say("One.")), answer(say("Two.")), answer(say("Three.")))
    async with front_of(log) as front:
        conversation = await begun(front, user("Count."))
        queued = [await front.create(ask(f"Go on {n}", conversation=conversation, background=True)) for n in range(3)]
        async with engine_on(log, provider) as other:
            responses = [await other.ended(each.id) for each in queued]
        held = words(await said(log.store, conversation))
    assert [text_of(each) for each in responses] == ["One.", "Two.", "Three."]
    assert [content for _, content in sent_messages(provider.requests[2])] == [
        *("Count.", "Go on 0", "One.", "Go on 1", "Two.", "Go on 2")
    ]
    assert held == [
        *("user: Count.", "user: Go on 0", "assistant: One.", "user: Go on 1", "assistant: Two."),
        *("user: Go on 2", "assistant: Three."),
    ]


async def approved(log: Log, server: Depot, other: Watched) -> tuple[Watched, Response]:
    """A background response that acts on an approval, and who took it."""
    guarded = {**DEPOT, "require_approval": "always"}
    async with engine_on(log, ScriptedProvider(answer(call("sell", n=1))), server, at_once=0) as first:
        waits = await first.create(ask(tools=[guarded]))
        assert waits.status == "requires_action"
        request = ask([decision(waits)], previous_response_id=waits.id, tools=[guarded], background=True)
        return first, await first.create(request)


@jumping_time
async def test_what_was_approved_is_run_by_whoever_makes_the_run_and_not_taken_for_somebody_elses() -> None:
    log, server = Log(), Depot()
    other = engine_on(log, ScriptedProvider(answer(say("Sold."))), server)
    async with other:
        _, queued = await approved(log, server, other)
        response = await other.ended(queued.id)
    assert [item.output for item in items_of(response, McpCall)] == ["sell done"]
    assert list(server.ran.values()) == [1]
    assert response.status == "completed"


@jumping_time
async def test_what_was_approved_and_begun_is_not_run_by_the_next_one() -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    script = answer(say("It may be sold."))
    async with engine_on(log, ScriptedProvider(script), server) as one:
        _, queued = await approved(log, server, one)
        await server.asked.wait()
        await kill(log, queued)
        async with engine_on(log, ScriptedProvider(script), server) as other:
            response = await other.ended(queued.id)
    [shown] = items_of(response, McpCall)
    assert shown.error_text == PROCESS_LOST
    assert list(server.ran.values()) == [1]


async def kill(log: Log, response: Response) -> None:
    """Whoever makes it dies."""
    await log.kill(response.id)
    await log.bury()


@jumping_time
async def test_turns_calls_and_tokens_of_the_one_before_count() -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    story = [answer(call("look", n=n), usage=tokens(10, 5)) for n in range(9)]
    async with engine_on(log, Story(*story), server) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT], max_turns=2))
        await server.asked.wait()
        await kill(log, queued)
        server.gate.set()
        second = Story(*story)
        async with engine_on(log, second, server) as other:
            response = await other.ended(queued.id)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_turns"
    assert len(second.requests) == 1
    assert response.usage is not None
    assert response.usage.total_tokens == 30
    [told] = other.told
    assert told.turns == 2


# ---- plans ----


@jumping_time
async def test_what_cannot_be_planned_any_more_has_failed_and_says_why() -> None:
    log = Log()
    async with front_of(log) as front:
        conversation = await begun(front)
        queued = await front.create(ask(conversation=conversation, background=True))
        await front.conversations.delete(conversation)
        async with engine_on(log, ScriptedProvider()) as other:
            response = await other.ended(queued.id)
    assert response.status == "failed"
    assert response.error is not None
    assert conversation in response.error.message
    assert [ended.response for ended in other.told] == [response]


@jumping_time
async def test_what_nobody_expected_of_a_plan_ends_the_run_as_failed() -> None:
    class Broken(ScriptedProvider):
        async def models(self) -> NoReturn:
            raise ZeroDivisionError("secret")

    log = Log()
    async with front_of(log) as front:
        queued = await front.create(ask(background=True))
        async with engine_on(log, Broken()) as other:
            response = await other.ended(queued.id)
    assert response.error is not None
    assert (response.error.code, "secret" in response.error.message) == ("server_error", False)


class Shaky(Rows):
    """A store that cannot be read at first."""

    faults = 3

    async def link(self, identity: Identity, response_id: str, *, with_input: bool = True) -> Link | None:
        if self.faults:
            self.faults -= 1
            raise StoreFault("The store is away.")
        return await super().link(identity, response_id, with_input=with_input)


@jumping_time
async def test_a_store_that_cannot_be_read_is_asked_again() -> None:
    log = Log(Shaky())
    async with front_of(log) as front, engine_on(log, ScriptedProvider(answer(say("Hi.")))) as other:
        response = await other.ended((await front.create(ask(background=True))).id)
    assert response.status == "completed"


class Sleepy(Depot):
    """It does not say what it has for the first few times."""

    def __init__(self, naps: int) -> None:
        super().__init__()
        self.naps = naps

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        if self.naps:
            self.naps -= 1
            raise Unanswered("The tool server 'depot' cannot be reached.")
        return await super().discover(declared, identity)


MAPS = {"type": "mcp", "server_label": "maps", "require_approval": "never", "defer_loading": True}


def far() -> str:
    return "10 km"


@pytest.mark.parametrize("others", [[], [MAPS]], ids=["", "beside tools that are looked for"])
@jumping_time
async def test_a_server_that_the_run_has_used_is_waited_for(others: list[dict[str, object]]) -> None:
    """Without its tools, the call that waits would be nobody's, and the run would end with it open."""
    log, server, sleepy, maps = Log(), Depot(), Sleepy(5), Toolset("maps", far)
    server.gate = asyncio.Event()
    story = [answer(call("look", n=1)), answer(say("Done."))]
    async with engine_on(log, Story(*story), server, maps) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT, *others]))
        await server.asked.wait()
        await kill(log, queued)
        async with engine_on(log, Story(*story), sleepy, maps) as other:
            response = await other.ended(queued.id)
        server.gate.set()
    assert response.status == "completed"
    assert [made.output for made in server_calls(response)] == ["look done"]
    assert (sleepy.naps, sleepy.ran.total()) == (0, 1)


@jumping_time
async def test_it_is_waited_for_no_longer_than_the_run_may_take() -> None:
    server, late = Depot(), [0.0]
    log = Log()
    server.gate = asyncio.Event()
    story = [answer(call("look", n=1)), answer(say("Done."))]
    async with engine_on(log, Story(*story), server, clock=lambda: time.time() + late[0]) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT], deadline=50))
        await server.asked.wait()
        await kill(log, queued)
        late[0] += 49.9
        async with engine_on(log, Story(*story), Sleepy(10**9), clock=lambda: time.time() + late[0]) as other:
            response = await other.ended(queued.id)
        server.gate.set()
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "deadline"


@jumping_time
async def test_a_run_begins_without_a_server_that_does_not_answer_for_long() -> None:
    log = Log()
    async with front_of(log, Depot()) as front, engine_on(log, Story(answer(say("Hi."))), Sleepy(10**9)) as other:
        response = await other.ended((await front.create(ask(background=True, tools=[DEPOT]))).id)
    assert response.status == "completed"
    [listed] = [item for item in response.output if isinstance(item, McpListTools)]
    assert listed.error == "The tool server 'depot' cannot be reached."


@jumping_time
async def test_a_server_that_did_not_answer_when_the_run_was_asked_for_is_asked_again_when_it_begins() -> None:
    log, sleepy = Log(), Sleepy(3)
    async with engine_on(log, Story(answer(call("look", n=1)), answer(say("Done."))), sleepy) as engine:
        response = await engine.ended((await engine.create(ask(background=True, tools=[DEPOT]))).id)
    assert [made.output for made in server_calls(response)] == ["look done"]
    assert sleepy.naps == 0


@jumping_time
async def test_a_run_that_has_begun_without_a_server_goes_on_without() -> None:
    log, ready = Log(), asyncio.Event()
    story = answer(say("Hi."), ready)
    async with engine_on(log, Story(story), Sleepy(10**9)) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT]))
        async with aclosing(log.read(ANONYMOUS, queued.id, follow=True)) as reading:
            while not any(isinstance(event, OutputTextDelta) for event in events_of(await anext(reading))):
                pass
        await kill(log, queued)
        async with engine_on(log, Story(answer(say("Hi."))), Sleepy(10**9)) as other:
            response = await other.ended(queued.id)
        ready.set()
    assert response.status == "completed"


# ---- runs that are not gone on with ----


@jumping_time
async def test_one_that_is_cancelled_while_it_waits_never_begins() -> None:
    log, provider = Log(), ScriptedProvider()
    async with front_of(log) as front:
        queued = await front.create(ask(background=True))
        assert await log.cancel(ANONYMOUS, queued.id)
        async with engine_on(log, provider) as other:
            response = await other.ended(queued.id)
    assert response.status == "cancelled"
    events = events_of(await records_of(log, queued.id, follow=False))
    assert not any(isinstance(event, ResponseInProgress) for event in events)
    assert not provider.requests
    assert [ended.response for ended in other.told] == [response]


@jumping_time
async def test_one_over_which_too_many_were_lost_has_failed_with_all_that_it_has_said() -> None:
    log, server = Log(), Depot()
    server.gate = asyncio.Event()
    story = Story(answer(say("I look."), call("look", n=1), call("sell", n=2)), answer(say("Done.")))
    async with front_of(log, server) as front:
        queued = await front.create(ask(background=True, tools=[DEPOT]))
        for _ in range(3):
            server.asked.clear()
            async with engine_on(log, story, server):
                await server.asked.wait()
                await kill(log, queued)
        async with engine_on(log, story, server) as last:
            response = await last.ended(queued.id)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "attempts_exhausted"
    assert "3 times" in response.error.message
    assert text_of(response) == "I look."
    looked, sold = server_calls(response)
    assert sold.error_text == PROCESS_LOST
    assert looked.status in ("incomplete", "failed")
    assert sorted(server.ran.values()) == [1, 3]


@jumping_time
async def test_nothing_unsafe_that_it_has_begun_is_left_open_for_who_goes_on_from_it() -> None:
    log = Log()
    ran: list[str] = []
    begun_one, gate = asyncio.Event(), asyncio.Event()

    async def weather(city: str) -> str:
        ran.append(city)
        begun_one.set()
        await gate.wait()
        return "sunny"

    tool = LocalExecutor(weather)
    script = answer(call("weather", city="Rome"))
    async with front_of(log, tool) as front:
        queued = await front.create(ask(background=True, tools=[WEATHER]))
        async with engine_on(log, ScriptedProvider(script), tool):
            await begun_one.wait()
            await kill(log, queued)
            await log.cancel(ANONYMOUS, queued.id)
            async with engine_on(log, ScriptedProvider(answer(say("Ok."))), tool) as other:
                response = await other.ended(queued.id)
                gone_on = await other.create(ask("And?", previous_response_id=response.id, tools=[WEATHER]))
    assert response.status == "cancelled"
    assert [item.output for item in outputs(response)] == [PROCESS_LOST]
    assert ran == ["Rome"]
    assert text_of(gone_on) == "Ok."
    assert not items_of(gone_on, FunctionCallOutput)


@jumping_time
async def test_the_time_of_a_run_begins_with_its_first_claim_whoever_makes_it() -> None:
    server, late = Depot(), [0.0]
    log = Log()
    server.gate = asyncio.Event()
    async with engine_on(log, Story(answer(call("look", n=1))), server, clock=lambda: time.time() + late[0]) as one:
        queued = await one.create(ask(background=True, tools=[DEPOT], deadline=50))
        await server.asked.wait()
        await kill(log, queued)
        late[0] += 51
        async with engine_on(log, Story(), server, clock=lambda: time.time() + late[0]) as other:
            response = await other.ended(queued.id)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "deadline"
    assert list(server.ran.values()) == [1]


@jumping_time
async def test_a_tool_is_asked_only_when_that_is_on_record() -> None:
    log = Log()
    seen: list[bool] = []

    async def looks(*_: object) -> str:
        [(last,)] = await log.query("SELECT events FROM run_events ORDER BY at DESC LIMIT 1")
        seen.append(isinstance(decode_events(last)[-1], CallBegun))
        return "ok"

    story = Story(answer(call("sell", n=1)), answer(say("Done.")))
    async with engine_on(log, story, Depot(sell=looks)) as engine:
        await engine.ended((await engine.create(ask(background=True, tools=[DEPOT]))).id)
    assert seen == [True]
