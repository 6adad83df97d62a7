"""Send inferences to a backend with the Chat Completions API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from antwort.api.wire import UNSET, encode, replace
from antwort.event_loop import Pace
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.providers.chat_parser import ChatParser
from antwort.providers.http import UNPAUSED_CHARS, HttpProvider, Pool, Timeouts, encode_parts
from antwort.providers.token_counter import by_input_tokens, by_template, by_tokenize

__all__ = ["ChatProvider", "Pool", "Timeouts"]


class ChatProvider(HttpProvider):
    path = "/chat/completions"
    count_methods = (by_tokenize, by_input_tokens, by_template)
    parser = ChatParser

    async def serialize(self, request: ChatRequest) -> bytes:
        chars = 0
        for message in request.messages:
            if content := message.content:
                chars += len(content) if isinstance(content, str) else UNPAUSED_CHARS  # a part may hold a large image
        messages: Any = request.messages if chars < UNPAUSED_CHARS else await _encode_messages(request.messages)
        options = request.stream_options
        if request.stream is not True:
            options = UNSET
        elif self._capabilities.stream_usage:  # streams have a usage only on request
            options = {**(options or {}), "include_usage": True}
        if messages is not request.messages or options is not request.stream_options:
            request = replace(request, messages=messages, stream_options=options)
        return encode(request)


async def _encode_messages(messages: Sequence[ChatMessage]) -> list[Raw]:
    """Serialize messages one by one, with pauses for other tasks."""
    pace = Pace()
    encoded = []
    for message in messages:
        content: Any = message.content
        if isinstance(content, list):
            content = await encode_parts(content, pace)
        encoded.append(Raw(encode(replace(message, content=content))))
        await pace.pause()
    return encoded
