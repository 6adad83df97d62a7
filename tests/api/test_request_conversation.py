"""The conversation that a request is a turn of: in both forms that clients send."""

from __future__ import annotations

import json

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import MAX_ITEM_ID
from antwort.api.requests import CreateRequest, parse_request
from antwort.errors import InvalidField


def ask(**fields: object) -> CreateRequest:
    return parse_request(json.dumps(fields).encode(), Limits())


@pytest.mark.parametrize("form", ["conv_1", {"id": "conv_1"}, {"id": "conv_1", "object": "conversation"}])
def test_a_conversation_is_named_by_its_id_or_by_an_object_with_it(form: object) -> None:
    assert ask(input="Hello", conversation=form).conversation == "conv_1"


@pytest.mark.parametrize(
    ("form", "param", "code"),
    [
        (5, "conversation", "invalid_value"),
        (["conv_1"], "conversation", "invalid_value"),
        ("", "conversation", "invalid_value"),
        ("c" * (MAX_ITEM_ID + 1), "conversation", "invalid_value"),
        ({}, "conversation.id", "missing_required_parameter"),
        ({"id": None}, "conversation.id", "invalid_value"),
        ({"id": 5}, "conversation.id", "invalid_value"),
        ({"id": ""}, "conversation.id", "invalid_value"),
    ],
    ids=str,
)
def test_what_names_no_conversation_is_refused(form: object, param: str, code: str) -> None:
    with pytest.raises(InvalidField) as caught:
        ask(input="Hello", conversation=form)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_turn_of_a_conversation_continues_no_response_besides() -> None:
    with pytest.raises(InvalidField, match="together with 'previous_response_id'") as caught:
        ask(input="Hello", conversation="conv_1", previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("conversation", "mutually_exclusive_parameters")


def test_one_of_both_may_be_null() -> None:
    assert ask(conversation="conv_1", previous_response_id=None).conversation == "conv_1"
    assert ask(conversation=None, previous_response_id="resp_1").previous_response_id == "resp_1"
