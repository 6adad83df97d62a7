"""The OpenAPI document of a server: the routes it has, its limits, and whether it asks for keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antwort.api.requests import Limits
from antwort.api.wire import Plain
from antwort.transport.openapi.answers import answer_schemas
from antwort.transport.openapi.operations import (
    EVENTS,
    HTML,
    JSON,
    METRICS,
    OPERATIONS,
    TAGS,
    Answered,
    Operation,
    unknown,
)
from antwort.transport.openapi.parts import (
    ERRORS,
    EVERY_REQUEST,
    FOR_ALL,
    HEADERS,
    PARAMETERS,
    either,
    error_answer,
    header,
)
from antwort.transport.openapi.requests import request_schemas
from antwort.transport.openapi.schemas import OBJECT, TEXT, any_of, reached, ref
from antwort.version import __version__

_ABOUT = (
    "An agentic execution engine that speaks the OpenAI Responses API, and Open Responses, in front of any Chat"
    " Completions backend.\n\n"
    "Every error is JSON and has the same four keys. `GET` can be asked as `HEAD` too, everywhere. Query parameters and"
    " fields that are not listed are not looked at."
)
_KEYS: Plain = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key. It can come as `X-API-Key` or `Api-Key`, too.",
}


def document(
    offered: Iterable[tuple[str, str]] = tuple(OPERATIONS), *, limits: Limits | None = None, asks_for_keys: bool = True
) -> Plain:
    """`offered` are the routes by method and address; what a client fills in stands in braces."""
    paths: dict[str, Plain] = {}
    for method, address in offered:
        if method != "HEAD":
            row = OPERATIONS.get((method, address)) or unknown(method, address)
            paths.setdefault(address, {})[method.lower()] = _operation(row, asks_for_keys=asks_for_keys)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "antwort",
            "version": __version__,
            "summary": "The Responses API in front of any Chat Completions backend.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Relative to the document, wherever the application is mounted.
        "servers": [{"url": ".", "description": "This server."}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": _components(paths, limits or Limits(), asks_for_keys=asks_for_keys),
    }


def _components(paths: Plain, limits: Limits, *, asks_for_keys: bool) -> Plain:
    about = "An OpenAPI 3.1 document."
    schemas = {**answer_schemas(), **request_schemas(limits), "Document": {**OBJECT, "description": about}}
    made: Plain = {
        "schemas": reached(schemas, [paths, ref("ErrorBody")]),
        "parameters": PARAMETERS,
        "headers": HEADERS,
        "responses": {name: error_answer(status) for status, (name, _) in ERRORS.items()},
    }
    return {**made, "securitySchemes": {"key": _KEYS}} if asks_for_keys else made


def _operation(row: Operation, *, asks_for_keys: bool) -> Plain:
    is_locked = asks_for_keys and not row.is_open
    made: Plain = {"operationId": row.name, "tags": [row.tag], "summary": row.summary}
    if row.description:
        made["description"] = row.description
    made["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in (*row.parameters, *FOR_ALL)]
    if row.body:
        made["requestBody"] = _body(row)
    made["responses"] = _answers(row)
    return {**made, "security": [{"key": []}]} if is_locked else made


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
