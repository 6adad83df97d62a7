"""Make the OpenAPI document of a server: its routes, with its limits, its credentials and its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

import msgspec

from antwort.api.items import MAX_ITEM_ID
from antwort.api.resources import ApprovalStatus
from antwort.api.status import ResponseStatus
from antwort.api.wire import Plain
from antwort.engine.runs.idempotency import MAX_KEY_CHARS
from antwort.server.offer import Offer
from antwort.server.openapi_schemas import (
    TEXT,
    answer_schemas,
    any_of,
    described,
    nonempty_text,
    one_of,
    reachable,
    ref,
    references,
    request_schemas,
)
from antwort.server.resources import MAX_ID
from antwort.version import __version__

MODEL = "MODEL"
"""The model of the examples where none is known."""

_JSON, _EVENTS = "application/json", "text/event-stream"
_COUNT: Plain = {"type": "integer", "minimum": 0}


# ---- parameters, headers and errors ----

_STATUSES = "|".join(get_args(ResponseStatus))
_ID: Plain = {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{MAX_ID}}}$"}
_PARAMETERS: dict[str, tuple[str, str, Plain]] = {
    "id": ("path", "The id of a response.", _ID),
    "conversation": ("path", "The id of a conversation.", _ID),
    "approval": ("path", "The id of an approval: that of its `mcp_approval_request`.", _ID),
    "item": ("path", "The id of an item.", nonempty_text(MAX_ITEM_ID)),
    "name": ("path", "The name of a model. It may contain slashes.", nonempty_text()),
    "limit": ("query", "The size of a page.", {**_COUNT, "minimum": 1, "maximum": 100, "default": 20}),
    "order": ("query", "Newest or oldest first.", {**one_of("asc", "desc"), "default": "desc"}),
    "after": ("query", "Only entries after the one with this id.", TEXT),
    "before": ("query", "Only entries before the one with this id.", TEXT),
    "model": ("query", "Only responses of this model.", TEXT),
    "status": (
        "query",
        "Only responses with this status. Repeat it, or separate several by commas.",
        {"type": "string", "pattern": f"^({_STATUSES})(,({_STATUSES}))*$"},
    ),
    "approval_status": ("query", "Only approvals with this status.", one_of(*get_args(ApprovalStatus))),
    "stream": (
        "query",
        "Answer with the events of the response, with their numbers, and with further ones as they happen.",
        one_of("true", "1", "false", "0", ""),
    ),
    "starting_after": ("query", "With `stream`: the number of the last event that you have.", _COUNT),
    "X-Request-ID": (
        "header",
        "Your id for the request in logs and answer: up to 128 letters, digits and `._~:/+=@,-`. Others are replaced.",
        TEXT,
    ),
    "If-None-Match": ("header", "The `ETag` of your copy.", TEXT),
    "Idempotency-Key": (
        "header",
        "A unique key. Retries with the same body get the same response, even while it runs; another body gets a 409.",
        {"type": "string", "pattern": f"^[!-~]{{1,{MAX_KEY_CHARS}}}$"},
    ),
    "Antwort-On-Disconnect": (
        "header",
        "What to do with a stored response when the client disconnects. Default: a setting of the server.",
        one_of("cancel", "continue"),
    ),
}
_OTHER_NAMES = {"conversation": "id", "approval": "id", "item": "item_id", "approval_status": "status"}
"""The names of parameters that have others as components."""
_LISTED = ("limit", "order", "after", "before")

_QUOTA: dict[str, tuple[str, Plain]] = {
    f"X-RateLimit-{what}-{unit}": (f"{about.format(unit.lower())} Sent for keys with such a limit.", schema)
    for unit in ("Requests", "Tokens")
    for what, about, schema in (
        ("Limit", "The {} that the key may use in a minute.", _COUNT),
        ("Remaining", "The {} that are left of the limit.", _COUNT),
        ("Reset", "The time until all {} are available again, such as `8.64s` or `6m0s`.", TEXT),
    )
}
_HEADERS: dict[str, tuple[str, Plain]] = {
    "X-Request-ID": ("The id of the request, as in the logs.", TEXT),
    "Retry-After": ("Seconds after which to retry.", _COUNT),
    "Retry-After-Ms": ("The same in milliseconds.", _COUNT),
    "X-Should-Retry": ("Whether a retry may succeed.", one_of("true", "false")),
    "Idempotent-Replayed": ("An earlier request with this key has made the response.", one_of("true")),
    "WWW-Authenticate": ("How to authenticate.", TEXT),
    "ETag": ("Changes with the content.", TEXT),
    "Cache-Control": ("Whether the answer may be cached.", TEXT),
    "Antwort-Warning": ("The fields of the request that are not known here.", TEXT),
    "X-Accel-Buffering": ("Tells proxies not to buffer a stream.", one_of("no")),
    "Content-Security-Policy": ("Only content of this server.", TEXT),
    "X-Content-Type-Options": ("The content type is right.", one_of("nosniff")),
    **_QUOTA,
}
_ALWAYS_SENT = ("X-Request-ID", "WWW-Authenticate", "ETag", "Content-Security-Policy", "X-Content-Type-Options")
_CACHED = ("ETag", "Cache-Control")
_STREAMED = ("Cache-Control", "X-Accel-Buffering")

ERRORS: dict[int, tuple[str, str]] = {
    400: ("BadRequest", "The request is wrong. The error names the field, or the fault in its HTTP or JSON."),
    401: ("NotAuthenticated", "The key is missing or wrong."),
    403: ("NotPermitted", "You may not use this model, or the server does not answer under this host name."),
    404: ("NotFound", "It does not exist, or belongs to someone else."),
    408: ("RequestTooSlow", "The request arrived too slowly."),
    409: ("Conflict", "It conflicts with a request that still runs, with an earlier one, or with a decision."),
    413: ("BodyTooLarge", "The body is too large."),
    415: ("WrongMediaType", "The body is not JSON."),
    429: ("RateLimited", "A rate limit is reached. The headers say when to retry."),
    431: ("HeadTooLarge", "The URL and headers, or the trailers of the body, are too large."),
    500: ("ServerFault", "The server has failed, or its store."),
    501: ("UnknownTransferCoding", "The transfer coding of the body is not `chunked`."),
    502: ("BackendError", "The backend has failed, or its answer broke off."),
    503: ("Unavailable", "The backend cannot be reached, or the server is shutting down."),
    504: ("BackendTimeout", "The backend did not answer in time."),
}
"""The component and the description of each error, by status."""
_BEFORE_ROUTING = (400, 408, 431, 501)
_FAILURES = (500, 503)
_BACKEND_FAILURES = (*_FAILURES, 502, 504)
_RETRIED = (409, 429, *_BACKEND_FAILURES)


def _parameter(name: str, where: str, about: str, schema: Plain) -> Plain:
    required = {"required": True} if where == "path" else {}
    return {"name": _OTHER_NAMES.get(name, name), "in": where, **required, "description": about, "schema": schema}


def _header(name: str, about: str, schema: Plain) -> Plain:
    required = {"required": True} if name in _ALWAYS_SENT else {}
    return {"description": about, "schema": schema, **required}


def _error(status: int, offer: Offer) -> Plain:
    headers = ["X-Should-Retry", *(["WWW-Authenticate"] if status == 401 else [])]
    headers += ["Retry-After", "Retry-After-Ms"] if status in _RETRIED else []
    headers += _QUOTA if status == 429 and offer.tells_quotas else ()
    return _answer(ERRORS[status][1], {_JSON: {"schema": ref("ErrorBody")}}, *headers)


def _answer(about: str, content: Plain | None = None, *headers: str) -> Plain:
    """Return what OpenAPI calls a response. `content` is by media type."""
    named = {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-ID", *headers)}
    return {"description": about, "headers": named, **({"content": content} if content else {})}


# ---- operations ----


class Operation(msgspec.Struct, frozen=True):
    """An operation, without what follows from its method and path."""

    name: str
    """The `operationId`."""
    summary: str
    returns: str = ""
    """The schema of its answer. Other answers than JSON are in `_answers`."""
    description: str = ""
    body: str = ""
    """The schema of the body."""
    examples: Mapping[str, Plain] = {}
    """Bodies by what they show, without the model."""
    parameters: tuple[str, ...] = ()
    """Keys of `_PARAMETERS`."""


_TAGS = {
    "responses": ("Responses", "A model answers and calls tools. Only their owner can see stored responses."),
    "conversations": ("Conversations", "Items under one id, for any number of requests. Not part of Open Responses."),
    "approvals": ("Approvals", "Tool calls that need the approval of the client. An extension."),
    "models": ("Models", "The models that requests can name."),
    "toolsets": ("Tools", "The tools of this server. An extension."),
    "": ("Server", "Health, metrics and this description. Without keys, except for metrics where keys are required."),
}
"""Names and descriptions, by what stands behind `/v1/`."""
_QUESTION: Plain = {"input": "Say hello."}
_MESSAGE: Plain = {"role": "user", "content": "Hello"}
_WEATHER: Plain = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_CITY: Plain = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses"): Operation(
        "createResponse",
        "Create a response",
        "Response",
        "The model answers and calls tools. The server runs its own tools and continues with their results. Calls of"
        " your functions end the response; send their results in the next request.\n\nWith `stream`, returns events as"
        " they happen. Errors before the first event have an HTTP status; later ones end the stream with"
        " `response.failed`.",
        body="CreateResponse",
        examples={
            "A question": _QUESTION,
            "A streamed answer": {**_QUESTION, "stream": True},
            "A function of the client": {"input": "Is it warm in Rome?", "tools": [_WEATHER]},
            "JSON that matches a schema": {
                "input": "Rome has 2.8 million people.",
                "text": {"format": {"type": "json_schema", "name": "city", "schema": _CITY}},
            },
        },
        parameters=("Idempotency-Key", "Antwort-On-Disconnect"),
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "countInputTokens",
        "Count the tokens of an input",
        "InputTokens",
        "Returns how many input tokens a response with this body would have: by the tokenizer of the backend if it has"
        " one, else as an estimate that each answer corrects. With `truncation: auto`, the tokens that would be sent."
        " Stores nothing, and makes no inference.",
        body="CreateResponse",
        examples={"A question": _QUESTION},
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "compactResponse",
        "Compact a conversation",
        "CompactedResponse",
        "The model summarizes the conversation. To continue it, begin the next `input` with the `output`, without"
        " `previous_response_id`: a `compaction` item, which is encrypted for this server and you, and the latest turns"
        " unchanged. Stores nothing.",
        body="CompactResponse",
        examples={"A conversation": {"input": [_MESSAGE, {"role": "assistant", "content": "Hello, how are you?"}]}},
    ),
    ("GET", "/v1/responses"): Operation(
        "listResponses",
        "List your stored responses",
        "ResponseList",
        "An extension.",
        parameters=(*_LISTED, "model", "status"),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "getResponse",
        "Retrieve a response",
        "Response",
        "Returns a stored response as it stands, also while it runs.\n\nWith `stream`, returns its events. To resume a"
        " stream, send the number of the last event in `starting_after`. One that was not streamed, or ended long ago,"
        " has events from the beginning only.",
        parameters=("id", "stream", "starting_after"),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "deleteResponse",
        "Delete a response",
        "Deleted",
        "A running response is cancelled first. References to its items stop working.",
        parameters=("id",),
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "cancelResponse",
        "Cancel a response",
        "Response",
        "Ends a response that runs or is queued. One that has ended stays as it is.",
        parameters=("id",),
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "listInputItems", "List the input items of a response", "ItemList", parameters=("id", *_LISTED)
    ),
    ("POST", "/v1/conversations"): Operation(
        "createConversation",
        "Create a conversation",
        "Conversation",
        "Requests that name it in `conversation` continue it.",
        body="CreateConversation",
        examples={
            "An empty conversation": {},
            "With a first message": {"items": [_MESSAGE], "metadata": {"topic": "weather"}},
        },
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        "getConversation",
        "Retrieve a conversation",
        "Conversation",
        "Its items are listed separately.",
        parameters=("conversation",),
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        "updateConversation",
        "Replace the metadata of a conversation",
        "Conversation",
        body="UpdateConversation",
        examples={"A topic": {"metadata": {"topic": "travel"}}},
        parameters=("conversation",),
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        "deleteConversation",
        "Delete a conversation",
        "ConversationDeleted",
        "Deletes its items too, but not the responses that continued it.",
        parameters=("conversation",),
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        "listConversationItems",
        "List the items of a conversation",
        "ItemList",
        "A page of large items may be shorter than `limit`: go by `has_more`.",
        parameters=("conversation", *_LISTED),
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "addConversationItems",
        "Add items to a conversation",
        "ItemList",
        "Appends them in this order, with nothing between them, and returns them. An item keeps its id unless it is"
        " taken. A reference becomes a copy of its item.",
        body="AddItems",
        examples={"A message": {"items": [_MESSAGE]}},
        parameters=("conversation",),
    ),
    ("GET", "/v1/conversations/{id}/items/{item_id}"): Operation(
        "getConversationItem", "Retrieve an item of a conversation", "Item", parameters=("conversation", "item")
    ),
    ("DELETE", "/v1/conversations/{id}/items/{item_id}"): Operation(
        "deleteConversationItem",
        "Delete an item of a conversation",
        "Conversation",
        "Returns the conversation.",
        parameters=("conversation", "item"),
    ),
    ("GET", "/v1/approvals"): Operation(
        "listApprovals",
        "List tool calls that need approval",
        "ApprovalList",
        "Those of stored responses, also decided and expired ones. A page of large arguments may be shorter than"
        " `limit`: go by `has_more`.",
        parameters=(*_LISTED, "approval_status"),
    ),
    ("GET", "/v1/approvals/{id}"): Operation(
        "getApproval",
        "Retrieve a tool call that needs approval",
        "Approval",
        "To decide it, continue its response with an `mcp_approval_response` in the input.",
        parameters=("approval",),
    ),
    ("GET", "/v1/models"): Operation("listModels", "List the models that you may use", "ModelList"),
    ("GET", "/v1/models/{name}"): Operation("getModel", "Retrieve a model", "Model", parameters=("name",)),
    ("GET", "/v1/toolsets"): Operation(
        "listToolsets",
        "List the tools of this server",
        "ToolsetList",
        "Each toolset is as a request would see it. Requests use it with a tool of type `mcp` and its `server_label`.",
    ),
    ("GET", "/healthz"): Operation("getHealth", "Check that the process answers", "Health"),
    ("GET", "/readyz"): Operation("getReadiness", "Check that the server can work", "Readiness"),
    ("GET", "/metrics"): Operation(
        "getMetrics", "Read the metrics", "", "In the text format of Prometheus, or as OpenMetrics where accepted."
    ),
    ("GET", "/openapi.json"): Operation("getOpenapi", "Read this document", "Document", parameters=("If-None-Match",)),
    ("GET", "/docs"): Operation("getDocs", "Open this document as a page", parameters=("If-None-Match",)),
}


def _about_responses(offer: Offer) -> str:
    """Return what to add to the description of `POST /v1/responses`."""
    paragraphs = ""
    if offer.background:
        paragraphs += (
            "\n\nWith `background`, the request returns at once with the status `queued`. The response is produced"
            " whether or not a client is connected. Poll it by its id, read its events from any number on, or cancel."
        )
    if offer.websocket:
        paragraphs += (
            "\n\nThe same path speaks WebSocket, for many responses on one connection: each message is a"
            " `WebSocketResponseCreateEvent`, and each `StreamEvent` comes back as a message. An error before the first"
            " event is a `WebSocketErrorEvent`."
        )
    return paragraphs


def _about_stream(offer: Offer) -> str:
    """Say how a stream is written and how it ends, by the setting `requires_action`."""
    last, more = "`response.completed`, `response.incomplete` or `response.failed`", ""
    if offer.requires_action == "event":
        last = f"{last}, or `response.requires_action` if the client has calls to run"
    elif offer.requires_action == "status":
        more = " A response whose calls the client must run has the status `requires_action` in `response.completed`."
    return (
        "The response, or with `stream` its events. A frame has the type of its event in the line `event:` and its JSON"
        " in the line `data:`. Lines that begin with a colon are comments. The last event is one of"
        f" {last}, and carries the whole response.{more} The last frame is `data: [DONE]`."
    )


def _answers(operation: Operation, offer: Offer) -> dict[int, Plain]:
    """Return the answers of an operation that are not errors, by status."""
    json: Plain = {_JSON: {"schema": ref(operation.returns)}} if operation.returns else {}
    text: Plain = {"schema": TEXT}
    match operation.name:
        case "createResponse":
            replayed = ("Idempotent-Replayed",) if offer.remembers_keys else ()
            quota = _QUOTA if offer.tells_quotas else ()
            return {
                200: _answer(
                    _about_stream(offer), {**json, _EVENTS: _STREAM}, "Antwort-Warning", *replayed, *_STREAMED, *quota
                )
            }
        case "getResponse":
            about = "The response, or with `stream` its events."
            return {200: _answer(about, {**json, _EVENTS: _STREAM}, *_STREAMED)}
        case "countInputTokens" | "compactResponse":
            return {200: _answer("Success.", json, *(_QUOTA if offer.tells_quotas else ()))}
        case "getReadiness":
            failed: Plain = {_JSON: {"schema": any_of(ref("Readiness"), ref("ErrorBody"))}}
            return {200: _answer("It can.", json), 503: _answer("A part has failed, or it shuts down.", failed)}
        case "getMetrics":
            return {200: _answer("Success.", {"text/plain": text, "application/openmetrics-text": text})}
        case "getOpenapi" | "getDocs":
            content, headers = json, list(_CACHED)
            if operation.name == "getDocs":
                content, headers = {"text/html": text}, [*headers, "Content-Security-Policy", "X-Content-Type-Options"]
            return {200: _answer("Success.", content, *headers), 304: _answer("Your copy is current.", {}, *headers)}
    return {200: _answer("Success.", json or {"*/*": {"schema": {}}})}


# OpenAPI 3.1 cannot describe the items of a stream. 3.2 can, with what is called `x-itemSchema` here.
_STREAM: Plain = {
    "schema": described(
        TEXT, "Server-sent events. The data of each is the JSON of a `StreamEvent`; that of the last is `[DONE]`."
    ),
    "x-itemSchema": any_of(
        {
            "type": "object",
            "properties": {
                "event": TEXT,
                "data": {**TEXT, "contentMediaType": _JSON, "contentSchema": ref("StreamEvent")},
            },
            "required": ["event", "data"],
        },
        {"type": "object", "properties": {"data": {"const": "[DONE]"}}, "required": ["data"]},
    ),
}


def _failures(path: str, operation: Operation, offer: Offer) -> set[int]:
    """Return the statuses of the errors of an operation."""
    found = {*_BEFORE_ROUTING, *_FAILURES}
    if path == "/metrics":
        found |= {401, 403, 404}
    elif path.startswith("/v1/"):
        found |= {401, 403}
    if "{" in path or operation.body:
        found |= {404}
    if operation.body:
        found |= {413, 415}
    if operation.body in ("CreateResponse", "CompactResponse"):
        found |= {409, 429, *_BACKEND_FAILURES}
    if path.startswith("/v1/models"):
        found |= {*_BACKEND_FAILURES}
    # The standard has one status for all failures. Those before routing do not follow it.
    return {status if status == 501 else min(status, 500) for status in found} if offer.strict else found


# ---- the document ----

_CREDENTIALS = {
    "none": "This server needs no keys.",
    "key": "This server asks for API keys.",
    "own": "This server is part of a program that asks for credentials of its own. Without them, requests get a `401`.",
}
_SCHEMES: dict[str, Plain] = {
    name: {"type": "http", "scheme": "bearer", "description": about}
    for name, about in {
        "key": "An API key. The headers `X-API-Key` and `Api-Key` are accepted too.",
        "metrics": "The key for metrics, or an API key that may read them.",
    }.items()
}
_SOCKET: Plain = {
    "description": "Open a WebSocket at `/v1/responses`. Each message asks for a response; further messages wait in a"
    " queue. Events are those of a stream, one in each message, without `[DONE]`. After an error, a"
    " `WebSocketErrorEvent`, the connection stays open. `response.steer` is answered with `response.steer.failed`,"
    " which returns the input.",
    "clientMessage": ref("WebSocketResponseCreateEvent"),
    "errorMessage": ref("WebSocketErrorEvent"),
    "x-openresponses-added-in": "2026-04-24",
}


def servers(url: str) -> list[Plain]:
    return [{"url": url, "description": "This server."}]


def document(
    offered: Iterable[tuple[str, str]] = tuple(OPERATIONS), offer: Offer | None = None, model: str = ""
) -> Plain:
    """Return the document for the routes in `offered`, by method and path. `model` is the one in the examples."""
    offer, paths = offer or Offer(), dict[str, Plain]()
    for method, path in offered:
        if method != "HEAD" and not (path == "/metrics" and offer.metrics == "hidden"):
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, offer, model or MODEL)
    if offer.websocket and "/v1/responses" in paths:
        paths["/v1/responses"] = {"x-openresponses-websocket": _SOCKET, **paths["/v1/responses"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "antwort",
            "version": __version__,
            "summary": "The OpenAI Responses API and Open Responses, in front of any Chat Completions backend.",
            "description": f"{_CREDENTIALS[offer.credentials]}\n\nEvery error is JSON with the same four keys. `HEAD`"
            " works wherever `GET` does. Unknown query parameters and fields are ignored.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": servers("/"),
        "tags": [{"name": name, "description": about} for name, about in _TAGS.values()],
        "paths": paths,
        "components": _components(paths, offer),
    }


def _operation(method: str, path: str, offer: Offer, model: str) -> Plain:
    """Return what OpenAPI calls an operation."""
    operation = OPERATIONS.get((method, path)) or _added(method, path)
    tag, _ = _TAGS.get(path.split("/")[2] if path.startswith("/v1/") else "", _TAGS[""])
    made: Plain = {"operationId": operation.name, "tags": [tag], "summary": operation.summary}
    about = operation.description + (_about_responses(offer) if operation.name == "createResponse" else "")
    if about:
        made["description"] = about
    left_out = () if offer.remembers_keys else ("Idempotency-Key",)
    names = [name for name in (*operation.parameters, "X-Request-ID") if name not in left_out]
    made["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if operation.body:
        named = {"model": model} if operation.body in ("CreateResponse", "CompactResponse") else {}
        examples = {
            f"example{number}": {"summary": summary, "value": {**named, **body}}
            for number, (summary, body) in enumerate(operation.examples.items(), 1)
        }
        content = {_JSON: {"schema": ref(operation.body), "examples": examples}}
        made["requestBody"] = {"required": True, "content": content}
    failures = _failures(path, operation, offer)
    answers = {status: {"$ref": f"#/components/responses/{ERRORS[status][0]}"} for status in failures}
    answers |= _answers(operation, offer)
    made["responses"] = {str(status): answers[status] for status in sorted(answers)}
    if path == "/metrics" and offer.metrics == "locked":
        made["security"] = [{"metrics": []}]
    elif path.startswith("/v1/") and offer.credentials == "key":
        made["security"] = [{"key": []}]
    return made


def _added(method: str, path: str) -> Operation:
    """Describe a route that was added by the program that the server is part of."""
    words = path.replace("{", "").replace("}", "").replace(".", "/").split("/")
    name = method.lower() + "".join(word.title() for word in words)
    return Operation(name, path, "", "Added by the program that this server is part of.")


def _components(paths: Plain, offer: Offer) -> Plain:
    """Return the components that the paths refer to, and nothing else."""
    schemas = {**answer_schemas(strict=offer.strict), **request_schemas(offer.limits, background=offer.background)}
    errors = {name: _error(status, offer) for status, (name, _) in ERRORS.items()}
    responses = _used("responses", errors, paths)
    asked = {"key": offer.credentials == "key", "metrics": offer.metrics == "locked" and "/metrics" in paths}
    components: Plain = {
        "schemas": reachable(schemas, [paths, ref("ErrorBody")]),
        "parameters": _used("parameters", {name: _parameter(name, *row) for name, row in _PARAMETERS.items()}, paths),
        "headers": _used("headers", {name: _header(name, *row) for name, row in _HEADERS.items()}, [paths, responses]),
        "responses": responses,
        "securitySchemes": {name: scheme for name, scheme in _SCHEMES.items() if asked[name]},
    }
    return {kind: entries for kind, entries in components.items() if entries}


def _used(kind: str, table: Plain, start: object) -> Plain:
    names = set(references(start, f"#/components/{kind}/"))
    return {name: entry for name, entry in table.items() if name in names}
