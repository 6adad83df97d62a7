"""JSON-RPC messages of the Model Context Protocol: requests, decoding of answers, and their meaning. Pure.

Decoding is bounded, and repairs some texts that are almost JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from antwort.api.decoding import MAX_SURROGATES, has_long_number, has_more_values, repair_surrogates
from antwort.tools.base import Progress
from antwort.tools.mcp.base import McpCallResult, ServerUnavailable

MODERN_VERSION = "2026-07-28"
"""The version without a handshake: each request names version, client and capabilities."""
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions that `initialize` negotiates, the newest first."""
IDEMPOTENCY_KEY = "antwort/idempotency-key"
"""The entry of a call's `_meta` that is the same for every attempt at it."""
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

UNSUPPORTED_INPUT = "The tool asked for input in the middle of its call, which nobody here can give."
NOT_AN_ANSWER = "The MCP server did not answer as one."
TOO_LONG = "The MCP server's answer is too long."
BROKEN = "The connection to the MCP server ended before the answer; whether the tool has run is not known."
TOO_CURIOUS = "The MCP server asks for too much in the middle of a call."
UNAUTHORIZED = "The MCP server wants other credentials."

MAX_VALUES = 200_000
"""Values in one message. Sixteen megabytes of empty objects would be five million, and a gigabyte."""
_INLINE_BYTES = 256 * 1024
"""Longest message that is decoded in the event loop. Longer ones are decoded in a thread."""
_MAX_ERROR_CHARACTERS = 4096

JsonRpcMessage: TypeAlias = Mapping[str, Any]
OnProgress: TypeAlias = Callable[[Progress], None]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a server."""

    id: str | int
    body: bytes
    head: bytes = b""
    """Header lines in which the modern version repeats parts of the body."""
    is_repeatable: bool = True
    """Whether it has no further effect if it is carried out twice."""
    max_bytes: int
    """Longest answer."""


class Unsent(Exception):
    """The request has certainly not been carried out, and can be repeated over a new session. `status` is the HTTP
    status with which the server refused it, if it is one for unknown sessions.
    """

    def __init__(self, status: int | None = None) -> None:
        super().__init__("not sent" if status is None else f"refused with HTTP status {status}")
        self.status = status


class JsonRpcError(Exception):
    """The server has answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the server refused with {code}")
        self.code = code
        self.message = message[:_MAX_ERROR_CHARACTERS]


def http_status_error(status: int) -> ServerUnavailable:
    return ServerUnavailable(f"The MCP server answered with HTTP status {status}.")


# ---- decoding ----


class TooHeavy(ValueError):
    """The message exceeds a limit."""


async def decode_aside(data: bytes) -> Any:
    """Decode JSON as `decode` does, without blocking the event loop."""
    return decode(data) if len(data) <= _INLINE_BYTES else await asyncio.to_thread(decode, data)


def decode(data: bytes) -> Any:
    """Decode JSON. Raises `ValueError`, and `TooHeavy` for too many values or too long numbers.

    A lone surrogate becomes U+FFFD: programs that cut texts write them. NaN, Infinity and numbers such as 1e999 become
    null.
    """
    if has_more_values(data, MAX_VALUES):
        raise TooHeavy("too many values")
    if has_long_number(data):
        raise TooHeavy("a number of too many digits")
    try:
        return _decode(data)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(data)


async def decode_message(data: bytes) -> dict[str, Any]:
    """Decode one message of a server. Raises `ServerUnavailable`."""
    try:
        message = decode(data) if len(data) <= _INLINE_BYTES else await asyncio.to_thread(decode, data)
    except TooHeavy as exc:
        raise ServerUnavailable(TOO_LONG) from exc
    except ValueError as exc:
        raise ServerUnavailable(NOT_AN_ANSWER) from exc
    if not isinstance(message, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    return message


def _decode_leniently(data: bytes) -> Any:
    if data.count(b"\\ud") + data.count(b"\\uD") > MAX_SURROGATES:
        raise TooHeavy("too many surrogates")
    try:
        text = repair_surrogates(data).decode("utf-8-sig")
        return json.loads(text, parse_float=_float, parse_constant=lambda _: None)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    except ValueError as exc:
        raise ValueError("no JSON") from exc


def _float(text: str) -> float | None:
    return number if math.isfinite(number := float(text)) else None


# Of a number such as 1.2345678901234567e-300 msgspec takes 7 µs to make one, and a function of Python's 0.7.
_decode = msgspec.json.Decoder(float_hook=_float).decode

_SCANNED_BYTES = 4096
_ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,200}")\s*'
_SCALARS = rb'(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[-+.\w]+)\s*,)*'
_ANSWER = re.compile(rb"\s*\{(" + _SCALARS + rb')\s*"(?:result|error)"\s*:')
_EARLY_ID = re.compile(_ID + rb",")
_LATE_ID = re.compile(_ID + rb'(?:,\s*"[^"\\]*"\s*:\s*"[^"\\]*"\s*)*\}\s*$')


def find_id(data: bytes) -> int | str | None:
    """Return the id in an answer that cannot be decoded, or None if it has none or is no answer."""
    if (answer := _ANSWER.match(data[:_SCANNED_BYTES])) is None:
        return None
    found = _EARLY_ID.search(answer[1]) or _LATE_ID.search(data[-_SCANNED_BYTES:])
    if found is None:
        return None
    text = found[1].decode("utf-8", "replace")
    return text[1:-1] if text.startswith('"') else int(text)


# ---- meaning ----


def result_of(message: JsonRpcMessage) -> object:
    """Return the result of a response. Raises `JsonRpcError` for an error, `ServerUnavailable` for neither."""
    if "error" not in message:
        if "result" not in message:
            raise ServerUnavailable(NOT_AN_ANSWER)
        return message["result"]
    error = message["error"]
    if not isinstance(error, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    code, text = error.get("code"), error.get("message")
    raise JsonRpcError(code if isinstance(code, int) else 0, text if isinstance(text, str) else "")


_DICTS = frozenset((dict,))


def call_result(result: object) -> McpCallResult:
    """Return the result of `tools/call`. Raises `ServerUnavailable` if it is not valid."""
    if not isinstance(result, dict):
        raise ServerUnavailable(NOT_AN_ANSWER)
    if result.get("resultType") == "input_required":
        raise ServerUnavailable(UNSUPPORTED_INPUT)
    content, structured = result.get("content"), result.get("structuredContent")
    if not isinstance(content, list):
        if content is not None or structured is None:
            raise ServerUnavailable(NOT_AN_ANSWER)
        content = ()
    if not _DICTS.issuperset(map(type, content)):
        content = [part for part in content if isinstance(part, dict)]
    return McpCallResult(content=tuple(content), structured=structured, is_error=result.get("isError") is True)


def error_result(error: JsonRpcError) -> McpCallResult:
    """Return the error of a call (an unknown name, invalid arguments) as a failure of the tool."""
    text = error.message or "The MCP server refused the call."
    return McpCallResult(content=({"type": "text", "text": text},), is_error=True)


def progress_of(params: object) -> tuple[object, Progress] | None:
    """Return the token and the content of a progress notification."""
    if not isinstance(params, dict) or (done := _finite(params.get("progress"))) is None:
        return None
    message = params.get("message")
    text = message if isinstance(message, str) else None
    return params.get("progressToken"), Progress(message=text, done=done, total=_finite(params.get("total")))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer that is too large
        return None


# ---- parameters that the modern version repeats in headers ----

_HEADER_TEXT = re.compile("[ -~]*")
_ENCODED = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_KEY = "x-mcp-header"
_ONE_SCHEMA = frozenset(
    (
        *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("not", "if", "then", "else", "contentSchema"),
    )
)
_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))

SchemaPath: TypeAlias = tuple[str, ...]


def header_value(text: str) -> str:
    """Encode a text for a header: unchanged, or in base64."""
    if _HEADER_TEXT.fullmatch(text) and text == text.strip() and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def header_parameters(schema: object) -> dict[SchemaPath, str] | None:
    """Return the parameters that a tool wants in headers, by their paths, with the names of their headers. None: the
    schema breaks a rule of the protocol, so the tool must not be used.
    """
    found: dict[SchemaPath, str] = {}
    for path, position in _schema_positions(schema):
        if _HEADER_KEY not in position:
            continue
        name = position[_HEADER_KEY]
        if not path or not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return None
        if position.get("type") not in ("string", "integer", "boolean"):
            return None
        if name.lower() in map(str.lower, found.values()):
            return None
        found[path] = name
    return found


def parameter_headers(names: Mapping[SchemaPath, str], arguments: object) -> dict[str, str]:
    """Return the headers with the values of these parameters in a call."""
    headers: dict[str, str] = {}
    for path, name in names.items():
        value = arguments
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool):
            headers[f"Mcp-Param-{name}"] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[f"Mcp-Param-{name}"] = header_value(str(value))
    return headers


def _schema_positions(root: object) -> Iterator[tuple[SchemaPath | None, dict[str, Any]]]:
    """Yield every schema within a schema, with its path where only `properties` lead to it, otherwise None."""
    waiting: list[tuple[SchemaPath | None, object]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for word, value in schema.items():
            if word == "properties" and isinstance(value, dict):
                waiting += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif word in _ONE_SCHEMA:
                waiting.append((None, value))
            elif word in _SCHEMA_LISTS and isinstance(value, list):
                waiting += [(None, inner) for inner in value]
            elif word in _SCHEMA_MAPS and isinstance(value, dict):
                waiting += [(None, inner) for inner in value.values()]
