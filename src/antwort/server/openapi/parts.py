"""The parameters, the headers and the errors that operations share."""

from __future__ import annotations

from typing import get_args

from antwort.api.items import MAX_ITEM_ID
from antwort.api.resources import ApprovalStatus
from antwort.api.status import ResponseStatus
from antwort.api.wire import Plain
from antwort.engine.runs.idempotency import MAX_KEY_CHARS
from antwort.server.openapi.schemas import TEXT, any_of, ref
from antwort.server.resources import MAX_ID

_STATUSES = "|".join(get_args(ResponseStatus))
_WHOLE: Plain = {"type": "integer", "minimum": 0}


def _query(name: str, about: str, schema: Plain) -> Plain:
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _header(name: str, about: str, schema: Plain) -> Plain:
    return {"name": name, "in": "header", "description": about, "schema": schema}


def _path(name: str, about: str, schema: Plain) -> Plain:
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


_ID: Plain = {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{MAX_ID}}}$"}
_KEY: Plain = {"type": "string", "pattern": f"^[!-~]{{1,{MAX_KEY_CHARS}}}$"}

PARAMETERS: dict[str, Plain] = {
    "id": _path("id", "The id of a response.", _ID),
    "conversation": _path("id", "The id of a conversation.", _ID),
    "approval": _path("id", "The id of an approval: that of its `mcp_approval_request`.", _ID),
    "item": _path("item_id", "The id of an item.", {"type": "string", "minLength": 1, "maxLength": MAX_ITEM_ID}),
    "name": _path("name", "The name of a model; it may have slashes in it.", {"type": "string", "minLength": 1}),
    "limit": _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    "order": _query("order", "The newest first, or the oldest.", {"enum": ["asc", "desc"], "default": "desc"}),
    "after": _query("after", "Those that come after the one with this id.", TEXT),
    "before": _query("before", "Those that come before the one with this id.", TEXT),
    "model": _query("model", "Only those of this model.", TEXT),
    "status": _query(
        "status",
        "Only those that stand so; several are separated by commas, or given one by one.",
        {"type": "string", "pattern": f"^({_STATUSES})(,({_STATUSES}))*$"},
    ),
    "approval_status": _query("status", "Only those that stand so.", {"enum": [*get_args(ApprovalStatus)]}),
    "stream": _query(
        "stream",
        "Whether the answer is a stream: the events that there were, each with the number that it had, and those to"
        " come.",
        {"enum": ["true", "1", "false", "0", ""]},
    ),
    "starting_after": _query(
        "starting_after",
        "With `stream`: the number of the last event that you have, to be sent those behind it.",
        _WHOLE,
    ),
    "X-Request-ID": _header(
        "X-Request-ID",
        "Your word for this request, in the logs and in the answer: letters, digits and `._~:/+=@,-`, 128 at most."
        " In the place of any other, one is made.",
        TEXT,
    ),
    "If-None-Match": _header("If-None-Match", "The `ETag` of what you have.", TEXT),
    "Idempotency-Key": _header(
        "Idempotency-Key",
        "A word of your own for this request. Sent again with the same body, it gives the same response, also while"
        " that still runs; with another body it is refused.",
        _KEY,
    ),
    "Antwort-On-Disconnect": _header(
        "Antwort-On-Disconnect",
        "What becomes of a stored response when you leave before its end: it is cancelled, or made to its end. Unset,"
        " as the server is set.",
        {"enum": ["cancel", "continue"]},
    ),
}
FOR_ALL = ("X-Request-ID",)


def _quota_headers() -> dict[str, Plain]:
    """As OpenAI has them."""
    always = "With every answer to a request for a response, by a key that has such a limit."
    return {
        f"X-RateLimit-{what}-{unit}": {"description": f"{about.format(unit.lower())} {always}", "schema": schema}
        for unit in ("Requests", "Tokens")
        for what, about, schema in (
            ("Limit", "How many {} the key may use in a minute.", _WHOLE),
            ("Remaining", "How many {} are left of that.", _WHOLE),
            ("Reset", "How long it takes until all {} are there again, such as `8.64s` or `6m0s`.", TEXT),
        )
    }


QUOTA = tuple(_quota_headers())
HEADERS: dict[str, Plain] = {
    "X-Request-ID": {"description": "The id of the request, in the logs too.", "schema": TEXT, "required": True},
    "Retry-After": {"description": "Seconds after which it is worth trying again.", "schema": _WHOLE},
    "Retry-After-Ms": {"description": "The same in milliseconds.", "schema": _WHOLE},
    "X-Should-Retry": {"description": "Whether to try again helps at all.", "schema": {"enum": ["true", "false"]}},
    "Idempotent-Replayed": {
        "description": "The response is that of an earlier request with this `Idempotency-Key`.",
        "schema": {"enum": ["true"]},
    },
    "WWW-Authenticate": {"description": "How to come in.", "schema": TEXT, "required": True},
    "ETag": {"description": "Changes with what is answered.", "schema": TEXT, "required": True},
    "Cache-Control": {"description": "Whether it may be kept; of a response, with its stream.", "schema": TEXT},
    "X-Accel-Buffering": {"description": "Tells proxies to hold nothing of a stream back.", "schema": {"const": "no"}},
    "Content-Security-Policy": {"description": "Nothing but the page itself.", "schema": TEXT, "required": True},
    "X-Content-Type-Options": {"description": "It is what it says.", "schema": {"const": "nosniff"}, "required": True},
    **_quota_headers(),
}
_WITH_ERRORS = ("X-Request-ID", "X-Should-Retry")
_LATER = ("Retry-After", "Retry-After-Ms")
_MORE = {401: ("WWW-Authenticate",), 409: _LATER, 429: _LATER, 500: _LATER, 502: _LATER, 503: _LATER, 504: _LATER}

EVERY_REQUEST = (400, 408, 431, 501)
"""How any request can end, before anybody has looked at what it is for."""
ERRORS: dict[int, tuple[str, str]] = {
    400: (
        "BadRequest",
        "The request is wrong: the error names the field, or says what is wrong with its HTTP or JSON.",
    ),
    401: ("NotAuthenticated", "There is no key, or not a right one."),
    403: ("NotPermitted", "You may not use this model, or the server does not answer under this name."),
    404: ("NotFound", "There is nothing here that has this name, or nothing that is yours."),
    408: ("RequestTooSlow", "The request took too long to come in."),
    409: (
        "Conflict",
        "Something of that name is still under way, was made of another request, or is decided otherwise.",
    ),
    413: ("BodyTooLarge", "The body is too large."),
    415: ("WrongMediaType", "The body is not JSON."),
    429: ("RateLimited", "Too much has been asked for; it says when to try again."),
    431: ("HeadTooLarge", "The address and the headers are too large, or the trailers of the body are."),
    500: ("ServerFault", "A defect of ours, or the record could not be read or written."),
    501: ("UnknownTransferCoding", "The body is sent in a transfer coding other than chunked."),
    502: ("BackendError", "The backend failed, or its answer broke off."),
    503: ("Unavailable", "The backend is out of reach, or the server is being stopped."),
    504: ("BackendTimeout", "The backend took too long."),
}
"""By status, what the answer is called among the components, and what has happened."""


def error_answer(status: int, *, tells_quotas: bool = False) -> Plain:
    quota = QUOTA if tells_quotas and status == 429 else ()
    headers = (*_WITH_ERRORS, *_MORE.get(status, ()), *quota)
    return {
        "description": ERRORS[status][1],
        "headers": {name: header(name) for name in headers},
        "content": {"application/json": {"schema": ref("ErrorBody")}},
    }


def header(name: str) -> Plain:
    return {"$ref": f"#/components/headers/{name}"}


def either(schema: Plain) -> Plain:
    """An answer that has the status of an error, and may be one."""
    return any_of(schema, ref("ErrorBody"))
