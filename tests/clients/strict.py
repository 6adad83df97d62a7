"""What a strict engine refuses in a Chat Completions request: histories and tools that make no sense. Pure.

Several engines fail on these inside a chat template, or answer nonsense; this one says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

FIELDS = frozenset(
    {"model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "temperature"}
    | {"top_p", "presence_penalty", "frequency_penalty", "max_tokens", "max_completion_tokens", "reasoning_effort"}
    | {"response_format", "logprobs", "top_logprobs", "prompt_cache_key", "verbosity", "user", "stop", "seed", "n"}
)
PARTS = {
    "user": frozenset({"text", "image_url", "file", "input_audio", "video_url"}),
    "system": frozenset({"text"}),
    "assistant": frozenset({"text"}),
    "tool": frozenset({"text"}),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Malformed(Exception):
    """The request is not one that an engine takes."""


def check(request: Json) -> None:
    """Raises `Malformed`."""
    if unknown := sorted(request.keys() - FIELDS):
        raise Malformed(f"Unrecognized request argument: {unknown[0]}")
    if not isinstance(request.get("messages"), list) or not request["messages"]:
        raise Malformed("messages must be a list that is not empty")
    names = [_checked_tool(tool) for tool in request.get("tools") or []]
    if len(set(names)) < len(names):
        raise Malformed(f"two tools have the same name: {names}")
    _check_choice(request.get("tool_choice"), names)
    _check_format(request.get("response_format"))
    for index, message in enumerate(request["messages"]):
        _check_message(message, f"messages[{index}]")
    _check_order(request["messages"])


# ---- tools ----


def _checked_tool(tool: Json) -> str:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise Malformed(f"a tool is of the type function, not {tool.get('type')!r}")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise Malformed(f"no name for a tool: {name!r}")
    parameters = function.get("parameters", {"type": "object"})
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise Malformed(f"the parameters of {name} are not a schema of an object")
    if not isinstance(function.get("description", ""), str):
        raise Malformed(f"the description of {name} is not a text")
    return name


def _check_choice(choice: object, names: Sequence[str]) -> None:
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        if name not in names:
            raise Malformed(f"tool_choice names {name!r}, which is no tool of this request")
    elif choice not in (None, "auto", "none", "required"):
        raise Malformed(f"no tool_choice: {choice!r}")
    elif choice is not None and not names:
        raise Malformed("tool_choice is only allowed when tools are specified")


def _check_format(wanted: object) -> None:
    match wanted:
        case None | {"type": "text" | "json_object"}:
            return
        case {"type": "json_schema", "json_schema": {"name": str(), "schema": dict()}}:
            return
    raise Malformed(f"no response_format: {wanted!r}")


# ---- messages ----


def _check_message(message: Json, where: str) -> None:
    role = message.get("role")
    if role not in PARTS:
        raise Malformed(f"{where}: unknown role {role!r}")
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise Malformed(f"{where}: a message of the role {role} needs content")
    if isinstance(content, list):
        for part in content:
            _check_part(part, PARTS[role], where)
    elif content is not None and not isinstance(content, str):
        raise Malformed(f"{where}: content is neither text nor parts")
    if not isinstance(message.get("reasoning_content", ""), str):
        raise Malformed(f"{where}: reasoning_content is not a text")
    for call in message.get("tool_calls") or []:
        _check_call(call, where)


def _check_part(part: Json, taken: frozenset[str], where: str) -> None:
    kind = part.get("type")
    if kind not in taken:
        raise Malformed(f"{where}: no content of the type {kind!r} there")
    if kind == "text" and not isinstance(part.get("text"), str):
        raise Malformed(f"{where}: a text part without text")
    if kind == "image_url" and not isinstance((part.get("image_url") or {}).get("url"), str):
        raise Malformed(f"{where}: an image without a url")


def _check_call(call: Json, where: str) -> None:
    function = call.get("function") or {}
    if call.get("type") != "function" or not call.get("id") or not function.get("name"):
        raise Malformed(f"{where}: a call needs an id, the type function and a name")
    try:
        arguments = json.loads(function.get("arguments", ""))
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise Malformed(f"{where}: the arguments of {function['name']} are not an object in JSON")


def _check_order(messages: Sequence[Json]) -> None:
    """Each call has one result, right behind the message that asked for it."""
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise Malformed(f"messages[{index}]: a result without a call before it")
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            raise Malformed(f"messages[{index}]: the calls {open_calls} have no result")
        open_calls = [call["id"] for call in message.get("tool_calls") or []]
    if open_calls:
        raise Malformed(f"the calls {open_calls} have no result")


def texts(message: Mapping[str, Any]) -> Iterator[str]:
    """What a message says, piece by piece."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "text":
            yield part["text"]
