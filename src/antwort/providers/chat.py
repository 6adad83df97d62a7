"""Send inferences to a backend with the Chat Completions API."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from antwort.api.wire import UNSET, encode, replace
from antwort.event_loop import Pace
from antwort.providers.base import ChatRequest
from antwort.providers.chat_parser import ChatStreamParser, parse_chat_body
from antwort.providers.http import UNPAUSED_CHARS, HttpProvider, Pool, Timeouts, encode_parts
from antwort.providers.token_counter import by_input_tokens, by_template, by_tokenize

__all__ = ["ChatProvider", "Pool", "Timeouts"]


class ChatProvider(HttpProvider):
    path = "/chat/completions"
    count_methods = (by_tokenize, by_input_tokens, by_template)
    stream_parser = ChatStreamParser
    parse_body = staticmethod(parse_chat_body)

    async def serialize(self, request: ChatRequest) -> bytes:
        pace, chars = Pace(), 0
        messages: list[Any] = []
        for message in request.messages:
            if isinstance(content := message.content, list):
                messages.append(replace(message, content=await encode_parts(content, pace)))
                continue
            chars += len(content) if content else 0
            if chars > UNPAUSED_CHARS:
                messages.append(Raw(encode(message)))
                await pace.pause()
            else:
                messages.append(message)
        options = request.stream_options
        if request.stream is not True:
            options = UNSET
        elif self._capabilities.stream_usage:  # streams have a usage only on request
            options = {**(options or {}), "include_usage": True}
        return encode(replace(request, messages=messages, stream_options=options))
