"""Turn a backend's failures into this server's errors.

`connection_error` takes a failure of the HTTP client, `error_for` an answer with an error status, `error_in` an error
object inside an answer with status 200.

A client learns what is wrong with its request but nothing about the backend: only a message about the request itself
(status 400, 413, 422) is passed on, shortened and without addresses and keys.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from antwort.api.decoding import repair_surrogates
from antwort.api.wire import encode
from antwort.errors import (
    BACKEND_UNAUTHORIZED,
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    ModelNotFound,
    NotFound,
    QuotaUsedUp,
    RateLimited,
    RequestError,
)
from antwort.net.response import (
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    HttpError,
    ResponseTimeout,
    ResponseTooLarge,
)

CONNECT_TIMEOUT = "backend_connect_timeout"
"""The code of a `BackendTimeout` before anything was sent: a retry is safe."""
CONNECTION_CLOSED = "backend_closed"
"""The code of a `BackendUnavailable` after the whole request was sent: the backend may have begun its work."""

REFUSED_CREDENTIALS = "The backend did not accept this server's credentials."
UNREACHABLE = "The backend cannot be reached."
TOO_SLOW = "The backend took too long."
BROKEN_OFF = "The backend's answer broke off."

MAX_MESSAGE_CHARS = 500
_MAX_PARSED_CHARS = 8 * MAX_MESSAGE_CHARS
_MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_TOKEN_COUNT = 2**40
"""Larger numbers of tokens in a backend's answers are ignored."""


class NotReady(BackendUnavailable):
    """A backend that answered that it takes no requests now. It is reachable."""


class CheckRefused(BackendUnavailable):
    """A backend that answered a health check with an error. It is reachable, though it may take no requests."""


class AnsweredTimeout(BackendTimeout):
    """A timeout that the backend, or a proxy before it, reported by status or error object. It is reachable."""


class SentRequest(msgspec.Struct, frozen=True):
    """The request that a backend answered: what an error message may name of it, and what it must not show."""

    model: str = ""
    secrets: tuple[str, ...] = ()
    """The backend's address and key."""
    body: bytes = b""
    """The JSON that was sent: backends repeat parts of it in their error messages."""


UNKNOWN_REQUEST = SentRequest()


class ErrorObject(msgspec.Struct, frozen=True):
    """The fields of a backend's error object, in any of its forms."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    n_ctx: str = ""
    n_prompt_tokens: str = ""


def connection_error(fault: HttpError) -> AntwortError:
    """Return our error for a failure of the HTTP client: no answer, or not a whole one."""
    match fault:
        case ConnectFailed():
            return BackendUnavailable(UNREACHABLE)
        case ConnectTimeout():
            return BackendTimeout("The backend cannot be reached: connecting took too long.", code=CONNECT_TIMEOUT)
        case ResponseTimeout():
            return BackendTimeout(TOO_SLOW)
        case ConnectionLost(response_started=False):
            return BackendUnavailable("The backend closed the connection without an answer.", code=CONNECTION_CLOSED)
        case ConnectionLost():
            return BackendCut(BROKEN_OFF)
        case ResponseTooLarge():
            return BackendError("The backend's answer is too large.")
        case _:
            return BackendError("The backend's answer cannot be understood.")


def check_error(status: int) -> CheckRefused | None:
    """Return our error for the status that answers a health check; None where the backend takes requests."""
    if status in (401, 403):
        return CheckRefused(REFUSED_CREDENTIALS)
    if 300 <= status < 400:
        return CheckRefused("The backend answers with a redirection: its address is not right.")
    return CheckRefused("The backend is not ready.") if status >= 500 else None


def error_for(
    status: int, headers: Mapping[str, str], body: bytes, sent: SentRequest = UNKNOWN_REQUEST
) -> AntwortError:
    """Return our error for a backend's answer with an error status."""
    return _translate(status, parse_error_object(body) or ErrorObject(), sent, retry_after(headers))


def error_in(body: bytes, sent: SentRequest = UNKNOWN_REQUEST) -> AntwortError | None:
    """Return our error for the error object in a chunk or in an answer with status 200; None where there is none."""
    problem = parse_error_object(body)
    return None if problem is None else _translate(_implied_status(problem), problem, sent, None)


_QUOTA_WORDS = ("insufficient_quota", "billing_", "credit_balance", "spend_limit", "usage_limit")
_OVERLOAD_WORDS = ("overloaded", "slow_down")

_NO_JINJA = "tools param requires --jinja flag"
"""How llama.cpp refuses tools, with status 500, when it runs without chat templates."""

_NO_TOOLS = "The backend does not support tools, or not as they were asked for."
"""Replaces the messages of other backends, which may reveal what they are."""


def _translate(status: int, problem: ErrorObject, sent: SentRequest, wait: float | None) -> AntwortError:
    """`wait`: the seconds that the headers ask clients to wait for."""
    words = problem.message[:_MAX_PARSED_CHARS]
    kind = f"{problem.type} {problem.code}".lower()
    match status:
        case 400 | 413 | 422 | 500 if (too_long := _context_error(status, problem, sent)) is not None:
            return too_long
        case 400 | 422:
            return BackendRefused(scrub(problem.message, sent.secrets) or "The backend refused the request.")
        case 404 | 500 | 501 if says_no_tools(words):
            return BackendRefused(_NO_JINJA if problem.message == _NO_JINJA else _NO_TOOLS)
        case 402 | 403 | 429 if status == 402 or any(word in kind for word in _QUOTA_WORDS):
            return QuotaUsedUp("The backend's quota is used up.")
        case 401 | 403:
            return BackendError(REFUSED_CREDENTIALS, code=BACKEND_UNAUTHORIZED, may_pass=False)
        case 404 if sent.model and _is_about_the_model(problem):
            return ModelNotFound(sent.model)
        case 404:
            return NotFound("The backend does not offer what was asked of it.")
        case 408 | 504:
            return AnsweredTimeout(TOO_SLOW)
        case 429 | 503 | 529:
            wait = _wait_in_words(words) if wait is None else wait
            # Some clients read the wait out of this message, and understand only seconds and milliseconds.
            when = "later" if wait is None else f"in {math.ceil(wait * 1000) / 1000:g}s"
            if status == 529 or any(word in kind for word in _OVERLOAD_WORDS):
                return BackendOverloaded(f"The backend has too much to do; try again {when}.", retry_after=wait)
            if status == 503:
                return NotReady(f"The backend is not ready; try again {when}.", retry_after=wait)
            return RateLimited(f"The backend is answering too many requests; try again {when}.", retry_after=wait)
        case _:
            return BackendError("The backend failed to answer.")


def _is_about_the_model(problem: ErrorObject) -> bool:
    return problem.param == "model" or "model" in f"{problem.code} {problem.message}".lower()


# ---- the error object ----


def parse_error_object(body: bytes) -> ErrorObject | None:
    """Parse `{"error": {…}}`, `{"error": "…"}`, `{"object": "error", …}` or `{"detail": …}`; None for anything else."""
    try:
        plain = msgspec.json.decode(repair_surrogates(body))
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict):
        return None
    error = plain.get("error")
    if isinstance(error, dict):
        return _error_object(error)
    if isinstance(error, str) and error:
        return ErrorObject(message=error)
    if "choices" in plain:
        return None
    if plain.get("object") == "error" or isinstance(plain.get("message"), str):
        return _error_object(plain)
    return ErrorObject(message=json_text(plain["detail"])) if "detail" in plain else None


def _error_object(fields: dict[str, Any]) -> ErrorObject:
    return ErrorObject(*(json_text(fields.get(name)) for name in ErrorObject.__struct_fields__))


def json_text(value: object) -> str:
    """Return a string as it is, and any other JSON value as its JSON: codes may be numbers, and arguments objects."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


_STATUS_BY_WORD = (
    ("context", 400),
    ("quota", 429),
    ("rate_limit", 429),
    ("ratelimit", 429),
    ("too_many_requests", 429),
    ("too many requests", 429),
    ("toomanyrequests", 429),
    ("overloaded", 503),
    ("slow_down", 503),
    ("unavailable", 503),
    ("timeout", 504),
    ("notfound", 404),
    ("not_found", 404),
    ("authentication", 401),
    ("permission", 403),
    ("invalid_request", 400),
    ("invalid_prompt", 400),
    ("content_filter", 400),
    ("content_policy", 400),
    ("badrequest", 400),
    ("bad request", 400),
)


def _implied_status(problem: ErrorObject) -> int:
    """Return the HTTP status for an error object, from its numeric code or from the words in its type and code."""
    if problem.code.isdecimal() and 400 <= int(problem.code[:4]) <= 599:
        return int(problem.code)
    words = f"{problem.type} {problem.code}".lower()
    return next((status for word, status in _STATUS_BY_WORD if word in words), 500)


# ---- features that a backend does not support ----

_TOOLS = re.compile(r"\btools?\b|tool[-_ ](?:choice|call|use|parser)|function[-_ ]?call", re.IGNORECASE)
_SCHEMAS = re.compile(r"response[-_ ]?format|json[-_ ]?(?:schema|mode)|structured|guided|grammar", re.IGNORECASE)
_NOT_OFFERED = re.compile(
    r"not (?:\w+ )?(?:support|enabled|configured|available|permitted|allowed|implemented|recogni)|n't support"
    r"|unsupported|unavailable|\bno (?:\w+ ){1,5}support|requires --"
    r"|(?:unrecogni[sz]ed|unknown|unexpected|extra) (?:\w+ )?(?:input|field|param|arg|key)",
    re.IGNORECASE,
)
_ONE_TOOL = re.compile(
    r"""
    \b(?:tools|functions)(?:\[|\.|/|",?\s*)\d            # by its place: tools[0], tools.0, ["tools", 0]
    | \b(?:tool|function)(?:\ ['"`]|:)                 # by its name
    | \b(?:tool|function)(?:'s)?\ (?:named?|param|arg|schema|descri|defin)
    | \bkeyword | (?<![-_\w])schemas?\b
    | \b(?:one|any|all)Of\b | \$(?:ref|defs)\b
    | ['"`](?:not|if|pattern|format|const|enum|additionalProperties|patternProperties|strict)['"`]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ONE_SCHEMA = re.compile(
    r"\bkeyword|\b(?:one|any|all)Of\b|\$(?:ref|defs)\b|['\"`](?:not|if|pattern|format|const|enum)['\"`]", re.IGNORECASE
)
_ECHO = '"input":'
"""After it pydantic repeats its input, which may contain any words."""


def says_no_tools(message: str) -> bool:
    """Return whether a message refuses tool calls, or this kind of them, and not just one tool, its name or schema."""
    message = message.partition(_ECHO)[0]
    return all(word.search(message) for word in (_TOOLS, _NOT_OFFERED)) and not _ONE_TOOL.search(message)


def refuses_tools(error: AntwortError) -> bool:
    """Return whether a backend has refused tool calls, or this kind of them."""
    return isinstance(error, RequestError) and says_no_tools(error.message)


def refuses_schemas(error: AntwortError) -> bool:
    """Return whether a backend has refused answers by a schema, and not just this schema."""
    if not isinstance(error, RequestError):
        return False
    message = error.message.partition(_ECHO)[0]
    return all(word.search(message) for word in (_SCHEMAS, _NOT_OFFERED)) and not _ONE_SCHEMA.search(message)


# ---- how long to wait ----


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds to wait, from `retry-after-ms`, or from `Retry-After` as a number or a date."""
    values = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _finite_number(values.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _bounded_wait(milliseconds / 1000)
    value = values.get("retry-after", "")
    seconds = _finite_number(value)
    if seconds is not None:
        return _bounded_wait(seconds)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return _bounded_wait(when.timestamp() - (time.time() if now is None else now))


def _finite_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bounded_wait(seconds: float) -> float:
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS)


_DURATION = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s{0,3}(milliseconds?|ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?)(?![a-z])"
)
_AND = r"\s{0,3},?\s{0,3}(?:and\s{1,3})?"
_DURATION_PART = re.compile(_DURATION)
_WAIT = re.compile(rf"(?:try again|retry(?: again)?) (?:in|after)\s{{0,3}}({_DURATION}(?:{_AND}{_DURATION}){{0,3}})")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _wait_in_words(message: str) -> float | None:
    """Return the seconds to wait that a message names: `20 seconds`, `1m30.5s`, `1 minute and 30 seconds`.

    An error inside a stream has no headers of its own.
    """
    found = _WAIT.search(message.lower())
    if found is None:
        return None
    seconds = 0.0
    for number, unit in _DURATION_PART.findall(found[1]):
        seconds += float(number) * (0.001 if unit.startswith(("ms", "milli")) else _UNIT_SECONDS[unit[0]])
    return _bounded_wait(seconds)


# ---- requests that are longer than the context ----
#
# Error messages repeat what clients have sent. So token counts are taken only from whole sentences of known engines at
# the start of a message, and other phrases count only where they stand before anything quoted.


class Overflow(msgspec.Struct, frozen=True):
    """The token counts in the refusal of a request that is longer than the context; None where it names none."""

    limit: int | None = None
    """How many tokens fit."""
    asked: int | None = None
    """How many tokens the input had, or input and output together where the message has only their sum."""


_CONTEXT_CODES = frozenset(
    {"exceed_context_size_error", "context_length_exceeded", "context_window_exceeded", "model_context_window_exceeded"}
)


def _context_error(status: int, problem: ErrorObject, sent: SentRequest) -> ContextTooLong | None:
    """Return the error for a request that is too long, known by a code, by words or by the status; None for others."""
    overflow = overflow_in(problem.message[:_MAX_PARSED_CHARS], sent.body)
    has_code = not {problem.type.lower(), problem.code.lower()}.isdisjoint(_CONTEXT_CODES)
    if overflow is None:
        if status != 413 and not has_code:
            return None
        overflow = Overflow()
    limit = token_count(problem.n_ctx)
    message = scrub(problem.message, sent.secrets) if status != 500 else ""
    return ContextTooLong(
        message or "The input is longer than the model's context.",
        param="input",
        limit=limit or overflow.limit,
        asked=token_count(problem.n_prompt_tokens) or overflow.asked,
        is_firm=limit is not None or has_code,
    )


_TOKENS = r"\d[\d,]{0,24}"

_PREFIX = (
    r"(?:litellm\.\w{1,60}: (?:(?:litellm\.)?\w{1,60}(?::| -) ){0,4})?"
    r"(?:(?:invalid request|input validation error|<400> internalerror\.algo\.invalidparameter): )?"
)
"""What proxies and engines put before such a message."""

_SENTENCES = """
[this model's ]maximum context length is {limit} tokens. however, you requested {number} tokens ({asked} in the
[this model's ]maximum context length is {limit} tokens. however, you requested {asked} tokens
[this model's ]maximum context length is {limit} tokens, however you requested {number} tokens ({asked} in
[this model's ]maximum context length is {limit} tokens, however you requested {asked} tokens
[this model's ]maximum context length is {limit} tokens. however, your messages resulted in {asked} tokens
[this model's ]maximum context length is {limit} tokens. however, your request has {asked} input tokens
[this model's ]maximum context length is {limit} tokens. however, your prompt contains [at least ]{asked} input tokens
[this model's ]maximum context length is {limit} tokens
'max_tokens' or 'max_completion_tokens' is too large: {number}. this model's maximum context length is {limit} tokens \
and your request has {asked} input tokens
this endpoint's maximum context length is {limit} tokens. however, you requested [about ]{number} tokens ({asked} of
this endpoint's maximum context length is {limit} tokens
input tokens exceed the configured limit of {limit} tokens. your messages resulted in {asked} tokens
input tokens exceed the configured limit of {limit} tokens
your input exceeds the context window of this model
requested tokens ({asked}) exceed context window of {limit}

you passed {asked} input[ tokens] and requested {number} output[ tokens]. however, the model's context length is only \
{limit}
you passed {number} input characters and requested {number} output[ tokens]. however, the model's context length is \
only {limit}
the [decoder ]prompt ([total ]length {asked}) is too long to fit into the model (context length {limit})
the [decoder ]prompt ([total ]length {asked}) is longer than the maximum model length of {limit}
the input ({asked} tokens) is longer than the model's context length ({limit} tokens)
requested token count exceeds the model's maximum context length of {limit} tokens. you requested a total of {number} \
tokens: {asked} tokens from the input
requested token count exceeds the model's maximum context length of {limit} tokens
input length ({asked}[ tokens]) exceeds model's maximum context length ({limit}[ tokens])
input length ({asked}[ tokens]) exceeds the maximum allowed length ({limit}[ tokens])

[the ]request ({asked} tokens) exceeds the available context size ({limit} tokens)
the request exceeds the available context size[ ({limit} tokens)]
input ({asked} tokens) is larger than the max context size ({limit} tokens)
context size has been exceeded
trying to keep the first {asked} tokens when context the overflows. however, the model is loaded with context length \
of only {limit} tokens
the model is loaded with context length of only {limit} tokens
[the number of ]tokens to keep from the initial prompt is greater than the context length\
[ (n_keep: {asked}[ ]>= n_ctx: {limit})]
the input length exceeds the context length
prompt too long; exceeded max context length by {number} tokens
prompt length {asked} is greater than max_seq_len {limit}
`inputs` must have less than {limit} tokens. given: {asked}
`inputs` tokens + `max_new_tokens` must be <= {limit}. given: {asked}

prompt is too long: {asked} tokens > {limit} maximum
input length and [`]max_tokens[`] exceed context limit: {asked} + {number} > {limit}
the input token count ({asked}) exceeds the maximum number of tokens allowed ({limit})
the input token count exceeds the maximum number of tokens allowed {limit}
this model's maximum prompt length is {limit} but the request contains {asked} tokens
prompt contains {asked} tokens[ and {number} draft tokens], too large for model with {limit} maximum context length
your request exceeded model token limit: {limit} (requested: {asked})
your request exceeded model token limit: {limit}
too many tokens: total number of tokens in the prompt cannot exceed {limit} - received {asked}
too many tokens: size limit exceeded by {number} tokens
range of input length should be [[1, {limit}]]
the prompt is too long: {asked}, model maximum context length: {limit}
please reduce the length of the messages or completion. current length is {asked} while limit is {limit}
prompt token count of {asked} exceeds the limit of {limit}
input is too long for requested model

the input has [about ]{asked} tokens, and the model's context has {limit}
"""
"""The messages of engines, in groups: OpenAI and those with its wording, vLLM and SGLang, local engines, services, and
this server. `[ ]` is optional. Where two begin alike, the one with more numbers comes first.
"""

_PIECE = re.compile(r"\[\[|\]\]|[\[\]]|\{\w+\}|[^\[\]{}]+")
_PIECES = {
    "[": "(?:",
    "]": ")?",
    "[[": r"\[",
    "]]": r"\]",
    "{limit}": f"(?P<limit>{_TOKENS})",
    "{asked}": f"(?P<asked>{_TOKENS})",
    "{number}": _TOKENS,
}


@cache
def _sentence_patterns() -> Sequence[re.Pattern[str]]:
    """Compile the sentences at the first refusal: most servers never see one."""
    patterns = []
    for line in filter(None, _SENTENCES.splitlines()):
        pieces = [_PIECES.get(piece) or re.escape(piece) for piece in _PIECE.findall(line)]
        patterns.append(re.compile(_PREFIX + "".join(pieces)))
    return patterns


_PHRASES = re.compile(
    r"\Alitellm\.contextwindowexceedederror: |maximum context length|context (?:length|size|window|limit).{0,60}exceed"
    r"|exceed.{0,60}context (?:length|size|window|limit)|context_window_exceeded"
    r"|(?:longer|greater) than the (?:model's context|context length|maximum model length)|prompt (?:is )?too long"
    r"|larger than the max(?:imum)? context|context length (?:of|is) only"
    r"|exceeds the maximum number of (?:input )?tokens|input is too long"
    r"|maximum prompt length is|input tokens exceed the|exceeded model token limit"
    r"|should not exceed max_num_tokens|greater than max_seq_len"
)
_QUOTED = re.compile(r"[\"“”«`{\[<\n]|(?<!\w)'")
"""Where text that a client sent may begin."""
_OPENING = re.compile(_PREFIX + r"(?:(?:\w{0,40}error|bad request): )?(?:(?:the|your|this) )?")
"""What may stand before a backend's own phrase: it names nothing of the request."""


def overflow_in(message: str, sent: bytes = b"") -> Overflow | None:
    """Return what a message says about the context's length; None where it is, or may be, about something else.

    Numbers that were `sent` are ignored. So are phrases where the message was sent from there to its end.
    """
    message = message.lstrip().lower()
    for pattern in _sentence_patterns():
        if match := pattern.match(message):
            counts = {} if _is_in(match[0], sent) else match.groupdict()
            return Overflow(token_count(counts.get("limit") or ""), token_count(counts.get("asked") or ""))
    quoted = _QUOTED.search(message)
    found = _PHRASES.search(message, 0, len(message) if quoted is None else quoted.start())
    if found is None:
        return None
    start = found.start()
    is_own = _OPENING.fullmatch(message, 0, start) is not None or not _is_in(message[start:].rstrip(" ."), sent)
    return Overflow() if is_own else None


def _is_in(text: str, body: bytes) -> bool:
    return encode(text)[1:-1] in body.lower()


def token_count(text: str) -> int | None:
    """Parse a plausible number of tokens; None for anything else."""
    digits = text.replace(",", "")
    count = int(digits) if digits.isdecimal() and len(digits) < 16 else 0
    return count if 0 < count <= MAX_TOKEN_COUNT else None


# ---- removing secrets from messages ----

_REMOVED = "[removed]"
_SENSITIVE = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]{1,20}://[^\s"'<>]+                                # URLs
    | \bbearer\s+[^\s"',]+                                              # Authorization: Bearer …
    | \b(?:api[-_\ ]?key|access[-_\ ]?token|authorization|secret|password)\b["']?\s*[:=]\s*["']?
      (?:(?:bearer|basic|token)\s+)?[^\s"',]+
    | \b(?:sk|pk|rk|gsk|hf|xai|ghp|nvapi|key)[-_][a-z0-9_-]{6,}         # keys by their known prefixes
    | \b(?=[a-z_-]{0,99}\d)(?=[\d_-]{0,99}[a-z])[a-z0-9_-]{32,}         # any long random-looking word
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b                          # IPv4
    | \[?(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])\]?(?::\d{1,5})?  # IPv6
    | \b[a-z0-9](?:[a-z0-9.-]{0,253}[a-z0-9])?:\d{2,5}\b                # host:port
    """,
    re.IGNORECASE | re.VERBOSE,
)


def scrub(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return `text` on one line, without addresses and keys, with at most `MAX_MESSAGE_CHARS` characters."""
    if len(text) > _MAX_PARSED_CHARS:
        text = text[:_MAX_PARSED_CHARS].rpartition(" ")[0]  # half a key would no longer look like one
    text = " ".join(_SENSITIVE.sub(_REMOVED, remove_secrets(text, secrets)).split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def remove_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Return `text` without the given secrets, otherwise unchanged."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        pattern = re.escape(secret)
        if len(secret) < 8:  # a short one, such as the host `llm`, only as a whole word
            pattern = rf"(?<![\w.-]){pattern}(?![\w-])"
        text = re.sub(pattern, _REMOVED, text, flags=re.IGNORECASE)
    return text
