"""A backend's refusals and failures, in our words. Pure.

A client learns what is wrong with its request, and never who the backend is: of all texts only that of a 400 is
passed on, cut short and scrubbed of addresses and keys.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from antwort.api.surrogates import repair_surrogates
from antwort.errors import (
    BACKEND_UNAUTHORIZED,
    AntwortError,
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
)
from antwort.providers.overflow import Overflow, number, overflow_in
from antwort.providers.refusals import says_no_tools

MESSAGE_CAP = 500
CONNECT_TIMEOUT = "backend_connect_timeout"
"""The code of a `BackendTimeout` that happened before anything was sent: trying again is safe."""
CLOSED = "backend_closed"
"""The code of a `BackendUnavailable` that happened after all was sent: the backend may have begun its work."""
REFUSED_CREDENTIALS = "The backend did not accept this server's credentials."

_READ_CAP = 8 * MESSAGE_CAP
_LONGEST_WAIT = 86_400.0


class NotReady(BackendUnavailable):
    """The backend answered, and what it says is that it cannot now: it is there, unlike one that is out of reach."""


class CheckRefused(BackendUnavailable):
    """The backend answered a health check with an error: it is there, though it may take no requests."""


class AnsweredTimeout(BackendTimeout):
    """The backend, or what stands before it, answered that it took too long: it is there, unlike one that is silent."""


class Asked(msgspec.Struct, frozen=True):
    """What an error may name, and what it must not: the model asked for, and the backend's own address and key."""

    model: str = ""
    secrets: tuple[str, ...] = ()
    sent: bytes = b""
    """The request as it went out: backends repeat in an error what they were sent."""


class Problem(msgspec.Struct, frozen=True):
    """What an error body says, whatever shape it came in."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    n_ctx: str = ""
    n_prompt_tokens: str = ""


NOBODY = Asked()


def error_for(status: int, headers: Mapping[str, str], body: bytes, asked: Asked = NOBODY) -> AntwortError:
    """The error that an answer with `status` means."""
    return _error(status, read_problem(body) or Problem(), asked, retry_after(headers))


def error_in(body: bytes, asked: Asked = NOBODY) -> AntwortError | None:
    """The error that a chunk, or a whole answer under a 200, carries; None when it carries none."""
    problem = read_problem(body)
    if problem is None:
        return None
    return _error(_status(problem), problem, asked, None)


# ---- reading ----


def read_problem(body: bytes) -> Problem | None:
    """`{"error": {…}}`, `{"error": "…"}`, `{"object": "error", …}` or `{"detail": …}`; None for anything else."""
    try:
        plain = msgspec.json.decode(repair_surrogates(body))
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict):
        return None
    error = plain.get("error")
    if isinstance(error, dict):
        return _problem(error)
    if isinstance(error, str) and error:
        return Problem(message=error)
    if "choices" in plain:
        return None
    if plain.get("object") == "error" or isinstance(plain.get("message"), str):
        return _problem(plain)
    return Problem(message=_text(plain["detail"])) if "detail" in plain else None


def _problem(fields: dict[str, Any]) -> Problem:
    return Problem(*(_text(fields.get(name)) for name in Problem.__struct_fields__))


def _text(value: object) -> str:
    """Codes are numbers or words, details text or lists of anything."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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


def _status(problem: Problem) -> int:
    """The status an error object stands for: its numeric code, or what its type and code say in words."""
    if problem.code.isdecimal() and 400 <= int(problem.code[:4]) <= 599:
        return int(problem.code)
    words = f"{problem.type} {problem.code}".lower()
    return next((status for word, status in _STATUS_BY_WORD if word in words), 500)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds to wait, from `retry-after-ms`, or `Retry-After` as a number or a date."""
    told = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _number(told.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    value = told.get("retry-after", "")
    seconds = _number(value)
    return _bounded(seconds) if seconds is not None else _until(value, time.time() if now is None else now)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), _LONGEST_WAIT)


def _until(value: str, now: float) -> float | None:
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return _bounded(when.timestamp() - now)


# ---- meaning ----


def _error(status: int, problem: Problem, asked: Asked, wait: float | None) -> AntwortError:
    match status:
        case 400 | 413 | 422 | 500 if (overflow := _overflow(status, problem, asked)) is not None:
            return _too_long(status, problem, asked, overflow)
        case 400 | 422:
            return BackendRefused(scrub(problem.message, asked.secrets) or "The backend refused the request.")
        case 404 | 500 | 501 if says_no_tools(problem.message[:_READ_CAP]):
            return BackendRefused(_NO_JINJA if problem.message == _NO_JINJA else _NO_TOOLS)
        case 402 | 403 | 429 if status == 402 or _is_about_money(problem):
            return QuotaUsedUp("The backend's quota is used up.")
        case 401 | 403:
            return BackendError(REFUSED_CREDENTIALS, code=BACKEND_UNAUTHORIZED, may_pass=False)
        case 404 if asked.model and _is_about_the_model(problem):
            return ModelNotFound(asked.model)
        case 404:
            return NotFound("The backend does not offer what was asked of it.")
        case 408 | 504:
            return AnsweredTimeout("The backend took too long.")
        case 429 | 503 | 529:
            return _busy(status, problem, _told_wait(problem) if wait is None else wait)
        case _:
            return BackendError("The backend failed to answer.")


def _busy(status: int, problem: Problem, wait: float | None) -> AntwortError:
    if status == 529 or _is_overloaded(problem):
        return BackendOverloaded(f"The backend has too much to do; try again {_when(wait)}.", retry_after=wait)
    if status == 503:
        return NotReady(f"The backend is not ready; try again {_when(wait)}.", retry_after=wait)
    return RateLimited(f"The backend is answering too many requests; try again {_when(wait)}.", retry_after=wait)


def _when(wait: float | None) -> str:
    """Some clients read the wait out of these words, and know nothing but seconds and milliseconds."""
    return "later" if wait is None else f"in {math.ceil(wait * 1000) / 1000:g}s"


_LENGTH = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s{0,3}(milliseconds?|ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?)(?![a-z])"
)
_AND = r"\s{0,3},?\s{0,3}(?:and\s{1,3})?"
_PART = re.compile(_LENGTH)
_TOLD_WAIT = re.compile(rf"(?:try again|retry(?: again)?) (?:in|after)\s{{0,3}}({_LENGTH}(?:{_AND}{_LENGTH}){{0,3}})")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _told_wait(problem: Problem) -> float | None:
    """Seconds to wait, where it is told in words alone, as it is in the middle of a stream: `20 seconds`, `1m30.5s`,
    `1 minute and 30 seconds`.
    """
    found = _TOLD_WAIT.search(problem.message[:_READ_CAP].lower())
    return None if found is None else _bounded(sum(_length(*part) for part in _PART.findall(found[1])))


def _length(number: str, unit: str) -> float:
    return float(number) * (0.001 if unit.startswith(("ms", "milli")) else _SECONDS[unit[0]])


_QUOTA_CODES = ("insufficient_quota", "billing_", "credit_balance", "spend_limit", "usage_limit")


def _is_about_money(problem: Problem) -> bool:
    words = f"{problem.type} {problem.code}".lower()
    return any(code in words for code in _QUOTA_CODES)


def _is_overloaded(problem: Problem) -> bool:
    words = f"{problem.type} {problem.code}".lower()
    return "overloaded" in words or "slow_down" in words


_NO_JINJA = "tools param requires --jinja flag"
"""How llama.cpp refuses tools where it is told to do without templates: as if it had failed."""

_NO_TOOLS = "The backend does not support tools, or not as they were asked for."
"""How others refuse them as if they had failed, or were not there: in our words, as theirs may name who they are."""

_CONTEXT_CODES = frozenset(
    {"exceed_context_size_error", "context_length_exceeded", "context_window_exceeded", "model_context_window_exceeded"}
)


def _has_context_code(problem: Problem) -> bool:
    return not {problem.type.lower(), problem.code.lower()}.isdisjoint(_CONTEXT_CODES)


def _overflow(status: int, problem: Problem, asked: Asked) -> Overflow | None:
    """What is said of a request that is too long, by a code, in words, or by the status alone."""
    told = overflow_in(problem.message[:_READ_CAP], asked.sent)
    if told is None and (status == 413 or _has_context_code(problem)):
        return Overflow()
    return told


def _too_long(status: int, problem: Problem, asked: Asked, told: Overflow) -> ContextTooLong:
    limit = number(problem.n_ctx)
    return ContextTooLong(
        _context_message(status, problem, asked),
        param="input",
        limit=limit or told.limit,
        asked=number(problem.n_prompt_tokens) or told.asked,
        is_firm=limit is not None or _has_context_code(problem),
    )


def _context_message(status: int, problem: Problem, asked: Asked) -> str:
    text = scrub(problem.message, asked.secrets) if status != 500 else ""
    return text or "The input is longer than the model's context."


def _is_about_the_model(problem: Problem) -> bool:
    return problem.param == "model" or "model" in f"{problem.code} {problem.message}".lower()


# ---- scrubbing ----

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
    """`text` on one line, without addresses and keys, at most `MESSAGE_CAP` characters."""
    if len(text) > _READ_CAP:
        text = text[:_READ_CAP].rpartition(" ")[0]  # a key cut in two would no longer look like one
    text = " ".join(_SENSITIVE.sub(_REMOVED, without(text, secrets)).split())
    return text if len(text) <= MESSAGE_CAP else text[: MESSAGE_CAP - 1] + "…"


def without(text: str, secrets: tuple[str, ...]) -> str:
    """`text` without these, and with all else that is in it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = re.sub(_exactly(secret), _REMOVED, text, flags=re.IGNORECASE)
    return text


def _exactly(secret: str) -> str:
    """A short one, say the host `llm`, only where it stands alone."""
    return re.escape(secret) if len(secret) >= 8 else rf"(?<![\w.-]){re.escape(secret)}(?![\w-])"
