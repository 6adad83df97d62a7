"""Send inferences to a backend with the Chat Completions API."""

from __future__ import annotations

from antwort.api.wire import UNSET, encode, replace
from antwort.providers.base import ChatRequest
from antwort.providers.chat_parser import ChatStreamParser, parse_chat_body
from antwort.providers.http import HttpProvider, Pool, Timeouts, encode_in_turns
from antwort.providers.token_counter import by_input_tokens, by_template, by_tokenize

__all__ = ["ChatProvider", "Pool", "Timeouts"]


class ChatProvider(HttpProvider):
    path = "/chat/completions"
    count_methods = (by_tokenize, by_input_tokens, by_template)
    stream_parser = ChatStreamParser
    parse_body = staticmethod(parse_chat_body)

    async def serialize(self, request: ChatRequest) -> bytes:
        options = request.stream_options
        if request.stream is not True:
            options = UNSET
        elif self._capabilities.stream_usage:  # streams have a usage only on request
            options = {**(options or {}), "include_usage": True}
        messages = await encode_in_turns(request.messages)
        return encode(replace(request, messages=messages, stream_options=options))
