"""What a refusal says of the context: how much fits, and how much there was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import ContextTooLong
from antwort.providers.failures import error_for, error_in
from antwort.providers.overflow import asked_in, is_overflow, limit_in, number
from replay_backend import CASES

VLLM = "This model's maximum context length is 2048 tokens."
SGLANG = "Requested token count exceeds the model's maximum context length of 1000 tokens."
WORDS = [
    (f"{VLLM} However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).", 2048, 112946),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 8193 tokens.", 8192, 8193),
    ("This model's maximum context length is 4097 tokens, however you requested 4203 tokens.", 4097, 4203),
    (f"{VLLM} However, your request has 8 input tokens plus 2045 'max_tokens'.", 2048, 8),
    ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", 40960, 61709),
    (f"{SGLANG} You requested a total of 1200 tokens: 1100 tokens from the input messages and 100 more", 1000, 1100),
    ("Input length (5000) exceeds model's maximum context length (4096).", 4096, 5000),
    ("prompt is too long: 208,310 tokens > 200,000 maximum", 200_000, 208_310),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200000),
    ("`inputs` must have less than 1024 tokens. Given: 2000", 1024, 2000),
    ("the model is loaded with context length of only 4096 tokens, which is not enough", 4096, None),
    ("The prompt is too long.", None, None),
]


@pytest.mark.parametrize(("words", "limit", "asked"), WORDS)
def test_a_refusal_tells_how_much_fits_and_how_much_there_was(words: str, limit: int | None, asked: int | None) -> None:
    assert is_overflow(words)
    error = error_for(400, {}, json.dumps({"error": {"message": words}}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (limit, asked)


@pytest.mark.parametrize(("engine", "limit", "asked"), [("llama.cpp", 4096, 9029), ("vllm", 2048, 2049)])
def test_so_do_the_engines_that_were_recorded(engine: str, limit: int, asked: int) -> None:
    error = error_for(400, {}, CASES[f"{engine}/err_context_stream"].body)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (limit, asked)


def test_fields_go_before_words_also_in_the_middle_of_a_stream() -> None:
    told = {"type": "exceed_context_size_error", "code": 400, "n_ctx": 512, "n_prompt_tokens": 610, "message": "no"}
    error = error_in(json.dumps({"error": told}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (512, 610)


@pytest.mark.parametrize("told", ["", "many", "-4", "0", "4.5", "9" * 20, "²", "[4]"])
def test_what_is_no_number_of_tokens_is_none(told: str) -> None:
    assert number(told) is None


@given(st.text() | st.from_regex(r"maximum context length is [0-9,]{0,30} tokens"))
def test_no_words_are_too_odd(words: str) -> None:
    for size in (limit_in(words), asked_in(words)):
        assert size is None or 0 < size <= 2**40


@given(st.integers(1, 2**40))
def test_every_length_can_be_told(size: int) -> None:
    assert limit_in(f"This model's maximum context length is {size:,} tokens.") == size
    assert limit_in(f"exceeds the available context size ({size} tokens)") == size
