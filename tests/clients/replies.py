"""Answers of the model in Chat Completions' words, whole and as the chunks of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clients.script import Breaks, Calls, Refuses, Says
from clients.strict import Json, texts

_PIECE = re.compile(r"\S+\s*|\s+")


def completion(request: Json, answer: Says | Calls) -> Json:
    message: Json = {"role": "assistant", "content": answer.text if isinstance(answer, Says) else None}
    if isinstance(answer, Calls):
        message["tool_calls"] = list(_calls(request, answer))
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(request, answer)}


def chunks(request: Json, answer: Says | Calls | Breaks) -> Iterator[Json]:
    """Words one by one, arguments in two pieces, usage last and only when it is asked for."""
    head = _head(request, "chat.completion.chunk")
    for delta in _deltas(request, answer):
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    if isinstance(answer, Breaks):
        if answer.error:
            yield error(answer.error, "internal_error")
        return
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(request, answer)}


def refusal(answer: Refuses) -> Json:
    return error(answer.message, answer.code)


def error(message: str, code: str | None) -> Json:
    return {"error": {"message": message, "type": "error", "param": None, "code": code}}


def _head(request: Json, kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request["model"]}


def _finish(answer: Says | Calls) -> str:
    return answer.finish if isinstance(answer, Says) else "tool_calls"


def _calls(request: Json, answer: Calls) -> Iterator[Json]:
    """Ids as engines that begin anew with every request make them: the same in every turn."""
    for index, (name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": arguments}
        yield {"id": f"call_{index}", "type": "function", "function": function}


def _deltas(request: Json, answer: Says | Calls | Breaks) -> Iterator[Json]:
    yield {"role": "assistant", "content": ""}
    for piece in _PIECE.findall("" if isinstance(answer, Breaks) else answer.reasoning):
        yield {"reasoning_content": piece}
    if not isinstance(answer, Calls):
        for piece in _PIECE.findall(answer.text):
            yield {"content": piece}
        return
    for index, call in enumerate(_calls(request, answer)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        call["function"]["arguments"] = arguments[:half]
        yield {"tool_calls": [{"index": index, **call}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]}


def words(request: Json) -> int:
    """How long a request is: a word is a token."""
    return sum(len(text.split()) for message in request["messages"] for text in texts(message))


def _usage(request: Json, answer: Says | Calls) -> Json:
    asked = words(request)
    thought = len(answer.reasoning.split())
    said = answer.text if isinstance(answer, Says) else " ".join(arguments for _, arguments in answer.calls)
    made = thought + len(said.split())
    usage: Json = {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
    return {**usage, "completion_tokens_details": {"reasoning_tokens": thought}} if thought else usage
