"""The OpenAPI document of a server: the routes it has, its limits, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from antwort.api.wire import Plain
from antwort.server.description import Credentials, Offer, servers
from antwort.server.openapi.answers import answer_schemas
from antwort.server.openapi.operation import JSON, Answered, Operation
from antwort.server.openapi.operations import EVENTS, HTML, METRICS, OPERATIONS, TAGS, as_offered, unknown
from antwort.server.openapi.parts import (
    ERRORS,
    EVERY_REQUEST,
    FOR_ALL,
    HEADERS,
    PARAMETERS,
    either,
    error_answer,
    header,
)
from antwort.server.openapi.requests import request_schemas
from antwort.server.openapi.schemas import OBJECT, TEXT, any_of, reached, ref, referred
from antwort.server.openapi.sockets import ADDRESS, KEY, SOCKET, socket_schemas
from antwort.server.openapi.strictly import strictly
from antwort.version import __version__

_ABOUT = (
    "An agentic execution engine that speaks the OpenAI Responses API, and Open Responses, in front of any Chat"
    " Completions backend.\n\n"
    "Every error is JSON and has the same four keys. `GET` can be asked as `HEAD` too, everywhere. Query parameters and"
    " fields that are not listed are not looked at."
)
_SCHEMES: dict[str, Plain] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key. It can come as `X-API-Key` or `Api-Key`, too.",
    },
    "metrics": {
        "type": "http",
        "scheme": "bearer",
        "description": "The key of the metrics, or an API key that may read them.",
    },
}
_CREDENTIALS: dict[Credentials, str] = {
    "none": "This server asks for no keys.",
    "key": "This server asks for API keys.",
    "own": "The program that this server is a part of asks for credentials of its own, and says which: a `401` tells"
    " that they are missing.",
}


def document(offered: Iterable[tuple[str, str]] = tuple(OPERATIONS), offer: Offer | None = None) -> Plain:
    """`offered` are the routes by method and address; what a client fills in stands in braces."""
    offer = offer or Offer()
    paths = _paths(offered, offer)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "antwort",
            "version": __version__,
            "summary": "The Responses API in front of any Chat Completions backend.",
            "description": f"{_ABOUT}\n\n{_CREDENTIALS[offer.credentials]}",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": servers("/"),
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": _components(paths, offer),
    }


def _paths(offered: Iterable[tuple[str, str]], offer: Offer) -> Plain:
    paths: dict[str, Plain] = {}
    for method, address in offered:
        if method == "HEAD" or (address == _METRICS and offer.metrics == "hidden"):
            continue
        row = OPERATIONS.get((method, address)) or unknown(method, address)
        scheme = _scheme(row, address, offer)
        paths.setdefault(address, {})[method.lower()] = _operation(as_offered(row, offer), scheme)
    if offer.websocket and ADDRESS in paths:
        paths[ADDRESS] = {KEY: SOCKET, **paths[ADDRESS]}
    return paths


_METRICS = "/metrics"


def _scheme(row: Operation, address: str, offer: Offer) -> str:
    """By which of the schemes a key is asked for; empty: by none that is known here."""
    if address == _METRICS:
        return "metrics" if offer.metrics == "locked" else ""
    return "key" if offer.credentials == "key" and not row.is_open else ""


def _components(paths: Plain, offer: Offer) -> Plain:
    about = "An OpenAPI 3.1 document."
    answers = strictly(answer_schemas()) if offer.strict else answer_schemas()
    asked_for = {**request_schemas(offer.limits, background=offer.background), **socket_schemas()}
    schemas = {**answers, **asked_for, "Document": {**OBJECT, "description": about}}
    errors = {name: error_answer(status, tells_quotas=offer.tells_quotas) for status, (name, _) in ERRORS.items()}
    responses = _used("responses", errors, paths)
    asked = {each for methods in paths.values() for row in methods.values() for each in _schemes(row)}
    made: Plain = {
        "schemas": reached(schemas, [paths, ref("ErrorBody")]),
        "parameters": _used("parameters", PARAMETERS, paths),
        "headers": _used("headers", HEADERS, [paths, responses]),
        "responses": responses,
        "securitySchemes": {name: scheme for name, scheme in _SCHEMES.items() if name in asked},
    }
    return {kind: entries for kind, entries in made.items() if entries}


def _schemes(operation: Plain) -> Iterator[str]:
    for either_of in operation.get("security", ()):
        yield from either_of


def _used(kind: str, table: Plain, start: object) -> Plain:
    """Those of the table that `start` refers to."""
    names = set(referred(start, f"#/components/{kind}/"))
    return {name: entry for name, entry in table.items() if name in names}


def _operation(row: Operation, scheme: str) -> Plain:
    made: Plain = {"operationId": row.name, "tags": [row.tag], "summary": row.summary}
    if row.description:
        made["description"] = row.description
    made["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in (*row.parameters, *FOR_ALL)]
    if row.body:
        made["requestBody"] = _body(row)
    made["responses"] = _answers(row)
    return {**made, "security": [{scheme: []}]} if scheme else made


def _body(row: Operation) -> Plain:
    examples = {f"example{number}": _example(*each) for number, each in enumerate(row.examples.items(), 1)}
    return {"required": True, "content": {JSON: {"schema": ref(row.body), "examples": examples}}}


def _example(summary: str, value: Plain) -> Plain:
    return {"summary": summary, "value": value}


def _answers(row: Operation) -> Plain:
    """By status. A server without keys turns away those who come from far, unless it was told not to."""
    errors = sorted({*EVERY_REQUEST, *(() if row.is_open else (401,)), *row.errors})
    made: dict[str, Any] = {str(status): _answer(status, answer) for status, answer in row.answers.items()}
    for status in errors:
        made.setdefault(str(status), {"$ref": f"#/components/responses/{ERRORS[status][0]}"})
    return dict(sorted(made.items()))


def _answer(status: int, answer: Answered) -> Plain:
    made: Plain = {
        "description": answer.about,
        "headers": {name: header(name) for name in ("X-Request-ID", *answer.headers)},
    }
    content = {kind: _medium(kind, name) for kind, name in answer.content.items()}
    if status >= 400:
        content = {kind: {"schema": either(medium["schema"])} for kind, medium in content.items()}
    return {**made, "content": content} if content else made


def _medium(kind: str, name: str) -> Plain:
    """OpenAPI 3.1 has no word for the items of a stream; the one that 3.2 has stands behind an `x-`, as it has it."""
    if kind == EVENTS:
        about = f"Server-sent events. The data of each but the last, which is `[DONE]`, is the JSON of a `{name}`."
        data = {**TEXT, "contentMediaType": JSON, "contentSchema": ref(name)}
        event = {"type": "object", "properties": {"event": TEXT, "data": data}, "required": ["event", "data"]}
        end = {"type": "object", "properties": {"data": {"const": "[DONE]"}}, "required": ["data"]}
        return {"schema": {**TEXT, "description": about}, "x-itemSchema": any_of(event, end)}
    if kind in (HTML, *METRICS):
        return {"schema": TEXT}
    return {"schema": ref(name) if name else {}}
