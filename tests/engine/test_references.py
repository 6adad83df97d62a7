"""References to items of earlier responses, and ids that clients make: across responses, and for nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpCall, Message, Reasoning
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.engine import Engine
from antwort.errors import ItemNotFound
from antwort.identity import ANONYMOUS, Identity
from antwort.ids import new_id
from antwort.storage.base import Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think
from engine_kit import CLOCK, SERVER, ask, only, replies, sent, sent_messages

USER: dict[str, Any] = {"role": "user", "content": "And?"}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    opened = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "antwort.db")
    yield opened
    await opened.close()


def engine_on(store: ResponseStore, provider: ScriptedProvider) -> Engine:
    return Engine(provider, store=store, executors=[ToolServerFake("depot", lookup=replies("found"))])


async def made(store: ResponseStore, /, *parts: Any, identity: Identity = ANONYMOUS, **fields: Any) -> Response:
    """A response whose model says just that."""
    request = ask(**{"tools": [SERVER, CLOCK], **fields})
    return await engine_on(store, ScriptedProvider(answer(*parts), answer(say("Done.")))).create(request, identity)


async def shown(store: ResponseStore, /, *items: Any, identity: Identity = ANONYMOUS, **fields: Any) -> list[Any]:
    """The messages that the model sees of these items."""
    provider = ScriptedProvider(answer(say("Ok.")))
    await engine_on(store, provider).create(ask([*items], **{"tools": [SERVER, CLOCK], **fields}), identity)
    messages: list[Any] = sent(provider.requests[0])["messages"]
    return messages


def ref(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


# ---- what they stand for ----


@pytest.mark.parametrize("shape", [ref, lambda item_id: {"id": item_id}, lambda item_id: {"type": None, "id": item_id}])
async def test_an_answer_of_another_response(store: ResponseStore, shape: Any) -> None:
    first = await made(store, say("Rome."))
    messages = await shown(store, USER, shape(only(first, Message).id), USER)
    assert [(message["role"], message["content"]) for message in messages] == [
        *(("user", "And?"), ("assistant", "Rome."), ("user", "And?")),
    ]


async def test_reasoning_and_a_call_and_then_its_result(store: ResponseStore) -> None:
    """As the AI SDK goes on after a tool of the client's: references, and the result as it is."""
    first = await made(store, think("Hm."), call("clock"))
    asked = only(first, FunctionCall)
    result = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    messages = await shown(store, USER, ref(only(first, Reasoning).id), ref(asked.id), result)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[1]["tool_calls"][0]["function"]["name"] == "clock"
    assert messages[2]["content"] == "noon"


async def test_a_call_of_a_server_with_its_result(store: ResponseStore) -> None:
    first = await made(store, call("lookup", key="a"))
    messages = await shown(store, USER, ref(only(first, McpCall).id), USER)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[2]["content"] == "found"


async def test_an_item_of_an_input(store: ResponseStore) -> None:
    await made(store, say("Hm."), input=[{"role": "user", "content": "In Rome.", "id": "msg_mine"}])
    (message,) = await shown(store, ref("msg_mine"))
    assert message == {"role": "user", "content": "In Rome."}


async def test_an_item_of_a_kind_nobody_knows(store: ResponseStore) -> None:
    await made(store, say("Hm."), input=[USER, {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {}}])
    messages = await shown(store, ref("sh_1"), {"type": "shell_call_output", "call_id": "c", "output": "ok"})
    assert [message["role"] for message in messages] == ["assistant", "tool"]


async def test_the_same_item_twice(store: ResponseStore) -> None:
    first = await made(store, say("Rome."))
    said = ref(only(first, Message).id)
    messages = await shown(store, said, USER, said)
    assert [message["content"] for message in messages] == ["Rome.", "And?", "Rome."]


async def test_a_reference_is_kept_as_the_item_it_stands_for(store: ResponseStore) -> None:
    first = await made(store, say("Rome."))
    said = only(first, Message)
    engine = engine_on(store, ScriptedProvider(answer(say("Ok."))))
    second = await engine.create(ask([ref(said.id)]))
    page = await engine.input_items(ANONYMOUS, second.id, Page())
    assert page.items == (said,)


# ---- what is not there ----


async def refused(store: ResponseStore, item_id: str, identity: Identity = ANONYMOUS) -> None:
    with pytest.raises(ItemNotFound) as caught:
        await shown(store, USER, ref(item_id), identity=identity)
    assert (caught.value.status, caught.value.code) == (404, "item_not_found")
    assert caught.value.param == "input[1].id"


async def test_items_of_a_deleted_response_are_gone(store: ResponseStore) -> None:
    first = await made(store, say("Rome."), input=[{"role": "user", "content": "Where?", "id": "msg_mine"}])
    await engine_on(store, ScriptedProvider()).delete(ANONYMOUS, first.id)
    await refused(store, only(first, Message).id)
    await refused(store, "msg_mine")


async def test_items_of_a_response_that_was_not_stored_are_not_known(store: ResponseStore) -> None:
    first = await made(store, say("Rome."), store=False)
    await refused(store, only(first, Message).id)


@pytest.mark.parametrize("stranger", [Identity("other"), Identity("default", "bob")])
async def test_items_of_others_are_not_there(store: ResponseStore, stranger: Identity) -> None:
    first = await made(store, say("Rome."), input=[{"role": "user", "content": "Where?", "id": "msg_mine"}])
    await refused(store, only(first, Message).id, stranger)
    await refused(store, "msg_mine", stranger)


async def test_a_reference_is_looked_up_though_a_call_beside_it_has_the_same_id(store: ResponseStore) -> None:
    bare = {"type": "mcp_call", "id": "m_1", "server_label": "depot", "name": "lookup", "arguments": "{}"}
    with pytest.raises(ItemNotFound) as caught:
        await shown(store, ref("m_1"), bare)
    assert caught.value.param == "input[0].id"


# ---- ids that clients make ----


async def test_an_id_may_be_used_again_and_the_newest_is_meant(store: ResponseStore) -> None:
    for text in ("One.", "Two."):
        await made(store, say("Hm."), input=[{"role": "user", "content": text, "id": "msg_1"}])
    (message,) = await shown(store, ref("msg_1"))
    assert message["content"] == "Two."


async def test_an_id_may_stand_twice_in_one_conversation(store: ResponseStore) -> None:
    twice = [{"role": "user", "content": text, "id": "msg_1"} for text in ("One.", "Two.")]
    first = await made(store, say("Hm."), input=twice)
    messages = await shown(store, {**USER, "id": "msg_1"}, previous_response_id=first.id)
    assert [message["content"] for message in messages] == ["One.", "Two.", "Hm.", "And?"]


async def test_an_id_that_another_tenant_uses_is_free(store: ResponseStore) -> None:
    for tenant in ("a", "b"):
        given = [{"role": "user", "content": f"For {tenant}.", "id": "msg_1"}]
        await made(store, say("Hm."), input=given, identity=Identity(tenant))
    for tenant in ("a", "b"):
        (message,) = await shown(store, ref("msg_1"), identity=Identity(tenant))
        assert message["content"] == f"For {tenant}."


async def test_a_long_id_is_kept_and_found(store: ResponseStore) -> None:
    item_id = "msg_" + "ä" * 508
    first = await made(store, say("Hm."), input=[{**USER, "id": item_id}])
    page = await engine_on(store, ScriptedProvider()).input_items(ANONYMOUS, first.id, Page())
    assert [item.id for item in page.items] == [item_id]
    assert (await shown(store, ref(item_id)))[0]["content"] == "And?"


async def test_one_call_under_an_id_that_stands_twice_is_run_once(store: ResponseStore) -> None:
    asked = {"type": "mcp_call", "id": "m_1", "server_label": "depot", "name": "lookup", "arguments": "{}"}
    asked["call_id"] = new_id("call")
    provider = ScriptedProvider(answer(say("Ok.")))
    response = await engine_on(store, provider).create(ask([USER, asked, asked], tools=[SERVER]))
    assert only(response, McpCall).output == "found"
    assert [role for role, _ in sent_messages(provider.requests[0])] == ["user", "assistant", "tool"]


async def test_what_was_sent_comes_back_as_it_was_sent(store: ResponseStore) -> None:
    """With the phase of an answer, and whatever else this version does not send on."""
    given = [
        {"type": "message", "role": "assistant", "id": "msg_1", "content": "Look.", "phase": "commentary"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    ]
    first = await made(store, say("Hm."), input=given)
    page = await engine_on(store, ScriptedProvider()).input_items(ANONYMOUS, first.id, Page(order="asc"))
    said, search = (to_plain(item) for item in page.items)
    assert (said["phase"], said["id"]) == ("commentary", "msg_1")
    assert search == given[1]
    assert all("phase" not in message for message in await shown(store, USER, previous_response_id=first.id))
