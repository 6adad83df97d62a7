"""A server's call that a client sends back without its result. It is run only where it is certain that it was not run
yet: where the store says so, or the call still carries its id; and only as long as the model has said nothing since.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.prompt.messages import NO_RESULT
from antwort.errors import BackendUnavailable
from antwort.identity import Identity
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, SERVER, ask, engine_of, kinds, only, sent, sent_messages, server_calls
from serving import until

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
MORE: dict[str, Any] = {"role": "user", "content": "And now?"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
BOTH = [SERVER, CLOCK]


class Depot(ToolServerFake):
    def __init__(self) -> None:
        super().__init__("depot", lookup=self.look)
        self.runs = 0
        self.store = MemoryStore()

    async def look(self, _: ToolCall, __: ToolContext) -> str:
        self.runs += 1
        return "found"


def bare(item: McpCall, **changed: Any) -> dict[str, Any]:
    """As pydantic-ai sends it: what the server gave out is for the server to know."""
    shown = {"type": "mcp_call", "id": item.id, "server_label": item.server_label, "name": item.name}
    return {**shown, "arguments": item.arguments, "output": None, "error": None, **changed}


def words(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def told(provider: ScriptedProvider) -> list[tuple[str, Any]]:
    return sent_messages(provider.requests[-1])


async def paused(**more: Any) -> tuple[Depot, ScriptedProvider, Response]:
    """A turn that calls the server and the client; the depot keeps the store. Whoever is asked next calls the clock."""
    depot = Depot()
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(call("clock")), answer(say("All of it.")))
    first = await engine_of(provider, depot, store=depot.store).create(ask(tools=BOTH, **more))
    assert depot.runs == 0
    return depot, provider, first


def noon(response: Response) -> list[dict[str, Any]]:
    """The client's call of the clock, and its answer."""
    call_id = only(response, FunctionCall).call_id
    asked = {"type": "function_call", "call_id": call_id, "name": "clock", "arguments": "{}"}
    return [asked, {"type": "function_call_output", "call_id": call_id, "output": "noon"}]


async def asked_first(depot: Depot, **more: Any) -> tuple[Any, ScriptedProvider, Response]:
    provider = ScriptedProvider(answer(call("lookup")), *[answer(say("It is there.")) for _ in range(3)])
    engine = engine_of(provider, depot, store=depot.store)
    return engine, provider, await engine.create(ask(tools=[SERVER], **more))


@pytest.mark.parametrize("is_declared", [True, False], ids=["its server declared", "its server not declared"])
async def test_the_result_is_read_from_the_store(is_declared: bool) -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    second = await engine.create(ask(history, tools=[SERVER] if is_declared else []))
    assert "mcp_call" not in kinds(second)
    assert depot.runs == 1
    assert [role for role, _ in told(provider)] == ["user", "assistant", "tool", "assistant", "user"]
    assert ("tool", "found") in told(provider)


async def test_where_the_store_has_none_the_model_is_told_so_and_nothing_runs() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot, store=False)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    second = await engine.create(ask(history, tools=[SERVER]))
    assert "mcp_call" not in kinds(second)
    assert depot.runs == 1
    assert ("tool", NO_RESULT) in told(provider)


@pytest.mark.parametrize("said", [[], [words("One moment.")]], ids=["no words", "words in the same turn"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["the store knows it", "it carries its id"])
async def test_a_call_whose_turn_did_not_end_in_words_is_still_to_be_run(
    said: list[dict[str, Any]], is_stored: bool
) -> None:
    depot, provider, first = await paused(store=is_stored)
    asked = bare(only(first, McpCall)) if is_stored else to_plain(only(first, McpCall))
    await engine_of(provider, depot, store=depot.store).create(ask([HELLO, asked, *said, *noon(first)], tools=BOTH))
    assert depot.runs == 1


async def test_a_call_of_which_nothing_is_known_is_not_run() -> None:
    depot, provider, first = await paused(store=False)
    history = [HELLO, bare(only(first, McpCall)), *noon(first)]
    await engine_of(provider, depot, store=depot.store).create(ask(history, tools=BOTH))
    assert depot.runs == 0
    assert told(provider)[2:] == [("tool", NO_RESULT), ("tool", "noon")]


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_call_that_was_run_is_not_run_again_when_the_client_drops_what_shows_the_run(is_stored: bool) -> None:
    depot, provider, first = await paused(store=is_stored)
    engine = engine_of(provider, depot, store=depot.store)
    history = [HELLO, to_plain(only(first, McpCall)), *noon(first)]
    second = await engine.create(ask(history, tools=BOTH, store=is_stored))
    assert [item.output for item in server_calls(second)] == ["found"]
    await engine.create(ask([*history, *noon(second)], tools=BOTH, store=is_stored))
    assert depot.runs == 1
    results = [content for role, content in told(provider) if role == "tool"]
    assert results == ["found" if is_stored else NO_RESULT, "noon", "noon"]


async def test_what_a_call_came_to_is_found_by_a_client_that_was_shown_only_the_call() -> None:
    """The model sees one turn with two calls, as it made it."""
    depot, provider, first = await paused()
    engine = engine_of(provider, depot, store=depot.store)
    await engine.create(ask([noon(first)[-1]], previous_response_id=first.id))
    await engine.create(ask([HELLO, {"type": "item_reference", "id": only(first, McpCall).id}, *noon(first), MORE]))
    assert depot.runs == 1
    assert told(provider) == [
        ("user", "Hello"), ("assistant", None), ("tool", "found"), ("tool", "noon"), ("user", "And now?"),
    ]  # fmt: skip


async def test_what_shows_the_run_is_told_from_the_call_by_clients_that_go_by_call_ids() -> None:
    depot, provider, first = await paused()
    engine = engine_of(provider, depot, store=depot.store)
    second = await engine.create(ask([noon(first)[-1]], previous_response_id=first.id))
    asked, run = (to_plain(only(each, McpCall)) for each in (first, second))
    assert len({asked["id"], asked["call_id"], run.get("call_id", run["id"])}) == 3
    assert run["output"] == "found"


async def test_a_run_that_was_begun_is_not_begun_again() -> None:
    depot, provider, first = await paused(store=False)
    asked = only(first, McpCall)
    begun = {**bare(asked), "id": f"{asked.id}_run", "status": "incomplete"}
    history = [HELLO, to_plain(asked), *noon(first), begun]
    await engine_of(provider, depot, store=depot.store).create(ask(history, tools=BOTH))
    assert depot.runs == 0


# ---- by the id of the earlier response ----


class Stuck(Depot):
    """Its first runs do not end."""

    def __init__(self, runs: int = 1) -> None:
        super().__init__()
        self.stuck = runs

    async def look(self, _: ToolCall, __: ToolContext) -> str:
        self.runs += 1
        if self.runs <= self.stuck:
            await asyncio.Event().wait()
        return "found"


async def asked_with_arguments(depot: Depot, *then: Answer) -> tuple[Engine, ScriptedProvider, Response]:
    provider = ScriptedProvider(answer(call("lookup", key="k"), call("clock")), *then)
    engine = engine_of(provider, depot, store=depot.store)
    return engine, provider, await engine.create(ask(tools=BOTH))


def goes_on(first: Response) -> CreateRequest:
    return ask([noon(first)[-1]], previous_response_id=first.id, tools=BOTH)


async def cut_while_it_runs(engine: Engine, depot: Stuck, request: CreateRequest) -> str:
    """The client leaves; gives the id of the response."""
    run = await engine.start(request)
    await until(lambda: depot.runs == depot.stuck)
    run.leave()
    await run.wait()
    return run.response_id


async def test_the_same_continuation_sent_twice_runs_the_call_once() -> None:
    depot = Depot()
    engine, provider, first = await asked_with_arguments(depot, answer(say("Yes.")), answer(say("Yes.")))
    for _ in range(2):
        await engine.create(goes_on(first))
    assert depot.runs == 1
    assert told(provider)[2:] == [("tool", "found"), ("tool", "noon")]


async def test_a_continuation_that_failed_after_the_call_was_run_does_not_run_it_again() -> None:
    depot = Depot()
    engine, provider, first = await asked_with_arguments(
        depot, answer(BackendUnavailable("No.")), answer(say("Yes.")), answer(say("Again."))
    )
    with pytest.raises(BackendUnavailable):
        await engine.create(goes_on(first))
    second = await engine.create(goes_on(first))
    await engine.create(ask([MORE], previous_response_id=second.id, tools=BOTH))
    assert depot.runs == 1
    assert [content for role, content in told(provider) if role == "tool"] == ["found", "noon"]


@pytest.mark.parametrize("is_from_the_cut", [True, False], ids=["from what was cut", "from before it"])
async def test_a_run_that_was_cut_is_not_begun_again_by_what_continues(is_from_the_cut: bool) -> None:
    depot = Stuck()
    engine, provider, first = await asked_with_arguments(depot, *[answer(say("Yes.")) for _ in range(2)])
    cut = await cut_while_it_runs(engine, depot, goes_on(first))
    request = ask([MORE], previous_response_id=cut, tools=BOTH) if is_from_the_cut else goes_on(first)
    then = await engine.create(request)
    await engine.create(ask([MORE], previous_response_id=then.id, tools=BOTH))
    assert depot.runs == 1
    assert [content for role, content in told(provider) if role == "tool"] == [INTERRUPTED, "noon"]


async def test_of_several_runs_that_were_cut_none_is_begun_again() -> None:
    depot = Stuck(runs=2)
    provider = ScriptedProvider(answer(call("lookup"), call("lookup", key="k"), call("clock")), answer(say("Yes.")))
    engine = engine_of(provider, depot, store=depot.store)
    first = await engine.create(ask(tools=BOTH))
    cut = await cut_while_it_runs(engine, depot, goes_on(first))
    await engine.create(ask([MORE], previous_response_id=cut, tools=BOTH))
    assert depot.runs == 2


class Unasked(MemoryStore):
    """Must not be asked for single items."""

    async def items(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody needs to know")


async def test_nobody_looks_for_runs_where_no_call_is_open() -> None:
    depot = Depot()
    depot.store = Unasked()
    engine, _, first = await asked_first(depot)
    second = await engine.create(ask([MORE], previous_response_id=first.id, tools=[SERVER]))
    assert second.status == "completed"


# ---- what is left out ----


async def test_a_call_sent_without_the_id_of_its_item_is_found_by_its_call_id() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    asked = only(first, McpCall)
    sent_back = {key: value for key, value in bare(asked).items() if key != "id"} | {"call_id": asked.call_id}
    await engine.create(ask([HELLO, sent_back], tools=[SERVER]))
    assert depot.runs == 1
    assert ("tool", "found") in told(provider)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_where_turns_never_pause_no_call_of_an_input_is_open(is_stored: bool) -> None:
    depot = Depot()
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Yes.")))
    engine = engine_of(provider, depot, store=depot.store, mixed_turns="execute")
    first = await engine.create(ask(tools=BOTH, store=is_stored))
    asked = only(first, McpCall)
    history = [HELLO, bare(asked, call_id=asked.call_id), *noon(first)]
    await engine.create(ask(history, tools=BOTH, store=is_stored))
    assert depot.runs == 1
    assert ("tool", "found" if is_stored else NO_RESULT) in told(provider)


async def test_a_result_in_parts_alone_is_a_result() -> None:
    depot, provider, first = await paused(store=False)
    parts = [{"type": "input_text", "text": "in parts"}]
    history = [HELLO, {**to_plain(only(first, McpCall)), "content": parts}, *noon(first)]
    await engine_of(provider, depot, store=depot.store).create(ask(history, tools=BOTH))
    assert depot.runs == 0
    assert ("tool", "in parts") in told(provider)


# ---- calls that are none of ours ----


@pytest.mark.parametrize("since", [[words("Well.")], [MORE, words("Well."), MORE], [THOUGHT]])
async def test_an_open_call_is_left_when_the_model_has_spoken_since(since: list[dict[str, Any]]) -> None:
    depot, provider, first = await paused(store=False)
    history = [HELLO, to_plain(only(first, McpCall)), *noon(first), *since]
    await engine_of(provider, depot, store=depot.store).create(ask(history, tools=BOTH))
    assert depot.runs == 0


@pytest.mark.parametrize(
    "changed",
    [{"arguments": '{"key":"other"}'}, {"name": "list"}, {"server_label": "shed"}],
    ids=["arguments", "name", "label"],
)
async def test_a_call_that_only_goes_by_the_id_of_another_is_itself(changed: dict[str, Any]) -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    other = {**bare(only(first, McpCall)), **changed}
    await engine.create(ask([HELLO, other, words("Well."), MORE], tools=[SERVER]))
    assert ("tool", "found") not in told(provider)
    assert sent(provider.requests[-1])["messages"][1]["tool_calls"][0]["function"]["arguments"] == other["arguments"]
    await engine.create(ask([HELLO, {**other, "call_id": only(first, McpCall).call_id}], tools=[SERVER]))
    assert depot.runs == 1


async def test_a_client_may_write_the_arguments_anew() -> None:
    depot = Depot()
    provider = ScriptedProvider(answer(call("lookup", key="k")), answer(say("Yes.")), answer(say("Still.")))
    engine = engine_of(provider, depot)
    first = await engine.create(ask(tools=[SERVER]))
    history = [HELLO, bare(only(first, McpCall), arguments='{ "key" : "\\u006b" }'), words("Yes."), MORE]
    await engine.create(ask(history, tools=[SERVER]))
    assert ("tool", "found") in told(provider)


async def test_nobody_reads_the_result_of_another_tenant() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall)), words("It is there."), MORE]
    await engine.create(ask(history, tools=[SERVER]), Identity("other", "other"))
    assert ("tool", "found") not in told(provider)


async def test_an_item_of_another_kind_under_that_id_changes_nothing() -> None:
    depot = Depot()
    engine, provider, first = await asked_first(depot)
    history = [HELLO, bare(only(first, McpCall), id=first.output[-1].id), words("It is there."), MORE]
    await engine.create(ask(history, tools=[SERVER]))
    assert ("tool", NO_RESULT) in told(provider)


@pytest.mark.parametrize("between", [[words("It is there."), MORE], []], ids=["in a later turn", "side by side"])
async def test_a_call_that_asks_something_else_under_the_id_of_another_is_shown_with_its_own_result(
    between: list[dict[str, Any]],
) -> None:
    provider = ScriptedProvider(answer(say("Yes.")))
    asked = {"type": "mcp_call", "id": "mcp_1", "server_label": "depot", "name": "lookup", "arguments": "{}"}
    one, two = {**asked, "output": "one"}, {**asked, "output": "two", "arguments": '{"key":"k"}'}
    await engine_of(provider, Depot()).create(ask([HELLO, one, one, *between, two, MORE], tools=[SERVER]))
    assert [content for role, content in told(provider) if role == "tool"] == ["one", "two"]
    calls = [message.get("tool_calls", []) for message in sent(provider.requests[-1])["messages"]]
    assert [each[0]["function"]["arguments"] for each in calls if each] == ["{}", '{"key":"k"}']
