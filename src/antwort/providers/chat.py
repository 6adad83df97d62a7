"""Send inferences to a backend with the Chat Completions API."""

from __future__ import annotations

from typing import Any

from antwort.api.decoding import Steps
from antwort.api.wire import UNSET, encode, replace
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.chat_parser import ChatStreamParser, parse_chat_body
from antwort.providers.http import HttpProvider, Pool, Timeouts, encode_steps
from antwort.providers.token_counter import by_input_tokens, by_template, by_tokenize

__all__ = ["ChatProvider", "Pool", "Timeouts"]


class ChatProvider(HttpProvider):
    path = "/chat/completions"
    count_methods = (by_tokenize, by_input_tokens, by_template)
    stream_parser = ChatStreamParser
    parse_body = staticmethod(parse_chat_body)

    def _body(self, request: ChatRequest) -> bytes:
        is_ready = request.stream is not True and request.stream_options is UNSET
        return encode(request if is_ready else _outgoing(request, self._capabilities))

    def _body_steps(self, request: ChatRequest) -> Steps[bytes]:
        messages = yield from encode_steps(request.messages)
        return self._body(replace(request, messages=messages))


def _outgoing(request: ChatRequest, capabilities: Capabilities) -> ChatRequest:
    """Return the request with the stream options that this backend takes: streams have a usage only on request."""
    if request.stream is not True:
        return request if request.stream_options is UNSET else replace(request, stream_options=UNSET)
    if not capabilities.stream_usage:
        return request
    options: dict[str, Any] = {} if request.stream_options is UNSET else request.stream_options
    return replace(request, stream_options={**options, "include_usage": True})
