"""What a client sent is given back with the fields that nobody here knows; what is sealed for us is not."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits, at_once
from antwort.api.items import FunctionCall, OpaqueItem
from antwort.api.requests import added_steps
from antwort.api.resources import Conversation
from antwort.api.wire import encode, to_plain
from antwort.storage.base import Entry, Page, ResponseStore
from storage_cases import ME, asked

CALLER = {"type": "program", "caller_id": "call_0"}
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "Hi", "id": "msg_1", "x_mood": {"good": [True, None]}},
    {"type": "program", "id": "prog_1", "call_id": "call_0", "code": "1+1", "fingerprint": "f"},
    {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "caller": CALLER},
    {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "1", "caller": CALLER, "name": "f"},
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "d", "name": "g", "input": "x", "caller": None},
    {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "d", "output": "2", "caller": {"type": "direct"}},
    {"type": "acme:mood", "id": "mood_1", "level": 3},
    {"type": "function_call", "id": "fc_2", "call_id": "e", "name": "f", "arguments": "{}"},
]
WRITTEN: list[dict[str, Any]] = [
    {**ITEMS[0], "content": [{"type": "input_text", "text": "Hi"}], "status": "completed"},
    ITEMS[1],
    *({**item, "status": "completed"} for item in ITEMS[2:6]),
    ITEMS[6],
    {**ITEMS[7], "status": "completed"},
]
IN_ORDER = Page(limit=100, order="asc")


@pytest.mark.proves("RULING-20")
async def test_input_items_keep_callers_and_all_other_fields_and_their_order(store: ResponseStore) -> None:
    new = asked(ITEMS)
    await store.begin(new)
    page = await store.input_items(ME, new.response.id, IN_ORDER)
    assert page is not None
    assert [to_plain(item) for item in page.items] == WRITTEN
    assert isinstance(page.items[-1], FunctionCall), "what is known whole is what it is"
    [link] = await store.chain(ME, new.response.id)
    assert isinstance(link.input[2], FunctionCall), "and what is said before is understood"


async def test_so_do_the_items_of_a_conversation(store: ResponseStore) -> None:
    items, raw = at_once(added_steps(ITEMS, Limits()))
    entries = [Entry(item=item, raw=given) for item, given in zip(items, raw, strict=True)]
    await store.begin_conversation(ME, Conversation(id="conv_1", created_at=1), entries[:4])
    added = await store.add_entries(ME, "conv_1", entries[4:])
    assert added is not None
    assert [to_plain(item) for item in added] == WRITTEN[4:]
    page = await store.conversation_items(ME, "conv_1", IN_ORDER)
    assert page is not None
    assert [to_plain(item) for item in page.items] == WRITTEN
    assert to_plain(await store.conversation_item(ME, "conv_1", "fc_1")) == WRITTEN[2]
    assert await store.delete_entry(ME, "conv_1", "fc_1")
    assert await store.conversation_item(ME, "conv_1", "fc_1") is None


async def test_what_is_sealed_in_an_item_is_there_for_us_alone(store: ResponseStore) -> None:
    shown = {"type": "additional_tools", "role": "developer", "tools": [], "id": "at_1"}
    item = OpaqueItem("additional_tools", "at_1", {**shown, "antwort_credentials": {"tools": [], "sealed": "x"}})
    entry = Entry(item=item, raw=encode(item))
    await store.begin_conversation(ME, Conversation(id="conv_1", created_at=1), [entry])
    assert await store.said(ME, "conv_1") == (item,)
    page = await store.conversation_items(ME, "conv_1", IN_ORDER)
    assert page is not None
    assert [to_plain(each) for each in page.items] == [shown]
