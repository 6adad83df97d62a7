"""Lists of models are parsed whatever is in them, and context lengths come from settings, lists and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import Model, Usage
from antwort.api.wire import UNSET, encode
from antwort.errors import BackendError, ContextTooLong
from antwort.providers.models import (
    LEARNED_TTL_SECONDS,
    MIN_CONTEXT_TOKENS,
    ContextLengths,
    context_length_path,
    parse_models,
    with_context_lengths,
)
from fleet_kit import Time, asking


def listed(**lengths: int | None) -> list[Model]:
    return [Model(id=name, context_length=UNSET if size is None else size) for name, size in lengths.items()]


def refusal(limit: int | None, asked: int | None = None, *, is_firm: bool = False) -> ContextTooLong:
    return ContextTooLong("too long", limit=limit, asked=asked, is_firm=is_firm)


def usage(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens)


# ---- the list ----

GOOD = {"id": "m"}


def names(told: Any) -> list[str]:
    return [model.id for model in parse_models(json.dumps(told).encode())]


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
def test_an_entry_without_a_printable_name_is_skipped(odd: Any) -> None:
    assert names({"data": [odd, GOOD]}) == ["m"]


@pytest.mark.parametrize("created", ["2024", None, -1, 1e300, 10**20, True, {}, []])
def test_an_implausible_creation_time_is_zero(created: Any) -> None:
    [model] = parse_models(json.dumps([{"id": "m", "created": created}]).encode())
    assert model.created == 0


def test_creation_time_and_owner_are_read() -> None:
    told = [{"id": "m", "created": 12.5, "owned_by": "me"}, {"id": "n", "owned_by": {}}]
    kept = [(model.created, model.owned_by) for model in parse_models(json.dumps(told).encode())]
    assert kept == [(12, "me"), (0, "antwort")]


@pytest.mark.parametrize("told", [{"data": []}, {"data": None}, {}, []])
def test_an_empty_list_is_valid(told: Any) -> None:
    assert names(told) == []


@pytest.mark.parametrize(
    "body", [b"<html>", b"7", b'{"data": 7}', b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", b'"\xff"', b""]
)
def test_an_answer_that_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(BackendError, match="list of models"):
        parse_models(body)


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"max_model_len": 32768}, 32768),
        ({"context_length": 1000, "max_model_len": 500}, 500),
        ({"context_window": 131072}, 131072),
        ({"max_context_length": 8192, "loaded_context_length": 4096}, 4096),
        ({"meta": {"n_ctx": 8192, "n_ctx_train": 131072}}, 8192),
        ({"meta": [1]}, UNSET),
        ({"max_model_len": None, "context_length": 700}, 700),
        ({"max_model_len": "4096"}, UNSET),
        ({"max_model_len": True}, UNSET),
        ({"max_model_len": -1}, UNSET),
        ({"max_model_len": 2**60}, UNSET),
        ({"max_model_len": 4096.0}, UNSET),
        ({}, UNSET),
    ],
)
def test_the_context_length_has_many_names(fields: dict[str, Any], length: Any) -> None:
    [model] = parse_models(json.dumps([{"id": "m", **fields}]).encode())
    assert model.context_length == length


# ---- endpoints of engines beside the list ----


@pytest.mark.parametrize(
    ("owners", "path"),
    [
        (["llamacpp"], "/props"),
        (["llamacpp", "llamacpp"], None),
        (["library", "me"], "/api/ps"),
        (["vllm"], None),
        ([], None),
    ],
)
def test_llama_cpp_and_ollama_have_endpoints_for_context_lengths(owners: Sequence[str], path: str | None) -> None:
    assert context_length_path([Model(id=str(at), owned_by=owner) for at, owner in enumerate(owners)]) == path


@pytest.mark.parametrize(
    ("told", "lengths"),
    [
        ({"default_generation_settings": {"n_ctx": 512}, "total_slots": 4}, {"a": 512, "b": 512}),
        ({"default_generation_settings": {"n_ctx": 0}}, {"a": 2048, "b": UNSET}),
        ({"models": [{"name": "b", "context_length": 4096}, 7, {"name": 5}]}, {"a": 2048, "b": 4096}),
        ([], {"a": 2048, "b": UNSET}),
    ],
)
def test_an_engine_endpoint_corrects_the_listed_lengths(told: Any, lengths: dict[str, Any]) -> None:
    models = with_context_lengths(listed(a=2048, b=None), json.dumps(told).encode())
    assert {model.id: model.context_length for model in models} == lengths


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)).map(encode))
def test_an_unreadable_answer_of_such_an_endpoint_changes_nothing(told: bytes) -> None:
    assert with_context_lengths(listed(a=2048, b=None), told) == listed(a=2048, b=None)


# ---- context lengths ----


def test_a_listed_length_is_known() -> None:
    lengths = ContextLengths()
    assert lengths.of("a") is None
    models = lengths.update(listed(a=4096, b=None))
    assert (lengths.of("a"), lengths.of("b"), lengths.of("c")) == (4096, None, None)
    assert [model.context_length for model in models] == [4096, UNSET]


def test_a_configured_length_takes_precedence() -> None:
    lengths = ContextLengths(1000)
    models = lengths.update(listed(a=4096, b=None))
    lengths.learn(asking("a"), refusal(512, 600, is_firm=True))
    assert {lengths.of(name) for name in "abc"} == {1000}
    assert [model.context_length for model in models] == [1000, 1000]


def test_the_only_model_of_a_backend_may_be_asked_for_by_another_name() -> None:
    lengths = ContextLengths()
    lengths.update(listed(a=4096))
    assert lengths.of("whatever") == 4096
    lengths.update(listed(a=4096, b=8192))
    assert lengths.of("whatever") is None


def test_ollama_s_models_may_be_asked_for_without_their_tag() -> None:
    lengths = ContextLengths()
    lengths.update([Model(id="qwen3:latest", context_length=4096), Model(id="other")])
    assert lengths.of("qwen3") == 4096


def test_a_model_listed_without_a_length_keeps_its_last_one() -> None:
    lengths = ContextLengths()
    lengths.update(listed(a=4096, b=8192))
    assert [model.context_length for model in lengths.update(listed(a=None, b=512))] == [4096, 512]
    lengths.update(listed(b=512, c=512))
    lengths.update(listed(a=None, c=None))
    assert (lengths.of("a"), lengths.of("b"), lengths.of("c")) == (None, None, 512)


def test_the_limit_in_a_refusal_holds_for_a_while_where_none_is_listed() -> None:
    time = Time()
    lengths = ContextLengths(clock=time)
    lengths.learn(asking("m"), refusal(2048))
    assert (lengths.of("m"), lengths.of("n")) == (2048, None)
    time.now += LEARNED_TTL_SECONDS
    assert lengths.of("m") is None


@pytest.mark.parametrize("limit", [None, 0, 9, MIN_CONTEXT_TOKENS - 1])
def test_a_refusal_without_a_plausible_limit_is_ignored(limit: int | None) -> None:
    lengths = ContextLengths()
    lengths.learn(asking("m"), refusal(limit, 5000))
    assert lengths.of("m") is None


def test_a_firm_refusal_of_a_request_that_should_fit_overrides_the_list() -> None:
    lengths = ContextLengths()
    lengths.update(listed(m=131_072))
    lengths.learn(asking("m", max_tokens=100), refusal(8192, 9000, is_firm=True))
    assert lengths.of("m") == 8192


def test_a_refusal_that_is_not_firm_does_not_override_the_list() -> None:
    lengths = ContextLengths()
    lengths.update(listed(m=131_072))
    lengths.learn(asking("m"), refusal(8192, 9000))
    assert lengths.of("m") == 131_072


@pytest.mark.parametrize("is_firm", [True, False])
def test_a_refusal_with_a_limit_below_an_answered_request_is_ignored(is_firm: bool) -> None:
    time = Time()
    lengths = ContextLengths(clock=time)
    lengths.record_answer("m", usage(3000, 500))
    lengths.record_answer("m", usage(300, 5))
    lengths.record_answer("m", None)
    lengths.learn(asking("m"), refusal(3499, 5000, is_firm=is_firm))
    lengths.learn(asking("n"), refusal(3499, 5000))
    assert (lengths.of("m"), lengths.of("n")) == (None, 3499)
    lengths.learn(asking("m"), refusal(3500, 5000))
    assert lengths.of("m") == 3500
    time.now += LEARNED_TTL_SECONDS
    lengths.learn(asking("m"), refusal(2048, 5000))
    assert lengths.of("m") == 2048


def test_an_answer_to_a_longer_request_discards_the_refusal() -> None:
    lengths = ContextLengths()
    lengths.learn(asking("m"), refusal(2048))
    lengths.record_answer("m", usage(2000, 48))
    assert lengths.of("m") == 2048
    lengths.record_answer("m", usage(2000, 49))
    assert lengths.of("m") is None


def test_a_backend_that_was_gone_may_have_come_back_smaller() -> None:
    lengths = ContextLengths()
    lengths.record_answer("m", usage(9000, 0))
    lengths.forget()
    lengths.learn(asking("m"), refusal(2048))
    assert lengths.of("m") == 2048


def test_an_implausible_listed_length_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    lengths = ContextLengths()
    for _ in range(2):
        models = lengths.update(listed(m=16, n=MIN_CONTEXT_TOKENS))
    assert [model.context_length for model in models] == [UNSET, MIN_CONTEXT_TOKENS]
    assert (lengths.of("m"), lengths.of("n")) == (None, MIN_CONTEXT_TOKENS)
    assert caplog.messages == ["a backend lists a context of 16 tokens for m, which cannot be: it is ignored"]


@pytest.mark.parametrize(
    ("wanted", "asked"), [(2045, 8), (0, 3000), (0, None)], ids=["with its answer", "by itself", "nobody knows"]
)
def test_a_refusal_that_the_list_explains_changes_nothing(wanted: int, asked: int | None) -> None:
    lengths = ContextLengths()
    lengths.update(listed(m=2048))
    lengths.learn(asking("m", max_tokens=wanted), refusal(1000, asked, is_firm=True))
    assert lengths.of("m") == 2048


def test_a_changed_list_discards_refusals() -> None:
    lengths = ContextLengths()
    lengths.update(listed(m=None))
    lengths.learn(asking("m"), refusal(2048))
    lengths.update(listed(m=None))
    assert lengths.of("m") == 2048
    lengths.update(listed(m=32_768))
    assert lengths.of("m") == 32_768


def test_refusals_of_only_so_many_models_are_remembered() -> None:
    lengths = ContextLengths()
    for number in range(1000):
        lengths.learn(asking(f"m{number}"), refusal(2048))
    assert [lengths.of(f"m{number}") for number in (0, 743, 744, 999)] == [None, None, 2048, 2048]


def test_answers_of_only_so_many_models_are_remembered() -> None:
    lengths = ContextLengths()
    for number in range(1000):
        lengths.record_answer(f"m{number}", usage(4096, 0))
    for number in (743, 744):
        lengths.learn(asking(f"m{number}"), refusal(2048))
    assert (lengths.of("m743"), lengths.of("m744")) == (2048, None)


def test_nothing_is_remembered_of_names_that_are_as_long_as_a_body() -> None:
    lengths = ContextLengths()
    lengths.record_answer("m" * 100_000, usage(4096, 0))
    lengths.learn(asking("m" * 100_000), refusal(8192))
    assert lengths.of("m" * 100_000) is None
    assert not lengths.refused
