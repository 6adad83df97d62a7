"""What a refusal says of the context: how much fits, and how much there was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.errors import AntwortError, BackendRefused, ContextTooLong
from antwort.providers.failures import Asked, error_for, error_in
from antwort.providers.overflow import limit_in, number, overflow_in
from replay_backend import CASES

VLLM = "This model's maximum context length is 2048 tokens."
PASSED = "You passed 9000 input tokens and requested 0 output tokens. However, the model's context length is only"
SGLANG = "Requested token count exceeds the model's maximum context length of 1000 tokens."
WORDS = [
    (f"{VLLM} However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).", 2048, 112946),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 8193 tokens.", 8192, 8193),
    ("This model's maximum context length is 4097 tokens, however you requested 4203 tokens.", 4097, 4203),
    (f"{VLLM} However, your request has 8 input tokens plus 2045 'max_tokens'.", 2048, 8),
    (
        f"'max_tokens' or 'max_completion_tokens' is too large: 9000. {VLLM[:-1]} and your request has 8 input tokens",
        2048,
        8,
    ),
    (
        "This endpoint's maximum context length is 4096 tokens. However, you requested about 6000 tokens (5000 of text",
        4096,
        5000,
    ),
    (f"litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - {VLLM}", 2048, None),
    ('litellm.ContextWindowExceededError: AnthropicException - {"error": {"message": "too long"}}', None, None),
    (f"{PASSED} 8192 tokens, resulting in a maximum input length of 8192 tokens. Please reduce it.", 8192, 9000),
    (f"{PASSED} 8192, resulting in a maximum input length of 8192.", 8192, 9000),
    (PASSED.replace("9000 input tokens", "90000 input characters") + " 8192 tokens.", 8192, None),
    ("Sorry, the model's context length is only 8192 tokens.", None, None),
    ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", 40960, 61709),
    (f"{SGLANG} You requested a total of 1200 tokens: 1100 tokens from the input messages and 100 more", 1000, 1100),
    ("Input length (5000) exceeds model's maximum context length (4096).", 4096, 5000),
    ("prompt is too long: 208,310 tokens > 200,000 maximum", 200_000, 208_310),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200000),
    ("`inputs` must have less than 1024 tokens. Given: 2000", 1024, 2000),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs`", 4096, 5000),
    ("the model is loaded with context length of only 4096 tokens, which is not enough", 4096, None),
    ("The prompt is too long.", None, None),
    ("the request exceeds the available context size (4096 tokens)", 4096, None),
    ("The prompt (total length 25938) is too long to fit into the model (context length 4096).", 4096, 25938),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072, 537812),
    ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease it", 200000, 190000),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 280000", 272000, None),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 9 tokens.", 272000, 9),
    ("Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)", 131072, 140000),
    ("Your request exceeded model token limit: 131072", 131072, None),
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720, None),
    ("Prompt length 5000 is greater than max_seq_len 4096", 4096, 5000),
    ("The sum of prompt length (9000.0) and query length (0) should not exceed max_num_tokens (8192)", None, None),
    ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32768, 40000),
    ("model_context_window_exceeded", None, None),
    ("The input has about 6,122 tokens, and the model's context has 1,000. Shorten it.", 1000, 6122),
    # numbers that are something else
    ("prompt too long; exceeded max context length by 437 tokens", None, None),
    ("too many tokens: size limit exceeded by 437 tokens. Try using shorter or fewer inputs", None, None),
    ("invalid params, context window exceeds limit (2013)", None, None),
    ("We are sorry. The maximum context length is 2048 tokens.", None, None),
]


def refused(words: str, sent: bytes = b"", status: int = 400, **fields: object) -> AntwortError:
    return error_for(status, {}, json.dumps({"error": {"message": words, **fields}}).encode(), Asked("m", sent=sent))


@pytest.mark.parametrize(("words", "limit", "asked"), WORDS)
def test_a_refusal_tells_how_much_fits_and_how_much_there_was(words: str, limit: int | None, asked: int | None) -> None:
    error = refused(words)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (limit, asked, False)


@pytest.mark.parametrize(("engine", "limit", "asked"), [("llama.cpp", 4096, 9029), ("vllm", 2048, 2049)])
def test_so_do_the_engines_that_were_recorded(engine: str, limit: int, asked: int) -> None:
    error = error_for(400, {}, CASES[f"{engine}/err_context_stream"].body)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (limit, asked, engine == "llama.cpp")


def test_fields_go_before_words_also_in_the_middle_of_a_stream() -> None:
    told = {"type": "exceed_context_size_error", "code": 400, "n_ctx": 512, "n_prompt_tokens": 610, "message": VLLM}
    error = error_in(json.dumps({"error": told}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (512, 610, True)


def test_a_code_makes_the_numbers_of_a_sentence_firm() -> None:
    error = refused(VLLM, code="context_length_exceeded")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.is_firm) == (2048, True)


@pytest.mark.parametrize("code", ["context_length_exceeded", "model_context_window_exceeded"])
def test_a_code_says_it_whatever_the_words(code: str) -> None:
    error = refused("Please reduce it to 5.", code=code)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (None, None)


def test_too_large_is_too_long() -> None:
    error = error_for(413, {}, b"<html>413 Request Entity Too Large</html>")
    assert isinstance(error, ContextTooLong)
    assert error.limit is None


# ---- what clients send is repeated in refusals ----

EVIL = "maximum context length is 256 tokens"
REPEATED = [
    "JSON schema conversion failed:\nUnrecognized schema: {said}",
    "Invalid schema: {said}",
    "Unknown type '{said}'",
    "[{{'type': 'string_type', 'input': '{said}'}}]",
    "Error: \"{said}\" is not one of ['auto', 'none']",
    "The pattern `{said}` cannot be compiled",
    "Unknown role {said}",
]


@pytest.mark.parametrize("form", REPEATED)
@pytest.mark.parametrize(
    "said", [EVIL, f"This model's {EVIL}.", "maximum context length is 256 (5 in the messages", "prompt is too long"]
)
def test_what_a_client_has_sent_is_no_word_of_the_backend_s(form: str, said: str) -> None:
    error = refused(form.format(said=said), sent=json.dumps({"schema": {"type": said}}).encode())
    assert type(error) is BackendRefused


@pytest.mark.parametrize("status", [400, 422, 500])
def test_not_even_where_nothing_stands_before_it(status: int) -> None:
    said = f"This model's {EVIL}. However, you requested 300 tokens."
    error = refused(said, json.dumps({"messages": [{"role": said.upper()}]}).encode(), status)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (None, None)


def test_a_conversation_about_contexts_can_be_too_long() -> None:
    sent = json.dumps({"messages": [{"role": "user", "content": f"Why does it say: this model's {EVIL}?"}]}).encode()
    error = refused(f"{VLLM} However, you requested 9000 tokens", sent)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (2048, 9000)


@pytest.mark.parametrize(
    "words",
    [
        "Prompt is too long for this deployment, 9000 tokens given",
        "Error: the prompt is too long (9000 > 8192)",
        "Bad request: context length exceeded (9000/8192)",
        "The prompt is too long.",
        "context length exceeded",
        "This deployment says that the prompt is too long for it.",
    ],
)
def test_also_where_the_refusal_is_known_by_words_that_were_said_in_it(words: str) -> None:
    said = "My agent says: the prompt is too long. Or: context length exceeded. What is that?"
    error = refused(words, json.dumps({"messages": [{"role": "user", "content": said}]}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (None, None)


# ---- any words ----


@pytest.mark.parametrize("told", ["", "many", "-4", "0", "4.5", "9" * 20, "²", "[4]"])
def test_what_is_no_number_of_tokens_is_none(told: str) -> None:
    assert number(told) is None


@given(st.text() | st.from_regex(r"maximum context length is [0-9,]{0,30} tokens"), st.binary())
def test_no_words_are_too_odd(words: str, sent: bytes) -> None:
    found = overflow_in(words, sent)
    for size in () if found is None else (found.limit, found.asked):
        assert size is None or 0 < size <= 2**40


@given(st.integers(1, 2**40))
def test_every_length_can_be_told(size: int) -> None:
    assert limit_in(f"This model's maximum context length is {size:,} tokens.") == size
    assert limit_in(f"The request exceeds the available context size ({size} tokens)") == size
