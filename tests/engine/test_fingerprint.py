"""When two requests with the same key are the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import Limits
from antwort.api.items import ItemReference, Message
from antwort.api.requests import CreateRequest, parse_request
from antwort.api.wire import replace
from antwort.engine.runs.idempotency import checked_key, fingerprint
from antwort.errors import RequestError

BODY: dict[str, Any] = {"model": "m", "input": "Grüße", "metadata": {"a": "1", "b": "2"}, "temperature": 1.5}


def read(body: bytes | str | dict[str, Any]) -> CreateRequest:
    written = json.dumps(body) if isinstance(body, dict) else body
    return parse_request(written if isinstance(written, bytes) else written.encode(), Limits())


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(BODY, indent=2),
        json.dumps(BODY, ensure_ascii=False),
        json.dumps(dict(reversed(BODY.items()))),
        json.dumps({**BODY, "metadata": {"b": "2", "a": "1"}}),
        json.dumps(BODY).replace("1.5", "15e-1"),
    ],
)
def test_how_a_request_is_written_does_not_matter(body: str) -> None:
    assert fingerprint(read(body)) == fingerprint(read(BODY))


@pytest.mark.parametrize(
    "change",
    [{"input": "grüße"}, {"stream": True}, {"stream": None}, {"unknown": 1}, {"temperature": 1.25}, {"metadata": {}}],
)
def test_what_a_request_says_does(change: dict[str, Any]) -> None:
    assert fingerprint(read({**BODY, **change})) != fingerprint(read(BODY))


def test_the_order_of_a_list_does() -> None:
    items = [{"role": "user", "content": text} for text in ("a", "b")]
    assert fingerprint(read({"input": items})) != fingerprint(read({"input": items[::-1]}))


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("100", "1e2"), ("0", "-0.0"), (f"{10**30}", f"{10**30}")])
def test_a_number_is_the_same_in_any_form(one: str, other: str) -> None:
    assert fingerprint(read(f'{{"input":"x","x":{one}}}')) == fingerprint(read(f'{{"input":"x","x":{other}}}'))


def test_it_tells_nothing_of_what_was_said_and_has_one_length() -> None:
    assert {len(fingerprint(read({"input": "x" * size}))) for size in (1, 10_000)} == {32}


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-2, 2), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same, with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(each, chance) for each in value] if isinstance(value, list) else value


@given(plain, plain, st.randoms(use_true_random=False))
def test_two_bodies_are_the_same_if_and_only_if_their_values_are(one: Any, other: Any, chance: random.Random) -> None:
    first, again, second = (
        fingerprint(read({"input": "x", "x": value})) for value in (one, shuffled(one, chance), other)
    )
    assert first == again
    assert (first == second) == (json.dumps(normal(one), sort_keys=True) == json.dumps(normal(other), sort_keys=True))


def normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_requests_that_a_program_put_together_are_told_apart() -> None:
    one, other = (CreateRequest(input=(Message(id="msg_1", role="user", content=()),), model=name) for name in "ab")
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


def test_a_request_that_was_changed_since_it_came_is_another() -> None:
    came = read({**BODY, "input": [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_1"}]})
    changes: list[dict[str, Any]] = [
        {"instructions": "Be brief."},
        {"input": read({"input": "Delete everything"}).input},
        {"input": (came.input[0], ItemReference(id="msg_2"))},
        {"temperature": None},
        {"metadata": {"a": "2", "b": "1"}},
        {"tools": read({"input": "x", "tools": [{"type": "mcp", "server_label": "depot"}]}).tools},
    ]
    assert len({fingerprint(came), *(fingerprint(replace(came, **change)) for change in changes)}) == 1 + len(changes)


def test_an_id_that_was_made_for_an_item_says_nothing() -> None:
    came = read(BODY)
    one, other = (replace(came, input=read({"input": "Changed"}).input) for _ in range(2))
    assert one.input[0] != other.input[0]
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("key", ["k", "8e03978e-40d5-43e8-bc93-6894a57f9324", "!~", "x" * 255])
def test_a_key_is_visible_ascii(key: str) -> None:
    assert checked_key(key) == key


@pytest.mark.parametrize("key", ["", " ", "a b", "a\tb", "a\n", "é", "\x7f", "\x00", "x" * 256])
def test_anything_else_is_a_400_that_names_the_header(key: str) -> None:
    with pytest.raises(RequestError, match="Idempotency-Key") as caught:
        checked_key(key)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_idempotency_key", None)
