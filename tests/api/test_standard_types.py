"""What antwort writes is what the standard's own types take; of events, what it writes under the strict setting."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

import standard
from antwort.api.decoding import Limits
from antwort.api.events import StreamEvent
from antwort.api.items import KnownItem, OutputItem
from antwort.api.requests import parse_request
from antwort.api.responses import Response, Usage
from antwort.api.standard import STANDARD
from antwort.api.tools import FunctionTool, echo_choice, echo_tool
from antwort.api.wire import encode
from api.samples import CHOICES, EVENTS, ITEMS, RESPONSE, Json

STANDARD_ITEMS = [item for item in ITEMS if item["type"] in standard.ITEMS]


def kinds(samples: list[Json]) -> list[str]:
    return [f"{i} {sample['type']}" for i, sample in enumerate(samples)]


def written(sample: Json, to: Any) -> Json:
    """The sample as antwort writes it."""
    plain: Json = json.loads(encode(msgspec.convert(sample, to)))
    return plain


def numbered(sample: Json) -> Json:
    return {**json.loads(STANDARD.encode(msgspec.convert(sample, StreamEvent))), "sequence_number": 7}


STANDARD_EVENTS = [event for event in EVENTS if numbered(event)["type"] in standard.EVENTS]


@pytest.mark.parametrize("sample", STANDARD_EVENTS, ids=kinds(STANDARD_EVENTS))
def test_an_event_is_one_of_the_standard(sample: Json) -> None:
    standard.validate_event(numbered(sample))


def test_all_events_of_the_standard_are_tried() -> None:
    assert {numbered(event)["type"] for event in STANDARD_EVENTS} == standard.EVENTS.keys()
    assert len(standard.EVENTS) == 24


@pytest.mark.parametrize("sample", STANDARD_ITEMS, ids=kinds(STANDARD_ITEMS))
def test_an_item_is_one_of_the_standard_wherever_it_stands(sample: Json) -> None:
    item = written(sample, KnownItem)
    standard.validate_item(item)
    standard.validate_response({**RESPONSE, "output": [item]})
    for kind in ("response.output_item.added", "response.output_item.done"):
        standard.validate_event(numbered({"type": kind, "output_index": 0, "item": item}))


def test_all_items_of_the_standard_are_tried() -> None:
    assert {item["type"] for item in STANDARD_ITEMS} == standard.ITEMS.keys()
    assert len(standard.ITEMS) == 5


@pytest.mark.proves("CP-022")
@pytest.mark.parametrize("status", ["queued", "in_progress", "completed", "incomplete", "failed", "requires_action"])
def test_a_response_is_one_of_the_standard(status: str) -> None:
    response = msgspec.convert({**RESPONSE, "status": status}, Response)
    usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    standard.validate_response(json.loads(encode(response)))
    standard.validate_response(json.loads(encode(msgspec.structs.replace(response, usage=usage, completed_at=1))))


STANDARD_CHOICES = [
    choice for choice in CHOICES if not any(kind in str(choice) for kind in ("mcp", "custom", "web_search"))
]


@pytest.mark.parametrize("choice", STANDARD_CHOICES, ids=str)
def test_the_echo_of_tools_and_choice_is_one_of_the_standard(choice: str | Json) -> None:
    request = parse_request(json.dumps({"tool_choice": choice}).encode(), Limits())
    echo = {"tools": [echo_tool(FunctionTool(name="add"))], "tool_choice": echo_choice(request.tool_choice)}
    standard.validate_response({**RESPONSE, **echo})


@pytest.mark.parametrize("sample", STANDARD_ITEMS, ids=kinds(STANDARD_ITEMS))
def test_what_was_written_is_taken_back_as_input(sample: Json) -> None:
    (item,) = parse_request(json.dumps({"input": [sample]}).encode(), Limits()).input
    assert item == msgspec.convert(sample, OutputItem)


# ---- the check itself ----


def without(plain: Json, key: str) -> Json:
    return {name: value for name, value in plain.items() if name != key}


@pytest.mark.parametrize("key", RESPONSE)
def test_a_response_without_one_of_its_keys_is_a_mismatch(key: str) -> None:
    with pytest.raises(ValidationError):
        standard.validate_response(without(RESPONSE, key))


@pytest.mark.parametrize(
    "wrong",
    [
        {"created_at": 1.5},
        {"created_at": "1"},
        {"output": None},
        {"tools": [{"type": "function", "name": "a"}]},
        {"tools": [{"type": "mcp", "server_label": "s"}]},
        {"object": "answer"},
        {"output": [next(item for item in ITEMS if item["type"] == "mcp_call")]},
        {"text": {"format": {"type": "text"}, "verbosity": None}},
        {"output": [{**STANDARD_ITEMS[0], "phase": None}]},
    ],
)
def test_a_response_that_is_not_the_standards_is_a_mismatch(wrong: Json) -> None:
    with pytest.raises((ValidationError, standard.StandardMismatch)):
        standard.validate_response({**RESPONSE, **wrong})


def test_an_event_without_a_number_or_of_another_name_is_a_mismatch() -> None:
    for sample in STANDARD_EVENTS:
        event = numbered(sample)
        del event["sequence_number"]
        with pytest.raises(ValidationError):
            standard.validate_event(event)
    with pytest.raises(standard.StandardMismatch, match=r"no event 'response\.reasoning_text\.delta'"):
        standard.validate_event({"type": "response.reasoning_text.delta"})
    with pytest.raises(standard.StandardMismatch, match="no item 'mcp_call'"):
        standard.validate_item({"type": "mcp_call"})


def test_null_for_an_optional_field_is_a_mismatch() -> None:
    event = numbered(next(event for event in EVENTS if event["type"] == "response.output_text.delta"))
    standard.validate_event(event)
    with pytest.raises(standard.StandardMismatch, match="logprobs"):
        standard.validate_event({**event, "logprobs": None})
