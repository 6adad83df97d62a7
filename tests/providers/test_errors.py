"""A backend's errors become ours: the right class and status, the token counts of refusals, and no secrets."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.errors import (
    AntwortError,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    ContextTooLong,
    ModelNotFound,
    NotFound,
    QuotaUsedUp,
    RateLimited,
)
from antwort.providers.errors import (
    MAX_MESSAGE_CHARS,
    AnsweredTimeout,
    NotReady,
    SentRequest,
    error_for,
    error_in,
    overflow_in,
    retry_after,
    scrub,
    token_count,
)
from replay_backend import CASES

KEY = "tiny-key"
ASKED = SentRequest("gpt-x", (KEY, "llm", "llm:8000"))
LEAK = f"Bearer {KEY} was refused by http://llm:8000/v1 (10.1.2.3) for sk-abcdef123456"
HTML = b"<html><body>nginx at 10.1.2.3</body></html>"


def body(message: str | None = "no", **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.proves("EN-034", "RULING-12")
@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, body("temperature must be positive"), BackendRefused),
        (422, b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', BackendRefused),
        (413, body(), ContextTooLong),
        (400, HTML, BackendRefused),
        (400, b"", BackendRefused),
        (400, body("too long", type="exceed_context_size_error", code=400), ContextTooLong),
        (400, body("too long", code="context_length_exceeded"), ContextTooLong),
        (400, body("This model's maximum context length is 2048 tokens."), ContextTooLong),
        (400, body("The input (9 tokens) is longer than the model's context length (4 tokens)."), ContextTooLong),
        (400, body("the input length exceeds the context length"), ContextTooLong),
        (500, body("Context size has been exceeded."), ContextTooLong),
        (400, body("Input length (5000) exceeds model's maximum context length (4096)."), ContextTooLong),
        (400, body("The decoder prompt (length 9) is longer than the maximum model length of 4."), ContextTooLong),
        (400, body("Requested token count exceeds the model's maximum context length of 4 tokens."), ContextTooLong),
        (400, body("the request exceeds the available context size (4096 tokens)"), ContextTooLong),
        (400, body("input (9 tokens) is larger than the max context size (4 tokens). skipping"), ContextTooLong),
        (422, body("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"), ContextTooLong),
        (422, body("`inputs` must have less than 1024 tokens. Given: 2000"), ContextTooLong),
        (400, body("The input token count (9) exceeds the maximum number of tokens allowed (4)."), ContextTooLong),
        (400, body("tokens to keep from the initial prompt is greater than the context length"), ContextTooLong),
        (400, body("Your input exceeds the context window of this model."), ContextTooLong),
        (400, body("`inputs` is missing"), BackendRefused),
        (400, body("Blocked.", code="content_policy_violation"), BackendRefused),
        (400, body("Blocked.", code="content_filter", type=None), BackendRefused),
        (402, body(LEAK), QuotaUsedUp),
        (429, body(LEAK, type="insufficient_quota", code="insufficient_quota"), QuotaUsedUp),
        (429, body(LEAK, type="insufficient_quota", code="credit_balance_exhausted"), QuotaUsedUp),
        (403, body(LEAK, code="billing_not_active"), QuotaUsedUp),
        (429, body(LEAK, code="slow_down"), BackendOverloaded),
        (503, body(LEAK, type="service_unavailable_error", code="server_is_overloaded"), BackendOverloaded),
        (529, body(LEAK, type="overloaded_error"), BackendOverloaded),
        (529, HTML, BackendOverloaded),
        (401, body(LEAK), BackendError),
        (403, body(LEAK), BackendError),
        (404, body("The model `gpt-x` does not exist.", param="model"), ModelNotFound),
        (404, body('model "gpt-x" not found, try pulling it first'), ModelNotFound),
        (404, body("nope", code="model_not_found"), ModelNotFound),
        (404, b'{"error": "model not found"}', ModelNotFound),
        (404, b'{"detail": "Not Found"}', NotFound),
        (404, HTML, NotFound),
        (408, body(LEAK), AnsweredTimeout),
        (504, HTML, AnsweredTimeout),
        (429, body(LEAK), RateLimited),
        (503, body("Loading model", code=503), NotReady),
        (500, body(LEAK), BackendError),
        (502, HTML, BackendError),
        (599, b"[1, 2]", BackendError),
        (302, b"", BackendError),
        (405, body(LEAK), BackendError),
        (418, b'"tea"', BackendError),
    ],
)
def test_a_status_and_its_body_become_one_of_our_errors(
    status: int, answer: bytes, expected: type[AntwortError]
) -> None:
    error = error_for(status, {}, answer, ASKED)
    assert type(error) is expected
    assert error.message
    for secret in (KEY, "llm", "8000", "10.1.2.3", "sk-abc", "html", "nginx"):
        assert secret not in error.message


def test_the_reason_of_a_400_is_passed_on() -> None:
    assert error_for(400, {}, body("temperature must be positive")).message == "temperature must be positive"
    assert error_for(422, {}, b'{"object": "error", "message": "bad role", "code": 40001}').message == "bad role"


def test_a_400_without_a_readable_reason_still_says_something() -> None:
    assert error_for(400, {}, HTML).message == "The backend refused the request."


def test_a_model_not_found_is_named_as_the_client_named_it() -> None:
    error = error_for(404, {}, body("The model `/srv/models/secret` does not exist", param="model"), ASKED)
    assert (error.message, error.param) == ("The model 'gpt-x' does not exist.", "model")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"Retry-After": "-4"}, 0.0),
        ({"Retry-After": "1e12"}, 86_400.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 01 Jan 99999 00:00:00 GMT"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "300000"}, 300.0),
        ({"retry-after-ms": "1e12"}, 86_400.0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, now=100.0) == expected


@pytest.mark.parametrize("status", [429, 503, 529])
def test_the_time_to_wait_travels_with_the_error(status: int) -> None:
    error = error_for(status, {"Retry-After": "7"}, b"")
    assert error.retry_after == 7.0
    assert error.message.endswith("try again in 7s.")


WAIT_OF_CODEX = re.compile(r"(?i)try again in\s*(\d+(?:\.\d+)?)\s*(s|ms|seconds?)")
"""How Codex reads the wait out of the message of a response that failed with `rate_limit_exceeded`."""


@pytest.mark.parametrize(
    ("headers", "words", "wait", "told"),
    [
        ({"Retry-After": "30"}, "", 30.0, "30"),
        ({"Retry-After": "86400"}, "", 86400.0, "86400"),
        ({"retry-after-ms": "1500"}, "", 1.5, "1.5"),
        ({"retry-after-ms": "12.34"}, "", 0.01234, "0.013"),
        ({}, "Rate limit reached on tokens per min. Please try again in 1.898s.", 1.898, "1.898"),
        ({}, "Please try again in 120ms.", 0.12, "0.12"),
        ({}, "Try again in 35 seconds.", 35.0, "35"),
        ({}, "Please try again in 6m0s.", 360.0, "360"),
        ({}, "Please try again in 1m30.5s.", 90.5, "90.5"),
        ({}, "Try again in 1h2m", 3720.0, "3720"),
        ({}, "Please retry after 20 seconds.", 20.0, "20"),
        ({}, "Try again in 2 minutes 5 secs.", 125.0, "125"),
        ({}, "Try again in 1 minute and 30 seconds.", 90.0, "90"),
        ({}, "Try again in 1 hour, 1 minute, and 30 seconds.", 3690.0, "3690"),
        ({}, "Try again in 1 minute, 30 seconds.", 90.0, "90"),
        ({}, "Try again in 1 minute, and send 30 seconds of audio.", 60.0, "60"),
        ({}, "Retry again in 250 milliseconds", 0.25, "0.25"),
        ({}, "Try again in 999999999h.", 86_400.0, "86400"),
        ({"Retry-After": "4"}, "Please try again in 9s.", 4.0, "4"),
    ],
)
def test_a_known_wait_is_in_the_message_where_clients_look_for_it(
    headers: dict[str, str], words: str, wait: float, told: str
) -> None:
    error = error_for(429, headers, body(words))
    assert error.retry_after == pytest.approx(wait)
    found = WAIT_OF_CODEX.search(error.message)
    assert found is not None
    assert found.groups() == (told, "s")


@pytest.mark.parametrize("words", ["", "try again in 5sausages", "try again in a while", "try again in s", "wait 5s"])
def test_a_message_without_a_wait_becomes_an_error_without_one(words: str) -> None:
    error = error_for(429, {}, body(words))
    assert error.retry_after is None
    assert error.message.endswith("try again later.")


def test_refused_credentials_are_not_worth_a_retry() -> None:
    assert error_for(401, {}, body(LEAK)).may_pass is False
    assert error_for(500, {}, body(LEAK)).may_pass is None


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (body(code=400), BackendRefused),
        (body(code="429"), RateLimited),
        (body(type="BadRequestError", code=None), BackendRefused),
        (body(type="invalid_request_error"), BackendRefused),
        (body(type="unavailable_error"), NotReady),
        (body(type="overloaded_error"), BackendOverloaded),
        (body(code="slow_down"), BackendOverloaded),
        (body(type="insufficient_quota", code="insufficient_quota"), QuotaUsedUp),
        (body(code="quota_exceeded"), RateLimited),
        (body(code="content_filter"), BackendRefused),
        (body(code="invalid_prompt"), BackendRefused),
        (body(code="rate_limit_exceeded"), RateLimited),
        (body(code="too_many_requests"), RateLimited),
        (body(type="Too Many Requests"), RateLimited),
        (body(type="engine_overloaded_error"), BackendOverloaded),
        (body(type="NotFoundError", param="model"), ModelNotFound),
        (body(type="authentication_error"), BackendError),
        (body(type="gateway_timeout"), AnsweredTimeout),
        (body(type="exceed_context_size_error"), ContextTooLong),
        (body(code=7), BackendError),
        (body(code=40001), BackendError),
        (body(code={"x": 1}, type=["y"], message=None), BackendError),
        (b'{"error": "boom"}', BackendError),
    ],
)
def test_an_error_object_is_translated_by_its_code_or_its_words(chunk: bytes, expected: type[AntwortError]) -> None:
    assert type(error_in(chunk, ASKED)) is expected


@pytest.mark.parametrize(
    "chunk",
    [b'{"choices": []}', b'{"error": null, "choices": []}', b'{"choices": [], "message": "x"}', b"[]", b"{", b"{}"],
)
def test_an_answer_without_an_error_object_is_no_error(chunk: bytes) -> None:
    assert error_in(chunk) is None


# ---- requests that are longer than the context ----

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
    return error_for(
        status, {}, json.dumps({"error": {"message": words, **fields}}).encode(), SentRequest("m", body=sent)
    )


@pytest.mark.parametrize(("words", "limit", "asked"), WORDS)
def test_the_limit_and_the_size_are_read_from_the_sentences_of_engines(
    words: str, limit: int | None, asked: int | None
) -> None:
    error = refused(words)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (limit, asked, False)


@pytest.mark.parametrize(("engine", "limit", "asked"), [("llama.cpp", 4096, 9029), ("vllm", 2048, 2049)])
def test_the_limit_and_the_size_are_read_from_recorded_refusals(engine: str, limit: int, asked: int) -> None:
    error = error_for(400, {}, CASES[f"{engine}/err_context_stream"].body)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (limit, asked, engine == "llama.cpp")


def test_fields_take_precedence_over_words_also_inside_a_stream() -> None:
    told = {"type": "exceed_context_size_error", "code": 400, "n_ctx": 512, "n_prompt_tokens": 610, "message": VLLM}
    error = error_in(json.dumps({"error": told}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked, error.is_firm) == (512, 610, True)


def test_a_code_makes_the_numbers_of_a_sentence_firm() -> None:
    error = refused(VLLM, code="context_length_exceeded")
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.is_firm) == (2048, True)


@pytest.mark.parametrize("code", ["context_length_exceeded", "model_context_window_exceeded"])
def test_a_context_code_is_enough_whatever_the_message(code: str) -> None:
    error = refused("Please reduce it to 5.", code=code)
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (None, None)


def test_status_413_is_a_context_error() -> None:
    error = error_for(413, {}, b"<html>413 Request Entity Too Large</html>")
    assert isinstance(error, ContextTooLong)
    assert error.limit is None


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
def test_text_that_the_client_sent_is_not_taken_for_a_refusal(form: str, said: str) -> None:
    error = refused(form.format(said=said), sent=json.dumps({"schema": {"type": said}}).encode())
    assert type(error) is BackendRefused


@pytest.mark.parametrize("status", [400, 422, 500])
def test_numbers_that_the_client_sent_are_ignored_even_at_the_start_of_a_message(status: int) -> None:
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
def test_a_refusal_is_recognised_even_where_the_conversation_has_the_same_phrase(words: str) -> None:
    said = "My agent says: the prompt is too long. Or: context length exceeded. What is that?"
    error = refused(words, json.dumps({"messages": [{"role": "user", "content": said}]}).encode())
    assert isinstance(error, ContextTooLong)
    assert (error.limit, error.asked) == (None, None)


@pytest.mark.parametrize("told", ["", "many", "-4", "0", "4.5", "9" * 20, "²", "[4]"])
def test_an_implausible_token_count_is_ignored(told: str) -> None:
    assert token_count(told) is None


@given(st.text() | st.from_regex(r"maximum context length is [0-9,]{0,30} tokens"), st.binary())
def test_any_message_gives_plausible_token_counts_or_none(words: str, sent: bytes) -> None:
    found = overflow_in(words, sent)
    for size in () if found is None else (found.limit, found.asked):
        assert size is None or 0 < size <= 2**40


def _limit_in(message: str) -> int | None:
    overflow = overflow_in(message)
    return None if overflow is None else overflow.limit


@given(st.integers(1, 2**40))
def test_every_plausible_limit_is_read(size: int) -> None:
    assert _limit_in(f"This model's maximum context length is {size:,} tokens.") == size
    assert _limit_in(f"The request exceeds the available context size ({size} tokens)") == size


# ---- removing secrets ----


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("failed at http://vllm.internal:8000/v1/chat?x=1 today", "failed at [removed] today"),
        ("connect to localhost:11434 failed", "connect to [removed] failed"),
        ("gpu-node-7.cluster.local:8000: down", "[removed]: down"),
        ("peer 192.168.1.20 and 10.0.0.1:80", "peer [removed] and [removed]"),
        ("peer fe80::1 or [2001:db8::2]:8000", "peer [removed] or [removed]"),
        ("Authorization: Bearer abc.def", "[removed]"),
        ("got Bearer abc.def, sorry", "got [removed], sorry"),
        ("api_key=hunter22, password: x", "[removed], [removed]"),
        ("Incorrect API key provided: sk-proj-12345678.", "Incorrect API key provided: [removed]."),
        ("token hf_abcdefghij", "token [removed]"),
        ("id 0123456789abcdef0123456789abcdef", "id [removed]"),
        ("line 1, column 15: syntax", "line 1, column 15: syntax"),
        ("std::vector, value=2049, a_rather_long_function_name_of_words", None),
        ("two\n  lines\t here", "two lines here"),
    ],
)
def test_addresses_and_keys_are_removed_and_the_rest_stays(text: str, clean: str | None) -> None:
    assert scrub(text) == (text if clean is None else clean)


def test_only_short_secrets_must_be_whole_words() -> None:
    assert scrub("atllmshere and ateightlongs", ("llm", "eightlon")) == "atllmshere and at[removed]gs"


def test_known_secrets_are_removed_exactly() -> None:
    secrets = ("llm", "llm:8000", "correct horse battery")
    text = "llm says: correct horse battery is wrong at LLM:8000; ask llms or llm-2"
    assert scrub(text, secrets) == "[removed] says: [removed] is wrong at [removed]; ask llms or llm-2"


def test_a_long_message_is_cut_and_no_key_is_cut_in_two() -> None:
    assert len(scrub("word " * 1000)) == MAX_MESSAGE_CHARS
    assert scrub("x" * 10_000) == ""
    tail = scrub("http://h/" + "x" * 3970 + " sk-" + "a" * 200)
    assert tail == "[removed]"


@settings(max_examples=200, deadline=200, derandomize=True)
@given(st.text(alphabet="ab1.:-_/[]= \n", max_size=5000), st.integers(400, 599))
def test_any_text_is_scrubbed_quickly_to_one_short_line(text: str, status: int) -> None:
    message = error_for(status, {}, json.dumps({"error": {"message": text}}).encode(), ASKED).message
    assert 0 < len(message) <= MAX_MESSAGE_CHARS
    assert "\n" not in message


@pytest.mark.parametrize("text", ["a." * 5000, "a-" * 5000, "1:" * 5000, "a1" * 5000, ": " * 5000, "[" * 9000])
def test_hostile_text_is_scrubbed_quickly(text: str) -> None:
    start = time.process_time()
    scrub(text, ("secret-word",))
    assert time.process_time() - start < 0.5
