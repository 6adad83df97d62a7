"""Send inferences to a backend with the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Raw

from antwort.api.wire import UNSET, Plain, UnsetType, encode, replace
from antwort.event_loop import Pace
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest, ChatTool
from antwort.providers.http import HttpProvider, Pool, Timeouts, encode_parts
from antwort.providers.responses_parser import ResponsesParser
from antwort.providers.token_counter import Post, post_for_input_tokens

__all__ = ["Pool", "ResponsesProvider", "Timeouts"]


async def by_response_input_tokens(post: Post, request: ChatRequest) -> int:
    """Count tokens at the endpoint of the Responses API."""
    body = await _serialized(request)
    question = {name: body[name] for name in ("model", "input", "tools", "tool_choice") if name in body}
    return await post_for_input_tokens(post, "/responses/input_tokens", encode(question), request)


class ResponsesProvider(HttpProvider):
    path = "/responses"
    count_methods = (by_response_input_tokens,)
    parser = ResponsesParser
    default_capabilities = Capabilities(
        files=True, developer_role=True, allowed_tools=True, prompt_cache_key=True, verbosity=True
    )

    async def serialize(self, request: ChatRequest) -> bytes:
        return encode(await _serialized(request))


# ---- the request ----

_SAME_FIELDS = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "prompt_cache_key",
    "user",
    "top_logprobs",
)


async def _serialized(request: ChatRequest) -> Plain:
    """Return the body of a request with serialized items. Pause between them for other tasks: there may be many, and
    one may hold a large image.
    """
    body, pace = responses_request(replace(request, messages=[])), Pace()
    items: list[Any] = []
    for at, message in enumerate(request.messages):
        for item in _items(at, message):
            if content := item.get("content"):
                items.append({**item, "content": await encode_parts(content, pace)})
            else:
                items.append(Raw(encode(item)))
                await pace.pause()
    return {**body, "input": items}


def responses_request(request: ChatRequest) -> Plain:
    """Translate a chat request into the body of `POST /responses`, with the whole conversation each time."""
    limit = request.max_tokens if request.max_tokens is not UNSET else request.max_completion_tokens
    fields: dict[str, Any] = {
        "model": request.model,
        "input": [item for at, message in enumerate(request.messages) for item in _items(at, message)],
        "store": False,
        "stream": True if request.stream is True else UNSET,
        "max_output_tokens": limit,
        "reasoning": UNSET if request.reasoning_effort is UNSET else {"effort": request.reasoning_effort},
        "text": _text(request),
        "include": ["message.output_text.logprobs"] if request.logprobs is True else UNSET,
        **{name: getattr(request, name) for name in _SAME_FIELDS},
    }
    if request.tools is not UNSET:
        fields["tools"] = [_tool(tool) for tool in request.tools]
        fields["tool_choice"] = _choice(request.tool_choice)
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return {name: value for name, value in fields.items() if value is not UNSET}


def _items(at: int, message: ChatMessage) -> Iterator[Plain]:
    """Yield the items of message number `at`, with generated ids where servers require one."""
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": _output(message.content)}
        return
    if message.role != "assistant":
        yield {"type": "message", "role": message.role, "content": _content(message.content)}
        return
    if reasoning := message.reasoning_content or message.reasoning:
        content = {"type": "reasoning_text", "text": reasoning}
        yield {"type": "reasoning", "id": f"rs_{at}", "summary": [], "content": [content]}
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in _texts(message.content)]
    if message.refusal:
        parts.append({"type": "refusal", "refusal": message.refusal})
    if parts:
        yield {"type": "message", "role": "assistant", "id": f"msg_{at}", "status": "completed", "content": parts}
    for call in message.tool_calls or ():
        name, arguments = call.function.name, call.function.arguments
        yield {"type": "function_call", "call_id": call.id, "name": name, "arguments": arguments}


def _texts(content: str | list[dict[str, Any]] | None | UnsetType) -> list[str]:
    if isinstance(content, list):
        return [part["text"] for part in content if part.get("text")]
    return [content] if content else []


def _output(content: str | list[dict[str, Any]] | None | UnsetType) -> str | list[Plain]:
    return [_part(part) for part in content] if isinstance(content, list) else content or ""


def _content(content: str | list[dict[str, Any]] | None | UnsetType) -> list[Plain]:
    """Return content in parts: some servers take no plain text in a list of items."""
    if isinstance(content, list):
        return [_part(part) for part in content]
    return [{"type": "input_text", "text": content or ""}]


def _part(part: dict[str, Any]) -> Plain:
    match part:
        case {"type": "image_url", "image_url": {"url": url, **more}}:
            return {"type": "input_image", "image_url": url, "detail": more.get("detail", "auto")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "video_url", "video_url": {"url": url}}:
            return {"type": "input_video", "video_url": url}
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case _:
            return part


def _tool(tool: ChatTool) -> Plain:
    """Translate a tool. `strict` is always set: its default is false in Chat Completions, true in the Responses API."""
    function = tool.function
    fields: dict[str, Any] = {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": {"type": "object", "properties": {}} if function.parameters is UNSET else function.parameters,
        "strict": function.strict is True,
    }
    return {name: value for name, value in fields.items() if value is not UNSET}


def _choice(choice: str | dict[str, Any] | UnsetType) -> str | Plain | UnsetType:
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return {"type": "function", "name": name}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
            return {"type": "allowed_tools", "mode": mode, "tools": [_choice(tool) for tool in tools]}
        case _:
            return choice


def _text(request: ChatRequest) -> Plain | UnsetType:
    text: Plain = {}
    match request.response_format:
        case {"type": "json_schema", "json_schema": dict(schema)}:
            text["format"] = {"type": "json_schema", **schema}
        case dict(form):
            text["format"] = form
    if request.verbosity is not UNSET:
        text["verbosity"] = request.verbosity
    return text or UNSET
