"""How much there is in a request to make tokens of: bytes of text, and what is no text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antwort.api.wire import UNSET, encode
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool

PER_MESSAGE = 4
"""Tokens of a template around each message."""
PER_REQUEST = 8
"""And around them all."""


class Size(msgspec.Struct, frozen=True, gc=False):
    text: int = 0
    """Bytes, in UTF-8."""
    messages: int = 0
    attachments: int = 0

    @property
    def fixed(self) -> int:
        """Tokens that do not depend on the text."""
        return self.messages * PER_MESSAGE + self.attachments * ATTACHMENT_TOKENS


def size_of(request: ChatRequest) -> Size:
    text = attachments = 0
    for message in request.messages:
        size = message_size(message)
        text += size.text
        attachments += size.attachments
    if request.tools is not UNSET:
        text += tools_size(request.tools)
    return Size(text, len(request.messages), attachments)


def message_size(message: ChatMessage) -> Size:
    text = attachments = 0
    content = message.content
    if isinstance(content, str):
        text = text_size(content)
    elif isinstance(content, list):
        for part in content:
            said = part.get("text")
            if isinstance(said, str):
                text += text_size(said)
            else:
                attachments += 1
    if message.tool_calls is not UNSET:
        for call in message.tool_calls:
            text += text_size(call.function.name) + text_size(call.function.arguments)
    for more in (message.reasoning_content, message.reasoning, message.refusal):
        if more is not UNSET:
            text += text_size(more)
    return Size(text, 1, attachments)


def tools_size(tools: Sequence[ChatTool]) -> int:
    return sum(len(encode(tool)) for tool in tools)


def text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
