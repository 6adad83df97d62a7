"""One odd entry costs nobody the rest of the list, and no name does more than name a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.errors import BackendError
from antwort.providers.listing import listed_models

GOOD = {"id": "m"}


def names(told: Any) -> list[str]:
    return [model.id for model in listed_models(json.dumps(told).encode())]


@pytest.mark.parametrize(
    "told", [{"data": [GOOD]}, {"models": [GOOD]}, [GOOD], {"data": ["m"]}, {"data": [{"name": "m"}]}]
)
def test_a_list_is_read_in_every_shape(told: Any) -> None:
    assert names(told) == ["m"]


@pytest.mark.parametrize(
    "odd",
    [
        {"id": 5},
        {"id": None},
        {"id": ""},
        {"id": ["m"]},
        {},
        7,
        None,
        {"id": "m\x1b[2J\nfake"},
        {"id": "m\u202e"},
        {"id": "x" * 1000},
    ],
)
def test_an_entry_without_a_name_that_can_be_shown_is_passed_over(odd: Any) -> None:
    assert names({"data": [odd, GOOD]}) == ["m"]


@pytest.mark.parametrize("created", ["2024", None, -1, 1e300, 10**20, True, {}, []])
def test_a_time_that_is_none_is_zero(created: Any) -> None:
    [model] = listed_models(json.dumps([{"id": "m", "created": created}]).encode())
    assert model.created == 0


def test_what_a_model_tells_of_itself_is_kept() -> None:
    told = [{"id": "m", "created": 12.5, "owned_by": "me"}, {"id": "n", "owned_by": {}}]
    kept = [(model.created, model.owned_by) for model in listed_models(json.dumps(told).encode())]
    assert kept == [(12, "me"), (0, "antwort")]


@pytest.mark.parametrize("told", [{"data": []}, {"data": None}, {}, []])
def test_an_empty_list_is_one(told: Any) -> None:
    assert names(told) == []


@pytest.mark.parametrize(
    "body", [b"<html>", b"7", b'{"data": 7}', b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", b'"\xff"', b""]
)
def test_what_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(BackendError, match="list of models"):
        listed_models(body)
