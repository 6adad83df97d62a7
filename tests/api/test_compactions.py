"""Reading what asks for a compaction, and compactions that come back."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits, at_once
from antwort.api.item_parsing import read_item
from antwort.api.items import Compaction, OpaqueItem
from antwort.api.requests import CompactRequest, as_compaction, compaction_steps, read_request
from antwort.api.wire import encode
from antwort.errors import InvalidField


def parsed(**fields: Any) -> CompactRequest:
    return at_once(compaction_steps(encode(fields), Limits()))


def test_the_fields_of_the_standard_are_read_and_nothing_is_stored() -> None:
    request = parsed(
        model="m", input="Hi", previous_response_id="resp_1", instructions="Be brief.", prompt_cache_key="k", store=True
    )
    assert (request.model, request.previous_response_id, request.instructions) == ("m", "resp_1", "Be brief.")
    assert (request.prompt_cache_key, request.is_stored, len(request.input)) == ("k", False, 1)


def test_what_else_a_request_has_does_not_count() -> None:
    given = {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "f"}], "stream": True}
    request = as_compaction(read_request(given, Limits()))
    assert (request.tools, request.stream, request.tool_choice) == ((), None, "auto")


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
@pytest.mark.parametrize("item_id", [{}, {"id": None}, {"id": "cmp_1"}], ids=["no id", "null", "its own"])
def test_a_compaction_is_read_by_any_of_its_names(kind: str, item_id: dict[str, Any]) -> None:
    item = read_item({"type": kind, "encrypted_content": "zz", "internal": None, **item_id}, "input[0]", Limits())
    assert isinstance(item, Compaction)
    assert item.encrypted_content == "zz"
    assert item.id == (item_id.get("id") or item.id)


def test_another_name_without_content_is_none_of_ours() -> None:
    item = read_item({"type": "context_compaction"}, "input[0]", Limits())
    assert isinstance(item, OpaqueItem)


def test_a_compaction_may_be_longer_than_a_part() -> None:
    item = read_item({"type": "compaction", "encrypted_content": "z" * 100}, "input[0]", Limits(part_bytes=10))
    assert isinstance(item, Compaction)


def test_without_its_content_it_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        read_item({"type": "compaction"}, "input[0]", Limits())
    assert caught.value.param == "input[0].encrypted_content"
