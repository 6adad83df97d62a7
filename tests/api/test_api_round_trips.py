"""JSON of the specification in, the same JSON out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest

from antwort.api.decoding import Limits
from antwort.api.events import MARKS, CallEnded, Mark, StreamEvent, TurnEnded
from antwort.api.item_parsing import read_item
from antwort.api.items import ContentPart, KnownItem, OpaqueItem, OutputItem
from antwort.api.requests import read_request
from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Response, Usage
from antwort.api.tools import echo_choice
from antwort.api.wire import decode, encode, to_plain
from api.samples import CHOICES, EVENTS, ITEMS, PARTS, RESPONSE, TOOLS, Json


def named(samples: Sequence[str | Json]) -> pytest.MarkDecorator:
    """The samples, each under its type."""
    ids = [f"{i} {s['type'] if isinstance(s, dict) else s}" for i, s in enumerate(samples)]
    return pytest.mark.parametrize("sample", samples, ids=ids)


def through(sample: Json, to: Any) -> Any:
    """What is written of what was read."""
    return json.loads(encode(msgspec.json.decode(json.dumps(sample), type=to)))


def tags(union: Any) -> set[str]:
    return {str(member.__struct_config__.tag) for member in get_args(union)}


@named(PARTS)
def test_a_content_part_comes_back_as_it_went_in(sample: Json) -> None:
    assert through(sample, ContentPart) == sample


@pytest.mark.proves("CP-003")
@named(ITEMS)
def test_an_item_comes_back_as_it_went_in(sample: Json) -> None:
    assert through(sample, KnownItem) == sample


@named(ITEMS)
def test_an_item_in_a_request_comes_back_as_it_went_in(sample: Json) -> None:
    assert to_plain(read_item(sample, "input[0]", Limits())) == sample


@named(EVENTS)
def test_an_event_comes_back_as_it_went_in(sample: Json) -> None:
    assert through(sample, StreamEvent) == sample


@named(TOOLS)
def test_a_tool_comes_back_as_it_went_in(sample: Json) -> None:
    (tool,) = read_request({"tools": [sample]}, Limits()).tools
    assert json.loads(encode(tool)) == sample


@pytest.mark.proves("FR-005")
@named(CHOICES)
def test_a_tool_choice_comes_back_as_it_went_in(sample: str | Json) -> None:
    assert echo_choice(read_request({"tool_choice": sample}, Limits()).tool_choice) == sample


def test_a_response_comes_back_as_it_went_in() -> None:
    whole = {
        **RESPONSE,
        "status": "requires_action",
        "completed_at": 1700000001,
        "previous_response_id": "resp_0",
        "instructions": "be brief",
        "output": [item for item in ITEMS if item["type"] != "item_reference"],
        "tools": TOOLS,
        "tool_choice": CHOICES[-1],
        "reasoning": {"effort": "low", "summary": None},
        "usage": to_plain(Usage(input_tokens=1, output_tokens=2, total_tokens=3)),
        "metadata": {"a": "b"},
        "temperature": 0.5,
    }
    assert through(whole, Response) == whole


@pytest.mark.parametrize(
    "mark",
    [
        TurnEnded(finish="stop"),
        TurnEnded(finish="length", usage=Usage(input_tokens=1)),
        CallEnded(call_id="call_1", outcome="over_limit"),
    ],
)
def test_a_mark_of_the_run_can_be_recorded_and_read_again(mark: Mark) -> None:
    assert msgspec.json.decode(encode(mark), type=Mark) == mark
    assert isinstance(mark, MARKS)


def test_there_is_a_sample_of_everything() -> None:
    assert {part["type"] for part in PARTS} == tags(ContentPart)
    assert {item["type"] for item in ITEMS} == tags(KnownItem) == tags(OutputItem) | {"item_reference"}
    assert {event["type"] for event in EVENTS} == tags(StreamEvent)


def test_an_item_of_an_unknown_type_comes_back_as_it_went_in() -> None:
    sample = {"type": "acme:note", "id": "n_1", "text": None, "output": [1, None, {"a": None}], "deep": {"x": [2**70]}}
    item = read_item(sample, "input[0]", Limits())
    assert isinstance(item, OpaqueItem)
    assert json.loads(encode(item)) == to_plain(item) == sample


def test_decode_reads_what_encode_wrote() -> None:
    usage = Usage(input_tokens=1, input_tokens_details=InputTokensDetails(cached_tokens=1))
    assert decode(encode(usage), Usage) == usage
    assert decode(encode(usage).decode(), Usage) == usage


@pytest.mark.proves("FR-028")
def test_usage_is_added_with_its_details() -> None:
    one = Usage(
        input_tokens=1,
        output_tokens=2,
        total_tokens=3,
        input_tokens_details=InputTokensDetails(cached_tokens=4, cache_write_tokens=5),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=6),
    )
    assert to_plain(one + one + Usage()) == {
        "input_tokens": 2,
        "output_tokens": 4,
        "total_tokens": 6,
        "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 10},
        "output_tokens_details": {"reasoning_tokens": 12},
    }
